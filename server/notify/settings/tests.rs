//! What cannot be used of the configuration is refused by name.

use gpufleet_program::config::assert_refused;

use super::{ChannelConfig, Digested, Kind, NotifyConfig, Settings};
use crate::config::Config;

#[test]
fn what_would_page_nobody_is_refused_by_name() {
    let check = assert_refused::<Config>;
    check(
        r#"notify.channels=[{ name = "a", kind = "pigeon" }]"#,
        &["pigeon", "pagerduty"],
    );
    check(
        r#"notify.channels=[{ name = "a b", kind = "slack", secret_env = "X" }]"#,
        &["a b", "letters"],
    );
    check(
        r#"notify.channels=[{ name = "a", kind = "slack", urls = ["https://hooks.slack.com/x"] }]"#,
        &["secret_file"],
    );
    check(
        r#"notify.channels=[{ name = "a", kind = "alertmanager" }]"#,
        &["urls"],
    );
    for (key, named) in [
        ("group_by = ['node']", "groups by itself"),
        ("repeat_s = 0", "1 to 60"),
        ("repeat_s = 61", "1 to 60"),
    ] {
        let it = format!(
            "notify.channels=[{{ name = 'a', kind = 'alertmanager', urls = ['http://x'], {key} }}]"
        );
        check(&it, &[named]);
    }
    check(
        r#"notify.routes=[{ channels = ["nowhere"] }]"#,
        &["number 1", "nowhere", "notify.channels"],
    );
    check(
        r#"notify.own_channels=["nowhere"]"#,
        &["notify.own_channels", "nowhere"],
    );
    check(
        r#"notify.routes=[{ channels = [], families = ["flu"] }]"#,
        &["number 1", "flu", "gpu_fault"],
    );
    check(
        r#"notify.routes=[{ channels = [], severity = "loud" }]"#,
        &["loud", "warning"],
    );
    check(
        r#"notify.routes=[{ channels = [], severity = "error" }]"#,
        &["number 1", "leads nowhere"],
    );
    for (key, named) in [
        ("digests=[{ channels = ['nowhere'] }]", "nowhere"),
        ("digests=[{ channels = [] }]", "leads nowhere"),
        ("digests=[{ teams = ['x'] }]", "channels"),
        ("digest_hour=24", "digest_hour = 24"),
        ("digest_wait_s=86401", "digest_wait_s = 86401"),
    ] {
        check(&format!("notify.{key}"), &[named]);
    }
    check("notify.heartbeat_every_s=1", &["heartbeat_every_s = 1"]);
    check("notify.page_url='ftp://x'", &["notify.page_url", "ftp://x"]);
}

#[test]
fn what_is_for_trouble_alone_is_no_place_for_a_digest() {
    for kind in [
        Kind::Pagerduty,
        Kind::Alertmanager,
        Kind::Slack,
        Kind::Webhook,
    ] {
        let mut channel = ChannelConfig::new("it", kind);
        if matches!(kind, Kind::Alertmanager | Kind::Webhook) {
            channel.urls = vec!["http://127.0.0.1:1".to_owned()];
        }
        let config = NotifyConfig {
            channels: vec![channel],
            digests: vec![Digested {
                channels: vec!["it".to_owned()],
                teams: Vec::new(),
            }],
            ..NotifyConfig::default()
        };
        let said = Settings::read(&config).map(|_| String::new());
        let said = said.unwrap_or_else(|why| why);
        let is_refused = [
            "notify.digests, number 1",
            "\"it\"",
            kind.name(),
            "slack or webhook",
        ]
        .iter()
        .all(|it| said.contains(it));
        assert_eq!(is_refused, !kind.takes_notices(), "{said}");
        assert_eq!(said.is_empty(), kind.takes_notices(), "{said}");
    }
}
