//! Advice round by round: what counts as taken, what that saved, and what does neither.

use super::sight::{JobNow, RunNow, moved};
use super::*;

const MINUTE: i64 = 60_000;
const USD: i64 = 1_000_000_000;

/// Midnight, and some days after the epoch.
const START: i64 = 20_000 * MILLIS_PER_DAY;

fn advice(kind: Kind) -> Advice {
    Advice {
        kind,
        cluster: "prod".to_owned(),
        origin: Origin::Live,
        about: "job:ml/train".to_owned(),
        payer: "science".to_owned(),
        what: "num_workers".to_owned(),
        today: "4".to_owned(),
        proposed: "8".to_owned(),
        worth: Some(60 * USD),
        before: Before {
            count: 8,
            day_cost: Some(240 * USD),
            run: "ml/train/u1/0".to_owned(),
            started_ms: START,
            ..Before::default()
        },
    }
}

/// An advice that was given every five minutes for so long.
fn told(kind: Kind, for_ms: i64) -> Record {
    let mut record = Record::new(1, advice(kind), START);
    for at in (0..=for_ms).step_by(5 * MINUTE as usize) {
        record.look(Sight::Given(Box::new(advice(kind))), START + at);
    }
    record
}

/// Looks at it every five minutes from then on, for so long. When the last look was.
fn look(record: &mut Record, from: i64, for_ms: i64, sight: &Sight) -> i64 {
    let mut at = from;
    while at < from + for_ms {
        at += 5 * MINUTE;
        record.look(sight.clone(), at);
    }
    at
}

fn less(usd: i64) -> Sight {
    Sight::Changed {
        less_a_day: Ok(usd * USD),
    }
}

#[test]
fn a_change_that_holds_is_taken_and_saves_what_is_measured_by_day() {
    let mut record = told(Kind::RightSize, 2 * HOUR_MS);
    assert!(record.counts());
    let from = START + 2 * HOUR_MS;
    let half = look(&mut record, from, 12 * HOUR_MS, &less(120));
    assert_eq!(record.standing, Standing::Changing);
    let all = START..START + 30 * MILLIS_PER_DAY;
    assert_eq!(record.saved_in(&all), None, "not before it is taken");
    look(&mut record, half, 14 * HOUR_MS, &less(120));
    assert_eq!(record.standing, Standing::Taken);
    // Of the first look nobody knows for how long it was so: 26 hours less five minutes, at five dollars an hour.
    let minutes = (26 * 60 - 5) * i128::from(5 * USD / 60);
    let saved = record.saved_in(&all).expect("it was taken");
    assert!((saved - minutes).abs() < 1_000, "{saved} {minutes}");
    let days: Vec<i64> = record.saved.keys().map(|it| it - 20_000).collect();
    assert_eq!(days, [0, 1]);
    let first = record.saved_in(&(START..START + MILLIS_PER_DAY));
    assert!(first.is_some_and(|it| it < saved), "each day by itself");
    // It takes eight again: what it saved stays, and no more is added.
    record.look(Sight::Unchanged, START + 2 * MILLIS_PER_DAY);
    assert_eq!(record.standing, Standing::TakenAndOver);
    record.look(less(120), START + 2 * MILLIS_PER_DAY + HOUR_MS);
    assert_eq!(record.saved_in(&all), Some(saved));
}

#[test]
fn what_is_given_for_less_than_an_hour_or_changes_back_within_a_day_is_not_taken() {
    let mut short = told(Kind::Idle, 50 * MINUTE);
    look(&mut short, START + 50 * MINUTE, 48 * HOUR_MS, &less(1));
    assert_eq!((short.standing, short.counts()), (Standing::Ended, false));
    let mut pause = told(Kind::Idle, 3 * HOUR_MS);
    look(&mut pause, START + 3 * HOUR_MS, 8 * HOUR_MS, &less(240));
    assert!(!pause.saved.is_empty());
    let again = Sight::Given(Box::new(advice(Kind::Idle)));
    pause.look(again, START + 12 * HOUR_MS);
    assert_eq!((pause.standing, pause.saved.len()), (Standing::Told, 0));
    assert_eq!(pause.changed_ms, None);
    // A run with another knob is no pause.
    let mut knob = told(Kind::Knob, 3 * HOUR_MS);
    look(&mut knob, START + 3 * HOUR_MS, 2 * HOUR_MS, &less(1));
    assert_eq!(knob.standing, Standing::Taken);
}

#[test]
fn what_ends_by_itself_is_not_taken_and_what_is_given_back_whole_saves_nothing_that_was_measured() {
    let over = |sight: Sight| {
        let mut record = told(Kind::Idle, 3 * HOUR_MS);
        record.look(sight, START + 4 * HOUR_MS);
        record
    };
    assert_eq!(over(Sight::Over).standing, Standing::Ended);
    let back = over(Sight::GivenBack);
    assert!(back.standing.is_taken());
    assert_eq!(back.saved_in(&(START..START + MILLIS_PER_DAY)), None);
    assert!(back.unmeasured.contains("nothing is left to measure"));
    // A job that finishes while its change has not held.
    let mut record = told(Kind::Idle, 3 * HOUR_MS);
    look(&mut record, START + 3 * HOUR_MS, HOUR_MS, &less(240));
    record.look(Sight::Over, START + 5 * HOUR_MS);
    assert_eq!((record.standing, record.saved.len()), (Standing::Ended, 0));
}

#[test]
fn nobody_looks_for_a_day_and_an_hour_of_it_is_counted_at_most() {
    let mut record = told(Kind::Knob, 2 * HOUR_MS);
    let at = look(&mut record, START + 2 * HOUR_MS, 2 * HOUR_MS, &less(24));
    let all = START..START + 30 * MILLIS_PER_DAY;
    let before = record.saved_in(&all).expect("taken");
    record.look(less(24), at + MILLIS_PER_DAY);
    let more = record.saved_in(&all).expect("taken") - before;
    assert_eq!(more, i128::from(USD));
    record.look(Sight::NotSeen, at + 2 * MILLIS_PER_DAY);
    assert_eq!(record.standing, Standing::Taken, "it may come back");
    record.look(Sight::NotSeen, at + 2 * MILLIS_PER_DAY + LAPSED_MS);
    assert_eq!(record.standing, Standing::TakenAndOver);
    let mut untaken = told(Kind::Knob, 2 * HOUR_MS);
    untaken.look(Sight::NotSeen, START + LAPSED_MS);
    assert_eq!(untaken.standing, Standing::Told);
    untaken.look(Sight::NotSeen, START + LAPSED_MS + 3 * HOUR_MS);
    assert_eq!(untaken.standing, Standing::Ended);
}

#[test]
fn savings_end_after_ninety_days() {
    let mut record = told(Kind::RightSize, 2 * HOUR_MS);
    let mut at = START + 2 * HOUR_MS;
    for _ in 0..100 * 24 {
        at += HOUR_MS;
        record.look(less(24), at);
    }
    assert_eq!(record.standing, Standing::TakenAndOver);
    assert!(record.saved.len() <= 91, "{}", record.saved.len());
}

#[test]
fn a_number_moves_the_way_that_was_proposed_and_a_word_to_another() {
    for (today, proposed, now, is_moved) in [
        ("4", "8", "6", true),
        ("4", "8", "16", true),
        ("4", "8", "2", false),
        ("4", "8", "4", false),
        ("4", "8", "", false),
        ("", "8", "6", false),
        ("4", "1.5 times as many, with prefetch_factor", "6", true),
        ("4", "1.5 times as many, with prefetch_factor", "3", false),
        ("off", "on, with fused optimizer", "on", true),
        (
            "float32",
            "bf16, or TF32 where fp32 has to stay",
            "bfloat16",
            true,
        ),
    ] {
        assert_eq!(moved(today, proposed, now), is_moved, "{today} {now}");
    }
}

/// A later run of the job with such a knob.
fn run(knob: Option<&str>) -> RunNow {
    RunNow {
        run: "ml/train/u2/0".to_owned(),
        started_ms: START + HOUR_MS,
        knob: knob.map(str::to_owned),
        before: Before {
            count: 8,
            day_cost: Some(240 * USD),
            ..Before::default()
        },
        ..RunNow::default()
    }
}

#[test]
fn a_knob_is_looked_for_in_the_last_run_that_began_later() {
    let record = told(Kind::Knob, 2 * HOUR_MS);
    let same = RunNow {
        run: "ml/train/u1/0".to_owned(),
        started_ms: START,
        knob: Some("8".to_owned()),
        ..RunNow::default()
    };
    assert_eq!(record.sight_of_runs(&[], &[]), Sight::NotSeen);
    assert_eq!(
        record.sight_of_runs(std::slice::from_ref(&same), &[]),
        Sight::Unchanged,
        "no later run"
    );
    let changed = |it: RunNow| {
        matches!(
            record.sight_of_runs(&[same.clone(), it], &[]),
            Sight::Changed { .. }
        )
    };
    assert!(changed(run(Some("8"))));
    assert!(!changed(run(Some("2"))), "the other way");
    assert!(!changed(run(None)), "it is not told");
    let older = RunNow {
        started_ms: START - HOUR_MS,
        ..run(Some("8"))
    };
    assert!(!changed(older));
}

#[test]
fn a_run_saves_what_its_tokens_cost_less_and_its_steps_only_where_they_are_the_same_work() {
    let mut record = told(Kind::Knob, 2 * HOUR_MS);
    let less_a_day = |record: &Record, now: &RunNow| match record
        .sight_of_runs(std::slice::from_ref(now), &["num_workers", "compile"])
    {
        Sight::Changed { less_a_day } => less_a_day,
        other => panic!("{other:?}"),
    };
    let mut now = run(Some("8"));
    assert!(less_a_day(&record, &now).is_err(), "nothing is measured");
    record.advice.before.million_steps = Some(9_000 * USD);
    now.before.million_steps = Some(6_000 * USD);
    now.steps_a_day = Some(10_000);
    assert_eq!(less_a_day(&record, &now), Ok(30 * USD));
    record.advice.before.million_tokens = Some(2 * USD);
    now.before.million_tokens = Some(3 * USD);
    now.tokens_a_day = Some(5_000_000);
    assert_eq!(less_a_day(&record, &now), Ok(-5 * USD), "it became dearer");
    // What else was turned was advised, too: it is of both. What was not advised is not the advice's.
    now.before.knobs = BTreeMap::from([("compile".to_owned(), "on".to_owned())]);
    assert_eq!(less_a_day(&record, &now), Ok(-5 * USD));
    now.before.knobs = BTreeMap::from([("autocast".to_owned(), "bf16".to_owned())]);
    assert!(less_a_day(&record, &now).is_err_and(|it| it.contains("differ")));
    now.before.knobs.clear();
    now.before.settings = "batch=2".to_owned();
    assert!(less_a_day(&record, &now).is_err_and(|it| it.contains("differ")));
    now.before.settings.clear();
    now.before.day_cost = Some(200 * USD);
    assert!(less_a_day(&record, &now).is_err_and(|it| it.contains("price")));
}

#[test]
fn fewer_gpus_are_taken_where_one_is_seen_to_be_given_back() {
    let record = told(Kind::RightSize, 2 * HOUR_MS);
    let job = |gpus: u32, unseen: u32| {
        Some(JobNow {
            gpus,
            day_cost: Some(i64::from(gpus) * 30 * USD),
            unseen,
            ..JobNow::default()
        })
    };
    assert_eq!(
        record.sight_of_job(job(8, 0), false, false),
        Sight::Unchanged
    );
    assert_eq!(record.sight_of_job(job(4, 0), true, false), less(120));
    assert_eq!(
        record.sight_of_job(job(4, 0), false, false),
        Sight::Unchanged,
        "they vanished"
    );
    assert_eq!(record.sight_of_job(job(4, 1), true, false), Sight::NotSeen);
    assert_eq!(
        record.sight_of_job(None, true, false),
        Sight::NotSeen,
        "it may come back"
    );
}

#[test]
fn advice_that_is_given_again_of_a_job_that_is_smaller_already_is_measured_by_what_it_was() {
    let mut record = told(Kind::RightSize, 2 * HOUR_MS);
    let day_cost = record.advice.before.day_cost.expect("it has a price");
    let mut again = |count, day_cost, hours: i64| {
        let mut advice = advice(Kind::RightSize);
        (advice.before.count, advice.before.day_cost) = (count, Some(day_cost));
        record.look(Sight::Given(Box::new(advice)), START + hours * HOUR_MS);
        record.advice.before.day_cost
    };
    assert_eq!(again(4, day_cost / 2, 3), Some(day_cost));
    // One GPU of many, or another price of as many, is how it stands now.
    let nearly = day_cost - day_cost / 20;
    assert_eq!(again(7, nearly, 4), Some(nearly));
    assert_eq!(again(8, 2 * day_cost, 5), Some(2 * day_cost));
    assert_eq!(again(8, day_cost / 2, 6), Some(day_cost / 2));
}

#[test]
fn idle_gpus_are_given_back_used_again_or_done_by_themselves() {
    let record = told(Kind::Idle, 2 * HOUR_MS);
    let job = |idle: u32| {
        Some(JobNow {
            gpus: 8,
            idle_micros: u64::from(idle) * 1_000_000,
            idle_cost: Some(i64::from(idle) * 30 * USD),
            ..JobNow::default()
        })
    };
    assert_eq!(record.sight_of_job(job(8), false, false), Sight::Unchanged);
    assert_eq!(record.sight_of_job(job(1), false, false), less(210));
    assert_eq!(record.sight_of_job(None, true, false), Sight::GivenBack);
    assert_eq!(
        record.sight_of_job(None, false, false),
        Sight::NotSeen,
        "nobody sees its GPUs"
    );
    assert_eq!(record.sight_of_job(None, true, true), Sight::Over);
}

#[test]
fn a_card_that_is_cut_anew_is_not_given_back_and_a_share_of_it_is() {
    let mut record = told(Kind::Idle, 2 * HOUR_MS);
    // Seven slices of a card: two of them together are as many parts of it as one twice as large.
    (record.advice.before.count, record.advice.before.milli_gpus) = (0, 1_000);
    let sight = |idle_micros: u64| {
        let job = JobNow {
            gpus: 1,
            idle_micros,
            idle_cost: Some(0),
            ..JobNow::default()
        };
        record.sight_of_job(Some(job), false, false)
    };
    assert_eq!(sight(7 * 142_857), Sight::Unchanged, "all of it");
    assert_eq!(sight(2 * 285_714 + 428_571), Sight::Unchanged);
    assert!(matches!(sight(6 * 142_857), Sight::Changed { .. }));
}

#[test]
fn nodes_that_are_off_at_their_time_save_what_each_costs() {
    let mut record = told(Kind::Shutdown, 2 * HOUR_MS);
    assert_eq!(
        record.sight_of_nodes(0, 0),
        Sight::Unchanged,
        "none was proposed"
    );
    record.advice.before.nodes = 2;
    assert_eq!(record.sight_of_nodes(0, 0), less(480), "two were proposed");
    assert_eq!(
        record.sight_of_nodes(5, 2),
        less(240),
        "two are of another window"
    );
    assert_eq!(record.sight_of_nodes(6, 2), Sight::Unchanged);
    assert_eq!(record.sight_of_nodes(8, 0), Sight::Unchanged);
    assert_eq!(record.sight_of_nodes(6, 0), less(480));
    record.advice.before.day_cost = None;
    assert_eq!(
        record.sight_of_nodes(6, 0),
        Sight::Changed {
            less_a_day: Err("the nodes have no price")
        }
    );
}

#[test]
fn sums_are_of_what_counts_in_their_time() {
    let mut taken = told(Kind::Knob, 2 * HOUR_MS);
    look(&mut taken, START + 2 * HOUR_MS, 2 * HOUR_MS, &less(24));
    let all = [
        taken,
        told(Kind::Idle, 3 * HOUR_MS),
        told(Kind::Idle, 10 * MINUTE),
    ];
    let day = START..START + MILLIS_PER_DAY;
    let made = sums(&all, &day, |it| it.advice.kind);
    let idle = made[&Kind::Idle];
    assert_eq!(
        (idle.given, idle.taken, idle.worth),
        (1, 0, i128::from(60 * USD))
    );
    let knob = made[&Kind::Knob];
    assert_eq!((knob.given, knob.taken, knob.unmeasured), (1, 1, 0));
    assert!(knob.saved > 0);
    let next = day.end..day.end + MILLIS_PER_DAY;
    let made = sums(&all, &next, |it| it.advice.kind);
    assert_eq!(made[&Kind::Knob], Sum::default());
}

#[test]
fn what_has_no_price_or_was_not_measured_is_not_nothing() {
    let day = START..START + MILLIS_PER_DAY;
    let mut record = told(Kind::Knob, 2 * HOUR_MS);
    record.advice.worth = None;
    let unknown = Sight::Changed {
        less_a_day: Err("nobody knows"),
    };
    look(&mut record, START + 2 * HOUR_MS, 30 * HOUR_MS, &unknown);
    let sum = |all: &[Record], time: &Range<i64>| sums(all, time, |_| ())[&()];
    let all = [record.clone()];
    let of = sum(&all, &day);
    assert_eq!((of.unpriced, of.worth(), of.saved()), (1, None, None));
    let next = day.end..day.end + MILLIS_PER_DAY;
    assert_eq!(sum(&all, &next).saved(), None, "nor on the day after");
    // What nobody knew the gain of is measured when it was taken, as any other.
    let mut unpinned = told(Kind::Knob, 2 * HOUR_MS);
    unpinned.advice.worth = None;
    look(&mut unpinned, START + 2 * HOUR_MS, 2 * HOUR_MS, &less(24));
    let of = sum(&[unpinned], &day);
    assert_eq!((of.taken, of.unmeasured, of.worth()), (1, 0, None));
    assert!(of.saved() > Some(0), "{of:?}");
    let of = sum(&[told(Kind::Knob, 2 * HOUR_MS), record], &day);
    assert_eq!((of.unpriced, of.worth()), (1, Some(i128::from(60 * USD))));
    assert_eq!(
        Sum::default().worth().zip(Sum::default().saved()),
        Some((0, 0))
    );
}

#[test]
fn a_record_comes_back_from_json_as_it_was() {
    let mut record = told(Kind::RightSize, 2 * HOUR_MS);
    look(&mut record, START + 2 * HOUR_MS, 25 * HOUR_MS, &less(-3));
    let text = serde_json::to_string(&record).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Record>(&text).expect("a record"),
        record
    );
}
