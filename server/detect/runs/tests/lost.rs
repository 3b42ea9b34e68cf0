//! Runs of which some ranks are heard no more: whom the others wait for, and what is said where nobody can tell.

use super::saves::{BOTH, spins};
use super::*;
use crate::detect::tests::breaks;
use crate::runs::words::sentence;

/// What a rank does at the tick before its node is lost, and what the others do from then on.
struct Lost {
    before: Does,
    after: Does,
    /// What is done to the GPUs that are still heard.
    change: fn(&mut Live),
}

/// Makes no step.
pub(super) const STILL: Does = Does {
    busy_ms: None,
    phase: 5.0,
    ..WELL
};

fn key() -> RunKey {
    let id = RankId::parse(&format!("{RUN}/0")).expect("an id");
    RunKey::of(&"prod".into(), &id)
}

pub(super) fn said(training: &Training) -> String {
    let (open, now) = (training.world.open(), training.world.hand.now());
    let runs = training.world.app.fleet.runs();
    let said = runs.look(&key(), |run| sentence(run, &open, now, "USD"));
    said.expect("it is known")
}

/// Nothing comes of this node any more.
fn silence(live: &mut Live, node: &str) {
    if &*live.node == node {
        live.node = "".into();
    }
}

#[tokio::test]
async fn a_node_that_is_lost_is_one_incident_with_the_price_of_the_run_that_waits_for_it() {
    let cases = [
        (
            "while it saved a checkpoint",
            Lost {
                before: Does {
                    phase: 6.0,
                    ..STILL
                },
                after: STILL,
                change: set_idle,
            },
        ),
        (
            "while nobody is in a collective",
            Lost {
                before: WELL,
                after: STILL,
                change: set_idle,
            },
        ),
        (
            "while all were in a collective",
            Lost {
                before: Does {
                    collective_s: Some(1.0),
                    ..STILL
                },
                after: Does {
                    collective_s: Some(150.0),
                    ..STILL
                },
                change: |_| {},
            },
        ),
    ];
    for (what, lost) in cases {
        let mut training = Training::new().await;
        training.ticks(1, |_| lost.before, |_| {}).await;
        let after = |rank| Does {
            is_heard: rank < 8,
            ..lost.after
        };
        let change = |live: &mut Live| {
            (lost.change)(live);
            silence(live, "node-2");
        };
        training.ticks(16, after, change).await;
        let told = training.one();
        assert_eq!(told.family, Family::Blind, "{what}");
        assert_eq!(told.place.node.as_deref(), Some("node-2"), "{what}");
        assert_eq!(told.severity, Severity::Error, "{what}");
        assert_eq!(told.losing.milli_gpus, 16_000, "{what}: all of it stands");
        let of_run = told.evidence.iter().find(|it| it.place.run.is_some());
        let of_run = of_run.expect("it says that the run stands");
        let expected = "probably waits for the ranks of this node, of which nothing is heard";
        assert!(of_run.what.ends_with(expected), "{what}: {}", of_run.what);
        assert_eq!(of_run.place.rank, None, "{what}");
        assert!(
            said(&training).starts_with("Stands: nothing is heard of 8 of its 16 ranks"),
            "{what}: {}",
            said(&training)
        );
        training.ticks(5, |_| WELL, |_| {}).await;
        assert_eq!(training.world.open(), [], "{what}");
    }
}

#[tokio::test]
async fn a_rank_that_alone_is_not_heard_is_who_the_run_waits_for_and_of_most_none_is_named() {
    for (silent, rank) in [(9..10, Some(9)), (4..16, None)] {
        let mut training = Training::new().await;
        let does = |it| Does {
            is_heard: !silent.contains(&it),
            ..STILL
        };
        training.ticks(15, does, set_idle).await;
        let told = training.one();
        assert_eq!((told.family, told.place.rank), (Family::Hang, rank));
        let expected =
            "the run stands still and probably waits for this rank, of which nothing is heard";
        assert_eq!(told.what == expected, rank.is_some(), "{}", told.what);
        let readings = told.evidence[0].readings.iter();
        let mut count = readings.filter(|it| it.name == "ranks that are not heard");
        let count = count.next().map(|it| (it.value as usize, it.usual));
        assert_eq!(count, Some((silent.len(), Some(16.0))));
    }
}

#[tokio::test]
async fn a_rank_that_was_silent_long_before_the_run_stood_is_not_blamed_for_it() {
    let mut training = Training::new().await;
    let without = |does: Does| {
        move |rank| Does {
            is_heard: rank != 9,
            ..does
        }
    };
    training.ticks(20, without(WELL), |_| {}).await;
    training.ticks(15, without(STILL), set_idle).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, None));
}

#[tokio::test]
async fn a_run_of_which_nothing_is_heard_at_all_does_not_hang_for_it() {
    let mut training = Training::new().await;
    let silent = |_| Does {
        is_heard: false,
        ..STILL
    };
    let change = |live: &mut Live| live.node = "".into();
    training.ticks(40, silent, change).await;
    let open = training.world.open();
    assert!(!open.is_empty());
    assert!(
        open.iter().all(|it| it.family == Family::Blind),
        "{open:#?}"
    );
    training.ticks(5, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn where_nothing_shows_whether_a_run_hangs_its_page_says_so_until_it_steps() {
    let mut training = Training::new().await;
    training.says = Some(Box::new(|_, live| {
        let told = [
            training::COLLECTIVES_IN_FLIGHT.id,
            training::COLLECTIVE_OLDEST_AGE.id,
        ];
        live.values.retain(|it| !told.contains(&it.metric));
    }));
    let unreadable = |live: &mut Live| live.values.retain(|it| it.metric != gpu::TENSOR_ACTIVE.id);
    training.ticks(15, |_| STILL, unreadable).await;
    assert_eq!(training.world.open(), []);
    let unknown = "Whether it hangs is not known";
    assert!(said(&training).contains(unknown), "{}", said(&training));
    training.ticks(3, |_| WELL, unreadable).await;
    assert!(!said(&training).contains(unknown), "{}", said(&training));
}

/// All but one rank are in a collective.
fn waits_for_9(rank: u32) -> Does {
    Does {
        collective_s: (rank != 9).then_some(150.0),
        ..STILL
    }
}

/// The port of that rank's machine is up or not.
fn port(is_up: bool) -> impl Fn(&mut Live) + Copy {
    move |live| {
        if live.key.kind == ResourceKind::Node {
            let up = is_up || &*live.node == "node-1";
            let part = Part::new(PartKind::Nic, "mlx5_0");
            set_part(live, &node::NIC_ERRORS, &part, 0.0);
            set_part(live, &node::NIC_UP, &part, f64::from(u8::from(up)));
        }
    }
}

#[tokio::test]
async fn why_a_rank_stands_that_the_run_waits_for_is_what_its_machine_shows() {
    for (is_up, cause) in [(true, Cause::Unknown), (false, Cause::Network)] {
        let mut training = Training::new().await;
        training.ticks(15, waits_for_9, port(is_up)).await;
        let told = training.one();
        assert_eq!((told.family, told.place.rank), (Family::Hang, Some(9)));
        assert_eq!(told.cause, cause);
    }
}

#[tokio::test]
async fn what_a_machine_shows_for_seconds_is_not_why_a_rank_stands_and_what_stays_is() {
    let mut training = Training::new().await;
    training.ticks(20, waits_for_9, port(true)).await;
    training.ticks(1, waits_for_9, port(false)).await;
    training.ticks(3, waits_for_9, port(true)).await;
    let told = training.one();
    assert_eq!((told.place.rank, told.cause), (Some(9), Cause::Unknown));
    // Half of the last looks; a port that is down for a minute would be told by itself.
    training.ticks(5, waits_for_9, port(false)).await;
    assert_eq!(training.one().cause, Cause::Network);
}

#[tokio::test]
async fn the_gpus_that_spin_while_their_run_waits_are_in_its_incident_and_lost_once() {
    let mut training = Training::new().await;
    training.ticks(45, waits_for_9, spins(BOTH)).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Hang, Some(9)));
    assert_eq!(told.losing.milli_gpus, 16_000, "all of it stands");
    let said: Vec<&str> = told.evidence.iter().map(|it| &*it.what).collect();
    assert!(said.contains(&"busy without work"), "{said:?}");

    // A node is lost, and the GPUs of the other spin.
    let mut training = Training::new().await;
    let lost = |rank: u32| Does {
        is_heard: rank < 8,
        collective_s: Some(150.0),
        ..STILL
    };
    let change = |live: &mut Live| {
        spins(BOTH)(live);
        silence(live, "node-2");
    };
    training.ticks(50, lost, change).await;
    let told = training.one();
    assert_eq!(told.family, Family::Blind);
    assert_eq!(told.losing.milli_gpus, 16_000, "all of it stands");
    let said: Vec<&str> = told.evidence.iter().map(|it| &*it.what).collect();
    assert!(said.contains(&"busy without work"), "{said:?}");
}

#[tokio::test]
async fn agents_that_are_exchanged_while_a_run_stands_change_nothing_of_whom_it_waits_for() {
    let mut training = Training::new().await;
    training.ticks(20, waits_for_9, |_| {}).await;
    let before = training.one();
    assert_eq!((before.family, before.place.rank), (Family::Hang, Some(9)));
    // One node after the other, that of the rank too.
    for silent in [0_u32..8, 8..16, 0..8] {
        for _ in 0..4 {
            let does = |rank: u32| Does {
                is_heard: !silent.contains(&rank),
                ..waits_for_9(rank)
            };
            training.ticks(1, does, |_| {}).await;
            let told = training.one();
            assert_eq!((told.id, told.place.rank), (before.id, Some(9)));
        }
    }
    training.ticks(4, waits_for_9, |_| {}).await;
    assert_eq!(training.one().what, before.what);
    training.ticks(4, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn agents_that_are_exchanged_while_all_ranks_are_in_a_collective_are_not_who_is_waited_for() {
    let mut training = Training::new().await;
    let all_wait = |rank: u32| Does {
        collective_s: Some(150.0),
        ..waits_for_9(rank)
    };
    training.ticks(20, all_wait, |_| {}).await;
    let before = training.one();
    let without = |rank: u32| Does {
        is_heard: rank >= 8,
        ..all_wait(rank)
    };
    training.ticks(4, without, |_| {}).await;
    let told = training.one();
    assert_eq!((told.id, told.place.clone()), (before.id, before.place));
    let expected = "the run stands still in a collective that all its ranks that are heard are in";
    assert_eq!(told.what, expected);
}

#[tokio::test]
async fn a_gpu_that_breaks_long_after_a_run_stood_is_a_fault_of_its_own() {
    // As it began to stand, and twenty minutes later by the clock of a hang.
    for (ticks, waits_for) in [(0, 5), (20, 9)] {
        let mut training = Training::new().await;
        training.ticks(ticks, waits_for_9, |_| {}).await;
        let before = training.world.open();
        let at = training.world.hand.now();
        let broken = |live: &mut Live| breaks("node-1", 5, at)(live);
        training.ticks(16, waits_for_9, broken).await;
        let open = training.world.open();
        let fault = open.iter().find(|it| it.family == Family::GpuFault);
        let fault = fault.expect("its fault is told");
        let of_run = fault.places().any(|it| it.run.as_deref() == Some(RUN));
        assert_eq!(of_run, waits_for == 5, "{fault:#?}");
        let hangs = open.iter().filter(|it| it.family == Family::Hang);
        let hangs: Vec<_> = hangs.map(|it| (it.id, it.place.rank)).collect();
        let known: Vec<_> = before.iter().map(|it| (it.id, Some(9_u32))).collect();
        assert_eq!(hangs, known, "it waits for {waits_for}");
    }
}
