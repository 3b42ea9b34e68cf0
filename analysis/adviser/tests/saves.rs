//! What saving costs, and what is lost without it.

use super::*;

#[test]
fn checkpoints_are_best_where_saving_and_losing_cost_the_same() {
    near(best_interval(60.0, 120_000.0), 3_794.73);
    let best = best_interval(60.0, 120_000.0);
    for other in [best * 0.9, best * 1.1] {
        assert!(wasted(best, 60.0, 120_000.0) < wasted(other, 60.0, 120_000.0));
    }
}

#[test]
fn of_rarer_saves_and_such_beside_training_the_one_that_removes_more_comes_first() {
    let asynchronous = |save: &str| format!("checkpoint saves: {save} s each → asynchronous saves");
    let interval = |today: &str, best: &str| format!("checkpoint interval: {today} s → {best} s");
    for (save, today, mtbf, first, other, expected) in [
        (
            60.0,
            300.0,
            Some(120_000.0),
            interval("300", "3795"),
            Some(asynchronous("60")),
            0.20125 - 0.0316,
        ),
        (
            60.0,
            600.0,
            Some(120_000.0),
            asynchronous("60"),
            Some(interval("600", "3795")),
            0.9 * 60.0 / 660.0,
        ),
        (
            60.0,
            600.0,
            None,
            asynchronous("60"),
            None,
            0.9 * 60.0 / 660.0,
        ),
        // As far apart as is best already, by which the saves themselves were never asked about.
        (
            300.0,
            1_800.0,
            Some(7_200.0),
            asynchronous("300"),
            None,
            0.129,
        ),
        // Too far apart, and saving itself costs nothing.
        (
            5.0,
            7_200.0,
            Some(15_000.0),
            interval("7200", "387"),
            None,
            0.2407 - 0.0258,
        ),
    ] {
        let mut run = well();
        run.saving = Saving {
            save_s: Some(save),
            interval_s: Some(today),
            mtbf_s: mtbf,
        };
        let advice = only(&run);
        assert_eq!(said(&advice.knob), first);
        let others: Vec<String> = advice.also.iter().map(said).collect();
        assert_eq!(others, Vec::from_iter(other), "{first}");
        near(removed(&advice), expected);
    }
}
