//! An incident whose labels change is one alert to Alertmanager at every moment: the message that begins the new one
//! ends the one of before, also when answers are lost and the server dies between the two.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpufleet_analysis::incident::{Family, Incident, Place, State};
use gpufleet_server::notify::channel::{Channel, Speaks as _};
use gpufleet_server::notify::group::Group;
use gpufleet_server::notify::lane::Outcome;
use gpufleet_server::notify::message::{self, Addresses};
use gpufleet_server::notify::outbox::{Outbox, Unread};
use gpufleet_server::notify::secret::Secret;
use gpufleet_server::notify::settings::{ChannelConfig, Kind, NotifyConfig, Settings};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use uuid::Uuid;

use super::alertmanager::{Alertmanager, Labels};
use crate::simulation::telling::trouble::incident;

const START: Timestamp = Timestamp(1_790_000_000_000_000_000);

/// Between two messages of a group to Alertmanager, seconds.
const INTERVAL: i64 = 5;

fn after(seconds: i64) -> Timestamp {
    START.shifted(seconds * NANOS_PER_SECOND)
}

/// A server with one Alertmanager, and the rows that it has written.
struct Told {
    settings: Arc<Settings>,
    channel: Channel,
    outbox: Outbox,
    rows: Vec<String>,
    alertmanager: Alertmanager,
}

impl Told {
    fn new() -> Self {
        let mut one = ChannelConfig::new("am", Kind::Alertmanager);
        one.urls = vec!["http://am.example.org".to_owned()];
        let channels = Channel::all(&one, &Secret::given("a-token"));
        let mut config = NotifyConfig::default();
        config.channels.push(one);
        let settings = Arc::new(Settings::read(&config).expect("they can be used"));
        Self {
            channel: channels.expect("it can be made").remove(0),
            outbox: Outbox::new(Arc::clone(&settings)),
            rows: Vec::new(),
            alertmanager: Alertmanager::default(),
            settings,
        }
    }

    fn write(&mut self) {
        let groups = self.outbox.unwritten();
        let row = |it: &Group| serde_json::to_string(it).expect("it is JSON");
        if !groups.is_empty() {
            self.rows = groups.iter().map(row).collect();
        }
        self.outbox.written(&groups);
    }

    /// What may go out now reaches Alertmanager; what becomes of the answer is `outcome`. How many messages.
    fn go(&mut self, incident: &Incident, now: Timestamp, outcome: &Outcome) -> usize {
        self.write();
        let due = self.outbox.next(now);
        for sending in &due {
            let addresses = Addresses::of(&NotifyConfig::default());
            let known = std::slice::from_ref(incident);
            let place = |_: &Place| String::new();
            let message = message::write(
                sending,
                known,
                &self.settings,
                &addresses,
                &place,
                "USD",
                now,
            );
            for post in self.channel.posts(&message).expect("it can be said") {
                let said = self.alertmanager.take(&post.body);
                assert_eq!(said.0, 200, "{}", said.1);
            }
            self.outbox.done(sending, outcome.clone(), now, 1.0);
        }
        due.len()
    }

    /// The server dies and another begins with the rows.
    fn restart(&mut self, incident: &Incident, now: Timestamp) {
        let read = |it: &String| serde_json::from_str(it).expect("it was written so");
        let groups: Vec<Group> = self.rows.iter().map(read).collect();
        self.outbox = Outbox::new(Arc::clone(&self.settings));
        let unread = Unread::default();
        self.outbox.restore(groups, &|_| true, &unread, now);
        self.outbox.note(incident, now);
    }

    fn active(&self, now: Timestamp) -> Vec<&Labels> {
        self.alertmanager.active_at(now).collect()
    }
}

/// What changes an incident.
type Change = fn(&mut Incident);

/// Changes of one label each, with the label that is another then.
const CHANGES: [(&str, Change); 4] = [
    ("severity", |it| it.severity = Severity::Error),
    ("gpu", |it| it.place.gpu = None),
    ("team", |it| it.owner = Some("research".to_owned())),
    ("incident", |it| it.family = Family::Memory),
];

#[test]
fn the_message_that_begins_an_alert_of_other_labels_ends_the_one_of_before() {
    for (label, change) in CHANGES {
        let mut told = Told::new();
        let mut one = incident(Uuid::from_u128(1), Family::Heat, "prod", START);
        told.outbox.note(&one, START);
        assert_eq!(told.go(&one, START, &Outcome::Delivered), 1);
        let before = told.active(START)[0].clone();
        change(&mut one);
        told.outbox.note(&one, after(20));
        assert_eq!(
            told.go(&one, after(20), &Outcome::Delivered),
            1,
            "{label}: at once"
        );
        let active = told.active(after(20));
        assert_eq!(active.len(), 1, "{label}: {active:?}");
        assert_ne!(active[0].get(label), before.get(label));
        // Nothing else of it is said again.
        assert_eq!(told.go(&one, after(20 + INTERVAL), &Outcome::Delivered), 0);
        (one.state, one.resolved_at) = (State::Resolved, Some(after(60)));
        told.outbox.note(&one, after(60));
        told.go(&one, after(120), &Outcome::Delivered);
        assert_eq!(told.active(after(120)), Vec::<&Labels>::new(), "{label}");
    }
}

#[test]
fn no_answer_that_is_lost_and_no_death_leaves_two_alerts_of_one_incident() {
    let lost = Outcome::Later {
        why: "no answer".to_owned(),
        after: None,
    };
    let mut told = Told::new();
    let mut one = incident(Uuid::from_u128(1), Family::Heat, "prod", START);
    told.outbox.note(&one, START);
    let mut names = BTreeSet::new();
    for (seconds, (label, change)) in (0..).step_by(120).zip(CHANGES) {
        // It reached Alertmanager, which we do not know; and then the server dies, before it has written that.
        assert_eq!(told.go(&one, after(seconds), &lost), 1, "{label}");
        told.restart(&one, after(seconds + 10));
        names.extend(told.active(after(seconds + 10)).into_iter().cloned());
        // What changes meanwhile is written and not said, and the next server says it.
        change(&mut one);
        told.outbox.note(&one, after(seconds + 20));
        told.write();
        told.restart(&one, after(seconds + 30));
        assert_eq!(told.go(&one, after(seconds + 31), &lost), 1, "{label}");
        let active = told.active(after(seconds + 31));
        assert_eq!(active.len(), 1, "{label}: {active:?}");
        names.insert(active[0].clone());
    }
    assert_eq!(
        names.len(),
        1 + CHANGES.len(),
        "each was an alert for a while"
    );
}

#[test]
fn what_is_silenced_is_told_by_the_labels_that_are_known_until_it_is_loud_again() {
    let mut told = Told::new();
    let mut one = incident(Uuid::from_u128(1), Family::Heat, "prod", START);
    told.outbox.note(&one, START);
    told.go(&one, START, &Outcome::Delivered);
    let before = told.active(START)[0].clone();
    (one.silenced_until, one.severity) = (Some(after(600)), Severity::Error);
    told.outbox.note(&one, after(20));
    assert_eq!(
        told.go(&one, after(20), &Outcome::Delivered),
        0,
        "no news to anybody"
    );
    assert_eq!(told.go(&one, after(60), &Outcome::Delivered), 1);
    assert_eq!(told.active(after(60)), [&before]);
    // The silence ends, which is written first.
    one.silenced_until = None;
    told.outbox.note(&one, after(100));
    assert_eq!(told.go(&one, after(100), &Outcome::Delivered), 1);
    let active = told.active(after(100));
    assert_eq!(
        (active.len(), active[0]["severity"].as_str()),
        (1, "critical")
    );
}
