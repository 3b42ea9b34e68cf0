//! The weekly digest: strict stand-ins for Slack and a webhook get each team's week once, also where they were away
//! and the server died in the middle; a person prints it, and sends it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::digest::Week;
use gpufleet_analysis::owner::Holder;
use gpufleet_server::ledger::{LedgerConfig, Rules, round};
use gpufleet_server::money::tables::{Standby, Targets};
use gpufleet_server::store::Store;
use gpufleet_server::store::model::{Commit, KnownHolder, KnownResource, MinuteDelta, ResourceKey};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{ALL_SECONDS, Aggregate, MinuteRow};
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_tests::harness::checker::with_store;
use gpufleet_tests::harness::{World, server, wait};
use gpufleet_tests::on_both_databases;
use gpufleet_tests::people::server::{Mood, Running};
use gpufleet_tests::people::{Service, slack, webhook};
use serde_json::Value;

/// Starting, leading, reading a small ledger and a few messages, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(180);

const KEY: &str = "s1gn1ng-key-of-the-webhook";

/// How the name of the other team begins.
const HOSTILE: &str = "<b>&\"'";

/// A team name as somebody who is up to no good labels a pod.
fn hostile() -> String {
    format!("{HOSTILE}\u{202e}\u{7}{}", "x".repeat(10_000))
}

fn holder(team: &str) -> KnownHolder {
    let holder = Holder {
        name: format!("{}-0", &team[..4]),
        job: team.to_owned(),
        pod_labels: BTreeMap::from([("team".to_owned(), team.to_owned())]),
        ..Holder::default()
    };
    KnownHolder {
        number: holder.number(),
        holder,
        met: Timestamp::from_seconds(wait::unix_seconds()),
    }
}

/// An hour in which somebody held a GPU and worked on it.
fn hour(gpu_id: &str, by: &KnownHolder, first: Minute) -> (KnownResource, Vec<MinuteDelta>) {
    let key = ResourceKey {
        cluster: "prod".into(),
        kind: ResourceKind::Gpu,
        id: gpu_id.into(),
    };
    let mut row = MinuteRow::default();
    for metric in [gpu::OBSERVED, gpu::HELD, gpu::HOLDER_KNOWN, gpu::ACTIVE] {
        row.bitmaps.set(metric.id, ALL_SECONDS);
    }
    let busy = Aggregate::of_gauge(0.9, None).expect("a finite number");
    row.add(gpu::GRAPHICS_ACTIVE.id, busy);
    row.hold(by.number, ALL_SECONDS);
    let minutes = (0..60).map(|it| MinuteDelta {
        key: key.clone(),
        minute: Minute(first.0 + it),
        row: row.clone(),
    });
    let known = KnownResource {
        resource: Arc::new(Resource::new(key.kind, gpu_id).with(attribute::NODE, "node-1")),
        agent: None,
        first_seen: first.start(),
        last_seen: Minute(first.0 + 59).start(),
        key: key.clone(),
    };
    (known, minutes.collect())
}

/// Last Wednesday's hour of two teams, as a server that has stopped left it.
async fn fill(store: &Store) {
    let now = Timestamp::from_seconds(wait::unix_seconds());
    let lease = store
        .acquire_lease("the test", now, Duration::from_secs(60))
        .await;
    let token = lease.expect("nobody has the lease of a new database").token;
    let wednesday = Week::at(now.millis()).before().days().start + 2;
    let first = Timestamp::from_millis(wednesday * MILLIS_PER_DAY).minute();
    let mut commit = Commit {
        number: 1,
        ..Commit::default()
    };
    for (gpu_id, team) in [("GPU-1", "research".to_owned()), ("GPU-2", hostile())] {
        let by = holder(&team);
        let (known, minutes) = hour(gpu_id, &by, first);
        commit.resources.push(known);
        commit.minutes.extend(minutes);
        commit.holders.push(by);
    }
    store.commit(&commit, token).await.expect("it leads");
    // What is marked now is due within minutes.
    let later = Timestamp::from_seconds(now.seconds() + 3_600);
    let (targets, standby) = (Targets::default(), Standby::default());
    let rules = Rules {
        targets: &targets,
        standby: &standby,
    };
    while round(store, &LedgerConfig::default(), rules, later)
        .await
        .expect("the store answers")
        > 0
    {}
    store.release_lease(token).await.expect("the store answers");
}

/// Nothing is left to send: all that was got through is written.
fn all_is_said(place: &server::Place) {
    wait::until("nothing is left to send", LIMIT, || {
        let standing = with_store(&place.database, async |store| store.standing_groups().await);
        let standing = standing.ok()?;
        standing.iter().all(|it| it.notice.is_none()).then_some(())
    });
}

/// The server has looked whether a week is to be made.
fn has_looked(server: &server::Server) {
    wait::until("the job of the digest has looked", LIMIT, || {
        let metrics = server.get("/metrics").text();
        let mut lines = metrics.lines();
        let is_its = |it: &str| {
            it.starts_with("gpufleet_server_job_last_success_timestamp_seconds")
                && it.contains("the weekly digest")
        };
        lines.any(is_its).then_some(())
    });
}

/// The messages of the webhook by the team that they are about.
fn by_team(hook: &Running) -> BTreeMap<String, Vec<Value>> {
    let Service::Webhook(hook) = hook.service() else {
        panic!("no webhook: {:?}", hook.service())
    };
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for body in hook.bodies.into_values() {
        let team = body["digest"]["team"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        found.entry(team).or_default().push(body);
    }
    found
}

/// Each message came once, and no two are of one team and week.
fn nothing_came_twice(hook: &Running, chat: &Running) {
    for receiver in [hook, chat] {
        let service = receiver.service();
        let again: Vec<_> = service.messages().iter().filter(|it| *it.1 > 1).collect();
        assert!(again.is_empty(), "{again:?}");
    }
    for (team, messages) in by_team(hook) {
        let weeks: BTreeSet<&str> = messages
            .iter()
            .filter_map(|it| it["digest"]["week"].as_str())
            .collect();
        assert_eq!(weeks.len(), messages.len(), "{team}: {weeks:?}");
    }
}

fn command(place: &server::Place, arguments: &[&str]) -> String {
    let output = place.command().args(arguments).output();
    let output = output.expect("the server's program can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}{complained}");
    said
}

on_both_databases!(each_teams_week_is_sent_once_also_where_the_server_dies_in_the_middle);

fn each_teams_week_is_sent_once_also_where_the_server_dies_in_the_middle(world: World) {
    let chat = Running::start(Service::Slack(slack::Slack::default()));
    let hook = Running::start(Service::Webhook(webhook::Webhook::new(KEY)));
    let slack_url = world.file(
        "slack-url",
        &format!("http://{}/services/T/B/x", chat.address),
    );
    let key = world.file("hook-key", KEY);
    let place = server::Place::new(&world)
        .with(&format!(
            "notify.channels=[{{ name = 'chat', kind = 'slack', secret_file = '{}' }}, {{ name = 'hook', kind = 'webhook', urls = ['http://{}/x'], secret_file = '{}' }}]",
            slack_url.display(), hook.address, key.display()
        ))
        .with("notify.digests=[{ channels = ['chat', 'hook'], teams = ['research', 'nobody-of-that-name'] }, { channels = ['chat', 'hook'] }]")
        .with("notify.digest_hour=0")
        .with("notify.digest_wait_s=0");
    with_store(&place.database, fill);
    for receiver in [&chat, &hook] {
        receiver.mood(Mood::Says(503, "not now".to_owned()));
    }
    let server = place.start();
    wait::until("both were asked", LIMIT, || {
        (chat.requests() > 0 && hook.requests() > 0).then_some(())
    });
    // It is made and nobody has it.
    let place = server.kill();
    for receiver in [&chat, &hook] {
        receiver.mood(Mood::Well);
    }
    let server = place.start();
    wait::until("the webhook has both teams", LIMIT, || {
        let found = by_team(&hook);
        let has = |begins: &str| found.keys().any(|it| it.starts_with(begins));
        (has("research") && has(HOSTILE)).then_some(())
    });
    wait::until("Slack shows both", LIMIT, || {
        let Service::Slack(slack) = chat.service() else {
            panic!("no Slack")
        };
        let has = |of: &str| slack.texts.iter().any(|it| it.contains(of));
        (has("research: ") && has("&lt;b&gt;&amp;")).then_some(())
    });
    all_is_said(&server.place);
    // The next one that leads makes nothing of it.
    let server = server.kill().start();
    has_looked(&server);
    all_is_said(&server.place);
    nothing_came_twice(&hook, &chat);
    let found = by_team(&hook);
    let research = &found["research"][0];
    assert_eq!(
        (&research["says"], &research["severity"]),
        (&"notice".into(), &"info".into())
    );
    let digest = &research["digest"];
    assert_eq!(digest["held_gpu_hours"]["value"], "1.0", "{digest}");
    assert_eq!(
        digest["days_not_recorded"].as_array().map(Vec::len),
        Some(6),
        "{digest}"
    );
    assert_eq!(digest["goodput"]["value"], Value::Null, "{digest}");
    let refused = |it: &Running| it.answers().into_iter().any(|it| it == 400 || it == 422);
    assert!(
        !refused(&chat) && !refused(&hook),
        "the strict take all of it"
    );

    let week = digest["week"].as_str().expect("a week").to_owned();
    let place = server.stop();
    let printed = command(&place, &["digest", "--week", &week, "--team", "research"]);
    for word in [
        format!("Week {week} of research"),
        "Held: 1.0 GPU-hours".to_owned(),
    ] {
        assert!(printed.contains(&word), "{printed}");
    }
    assert!(!printed.contains(HOSTILE), "{printed}");
    let before = hook.service().messages().len();
    let sent = command(
        &place,
        &["digest", "--week", &week, "--team", "research", "--send"],
    );
    assert!(
        sent.contains("hook: it has it") && sent.contains("chat: it has it"),
        "{sent}"
    );
    assert_eq!(
        hook.service().messages().len(),
        before + 1,
        "a message of its own"
    );
}
