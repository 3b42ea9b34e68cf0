//! The configuration as pages and API show it: a real server with a secret in every place for one, and none
//! of them on a page, in the API, in /metrics or in the log.

use std::time::Duration;

use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, http, server, wait};

/// Migrations of a new database included.
const LIMIT: Duration = Duration::from_secs(60);

/// In every secret; nothing else may hold it.
const SECRET: &str = "s3cr3t-0192837465";

#[test]
fn no_secret_of_the_configuration_is_on_a_page_in_the_api_or_in_the_log() {
    let world = World::new();
    let file = |name: &str, content: &str| {
        let file = world.file(name, &format!("{content}\n"));
        file.display().to_string()
    };
    let token = format!("{SECRET}-of-readers");
    let read = file("read.token", &token);
    let ingest = file("ingest.token", &format!("{SECRET}-of-agents"));
    let push = file("push.token", &format!("{SECRET}-of-remote-write"));
    let slack = file("slack.url", &format!("https://127.0.0.1:9/{SECRET}"));
    let heartbeat = file("heartbeat.url", &format!("http://127.0.0.1:9/{SECRET}"));
    let config = world.file(
        "server.toml",
        &format!(
            r#"
            [auth]
            tokens = [{{ role = "read", file = "{read}" }}, {{ role = "ingest", file = "{ingest}" }}]
            [notify]
            heartbeat_file = "{heartbeat}"
            channels = [
              {{ name = "chat", kind = "slack", secret_file = "{slack}" }},
              {{ name = "pager", kind = "pagerduty", secret_env = "THE_PAGERS_KEY" }},
              {{ name = "hook", kind = "webhook", urls = ["http://127.0.0.1:9/{SECRET}"], secret_env = "THE_PAGERS_KEY" }},
            ]
            [remote_write]
            url = "http://127.0.0.1:9/api/v1/write?token={SECRET}"
            token_file = "{push}"
            [detect]
            idle_after_s = 1234
            "#
        ),
    );
    let place = server::Place::new(&world);
    let mut command = place.command();
    command
        .arg("--config")
        .arg(&config)
        .env("THE_PAGERS_KEY", format!("{SECRET}-of-the-pager"))
        .env("GPUFLEET_COST__CURRENCY", "EUR");
    let mut process = Process::start("gpufleet-server", command, &place.log);
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let mut get = |path: &str| {
        process.must_run();
        let answer = http::send(&place.web, "GET", path, &headers, b"").ok()?;
        Some(answer).filter(|it| it.status == 200)
    };
    let settings = wait::until("the server leads and shows its settings", LIMIT, || {
        get("/api/v1/settings")
    });
    let settings = settings.json();
    let key = |section: &str, key: &str| {
        let named = |list: &serde_json::Value, name: &str| {
            let mut items = list.as_array().into_iter().flatten();
            items
                .find(|it| it["name"] == name)
                .cloned()
                .unwrap_or_default()
        };
        named(&named(&settings["sections"], section)["keys"], key)
    };
    let push = key("remote_write", "token_file")["value"].to_string();
    assert!(push.contains("set, from the file"), "{push}");
    let idle = key("detect", "idle_after_s");
    assert_eq!(
        (&idle["value"], &idle["from"]),
        (&"1234".into(), &"file".into())
    );
    let currency = key("cost", "currency");
    assert_eq!(currency["from_name"], "GPUFLEET_COST__CURRENCY");
    assert_eq!(key("web", "listen")["from"], "command_line");
    let channels = key("notify", "channels")["value"].to_string();
    for words in ["from the variable THE_PAGERS_KEY", "http://127.0.0.1:9/…"] {
        assert!(channels.contains(words), "{words} is not in {channels}");
    }
    // The thresholds are looked at before a tick of the detectors.
    wait::until("the thresholds were read again", LIMIT, || {
        let page = get("/settings")?.text();
        page.contains("last looked at").then_some(())
    });
    for path in [
        "/",
        "/health",
        "/settings",
        "/metrics",
        "/api/v1/settings",
        "/api/v1/doctor",
        "/api/v1/channels",
        "/api/v1/health",
    ] {
        let shown = wait::until(path, LIMIT, || get(path)).text();
        assert!(!shown.contains(SECRET), "{path}: {shown}");
    }
    let log = process.output();
    assert!(!log.contains(SECRET), "{log}");
    process.stop();
}
