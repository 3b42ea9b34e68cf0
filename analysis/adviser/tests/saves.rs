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
        // Much is lost by a failure, and a twentieth of the time by saving.
        (
            60.0,
            1_200.0,
            Some(2_000.0),
            interval("1200", "490"),
            Some(asynchronous("60")),
            0.35 - 0.2449,
        ),
        (
            60.0,
            600.0,
            Some(120_000.0),
            asynchronous("60"),
            Some(interval("600", "3795")),
            0.9 * 60.0 / 600.0,
        ),
        (
            60.0,
            600.0,
            None,
            asynchronous("60"),
            None,
            0.9 * 60.0 / 600.0,
        ),
        // As far apart as is best already, by which the saves themselves were never asked about.
        (
            300.0,
            1_800.0,
            Some(7_200.0),
            asynchronous("300"),
            None,
            0.15,
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

#[test]
fn parts_of_a_step_are_worth_no_more_of_the_day_than_steps_are() {
    // Twenty minutes of steps, in which 30 % is waited for data, and ten of saving.
    let mut run = Profile {
        nano_usd_per_gpu_second: Some(3_000_000_000 / 3_600),
        data_wait_s: Some(0.3),
        in_steps: Some(2.0 / 3.0),
        ..well()
    };
    run.saving = Saving {
        save_s: Some(600.0),
        interval_s: Some(1_800.0),
        mtbf_s: None,
    };
    let all = advise(&run);
    let parts: Vec<Part> = all.iter().map(|it| it.part).collect();
    assert_eq!(parts, [Part::Checkpoint, Part::Data]);
    let [saves, data] = &all[..] else {
        panic!("{all:?}");
    };
    near(saves.share, 1.0 / 3.0);
    near(removed(saves), 0.3);
    near(data.share, 0.2);
    near(gain(data), 1.23);
    let a_day = data.nano_usd_per_day(&run).expect("it has a price");
    near(a_day as f64 / 860_160_000_000.0, 1.0);
    near(together(&all), 1.0 / (1.0 - 0.3 - 0.28 * 2.0 / 3.0));
    assert_eq!(
        data.measured.first(),
        Some(&data::waiting(0.3)),
        "of a step"
    );
}

#[test]
fn what_makes_steps_faster_that_are_a_fifth_of_the_time_gains_little() {
    let mut run = Profile {
        data_wait_s: Some(0.0),
        communication_s: Some(0.0),
        gaps: None,
        ..well()
    };
    run.gpu.dram = Some(0.8);
    run.gpu.flops_per_byte = Some(312e12 / 2.039e12 / 1.63);
    for (in_steps, expected) in [(None, 1.63), (Some(1.0), 1.63), (Some(0.2), 1.08)] {
        run.in_steps = in_steps;
        near(gain(&only(&run)), expected);
    }
    // Nothing is worth a change in steps that are hardly made.
    run.in_steps = Some(0.03);
    assert_eq!(advise(&run), []);
}
