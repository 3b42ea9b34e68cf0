//! Scores by size on seeded jobs: 8 columns × 4 stages, 60 steps, one rank slowed from the start.
//!
//! Two kinds: quiet (1 % noise of each rank) and variable sequence lengths (14 % per column and
//! step, 2 % of each rank), as in the real jobs. The figures below are what the seeds give; a
//! change that loses one of them fails.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

const COLUMNS: u32 = 8;
const STAGES: u32 = 4;
const SEEDS: u64 = 20;

/// Nearly normal, mean 0, σ 1.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}

/// (named rightly, named wrongly) over the seeds.
fn score(own: f64, shared: f64, slower: f64) -> (usize, usize) {
    let mut right = 0;
    let mut wrong = 0;
    for seed in 0..SEEDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let culprit = random.random_range(0..COLUMNS * STAGES);
        let mut run = Run::new(Source::Hooks);
        let mut named = std::collections::BTreeSet::new();
        for step in 0..60 {
            let load: Vec<f64> = (0..COLUMNS).map(|_| shared * normal(&mut random)).collect();
            let readings: Vec<Reading> = (0..COLUMNS * STAGES)
                .map(|rank| {
                    let seat = seat(rank, STAGES);
                    let x = load[(rank / STAGES) as usize] + own * normal(&mut random);
                    let part = if rank == culprit { 1.0 + slower } else { 1.0 };
                    let busy_ns = (BUSY_NS as f64 * x.exp() * part) as u64;
                    Reading {
                        rank,
                        seat,
                        busy_ns,
                    }
                })
                .collect();
            run.observe(&Step {
                step,
                wall_ns: 0,
                readings: &readings,
            });
            if step % 10 == 9 {
                named.extend(names(&run.judge()));
            }
        }
        let is_slow = slower > 0.0;
        right += usize::from(is_slow && named.contains(&culprit));
        wrong += named
            .iter()
            .filter(|it| !is_slow || **it != culprit)
            .count();
    }
    (right, wrong)
}

#[test]
fn scores_by_size_are_at_least_these_and_nobody_is_named_wrongly() {
    // own noise, shared noise, slower by, named rightly of 20 seeds.
    let rows = [
        (0.01, 0.0, 0.0, 0),
        (0.01, 0.0, 0.06, 20),
        (0.01, 0.0, 0.1, 20),
        (0.02, 0.14, 0.0, 0),
        (0.02, 0.14, 0.06, 16),
        (0.02, 0.14, 0.1, 20),
        (0.02, 0.14, 0.2, 20),
        (0.02, 0.14, 0.3, 20),
    ];
    let mut below = Vec::new();
    for (own, shared, slower, expected) in rows {
        let (right, wrong) = score(own, shared, slower);
        if right < expected || wrong > 0 {
            below.push(format!(
                "noise {own} and {shared}, +{:.0} %: {right} of {SEEDS} (expected {expected}), {wrong} wrong",
                slower * 100.0
            ));
        }
    }
    assert!(below.is_empty(), "{}", below.join("\n"));
}
