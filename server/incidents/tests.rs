//! The book and the outbox together: what the outbox waits for is told it, whether the book has news or not.

use std::collections::BTreeSet;

use super::*;
use crate::notify::fixture::{after, settings, trouble};
use crate::notify::group::MAX_MEMBERS;
use crate::notify::settings::Kind;

#[test]
fn what_a_group_had_no_room_for_is_told_once_there_is_some_although_it_has_not_changed() {
    let incidents = Incidents::default();
    incidents.tells(settings(&[("am", Kind::Alertmanager)]).into());
    let (quiet_runs, nodes, mut ids) = (BTreeSet::new(), BTreeMap::new(), 0);
    let mut tick = |seconds: i64, troubles: std::ops::Range<usize>| {
        let tick = Tick {
            now: after(seconds),
            signals: troubles.map(trouble).collect(),
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &quiet_runs,
            nodes: &nodes,
            runs: &Default::default(),
        };
        incidents.tick(tick, &mut || {
            ids += 1;
            Uuid::from_u128(ids)
        });
    };
    let due = |seconds: i64| incidents.next_messages(after(seconds)).pop();
    // Of what is open: how much there is, and how much of it a message is about.
    let sent = |seconds: i64| {
        // Nothing is written here: after 30 s people are told all the same.
        let sending = due(seconds).or_else(|| due(seconds + 30));
        let sending = sending.expect("there is something to say");
        let now = after(seconds + 30);
        incidents.sent(&sending, Outcome::Delivered, now, 0.5);
        let open = incidents.open(&Grant::default());
        let is_in = |it: &&Incident| sending.group.members.contains_key(&it.id);
        (open.len(), open.iter().filter(is_in).count())
    };
    let (all, over) = (MAX_MEMBERS - 50, 100);
    for seconds in [0, 10, 20] {
        tick(seconds, 0..all);
    }
    // An hour later what is no longer signalled is over.
    for seconds in [3_600, 3_610, 3_620] {
        tick(seconds, over..all);
    }
    for seconds in [3_630, 3_640, 3_650] {
        tick(seconds, over..all + over);
    }
    assert_eq!(sent(3_660), (all, MAX_MEMBERS - over));
    tick(3_700, over..all + over);
    assert_eq!(sent(3_710), (all, all));
}
