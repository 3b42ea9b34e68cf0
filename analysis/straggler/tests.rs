//! Stragglers that are there, that are not, and that cannot be told; real jobs in [`real`]. Scores by size
//! are in `quality`.

mod context;
mod in_a_row;
mod parted;
pub(crate) mod real;

use std::collections::BTreeMap;

use super::collectives::{Function, Operation, readings};
use super::*;

/// Nanoseconds of a usual step.
const BUSY_NS: u64 = 100_000_000;
/// One in a thousand more or less, without chance: what real ranks of one kind differ by.
fn jitter(step: u64, rank: u32) -> u64 {
    (step * 31 + u64::from(rank) * 17) % 100 * 2_000
}

fn seat(rank: u32, stages: u32) -> Seat {
    Seat {
        stage: Some(rank % stages),
        column: Some(rank / stages),
        host: None,
        replica: None,
        context: None,
    }
}

/// Steps of `ranks` ranks on `stages` stages; `slower` says by what part a rank is slower.
fn run_steps(
    run: &mut Run,
    steps: std::ops::Range<u64>,
    ranks: u32,
    stages: u32,
    slower: impl Fn(u64, u32) -> f64,
) {
    for step in steps {
        let readings: Vec<Reading> = (0..ranks)
            .map(|rank| Reading {
                rank,
                seat: seat(rank, stages),
                busy_ns: ((BUSY_NS + jitter(step, rank)) as f64 * (1.0 + slower(step, rank)))
                    as u64,
            })
            .collect();
        let longest = readings.iter().map(|it| it.busy_ns).max().unwrap_or(0);
        let wall_ns = longest + 20_000_000;
        run.observe(&Step {
            step,
            wall_ns,
            readings: &readings,
        });
    }
}

fn only(rank: u32, part: f64) -> impl Fn(u64, u32) -> f64 {
    move |_, at| if at == rank { part } else { 0.0 }
}

fn names(verdict: &Verdict) -> Vec<u32> {
    verdict.stragglers.iter().map(|it| it.rank).collect()
}

#[test]
fn a_slow_rank_is_named_with_its_price_within_a_minute_of_steps() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 16, 2, only(99, 0.0));
    assert_eq!(run.judge(), Verdict::default());
    let from = |step: u64, rank: u32| if rank == 5 && step >= 60 { 0.3 } else { 0.0 };
    run_steps(&mut run, 60..75, 16, 2, from);
    let verdict = run.judge();
    assert_eq!(names(&verdict), [5]);
    let found = verdict.stragglers[0];
    assert_eq!(found.since_step, 60);
    assert_eq!(found.confidence, Confidence::High);
    assert!((found.ratio - 1.3).abs() < 0.01, "{found:?}");
    run_steps(&mut run, 75..115, 16, 2, from);
    let price = run.judge().stragglers[0].price.expect("walls are known");
    // A step falls from 150 to 120 ms.
    assert!(price.step_ns.abs_diff(150_000_000) < 500_000, "{price:?}");
    assert!(
        price.without_ns.abs_diff(120_000_000) < 500_000,
        "{price:?}"
    );
}

#[test]
fn a_rank_that_recovered_is_cleared_and_a_smaller_slowness_keeps_it() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 8, 1, only(3, 0.2));
    assert_eq!(names(&run.judge()), [3]);
    run_steps(&mut run, 60..120, 8, 1, only(3, 0.035));
    assert_eq!(names(&run.judge()), [3], "above 1.025 it stays");
    run_steps(&mut run, 120..160, 8, 1, only(3, 0.2));
    run_steps(&mut run, 160..169, 8, 1, only(3, 0.0));
    assert_eq!(
        names(&run.judge()),
        [3],
        "9 steps are not enough to clear it"
    );
    run_steps(&mut run, 169..180, 8, 1, only(3, 0.0));
    assert_eq!(run.judge(), Verdict::default());
}

#[test]
fn less_than_5_percent_accuses_nobody_and_5_steps_of_anything_neither() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 8, 1, only(3, 0.04));
    assert_eq!(names(&run.judge()), [0_u32; 0]);
    let mut run = Run::new(Source::Hooks);
    let short = |step: u64, rank: u32| if rank == 3 && step >= 55 { 2.0 } else { 0.0 };
    run_steps(&mut run, 0..60, 8, 1, short);
    assert_eq!(names(&run.judge()), [0_u32; 0]);
}

#[test]
fn a_stage_with_more_work_is_a_matter_of_the_split() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 32, 4, |_, rank| {
        if rank % 4 == 3 { 0.5 } else { 0.0 }
    });
    let verdict = run.judge();
    assert!(verdict.stragglers.is_empty(), "{verdict:?}");
    assert_eq!(verdict.stages.len(), 1);
    assert_eq!(verdict.stages[0].stage, 3);
    assert!((verdict.stages[0].ratio - 1.5).abs() < 0.01);
}

#[test]
fn a_stage_of_one_rank_with_more_work_is_told_though_nobody_is_its_peer() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 4, 4, only(2, 0.5));
    let verdict = run.judge();
    assert_eq!(verdict.silent, Some(Silent::NoPeers));
    let [stage] = verdict.stages[..] else {
        panic!("not one stage: {verdict:?}");
    };
    assert_eq!(stage.stage, 2);
    assert!((stage.ratio - 1.5).abs() < 0.01, "{stage:?}");
    let mut even = Run::new(Source::Hooks);
    run_steps(&mut even, 0..60, 4, 4, only(9, 0.0));
    assert_eq!(even.judge().stages, []);
}

#[test]
fn a_slow_rank_on_a_stage_with_more_work_is_still_named() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 32, 4, |_, rank| match rank {
        7 => 0.95,
        rank if rank % 4 == 3 => 0.5,
        _ => 0.0,
    });
    let verdict = run.judge();
    assert_eq!((names(&verdict), verdict.stages.len()), (vec![7], 1));
}

#[test]
fn a_slowest_rank_that_keeps_changing_is_data() {
    let mut run = Run::new(Source::Hooks);
    let turns = |step: u64, rank: u32| {
        if step % 8 == u64::from(rank) {
            0.4
        } else {
            0.0
        }
    };
    run_steps(&mut run, 0..60, 8, 1, turns);
    let verdict = run.judge();
    assert!(verdict.stragglers.is_empty(), "{verdict:?}");
    let moving = verdict.moving.expect("it moves");
    assert_eq!(moving.ranks, 8);
    assert!((moving.ratio - 1.4).abs() < 0.01);
}

#[test]
fn all_slow_is_nobody() {
    let mut run = Run::new(Source::Hooks);
    run_steps(
        &mut run,
        0..60,
        16,
        2,
        |step, _| if step > 30 { 1.0 } else { 0.0 },
    );
    assert_eq!(run.judge(), Verdict::default());
}

#[test]
fn a_start_a_lone_rank_and_missing_ranks_are_said_and_accuse_nobody() {
    let mut run = Run::new(Source::Hooks);
    assert_eq!(run.judge().silent, Some(Silent::Starting));
    run_steps(&mut run, 0..20, 8, 1, only(3, 0.5));
    assert_eq!(run.judge().silent, Some(Silent::Starting));
    let mut lone = Run::new(Source::Hooks);
    run_steps(&mut lone, 0..60, 1, 1, only(0, 0.5));
    assert_eq!(lone.judge().silent, Some(Silent::NoPeers));
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..40, 8, 1, only(9, 0.0));
    for step in 40..100 {
        let few = [Reading {
            rank: 3,
            seat: seat(3, 1),
            busy_ns: 3 * BUSY_NS,
        }];
        run.observe(&Step {
            step,
            wall_ns: 0,
            readings: &few,
        });
    }
    let verdict = run.judge();
    assert!(verdict.stragglers.is_empty(), "{verdict:?}");
}

#[test]
fn half_the_ranks_missing_for_long_is_said() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..40, 8, 1, only(9, 0.0));
    let mut observed = Vec::new();
    for step in 40..50 {
        let few = [Reading {
            rank: 3,
            seat: seat(3, 1),
            busy_ns: 3 * BUSY_NS,
        }];
        observed.push(run.observe(&Step {
            step,
            wall_ns: 0,
            readings: &few,
        }));
    }
    assert_eq!(observed, [Observed::TooFewRanks; 10]);
    run.incomplete = u64::MAX;
    assert_eq!(run.judge().silent, Some(Silent::RanksMissing));
}

#[test]
fn a_rank_that_left_is_not_judged_and_one_that_joins_is_judged_by_its_own_steps() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 8, 1, only(7, 0.5));
    assert_eq!(names(&run.judge()), [7]);
    run_steps(&mut run, 60..75, 7, 1, only(7, 0.5));
    assert_eq!(names(&run.judge()), [0_u32; 0]);
    run_steps(&mut run, 75..90, 9, 1, only(8, 0.5));
    assert_eq!(names(&run.judge()), [7_u32; 0], "15 steps are too few");
    run_steps(&mut run, 90..100, 9, 1, only(8, 0.5));
    assert_eq!(names(&run.judge()), [8]);
}

#[test]
fn repeated_and_old_steps_count_once_and_numbers_that_begin_anew_are_a_restart() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 100..160, 8, 1, only(3, 0.0));
    let before = run.clone();
    run_steps(&mut run, 150..159, 8, 1, only(3, 0.9));
    assert_eq!(run.ranks, before.ranks);
    assert_eq!(run.recent, before.recent);
    run_steps(&mut run, 0..60, 8, 1, only(4, 0.5));
    assert_eq!(names(&run.judge()), [4]);
}

#[test]
fn without_stages_one_may_be_named_with_less_confidence_and_several_may_not() {
    let unknown = |slow: fn(u32) -> bool| {
        let mut run = Run::new(Source::Collectives);
        for step in 0..60 {
            let reading = |rank: u32| Reading {
                rank,
                seat: Seat::default(),
                busy_ns: BUSY_NS + jitter(step, rank) + if slow(rank) { BUSY_NS / 2 } else { 0 },
            };
            let readings: Vec<Reading> = (0..16).map(reading).collect();
            run.observe(&Step {
                step,
                wall_ns: 0,
                readings: &readings,
            });
        }
        run.judge()
    };
    let one = unknown(|rank| rank == 3);
    assert_eq!(names(&one), [3]);
    assert_eq!(one.stragglers[0].confidence, Confidence::Low);
    assert_eq!(one.stragglers[0].price, None);
    let several = unknown(|rank| rank % 4 == 3);
    assert!(several.stragglers.is_empty());
    assert_eq!(several.silent, Some(Silent::MeshUnknown));
}

#[test]
fn clocks_alone_name_a_throttled_gpu_with_low_confidence() {
    let mut run = Run::new(Source::Telemetry);
    for step in 0..60 {
        let reading = |rank: u32| Reading {
            rank,
            seat: seat(rank, 1),
            busy_ns: busy_of_clock(if rank == 2 { 1.2e9 } else { 1.98e9 }).expect("a clock"),
        };
        let readings: Vec<Reading> = (0..8).map(reading).collect();
        run.observe(&Step {
            step,
            wall_ns: 10_000_000_000,
            readings: &readings,
        });
    }
    let verdict = run.judge();
    assert_eq!(names(&verdict), [2]);
    assert_eq!(verdict.stragglers[0].confidence, Confidence::Low);
    assert_eq!(verdict.stragglers[0].price, None);
    assert_eq!(busy_of_clock(0.0), None);
}

/// Tensor-parallel pairs (0,1), (2,3), …; data-parallel groups of even and of odd ranks. Rank 2
/// comes `late` behind to its pair's collective, and with its pair to the data-parallel ones.
fn collectives_of_a_step(late_ns: u64) -> Vec<Reading> {
    let own = 300_000_u64;
    let in_pair = |rank: u32| (rank, own + if rank == 3 { late_ns } else { 0 });
    let in_group = |rank: u32| (rank, own + if rank / 2 == 1 { 0 } else { late_ns });
    let pairs: Vec<Vec<(u32, u64)>> = (0..8)
        .map(|pair| vec![in_pair(2 * pair), in_pair(2 * pair + 1)])
        .collect();
    let groups: Vec<Vec<(u32, u64)>> = (0..2)
        .map(|odd| (0..8).map(|pair| in_group(2 * pair + odd)).collect())
        .collect();
    let function = Function::AllReduce;
    let all = pairs.iter().chain(&groups);
    let operations: Vec<Operation<'_>> = all
        .map(|durations| Operation {
            function,
            calls: 1,
            durations,
        })
        .collect();
    let seats: BTreeMap<u32, Seat> = (0..16).map(|rank| (rank, seat(rank, 1))).collect();
    readings(100_000_000, &operations, &seats)
}

#[test]
fn the_rank_that_waits_least_is_named_and_not_its_neighbour_that_inherits_the_wait() {
    for (late_ns, expected) in [(20_000_000, vec![2]), (40_000, vec![])] {
        let mut run = Run::new(Source::Collectives);
        for step in 0..60 {
            let readings = collectives_of_a_step(late_ns);
            run.observe(&Step {
                step,
                wall_ns: 100_000_000,
                readings: &readings,
            });
        }
        let verdict = run.judge();
        assert_eq!(names(&verdict), expected, "{late_ns}: {verdict:?}");
        let sure = verdict
            .stragglers
            .iter()
            .all(|it| it.confidence == Confidence::Medium);
        assert!(sure, "{verdict:?}");
    }
}

#[test]
fn collectives_that_do_not_end_together_and_lone_reports_give_no_reading() {
    let seats = BTreeMap::new();
    let broadcast = [(0, 1_000_000), (1, 9_000_000)];
    let other = Operation {
        function: Function::Other,
        calls: 1,
        durations: &broadcast,
    };
    let lone = Operation {
        function: Function::AllReduce,
        calls: 1,
        durations: &broadcast[..1],
    };
    assert_eq!(readings(100_000_000, &[other, lone], &seats), []);
}

#[test]
fn collectives_alike_are_told_together_and_nobody_waits_for_longer_than_there_was_time() {
    let durations = [(0, 300_000), (1, 900_000), (2, 330_000)];
    let operation = |calls| Operation {
        function: Function::ReduceScatter,
        calls,
        durations: &durations,
    };
    let busy = |calls| -> Vec<u64> {
        let all = readings(100_000_000, &[operation(calls)], &BTreeMap::new());
        all.iter().map(|it| it.busy_ns).collect()
    };
    // 30 µs more than the shortest are jitter, however often.
    assert_eq!(busy(50), [100_000_000, 70_000_000, 100_000_000]);
    assert_eq!(busy(5_000), [100_000_000, 10_000_000, 100_000_000]);
}

#[test]
fn the_state_of_a_rank_takes_no_more_than_is_said() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..200, 64, 4, only(5, 0.3));
    run.judge();
    let (bytes, ranks) = run.bytes();
    assert_eq!(ranks, 64);
    assert!(bytes <= RANK_BYTES * ranks, "{bytes}");
}

#[test]
fn twenty_thousand_ranks_name_the_one() {
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..26, 20_000, 8, only(12_345, 0.2));
    assert_eq!(names(&run.judge()), [12_345]);
}

#[test]
fn a_rank_is_judged_by_the_thresholds_that_are_set() {
    let named = |part: f64, by: Thresholds| {
        let mut run = Run::new(Source::Hooks);
        run_steps(&mut run, 0..60, 8, 1, only(3, part));
        names(&run.judge_by(&by))
    };
    let usual = Thresholds::default();
    let ratio = |ratio: f64| Thresholds { ratio, ..usual };
    assert_eq!((named(0.15, usual), named(0.03, usual)), (vec![3], vec![]));
    assert_eq!(named(0.15, ratio(1.2)), [0_u32; 0]);
    assert_eq!(named(0.03, ratio(1.02)), [3]);
    assert_eq!(named(0.15, Thresholds { z: 1e3, ..usual }), [0_u32; 0]);
    // Every second step takes 2.4 × as long and the others 4.2 ×: a rank that is 3 × as slow, in no step nearly as its
    // peers.
    let mut run = Run::new(Source::Hooks);
    let differs = |step: u64, rank: u32| match (rank, step % 2) {
        (3, 0) => 1.4,
        (3, _) => 3.2,
        _ => 0.0,
    };
    run_steps(&mut run, 0..60, 8, 1, differs);
    assert_eq!(names(&run.judge_by(&ratio(3.0))), [3]);
    let mut run = Run::new(Source::Hooks);
    run_steps(&mut run, 0..60, 8, 1, only(3, 0.3));
    assert_eq!(names(&run.judge_by(&ratio(1.2))), [3]);
    run_steps(&mut run, 60..120, 8, 1, only(3, 0.08));
    assert_eq!(
        names(&run.judge_by(&ratio(1.2))),
        [0_u32; 0],
        "below half of it"
    );
}

/// Names of 16 ranks of one stage, four to a replica, whose loads differ by turns by up to 20 %; that of the first is
/// 80 % larger in the last ten of 60 steps. Whether it is told which ranks are of one replica.
fn of_one_long_replica(is_told: bool) -> Vec<u32> {
    const LOADS: [f64; 7] = [0.0, 0.14, -0.2, 0.06, -0.1, 0.2, -0.04];
    let mut run = Run::new(Source::Hooks);
    for step in 0..60_u64 {
        let reading = |rank: u32| {
            let replica = rank / 4;
            let turn = (step as usize * 3 + replica as usize * 2) % LOADS.len();
            let load = match replica {
                0 if step >= 50 => 0.6 + LOADS[turn] / 4.0,
                _ => LOADS[turn],
            };
            Reading {
                rank,
                seat: Seat {
                    stage: Some(0),
                    column: Some(rank),
                    host: None,
                    replica: is_told.then_some(replica),
                    context: None,
                },
                busy_ns: ((BUSY_NS + jitter(step, rank)) as f64 * load.exp()) as u64,
            }
        };
        let readings: Vec<Reading> = (0..16).map(reading).collect();
        run.observe(&Step {
            step,
            wall_ns: 0,
            readings: &readings,
        });
    }
    names(&run.judge())
}

#[test]
fn ranks_of_one_replica_are_one_peer_of_which_ten_steps_tell_little() {
    assert_eq!(of_one_long_replica(false), [0, 1, 2, 3]);
    assert_eq!(of_one_long_replica(true), [0_u32; 0]);
}
