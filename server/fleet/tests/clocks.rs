//! Clocks: whose is wrong, what is told of it, and what becomes of data from under a wrong one.

use super::*;
use crate::fleet::Restored;

const HOURS_3: i64 = 10_800;

/// What the next commit tells: (kind, cluster, resource, message).
fn told(fleet: &Fleet, at: i64) -> Vec<(EventKind, String, String, String)> {
    let commit = fleet.take_commit(Timestamp::from_seconds(at));
    let Some(commit) = commit else {
        return Vec::new();
    };
    fleet.committed(commit.number);
    let event = |it: &crate::store::model::StoredEvent| {
        let event = &it.event;
        let texts = [&*it.cluster, &*event.resource_id, &*event.message];
        let [cluster, id, message] = texts.map(str::to_owned);
        (event.kind, cluster, id, message)
    };
    commit.events.iter().map(event).collect()
}

/// A tick of an agent of its own, whose clock is behind ours by so much.
fn of_agent(agent: u128, end: i64, behind: i64) -> Sent {
    Sent {
        agent,
        behind,
        resource: Resource::new(ResourceKind::Gpu, format!("GPU-{agent}"))
            .with(attribute::CLUSTER, "c")
            .with(attribute::NODE, format!("n{agent}")),
        ..sent(1, end)
    }
}

#[test]
fn a_clock_that_is_wrong_from_the_first_request_is_told_under_its_nodes_name_and_cluster() {
    let fleet = fleet();
    let outcome = of_agent(7, T + 10, HOURS_3).offer(&fleet);
    assert!(
        matches!(outcome, Outcome::Quarantined { .. }),
        "{outcome:?}"
    );
    let told = told(&fleet, T + 20);
    let [(EventKind::ClockOffset, cluster, node, message)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((&**cluster, &**node), ("c", "n7"));
    assert!(
        message.contains("The clock of n7 is 10800 s off"),
        "{message}"
    );
}

#[test]
fn when_most_agents_differ_by_the_same_the_server_is_blamed_and_not_the_nodes() {
    let fleet = fleet();
    for agent in 1..=5 {
        let outcome = of_agent(agent, T + 10, HOURS_3).offer(&fleet);
        assert!(
            matches!(outcome, Outcome::Quarantined { .. }),
            "{outcome:?}"
        );
    }
    // This one is wrong by itself, too.
    of_agent(6, T + 10, 2 * HOURS_3).offer(&fleet);
    let first = told(&fleet, T + 20);
    let mut of: Vec<&str> = first.iter().map(|it| &*it.2).collect();
    of.sort_unstable();
    assert_eq!(of, ["gpufleet-server", "n6"], "{first:?}");
    let sentence = fleet.server_clock().sentence().expect("it is wrong");
    assert!(
        sentence.contains("10800 s ahead of those of 5 of 6 agents"),
        "{sentence}"
    );
    assert_eq!(told(&fleet, T + 40), [], "it is told once");
    // The server's clock is set right: it is three hours earlier.
    for agent in 1..=5 {
        folded(of_agent(agent, T + 10 - HOURS_3, 0).offer(&fleet));
    }
    told(&fleet, T + 20 - HOURS_3);
    assert_eq!(fleet.server_clock(), ServerClock::Right);
}

#[test]
fn whether_agents_have_the_servers_time_is_asked_of_however_few_are_heard() {
    let fleet = fleet();
    let agree = |at| fleet.agents_agree(Timestamp::from_seconds(at));
    assert_eq!(agree(T + 10), None);
    of_agent(1, T + 10, HOURS_3).offer(&fleet);
    assert_eq!(agree(T + 20), Some(false));
    of_agent(2, T + 10, 3_000).offer(&fleet);
    assert_eq!(agree(T + 20), Some(true), "one of two");
    assert_eq!(agree(T + 200), None, "both are silent");
}

#[test]
fn data_from_under_a_clock_that_was_hours_ahead_is_taken_at_its_true_time_once_it_is_right() {
    let fleet = fleet();
    let ahead = |seq, end| Sent {
        behind: -HOURS_3,
        ..sent(seq, end)
    };
    let outcome = ahead(1, T + 10).offer(&fleet);
    assert!(
        matches!(outcome, Outcome::Quarantined { .. }),
        "{outcome:?}"
    );
    // The clock is right now; what the spool holds has the times of before.
    for (seq, end) in [(1, T + 10), (2, T + 70)] {
        let late = Sent {
            mended_at: Some(T + 100),
            ..ahead(seq, end)
        };
        assert_eq!(folded(late.offer(&fleet)).total(), 0);
    }
    folded(sent(3, T + 130).offer(&fleet));
    let commit = fleet
        .take_commit(Timestamp::from_seconds(T + 140))
        .expect("minutes");
    let minutes: Vec<Minute> = commit.minutes.iter().map(|it| it.minute).collect();
    let first = Timestamp::from_seconds(T).minute();
    assert_eq!(minutes, [0, 1, 2].map(|it| Minute(first.0 + it)));
}

/// A fleet that knows of before what the store would.
fn restarted(before: &Fleet, at: i64) -> Fleet {
    let commit = before.take_commit(Timestamp::from_seconds(at));
    let cursors = commit.map(|it| it.cursors.clone()).unwrap_or_default();
    let again = fleet();
    let restored = Restored {
        cursors,
        ..Restored::default()
    };
    again.restore(restored, Timestamp::from_seconds(at));
    again
}

#[test]
fn data_of_two_clocks_that_were_wrong_by_different_amounts_comes_at_its_true_time_also_over_a_restart()
 {
    // The agent is three hours ahead of the truth, the server two hours behind it: five apart.
    let wrong = fleet();
    let ahead = |seq, end| Sent {
        behind: -HOURS_3,
        ..sent(seq, end)
    };
    let of_both = Sent {
        behind: -5 * 3_600,
        ..sent(1, T + 10 - 2 * 3_600)
    };
    let outcome = of_both.offer(&wrong);
    assert!(
        matches!(outcome, Outcome::Quarantined { .. }),
        "{outcome:?}"
    );
    // The server's clock is set right and it starts again; the agent is still ahead.
    let server = restarted(&wrong, T + 20 - 2 * 3_600);
    let outcome = ahead(1, T + 10).offer(&server);
    assert!(
        matches!(outcome, Outcome::Quarantined { .. }),
        "{outcome:?}"
    );
    // Once more, and now the agent's is right, too.
    let server = restarted(&server, T + 30);
    for (seq, end) in [(1, T + 10), (2, T + 70)] {
        let late = Sent {
            mended_at: Some(T + 100),
            ..ahead(seq, end)
        };
        assert_eq!(folded(late.offer(&server)).total(), 0);
    }
    let commit = server
        .take_commit(Timestamp::from_seconds(T + 140))
        .expect("minutes");
    let minutes: Vec<Minute> = commit.minutes.iter().map(|it| it.minute).collect();
    let first = Timestamp::from_seconds(T).minute();
    assert_eq!(minutes, [0, 1].map(|it| Minute(first.0 + it)));
}

#[test]
fn clocks_that_were_ahead_together_and_are_set_back_together_hold_up_nothing_and_lose_nothing() {
    let fleet = fleet();
    let before = T + HOURS_3;
    assert_eq!(folded(sent(1, before + 10).offer(&fleet)).total(), 0);
    let kept = fleet.take_commit(Timestamp::from_seconds(before + 20));
    let kept = kept.expect("it is folded");
    fleet.committed(kept.number);
    assert_eq!(kept.minutes.len(), 1);
    let shown = |fleet: &Fleet| {
        let mut at = Vec::new();
        fleet.visit(|it| at.extend(it.values.iter().map(|it| it.at)));
        at
    };
    assert!(!shown(&fleet).is_empty());
    // Both clocks are right now, and the agent was started again.
    let now = Sent {
        session: 2,
        ..sent(2, T + 10)
    };
    assert_eq!(folded(now.offer(&fleet)).total(), 0);
    assert!(
        shown(&fleet)
            .iter()
            .all(|at| *at <= Timestamp::from_seconds(T + 10)),
        "what is shown is of now"
    );
    let commit = fleet.take_commit(Timestamp::from_seconds(T + 20));
    let minutes: Vec<Minute> = commit
        .iter()
        .flat_map(|it| &it.minutes)
        .map(|it| it.minute)
        .collect();
    assert_eq!(minutes, [Timestamp::from_seconds(T).minute()]);
}
