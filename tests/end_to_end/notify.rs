//! People are told: a fault in the demo fleet reaches PagerDuty, Slack, a webhook and Debian's
//! Alertmanager once, with all that it has to say; its end follows on the same key; receivers that fail,
//! hang and lie are tried again or not as they should be; and kill -9 loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpufleet_program::clock::SystemClock;
use gpufleet_server::notify::group::{Group, State};
use gpufleet_telemetry::time::Clock as _;
use gpufleet_tests::harness::checker::with_store;
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, client, server, wait};
use gpufleet_tests::on_both_databases;
use gpufleet_tests::people::server::{Mood, Running};
use gpufleet_tests::people::{Service, alertmanager, pagerduty, slack, webhook};
use serde_json::Value;

use crate::peers::Peer;

mod mended;

use mended::is_told_once_its_key_is_good;

/// A tick, its shipping, a tick of the detectors, and a machine that is busy.
const OPEN_LIMIT: Duration = Duration::from_secs(120);
/// What is broken heals, ships, and is not signalled for as long as it takes to be over; and the end is
/// not told before a minute after the last message.
const OVER_LIMIT: Duration = Duration::from_secs(300);
/// Deaths of the server.
const KILLS: usize = 20;

const ROUTING_KEY: &str = "R0UT1NGKEY0123456789abcdef012345";
const SIGNING_KEY: &str = "s1gn1ng-key-of-the-webhook";
const SLACK_PATH: &str = "/services/T00/B00/s3cr3tp4th";
const BEAT_PATH: &str = "b34t-0f-th3-h34rt";

/// The three receivers of ours, and the fleet whose server tells them.
struct Told {
    world: World,
    pager: Running,
    chat: Running,
    hook: Running,
}

impl Told {
    fn new(world: World) -> Self {
        Self {
            world,
            pager: Running::start(Service::Pagerduty(pagerduty::Pagerduty::new(ROUTING_KEY))),
            chat: Running::start(Service::Slack(slack::Slack::default())),
            hook: Running::start(Service::Webhook(webhook::Webhook::new(SIGNING_KEY))),
        }
    }

    /// A server that tells all of them, and whoever else is given.
    fn place(&self, more: &str) -> server::Place {
        let file = |name: &str, text: &str| self.world.file(name, text).display().to_string();
        let pager_key = file("pager-key", ROUTING_KEY);
        let slack_url = file(
            "slack-url",
            &format!("http://{}{SLACK_PATH}", self.chat.address),
        );
        let hook_key = file("hook-key", SIGNING_KEY);
        let channels = format!(
            "notify.channels=[\
             {{ name = 'pager', kind = 'pagerduty', urls = ['http://{}/v2/enqueue'], secret_file = '{pager_key}' }}, \
             {{ name = 'chat', kind = 'slack', secret_file = '{slack_url}', interval_s = 5 }}, \
             {{ name = 'hook', kind = 'webhook', urls = ['http://{}/x'], secret_file = '{hook_key}', interval_s = 5 }}{more}]",
            self.pager.address, self.hook.address
        );
        server::Place::new(&self.world)
            .with("notify.simulated=true")
            .with(&channels)
    }

    fn fleet(&self, server: &server::Server) -> Simulator {
        let endpoint = format!("http://{}", server.place.grpc);
        let more = ["--nodes", "2", "--seed", &steady_seed()];
        let simulator = Simulator::start(&self.world, &endpoint, &more);
        wait::until("the API lists 16 GPUs", OPEN_LIMIT, || {
            let gpus = server.get("/api/v1/gpus?cluster=demo").json();
            (gpus["items"].as_array()?.len() == 16).then_some(())
        });
        simulator
    }

    /// Alarms of PagerDuty: how many are open, and how many there were.
    fn alarms(&self) -> (usize, usize) {
        self.alarms_that_say("")
    }

    /// The same of those whose summary has this in it.
    fn alarms_that_say(&self, what: &str) -> (usize, usize) {
        let Service::Pagerduty(pager) = self.pager.service() else {
            panic!("no PagerDuty: {:?}", self.pager.service())
        };
        let says = |key: &String| pager.summaries.get(key).is_some_and(|it| it.contains(what));
        let alarms: Vec<bool> = pager
            .alarms
            .iter()
            .filter(|(key, _)| says(key))
            .map(|(_, is_open)| *is_open)
            .collect();
        (alarms.iter().filter(|it| **it).count(), alarms.len())
    }

    fn texts(&self) -> Vec<String> {
        match self.chat.service() {
            Service::Slack(it) => it.texts,
            other => panic!("no Slack: {other:?}"),
        }
    }

    /// The messages of the webhook.
    fn bodies(&self) -> Vec<Value> {
        match self.hook.service() {
            Service::Webhook(it) => it.bodies.into_values().collect(),
            other => panic!("no webhook: {other:?}"),
        }
    }

    /// Everything that any receiver of ours said was as its protocol wants it.
    fn nothing_was_refused(&self) {
        for running in [&self.pager, &self.chat, &self.hook] {
            // While the webhook's key is one that it does not know, it says so.
            let answers = running.answers();
            let mut others = answers.iter().skip_while(|it| **it == 401);
            assert!(others.all(|it| *it < 300), "{answers:?}");
        }
    }
}

/// What a stand-in for Alertmanager was told.
fn alerts(am: &Running) -> alertmanager::Alertmanager {
    match am.service() {
        Service::Alertmanager(it) => it,
        other => panic!("no Alertmanager: {other:?}"),
    }
}

/// Alerts of an incident that it takes for active.
fn active_alerts(am: &Running, id: &str) -> usize {
    alerts(am).active_of(id, SystemClock::start().now().seconds())
}

/// However often it was told, and by however many servers: the labels of an incident stay as they were, but for whose
/// it is, which is not known at once after a start.
fn each_incident_is_one_alert(am: &Running) {
    let mut incidents: BTreeMap<String, BTreeSet<alertmanager::Labels>> = BTreeMap::new();
    let known = alerts(am);
    for labels in known.alerts.keys() {
        let mut labels = labels.clone();
        labels.remove("team");
        let id = labels["incident_id"].clone();
        incidents.entry(id).or_default().insert(labels);
    }
    let twice: Vec<_> = incidents.values().filter(|it| it.len() > 1).collect();
    assert_eq!(twice, Vec::<&BTreeSet<_>>::new());
    let told: u64 = known.alerts.values().map(|it| it.told).sum();
    assert!(told > known.alerts.len() as u64, "{known:?}");
    let refused = am.answers().into_iter().filter(|it| *it != 200);
    assert_eq!(refused.count(), 0);
}

/// What was said of an incident to a receiver.
fn delivery(server: &server::Server, id: &str, receiver: &str) -> Option<Value> {
    let known = server.get(&format!("/api/v1/incidents/{id}/told")).json();
    let all = known["deliveries"].as_array()?.clone();
    all.into_iter().find(|it| it["channel"] == receiver)
}

fn channel(server: &server::Server, name: &str) -> Value {
    let channels = server.get("/api/v1/channels").json();
    let channels = channels.as_array().cloned().unwrap_or_default();
    let found = channels.into_iter().find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no channel {name}"))
}

fn open_incident(server: &server::Server) -> String {
    let open = wait::until("an incident is open", OPEN_LIMIT, || {
        let open = server
            .get("/api/v1/incidents?state=open&family=gpu_fault")
            .json();
        open["items"].as_array()?.first().cloned()
    });
    open["id"].as_str().expect("it has an id").to_owned()
}

/// A message about the GPU that the simulator breaks.
fn says_all_there_is(said: &Value, id: &str) {
    assert_eq!(said["says"], "opened");
    let one = &said["incidents"][0];
    assert_eq!(
        (one["id"].as_str(), one["kind"].as_str()),
        (Some(id), Some("gpu_fault"))
    );
    assert!(
        one["place"]
            .as_str()
            .is_some_and(|it| it.starts_with("GPU 3 of demo-node-2")),
        "{one}"
    );
    assert!(
        one["costs"]
            .as_str()
            .is_some_and(|it| it.contains("$11.06/h")),
        "{one}"
    );
    assert!(
        one["runbook"]
            .as_str()
            .is_some_and(|it| it.ends_with("/gpu-lost.md")),
        "{one}"
    );
}

/// Neither in the log nor in the database of a server that has stopped.
fn shows_no_secret(world: &World, place: &server::Place) {
    let log = std::fs::read(&place.log).expect("it has a log");
    for (name, kept) in [("log", log), ("database", world.everything_recorded())] {
        let kept = String::from_utf8_lossy(&kept);
        for secret in [ROUTING_KEY, SIGNING_KEY, "s3cr3tp4th", BEAT_PATH] {
            // PostgreSQL writes down what is packed in hexadecimal.
            let packed: String = secret.bytes().map(|it| format!("{it:02x}")).collect();
            let is_kept = kept.contains(secret) || kept.contains(&packed);
            assert!(!is_kept, "a secret is in the {name}");
        }
    }
}

/// What `gpufleet` says; it has to go well.
fn typed(server: &server::Server, arguments: &[&str]) -> String {
    let said = client::typed(&server.place.web, arguments).well();
    said.unwrap_or_else(|why| panic!("{arguments:?}: {why}"))
}

/// Who is told and who is not, as it is asked and said at a prompt.
fn is_said_at_a_prompt(server: &server::Server, id: &str) {
    let routes = typed(server, &["routes", "explain", id]);
    for word in ["built in", "pager", "chat", "hook", "delivered"] {
        assert!(routes.contains(word), "{word} is not in {routes}");
    }
    let tested = typed(server, &["notify", "test", "pager"]);
    assert_eq!(tested, "pager: it has the test\n");
    let pattern = ["silence", "node=nobody-*", "kind=gpu_fault", "--for", "1h"];
    let silent = typed(server, &pattern);
    assert!(silent.starts_with("silent until "), "{silent}");
    let kept = typed(server, &["silences", "--json"]);
    let kept: Value = serde_json::from_str(&kept).expect("it is JSON");
    let kept = kept[0]["id"].as_str().expect("there is one");
    let ended = typed(server, &["silences", "--end", kept]);
    assert!(ended.contains("may be told again"), "{ended}");
    let note = ["--note", "cooling works", "--who", "ada"];
    let silent = ["silence", id, "--for", "2h"];
    let silent = typed(server, &[&silent[..], &note].concat());
    assert!(silent.contains("is silent until "), "{silent}");
    let noted = typed(
        server,
        &["incidents", id, "--note", "fan\nordered", "--who", "bob"],
    );
    for line in ["ada: note: cooling works\n", "bob: note: fan ordered\n"] {
        assert!(noted.contains(line), "{line} is not in {noted}");
    }
    let both = ["incidents", id, "--acknowledge"];
    let both = typed(server, &[&both[..], &note].concat());
    for line in ["ada: acknowledged\n", "ada works on it, silent until "] {
        assert!(both.contains(line), "{line} is not in {both}");
    }
    assert_eq!(
        both.matches("ada: note: cooling works\n").count(),
        2,
        "{both}"
    );
}

on_both_databases!(
    a_fault_is_told_everywhere_once_with_all_there_is_to_say_and_so_is_its_end,
    receivers_that_fail_hang_and_lie_are_tried_again_or_not_as_they_should_be,
    twenty_kills_lose_no_message_and_repeat_at_most_one_each_where_nobody_knows_keys,
);

fn a_fault_is_told_everywhere_once_with_all_there_is_to_say_and_so_is_its_end(world: World) {
    let told = Told::new(world);
    let alertmanager = Peer::alertmanager(&told.world);
    let am = format!(
        ", {{ name = 'am', kind = 'alertmanager', urls = ['http://{}'], repeat_s = 5 }}",
        alertmanager.address
    );
    // The service outside that raises the alarm when it is not asked.
    let watcher = Running::start(Service::Webhook(webhook::Webhook::new("")));
    watcher.mood(Mood::Says(204, String::new()));
    let beat = format!("http://{}/{BEAT_PATH}", watcher.address);
    let beat = told.world.file("heartbeat-url", &beat);
    let server = told
        .place(&am)
        .with(&format!("notify.heartbeat_file={}", beat.display()))
        .with("notify.heartbeat_every_s=10")
        .start();
    let simulator = told.fleet(&server);
    simulator.fault("xid79");
    let id = open_incident(&server);
    wait::until("the watcher is asked again", OPEN_LIMIT, || {
        (watcher.requests() >= 2).then_some(())
    });
    wait::until("PagerDuty has an alarm", OPEN_LIMIT, || {
        (told.alarms() == (1, 1)).then_some(())
    });
    wait::until("Slack shows it", OPEN_LIMIT, || {
        told.texts()
            .iter()
            .any(|it| it.contains("XID 79"))
            .then_some(())
    });
    let said = wait::until("the webhook has it", OPEN_LIMIT, || {
        told.bodies().first().cloned()
    });
    says_all_there_is(&said, &id);
    let alert = wait::until("Alertmanager has it", OPEN_LIMIT, || {
        alertmanager.alerts().into_iter().next()
    });
    assert_eq!(alert["labels"]["incident_id"], *id);
    assert_eq!(alert["labels"]["severity"], "critical");
    // A message that was sent and is not written down yet would be sent again.
    wait::until("what was told is written down", OPEN_LIMIT, || {
        let number = id.parse().expect("a UUID");
        let written = with_store(&server.place.database, async |store| {
            store.deliveries_of(number).await
        });
        let written = written.expect("the database can be read");
        let is_told = |it: &Group| it.state() == State::Delivered;
        (written.len() == 4 && written.iter().all(is_told)).then_some(())
    });
    // Told again and again, across a restart: one alert, and nobody else hears of it twice.
    let server = server.kill().start();
    wait::until("Alertmanager was told again", OPEN_LIMIT, || {
        (channel(&server, "am")["delivered"].as_u64()? >= 3).then_some(())
    });
    assert_eq!(alertmanager.alerts().len(), 1);
    assert_eq!((told.alarms(), told.texts().len()), ((1, 1), 1));
    let page = server.get(&format!("/incidents/{id}")).text();
    assert!(
        page.contains("Who was told") && page.contains("pager"),
        "{page}"
    );
    let known = server.get(&format!("/api/v1/incidents/{id}/told")).json();
    assert_eq!(
        known["deliveries"].as_array().map(Vec::len),
        Some(4),
        "{known}"
    );
    simulator.fault("heal");
    wait::until("PagerDuty's alarm is over", OVER_LIMIT, || {
        (told.alarms() == (0, 1)).then_some(())
    });
    wait::until("Slack says so", OVER_LIMIT, || {
        told.texts()
            .iter()
            .any(|it| it.contains("Over: XID 79"))
            .then_some(())
    });
    wait::until("Alertmanager has none", OVER_LIMIT, || {
        alertmanager.alerts().is_empty().then_some(())
    });
    told.nothing_was_refused();
    shows_no_secret(&told.world, &server.stop());
    simulator.stop();
}

fn receivers_that_fail_hang_and_lie_are_tried_again_or_not_as_they_should_be(world: World) {
    let told = Told::new(world);
    told.pager.mood(Mood::Busy(3));
    told.chat.mood(Mood::Hangs);
    told.hook.mood(Mood::Says(
        413,
        format!("too large, and your key was {SIGNING_KEY}"),
    ));
    let mut server = told.place("").start();
    let simulator = told.fleet(&server);
    simulator.fault("xid79");
    let id = open_incident(&server);
    let refused = wait::until("the webhook refuses", OPEN_LIMIT, || {
        let known = server.get(&format!("/api/v1/incidents/{id}/told")).json();
        let all = known["deliveries"].as_array()?.clone();
        all.into_iter().find(|it| it["state"] == "refused")
    });
    assert_eq!(
        (refused["channel"].as_str(), refused["attempts"].as_u64()),
        (Some("hook"), Some(1))
    );
    let why = refused["error"].as_str().unwrap_or_default();
    assert!(
        why.contains("413") && why.contains("•••") && !why.contains(SIGNING_KEY),
        "{why}"
    );
    wait::until("Slack was waited for", OPEN_LIMIT, || {
        channel(&server, "chat")["why"]
            .as_str()?
            .contains("10 s")
            .then_some(())
    });
    wait::until("PagerDuty was left alone as it asked", OPEN_LIMIT, || {
        channel(&server, "pager")["why"]
            .as_str()?
            .contains("429")
            .then_some(())
    });
    for mood in [
        Mood::Endless(500),
        Mood::Says(200, "<html>a hotel".to_owned()),
        Mood::TakesAndFails,
    ] {
        if matches!(mood, Mood::Says(200, _)) {
            // Each pause is twice the one before, but for a server that begins anew.
            server = server.kill().start();
        }
        let before = (told.pager.requests(), told.chat.requests());
        told.pager.mood(mood.clone());
        told.chat.mood(mood);
        wait::until("both were tried again", OVER_LIMIT, || {
            (told.pager.requests() > before.0 && told.chat.requests() > before.1).then_some(())
        });
    }
    told.pager.mood(Mood::Well);
    told.chat.mood(Mood::Well);
    for name in ["pager", "chat"] {
        wait::until("it was told in the end", OVER_LIMIT, || {
            (channel(&server, name)["delivered"].as_u64()? >= 1).then_some(())
        });
    }
    // Beside it, PagerDuty may be told that other channels fail.
    assert_eq!(told.alarms_that_say("XID 79"), (1, 1));
    wait::until(
        "the server that began anew has tried it once",
        OPEN_LIMIT,
        || {
            let refused = delivery(&server, &id, "hook")?;
            (refused["state"] == "refused" && refused["attempts"] == 2).then_some(())
        },
    );
    is_told_once_its_key_is_good(&told, &server, &id);
    is_said_at_a_prompt(&server, &id);
    told.nothing_was_refused();
    simulator.stop();
    shows_no_secret(&told.world, &server.stop());
}

fn twenty_kills_lose_no_message_and_repeat_at_most_one_each_where_nobody_knows_keys(world: World) {
    let told = Told::new(world);
    let am = Running::start(Service::Alertmanager(alertmanager::Alertmanager::default()));
    let more = format!(
        ", {{ name = 'am', kind = 'alertmanager', urls = ['http://{}'], repeat_s = 5 }}",
        am.address
    );
    let mut server = told.place(&more).start();
    let simulator = told.fleet(&server);
    for number in 0..KILLS {
        simulator.fault(if number % 2 == 0 { "xid79" } else { "heal" });
        let before = told.chat.requests() + told.hook.requests();
        // In the middle of a message where there is one, else at any moment.
        let began = wait::now();
        wait::until("a message, or two seconds", OPEN_LIMIT, || {
            let is_told = told.chat.requests() + told.hook.requests() > before;
            (is_told || wait::now() - began > Duration::from_secs(2)).then_some(())
        });
        server = server.kill().start();
    }
    simulator.fault("xid79");
    let id = open_incident(&server);
    wait::until("everybody knows of it", OVER_LIMIT, || {
        let known = server.get(&format!("/api/v1/incidents/{id}/told")).json();
        let all = known["deliveries"].as_array()?;
        let open = all.iter().filter(|it| it["state"] == "delivered").count();
        (open == 4 && told.alarms().0 == 1).then_some(())
    });
    assert!(active_alerts(&am, &id) > 0, "{:?}", am.service());
    simulator.fault("heal");
    wait::until("everybody knows that it is over", OVER_LIMIT, || {
        let open = server
            .get("/api/v1/incidents?state=open&family=gpu_fault")
            .json();
        let is_over = open["items"].as_array()?.is_empty() && told.alarms().0 == 0;
        (is_over && active_alerts(&am, &id) == 0).then_some(())
    });
    each_incident_is_one_alert(&am);
    for running in [&told.chat, &told.hook] {
        let repeats: u64 = running.service().messages().values().map(|it| it - 1).sum();
        assert!(repeats <= KILLS as u64, "{repeats} messages came again");
        let most = running.service().messages().values().max().copied();
        assert!(most <= Some(1 + KILLS as u64), "{most:?}");
    }
    told.nothing_was_refused();
    simulator.stop();
    server.stop();
}
