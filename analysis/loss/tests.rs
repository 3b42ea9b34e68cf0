//! Curves that go wrong, that only look it, and that nobody reads.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// A loss that falls from 11 to about 2, with noise and now and then a spike of ×1.5.
fn curve(random: &mut ChaCha8Rng, step: u64) -> f64 {
    let spike = if random.random::<f64>() < 0.002 {
        1.5
    } else {
        1.0
    };
    let noise: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
    (2.0 + 9.0 / (1.0 + step as f64 / 300.0)) * (1.0 + 0.02 * noise) * spike
}

/// The troubles of a run of `steps`, of which `change` changes what is read.
fn troubles(seed: u64, steps: u64, change: impl Fn(&mut Step)) -> Vec<(Trouble, u64)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut watch = Watch::new();
    let mut found: Vec<(Trouble, u64)> = Vec::new();
    for number in 1..=steps {
        let mut step = Step {
            step: number,
            loss: Some(curve(&mut random, number)),
            gradient_norm: Some(0.5 + 0.2 * random.random::<f64>()),
            ..Step::default()
        };
        change(&mut step);
        for finding in watch.observe(&step) {
            if found.iter().all(|it| it.0 != finding.trouble) {
                found.push((finding.trouble, finding.since_step));
            }
        }
    }
    found
}

#[test]
fn a_falling_curve_with_noise_and_spikes_is_quiet() {
    for seed in 0..10 {
        assert_eq!(troubles(seed, 20_000, |_| {}), [], "seed {seed}");
    }
}

#[test]
fn each_trouble_is_told_with_its_first_step() {
    type Change = dyn Fn(&mut Step);
    fn from(step: &Step) -> bool {
        step.step >= 1_000
    }
    let rows: [(Trouble, &Change); 5] = [
        (Trouble::NotFinite, &|it| {
            it.loss = if from(it) { Some(f64::NAN) } else { it.loss }
        }),
        (Trouble::Diverged, &|it| {
            it.loss = it.loss.map(|loss| if from(it) { loss * 1.6 } else { loss })
        }),
        (Trouble::GradientBurst, &|it| {
            it.gradient_norm = if from(it) {
                Some(5.0)
            } else {
                it.gradient_norm
            }
        }),
        (Trouble::Stuck, &|it| {
            it.loss = if from(it) { Some(2.5) } else { it.loss }
        }),
        (Trouble::Skipping, &|it| {
            it.is_skipped = from(it) && it.step.is_multiple_of(10)
        }),
    ];
    for (trouble, change) in rows {
        let found = troubles(1, 1_250, change);
        assert_eq!(found.len(), 1, "{trouble:?}: {found:?}");
        assert_eq!(found[0].0, trouble);
        let is_near =
            found[0].1.abs_diff(1_000) <= if trouble == Trouble::Skipping { 100 } else { 0 };
        assert!(is_near, "{found:?}");
    }
}

#[test]
fn two_broken_steps_a_short_rise_49_equal_losses_and_few_skips_are_quiet() {
    let within = |step: &Step, steps: u64| (1_000..1_000 + steps).contains(&step.step);
    let rows: [&dyn Fn(&mut Step); 5] = [
        &|it| {
            it.loss = if within(it, 2) {
                Some(f64::INFINITY)
            } else {
                it.loss
            }
        },
        &|it| {
            it.loss = it
                .loss
                .map(|loss| if within(it, 19) { loss * 1.6 } else { loss })
        },
        &|it| {
            it.gradient_norm = if within(it, 2) {
                Some(5.0)
            } else {
                it.gradient_norm
            }
        },
        &|it| it.loss = if within(it, 49) { Some(2.5) } else { it.loss },
        &|it| it.is_skipped = it.step.is_multiple_of(25),
    ];
    for (row, change) in rows.into_iter().enumerate() {
        assert_eq!(troubles(1, 1_400, change), [], "row {row}");
    }
}

#[test]
fn what_nobody_reads_is_nothing_and_a_gap_does_not_end_a_trouble() {
    let unread = |it: &mut Step| {
        it.loss = None;
        it.gradient_norm = None;
    };
    assert_eq!(troubles(1, 5_000, unread), []);
    let every_tenth = |it: &mut Step| {
        let is_read = it.step.is_multiple_of(10);
        it.gradient_norm = None;
        it.loss = is_read.then_some(if it.step >= 1_000 {
            f64::NAN
        } else {
            it.loss.unwrap_or(0.0)
        });
    };
    assert_eq!(troubles(1, 1_100, every_tenth)[0].0, Trouble::NotFinite);
}

#[test]
fn a_trouble_that_is_seen_in_each_tenth_step_alone_is_of_the_steps_since_the_last_that_was_well() {
    type Change = dyn Fn(&mut Step);
    let rows: [(Trouble, &Change); 3] = [
        (Trouble::NotFinite, &|it| it.loss = Some(f64::NAN)),
        (Trouble::Diverged, &|it| {
            it.loss = it.loss.map(|loss| loss * 1.6);
        }),
        (Trouble::GradientBurst, &|it| it.gradient_norm = Some(5.0)),
    ];
    for (trouble, change) in rows {
        let found = troubles(1, 10_000, |it| {
            if it.step > 8_004 {
                change(it);
            }
            if !it.step.is_multiple_of(10) {
                (it.loss, it.gradient_norm) = (None, None);
            }
        });
        assert_eq!(found, [(trouble, 8_001)]);
    }
}

#[test]
fn a_burst_between_two_steps_is_told_where_three_readings_in_a_row_held_it() {
    /// What is told with step 3,000 and no later one.
    fn with(loss: f64, norm: f64) -> Vec<(Trouble, u64)> {
        troubles(1, 3_100, |it| {
            if it.step == 3_000 {
                let held = |of: Option<f64>, times: f64| {
                    of.map(|it| Held {
                        value: it * times,
                        step: 2_995,
                    })
                };
                it.loss_held = held(it.loss, loss);
                it.gradient_norm_held = held(it.gradient_norm, norm);
            }
        })
    }
    assert_eq!(with(1.0, 1.0), []);
    assert_eq!(with(1.15, 2.0), []);
    assert_eq!(with(1.6, 1.0), [(Trouble::LossBurst, 2_995)]);
    assert_eq!(with(1.0, 5.0), [(Trouble::GradientBurst, 2_995)]);
    // A step that is not there yet is not believed.
    let far = troubles(1, 3_000, |it| {
        it.loss_held = (it.step == 3_000).then_some(Held {
            value: 9.0,
            step: u64::MAX,
        });
    });
    assert_eq!(far, [(Trouble::LossBurst, 3_000)]);
    // Nothing is judged before the trend is known, and a loss that stays there is no burst.
    let early = troubles(1, 150, |it| {
        it.loss_held = Some(Held {
            value: 99.0,
            step: it.step,
        });
    });
    assert_eq!(early, []);
    let mut watch = Watch::new();
    let stays = |step: u64| {
        let level = if step > 300 { 4.0 } else { 2.0 };
        let loss = level + 0.001 * (step % 7) as f64;
        Step {
            step,
            loss: Some(loss),
            loss_held: (step > 302).then_some(Held { value: loss, step }),
            ..Step::default()
        }
    };
    let told = (1..=330).map(|step| watch.observe(&stays(step)));
    let told: Vec<Vec<Trouble>> = told
        .map(|it| it.iter().map(|it| it.trouble).collect())
        .collect();
    assert_eq!(told[310], [Trouble::LossBurst]);
    assert_eq!(told[325], [Trouble::Diverged]);
}

#[test]
fn repeated_steps_count_once() {
    let mut watch = Watch::new();
    let broken = Step {
        step: 7,
        loss: Some(f64::NAN),
        ..Step::default()
    };
    for _ in 0..10 {
        assert_eq!(watch.observe(&broken), []);
    }
}

#[test]
fn a_new_level_becomes_the_trend_and_ends_the_finding() {
    let mut watch = Watch::new();
    let mut last = Vec::new();
    for step in 1..=900 {
        let level = if step > 300 { 4.0 } else { 2.0 };
        let loss = Some(level + 0.001 * (step % 7) as f64);
        last = watch.observe(&Step {
            step,
            loss,
            ..Step::default()
        });
        let is_told = (320..=499).contains(&step);
        assert_eq!(!last.is_empty(), is_told, "step {step}: {last:?}");
    }
    assert_eq!(last, []);
}

#[test]
fn the_state_is_at_most_64_bytes() {
    assert!(size_of::<Watch>() <= 64, "{}", size_of::<Watch>());
}

#[test]
fn numbers_are_judged_by_the_thresholds_that_are_set() {
    type Change = dyn Fn(&mut Step);
    type Set = fn(&mut Thresholds);
    fn late(step: &Step) -> bool {
        step.step >= 1_000
    }
    let rows: [(Trouble, &Change, Set); 4] = [
        (
            Trouble::NotFinite,
            &|it| it.loss = it.loss.map(|loss| if late(it) { f64::NAN } else { loss }),
            |by| by.not_finite_steps = 100.0,
        ),
        (
            Trouble::Diverged,
            &|it| it.loss = it.loss.map(|loss| if late(it) { loss * 1.6 } else { loss }),
            |by| by.sigmas = 100.0,
        ),
        (
            Trouble::Diverged,
            &|it| it.loss = it.loss.map(|loss| if late(it) { loss * 1.6 } else { loss }),
            |by| by.steps = 100.0,
        ),
        (
            Trouble::Stuck,
            &|it| it.loss = if late(it) { Some(2.5) } else { it.loss },
            |by| by.stuck_steps = 100.0,
        ),
    ];
    for (trouble, change, set) in rows {
        let told = |by: &Thresholds| {
            let mut random = ChaCha8Rng::seed_from_u64(3);
            let mut watch = Watch::new();
            let mut found = Vec::new();
            for number in 1..1_060 {
                let mut step = Step {
                    step: number,
                    loss: Some(curve(&mut random, number)),
                    ..Step::default()
                };
                change(&mut step);
                found = watch.observe_by(&step, by);
            }
            found.iter().any(|it| it.trouble == trouble)
        };
        let mut laxer = Thresholds::default();
        assert!(told(&laxer), "{trouble:?}");
        set(&mut laxer);
        assert!(!told(&laxer), "{trouble:?} by {laxer:?}");
    }
}
