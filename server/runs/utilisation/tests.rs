//! MFU and HFU of made runs: by what they are, of which steps, and why there is none.

use std::collections::BTreeMap;

use gpufleet_analysis::straggler::Verdict;
use gpufleet_telemetry::steps::{StepBlock, StepTimes};

use super::*;
use crate::runs::{Judged, fixture};

const CARD: &str = "NVIDIA H100 80GB HBM3";
const PEAK: f64 = 989.4e12;

fn now() -> Timestamp {
    Timestamp::from_seconds(1_790_000_400)
}

/// A run of one rank that takes a second a step and says these FLOPs of each.
fn run(told: &[(Metric, f64)]) -> Run {
    let steps = [(training::STEPS, 10.0), (training::STEP_WALL, 10.0)];
    let flops = told.iter().map(|(metric, it)| (*metric, it * 10.0));
    let readings: Vec<(Metric, f64)> = steps.into_iter().chain(flops).collect();
    let mut rank = fixture::rank("GPU-a", &readings);
    rank.facts.heard = now();
    let mut run = Run::default();
    run.ranks.insert(0, rank);
    run.facts.data_type = "bf16".to_owned();
    run
}

fn hfu(run: &Run, tensor: Option<f64>) -> Result<(f64, Kind, Basis), String> {
    let gpus = Gpus {
        card: &|_| Some(Card::whole(CARD)),
        tensor: &|_| tensor,
    };
    let found = run.hfu(&gpus, &Specs::default(), now())?;
    Ok((found.0.ratio, found.0.kind, found.1))
}

/// The share that comes out, of which kind and by what.
fn check(run: &Run, tensor: Option<f64>, ratio: f64, kind: Kind, basis: Basis) {
    let found = hfu(run, tensor).expect("there is one");
    assert!((found.0 / ratio - 1.0).abs() < 1e-6, "{found:?}");
    assert_eq!((found.1, found.2), (kind, basis));
}

fn recomputing(mut run: Run) -> Run {
    let pair = ("gradient_checkpointing".to_owned(), "True".to_owned());
    run.facts.fingerprint.extend([pair]);
    run
}

#[test]
fn hfu_is_what_is_told_else_by_recomputation_else_an_estimate_that_is_named_one() {
    let model = (training::MODEL_FLOPS, 0.3 * PEAK);
    let told = run(&[model, (training::HARDWARE_FLOPS, 0.36 * PEAK)]);
    check(&told, Some(0.5), 0.36, Kind::Hfu, Basis::Told);
    check(&recomputing(told), Some(0.5), 0.36, Kind::Hfu, Basis::Told);
    let by_model = recomputing(run(&[model]));
    check(&by_model, Some(0.5), 0.4, Kind::Hfu, Basis::Recomputed);
    for run in [run(&[model]), run(&[]), recomputing(run(&[]))] {
        check(&run, Some(0.5), 0.5, Kind::Estimate, Basis::Estimated);
    }
}

/// Ten steps of so many tokens together, of which each took so many milliseconds.
fn block(number: i64, tokens: u64, millis: [u64; 10]) -> StepBlock {
    let times = millis.map(|it| StepTimes {
        wall_ns: it * 1_000_000,
        ..StepTimes::default()
    });
    StepBlock {
        first_step: 10 * number.unsigned_abs(),
        steps_log2: 0,
        started_at: Timestamp::from_seconds(1_790_000_000 + 100 * number),
        ended_at: Timestamp::from_seconds(1_790_000_090 + 100 * number),
        tokens,
        samples: 0,
        times: times.to_vec(),
    }
}

#[test]
fn mfu_is_the_flops_of_the_last_steps_over_the_time_of_the_same_steps() {
    let mut run = run(&[(training::MODEL_FLOPS, 0.4 * PEAK)]);
    // Eight of ten sequences are short: the mean is a second, the median half of one.
    let skewed = [500, 500, 3_000, 500, 500, 500, 500, 3_000, 500, 500];
    run.judged = Some(Judged {
        verdict: Verdict::default(),
        since: BTreeMap::new(),
        slower: None,
        before: None,
        step: 30,
        ended_at: now(),
        step_ns: 500_000_000,
    });
    let rank = run.ranks.get_mut(&0).expect("a rank");
    for number in 0..3 {
        rank.ring.push(&block(number, 2_000, skewed));
    }
    let check = |run: &Run, expected: f64| {
        let found = run.mfu(|_| Some(Card::whole(CARD)), &Specs::default());
        let found = found.expect("there is one").ratio;
        assert!((found / expected - 1.0).abs() < 1e-6, "{found}");
    };
    check(&run, 0.4);
    // Its ten steps had half as many tokens each as those of now.
    let readings = &mut run.ranks.get_mut(&0).expect("a rank").facts.readings;
    readings.push((training::TOKENS.id, 1_000.0));
    readings.sort_by_key(|it| it.0);
    check(&run, 0.8);
}

#[test]
fn ranks_that_have_ended_are_in_no_mfu_while_others_go_on() {
    let mut run = run(&[(training::MODEL_FLOPS, 0.4 * PEAK)]);
    let mut gone = run.ranks[&0].clone();
    gone.facts.gpu = "GPU-b".into();
    let readings = gone.facts.readings.iter_mut();
    let flops = readings.filter(|it| it.0 == training::MODEL_FLOPS.id);
    flops.for_each(|it| it.1 /= 4.0);
    gone.facts.end = Some(fixture::vanished(now()));
    run.ranks.insert(1, gone);
    let card = |_: &str| Some(Card::whole(CARD));
    let ratio = |run: &Run| run.mfu(card, &Specs::default()).expect("one").ratio;
    assert!((ratio(&run) - 0.4).abs() < 1e-6);
    run.facts.ended = Some(now());
    assert!((ratio(&run) - 0.25).abs() < 1e-6, "of all that it was");
}

#[test]
fn what_cannot_be_is_refused_and_what_is_not_told_is_a_reason() {
    let model = (training::MODEL_FLOPS, 0.3 * PEAK);
    let fewer = run(&[model, (training::HARDWARE_FLOPS, 0.15 * PEAK)]);
    let too_much = recomputing(run(&[(training::MODEL_FLOPS, 0.8 * PEAK)]));
    let mut no_type = run(&[]);
    no_type.facts.data_type.clear();
    let mut over = run(&[]);
    over.ranks.get_mut(&0).expect("a rank").facts.heard = Timestamp(0);
    for (run, tensor, words) in [
        (&fewer, None, "50 % of the model's"),
        (&too_much, None, "107 %"),
        (&run(&[]), Some(1.5), "150 %"),
        (&run(&[]), Some(0.0), "not told"),
        (&run(&[]), None, "tensor cores"),
        (&no_type, Some(0.5), "the type of its arithmetic"),
        (&over, Some(0.5), "it does not run"),
    ] {
        let why = hfu(run, tensor).expect_err(words);
        assert!(why.contains(words), "{words}: {why}");
    }
}

#[test]
fn a_run_on_what_is_in_no_table_is_held_against_the_peak_that_it_states() {
    let mut run = run(&[(training::MODEL_FLOPS, 3e9)]);
    let no_card = |_: &str| None;
    assert_eq!(run.mfu_of_stated_peak(no_card), None, "it states none");
    let states = |run: &mut Run, peak: &str| {
        let pair = (STATED_PEAK.to_owned(), peak.to_owned());
        run.facts.fingerprint.extend([pair]);
    };
    states(&mut run, "60000000000.0");
    let known = |_: &str| Some(Card::whole(CARD));
    assert_eq!(
        run.mfu_of_stated_peak(known),
        None,
        "the table knows better"
    );
    let found = run.mfu_of_stated_peak(no_card).expect("it states one");
    let found = found.expect("it is below it");
    assert!((found.ratio - 0.05).abs() < 1e-6, "{found:?}");
    assert!(found.peak.is_stated);
    for (peak, words) in [("1e9", "300 % of the run's bf16 peak"), ("0", "above 0")] {
        states(&mut run, peak);
        let why = run.mfu_of_stated_peak(no_card).expect("it states one");
        let why = why.expect_err("it cannot be");
        assert!(why.contains(words), "{words}: {why}");
    }
    states(&mut run, "much");
    assert_eq!(run.mfu_of_stated_peak(no_card), None, "that is no number");
}

#[test]
fn a_run_on_a_part_of_a_card_is_not_held_against_all_of_it() {
    let run = run(&[(training::MODEL_FLOPS, 0.05 * PEAK)]);
    for part in [Some((1, 7)), None] {
        let card = |_: &str| {
            Some(Card {
                part,
                ..Card::whole(CARD)
            })
        };
        let why = run.mfu(card, &Specs::default()).expect_err("of what?");
        assert!(why.contains("a part of a card"), "{why}");
        assert!(why.contains("peak_flops"), "it may be stated: {why}");
    }
    let all = |_: &str| Some(Card::whole(CARD));
    assert!(run.mfu(all, &Specs::default()).is_ok());
}

#[test]
fn where_nothing_lacks_but_a_peak_the_way_to_give_one_is_told() {
    let mut run = run(&[(training::MODEL_FLOPS, 3e9)]);
    let no_card = |_: &str| None;
    let in_no_table = |_: &str| Some(Card::whole("Mystery 9000"));
    let why = |run: &Run, card: &dyn Fn(&str) -> Option<Card>| {
        run.mfu(card, &Specs::default())
            .expect_err("it has no peak")
    };
    let way = "; gpufleet.init(peak_flops=…) gives its peak";
    for (card, words) in [
        (&no_card as &dyn Fn(&str) -> Option<Card>, "is not reported"),
        (&in_no_table, "`Mystery 9000`"),
    ] {
        let why = why(&run, card);
        assert!(why.contains(words) && why.ends_with(way), "{why}");
    }
    let gpu = &mut run.ranks.get_mut(&0).expect("a rank").facts.gpu;
    *gpu = "".into();
    assert!(why(&run, &no_card).ends_with(way));
    run.ranks = Default::default();
    assert!(!why(&run, &no_card).contains("peak_flops"));
}

#[test]
fn a_run_that_tells_no_flops_says_why_where_it_knows() {
    let why = |run: &Run| {
        let card = |_: &str| Some(Card::whole(CARD));
        run.mfu(card, &Specs::default()).err()
    };
    let pair = (FLOPS_REFUSED.to_owned(), "not known: a stage".to_owned());
    let mut silent = run(&[]);
    assert_eq!(
        why(&silent).as_deref(),
        Some("not said: the run gives no FLOPs")
    );
    silent.facts.fingerprint.extend([pair.clone()]);
    assert_eq!(why(&silent).as_deref(), Some("not known: a stage"));
    let mut told = run(&[(training::MODEL_FLOPS, 0.3 * PEAK)]);
    told.facts.fingerprint.extend([pair]);
    assert_eq!(why(&told), None, "it was told since");
}

#[test]
fn the_work_of_several_gpus_is_not_held_against_the_one_that_is_named() {
    let mut run = run(&[(training::MODEL_FLOPS, 0.2 * PEAK)]);
    for (gpus, is_known) in [("1", true), ("4", false)] {
        let pair = ("gpus_per_process".to_owned(), gpus.to_owned());
        run.facts.fingerprint.extend([pair]);
        let found = run.mfu(|_| Some(Card::whole(CARD)), &Specs::default());
        assert_eq!(found.is_ok(), is_known, "{gpus}: {found:?}");
    }
}

#[test]
fn how_flops_were_got_is_told_by_its_convention() {
    let mut run = run(&[]);
    assert_eq!(run.flops_by(), None);
    for (source, words) in [
        ("model_shape", "6N + 12·L·H·Q·T"),
        ("explicit", "the run gives"),
        ("measured", "counted"),
    ] {
        source.clone_into(&mut run.facts.flops_source);
        let told = run.flops_by().expect("it is said");
        assert!(told.contains(words), "{told}");
    }
}
