//! Runs that stand, that are slow or quiet, and that nobody hears from; and real step times.

use std::io::Read;

use super::*;

const SECOND: i64 = 1_000_000_000;

/// A run that is heard from and says nothing else.
pub(crate) const NOTHING: Tick<'static> = Tick {
    now: Timestamp(0),
    step: None,
    up_since: None,
    is_heard: true,
    is_quiet: false,
    activity: None,
    positions: &[],
};

/// A run of 20 steps, one every `gap_s` seconds; the last ended at 20 gaps.
fn begun(gap_s: i64) -> Watch {
    let mut watch = Watch::new();
    for step in 0..=20 {
        let now = Timestamp(step * gap_s * SECOND);
        let step = Some(step.unsigned_abs());
        assert_eq!(
            watch.observe(&Tick {
                now,
                step,
                ..NOTHING
            }),
            Verdict::Moving
        );
    }
    watch
}

fn stood(watch: &mut Watch, at_s: i64, activity: Option<f64>, positions: &[Position]) -> Verdict {
    let now = Timestamp(at_s * SECOND);
    watch.observe(&Tick {
        now,
        step: Some(20),
        activity,
        positions,
        ..NOTHING
    })
}

fn position(communicator: u64, rank: u32, sequence: u64, in_since_s: Option<i64>) -> Position {
    let in_since = in_since_s.map(|at| Timestamp(at * SECOND));
    Position {
        communicator,
        rank,
        sequence,
        in_since,
    }
}

fn suspects(positions: &[Position]) -> (Evidence, Vec<u32>) {
    match stood(&mut begun(1), 200, Some(0.0), positions) {
        Verdict::Hung(hang) => (hang.evidence, hang.suspects),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_that_computes_nothing_hangs_after_two_minutes_and_a_slow_one_after_ten_gaps() {
    let mut watch = begun(1);
    assert_eq!(stood(&mut watch, 139, Some(0.0), &[]), Verdict::Moving);
    let Verdict::Hung(hang) = stood(&mut watch, 140, Some(0.01), &[]) else {
        panic!("120 s have passed");
    };
    assert_eq!(hang.since, Timestamp(20 * SECOND));
    assert_eq!(hang.evidence, Evidence::NothingComputes);
    let mut slow = begun(60);
    assert_eq!(stood(&mut slow, 1_799, Some(0.0), &[]), Verdict::Moving);
    assert!(matches!(
        stood(&mut slow, 1_800, Some(0.0), &[]),
        Verdict::Hung(_)
    ));
}

#[test]
fn a_long_step_that_computes_and_silence_alone_are_no_hang() {
    assert_eq!(
        stood(&mut begun(1), 500, Some(0.4), &[]),
        Verdict::NoEvidence
    );
    assert_eq!(stood(&mut begun(1), 500, None, &[]), Verdict::NoEvidence);
    let unheard = Tick {
        now: Timestamp(500 * SECOND),
        activity: Some(0.0),
        is_heard: false,
        ..NOTHING
    };
    assert_eq!(begun(1).observe(&unheard), Verdict::Unheard);
    let before_the_first = Tick {
        now: Timestamp(500 * SECOND),
        activity: Some(0.0),
        ..NOTHING
    };
    assert_eq!(Watch::new().observe(&before_the_first), Verdict::Quiet);
}

/// What is said at this second of a run that came up at second 10 and has made no step.
fn unbegun(at_s: i64, activity: Option<f64>) -> Tick<'static> {
    Tick {
        now: Timestamp(at_s * SECOND),
        up_since: Some(Timestamp(10 * SECOND)),
        activity,
        ..NOTHING
    }
}

#[test]
fn a_run_that_makes_no_first_step_and_computes_nothing_stands_after_half_an_hour() {
    let mut watch = Watch::new();
    let of = |watch: &mut Watch, at_s| watch.observe(&unbegun(at_s, Some(0.0)));
    for at_s in (10..1_810).step_by(10) {
        assert_eq!(of(&mut watch, at_s), Verdict::Quiet, "{at_s}");
        assert!(!watch.may_stand(Timestamp(at_s * SECOND), &Thresholds::default()));
    }
    let Verdict::Hung(hang) = of(&mut watch, 1_810) else {
        panic!("half an hour has passed");
    };
    assert!(!hang.has_computed);
    assert!(hang.is_first && watch.may_stand(Timestamp(1_810 * SECOND), &Thresholds::default()));
    assert_eq!(
        (hang.since, hang.limit_ns),
        (Timestamp(10 * SECOND), FIRST_STEP_NS)
    );
    let begins = Tick {
        step: Some(0),
        ..unbegun(1_820, Some(0.0))
    };
    assert_eq!(watch.observe(&begins), Verdict::Moving);
    assert_eq!(watch.stands_for(Timestamp(1_830 * SECOND)), 10 * SECOND);
    let stands = Tick {
        step: Some(0),
        ..unbegun(1_950, Some(0.0))
    };
    let Verdict::Hung(later) = watch.observe(&stands) else {
        panic!("after its first step two minutes are long");
    };
    assert!(!later.is_first);
}

#[test]
fn of_a_run_without_a_step_that_computed_before_it_stood_that_is_known() {
    let mut watch = Watch::new();
    for at_s in (10..3_600).step_by(10) {
        watch.observe(&unbegun(at_s, Some(0.5)));
    }
    for at_s in (3_600..5_390).step_by(10) {
        let verdict = watch.observe(&unbegun(at_s, Some(0.0)));
        assert!(!matches!(verdict, Verdict::Hung(_)), "{at_s}");
    }
    let Verdict::Hung(hang) = watch.observe(&unbegun(5_390, Some(0.0))) else {
        panic!("half an hour has passed since it computed");
    };
    assert!(hang.is_first && hang.has_computed);
    assert_eq!(hang.since, Timestamp(3_590 * SECOND));
}

#[test]
fn before_its_first_step_a_run_that_computes_restores_or_is_not_known_is_let_alone() {
    let judged = |change: fn(&mut Tick<'_>, i64)| {
        let mut watch = Watch::new();
        let ticks = (10..7_200).step_by(10).map(|at_s| {
            let mut tick = unbegun(at_s, Some(0.0));
            change(&mut tick, at_s);
            watch.observe(&tick)
        });
        let mut all: Vec<Verdict> = ticks.collect();
        all.dedup();
        all
    };
    let computes = judged(|tick, at_s| {
        // A minute of each half hour is enough: it compiles, warms up, measures.
        tick.activity = Some(if at_s % 1_800 < 60 { 0.3 } else { 0.0 });
    });
    assert!(
        !computes.iter().any(|it| matches!(it, Verdict::Hung(_))),
        "{computes:?}"
    );
    assert_eq!(judged(|tick, _| tick.is_quiet = true), [Verdict::Quiet]);
    assert_eq!(judged(|tick, _| tick.up_since = None), [Verdict::Quiet]);
    let unknown = judged(|tick, _| tick.activity = None);
    assert_eq!(unknown, [Verdict::Quiet, Verdict::NoEvidence]);
    let unheard = judged(|tick, _| tick.is_heard = false);
    assert_eq!(unheard, [Verdict::Unheard]);
}

#[test]
fn a_collective_that_stands_before_the_first_step_names_who_never_came() {
    let mut watch = Watch::new();
    let positions = [
        position(1, 0, 1, Some(60)),
        position(1, 1, 1, Some(70)),
        position(1, 2, 0, None),
    ];
    for at_s in (10..1_860).step_by(10) {
        let tick = Tick {
            positions: &positions,
            ..unbegun(at_s, None)
        };
        assert!(!matches!(watch.observe(&tick), Verdict::Hung(_)), "{at_s}");
    }
    let tick = Tick {
        positions: &positions,
        ..unbegun(1_860, None)
    };
    let Verdict::Hung(hang) = watch.observe(&tick) else {
        panic!("it stands for half an hour");
    };
    assert_eq!((hang.is_first, hang.suspects), (true, vec![2]));
}

#[test]
fn a_run_that_is_met_late_is_not_known_to_have_stood_before() {
    let mut watch = Watch::new();
    let late = watch.observe(&unbegun(9_000, Some(0.0)));
    assert_eq!(late, Verdict::NoEvidence, "neither true nor over");
    let later = watch.observe(&unbegun(10_800, Some(0.0)));
    assert!(matches!(later, Verdict::Hung(_)), "{later:?}");
}

#[test]
fn evaluation_is_quiet_and_the_clock_begins_anew_after_it() {
    let mut watch = begun(1);
    for at in 21..=600 {
        let tick = Tick {
            now: Timestamp(at * SECOND),
            is_quiet: true,
            activity: Some(0.0),
            ..NOTHING
        };
        assert_eq!(watch.observe(&tick), Verdict::Quiet);
    }
    assert_eq!(stood(&mut watch, 719, Some(0.0), &[]), Verdict::Moving);
    assert!(matches!(
        stood(&mut watch, 720, Some(0.0), &[]),
        Verdict::Hung(_)
    ));
}

#[test]
fn of_several_ranks_behind_the_one_that_is_least_far_comes_first() {
    let behind = [
        position(1, 0, 9, Some(20)),
        position(1, 1, 8, None),
        position(1, 2, 8, None),
        position(1, 3, 5, None),
    ];
    assert_eq!(suspects(&behind).1, [3, 1, 2]);
}

#[test]
fn of_several_that_all_are_in_the_first_is_named() {
    let all_in = [1, 2, 3].map(|it| [position(it, 0, 7, Some(20)), position(it, 1, 7, Some(20))]);
    let Verdict::Hung(hang) = stood(&mut begun(1), 200, None, &all_in.concat()) else {
        panic!("it stands");
    };
    assert_eq!((hang.communicator, hang.suspects), (Some(1), vec![]));
    assert_eq!(hang.evidence, Evidence::CollectiveStands);
}

#[test]
fn the_rank_behind_is_the_suspect_and_one_that_waits_itself_is_not() {
    let never_entered = [
        position(1, 0, 7, Some(20)),
        position(1, 1, 7, Some(20)),
        position(1, 2, 6, None),
    ];
    assert_eq!(
        suspects(&never_entered),
        (Evidence::SequencesDiffer, vec![2])
    );
    // Rank 2 is behind in communicator 1 because it waits in 2 for rank 5, which is nowhere.
    let mut inherited = never_entered.to_vec();
    inherited.push(position(2, 2, 3, Some(20)));
    inherited.push(position(2, 5, 2, None));
    assert_eq!(suspects(&inherited), (Evidence::SequencesDiffer, vec![5]));
}

#[test]
fn all_in_the_same_collective_is_nobody_and_short_ones_are_no_evidence() {
    let all = [position(1, 0, 7, Some(20)), position(1, 1, 7, Some(21))];
    assert_eq!(suspects(&all), (Evidence::CollectiveStands, vec![]));
    let fresh = [position(1, 0, 7, Some(199)), position(1, 1, 6, None)];
    assert_eq!(
        stood(&mut begun(1), 200, Some(0.4), &fresh),
        Verdict::NoEvidence
    );
}

#[test]
fn at_most_8_suspects_are_named() {
    let many: Vec<Position> = (0..20)
        .map(|rank| position(1, rank, u64::from(rank == 0), (rank == 0).then_some(20)))
        .collect();
    assert_eq!(suspects(&many).1.len(), MAX_SUSPECTS);
}

#[test]
fn a_step_ends_it_and_a_restart_is_no_gap() {
    let mut watch = begun(1);
    assert!(matches!(
        stood(&mut watch, 400, Some(0.0), &[]),
        Verdict::Hung(_)
    ));
    let restarted = Tick {
        now: Timestamp(10_000 * SECOND),
        step: Some(3),
        ..NOTHING
    };
    assert_eq!(watch.observe(&restarted), Verdict::Moving);
    assert_eq!(watch.limit_ns(&Thresholds::default()), LEAST_NS);
}

#[test]
fn the_state_is_at_most_64_bytes() {
    assert!(size_of::<Watch>() <= 64, "{}", size_of::<Watch>());
}

#[test]
fn a_run_that_stood_before_it_was_watched_stands_until_it_steps_or_computes() {
    let since = Timestamp(1_000 * SECOND);
    let by = Thresholds {
        after_s: 600.0,
        ..Thresholds::default()
    };
    let at = |seconds: i64, step: Option<u64>| Tick {
        now: Timestamp((1_000 + seconds) * SECOND),
        step,
        activity: Some(0.0),
        ..NOTHING
    };
    let mut fresh = Watch::new();
    assert_eq!(fresh.observe_by(&at(700, Some(7)), &by), Verdict::Moving);
    let mut watch = Watch::stood_since(since, false);
    assert!(watch.may_stand(Timestamp(1_700 * SECOND), &by));
    for seconds in [700, 710] {
        match watch.observe_by(&at(seconds, Some(7)), &by) {
            Verdict::Hung(hang) => assert_eq!((hang.since, hang.is_first), (since, false)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(watch.observe_by(&at(720, Some(8)), &by), Verdict::Moving);
    // Of one of which no step is seen yet nothing is known, and one that had made none computes by now.
    let mut watch = Watch::stood_since(since, false);
    assert_eq!(watch.observe_by(&at(700, None), &by), Verdict::Unheard);
    let computes = Tick {
        up_since: Some(since),
        activity: Some(0.5),
        ..at(710, None)
    };
    assert_eq!(watch.observe_by(&computes, &by), Verdict::Quiet);
    assert_eq!(watch.observe_by(&at(720, Some(7)), &by), Verdict::Moving);
}

#[test]
fn that_a_run_computed_without_a_step_before_it_was_watched_is_told_by_who_watched_it_then() {
    for has_computed in [true, false] {
        let mut watch = Watch::stood_since(Timestamp(1_000 * SECOND), has_computed);
        let Verdict::Hung(hang) = watch.observe(&unbegun(1_700, Some(0.0))) else {
            panic!("it stood before");
        };
        assert_eq!((hang.is_first, hang.has_computed), (true, has_computed));
    }
}

#[test]
fn after_its_last_step_the_clock_of_a_run_is_that_of_its_collectives() {
    let mut watch = begun(1);
    let done = Tick {
        now: Timestamp(600 * SECOND),
        step: Some(20),
        is_quiet: true,
        ..NOTHING
    };
    assert_eq!(watch.observe(&done), Verdict::Quiet);
    watch.count_from(Timestamp(500 * SECOND));
    let all = [position(1, 0, 7, Some(480)), position(1, 1, 7, Some(500))];
    let Verdict::Hung(hang) = stood(&mut watch, 620, None, &all) else {
        panic!("they are in it for two minutes");
    };
    assert_eq!(hang.since, Timestamp(500 * SECOND));
    assert_eq!(hang.evidence, Evidence::CollectiveStands);
}

#[test]
fn real_runs_never_hang_even_if_nothing_is_known_to_compute_and_all_do_when_they_stop() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/data/real/mlperf_step_times.jsonl.gz"
    );
    let Ok(packed) = std::fs::read(path) else {
        eprintln!("NOT RUN: the real step times are not there");
        return;
    };
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
    unpacked.read_to_string(&mut text).expect("it is text");
    for line in text.lines() {
        let run: serde_json::Value = serde_json::from_str(line).expect("a JSON object");
        let gaps = run["dt_ms"].as_array().expect("gaps between log lines");
        let mut watch = Watch::new();
        let mut at_ms = 0;
        for (step, gap) in gaps
            .iter()
            .filter_map(serde_json::Value::as_i64)
            .enumerate()
        {
            for now_ms in (at_ms..at_ms + gap).step_by(10_000) {
                let step = Some(step as u64);
                let now = Timestamp(now_ms * 1_000_000);
                let told = watch.observe(&Tick {
                    now,
                    step,
                    activity: Some(0.0),
                    ..NOTHING
                });
                assert_eq!(told, Verdict::Moving, "{} at step {step:?}", run["run"]);
            }
            at_ms += gap;
        }
        let late = Timestamp(at_ms * 1_000_000 + watch.limit_ns(&Thresholds::default()));
        let told = watch.observe(&Tick {
            now: late,
            activity: Some(0.0),
            ..NOTHING
        });
        assert!(matches!(told, Verdict::Hung(_)), "{}: {told:?}", run["run"]);
    }
}

#[test]
fn a_run_stands_after_the_time_and_the_gaps_that_are_set() {
    let stands = |gap_s: i64, after_s: i64, by: Thresholds| {
        let tick = Tick {
            now: Timestamp((20 * gap_s + after_s) * SECOND),
            step: Some(20),
            activity: Some(0.0),
            ..NOTHING
        };
        let verdict = begun(gap_s).observe_by(&tick, &by);
        matches!(verdict, Verdict::Hung(_))
    };
    let usual = Thresholds::default();
    let after = |after_s: f64| Thresholds { after_s, ..usual };
    let gaps = |gaps: f64| Thresholds { gaps, ..usual };
    let first = Thresholds {
        first_step_s: 600.0,
        ..usual
    };
    let mut watch = Watch::new();
    watch.observe_by(&unbegun(10, Some(0.0)), &first);
    let told = watch.observe_by(&unbegun(610, Some(0.0)), &first);
    assert!(matches!(told, Verdict::Hung(_)), "{told:?}");
    assert!(!stands(1, 50, usual) && stands(1, 50, after(45.0)));
    assert!(stands(1, 130, usual) && !stands(1, 130, after(200.0)));
    assert!(stands(20, 210, usual) && !stands(20, 210, gaps(11.0)));
}
