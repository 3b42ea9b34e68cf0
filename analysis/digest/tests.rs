//! Weeks of two boxes, held against what was put into them.

use super::*;
use crate::chargeback::fixture::{FIRST_HOUR, HOUR, book, fleet, owners, part, period};
use crate::chargeback::{Asked as Charged, Detail, NodePeriod, chargeback};
use crate::price_book::Book;

const RATES: &str = crate::chargeback::fixture::RATES;

/// The hour at which the week begins that begins in October, on Monday the 5th, since the first.
const MONDAY: i64 = 4 * 24;

fn made(
    fleet: &Fleet,
    periods: &[NodePeriod],
    book: &Book,
    hours: std::ops::Range<i64>,
) -> Chargeback {
    let in_range = |it: &&NodePeriod| {
        let hour = it.from_ms / HOUR - FIRST_HOUR;
        hours.contains(&hour)
    };
    let periods: Vec<NodePeriod> = periods.iter().filter(in_range).cloned().collect();
    chargeback(&Charged {
        detail: Detail::Nodes,
        from_ms: (FIRST_HOUR + hours.start) * HOUR,
        until_ms: (FIRST_HOUR + hours.end) * HOUR,
        now_ms: i64::MAX,
        fleet,
        periods: &periods,
        book,
        commitments: book.commitments(),
        owners: &owners(),
    })
}

fn digest(periods: &[NodePeriod], missing: [&[i64]; 3], rates: &str) -> Vec<Summary> {
    let (fleet, book) = (fleet(2), book(rates, ""));
    let (this, before) = (MONDAY..MONDAY + 168, MONDAY - 168..MONDAY);
    let month = 0..MONDAY + 168;
    let made = [this, before, month].map(|it| made(&fleet, periods, &book, it));
    let stretch = |number: usize| Stretch {
        made: &made[number],
        fleet: &fleet,
        missing: missing[number],
        missing_of: &[],
    };
    let budgets = std::collections::BTreeMap::from([("science".to_owned(), 500_000_000_000)]);
    let end_ms = (FIRST_HOUR + 744) * HOUR;
    let budgets = made[2].budgets(&budgets, (FIRST_HOUR + MONDAY + 168) * HOUR, end_ms);
    summaries(&Asked {
        week: Week::at((FIRST_HOUR + MONDAY) * HOUR),
        this: stretch(0),
        before: stretch(1),
        month: stretch(2),
        runs: &[RunTime {
            payer: "science".to_owned(),
            gpu_millis: HOUR,
            goodput: Some(800_000),
            mfu: None,
        }],
        not_read: Some("2 days cannot be read"),
        runs_untold: Some("some are deleted"),
        budgets: &budgets,
        advised: &Advised::default(),
    })
}

#[test]
fn a_week_has_what_its_payer_held_what_was_for_nothing_and_its_month() {
    let (trains, parks) = (State::ActiveUnrated, State::Parked);
    let mixed = [
        part(Some(0), trains, HOUR / 2),
        part(Some(0), parks, HOUR / 4),
        part(Some(1), State::Stalled, HOUR / 4),
    ];
    let periods = [
        // Friday the 2nd, and twice in the week.
        period(0, MONDAY - 60, &[part(Some(0), trains, HOUR)]),
        period(0, MONDAY, &mixed),
        period(1, MONDAY + 167, &mixed),
        // The next Monday is another week's.
        period(1, MONDAY + 168, &mixed),
    ];
    let all = digest(&periods, [&[]; 3], RATES);
    let names: Vec<&str> = all.iter().map(|it| it.payer.as_str()).collect();
    assert_eq!(names, ["science", "money"]);
    let science = &all[0];
    assert_eq!(science.week.to_string(), "2026-W41");
    // Of 16 GPU-hours three quarters, at 10 each.
    assert_eq!(science.this.held_gpu_millis, 12 * HOUR);
    assert_eq!(science.this.sum.cost, 120_000_000_000);
    assert_eq!(science.this.of(|it| it == parks).cost, 40_000_000_000);
    assert_eq!(science.before.sum.cost, 80_000_000_000);
    assert_eq!(science.month.sum.cost, 200_000_000_000);
    let budget = science.budget.as_ref().expect("it has one");
    assert_eq!(
        (budget.budget, budget.spent),
        (500_000_000_000, 200_000_000_000)
    );
    assert_eq!(science.training.goodput.millionths(), Some(800_000));
    assert_eq!(science.training.mfu.millionths(), None);
    assert_eq!(science.runs_untold.as_deref(), Some("some are deleted"));
    assert_eq!(science.not_read.as_deref(), Some("2 days cannot be read"));
    let [waste] = science.waste.as_slice() else {
        panic!("{:?}", science.waste);
    };
    assert_eq!((waste.job.as_str(), waste.state), ("train", parks));
    let money = &all[1];
    assert_eq!(money.budget, None);
    assert_eq!(
        money.this.of(|it| it == State::Stalled).gpu_millis,
        4 * HOUR
    );
    assert_eq!(
        money.before,
        Spent::default(),
        "it held nothing, and that is known"
    );
}

#[test]
fn days_without_a_record_and_time_without_a_price_are_said_and_no_zero() {
    let periods = [
        period(0, MONDAY - 60, &[part(Some(1), State::ActiveUnrated, HOUR)]),
        period(0, MONDAY, &[part(Some(0), State::Parked, HOUR)]),
    ];
    let later = RATES.replace("2026-10-01", "2026-11-01");
    let all = digest(
        &periods,
        [&[20_001, 20_002], &[20_000], &[20_000, 20_001]],
        &later,
    );
    let science = all
        .iter()
        .find(|it| it.payer == "science")
        .expect("it held something");
    assert_eq!(science.this.missing, [20_001, 20_002]);
    assert_eq!(
        (science.this.sum.unpriced_millis, science.this.sum.cost),
        (8 * HOUR, 0)
    );
    let why = science.unpriced.as_deref().expect("a reason");
    assert!(!why.is_empty());
    assert_eq!(
        (science.before.missing.as_slice(), science.before.is_whole()),
        (&[20_000][..], false)
    );
    // It held something in the week before alone.
    let money = all
        .iter()
        .find(|it| it.payer == "money")
        .expect("it is told too");
    assert_eq!(
        (money.this.sum, money.this.missing.len()),
        (Sum::default(), 2)
    );
    assert_eq!(money.unpriced, None);
}

#[test]
fn of_waste_the_dearest_are_named_and_no_more() {
    let states = [
        (State::Parked, 8),
        (State::HeldEmpty, 4),
        (State::Stalled, 16),
        (State::StartingPod, 32),
        (State::ActiveUnrated, 2),
    ];
    let parts: Vec<_> = states
        .iter()
        .map(|(state, part_of)| part(Some(0), *state, HOUR / part_of))
        .collect();
    let all = digest(&[period(0, MONDAY, &parts)], [&[]; 3], RATES);
    let science = all
        .iter()
        .find(|it| it.payer == "science")
        .expect("it held something");
    let named: Vec<State> = science.waste.iter().map(|it| it.state).collect();
    assert_eq!(named, [State::HeldEmpty, State::Parked, State::Stalled]);
}
