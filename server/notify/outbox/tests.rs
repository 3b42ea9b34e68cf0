//! The outbox over incidents that were made: who is told what, when, and what a crash changes of it.

use std::collections::BTreeMap;

use gpufleet_telemetry::event::Severity;

use super::super::fixture::{START, after, incident, settings};
use super::super::group::{Delivered, State};
use super::super::lane::{Fault, MAX_PER_MINUTE};
use super::super::message;
use super::super::settings::Kind;
use super::*;

pub(super) fn outbox(kind: Kind) -> Outbox {
    Outbox::new(Arc::new(settings(&[("it", kind)])))
}

/// Writes what has to be written, as the server does, and takes what may go.
pub(super) fn go(outbox: &mut Outbox, now: Timestamp) -> Vec<Sending> {
    let mut written = || {
        let groups = outbox.unwritten();
        outbox.written(&groups);
        outbox.next(now)
    };
    // A silence that ends is written before it is told.
    let sent = written();
    if sent.is_empty() { written() } else { sent }
}

/// The same, and all of it gets through; what was said.
pub(super) fn deliver(outbox: &mut Outbox, now: Timestamp) -> Vec<Says> {
    let sent = go(outbox, now);
    for sending in &sent {
        outbox.done(sending, Outcome::Delivered, now, 0.5);
    }
    sent.iter().map(|it| it.says).collect()
}

pub(super) fn resolved(number: u128, at: Timestamp) -> Incident {
    let mut over = incident(number);
    (over.state, over.resolved_at) = (Life::Resolved, Some(at));
    over
}

#[test]
fn an_incident_is_told_at_once_its_end_is_told_too_and_nothing_else_is() {
    let mut outbox = outbox(Kind::Pagerduty);
    outbox.note(&incident(1), START);
    let sent = go(&mut outbox, START);
    assert_eq!((sent.len(), sent[0].says), (1, Says::Opened));
    let key = sent[0].group.key();
    outbox.done(&sent[0], Outcome::Delivered, START, 0.5);
    for seconds in [1, 60, 3_600] {
        outbox.note(&incident(1), after(seconds));
        assert_eq!(deliver(&mut outbox, after(seconds)), []);
    }
    outbox.note(&resolved(1, after(4_000)), after(4_000));
    let sent = go(&mut outbox, after(4_000));
    assert_eq!(sent[0].says, Says::Resolved);
    assert_eq!(
        sent[0].group.key(),
        key,
        "the end follows the beginning on one key"
    );
    outbox.done(&sent[0], Outcome::Delivered, after(4_000), 0.5);
    assert_eq!(deliver(&mut outbox, after(9_000)), []);
    assert_eq!(
        outbox.groups().count(),
        0,
        "what is over is forgotten once it is written"
    );
}

#[test]
fn what_comes_back_after_an_end_whose_answer_was_lost_is_told_again() {
    let mut outbox = outbox(Kind::Pagerduty);
    outbox.note(&incident(1), START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    outbox.note(&resolved(1, after(400)), after(400));
    let sent = go(&mut outbox, after(400)).remove(0);
    assert_eq!(sent.says, Says::Resolved);
    let why = "no answer".to_owned();
    let lost = Outcome::Later { why, after: None };
    outbox.done(&sent, lost, after(400), 0.5);
    // It came back before the end was sent once more, which the receiver may have taken.
    outbox.note(&incident(1), after(401));
    assert_eq!(deliver(&mut outbox, after(800)), [Says::Updated]);
    assert_eq!(deliver(&mut outbox, after(9_000)), []);
}

#[test]
fn what_is_not_written_is_not_sent_unless_the_database_takes_nothing_for_long() {
    let mut outbox = outbox(Kind::Pagerduty);
    outbox.note(&incident(1), START);
    assert_eq!(outbox.next(START), []);
    assert_eq!(outbox.next(after(29)), []);
    assert_eq!(outbox.next(after(30)).len(), 1);
}

#[test]
fn incidents_of_one_kind_are_one_message_and_further_ones_wait_for_the_next() {
    let mut outbox = outbox(Kind::Slack);
    outbox.note(&incident(1), START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    for number in 2..=9 {
        outbox.note(&incident(number), after(10));
    }
    assert_eq!(deliver(&mut outbox, after(10)), []);
    assert_eq!(deliver(&mut outbox, after(299)), []);
    assert_eq!(deliver(&mut outbox, after(300)), [Says::Updated]);
    for number in 1..=8 {
        outbox.note(&resolved(number, after(400)), after(400));
    }
    assert_eq!(deliver(&mut outbox, after(599)), []);
    assert_eq!(
        deliver(&mut outbox, after(600)),
        [Says::Updated],
        "one is still open"
    );
    outbox.note(&resolved(9, after(601)), after(601));
    assert_eq!(deliver(&mut outbox, after(659)), []);
    assert_eq!(deliver(&mut outbox, after(660)), [Says::Resolved]);
}

#[test]
fn an_incident_that_becomes_worse_is_told_again() {
    let mut outbox = outbox(Kind::Slack);
    let mut one = incident(1);
    one.severity = Severity::Warning;
    outbox.note(&one, START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    one.severity = Severity::Error;
    outbox.note(&one, after(1));
    assert_eq!(deliver(&mut outbox, after(301)), [Says::Updated]);
    assert_eq!(deliver(&mut outbox, after(901)), []);
}

#[test]
fn a_silence_holds_where_the_same_incident_becomes_worse_which_is_told_when_it_ends() {
    let mut outbox = outbox(Kind::Slack);
    let mut one = incident(1);
    one.severity = Severity::Warning;
    outbox.note(&one, START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    one.silenced_until = Some(after(900));
    outbox.note(&one, after(10));
    one.severity = Severity::Error;
    outbox.note(&one, after(20));
    for seconds in [20, 400, 899] {
        assert_eq!(deliver(&mut outbox, after(seconds)), []);
    }
    assert_eq!(deliver(&mut outbox, after(900)), [Says::Updated]);
    assert_eq!(deliver(&mut outbox, after(9_000)), []);
}

#[test]
fn what_pagerduty_was_not_told_with_the_first_message_is_an_alarm_of_its_own() {
    let mut outbox = outbox(Kind::Pagerduty);
    let mut silent = incident(3);
    silent.silenced_until = Some(after(500));
    outbox.note(&incident(1), START);
    outbox.note(&silent, START);
    let first = go(&mut outbox, START).remove(0);
    // It breaks while the message is on its way.
    outbox.note(&incident(2), after(1));
    outbox.done(&first, Outcome::Delivered, after(2), 0.5);
    let mut sent = vec![first];
    for (number, seconds) in [(2, 2), (4, 400), (3, 500)] {
        if number == 4 {
            outbox.note(&incident(4), after(seconds));
        }
        let sending = go(&mut outbox, after(seconds)).remove(0);
        let told: Vec<Uuid> = message::told(&sending).collect();
        assert_eq!(
            (sending.says, told),
            (Says::Opened, vec![incident(number).id])
        );
        outbox.done(&sending, Outcome::Delivered, after(seconds), 0.5);
        assert_eq!(go(&mut outbox, after(seconds)), []);
        sent.push(sending);
    }
    let keys: BTreeSet<String> = sent.iter().map(|it| it.group.key()).collect();
    assert_eq!(keys.len(), 4, "{keys:?}");
    // Each ends by itself.
    outbox.note(&resolved(2, after(600)), after(600));
    let end = go(&mut outbox, after(600)).remove(0);
    assert_eq!(
        (end.says, end.group.key()),
        (Says::Resolved, sent[1].group.key())
    );
}

#[test]
fn ten_thousand_incidents_in_a_minute_are_no_more_than_twenty_messages_and_none_is_left_out() {
    for kind in [Kind::Pagerduty, Kind::Slack, Kind::Webhook] {
        let mut outbox = outbox(kind);
        let mut told: BTreeMap<Uuid, Delivered> = BTreeMap::new();
        let mut sent = 0;
        for second in 0..60 {
            for number in 0..167 {
                let mut one = incident(second * 1_000 + number);
                // A cluster for each ten, so that groups alone do not do it.
                one.place.cluster = format!("cluster-{}-{}", second, number / 10);
                outbox.note(&one, after(second as i64));
            }
            let now = after(second as i64);
            for sending in go(&mut outbox, now) {
                sent += 1;
                outbox.done(&sending, Outcome::Delivered, now, 0.5);
            }
        }
        assert!(sent <= MAX_PER_MINUTE + 5, "{kind:?}: {sent} messages");
        for second in 60..900 {
            deliver(&mut outbox, after(second));
        }
        for group in outbox.groups() {
            let members = group.members.iter().map(|(id, it)| (*id, it.told));
            told.extend(members);
            if group.left_out > 0 {
                assert!(group.is_flood, "only the flood counts instead of naming");
            }
        }
        assert!(told.values().all(|it| *it == Delivered::Open));
        let counted: u64 = outbox.groups().map(|it| it.left_out).sum();
        assert_eq!(told.len() as u64 + counted, 60 * 167);
    }
}

#[test]
fn a_silence_holds_a_message_back_and_its_end_lets_it_go() {
    let mut outbox = outbox(Kind::Pagerduty);
    let mut one = incident(1);
    one.silenced_until = Some(after(100));
    outbox.note(&one, START);
    assert_eq!(deliver(&mut outbox, after(99)), []);
    assert_eq!(deliver(&mut outbox, after(100)), [Says::Opened]);
    let mut two = incident(2);
    two.place.cluster = "other".to_owned();
    two.silenced_until = Some(after(500));
    outbox.note(&two, after(200));
    (two.state, two.resolved_at) = (Life::Resolved, Some(after(300)));
    outbox.note(&two, after(300));
    assert_eq!(
        deliver(&mut outbox, after(600)),
        [],
        "it was silent until it was over"
    );
}

#[test]
fn what_a_lost_answer_or_a_restart_leaves_unknown_is_ended_even_if_it_was_silenced_meanwhile() {
    let mut silenced = incident(1);
    silenced.silenced_until = Some(after(500));
    let mut over = silenced.clone();
    (over.state, over.resolved_at) = (Life::Resolved, Some(after(20)));

    let mut unanswered = outbox(Kind::Pagerduty);
    unanswered.note(&incident(1), START);
    let sent = go(&mut unanswered, START).remove(0);
    let (why, asked) = ("no answer".to_owned(), None);
    unanswered.done(&sent, Outcome::Later { why, after: asked }, START, 0.5);

    let mut restarted = outbox(Kind::Pagerduty);
    let groups = unanswered.groups().cloned().collect();
    restarted.restore(groups, &|_| true, &Unread::default(), after(5));

    for mut outbox in [unanswered, restarted] {
        outbox.note(&silenced, after(10));
        outbox.note(&over, after(20));
        assert_eq!(deliver(&mut outbox, after(100)), [Says::Resolved]);
    }
}

#[test]
fn a_failure_is_tried_again_after_a_pause_and_after_a_refusal_only_what_says_more() {
    let mut outbox = outbox(Kind::Webhook);
    outbox.note(&incident(1), START);
    let first = go(&mut outbox, START).remove(0);
    let why = "busy".to_owned();
    let later = Outcome::Later {
        why,
        after: Some(Duration::from_secs(30)),
    };
    outbox.done(&first, later, START, 0.5);
    assert_eq!(go(&mut outbox, after(29)), []);
    let again = go(&mut outbox, after(30)).remove(0);
    assert_eq!(
        again.group.message_key(),
        first.group.message_key(),
        "it is the same message"
    );
    let gone = |fault| Outcome::Refused {
        why: "gone".to_owned(),
        fault,
    };
    outbox.done(&again, gone(Fault::Message), after(30), 0.5);
    assert_eq!(
        outbox.groups().next().map(Group::state),
        Some(State::Refused)
    );
    assert_eq!(go(&mut outbox, after(600)), []);
    outbox.note(&incident(2), after(600));
    let more = go(&mut outbox, after(600)).remove(0);
    assert_ne!(more.group.message_key(), first.group.message_key());
    outbox.done(&more, gone(Fault::Message), after(600), 0.5);
    for number in [1, 2] {
        outbox.note(&resolved(number, after(9_100)), after(9_100));
    }
    let last = go(&mut outbox, after(9_100)).remove(0);
    outbox.done(&last, gone(Fault::Message), after(9_100), 0.5);
    assert_eq!(go(&mut outbox, after(86_400)), [], "and is not sent again");
    go(&mut outbox, after(9_101 + 7 * 86_400));
    assert_eq!(
        outbox.groups().count(),
        0,
        "a receiver that is gone keeps nothing for longer than a week"
    );
}

#[test]
fn what_was_over_before_the_receiver_could_be_reached_is_told_all_the_same() {
    let mut outbox = outbox(Kind::Slack);
    outbox.note(&incident(1), START);
    let first = go(&mut outbox, START).remove(0);
    let why = "unreachable".to_owned();
    outbox.done(&first, Outcome::Later { why, after: None }, START, 1.0);
    outbox.note(&resolved(1, after(1)), after(1));
    let sent = go(&mut outbox, after(10)).remove(0);
    assert_eq!((sent.says, sent.group.first_at), (Says::Resolved, None));
}

#[test]
fn after_a_crash_the_same_message_is_sent_under_the_same_key_and_nothing_is_forgotten() {
    let mut before = outbox(Kind::Pagerduty);
    before.note(&incident(1), START);
    let sent = go(&mut before, START).remove(0);
    // It got through, and the server dies before it could write that down.
    let written = vec![sent.group.clone()];
    let mut restarted = outbox(Kind::Pagerduty);
    let is_open = |id| id == Uuid::from_u128(1);
    restarted.restore(written, &is_open, &Unread::default(), after(5));
    restarted.note(&incident(1), after(5));
    let again = go(&mut restarted, after(5)).remove(0);
    assert_eq!(again.group.message_key(), sent.group.message_key());
    restarted.done(&again, Outcome::Delivered, after(5), 0.5);
    // The next time it dies, the incident ends meanwhile.
    let written = restarted.unwritten();
    let mut last = outbox(Kind::Pagerduty);
    last.restore(written, &|_| false, &Unread::default(), after(70));
    let end = go(&mut last, after(70)).remove(0);
    assert_eq!(
        (end.says, end.group.key()),
        (Says::Resolved, sent.group.key())
    );
}

#[test]
fn a_channel_that_is_no_longer_configured_ends_what_it_was_to_say() {
    let mut before = outbox(Kind::Pagerduty);
    before.note(&incident(1), START);
    let group = go(&mut before, START).remove(0).group;
    let mut other = Outbox::new(Arc::new(settings(&[("new", Kind::Webhook)])));
    other.restore(vec![group], &|_| true, &Unread::default(), after(5));
    other.note(&incident(1), after(5));
    let sent = go(&mut other, after(5));
    assert_eq!(sent.len(), 1);
    assert_eq!(
        &*sent[0].way.name, "new",
        "the new one is told of what is open"
    );
    assert_eq!(other.groups().count(), 1);
}

#[test]
fn alertmanager_is_told_again_every_minute_and_of_what_is_over_for_a_quarter_of_an_hour() {
    let mut outbox = outbox(Kind::Alertmanager);
    outbox.note(&incident(1), START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    assert_eq!(deliver(&mut outbox, after(59)), []);
    assert_eq!(deliver(&mut outbox, after(60)), [Says::Updated]);
    outbox.note(&resolved(1, after(61)), after(61));
    assert_eq!(deliver(&mut outbox, after(66)), [Says::Resolved]);
    let mut told = 0;
    for second in 67..2_000 {
        told += deliver(&mut outbox, after(second)).len();
    }
    assert!((13..=15).contains(&told), "{told} times");
    assert_eq!(outbox.groups().count(), 0);
}

#[test]
fn a_message_that_the_receiver_chokes_on_does_not_hold_the_others_up() {
    let mut outbox = outbox(Kind::Webhook);
    let mut told = Vec::new();
    for (number, cluster) in [(1, "a"), (2, "b"), (3, "c")] {
        let mut one = incident(number);
        one.place.cluster = cluster.to_owned();
        outbox.note(&one, START);
    }
    for second in 0..600 {
        for sending in go(&mut outbox, after(second)) {
            let is_bad = sending.group.members.contains_key(&Uuid::from_u128(1));
            let outcome = match is_bad {
                true => Outcome::Later {
                    why: "500".to_owned(),
                    after: None,
                },
                false => Outcome::Delivered,
            };
            if !is_bad {
                told.push(second);
            }
            outbox.done(&sending, outcome, after(second), 0.5);
        }
    }
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|second| *second < 60), "{told:?}");
}
