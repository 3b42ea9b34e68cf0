//! A thousand bad days: kills, power losses, partitions, failing disks and commits, lost and
//! doubled messages. After each, everything that was made is in the store once. And long outages of
//! the server alone, in whose drain the live view stays live.

use std::sync::atomic::{AtomicU64, Ordering};

use gpufleet_tests::simulation::day::{Day, Outcome};
use gpufleet_tests::simulation::outage;

const SEEDS: u64 = 1_000;
/// `GPUFLEET_TEST_SEED=n` replays one day.
const SEED_VARIABLE: &str = "GPUFLEET_TEST_SEED";

#[test]
fn after_a_thousand_bad_days_nothing_is_lost_and_nothing_counts_twice() {
    let seeds = match std::env::var(SEED_VARIABLE) {
        Ok(seed) => {
            let seed = seed.parse().expect("a seed is a number");
            seed..seed + 1
        }
        Err(_) => 1..SEEDS + 1,
    };
    let next = AtomicU64::new(seeds.start);
    let run = || {
        let (mut sum, mut wrong) = (Outcome::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return (sum, wrong);
            }
            match Day::new(seed).run() {
                Ok(outcome) => {
                    sum.ticks += outcome.ticks;
                    sum.deaths += outcome.deaths;
                    sum.told_dropped += outcome.told_dropped;
                }
                Err(lines) => wrong.push((seed, lines)),
            }
        }
    };
    let (mut sum, mut wrong) = (Outcome::default(), Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
        for thread in threads {
            let (outcome, lines) = thread.join().expect("a day does not panic");
            sum.ticks += outcome.ticks;
            sum.deaths += outcome.deaths;
            sum.told_dropped += outcome.told_dropped;
            wrong.extend(lines);
        }
    });
    wrong.sort();
    let first: Vec<_> = wrong
        .iter()
        .take(5)
        .map(|(seed, lines)| {
            let lines = &lines[..lines.len().min(5)];
            format!("{SEED_VARIABLE}={seed}:\n    {}", lines.join("\n    "))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} days went wrong:\n{}",
        wrong.len(),
        seeds.end - seeds.start,
        first.join("\n")
    );
    // A day without trouble would prove nothing.
    let days = seeds.end - seeds.start;
    assert!(sum.deaths > days * 5 && sum.ticks > days * 50, "{sum:?}");
}

#[test]
fn two_hours_without_a_server_are_drained_once_within_bounds_beside_live_data() {
    for seed in 1..=2 {
        let drained = outage::run(seed).unwrap_or_else(|wrong| {
            let first = &wrong[..wrong.len().min(5)];
            panic!("seed {seed}: {}", first.join("\n    "))
        });
        // A bound that nobody met would prove nothing.
        assert!(drained.full > 100, "seed {seed}: {drained:?}");
    }
}
