//! The book of advice, look by look.

use std::collections::BTreeMap;

use gpufleet_analysis::taken::sight::JobNow;
use gpufleet_analysis::taken::{Before, LEAST_TOLD_MS};

use super::given::Job;
use super::*;

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
            idle: *idle,
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
fn nodes_are_looked_at_in_their_window_alone() {
    let mut off = advice(Kind::Shutdown, "box-8g", 480);
    (off.before.from_hour, off.before.hours) = (22, 8);
    off.before.count = 6;
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
    let record = &book.entries[0].record;
    assert_eq!(record.standing, Standing::Taken);
    let saved: i64 = record.saved.values().sum();
    // Two nodes, for two hours after the first look that found them off.
    let of_look = 2 * 48_000_000 * 300_000 / MILLIS_PER_DAY;
    assert_eq!(saved, 24 * of_look);
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
