//! What is about no incident: it is said once, after everything that is wrong, and is in nobody's way.

use super::super::fixture::{START, after, incident};
use super::super::group::{Notice, State};
use super::super::lane::MAX_NOTICES_PER_MINUTE;
use super::super::settings::Kind;
use super::hard_days::refused;
use super::tests::{deliver, go, outbox};
use super::*;

const DAY: i64 = 86_400;

fn notice(outbox: &Outbox, number: u128) -> Group {
    let way = &outbox.settings.ways[0];
    let mut group = Group::new(Uuid::from_u128(number), way, Vec::new(), START);
    group.notice = Some(Arc::new(Notice {
        title: format!("Week of team {number}"),
        text: "all of it".to_owned(),
        link: "x".to_owned(),
        digest: serde_json::json!({ "number": number.to_string() }),
    }));
    group
}

fn with_notices(kind: Kind, count: u128) -> Outbox {
    let mut outbox = outbox(kind);
    let all = (1..=count).map(|it| notice(&outbox, it)).collect();
    outbox.announce(all);
    outbox
}

/// What a server knows that begins with what is written.
fn begun_anew(outbox: &Outbox, kind: Kind, now: Timestamp) -> Outbox {
    let written: Vec<Group> = outbox.groups().cloned().collect();
    let as_stored = serde_json::to_string(&written).expect("it is JSON");
    let mut anew = super::tests::outbox(kind);
    let groups = serde_json::from_str(&as_stored).expect("it is what was written");
    anew.restore(groups, &|_| false, &Unread::default(), now);
    anew
}

#[test]
fn a_notice_is_said_once_and_after_a_crash_again_under_the_same_key_or_not_at_all() {
    let mut outbox = with_notices(Kind::Webhook, 1);
    let sent = go(&mut outbox, START);
    assert_eq!((sent.len(), sent[0].says), (1, Says::Notice));
    // Nobody knows whether it got through.
    let mut anew = begun_anew(&outbox, Kind::Webhook, after(5));
    let again = go(&mut anew, after(5));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].group.message_key(), sent[0].group.message_key());
    anew.done(&again[0], Outcome::Delivered, after(6), 0.5);
    // It is known to be said: nobody says it again, also where that was written and nothing else.
    let mut third = begun_anew(&anew, Kind::Webhook, after(7));
    assert_eq!(deliver(&mut third, after(8)), []);
    assert_eq!(deliver(&mut anew, after(100)), []);
    assert_eq!(anew.groups().count(), 0, "what is said is forgotten");
    let known = notice(&anew, 1);
    let mut twice = with_notices(Kind::Webhook, 1);
    twice.announce(vec![known]);
    assert_eq!(twice.groups().count(), 1);
}

#[test]
fn what_is_wrong_goes_first_and_notices_leave_it_room() {
    let mut outbox = with_notices(Kind::Webhook, 20);
    let mut notices = 0;
    for second in 0..60 {
        let said = deliver(&mut outbox, after(second));
        notices += said.iter().filter(|it| **it == Says::Notice).count();
    }
    assert_eq!(notices, MAX_NOTICES_PER_MINUTE);
    assert_eq!(
        outbox
            .waiting(&outbox.settings.ways[0].clone(), after(60))
            .0,
        0
    );
    // One more notice could go now; an incident goes before it.
    outbox.note(&incident(1), after(61));
    assert_eq!(deliver(&mut outbox, after(61)), [Says::Opened]);
    for second in 62..400 {
        let said = deliver(&mut outbox, after(second));
        notices += said.iter().filter(|it| **it == Says::Notice).count();
    }
    assert_eq!(notices, 20, "each in its turn");
    let left = outbox.groups().filter(|it| it.notice.is_some());
    assert_eq!(left.count(), 0);
}

#[test]
fn a_flood_of_notices_makes_no_flood_of_incidents() {
    let mut outbox = with_notices(Kind::Webhook, 600);
    outbox.note(&incident(1), START);
    let of_incidents: Vec<&Group> = outbox.groups().filter(|it| it.notice.is_none()).collect();
    let [one] = of_incidents.as_slice() else {
        panic!("{of_incidents:?}");
    };
    assert!(!one.is_flood && one.members.len() == 1);
}

#[test]
fn a_notice_that_is_refused_waits_until_somebody_mends_that_and_is_given_up_after_a_week() {
    let mut outbox = with_notices(Kind::Slack, 1);
    let sent = go(&mut outbox, START);
    outbox.done(&sent[0], refused(Fault::Message), START, 0.5);
    for second in [10, 3_600, DAY] {
        assert_eq!(go(&mut outbox, after(second)), []);
    }
    assert!(
        outbox.groups().all(Group::is_refused),
        "others are told of it"
    );
    outbox.try_again("it");
    let sent = go(&mut outbox, after(2 * DAY));
    assert_eq!(sent.len(), 1, "it is mended");
    outbox.done(&sent[0], refused(Fault::Message), after(2 * DAY), 0.5);
    for second in [6 * DAY, 7 * DAY + 1] {
        assert_eq!(go(&mut outbox, after(second)), []);
    }
    let state = outbox.groups().map(Group::state).collect::<Vec<_>>();
    assert_eq!(state, [], "nobody wants to hear of that week any more");
}

#[test]
fn a_channel_that_is_another_kind_by_now_is_told_nothing_of_it() {
    let outbox = with_notices(Kind::Slack, 1);
    let mut anew = begun_anew(&outbox, Kind::Pagerduty, after(1));
    assert!(
        anew.groups()
            .all(|it| it.state() == State::Refused && it.over_at.is_some())
    );
    assert_eq!(go(&mut anew, after(2)), []);
}
