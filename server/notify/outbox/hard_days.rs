//! The outbox when the clock is set back, receivers fail for a while, and the
//! database does not know what it should.

use std::collections::BTreeSet;

use super::super::channel::alertmanager::ENDS_AFTER;
use super::super::fixture::{START, after, incident};
use super::super::group::MAX_MEMBERS;
use super::super::lane::Fault;
use super::super::message;
use super::super::settings::Kind;
use super::super::wire::WITHIN;
use super::tests::{deliver, go, outbox, resolved};
use super::*;

/// The clock was ahead by this much, seconds.
const AHEAD: i64 = 3 * 3_600;

pub(super) fn elsewhere(number: u128) -> Incident {
    let mut one = incident(number);
    one.place.cluster = format!("cluster-{number}");
    one
}

fn failed(after: Option<Duration>) -> Outcome {
    let why = "unreachable".to_owned();
    Outcome::Later { why, after }
}

pub(super) fn refused(fault: Fault) -> Outcome {
    let why = "no".to_owned();
    Outcome::Refused { why, fault }
}

#[test]
fn a_clock_that_is_set_back_silences_nobody() {
    for kind in [
        Kind::Pagerduty,
        Kind::Slack,
        Kind::Webhook,
        Kind::Alertmanager,
    ] {
        let mut outbox = outbox(kind);
        outbox.note(&elsewhere(1), after(AHEAD));
        assert_eq!(
            deliver(&mut outbox, after(AHEAD)),
            [Says::Opened],
            "{kind:?}"
        );
        let mut groups: Vec<Group> = outbox.groups().cloned().collect();
        outbox.note(&elsewhere(2), START);
        let told = (0..10).flat_map(|it| deliver(&mut outbox, after(it)));
        assert_eq!(told.count(), 1, "{kind:?}: what is new is told at once");
        outbox.note(&resolved(1, after(AHEAD)), after(20));
        let told = (20..120).flat_map(|it| deliver(&mut outbox, after(it)));
        assert!(told.count() >= 1, "{kind:?}: and what is over");
        // The same of what a server finds that starts after it was set back.
        let mut started = super::tests::outbox(kind);
        started.restore(
            std::mem::take(&mut groups),
            &|_| true,
            &Unread::default(),
            START,
        );
        let mut worse = elsewhere(3);
        worse.place.cluster = elsewhere(1).place.cluster;
        started.note(&worse, START);
        let told = (0..301).flat_map(|it| deliver(&mut started, after(it)));
        assert!(told.count() >= 1, "{kind:?}: after a start");
    }
}

#[test]
fn what_waits_for_the_database_waits_no_longer_because_the_clock_was_ahead() {
    let mut outbox = outbox(Kind::Pagerduty);
    outbox.note(&incident(1), after(AHEAD));
    assert_eq!(outbox.next(after(AHEAD)), []);
    assert_eq!(outbox.next(START), []);
    assert_eq!(outbox.next(after(30)).len(), 1);
}

#[test]
fn alertmanager_ends_nothing_in_an_outage_of_two_minutes_whatever_it_asks_for() {
    let outage = 140;
    for asked in [None, Some(Duration::from_secs(3_600))] {
        for begins in [1, 59, 60] {
            let mut outbox = outbox(Kind::Alertmanager);
            outbox.note(&incident(1), START);
            assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
            let (mut told, mut longest) = (0, 0);
            let mut on_the_way = None;
            for second in 1..2_000 {
                let is_out = second - begins < outage && second >= begins;
                if let Some((since, sending)) = on_the_way.take_if(|(since, _)| {
                    // An answer that does not come is waited for.
                    second - *since >= WITHIN.as_secs() as i64
                }) {
                    outbox.done(&sending, failed(asked), after(second), 1.0);
                    assert!(since >= begins);
                }
                for sending in go(&mut outbox, after(second)) {
                    if is_out {
                        on_the_way = Some((second, sending));
                        continue;
                    }
                    outbox.done(&sending, Outcome::Delivered, after(second), 1.0);
                    longest = longest.max(second - told);
                    told = second;
                }
            }
            assert!(told > 1_900, "it is told again afterwards");
            let ends = ENDS_AFTER.as_secs() as i64;
            assert!(
                longest < ends,
                "{longest} s without a word, {begins} {asked:?}"
            );
        }
    }
}

#[test]
fn a_repetition_that_fails_is_tried_again_at_once_and_not_after_a_whole_pause() {
    let mut outbox = outbox(Kind::Alertmanager);
    outbox.note(&incident(1), START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    let sent = go(&mut outbox, after(60)).remove(0);
    outbox.done(&sent, failed(None), after(60), 1.0);
    assert_eq!(deliver(&mut outbox, after(61)), []);
    assert_eq!(deliver(&mut outbox, after(62)), [Says::Updated]);
}

#[test]
fn refused_groups_do_not_make_a_flood_of_what_is_new() {
    let mut outbox = outbox(Kind::Pagerduty);
    for number in 0..FLOOD_GROUPS as u128 {
        outbox.note(&elsewhere(number), START);
        let sent = go(&mut outbox, START).remove(0);
        outbox.done(&sent, refused(Fault::Message), START, 0.5);
    }
    outbox.note(&elsewhere(99), after(60));
    let sent = go(&mut outbox, after(60)).remove(0);
    assert!(!sent.group.is_flood);
}

#[test]
fn what_was_silent_all_its_life_leaves_nothing_behind_and_is_told_to_nobody_later() {
    let mut outbox = outbox(Kind::Pagerduty);
    let mut silenced = incident(1);
    silenced.silenced_until = Some(after(9_000));
    outbox.note(&silenced, START);
    assert_eq!(deliver(&mut outbox, START), []);
    // Over, and in the group an incident that is loud before the outbox has looked again.
    let mut over = silenced.clone();
    (over.state, over.resolved_at) = (Life::Resolved, Some(after(10)));
    outbox.note(&over, after(10));
    let mut both = outbox.clone();
    both.note(&incident(2), after(10));
    let sent = go(&mut both, after(10)).remove(0);
    assert_eq!(message::told(&sent).collect::<Vec<_>>(), [incident(2).id]);
    // And alone.
    assert_eq!(deliver(&mut outbox, after(11)), []);
    let ended = outbox.unwritten();
    assert_eq!((ended.len(), outbox.groups().count()), (0, 0));
    outbox.note(&incident(3), after(86_400));
    let sent = go(&mut outbox, after(86_400)).remove(0);
    assert_eq!(sent.group.began_at, after(86_400));
}

#[test]
fn an_end_that_gets_through_to_nobody_for_a_week_is_given_up() {
    let mut outbox = outbox(Kind::Slack);
    outbox.note(&incident(1), START);
    let sent = go(&mut outbox, START).remove(0);
    outbox.done(&sent, failed(None), START, 0.5);
    outbox.note(&resolved(1, after(1)), after(1));
    let week = 7 * 86_400;
    let sent = go(&mut outbox, after(week)).remove(0);
    assert_eq!(sent.says, Says::Resolved);
    outbox.done(&sent, failed(None), after(week), 0.5);
    assert_eq!(go(&mut outbox, after(week + 1)), []);
    assert_eq!(outbox.groups().count(), 0);
}

#[test]
fn what_cannot_be_read_at_a_start_is_not_told_as_over_before_the_detectors_have_looked() {
    let mut before = outbox(Kind::Pagerduty);
    for number in [1, 2, 3] {
        before.note(&incident(number), START);
    }
    assert_eq!(deliver(&mut before, START), [Says::Opened]);
    let written: Vec<Group> = before.groups().cloned().collect();
    let only = |number| BTreeSet::from([Uuid::from_u128(number)]);
    let unread = Unread {
        spoilt: only(1),
        newer: only(2),
    };
    let mut started = outbox(Kind::Pagerduty);
    started.restore(written, &|_| false, &unread, after(5));
    let is_over = |outbox: &Outbox, number: u128| {
        let group = outbox.groups().next().expect("one group");
        let member = group.members.get(&Uuid::from_u128(number));
        member.is_none_or(|it| it.resolved_at.is_some())
    };
    let looks = [1, 2, 3].map(|it| is_over(&started, it));
    assert_eq!(
        looks,
        [false, false, true],
        "only the third is known to be over"
    );
    let patience = FOUND_AGAIN.as_secs() as i64;
    go(&mut started, after(5 + patience - 1));
    assert!(!is_over(&started, 1));
    go(&mut started, after(5 + patience));
    let looks = [1, 2].map(|it| is_over(&started, it));
    assert_eq!(
        looks,
        [true, false],
        "what a newer version wrote waits for it"
    );
}

#[test]
fn an_incident_that_there_is_no_room_for_is_counted_once() {
    let mut outbox = outbox(Kind::Slack);
    for number in 0..=MAX_MEMBERS as u128 {
        outbox.note(&incident(number), START);
    }
    deliver(&mut outbox, START);
    let counted = |outbox: &Outbox| outbox.groups().map(|it| it.left_out).sum::<u64>();
    assert_eq!(counted(&outbox), 1);
    let mut last = incident(MAX_MEMBERS as u128);
    last.places = 2;
    outbox.note(&last, after(400));
    assert_eq!(counted(&outbox), 1);
    assert_eq!(deliver(&mut outbox, after(400)), [], "and is no news");
}

#[test]
fn what_is_over_and_told_makes_room_and_what_there_was_no_room_for_is_told() {
    let mut outbox = outbox(Kind::Alertmanager);
    let most = MAX_MEMBERS as u128;
    for number in 1..=most {
        outbox.note(&incident(number), START);
    }
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    for number in 1..=300 {
        outbox.note(&resolved(number, after(10)), after(10));
    }
    assert_eq!(deliver(&mut outbox, after(10)), [Says::Updated]);
    let last = incident(most + 301);
    for number in most + 1..=most + 301 {
        outbox.note(&incident(number), after(20));
    }
    let new: BTreeSet<Uuid> = (301..=most + 300).map(|it| incident(it).id).collect();
    let sent = go(&mut outbox, after(20)).remove(0);
    assert_eq!(message::told(&sent).collect::<BTreeSet<_>>(), new);
    outbox.done(&sent, Outcome::Delivered, after(20), 0.5);
    let counted = |outbox: &Outbox| outbox.groups().map(|it| it.left_out).sum::<u64>();
    assert_eq!(counted(&outbox), 1);
    assert!(outbox.find_room().is_empty());
    // One more is over and told: there is room for the last.
    outbox.note(&resolved(301, after(30)), after(30));
    assert_eq!(deliver(&mut outbox, after(30)), [Says::Updated]);
    assert_eq!(outbox.find_room(), [last.id]);
    assert!(outbox.find_room().is_empty(), "it is handed out once");
    outbox.note(&last, after(40));
    let sent = go(&mut outbox, after(40)).remove(0);
    assert!(message::told(&sent).any(|it| it == last.id));
    assert_eq!(counted(&outbox), 0);
}

#[test]
fn what_there_was_no_room_for_in_an_outage_is_told_after_it() {
    let mut outbox = outbox(Kind::Slack);
    for number in 1..=MAX_MEMBERS as u128 {
        outbox.note(&incident(number), START);
    }
    let sent = go(&mut outbox, START).remove(0);
    outbox.done(&sent, failed(None), START, 0.5);
    outbox.note(&resolved(1, after(10)), after(10));
    let last = incident(MAX_MEMBERS as u128 + 1);
    outbox.note(&last, after(10));
    let found = outbox.find_room();
    assert!(found.is_empty(), "that one was over is still to be told");
    assert_eq!(deliver(&mut outbox, after(20)), [Says::Opened]);
    assert_eq!(outbox.find_room(), [last.id]);
    outbox.note(&last, after(30));
    let sent = go(&mut outbox, after(320)).remove(0);
    assert!(message::told(&sent).any(|it| it == last.id));
    assert_eq!(sent.group.left_out, 0);
}

#[test]
fn a_flood_that_comes_after_pagerduty_was_told_of_one_is_another_alarm() {
    let mut outbox = outbox(Kind::Pagerduty);
    for begins in [0, 100] {
        for number in 0..FLOOD_GROUPS as u128 + 2 {
            outbox.note(&elsewhere(begins as u128 + number), after(begins));
        }
        let said: Vec<Says> = (begins..begins + 20)
            .flat_map(|it| deliver(&mut outbox, after(it)))
            .collect();
        assert_eq!(said, vec![Says::Opened; FLOOD_GROUPS + 1]);
    }
    let floods = outbox.groups().filter(|it| it.is_flood);
    let floods: Vec<usize> = floods.map(|it| it.members.len()).collect();
    assert_eq!(floods, [2, 2]);
}

#[test]
fn a_link_is_written_with_a_new_incident_and_not_with_each_repetition() {
    let mut outbox = outbox(Kind::Alertmanager);
    let new = |outbox: &Outbox| {
        let groups = outbox.unwritten();
        let members = groups.iter().flat_map(|it| it.members.values());
        members.filter(|it| !it.is_linked).count()
    };
    outbox.note(&incident(1), START);
    assert_eq!(new(&outbox), 1);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    assert_eq!((outbox.has_unwritten(), new(&outbox)), (true, 0));
    outbox.note(&incident(2), after(1));
    assert_eq!(new(&outbox), 1);
    let written = outbox.unwritten();
    // What changes while it is written is linked all the same.
    outbox.note(&resolved(2, after(2)), after(2));
    outbox.written(&written);
    assert_eq!((outbox.has_unwritten(), new(&outbox)), (true, 0));
}

/// An incident that was told and told to be over, of each receiver, and the moment after it.
fn told_and_over(kind: Kind) -> (Outbox, i64) {
    let mut outbox = outbox(kind);
    outbox.note(&incident(1), START);
    assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
    outbox.note(&resolved(1, after(60)), after(60));
    // Another one keeps the group alive, and with it the key, but PagerDuty's.
    outbox.note(&incident(2), after(60));
    let said: Vec<Says> = (60..2_000)
        .flat_map(|it| deliver(&mut outbox, after(it)))
        .collect();
    assert!(!said.is_empty(), "{kind:?}");
    (outbox, 2_000)
}

#[test]
fn what_comes_back_and_is_over_while_that_is_on_its_way_is_told_to_be_over() {
    for kind in [Kind::Pagerduty, Kind::Slack, Kind::Webhook] {
        for outcome in [Outcome::Delivered, failed(None)] {
            let (mut outbox, now) = told_and_over(kind);
            outbox.note(&incident(1), after(now));
            let sent = go(&mut outbox, after(now));
            assert_eq!(sent.len(), 1, "{kind:?}: it is told that it came back");
            outbox.note(&resolved(1, after(now + 1)), after(now + 1));
            assert_eq!(go(&mut outbox, after(now + 2)), [], "one at a time");
            outbox.done(&sent[0], outcome.clone(), after(now + 3), 0.5);
            let mut ends = 0;
            for seconds in now + 4..now + 2_000 {
                for sending in go(&mut outbox, after(seconds)) {
                    let is_about = message::told(&sending).any(|it| it == incident(1).id);
                    ends += usize::from(is_about);
                    outbox.done(&sending, Outcome::Delivered, after(seconds), 0.5);
                }
            }
            assert!(
                ends > 0,
                "{kind:?} may believe that it is so after {outcome:?}"
            );
        }
    }
}

#[test]
fn what_is_over_and_comes_back_silently_is_not_told_as_open_beside_others() {
    let (mut outbox, now) = told_and_over(Kind::Webhook);
    let mut silent = incident(1);
    silent.silenced_until = Some(after(now + 10_000));
    outbox.note(&silent, after(now));
    outbox.note(&resolved(2, after(now)), after(now));
    let mut told = 0;
    for seconds in now..now + 100 {
        for sending in go(&mut outbox, after(seconds)) {
            told += 1;
            assert!(message::told(&sending).all(|it| it != silent.id));
            outbox.done(&sending, Outcome::Delivered, after(seconds), 0.5);
        }
    }
    assert!(told > 0, "that the other one is over is told");
}
