//! Teams and their budgets, as the money of a month tells of them.

use std::sync::Arc;

use super::world::{At, Happens, Made, NOTHING, Now};
use super::{Fault, SEEDS};
use crate::money::budgets::{Standings, made};

/// A team that spent so much of its budget of 100, and will come to so much.
fn team(fault: &str, (spent, forecast): (i64, i64), says: &'static str, least: u32) -> Fault {
    Fault::of(
        "a team over its budget",
        fault,
        least,
        move |seed, server| {
            let also = move |made_world: &mut Made, now: &Now| {
                if now.seconds == 0 {
                    let team = made("science", Some(spent), Some(forecast), 100);
                    let standings = Standings::of("2026-11".to_owned(), vec![team]);
                    made_world.detectors.budgets.take(Some(Arc::new(standings)));
                }
            };
            let happens = Happens {
                also: &also,
                ..NOTHING
            };
            Made::new(seed, (1, 2), server).told((says, At::Any), 60, happens)
        },
    )
    .injected()
}

pub(super) fn faults() -> Vec<Fault> {
    let (spent, will) = ("the month's budget", "the month will");
    vec![
        team(
            "90 % of it is spent, 99 % will be",
            (90, 99),
            "the month",
            0,
        ),
        team("40 % of it is spent, 110 % will be", (40, 110), will, SEEDS),
        team("101 % of it is spent", (101, 130), spent, SEEDS),
    ]
}
