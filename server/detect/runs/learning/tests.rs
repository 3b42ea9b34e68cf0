//! Numbers of training as they are read each ten seconds: what goes wrong in them, what only looks it, and what is over before
//! the next reading.

use std::ops::Range;

use gpufleet_analysis::loss::ACCEPT_STEPS;
use gpufleet_telemetry::time::NANOS_PER_SECOND;
use gpufleet_telemetry::training::Highest;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

/// A run that learns, at this tick of ten steps.
fn well(tick: u32) -> Reading {
    let wobble = f64::from((tick * 7_919) % 13) / 100.0;
    Reading {
        step: f64::from(tick * 10),
        loss: Some(3.0 + wobble - f64::from(tick) / 1_000.0),
        gradient_norm: Some(0.4 + wobble / 10.0),
        loss_held: None,
        gradient_norm_held: None,
        not_finite_losses: Some(0.0),
        not_finite_norms: Some(0.0),
        skips: Some(0.0),
    }
}

fn troubles(learning: &mut Learning, readings: impl Iterator<Item = Reading>) -> Vec<Trouble> {
    let mut last = Vec::new();
    for reading in readings {
        let found = learning.observe(Some(&reading), &Thresholds::default(), (NOW, None));
        last = found.iter().map(|it| it.trouble).collect();
    }
    last
}

#[test]
fn a_run_that_learns_is_well_and_one_without_finite_losses_is_not() {
    let mut learning = Learning::default();
    assert_eq!(troubles(&mut learning, (0..300).map(well)), []);
    let broken = (300..302).map(|tick| Reading {
        not_finite_losses: Some(f64::from(tick - 299) * 10.0),
        ..well(tick)
    });
    assert_eq!(troubles(&mut learning, broken), [Trouble::NotFinite]);
    let again = (302..304).map(|tick| Reading {
        not_finite_losses: Some(20.0),
        ..well(tick)
    });
    assert_eq!(troubles(&mut learning, again), [], "it is over");
}

#[test]
fn a_loss_that_leaves_its_trend_has_diverged_and_one_that_is_read_seldom_is_not_stuck() {
    let mut learning = Learning::default();
    troubles(&mut learning, (0..300).map(well));
    let high = (300..330).map(|tick| Reading {
        loss: Some(9.0 + f64::from(tick % 3)),
        ..well(tick)
    });
    assert_eq!(troubles(&mut learning, high), [Trouble::Diverged]);
    let mut learning = Learning::default();
    let seldom = (0..300).map(|tick| Reading {
        step: f64::from(tick * 10),
        ..well(tick / 100)
    });
    assert_eq!(troubles(&mut learning, seldom), []);
    let stuck = (300..400).map(|tick| Reading {
        loss: Some(2.5),
        ..well(tick)
    });
    assert_eq!(troubles(&mut learning, stuck), [Trouble::Stuck]);
}

#[test]
fn a_scaler_that_skips_one_step_in_ten_is_told() {
    let mut learning = Learning::default();
    let skipping = (0..60).map(|tick| Reading {
        skips: Some(f64::from(tick)),
        ..well(tick)
    });
    assert_eq!(troubles(&mut learning, skipping), [Trouble::Skipping]);
}

/// What is said of a run of two steps a tick of which this was counted so far, at each tick that something is said.
fn said(counted: &[[f64; 3]]) -> Vec<(&'static str, Severity)> {
    let mut learning = Learning::default();
    let mut said = Vec::new();
    for (tick, [losses, norms, skips]) in (0..).zip(counted) {
        let reading = Reading {
            step: f64::from(tick * 2),
            not_finite_losses: Some(*losses),
            not_finite_norms: Some(*norms),
            skips: Some(*skips),
            ..well(tick)
        };
        let found = learning.observe(Some(&reading), &Thresholds::default(), (NOW, None));
        for wrong in found {
            assert_eq!(wrong.trouble, Trouble::NotFinite);
            let signal = wrong.signal(&RunSnapshot::default(), Losing::default(), NOW);
            let what = match &*signal.what {
                "its loss is not finite" => "loss",
                "its gradients are not finite" => "gradients",
                other => panic!("{other}"),
            };
            said.push((what, signal.severity));
        }
    }
    said
}

#[test]
fn gradients_that_the_scaler_skipped_are_well_and_others_are_not_the_loss() {
    let (loss, gradients) = (("loss", Severity::Error), ("gradients", Severity::Warning));
    let of = |of_tick: [f64; 3]| -> Vec<[f64; 3]> {
        let ticks = (0..5).map(f64::from);
        ticks.map(|tick| of_tick.map(|it| it * tick)).collect()
    };
    let skipped = of([0.0, 2.0, 2.0]);
    assert_eq!(said(&skipped), [], "how training with 16-bit floats begins");
    assert_eq!(said(&of([0.0, 2.0, 0.0])), [gradients; 3]);
    let some = of([0.0, 2.0, 1.0]);
    assert_eq!(said(&some), [gradients; 2], "one of two was not skipped");
    let lost = of([2.0, 2.0, 2.0]);
    assert_eq!(said(&lost), [loss; 3], "no scaler skips a loss");
    // The norms of the last tick arrive with this one's.
    let late = [[0.0; 3], [0.0, 0.0, 4.0], [0.0, 4.0, 4.0], [0.0, 4.0, 4.0]];
    assert_eq!(said(&late), []);
    // No skip of long ago makes up for them.
    let long_ago = [[0.0, 0.0], [0.0, 8.0], [0.0, 8.0], [2.0, 8.0], [4.0, 8.0]];
    let long_ago = long_ago.map(|[norms, skips]| [0.0, norms, skips]);
    assert_eq!(said(&long_ago), [gradients]);
    let later = [[0.0, 0.0], [0.0, 2.0], [0.0, 4.0], [2.0, 6.0], [2.0, 8.0]];
    let later = later.map(|[losses, norms]| [losses, norms, 0.0]);
    assert_eq!(said(&later), [gradients, loss, loss]);
}

#[test]
fn a_skip_that_is_counted_before_its_step_has_ended_is_that_steps() {
    let mut learning = Learning::default();
    let readings = (0..20_u32).map(|tick| Reading {
        step: f64::from(tick / 2),
        not_finite_norms: Some(f64::from(tick / 2)),
        skips: Some(f64::from(tick.div_ceil(2))),
        ..well(tick)
    });
    assert_eq!(troubles(&mut learning, readings), []);
}

#[test]
fn a_run_that_goes_back_is_learnt_anew_and_one_that_reads_nothing_is_not_judged() {
    let mut learning = Learning::default();
    let skipping = (0..60).map(|tick| Reading {
        skips: Some(f64::from(tick)),
        ..well(tick)
    });
    troubles(&mut learning, skipping);
    assert_eq!(troubles(&mut learning, (20..40).map(well)), []);
    assert!(
        learning
            .observe(None, &Thresholds::default(), (NOW, None))
            .is_empty()
    );
    assert_eq!(Reading::of(&RankFacts::default()), None);
}

/// A run of which each step, or each second one, is read; the last one of a tick is told, beside what three readings
/// in a row held.
struct Made {
    seed: u64,
    steps_a_tick: u64,
    ticks: u64,
    every: u64,
    /// How many steps a spike lasts; one step in 500 begins one.
    spike: u64,
    burst: Range<u64>,
    /// How many times as large loss and gradient norm are in spikes and bursts.
    times: [f64; 2],
}

impl Made {
    /// What is found, each with the step that it is told of first.
    fn found(&self) -> Vec<(Trouble, u64)> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let (mut left, mut learning) = (0, Learning::default());
        let mut held = [Highest::default(), Highest::default()];
        let mut found: Vec<(Trouble, u64)> = Vec::new();
        for tick in 1..=self.ticks {
            let now = NOW.shifted(tick as i64 * 10 * NANOS_PER_SECOND);
            let last = tick * self.steps_a_tick;
            let mut read = Vec::new();
            for step in last - self.steps_a_tick + 1..=last {
                let numbers = self.numbers(step, &mut left, &mut random);
                if step.is_multiple_of(self.every) {
                    read.push((step, numbers));
                }
            }
            let newest = read.last().map(|it| it.1);
            let mut of = |kind: usize| {
                let readings = read.iter().map(|it| (now, it.0, it.1[kind]));
                held[kind].take(readings, now)
            };
            let reading = Reading {
                step: last as f64,
                loss: newest.map(|it| it[0]),
                gradient_norm: newest.map(|it| it[1]),
                loss_held: of(0),
                gradient_norm_held: of(1),
                ..well(0)
            };
            for wrong in learning.observe(Some(&reading), &Thresholds::default(), (now, None)) {
                if found.iter().all(|it| it.0 != wrong.trouble) {
                    found.push((wrong.trouble, wrong.since_step));
                }
            }
        }
        found
    }

    /// Loss and gradient norm of a step: the one nearly normal, the other with a long tail.
    fn numbers(&self, step: u64, left: &mut u64, random: &mut ChaCha8Rng) -> [f64; 2] {
        if *left == 0 && random.random_bool(0.002) {
            *left = self.spike;
        }
        let is_high = *left > 0 || self.burst.contains(&step);
        *left = left.saturating_sub(1);
        let mut noise = || {
            let sum: f64 = (0..3).map(|_| random.random::<f64>()).sum();
            2.0 * sum - 3.0
        };
        let usual = [2.5 * (1.0 + 0.02 * noise()), 0.5 * (0.3 * noise()).exp()];
        let times = if is_high { self.times } else { [1.0; 2] };
        [usual[0] * times[0], usual[1] * times[1]]
    }
}

#[test]
fn single_spikes_are_quiet_however_many_steps_a_tick_has_and_longer_ones_are_not() {
    for steps_a_tick in [1, 10, 30] {
        let well = Made {
            seed: 7,
            steps_a_tick,
            ticks: 100_000 / steps_a_tick,
            every: 1,
            spike: 1,
            burst: 0..0,
            times: [1.6, 6.0],
        };
        assert_eq!(well.found(), [], "{steps_a_tick} steps a tick");
        // The highest of a tick alone would not tell the two apart.
        let bursts = Made {
            ticks: 3_000 / steps_a_tick + 300,
            spike: 3,
            ..well
        };
        let found: Vec<_> = bursts.found().iter().map(|it| it.0).collect();
        assert!(found.contains(&Trouble::LossBurst), "{found:?}");
        assert!(found.contains(&Trouble::GradientBurst), "{found:?}");
    }
}

#[test]
fn ten_steps_of_a_second_between_two_readings_are_found_with_their_step() {
    // At its begin, in its middle, and over the end of a tick; and where the reader takes each second step.
    for (place, every) in [(0, 1), (45, 1), (95, 1), (0, 2), (45, 2), (95, 2)] {
        let first = 205 * 100 + place + 1;
        let made = Made {
            seed: place,
            steps_a_tick: 100,
            ticks: 212,
            every,
            spike: 0,
            burst: first..first + 10,
            // Norms have a long tail: of five readings that are five times as large three in a row need not reach 6 σ.
            times: [1.6, 8.0],
        };
        let found = made.found();
        let kinds: Vec<_> = found.iter().map(|it| it.0).collect();
        let name = (place, every);
        assert_eq!(
            kinds,
            [Trouble::LossBurst, Trouble::GradientBurst],
            "{name:?}"
        );
        let is_then = found.iter().all(|it| made.burst.contains(&it.1));
        assert!(is_then, "{found:?} of {:?}", made.burst);
        let smaller = Made {
            times: [1.1, 1.5],
            ..made
        };
        assert_eq!(smaller.found(), []);
    }
}

#[test]
fn what_was_held_is_read_with_its_step_or_not_at_all_and_told_as_of_that_step() {
    let told = [
        (training::LAST_STEP.id, 120.0),
        (training::LOSS.id, 2.5),
        (training::LOSS_HELD.id, 4.0),
        (training::LOSS_HELD_STEP.id, 112.0),
        (training::GRADIENT_NORM_HELD.id, 0.5),
    ];
    let facts = RankFacts {
        readings: told.to_vec(),
        ..RankFacts::default()
    };
    let reading = Reading::of(&facts).expect("it reads a loss");
    let held = Held {
        value: 4.0,
        step: 112,
    };
    assert_eq!(reading.loss_held, Some(held));
    assert_eq!(reading.gradient_norm_held, None);
    let wrong = Wrong {
        trouble: Trouble::LossBurst,
        since_step: held.step,
        since: NOW,
        reading,
        is_of_gradients: false,
        skipped: 0.0,
    };
    let signal = wrong.signal(&RunSnapshot::default(), Losing::default(), NOW);
    let said = signal
        .readings
        .iter()
        .map(|it| (it.name.as_str(), it.value));
    let said: Vec<_> = said.collect();
    assert_eq!(
        said,
        [
            ("at step", 112.0),
            ("held by three readings in a row", 4.0),
            ("loss", 2.5)
        ]
    );
    assert_eq!(signal.severity, Severity::Warning);
}

#[test]
fn a_loss_that_diverged_is_told_from_the_last_step_on_that_was_well() {
    let mut learning = Learning::default();
    troubles(&mut learning, (0..300).map(well));
    let high = (300..330).map(|tick| Reading {
        loss: Some(9.0 + f64::from(tick % 3)),
        ..well(tick)
    });
    let mut since = Vec::new();
    for reading in high {
        let found = learning.observe(Some(&reading), &Thresholds::default(), (NOW, None));
        since.extend(found.iter().map(|it| it.since_step));
    }
    since.dedup();
    assert_eq!(since, [2_991], "the reading of step 2,990 was well");
}

#[test]
fn a_loss_that_stays_high_is_accepted_as_the_new_trend_and_its_words_say_so_before() {
    let mut learning = Learning::default();
    troubles(&mut learning, (0..300).map(well));
    let high = |ticks: Range<u32>| {
        ticks.map(|tick| Reading {
            loss: Some(9.0 + f64::from(tick % 3)),
            ..well(tick)
        })
    };
    let until = 300 + u32::from(ACCEPT_STEPS);
    assert_eq!(
        troubles(&mut learning, high(300..until - 1)),
        [Trouble::Diverged]
    );
    let told = learning.found[0].signal(&RunSnapshot::default(), Losing::default(), NOW);
    let says = format!("After {ACCEPT_STEPS} readings");
    assert!(told.action.contains(&says), "{}", told.action);
    assert_eq!(troubles(&mut learning, high(until - 1..until)), []);
}

/// Since how many seconds each trouble is told at first, of ticks of ten seconds.
fn first_told(
    readings: impl Iterator<Item = (u32, Reading)>,
    step_ns: Option<u64>,
) -> Vec<(Trouble, i64)> {
    let mut learning = Learning::default();
    let mut told: Vec<(Trouble, Timestamp, i64)> = Vec::new();
    for (tick, reading) in readings {
        let now = NOW.shifted(i64::from(tick) * 10 * NANOS_PER_SECOND);
        let by = Thresholds::default();
        for wrong in learning.observe(Some(&reading), &by, (now, step_ns)) {
            let known = told.iter().find(|it| it.0 == wrong.trouble).copied();
            let ago = now.since(wrong.since) / NANOS_PER_SECOND;
            match known {
                Some((_, since, _)) => assert_eq!(since, wrong.since, "it goes on"),
                None => told.push((wrong.trouble, wrong.since, ago)),
            }
        }
    }
    told.into_iter().map(|it| (it.0, it.2)).collect()
}

#[test]
fn what_is_wrong_costs_from_when_its_first_step_was_and_no_more_than_was_looked_at() {
    let of = |change: fn(u32, &mut Reading)| {
        (0..400).map(move |tick| {
            let mut reading = well(tick);
            if tick >= 300 {
                change(tick, &mut reading);
            }
            (tick, reading)
        })
    };
    let high: fn(u32, &mut Reading) = |tick, it| it.loss = Some(9.0 + f64::from(tick % 3));
    let same: fn(u32, &mut Reading) = |_, it| it.loss = Some(2.5);
    let skips: fn(u32, &mut Reading) = |tick, it| it.skips = Some(f64::from(tick - 299) * 5.0);
    let second = Some(NANOS_PER_SECOND.unsigned_abs());
    for (change, step_ns, trouble, ago) in [
        // Twenty readings, ten steps from one to the next: since step 2,991 of 3,190.
        (high, second, Trouble::Diverged, 199),
        // Of a run whose steps nobody times.
        (high, None, Trouble::Diverged, 199),
        // Fifty, of which the first is of step 3,000.
        (same, second, Trouble::Stuck, 490),
        (skips, second, Trouble::Skipping, 0),
    ] {
        let told = first_told(of(change), step_ns);
        assert_eq!(told.first(), Some(&(trouble, ago)), "{step_ns:?}");
    }
    // A step that is said to take a day.
    let day = Some(86_400 * NANOS_PER_SECOND.unsigned_abs());
    let told = first_told(of(high), day);
    assert_eq!(told.first(), Some(&(Trouble::Diverged, 3_190)));
}

#[test]
fn a_step_beyond_all_numbers_is_taken_for_the_last_that_there_is() {
    let mut learning = Learning::default();
    troubles(&mut learning, (0..3).map(well));
    let absurd = |not_finite: f64, step: f64| Reading {
        step,
        not_finite_losses: Some(not_finite),
        ..well(3)
    };
    let readings = [absurd(0.0, 1e18), absurd(10.0, 1e300)];
    let found = troubles(&mut learning, readings.into_iter());
    assert_eq!(found, [Trouble::NotFinite]);
}

#[test]
fn whatever_is_wrong_has_a_figure_of_what_is_lost_or_at_stake_since_it_began() {
    let since = NOW.shifted(-3_600 * NANOS_PER_SECOND);
    let gpus = Losing::gpus(8, Some(1_000_000));
    // What is lost now, in thousandths of a GPU, and for how many GPU-hours it is at stake whether it is.
    for (trouble, lost, at_stake) in [
        (Trouble::NotFinite, 8_000, 0.0),
        (Trouble::Diverged, 8_000, 0.0),
        (Trouble::Stuck, 8_000, 0.0),
        (Trouble::Skipping, 800, 0.0),
        (Trouble::LossBurst, 0, 8.0),
        (Trouble::GradientBurst, 0, 8.0),
    ] {
        for is_of_gradients in [false, true] {
            let wrong = Wrong {
                trouble,
                since_step: 1,
                since,
                reading: well(1),
                is_of_gradients,
                skipped: 0.1,
            };
            let signal = wrong.signal(&RunSnapshot::default(), gpus, NOW);
            assert_eq!(signal.since, Some(since), "{trouble:?}");
            assert_eq!(signal.price.lost().milli_gpus, lost, "{trouble:?}");
            let hours = signal.price.so_far.gpu_seconds() / 3_600.0;
            assert!((hours - at_stake).abs() < 1e-9, "{trouble:?} {hours}");
        }
    }
}
