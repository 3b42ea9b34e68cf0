//! Stages of which many ranks are slow alike: whole machines are named, of any other part is told why nobody is.

use super::*;

/// Ranks of a stage.
const PEERS: u32 = 16;
/// 1.67 × as long as the others.
const SLOWER: f64 = 0.67;

/// Steps of two stages, the ranks of which are on these machines; those that are slow are on the first.
fn go(
    run: &mut Run,
    steps: std::ops::Range<u64>,
    host: fn(u32) -> Option<u32>,
    is_slow: fn(u32) -> bool,
) {
    go_by(run, (steps, SLOWER), host, is_slow);
}

/// The same, where those that are slow are it by this part.
fn go_by(
    run: &mut Run,
    (steps, slower): (std::ops::Range<u64>, f64),
    host: fn(u32) -> Option<u32>,
    is_slow: fn(u32) -> bool,
) {
    for step in steps {
        let reading = |rank: u32| Reading {
            rank,
            seat: Seat {
                stage: Some(rank / PEERS),
                column: Some(rank % PEERS),
                host: host(rank),
                replica: None,
                context: None,
            },
            busy_ns: {
                let part = if is_slow(rank) { 1.0 + slower } else { 1.0 };
                ((BUSY_NS + jitter(step, rank)) as f64 * part) as u64
            },
        };
        let readings: Vec<Reading> = (0..2 * PEERS).map(reading).collect();
        let longest = readings.iter().map(|it| it.busy_ns).max().unwrap_or(0);
        run.observe(&Step {
            step,
            wall_ns: longest + 20_000_000,
            readings: &readings,
        });
    }
}

/// Machines of eight ranks.
fn of_eight(rank: u32) -> Option<u32> {
    Some(rank / 8)
}

fn judged(host: fn(u32) -> Option<u32>, is_slow: fn(u32) -> bool) -> Verdict {
    let mut run = Run::new(Source::Hooks);
    go(&mut run, 0..60, host, is_slow);
    run.judge()
}

fn is_all_slow(verdict: &Verdict) -> bool {
    let mut each = verdict.stragglers.iter();
    each.all(|it| (it.ratio - 1.0 - SLOWER).abs() < 0.01 && it.confidence == Confidence::Low)
}

#[test]
fn a_machine_that_is_half_a_stage_is_named_with_its_price_and_cleared() {
    let mut run = Run::new(Source::Hooks);
    go(&mut run, 0..60, of_eight, |rank| rank < 8);
    assert_eq!(names(&run.judge()), Vec::from_iter(0..8_u32));
    go(&mut run, 60..100, of_eight, |rank| rank < 8);
    let verdict = run.judge();
    assert_eq!(names(&verdict), Vec::from_iter(0..8_u32));
    assert!(is_all_slow(&verdict), "{verdict:?}");
    assert_eq!((verdict.stages, verdict.parted), (vec![], vec![]));
    // A step falls from 187 to 120 ms, which it does for no one rank.
    let price = verdict.stragglers[0].price.expect("walls are known");
    assert!(price.step_ns.abs_diff(187_000_000) < 1_000_000, "{price:?}");
    assert!(
        price.without_ns.abs_diff(120_000_000) < 1_000_000,
        "{price:?}"
    );
    go(&mut run, 100..160, of_eight, |_| false);
    assert_eq!(run.judge(), Verdict::default());
}

#[test]
fn a_machine_that_is_an_eighth_of_a_stage_costs_what_all_its_ranks_do_together() {
    let mut run = Run::new(Source::Hooks);
    for steps in [0..60, 60..100] {
        for step in steps {
            let reading = |rank: u32| Reading {
                rank,
                seat: Seat {
                    stage: Some(0),
                    column: None,
                    host: of_eight(rank),
                    replica: None,
                    context: None,
                },
                busy_ns: {
                    let part = if rank / 8 == 1 { 1.3 } else { 1.0 };
                    ((BUSY_NS + jitter(step, rank)) as f64 * part) as u64
                },
            };
            let readings: Vec<Reading> = (0..64).map(reading).collect();
            let longest = readings.iter().map(|it| it.busy_ns).max().unwrap_or(0);
            run.observe(&Step {
                step,
                wall_ns: longest,
                readings: &readings,
            });
        }
        assert_eq!(names(&run.judge()), Vec::from_iter(8..16_u32));
    }
    // A step falls from 130 to 100 ms: without one of the eight it would not.
    for it in run.judge().stragglers {
        let price = it.price.expect("walls are known");
        assert!(price.step_ns.abs_diff(130_000_000) < 1_000_000, "{it:?}");
        assert!(price.without_ns.abs_diff(100_000_000) < 1_000_000, "{it:?}");
    }
}

#[test]
fn one_rank_that_is_slower_still_does_not_hide_its_machine() {
    let mut run = Run::new(Source::Hooks);
    for step in 0..60 {
        let reading = |rank: u32| Reading {
            rank,
            seat: Seat {
                stage: Some(0),
                column: None,
                host: of_eight(rank),
                replica: None,
                context: None,
            },
            busy_ns: match rank {
                0 => 5 * BUSY_NS,
                1..8 => 2 * BUSY_NS,
                _ => BUSY_NS + jitter(step, rank),
            },
        };
        let readings: Vec<Reading> = (0..PEERS).map(reading).collect();
        run.observe(&Step {
            step,
            wall_ns: 0,
            readings: &readings,
        });
    }
    assert_eq!(names(&run.judge()), Vec::from_iter(0..8_u32));
}

#[test]
fn machines_that_are_three_quarters_of_a_stage_are_named() {
    let verdict = judged(|rank| Some(rank / 4), |rank| rank < 12);
    assert_eq!(names(&verdict), Vec::from_iter(0..12_u32));
    assert!(is_all_slow(&verdict), "{verdict:?}");
    assert_eq!(verdict.stages, []);
}

#[test]
fn a_whole_stage_that_is_slow_has_more_work() {
    let verdict = judged(of_eight, |rank| rank < PEERS);
    assert_eq!((names(&verdict), verdict.stages.len()), (vec![], 1));
}

#[test]
fn machines_that_are_named_stay_so_until_the_gap_is_what_clears_a_rank() {
    let host: fn(u32) -> Option<u32> = |rank| Some(rank / 4);
    let mut run = Run::new(Source::Hooks);
    go(&mut run, 0..60, host, |rank| rank < 12);
    let named = run.judge().stragglers;
    // Less than would name them, and more than clears.
    go_by(&mut run, (60..120, 0.035), host, |rank| rank < 12);
    let verdict = run.judge();
    assert_eq!(names(&verdict), Vec::from_iter(0..12_u32));
    let since = |all: &[Straggler]| all.iter().map(|it| it.since_step).collect::<Vec<u64>>();
    assert_eq!(since(&verdict.stragglers), since(&named));
    go_by(&mut run, (120..180, 0.015), host, |rank| rank < 12);
    assert_eq!(run.judge(), Verdict::default());
    go_by(&mut run, (180..240, 0.035), host, |rank| rank < 12);
    assert_eq!(run.judge(), Verdict::default(), "it names nobody");
}

/// Nine of a stage's ranks on three machines, of which two have one each.
fn alone_on_two(rank: u32) -> Option<u32> {
    Some(match rank {
        0..7 => 0,
        7 => 1,
        8 => 2,
        _ => 3,
    })
}

#[test]
fn ranks_that_are_slow_and_not_whole_machines_are_not_named_and_why() {
    type Place = (fn(u32) -> Option<u32>, fn(u32) -> bool, usize, Unnamed);
    let places: [Place; 4] = [
        // Every second one of both machines.
        (
            of_eight,
            |rank| rank < PEERS && rank % 2 == 0,
            8,
            Unnamed::BesideFast,
        ),
        (|_| None, |rank| rank < 8, 8, Unnamed::HostsUnknown),
        (Some, |rank| rank < 8, 8, Unnamed::Alone),
        (alone_on_two, |rank| rank < 9, 9, Unnamed::Alone),
    ];
    for (host, is_slow, slow, unnamed) in places {
        let verdict = judged(host, is_slow);
        assert_eq!((names(&verdict), &*verdict.stages), (vec![], &[][..]));
        let [parted] = *verdict.parted else {
            panic!("{verdict:?}");
        };
        assert_eq!((parted.stage, parted.slow, parted.of), (0, slow, 16));
        assert_eq!(parted.unnamed, unnamed);
        assert!((parted.ratio - 1.0 - SLOWER).abs() < 0.01, "{parted:?}");
    }
}

#[test]
fn whole_machines_that_are_slow_in_all_stages_of_their_columns_have_other_data() {
    for slow in [8, 12] {
        let is_slow: fn(u32) -> bool = match slow {
            8 => |rank| rank % PEERS < 8,
            _ => |rank| rank % PEERS < 12,
        };
        let verdict = judged(|rank| Some(rank / 4), is_slow);
        assert_eq!(names(&verdict), Vec::<u32>::new());
        let [one, other] = *verdict.parted else {
            panic!("{verdict:?}");
        };
        assert_eq!((one.stage, other.stage), (0, 1));
        assert_eq!((one.slow, other.slow), (slow, slow));
        assert_eq!(
            (one.unnamed, other.unnamed),
            (Unnamed::SameData, Unnamed::SameData)
        );
    }
}
