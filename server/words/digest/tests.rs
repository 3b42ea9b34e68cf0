//! Weeks in words: what is known, what is not, and names that are up to no good.

use gpufleet_analysis::digest::Week;
use gpufleet_analysis::report::efficiency::{Training, Waste};
use gpufleet_analysis::taken;

use super::*;

const HOUR: i64 = 3_600_000;

fn sum(hours: i64, dollars: i128) -> Sum {
    Sum {
        gpu_millis: hours * HOUR,
        cost: dollars * 1_000_000_000,
        ..Sum::default()
    }
}

fn spent(parts: &[(State, Sum)]) -> Spent {
    let mut spent = Spent::default();
    for (state, sum) in parts {
        spent.sum.add(sum);
        spent.held_gpu_millis += sum.gpu_millis;
        spent.states.insert(*state, *sum);
    }
    spent
}

fn week() -> Summary {
    let parked = sum(100, 300);
    Summary {
        week: Week::parse("2026-W47").expect("a week"),
        payer: "research".to_owned(),
        currency: "USD".to_owned(),
        this: spent(&[
            (State::ActiveUnrated, sum(1_100, 3_300)),
            (State::Parked, parked),
        ]),
        before: spent(&[(State::ActiveUnrated, sum(1_000, 3_000))]),
        month: spent(&[(State::ActiveUnrated, sum(2_300, 6_900))]),
        not_read: None,
        training: Training::default(),
        runs_untold: None,
        waste: vec![Waste {
            payer: "research".to_owned(),
            job: "job:ml/train".to_owned(),
            state: State::Parked,
            sum: parked,
        }],
        budget: None,
        unpriced: None,
        advised: taken::Sum::default(),
        advice_not_kept: None,
    }
}

fn lines(said: &Said) -> Vec<&str> {
    said.text.lines().collect()
}

#[test]
fn a_week_says_what_it_came_to_and_what_is_not_known_with_its_reason() {
    let said = say(&week(), "https://x/cost");
    assert_eq!(
        said.title,
        "Week 2026-W47 of research: $3\u{202f}600.00 for 1\u{202f}200.0 GPU-hours"
    );
    assert_eq!(
        lines(&said),
        [
            "Monday 2026-11-16 to Sunday 2026-11-22 (UTC)",
            "Held: 1\u{202f}200.0 GPU-hours; of all that it pays for 91.7 % active",
            "Cost: $3\u{202f}600.00",
            "Idle: 100.0 GPU-hours, $300.00: parked $300.00",
            "Stalled: none",
            "Goodput: not known: no training run told it",
            "MFU: not known: no training run told it",
            "Month to date: $6\u{202f}900.00; no budget is set",
            "Against the week before: 200.0 GPU-hours more held, $600.00 more, of it idle $300.00 more",
            "Most for nothing:",
            "1. job:ml/train, parked: 100.0 GPU-hours, $300.00. End it when its work is done, or save a checkpoint and give the GPUs back.",
            "Page: https://x/cost",
        ]
    );
    assert_eq!(said.figures["cost"]["value"], "3600.0");
    assert_eq!(
        said.figures["states"]["parked"]["gpu_hours"]["value"],
        "100.0"
    );
    assert_eq!(said.figures["goodput"]["value"], Value::Null);
    assert_eq!(
        said.figures["against_week_before"]["idle_cost"]["value"],
        "300.0"
    );
}

#[test]
fn runs_that_nobody_can_name_any_more_are_said_beside_goodput_and_mfu() {
    let mut it = week();
    it.runs_untold = Some("3 runs are deleted".to_owned());
    let said = say(&it, "x");
    for name in ["Goodput", "MFU"] {
        let line = format!("{name}: not known: no training run told it; 3 runs are deleted");
        assert!(said.text.contains(&line), "{}", said.text);
    }
    let note = said.figures["mfu"]["note"].as_str();
    assert!(note.is_some_and(|it| it.ends_with("3 runs are deleted")));
}

#[test]
fn what_cannot_be_read_is_said_and_two_weeks_are_not_compared() {
    let mut it = week();
    it.not_read = Some("3 days of GPUs cannot be read".to_owned());
    let said = say(&it, "x");
    assert_eq!(lines(&said)[1], "Not known: 3 days of GPUs cannot be read");
    assert!(
        said.text
            .contains("Against the week before: not known: 3 days of GPUs cannot be read")
    );
    assert_eq!(said.figures["not_read"], "3 days of GPUs cannot be read");
}

#[test]
fn days_that_one_cluster_lacks_are_named_with_it_and_the_figures_of_the_others_stand() {
    let mut it = week();
    it.this.missing = it.week.days().collect();
    it.this.missing_of = vec!["prod".to_owned()];
    let said = say(&it, "x");
    let words = "Not known: not all is recorded of 7 days of the week (prod): 2026-11-16";
    assert!(said.text.contains(words), "{}", said.text);
    let end = "2026-11-22; the figures are of what is recorded.";
    assert!(said.text.contains(end), "{}", said.text);
    let compared = "Against the week before: not known: not all is recorded of 7 days";
    assert!(said.text.contains(compared), "{}", said.text);
    assert!(
        !said.title.contains("nothing is recorded"),
        "{}",
        said.title
    );
    it.this.sum = Sum::default();
    let said = say(&it, "x");
    assert!(said.title.ends_with(": nothing is recorded of it"));
}

#[test]
fn days_without_a_record_leave_figures_of_the_others_and_no_comparison() {
    let mut it = week();
    let days = it.week.days();
    it.this.missing = (days.start..days.start + 4).collect();
    it.month.missing = (days.start - 6..days.start + 4).collect();
    let said = say(&it, "x");
    assert!(
        said.text.contains("Not known: nothing is recorded of 4 days of the week: 2026-11-16, 2026-11-17, 2026-11-18, 2026-11-19; the figures are of the other days."),
        "{}", said.text
    );
    assert!(
        said.text
            .contains("Against the week before: not known: nothing is recorded of 4 days")
    );
    assert!(
        said.text.contains(
            "Month to date: $6\u{202f}900.00 (nothing is recorded of 10 days of the month)"
        )
    );
    assert_eq!(
        said.figures["against_week_before"]["cost"]["value"],
        Value::Null
    );
    assert_eq!(
        said.figures["days_not_recorded"].as_array().map(Vec::len),
        Some(4)
    );

    // A week of which nothing is known at all has no figure, and no zero.
    it.this = Spent {
        missing: days.collect(),
        ..Spent::default()
    };
    it.waste.clear();
    let said = say(&it, "x");
    assert!(
        said.title.ends_with(": nothing is recorded of it"),
        "{}",
        said.title
    );
    for key in ["cost", "held_gpu_hours", "idle_cost"] {
        assert_eq!(said.figures[key]["value"], Value::Null, "{key}");
        assert!(
            said.figures[key]["note"]
                .as_str()
                .is_some_and(|it| it.contains("recorded"))
        );
    }
    for line in [
        "Held: not known: nothing is",
        "Cost: not known: nothing is",
        "Idle: not known",
        "Stalled: not known",
    ] {
        assert!(said.text.contains(line), "{line}: {}", said.text);
    }
}

#[test]
fn time_without_a_price_is_no_money_and_not_for_free() {
    let mut it = week();
    let all = sum(10, 0);
    it.unpriced = Some("no rate of box-8g in here".to_owned());
    it.this = spent(&[(
        State::Parked,
        Sum {
            unpriced_millis: all.gpu_millis,
            ..all
        },
    )]);
    let said = say(&it, "x");
    assert!(
        said.text
            .contains("Cost: not known: no rate of box-8g in here"),
        "{}",
        said.text
    );
    assert_eq!(said.figures["idle_cost"]["value"], Value::Null);
    assert!(
        said.text.contains(
            "Against the week before: not known: 10.0 GPU-hours of the week have no price"
        )
    );
    let part = Sum {
        unpriced_millis: HOUR,
        ..sum(10, 30)
    };
    it.this = spent(&[(State::Parked, part)]);
    let said = say(&it, "x");
    assert!(said.title.contains("at least $30.00"), "{}", said.title);
    assert!(
        said.text.contains(
            "Cost: $30.00 (and 1.0 GPU-hours without a price: no rate of box-8g in here)"
        ),
        "{}",
        said.text
    );
}

#[test]
fn a_hostile_name_is_harmless_and_short_wherever_it_stands() {
    let mut it = week();
    it.payer = format!("<script>\u{202e}\n\u{0}{}", "x".repeat(10_000));
    it.waste[0].job.clone_from(&it.payer);
    let said = say(&it, "x");
    let all = format!("{} {} {}", said.title, said.text, said.figures);
    assert!(said.title.chars().count() < 200, "{}", said.title);
    assert_eq!(said.title.lines().count(), 1);
    assert_eq!(said.text.lines().count(), 12);
    assert!(all.len() < 5_000, "{}", all.len());
    assert!(!all.contains(['\u{202e}', '\u{0}']));
}

#[test]
fn advice_is_said_with_what_was_taken_of_it_and_saved_and_what_is_not_kept_is_not_none() {
    let mut it = week();
    it.advised = taken::Sum {
        given: 3,
        worth: 90_000_000_000,
        taken: 2,
        saved: 12_500_000_000,
        unmeasured: 1,
        measured: (1, 1),
        ..taken::Sum::default()
    };
    let said = say(&it, "x");
    let line = "Advice: 3 given, worth $90.00 a day; 2 taken (of 1 what was saved is not measured); saved in the week, measured against before: $12.50";
    assert!(lines(&said).contains(&line), "{}", said.text);
    assert_eq!(said.figures["advice"]["saved"], "12.5");
    let both = say_rest(&[&it, &it], "x").expect("there are some");
    assert_eq!(both.figures["advice"]["given"], 6);
    (it.advised.unpriced, it.advised.measured) = (3, (0, 2));
    let said = say(&it, "x");
    assert!(
        said.text
            .contains("3 given, without a price or known gain; 2 taken")
    );
    assert!(said.text.contains("against before: not measured"));
    let figures = &said.figures["advice"];
    assert!(figures["worth_per_day"].is_null() && figures["saved"].is_null());
    let mut untold = week();
    untold.advice_not_kept = Some("no server has kept it yet".to_owned());
    let said = say(&untold, "x");
    assert!(lines(&said).contains(&"Advice: not known: no server has kept it yet"));
}

#[test]
fn teams_without_a_message_each_are_told_together() {
    let rest: Vec<Summary> = (0..1_900)
        .map(|number| Summary {
            payer: format!("team-{number}"),
            ..week()
        })
        .collect();
    let rest: Vec<&Summary> = rest.iter().collect();
    let said = say_rest(&rest, "x").expect("there are some");
    assert!(
        said.title
            .contains("1\u{202f}900 more teams: $6\u{202f}840\u{202f}000.00"),
        "{}",
        said.title
    );
    assert!(said.text.contains("digest --week 2026-W47") && said.text.contains("team-9"));
    assert_eq!(said.figures["teams"], 1_900);
    assert!(said.text.len() < 3_000);
    assert_eq!(say_rest(&[], "x"), None);
}
