//! Faults of what training runs read of their loss and gradients: a reading each tick, and what was held between two.

use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::training::Highest;

use super::runs::well;
use super::world::{At, Happens, Made, NOTHING, Now};
use super::{FEW, Fault, SEEDS};
use crate::fleet::Live;

const FINDING: &str = "numbers of training that go wrong";
const NODES: (u32, u32) = (2, 8);
/// Ticks in which the trend of a loss is learnt.
const LEARNT: i64 = 205;

/// How many times as large as usual a loss and a gradient norm are.
type Times = (f64, f64);
pub(super) const USUALLY: Times = (1.0, 1.0);

/// The loss and the gradient norm that a rank reads of each of so many steps a second: what the last had, and what three in a
/// row of the tick held. `times` knows a step by how many are between the onset and it.
pub(super) fn learns(live: &mut Live, now: &Now, a_second: i64, times: &dyn Fn(i64) -> Times) {
    /// The number of the step at the onset, higher than there are steps before it.
    const ONSET: i64 = 1_000_000;
    let (last, at) = (now.seconds * a_second, live.last_point);
    let loss = |step: i64| times(step).0 * (2.0 + (step as f64 * 0.7).sin() / 20.0);
    let norm = |step: i64| times(step).1 * (0.5 + (step as f64 * 0.3).sin() / 20.0);
    let of_tick = last - now.tick_s * a_second + 1..=last;
    let held = |of: &dyn Fn(i64) -> f64| {
        let steps = of_tick.clone();
        let readings = steps.map(|it| (at, (ONSET + it).unsigned_abs(), of(it)));
        let held = Highest::default().take(readings, at);
        held.expect("a tick has three steps")
    };
    let (loss_held, norm_held) = (held(&loss), held(&norm));
    for (metric, value) in [
        (&training::LAST_STEP, (ONSET + last) as f64),
        (&training::LOSS, loss(last)),
        (&training::LOSS_HELD, loss_held.value),
        (&training::LOSS_HELD_STEP, loss_held.step as f64),
        (&training::GRADIENT_NORM, norm(last)),
        (&training::GRADIENT_NORM_HELD, norm_held.value),
        (&training::GRADIENT_NORM_HELD_STEP, norm_held.step as f64),
    ] {
        now.put(live, metric, value);
    }
}

/// A run whose first rank reads this, learnt for so many ticks; what is wrong is told within so many seconds.
fn of_loss(
    (fault, least): (&str, u32),
    says: &'static str,
    (learnt, within_s): (i64, i64),
    reads: impl Fn(&mut Live, &Now) + 'static,
) -> Fault {
    Fault::few(FINDING, fault, least, move |seed, server| {
        let says_of = |rank: u32, live: &mut Live, now: &Now| {
            // The first that reads a loss speaks for all.
            if rank == 0 {
                reads(live, now);
            }
        };
        let happens = Happens {
            ranks: Some(&well),
            says: Some(&says_of),
            ..NOTHING
        };
        let mut made = Made::new(seed, (1, 1), server).ticking(10, learnt);
        made.told((says, At::Any), within_s, happens)
    })
}

/// A run of ten steps a second of which some are far off, and none of them the last before its numbers are told.
fn bursts(fault: &str, says: &'static str, least: u32, times: fn(i64) -> Times) -> Fault {
    let reads = move |live: &mut Live, now: &Now| learns(live, now, 10, &times);
    of_loss((fault, least), says, (LEARNT, 60), reads)
}

/// A loss that leaves its trend and stays above it, of a run of a step a second.
fn diverges() -> Fault {
    let fault = "a loss 60 % above its trend from a step on, a step a second";
    let times = |step: i64| if step >= 0 { (1.6, 1.0) } else { USUALLY };
    let reads = move |live: &mut Live, now: &Now| learns(live, now, 1, &times);
    let says = "its loss left its trend";
    of_loss((fault, FEW), says, (LEARNT, 600), reads)
}

/// A loss that changes no more, beside a gradient that does.
fn is_stuck() -> Fault {
    let fault = "a loss that is the same to the bit from a step on, a step a second";
    let reads = |live: &mut Live, now: &Now| {
        learns(live, now, 1, &|_| USUALLY);
        if now.seconds >= 0 {
            now.put(live, &training::LOSS, 2.5);
        }
    };
    let says = "its loss does not change";
    of_loss((fault, FEW), says, (12, 600), reads)
}

/// The ten steps of a second are wrong, in the tick that is the first to be told.
fn for_a_second(step: i64, wrong: Times) -> Times {
    if (-80..-70).contains(&step) {
        wrong
    } else {
        USUALLY
    }
}

/// One step of each tick is.
fn now_and_then(step: i64) -> Times {
    if step > -100 && step.rem_euclid(100) == 50 {
        (1.6, 5.0)
    } else {
        USUALLY
    }
}

/// What a rank reads of its numbers.
#[derive(Clone, Copy)]
enum Goes {
    NotFinite,
    Skipping,
}

fn numbers(goes: Goes, fault: &str, says: &'static str) -> Fault {
    Fault::of(FINDING, fault, SEEDS, move |seed, server| {
        let says_of = move |_: u32, live: &mut Live, now: &Now| {
            learns(live, now, 1, &|_| USUALLY);
            let wrong_s = now.seconds.max(0) as f64;
            let (bad, skips) = match goes {
                Goes::NotFinite => (wrong_s, 0.0),
                Goes::Skipping => (0.0, (wrong_s / 5.0).floor()),
            };
            for (metric, value) in [
                (&training::NON_FINITE_LOSSES, bad),
                (&training::SCALER_SKIPS, skips),
            ] {
                now.put(live, metric, value);
            }
        };
        let happens = Happens {
            ranks: Some(&well),
            says: Some(&says_of),
            ..NOTHING
        };
        Made::new(seed, NODES, server).told((says, At::Any), 300, happens)
    })
}

pub(super) fn faults() -> Vec<Fault> {
    vec![
        numbers(
            Goes::NotFinite,
            "losses that are not finite",
            "its loss is not finite",
        ),
        numbers(
            Goes::Skipping,
            "one step in five skipped",
            "the loss scaler skips",
        ),
        bursts(
            "one step of each tick, its loss 60 % above and its gradients 5 times as large",
            "its ",
            0,
            now_and_then,
        ),
        bursts(
            "ten steps of one second within a tick, their loss 60 % above",
            "its loss was far above",
            FEW,
            |step| for_a_second(step, (1.6, 1.0)),
        ),
        bursts(
            "ten steps of one second within a tick, their gradients 5 times as large",
            "its gradients burst",
            FEW,
            |step| for_a_second(step, (1.0, 5.0)),
        ),
        diverges(),
        is_stuck(),
    ]
}
