//! The book of advice, look by look.

use std::collections::BTreeMap;

use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::taken::sight::JobNow;
use gpufleet_analysis::taken::{Before, Kind, LEAST_TOLD_MS, Sight};
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};

use super::given::Job;
use super::*;
use crate::money::now::PricedGpu;

/// A Monday, 2026-11-16 00:00 UTC.
const START: i64 = 20_773 * MILLIS_PER_DAY;

const HOUR: i64 = 3_600_000;

fn advice(kind: Kind, about: &str, worth: i64) -> Advice {
    Advice {
        kind,
        cluster: "prod".to_owned(),
        origin: Origin::Live,
        about: about.to_owned(),
        payer: "science".to_owned(),
        what: "GPUs".to_owned(),
        today: "2 of 2 idle".to_owned(),
        proposed: "given back, or used".to_owned(),
        worth: Some(worth),
        before: Before {
            count: 2,
            day_cost: Some(48_000_000),
            gpus: vec!["GPU-1".to_owned()],
            ..Before::default()
        },
    }
}

/// Jobs with their GPUs, of them idle ones, and who has `GPU-1`.
fn seen(jobs: &[(&str, u32)], holder: Option<&str>) -> Seen {
    let mut seen = Seen::default();
    for (name, idle) in jobs {
        let now = JobNow {
            gpus: 2,
            day_cost: Some(48),
            idle_micros: u64::from(*idle) * 1_000_000,
            idle_cost: Some(24 * i64::from(*idle)),
            unseen: 0,
        };
        let job = Job {
            now,
            ..Job::default()
        };
        let place = ("prod".to_owned(), (*name).to_owned());
        seen.jobs.insert(place, job);
    }
    let place = ("prod".to_owned(), "GPU-1".to_owned());
    seen.holders.extend(holder.map(|it| (place, it.to_owned())));
    seen
}

/// Looks every five minutes for so long.
fn looks(book: &mut Book, from: i64, for_ms: i64, seen: &Seen, given: &[Advice]) -> i64 {
    let mut at = from;
    while at <= from + for_ms {
        book.look(seen, given.to_vec(), at);
        at += 300_000;
    }
    at
}

/// Writes what is due, as the store would have it.
fn write(book: &mut Book, now_ms: i64) -> Vec<Record> {
    let due: Vec<Record> = book.due(now_ms).into_iter().cloned().collect();
    book.written(&due.iter().map(|it| it.number).collect(), now_ms);
    due
}

#[test]
fn advice_is_written_when_it_counts_and_what_became_of_it_once_and_then_forgotten() {
    let idle = [advice(Kind::Idle, "job:ml/note", 48)];
    let mut book = Book::restored((Vec::new(), 7));
    let held = seen(&[("job:ml/note", 2)], Some("job:ml/note"));
    let at = looks(&mut book, START, LEAST_TOLD_MS - 600_000, &held, &idle);
    assert_eq!(write(&mut book, at), [], "nobody need have read it");
    let at = looks(&mut book, at, 2 * HOUR, &held, &idle);
    let due = write(&mut book, at);
    assert_eq!(
        due.iter()
            .map(|it| (it.number, it.standing))
            .collect::<Vec<_>>(),
        [(7, Standing::Told)]
    );
    assert_eq!(write(&mut book, at), [], "nothing moved");
    // It is gone, and nobody has the GPU that it had.
    book.look(&seen(&[], Some("")), Vec::new(), at);
    let due = write(&mut book, at);
    assert!(due.len() == 1 && due[0].standing.is_taken(), "{due:?}");
    assert!(book.entries.is_empty());
    // It comes back and is idle again: that is another advice.
    book.look(&held, idle.to_vec(), at);
    assert_eq!(book.entries[0].record.number, 8);
}

#[test]
fn a_job_that_came_to_its_end_took_no_advice_nor_did_one_whose_agent_is_silent() {
    let idle = [advice(Kind::Idle, "job:ml/note", 48)];
    let held = seen(&[("job:ml/note", 2)], Some("job:ml/note"));
    let gone = |finished: bool, holder: Option<&str>| {
        let mut book = Book::default();
        let at = looks(&mut book, START, 2 * HOUR, &held, &idle);
        let mut now = seen(&[], holder);
        let place = ("prod".to_owned(), "ml/note".to_owned());
        now.finished.extend(finished.then_some((place, at)));
        book.look(&now, Vec::new(), at);
        book.entries
            .iter()
            .map(|it| it.record.standing)
            .collect::<Vec<_>>()
    };
    assert_eq!(gone(false, Some("")), [Standing::TakenAndOver]);
    assert_eq!(gone(false, Some("job:ml/other")), [Standing::TakenAndOver]);
    assert_eq!(
        gone(true, Some("")),
        [],
        "it ended by itself before it was written"
    );
    assert_eq!(gone(false, None), [Standing::Told], "nobody sees its GPUs");
}

#[test]
fn idle_gpus_that_are_lost_with_their_node_were_not_given_back() {
    let idle = [advice(Kind::Idle, "job:ml/note", 48)];
    let held = || seen(&[("job:ml/note", 2)], Some("job:ml/note"));
    let fewer = |holder: Option<&str>| seen(&[("job:ml/note", 1)], holder);
    let of_gone = |payer: Payer| {
        let resource = Resource::new(ResourceKind::Gpu, "GPU-2")
            .with(attribute::HOLDER, "pod:ml/note-0")
            .with(attribute::WORKLOAD, "job:ml/note");
        let gpu = PricedGpu {
            resource: resource.into(),
            part: (1, 1),
            second: None,
            last: None,
            payer,
            state: State::Unobserved,
        };
        let mut seen = fewer(Some("job:ml/note"));
        seen.lost("prod", &gpu);
        seen
    };
    for (now, standing) in [
        (fewer(Some("job:ml/note")), Standing::Changing),
        (fewer(Some("")), Standing::Changing),
        // Its node went lately, and so long ago that the GPU is forgotten.
        (of_gone(Payer::Unowned), Standing::Told),
        (fewer(None), Standing::Told),
        // It was given back before its node went.
        (of_gone(Payer::Nobody), Standing::Changing),
    ] {
        let mut book = Book::default();
        let at = looks(&mut book, START, 2 * HOUR, &held(), &idle);
        book.look(&now, Vec::new(), at);
        assert_eq!(book.entries[0].record.standing, standing, "{now:?}");
    }
}

#[test]
fn nodes_are_looked_at_in_their_window_alone() {
    let mut off = advice(Kind::Shutdown, "box-8g", 480);
    (off.before.from_hour, off.before.hours) = (22, 8);
    (off.before.count, off.before.nodes) = (6, 2);
    let with = |nodes: u32| Seen {
        nodes: Some((
            "prod".into(),
            BTreeMap::from([("box-8g".to_owned(), nodes)]),
        )),
        ..Seen::default()
    };
    let mut book = Book::default();
    let evening = START + 18 * HOUR;
    looks(
        &mut book,
        evening,
        3 * HOUR,
        &with(6),
        std::slice::from_ref(&off),
    );
    // Fewer outside of it say nothing; inside of it they are what was proposed, still advised or not.
    book.look(&with(4), Vec::new(), evening + 3 * HOUR + 300_000);
    assert_eq!(book.entries[0].record.standing, Standing::Told);
    let night = START + 22 * HOUR;
    let mut fewer = off.clone();
    fewer.before.count = 4;
    looks(
        &mut book,
        night,
        2 * HOUR,
        &with(4),
        std::slice::from_ref(&fewer),
    );
    assert_eq!(book.entries[0].record.standing, Standing::Changing);
    let saved = |book: &Book| book.entries[0].record.saved.values().sum::<i64>();
    // Two nodes, for two hours after the first look that found them off.
    let of_look = 2 * 48_000_000 * 300_000 / MILLIS_PER_DAY;
    assert_eq!(saved(&book), 24 * of_look);
    let again = std::slice::from_ref(&off);
    looks(&mut book, night + 9 * HOUR, HOUR, &with(6), again);
    assert_eq!(book.entries[0].record.standing, Standing::Changing);
    let week = night + 7 * MILLIS_PER_DAY;
    looks(&mut book, week, HOUR, &with(1), again);
    assert_eq!(book.entries[0].record.standing, Standing::Taken);
    let most = 49 * of_look;
    assert!(saved(&book) <= most, "five are off, and two were proposed");
}

#[test]
fn nodes_that_do_not_come_back_are_lost_and_no_advice_that_was_taken() {
    let mut off = advice(Kind::Shutdown, "box-8g", 480);
    (off.before.from_hour, off.before.hours) = (22, 8);
    (off.before.count, off.before.nodes) = (6, 2);
    let with = |nodes: u32| {
        let nodes = BTreeMap::from([("box-8g".to_owned(), nodes)]);
        Seen {
            nodes: Some(("prod".into(), nodes)),
            ..Seen::default()
        }
    };
    let mut book = Book::default();
    let given = std::slice::from_ref(&off);
    looks(&mut book, START + 18 * HOUR, 3 * HOUR, &with(6), given);
    looks(&mut book, START + 22 * HOUR, HOUR, &with(4), given);
    assert_eq!(book.entries[0].record.standing, Standing::Changing);
    book.look(&with(4), Vec::new(), START + 31 * HOUR);
    let record = &book.entries[0].record;
    assert_eq!((record.standing, record.saved.len()), (Standing::Told, 0));
    // One window in another: each node is of one of them.
    let mut inner = off.clone();
    inner.what = "an hour of it".to_owned();
    (inner.before.hours, inner.before.nodes) = (1, 1);
    let records = [
        Record::new(1, off.clone(), START),
        Record::new(2, inner, START),
    ];
    let all: Vec<&Record> = records.iter().collect();
    let around = around::Around::of_all(&all, START + 22 * HOUR);
    let nodes: Vec<u32> = around.iter().map(|it| it.off).collect();
    assert_eq!(nodes, [0, 2]);
}

#[test]
fn what_was_saved_of_a_job_is_counted_once() {
    let taken = |number: i64, kind: Kind, what: &str| {
        let mut advice = advice(kind, "job:ml/train", number);
        advice.what = what.to_owned();
        Record {
            standing: Standing::Taken,
            ..Record::new(number, advice, START)
        }
    };
    let records = [
        taken(1, Kind::Knob, "compile"),
        taken(2, Kind::Knob, "autocast"),
        taken(3, Kind::Idle, "GPUs"),
        taken(4, Kind::RightSize, "GPUs"),
    ];
    let all: Vec<&Record> = records.iter().collect();
    let changed = Sight::Changed { less_a_day: Ok(24) };
    let mut sights = vec![changed; 4];
    around::once(&all, &mut sights);
    let is_counted = |it: &Sight| matches!(it, Sight::Changed { less_a_day: Ok(_) });
    let counted: Vec<bool> = sights.iter().map(is_counted).collect();
    assert_eq!(counted, [false, true, false, true]);
    // Of advice that is given twice the dearer is followed.
    let twice = vec![
        advice(Kind::RightSize, "job:ml/a", 1),
        advice(Kind::RightSize, "job:ml/a", 2),
    ];
    let one = around::distinct(twice);
    assert_eq!((one.len(), one[0].worth), (1, Some(2)));
}

#[test]
fn in_a_day_a_hundred_are_taken_up_the_dearest_first() {
    let given: Vec<Advice> = (0..300)
        .map(|it| advice(Kind::Idle, &format!("job:ml/{it}"), it))
        .collect();
    let mut book = Book::default();
    let nothing = Seen::default();
    book.look(&nothing, given.clone(), START);
    assert_eq!(book.entries.len(), MAX_A_DAY);
    assert_eq!(book.entries[0].record.advice.worth, Some(299));
    book.look(&nothing, given.clone(), START + HOUR);
    assert_eq!(book.entries.len(), MAX_A_DAY);
    book.look(&nothing, given, START + MILLIS_PER_DAY);
    assert_eq!(book.entries.len(), 2 * MAX_A_DAY);
}

#[test]
fn idle_shares_are_told_by_their_parts_of_a_card() {
    const LONG: i64 = 86_400;
    let now = Timestamp::from_seconds(1_790_000_000);
    let share = |number: u32, part: (u32, u32), idle_s: i64| {
        let key = crate::store::model::ResourceKey {
            cluster: "prod".into(),
            kind: ResourceKind::Share,
            id: format!("MIG-{number}").into(),
        };
        crate::money::now::Idle {
            key,
            origin: Origin::Live,
            node: "node-1".into(),
            index: String::new(),
            state: State::Parked,
            since: Some(now.shifted(-idle_s * 1_000_000_000)),
            job: "job:ml/note".to_owned(),
            payer: Payer::Nobody,
            part,
            day_cost: Some(1),
        }
    };
    let advised = |shares: &[((u32, u32), i64)]| {
        let mut job = Job {
            told: (0, Some(0)),
            ..Job::default()
        };
        for (number, (part, idle_s)) in (0..).zip(shares) {
            job.hold(*part);
            job.idle(&share(number, *part, *idle_s), Some(1), now);
        }
        let advice = job.advice("prod", "job:ml/note");
        (advice.today, advice.before.milli_gpus)
    };
    let told = |text: &str, milli: u64| (text.to_owned(), milli);
    let three = [((2, 4), LONG), ((2, 4), LONG), ((2, 4), LONG)];
    assert_eq!(advised(&three), told("1.5 of 1.5 idle", 1_500));
    let sevenths = [((1, 7), LONG); 7];
    assert_eq!(advised(&sevenths), told("1 of 1 idle", 1_000));
    let some = [((1, 1), LONG), ((1, 5), 1)];
    assert_eq!(advised(&some), told("1 of 1.2 idle", 1_000), "not for long");
}

#[test]
fn of_a_large_job_gpus_of_all_its_nodes_are_remembered() {
    let gpu = |number: usize| {
        // As they come: in any order.
        let number = number * 37 % 128;
        (
            format!("node-{:02}", number / 8),
            format!("GPU-{number:03}"),
        )
    };
    let job = Job {
        gpus: (0..128).map(gpu).collect(),
        ..Job::default()
    };
    let remembered = job.remembered();
    let of_node = |node: usize| {
        let gpus = (node * 8..node * 8 + 8).map(|it| format!("GPU-{it:03}"));
        gpus.filter(|it| remembered.contains(it)).count()
    };
    assert_eq!((0..16).map(of_node).collect::<Vec<_>>(), [2; 16]);
}
