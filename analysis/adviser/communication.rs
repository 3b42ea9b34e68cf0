//! Communication-bound: collectives that computing does not hide, held against what the machine's
//! network could do.
//!
//! ```text
//! AllReduce of S bytes over N ranks, bandwidth B, latency l:
//! ring   2(N−1)/N · S/B + 2(N−1) · l
//! tree   2·log2 N · (S/B + l)
//! ```
//! Slower than [`SLOW`] times the faster of the two: the network is not what it could be, and its
//! settings are asked first. Else more accumulation: half as many reductions for the same samples.

use gpufleet_telemetry::catalog::Unit;

use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile};
use crate::cause::Reading;

/// So many times the expected time is slow: good networks reach 70 to 90 % of their line rate.
const SLOW: f64 = 2.0;
/// Latency of a hop between nodes, seconds.
const LATENCY_S: f64 = 10e-6;

/// Time of an AllReduce by a ring, seconds.
pub fn ring(bytes: f64, ranks: u32, bytes_per_second: f64, latency_s: f64) -> f64 {
    let ranks = f64::from(ranks.max(1));
    2.0 * (ranks - 1.0) / ranks * bytes / bytes_per_second + 2.0 * (ranks - 1.0) * latency_s
}

/// Time of an AllReduce by a tree, seconds.
pub fn tree(bytes: f64, ranks: u32, bytes_per_second: f64, latency_s: f64) -> f64 {
    2.0 * f64::from(ranks.max(1)).log2() * (bytes / bytes_per_second + latency_s)
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let share = run.share(run.communication_s)?;
    let network = &run.network;
    let expected = network
        .reduced_bytes
        .zip(network.ranks)
        .zip(network.line_bytes_per_second)
        .map(|((bytes, ranks), line)| {
            let ring = ring(bytes, ranks, line, LATENCY_S);
            ring.min(tree(bytes, ranks, line, LATENCY_S))
        });
    let took = run.communication_s?;
    let slow = expected.filter(|it| *it > 0.0 && took > SLOW * it);
    let mut measured = vec![Reading::new(
        "communication not hidden",
        took,
        expected,
        Unit::Seconds,
    )];
    measured.push(Reading::new("share of the step", share, None, Unit::Ratio));
    let (knob, removed, confidence) = match slow {
        Some(expected) => (
            Knob {
                name: "NCCL_*",
                today: None,
                proposed:
                    "the settings of the machine's network plugin: it is slower than its line"
                        .to_owned(),
            },
            share * (1.0 - expected / took),
            Confidence::Medium,
        ),
        None => {
            let today = run.set_up.accumulation?;
            let knob = Knob {
                name: "accumulation",
                today: Some(today.to_string()),
                proposed: (2 * today.max(1)).to_string(),
            };
            (knob, share / 2.0, Confidence::Medium)
        }
    };
    Some(Advice {
        bottleneck: Bottleneck::Communication,
        part: Part::Communication,
        measured,
        knob,
        share,
        removed,
        confidence,
    })
}
