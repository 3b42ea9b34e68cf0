//! Bad days: kills, power losses, partitions, failing disks and commits, lost and
//! doubled messages. After each, everything that was made is in the store once. And long outages of
//! the server alone, in whose drain the live view stays live. And bad days of those who are to be told of
//! incidents. And hours of what goes wrong in the demo, judged, and replayed from what was stored of them.
//!
//! Each kind of bad day is lived with the seeds 1 to 120 in every `make test`, and with a thousand by
//! `make test-days`: those take ten minutes of two cores.

mod judged;
mod replayed;

use std::sync::atomic::{AtomicU64, Ordering};

use gpufleet_tests::simulation::day::{Day, Outcome};
use gpufleet_tests::simulation::outage;
use gpufleet_tests::simulation::telling::{self, Outcomes};

const DAYS: u64 = 120;
/// `GPUFLEET_TEST_DAYS=n` lives n days of each kind.
const DAYS_VARIABLE: &str = "GPUFLEET_TEST_DAYS";
/// `GPUFLEET_TEST_SEED=n` replays one day.
const SEED_VARIABLE: &str = "GPUFLEET_TEST_SEED";

/// The number that a variable of the environment holds, if it is set.
fn told(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value} is no number")),
    )
}

/// Lives every seed's day on two threads: what they came to, when none went wrong.
fn live<T: Send>(day: impl Fn(u64) -> Result<T, Vec<String>> + Sync) -> Vec<T> {
    let seeds = match told(SEED_VARIABLE) {
        Some(seed) => seed..seed + 1,
        None => 1..told(DAYS_VARIABLE).unwrap_or(DAYS) + 1,
    };
    let next = AtomicU64::new(seeds.start);
    let run = || {
        let (mut came, mut wrong) = (Vec::new(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return (came, wrong);
            }
            match day(seed) {
                Ok(outcome) => came.push(outcome),
                Err(lines) => wrong.push((seed, lines)),
            }
        }
    };
    let (mut came, mut wrong) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
        for thread in threads {
            let (outcomes, lines) = thread.join().expect("a day does not panic");
            came.extend(outcomes);
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
    came
}

#[test]
fn after_bad_days_nothing_is_lost_and_nothing_counts_twice() {
    let days: Vec<Outcome> = live(|seed| Day::new(seed).run());
    // A day without trouble would prove nothing.
    let deaths: u64 = days.iter().map(|it| it.deaths).sum();
    let ticks: u64 = days.iter().map(|it| it.ticks).sum();
    let count = days.len() as u64;
    assert!(
        deaths > count * 5 && ticks > count * 50,
        "{deaths} deaths, {ticks} ticks"
    );
}

#[test]
fn on_bad_days_everybody_is_told_everything_and_nothing_that_is_not_so() {
    let days: Vec<Outcomes> = live(|seed| telling::Day::new(seed).run());
    let of = |of: fn(&Outcomes) -> u64| days.iter().map(of).sum::<u64>() / days.len() as u64;
    // A day without trouble would prove nothing.
    assert!(of(|it| it.incidents) > 10 && of(|it| it.messages) > 20);
    assert!(of(|it| it.deaths) >= 5 && of(|it| it.lost_answers) >= 1);
    assert!(of(|it| it.refused) >= 1);
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
