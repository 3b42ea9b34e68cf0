//! Changes that are there and that are not, and scores on real and seeded step times.

pub(crate) mod real;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::between::{Pace, Verdict, a_b, compare, mann_whitney};
use super::*;

const STEP_NS: f64 = 1e9;

/// Steps of 1 s with noise of `sigma`, from `from` on longer by `part`.
fn steps(seed: u64, count: usize, sigma: f64, from: usize, part: f64) -> Vec<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let normal =
        |random: &mut ChaCha8Rng| (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
    (0..count)
        .map(|step| {
            let noise = 1.0 + sigma * normal(&mut random);
            STEP_NS * noise * if step >= from { 1.0 + part } else { 1.0 }
        })
        .collect()
}

fn watched(times: &[f64]) -> Vec<Change> {
    let mut watch = Watch::default();
    let observe = |(step, wall): (usize, &f64)| watch.observe(step as u64 + 1, *wall as u64, false);
    times.iter().enumerate().filter_map(observe).collect()
}

#[test]
fn a_run_that_becomes_slower_is_told_with_onset_and_size_soon() {
    let found = watched(&steps(1, 300, 0.01, 150, 0.05));
    assert_eq!(found.len(), 1, "{found:?}");
    let change = found[0];
    assert_eq!(change.direction, Direction::Slower);
    assert!(change.since_step.abs_diff(151) <= 5, "{change:?}");
    assert!(change.at_step - 151 <= 20, "{change:?}");
    assert!((1.045..1.055).contains(&change.ratio), "{change:?}");
}

#[test]
fn an_even_run_spikes_and_too_little_are_quiet() {
    assert_eq!(watched(&steps(2, 2_000, 0.02, 0, 0.0)), []);
    assert_eq!(watched(&steps(3, 600, 0.01, 300, 0.01)), []);
    let mut spikes = steps(4, 600, 0.01, 0, 0.0);
    spikes
        .iter_mut()
        .skip(60)
        .step_by(12)
        .for_each(|it| *it *= 2.5);
    assert_eq!(watched(&spikes), []);
}

#[test]
fn steps_whose_noise_hides_the_baselines_middle_are_quiet_until_they_are_surely_longer() {
    let alarms = |part: f64| {
        let slower = |it: &&Change| it.direction == Direction::Slower;
        let of = |seed: u64| watched(&steps(seed, 2_000, 0.08, 1_000, part));
        let runs = (100..150).map(|seed| of(seed).iter().filter(slower).count());
        runs.filter(|found| *found > 0).count()
    };
    assert_eq!(alarms(0.0), 0);
    assert_eq!(alarms(0.3), 50);
}

#[test]
fn nothing_is_said_of_no_steps_few_steps_unknown_times_and_quiet_ones() {
    assert_eq!(watched(&[]), []);
    assert_eq!(watched(&steps(5, 54, 0.01, 10, 1.0)), []);
    assert_eq!(watched(&[0.0; 300]), []);
    let mut watch = Watch::default();
    for (step, wall) in steps(6, 300, 0.01, 100, 1.0).iter().enumerate() {
        let found = watch.observe(step as u64, *wall as u64, step >= 100);
        assert_eq!(found, None, "evaluation is left out");
    }
}

#[test]
fn after_a_recovery_the_next_rise_is_told_again_and_those_that_come_back_are_known_by_their_distance()
 {
    let mut times = steps(7, 1_800, 0.005, 0, 0.0);
    for (step, wall) in times.iter_mut().enumerate() {
        *wall *= if step >= 100 && (step / 100) % 2 == 0 {
            1.2
        } else {
            1.0
        };
    }
    let found = watched(&times);
    assert_eq!(found[0].direction, Direction::Slower);
    assert_eq!(found[1].direction, Direction::Faster);
    let mut rises = Rises::default();
    let slower = found.iter().filter(|it| it.direction == Direction::Slower);
    let every = slower.map(|it| {
        rises.push(it.since_step);
        rises.every()
    });
    let every: Vec<Option<u64>> = every.collect();
    assert_eq!(every.len(), 8);
    assert_eq!(every[..2], [None; 2], "two are no period");
    let is_period = |it: &Option<u64>| it.is_some_and(|it| it.abs_diff(200) < 10);
    assert!(every[2..].iter().all(is_period), "{every:?}");
}

#[test]
fn small_changes_add_up_against_what_was_before_the_first() {
    let mut times = steps(8, 800, 0.002, 0, 0.0);
    for (step, wall) in times.iter_mut().enumerate() {
        *wall *= 1.03_f64.powi((step / 200) as i32);
    }
    let found = watched(&times);
    assert_eq!(found.len(), 3, "{found:?}");
    let all = found[0].and(&found[1]).and(&found[2]);
    assert!(found[2].ratio < 1.04 && all.ratio > 1.07, "{all:?}");
}

#[test]
fn repeated_steps_count_once_and_numbers_that_begin_anew_are_a_restart() {
    let mut watch = Watch::default();
    for step in 1..=200 {
        watch.observe(step, 1_000_000_000, false);
    }
    let before = watch.clone();
    for step in 190..199 {
        assert_eq!(watch.observe(step, 9_000_000_000, false), None);
    }
    assert_eq!(watch.baseline_ns(), before.baseline_ns());
    watch.observe(201, 1_000_000_000, false);
    for step in 1..=100 {
        watch.observe(step, 2_000_000_000, false);
    }
    assert_eq!(watch.baseline_ns(), Some(2e9));
}

#[test]
fn steps_are_kept_only_while_a_baseline_is_learnt() {
    let times = steps(9, 300, 0.01, 150, 0.5);
    let mut watch = Watch::default();
    let mut learning = 0;
    for (step, wall) in times.iter().enumerate() {
        let found = watch.observe(step as u64 + 1, *wall as u64, false);
        assert_eq!(watch.learning.is_some(), watch.learnt > 0);
        learning += u32::from(watch.learning.is_some());
        if found.is_some() {
            assert_eq!(watch.baseline_ns(), None, "it learns anew");
        }
    }
    assert_eq!(learning, 2 * 49, "a baseline before and one since");
    let baseline = watch.baseline_ns().expect("it is learnt");
    assert!((baseline / 1.5e9 - 1.0).abs() < 0.01, "{baseline}");
}

#[test]
fn seeded_scores_by_size_are_at_least_these() {
    // Noise, slower by, found at least of 50 seeds; every one within 40 steps.
    for (sigma, part, least) in [
        (0.005, 0.02, 40),
        (0.005, 0.05, 50),
        (0.02, 0.05, 49),
        (0.02, 0.1, 50),
    ] {
        let found = (0..50)
            .filter(|seed| {
                let changes = watched(&steps(*seed, 240, sigma, 150, part));
                changes
                    .iter()
                    .any(|it| it.direction == Direction::Slower && it.at_step > 150)
            })
            .count();
        assert!(found >= least, "noise {sigma}, +{part}: {found} of 50");
    }
}

fn pace(steps: &[f64]) -> Pace {
    Pace::of(steps).expect("enough steps")
}

fn paces(runs: &[Vec<f64>]) -> Vec<Pace> {
    runs.iter().map(|it| pace(it)).collect()
}

#[test]
fn a_run_slower_than_three_alike_is_told_and_than_two_only_shown() {
    let runs: Vec<Pace> = (0..3)
        .map(|seed| pace(&steps(seed, 200, 0.01, 0, 0.003 * seed as f64)))
        .collect();
    let slow = pace(&steps(9, 200, 0.01, 0, 0.06));
    let told = compare(&runs, &slow).expect("there are runs");
    assert_eq!(told.verdict, Verdict::Slower);
    assert!((told.ratio - 1.057).abs() < 0.005, "{told:?}");
    let shown = compare(&runs[..2], &slow).expect("there are runs");
    assert_eq!(shown.verdict, Verdict::TooFewRuns);
    let alike = compare(&runs, &pace(&steps(10, 200, 0.01, 0, 0.01))).expect("there are runs");
    assert_eq!(alike.verdict, Verdict::Alike, "significant but below 2 %");
    assert!(alike.p < between::FIRE_P);
    let fast = compare(&runs, &pace(&steps(11, 200, 0.01, 0, -0.06))).expect("there are runs");
    assert_eq!(fast.verdict, Verdict::Faster);
}

#[test]
fn a_change_within_what_runs_differ_by_anyway_is_alike_and_no_steps_are_not_compared() {
    let runs: Vec<Pace> = (0..5)
        .map(|seed| pace(&steps(seed, 200, 0.01, 0, 0.04 * seed as f64)))
        .collect();
    let told = compare(&runs, &pace(&steps(9, 200, 0.01, 0, 0.15))).expect("there are runs");
    assert_eq!(told.verdict, Verdict::Alike);
    assert_eq!(compare(&[], &runs[0]), None);
    assert_eq!(a_b(&runs, &[]), None);
    assert_eq!(Pace::of(&[]), None);
    assert_eq!(Pace::of(&[f64::NAN; 50]), None);
}

#[test]
fn a_run_is_held_by_all_its_steps_and_not_by_the_last() {
    let runs: Vec<Pace> = (0..3)
        .map(|seed| pace(&steps(seed, 6_000, 0.01, 0, 0.0)))
        .collect();
    let mut slow = steps(9, 6_000, 0.01, 0, 0.06);
    slow[4_000..].iter_mut().for_each(|it| *it /= 1.06);
    let told = compare(&runs, &pace(&slow)).expect("there are runs");
    assert_eq!(told.verdict, Verdict::Slower, "{told:?}");
    assert!(told.ratio > 1.04, "{told:?}");
}

#[test]
fn a_b_takes_three_runs_of_each_that_agree() {
    let of = |seeds: std::ops::Range<u64>, part: f64| -> Vec<Vec<f64>> {
        seeds.map(|seed| steps(seed, 100, 0.01, 0, part)).collect()
    };
    let (a, b) = (of(0..3, 0.0), of(10..13, -0.05));
    let verdict =
        |a: &[Vec<f64>], b: &[Vec<f64>]| a_b(&paces(a), &paces(b)).expect("enough").verdict;
    assert_eq!(verdict(&a, &b), Verdict::Faster);
    assert_eq!(verdict(&a, &b[..2]), Verdict::TooFewRuns);
    assert_eq!(verdict(&a, &of(20..23, 0.001)), Verdict::Alike);
    let torn = [b[0].clone(), b[1].clone(), steps(30, 100, 0.01, 0, 0.3)];
    assert_eq!(
        verdict(&a, &torn),
        Verdict::Alike,
        "one run is on the other side"
    );
}

#[test]
fn a_b_goes_by_what_runs_of_both_sides_differ_by() {
    let of = |millis: [f64; 3]| millis.map(|it| pace(&[it * 1e6; 60]));
    let told = |a: &[Pace], b: &[Pace]| a_b(a, b).expect("there are runs");
    // Two of A happen to be equal, which says nothing of what runs of this kind differ by: distances are
    // 0, 0, 0, 20 of 1,000 and 11 and 12 of 1,030.
    let (a, b) = (
        of([1_000.0, 1_000.0, 1_020.0]),
        of([1_019.0, 1_030.0, 1_042.0]),
    );
    let from = told(&a, &b).told_from;
    let spread = (0.0 + 11.0 / 1_030.0) / 2.0;
    assert!((from - 4.0 * 1.4826 * spread).abs() < 1e-9, "{from}");
    assert_eq!(told(&a, &b).verdict, Verdict::Alike);
    assert!((told(&b, &a).told_from - from).abs() < 1e-12, "either way");
    let wide = of([1_000.0, 1_030.0, 1_100.0]);
    let from = told(&a, &wide).told_from;
    assert!(
        (from - 70.0 / 1_030.0).abs() < 1e-9,
        "the range of B: {from}"
    );
}

#[test]
fn a_change_that_is_slower_one_way_is_faster_the_other_way() {
    let of = |millis: [f64; 3]| millis.map(|it| pace(&[it * 1e6; 60]));
    // 7.4 % more is 6.9 % less the other way round, and 7.1 % is what these runs let tell.
    let (a, b) = (of([100.0; 3]), of([107.4, 107.4, 107.4 * 1.071]));
    let told = a_b(&a, &b).expect("there are runs");
    assert!((told.told_from - 0.071).abs() < 1e-9, "{told:?}");
    assert_eq!(told.verdict, Verdict::Slower);
    let told = a_b(&b, &a).expect("there are runs");
    assert_eq!(told.verdict, Verdict::Faster, "{told:?}");
}

#[test]
fn of_both_sides_the_medians_are_held_so_that_the_other_way_round_is_the_inverse() {
    let of = |millis: &[f64]| -> Vec<Pace> {
        let runs = millis.iter().map(|it| pace(&[it * 1e6; 60]));
        runs.collect()
    };
    let ratio = |a: &[Pace], b: &[Pace]| a_b(a, b).expect("there are runs").ratio;
    let (a, b) = (of(&[100.0, 100.2, 99.8]), of(&[97.0, 98.0, 104.0, 105.0]));
    assert!((ratio(&a, &b) - 1.01).abs() < 1e-9, "{}", ratio(&a, &b));
    assert!((ratio(&a, &b) * ratio(&b, &a) - 1.0).abs() < 1e-12);
    let two = ratio(&a[..2], &b[2..]);
    assert!((two - 104.5 / 100.1).abs() < 1e-9, "{two}");
}

#[test]
fn mann_whitney_gives_the_tables_chances() {
    let a: Vec<f64> = (0..20).map(f64::from).collect();
    let same = mann_whitney(&a, &a);
    assert!(same > 0.98, "{same}");
    let b: Vec<f64> = (20..40).map(f64::from).collect();
    // U = 0, n = 20 and 20: z = (200 − 0.5)/36.97 = 5.396.
    let apart = mann_whitney(&a, &b);
    assert!((apart / 6.8e-8 - 1.0).abs() < 0.3, "{apart}");
    assert_eq!(mann_whitney(&[1.0; 20], &[1.0; 20]), 1.0, "all ties");
}

#[test]
fn a_run_is_slower_by_the_part_that_is_set() {
    let count = |times: &[f64], change: f64| {
        let (mut watch, by) = (Watch::default(), Thresholds { change });
        let mut observe =
            |(step, wall): (u64, &f64)| watch.observe_by(step, *wall as u64, false, &by);
        (1..).zip(times).filter_map(&mut observe).count()
    };
    let (large, small) = (
        steps(1, 300, 0.01, 150, 0.05),
        steps(3, 600, 0.005, 300, 0.01),
    );
    assert_eq!((count(&large, 0.02), count(&large, 0.1)), (1, 0));
    assert_eq!((count(&small, 0.02), count(&small, 0.005)), (0, 1));
}
