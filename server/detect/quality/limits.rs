//! Readings over a limit, of each row of the table: by little, for as long as it takes.

use gpufleet_analysis::limit::Test;
use gpufleet_telemetry::catalog::{Metric, Unit};
use gpufleet_telemetry::identity::{Origin, Part, ResourceKind};

use super::world::{At, Happens, Made, NOTHING, Now};
use super::{FEW, Fault};
use crate::detect::limits::table::{LIMITS, Limit, Read};
use crate::fleet::Live;
use crate::view::fixture;

/// How far beyond a limit a level is, as a part of it.
const BEYOND: f64 = 0.04;

/// What is read at this moment: as it should be, and from the onset on beyond the limit. A flag is set or not.
fn value(limit: &Limit, now: &Now) -> f64 {
    let is_ill = now.seconds >= 0;
    let seconds = now.seconds as f64;
    match limit.test {
        Test::Above(_) if is_flag(limit) => f64::from(u8::from(is_ill)),
        Test::Above(limit) => limit * if is_ill { 1.0 + BEYOND } else { 0.5 },
        Test::Below(limit) => limit * if is_ill { 1.0 - BEYOND } else { 2.0 },
        Test::Grew(_) => 7.0 + f64::from(u8::from(is_ill)),
        Test::Rate(limit) => 7.0 + 2.0 * limit * seconds.max(0.0),
        Test::Still => 1e6 + if is_ill { 0.0 } else { seconds },
        Test::Down => f64::from(u8::from(!is_ill)),
        Test::Flaps => f64::from(u8::from(!is_ill || now.seconds % 120 >= 60)),
    }
}

fn is_flag(limit: &Limit) -> bool {
    limit.reading.1 == Unit::Flag
}

/// The metrics that make a limit read so.
fn readings(limit: &Limit, now: &Now) -> Vec<(&'static Metric, f64)> {
    let value = value(limit, now);
    match limit.read {
        Read::Plain(metric) | Read::Held(metric) => vec![(metric, value)],
        Read::Share(part, whole) => vec![(part, value * 1e12), (whole, 1e12)],
        Read::Margin(own, up_to) => vec![(own, 90.0 - value), (up_to, 90.0)],
        Read::Fabric(metric) => vec![(metric, if now.seconds >= 0 { 1.0 } else { 2.0 })],
        Read::Behind(then, at) => vec![(then, 1_000.0), (at, 1_000.0 + value)],
        Read::Stuck(done, waiting) => vec![(done, value), (waiting, 3.0)],
    }
}

fn put(live: &mut Live, limit: &Limit, now: &Now) {
    for (metric, value) in readings(limit, now) {
        match metric.part {
            Some(kind) => now.part(live, metric, Part::new(kind, "0"), Ok(value)),
            None => now.put(live, metric, value),
        }
    }
}

fn fault(limit: &'static Limit) -> Fault {
    let words = match limit.test {
        Test::Above(_) if is_flag(limit) => "set",
        Test::Above(_) => "4 % above its limit",
        Test::Below(_) => "4 % below its limit",
        Test::Grew(_) => "one more",
        Test::Rate(_) => "at twice the rate",
        Test::Still => "none any more",
        Test::Down => "down",
        Test::Flaps => "down for a minute of each two",
    };
    let fault = format!("{}: {words}", limit.what);
    Fault::few(limit.kind, &fault, FEW, move |seed, server| {
        let kind = limit.read.of();
        let mut made = Made::new(seed, (1, 1), server);
        if !matches!(kind, ResourceKind::Node | ResourceKind::Gpu) {
            let live = fixture::live("prod", "node-1", kind, "it/0", Origin::Live);
            made.lives.push(live);
        }
        let reads = |live: &mut Live, now: &Now| {
            if live.key.kind == kind {
                put(live, limit, now);
            }
        };
        let happens = Happens {
            reads: &reads,
            ..NOTHING
        };
        let within_s = limit.for_ns / 1_000_000_000 + 1_200;
        made.told((limit.what, At::Any), within_s, happens)
    })
}

pub(super) fn faults() -> Vec<Fault> {
    LIMITS.iter().map(fault).collect()
}
