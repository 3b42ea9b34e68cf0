//! Runs on a GPU that the driver wants reset: it may work on for days, and is then not why its run stands.

use gpufleet_analysis::ledger::Reason;
use gpufleet_analysis::states::{Edge, HealthEvent};

use super::*;

/// Nobody steps; all but this rank are in a collective.
fn waits_for(left_out: u32) -> impl Fn(u32) -> Does {
    move |rank| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: (rank != left_out).then_some(150.0),
        ..WELL
    }
}

/// The driver wants the GPU of rank 5 drained and reset; an event says so where it is known since when.
fn asked(since: Option<Timestamp>) -> impl Fn(&mut Live) + Copy {
    move |live| {
        if is_gpu(live, "node-1", 5) {
            set(live, &gpu::RECOVERY_ACTION, 4.0);
            let edge = Edge::Broken(Reason::RecoveryAction);
            live.health = since.map(|at| HealthEvent { at, edge });
        }
    }
}

/// The families that are open, each with the rank that it names.
fn open(training: &Training) -> Vec<(Family, Option<u32>)> {
    let open = training.world.open();
    let told = open.iter().map(|it| (it.family, it.place_and_run().rank));
    told.collect()
}

#[tokio::test]
async fn a_run_that_stepped_with_a_gpu_that_is_to_be_reset_waits_for_whom_it_waits() {
    for (suspect, expected) in [
        (9, vec![(Family::GpuFault, None), (Family::Hang, Some(9))]),
        // Whom it waits for is explained by what its GPU has.
        (5, vec![(Family::GpuFault, Some(5))]),
    ] {
        let mut training = Training::new().await;
        let long_ago = Some(training.world.hand.now());
        training.ticks(30, |_| WELL, asked(long_ago)).await;
        assert_eq!(open(&training), [(Family::GpuFault, None)]);
        training
            .ticks(15, waits_for(suspect), asked(long_ago))
            .await;
        assert_eq!(open(&training), expected, "it waits for {suspect}");
    }
}

#[tokio::test]
async fn a_gpu_that_is_to_be_reset_since_the_run_stands_is_why_it_does() {
    let mut training = Training::new().await;
    training.ticks(30, |_| WELL, |_| {}).await;
    let now = Some(training.world.hand.now());
    training.ticks(15, waits_for(9), asked(now)).await;
    assert_eq!(open(&training), [(Family::GpuFault, Some(5))]);
}

#[tokio::test]
async fn a_gpu_that_is_to_be_reset_computes_as_far_as_it_is_read_to() {
    let rests = |_| Does {
        busy_ms: None,
        phase: 5.0,
        ..WELL
    };
    for (reads, is_told) in [(0.4, false), (0.0, true)] {
        let mut training = Training::new().await;
        let change = move |live: &mut Live| {
            set_idle(live);
            asked(None)(live);
            if is_gpu(live, "node-1", 5) {
                set(live, &gpu::TENSOR_ACTIVE, reads);
            }
        };
        training.ticks(15, rests, change).await;
        let families: Vec<Family> = open(&training).iter().map(|it| it.0).collect();
        assert_eq!(families.contains(&Family::Hang), is_told, "{reads}");
    }
}
