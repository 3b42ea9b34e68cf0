//! Mutual TLS between agent and server with certificates of this minute: what is wrong with one is told
//! with its file, and once the file is right all goes on without a restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, agent, server, wait};
use serde_json::Value;

/// After failures the agent waits up to half a minute before it tries again.
const LIMIT: Duration = Duration::from_secs(100);

/// A certificate and its key.
type Pair = [PathBuf; 2];

/// Makes a key and a certificate of this name that is good for two days from `began` on, signed by
/// itself, or by `authority` for this machine.
fn certificate(folder: &Path, name: &str, authority: Option<&Pair>, began: &str) -> Pair {
    let files = ["pem", "key"].map(|end| folder.join(format!("{name}.{end}")));
    let mut command = Command::new("faketime");
    command.args([began, "openssl", "req", "-x509", "-nodes", "-days", "2"]);
    command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    command.args(["-subj", &format!("/CN={name}")]);
    command.arg("-out").arg(&files[0]);
    command.arg("-keyout").arg(&files[1]);
    if let Some([certificate, key]) = authority {
        command.arg("-CA").arg(certificate);
        command.arg("-CAkey").arg(key);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        command.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    }
    let made = command.output().expect("faketime and openssl are there");
    assert!(made.status.success(), "{made:?}");
    files
}

/// Puts copies in place as one who rotates them does: another file under the same name.
fn put(from: &Pair, to: &Pair) {
    for (from, to) in from.iter().zip(to) {
        let next = to.with_extension("next");
        std::fs::copy(from, &next).expect("it was made here");
        std::fs::rename(&next, to).expect("in one folder");
    }
}

/// What the agent says of its shipping, once it says what is asked for.
fn wait_until(what: &str, agent: &agent::Agent, is_so: impl Fn(&Value) -> bool) {
    wait::until(what, LIMIT, || {
        let health = agent.get("/healthz")?;
        let told = health.json();
        let is_well = health.status == 200 || told["status"] == "starting";
        assert!(is_well, "no restart would mend it: {told}");
        Some(told["shipping"].clone()).filter(|it| is_so(it))
    });
}

/// Waits for an error with all of these words.
fn wait_for_error(agent: &agent::Agent, words: &[&str]) {
    wait_until(&format!("the agent says {words:?}"), agent, |shipping| {
        let error = shipping["error"].as_str().unwrap_or_default();
        words.iter().all(|word| error.contains(word))
    });
}

fn wait_for_success(agent: &agent::Agent) {
    wait_until("the server acknowledges", agent, |shipping| {
        let age = shipping["acknowledged_age_seconds"].as_f64();
        shipping["error"].is_null() && age.is_some_and(|age| age < 15.0)
    });
}

#[test]
fn what_is_wrong_with_a_certificate_is_told_with_its_file_and_mended_without_a_restart() {
    let world = World::new();
    let folder = world.path("certificates");
    std::fs::create_dir_all(&folder).expect("the test's own folder");
    let ours = certificate(&folder, "ours", None, "1 hour ago");
    let theirs = certificate(&folder, "theirs", None, "1 hour ago");
    let good = certificate(&folder, "good", Some(&ours), "1 hour ago");
    let foreign = certificate(&folder, "foreign", Some(&theirs), "1 hour ago");
    let expired = certificate(&folder, "expired", Some(&ours), "5 days ago");
    let in_use = |name: &str| ["pem", "key"].map(|end| folder.join(format!("{name}.{end}")));
    let (authority, of_agent, of_server) = (in_use("ca"), in_use("agent"), in_use("server"));
    put(&ours, &authority);
    put(&good, &of_agent);
    put(&good, &of_server);

    let place = server::Place::new(&world)
        .with(&format!(
            "auth.tls_certificate_file={}",
            of_server[0].display()
        ))
        .with(&format!("auth.tls_key_file={}", of_server[1].display()))
        .with(&format!("auth.tls_client_ca_file={}", ours[0].display()))
        .with("fleet.commit_interval_s=1");
    // Its pages want a certificate too, so the agent says whether it is there.
    let start = || Process::start("gpufleet-server", place.command(), &place.log);
    let server = start();
    let sending = agent::Place::new(&world, "node-1", &format!("https://{}", place.grpc), "");
    sending.replace_in_config(
        "[prometheus]",
        &format!(
            "ca_file = \"{}\"\ncertificate_file = \"{}\"\nkey_file = \"{}\"\n[prometheus]",
            authority[0].display(),
            of_agent[0].display(),
            of_agent[1].display()
        ),
    );
    sending.show(&agent::gpus(0, 1));
    let agent = sending.start();
    wait_for_success(&agent);

    // A connection lives on with what it began with: a new server is a new connection.
    put(&theirs, &authority);
    put(&foreign, &of_agent);
    server.kill();
    let _server = start();
    let ca = authority[0].display().to_string();
    wait_for_error(&agent, &["ship.ca_file", &ca, "UnknownIssuer"]);
    let counted = |line: &&str| {
        line.starts_with("gpufleet_agent_ship_refusals_total") && line.contains("\"tls\"")
    };
    wait::until("the failure is counted", LIMIT, || {
        let text = agent.get("/metrics")?.text();
        let line = text.lines().find(counted)?;
        (!line.ends_with(" 0")).then_some(())
    });
    put(&ours, &authority);
    let certificate = of_agent[0].display().to_string();
    wait_for_error(&agent, &["refuses ship.certificate_file", &certificate]);
    put(&expired, &of_agent);
    wait_for_error(&agent, &["refuses ship.certificate_file", "xpired"]);
    put(&good, &of_agent);
    wait_for_success(&agent);

    put(&expired, &of_server);
    let address = format!("https://{}", place.grpc);
    let other = agent::Place::new(&world, "node-2", &address, "");
    other.replace_in_config("[prometheus]", &format!("ca_file = \"{ca}\"\n[prometheus]"));
    other.show(&agent::gpus(1, 1));
    let other = other.start();
    wait_for_error(&other, &[&place.grpc, "cannot be accepted", "xpired"]);
    put(&good, &of_server);
    wait_for_error(
        &other,
        &["if it wants a certificate, set ship.certificate_file"],
    );
    other.stop();
    agent.stop();
}
