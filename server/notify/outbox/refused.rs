//! What receivers refuse: it is sent once, kept, and told when somebody has mended what is wrong.

use super::super::fixture::{START, after, incident};
use super::super::group::{REFUSED_PAUSE, State};
use super::super::lane::{Fault, Goes, LOOKS_EVERY};
use super::super::settings::Kind;
use super::hard_days::{elsewhere, refused};
use super::tests::{deliver, go, outbox, resolved};
use super::*;

/// Everything that goes out in so many seconds of what is told to a receiver that refuses it.
fn refused_until(outbox: &mut Outbox, seconds: std::ops::Range<i64>, fault: Fault) -> usize {
    let mut tries = 0;
    for second in seconds {
        for sending in go(outbox, after(second)) {
            tries += 1;
            outbox.done(&sending, refused(fault), after(second), 0.5);
        }
    }
    tries
}

const DAY: i64 = 86_400;

#[test]
fn what_a_receiver_refuses_is_not_sent_again_and_holds_nobody_up() {
    // A way that takes nothing is looked at once an hour.
    for (fault, a_day) in [(Fault::Message, 1), (Fault::Way, 24)] {
        for kind in [Kind::Pagerduty, Kind::Slack, Kind::Webhook] {
            let mut outbox = outbox(kind);
            outbox.note(&elsewhere(1), START);
            let tries = refused_until(&mut outbox, 0..DAY, fault);
            assert_eq!(tries, a_day, "{kind:?} {fault:?}");
            let state = outbox.groups().next().map(Group::state);
            assert_eq!(state, Some(State::Refused));
            // What is new goes out at once all the same.
            outbox.note(&elsewhere(2), after(DAY));
            let tries = refused_until(&mut outbox, DAY..2 * DAY, fault);
            assert_eq!(tries, a_day, "{kind:?} {fault:?}");
        }
    }
}

#[test]
fn what_changes_each_second_is_no_retry_of_what_was_refused() {
    let mut outbox = outbox(Kind::Slack);
    outbox.note(&incident(1), START);
    let mut tries = 0;
    for second in 0..600 {
        outbox.note(&incident(2 + second as u128), after(second));
        tries += refused_until(&mut outbox, second..second + 1, Fault::Way);
    }
    assert_eq!(tries, 600 / REFUSED_PAUSE.as_secs() as usize);
}

#[test]
fn what_was_refused_goes_out_when_it_is_mended_and_at_once() {
    type Mend = fn(&mut Outbox, i64);
    let mends: [(&str, Mend); 3] = [
        ("its secret changed", |outbox, _| outbox.try_again("it")),
        ("a test got through", |outbox, now| {
            outbox.works("it", after(now));
        }),
        ("the server began anew", |outbox, now| {
            let groups = outbox.groups().cloned().collect();
            let mut started = super::tests::outbox(Kind::Pagerduty);
            started.restore(groups, &|_| true, &Unread::default(), after(now));
            *outbox = started;
        }),
    ];
    for (how, mend) in mends {
        for fault in [Fault::Message, Fault::Way] {
            let mut outbox = outbox(Kind::Pagerduty);
            for number in [1, 2] {
                outbox.note(&elsewhere(number), START);
            }
            let first = go(&mut outbox, START).remove(0);
            outbox.done(&first, refused(fault), START, 0.5);
            assert_eq!(refused_until(&mut outbox, 1..3_000, fault), 1);
            mend(&mut outbox, 3_000);
            let again = go(&mut outbox, after(3_000)).remove(0);
            assert_eq!(again.says, Says::Opened, "{how}");
            let keys = [&again, &first].map(|it| it.group.message_key());
            assert_eq!(keys[0], keys[1], "{how}: it is the same message");
            outbox.done(&again, Outcome::Delivered, after(3_000), 0.5);
            assert_eq!(deliver(&mut outbox, after(3_000)), [Says::Opened], "{how}");
            let states: Vec<State> = outbox.groups().map(Group::state).collect();
            assert_eq!(states, [State::Delivered, State::Delivered], "{how}");
        }
    }
}

#[test]
fn a_message_that_gets_through_shows_that_the_way_is_mended_and_not_that_another_message_is() {
    for (fault, expected) in [(Fault::Way, vec![Says::Opened]), (Fault::Message, vec![])] {
        let mut outbox = outbox(Kind::Webhook);
        outbox.note(&elsewhere(1), START);
        refused_until(&mut outbox, 0..100, fault);
        outbox.note(&elsewhere(2), after(100));
        assert_eq!(deliver(&mut outbox, after(100)), [Says::Opened]);
        assert_eq!(deliver(&mut outbox, after(101)), expected, "{fault:?}");
    }
}

#[test]
fn a_message_that_is_refused_each_time_while_others_get_through_is_tried_three_times() {
    let mut outbox = outbox(Kind::Webhook);
    let mut tries = 0;
    for second in 0..2_000 {
        let number = second as u128 + 1;
        if second % 100 == 0 {
            outbox.note(&elsewhere(number), after(second));
        }
        for sending in go(&mut outbox, after(second)) {
            let is_first = sending.group.members.contains_key(&elsewhere(1).id);
            tries += usize::from(is_first);
            let outcome = match is_first {
                true => refused(Fault::Way),
                false => Outcome::Delivered,
            };
            outbox.done(&sending, outcome, after(second), 0.5);
        }
    }
    assert_eq!(tries, 3);
}

#[test]
fn an_end_that_is_refused_is_told_once_that_is_mended_because_the_alarm_is_still_open() {
    for fault in [Fault::Message, Fault::Way] {
        let mut outbox = outbox(Kind::Pagerduty);
        outbox.note(&incident(1), START);
        assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
        outbox.note(&resolved(1, after(60)), after(60));
        assert_eq!(refused_until(&mut outbox, 60..3_600, fault), 1);
        outbox.try_again("it");
        assert_eq!(
            deliver(&mut outbox, after(DAY)),
            [Says::Resolved],
            "{fault:?}"
        );
    }
}

#[test]
fn a_broken_way_is_looked_at_once_an_hour_with_one_message_and_the_rest_follows() {
    let mut outbox = outbox(Kind::Webhook);
    for number in 1..=3 {
        outbox.note(&elsewhere(number), START);
    }
    let hour = LOOKS_EVERY.as_secs() as i64;
    assert_eq!(refused_until(&mut outbox, 0..hour, Fault::Way), 3);
    assert_eq!(refused_until(&mut outbox, hour..3 * hour, Fault::Way), 2);
    let told: Vec<Says> = (3 * hour..4 * hour)
        .flat_map(|it| deliver(&mut outbox, after(it)))
        .collect();
    assert_eq!(
        told,
        [Says::Opened; 3],
        "also what was refused more than thrice"
    );
    let states: Vec<State> = outbox.groups().map(Group::state).collect();
    assert_eq!(states, [State::Delivered; 3]);
    // What a receiver refuses as a message is not what it is looked at with.
    let mut outbox = super::tests::outbox(Kind::Webhook);
    outbox.note(&elsewhere(1), START);
    assert_eq!(refused_until(&mut outbox, 0..3 * hour, Fault::Message), 1);
}

#[test]
fn a_broken_way_is_said_its_messages_wait_and_a_test_that_gets_through_ends_that() {
    let mut outbox = outbox(Kind::Pagerduty);
    outbox.note(&elsewhere(1), START);
    refused_until(&mut outbox, 0..400, Fault::Way);
    let goes = |outbox: &Outbox| outbox.lanes().map(|it| it.1.goes()).next();
    let waiting = |outbox: &Outbox| {
        let way = outbox.settings().ways[0].clone();
        outbox.waiting(&way, after(400))
    };
    assert_eq!(goes(&outbox), Some(Goes::Broken));
    assert_eq!(
        waiting(&outbox),
        (1, Some(START)),
        "nobody was told since then"
    );
    outbox.works("it", after(400));
    assert_eq!(goes(&outbox), Some(Goes::Well));
    assert_eq!(deliver(&mut outbox, after(400)), [Says::Opened]);
    assert_eq!(waiting(&outbox), (0, None));
}

#[test]
fn alertmanager_is_told_with_the_next_repetition_after_it_refused_one() {
    for fault in [Fault::Message, Fault::Way] {
        let mut outbox = outbox(Kind::Alertmanager);
        outbox.note(&incident(1), START);
        assert_eq!(deliver(&mut outbox, START), [Says::Opened]);
        let tries = refused_until(&mut outbox, 60..600, fault);
        assert_eq!(tries, 9, "once a minute, as when it takes them");
        assert_eq!(deliver(&mut outbox, after(600)), [Says::Updated]);
    }
}

#[test]
fn what_is_refused_after_it_was_mended_on_its_way_goes_out_once_more() {
    for fault in [Fault::Message, Fault::Way] {
        let mut outbox = outbox(Kind::Webhook);
        outbox.note(&elsewhere(1), START);
        let sent = go(&mut outbox, START).remove(0);
        outbox.try_again("it");
        outbox.done(&sent, refused(fault), after(1), 0.5);
        assert_eq!(refused_until(&mut outbox, 2..600, fault), 1, "{fault:?}");
        let state = outbox.groups().next().map(Group::state);
        assert_eq!(state, Some(State::Refused), "and is refused as it is now");
    }
}
