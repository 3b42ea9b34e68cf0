//! Why a run became slower than it was: what changed with it, or unknown.
//!
//! Method. As of a slow rank ([`super::judge`]), with the time before for its peers: what is to be explained is by how
//! much longer a step takes than it did. Of the steps counts the rank that computes longest, because the others wait
//! for it and its waits are its own: how long it waits for data, and how long in collectives, where all have come to,
//! so that it is the network that takes longer. What it waits in collectives more, neither its clock nor its host
//! explains; what it waits for data more, its clock does not. Of the machines counts that which holds up most: the lowest clock, the greatest part
//! slowed down, the most pressed host ([`Machines::worst`]); medians of what was seen each [`EVERY_NS`] before and since.
//!
//! Measured (the test): of 20 seeded faults of each of 9 causes, among decoys and with readings missing, 17 to 20 are
//! named and none wrongly.
//!
//! Limits: [`SAMPLES`] × 36 bytes a run (48 minutes of the machines), whatever its ranks; nothing is said of machines
//! that were seen less than [`LEAST_SAMPLES`] times before or since. What all its computing takes longer with no
//! reading changed is the run's own doing or a fault that nothing reads: unknown, with what was not read ([`untold`]).

use std::collections::VecDeque;

use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::time::Timestamp;

use super::{Cause, Explains, Pair, Rank, Verdict, named, of_clock, of_host};
use crate::robust::median;

#[cfg(test)]
mod tests;

/// How often the machines are looked at, nanoseconds.
pub const EVERY_NS: i64 = 30 * 1_000_000_000;
/// Looks that are kept.
pub const SAMPLES: usize = 96;
/// Looks before and since that say something together.
pub const LEAST_SAMPLES: usize = 3;
/// A wait that grew by less than this part of a step is noise.
const WAIT_NOISE: f64 = 0.01;

/// Where the time of a step goes, on the rank that computes longest; nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spent {
    /// Waiting for data.
    pub data_wait_ns: f32,
    /// Waiting in collectives.
    pub collective_wait_ns: f32,
}

/// What a run's machines read, each reading of that which holds the run up most. None is not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Machines {
    /// Clock of the SMs, hertz.
    pub sm_clock: Option<f64>,
    /// Parts of the time slowed down by heat, by the brake, by the power cap.
    pub heat_part: Option<f64>,
    /// See `heat_part`.
    pub brake_part: Option<f64>,
    /// See `heat_part`.
    pub cap_part: Option<f64>,
    /// Part of the CPU time that the hypervisor took.
    pub steal: Option<f64>,
    /// Pressure stall information, as the parts of the time in which some task waited.
    pub cpu_pressure: Option<f64>,
    /// See `cpu_pressure`.
    pub memory_pressure: Option<f64>,
    /// See `cpu_pressure`.
    pub io_pressure: Option<f64>,
}

/// What a run was like over a time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// Its steps; none is not known.
    pub spent: Option<Spent>,
    /// Its machines.
    pub machines: Machines,
}

/// What the machines of one run were like lately.
#[derive(Debug, Clone, Default)]
pub struct History(VecDeque<(u32, [f32; READINGS])>);

/// How many readings there are of machines.
const READINGS: usize = 8;
const _: () = assert!(SAMPLES * size_of::<(u32, [f32; READINGS])>() <= 3_500);

impl Spent {
    /// The median of each.
    pub fn median(all: &[Self]) -> Option<Self> {
        let of = |part: fn(&Self) -> f32| {
            let mut values: Vec<f64> = all.iter().map(|it| f64::from(part(it))).collect();
            median(&mut values)
        };
        Some(Self {
            data_wait_ns: of(|it| it.data_wait_ns)? as f32,
            collective_wait_ns: of(|it| it.collective_wait_ns)? as f32,
        })
    }
}

impl Machines {
    /// Of many machines, of each reading that which holds up most: the lowest clock, and of the others the most. What
    /// fewer than half of them tell is not known.
    pub fn worst(all: &[Self]) -> Self {
        let mut worst = [None; READINGS];
        for (place, worst) in worst.iter_mut().enumerate() {
            let known = all.iter().filter_map(|it| it.readings()[place]);
            let (count, most) = known.fold((0_usize, f64::NAN), |(count, most), it| {
                (
                    count + 1,
                    if place == 0 {
                        it.min(most)
                    } else {
                        it.max(most)
                    },
                )
            });
            *worst = (count > 0 && count * 2 >= all.len()).then_some(most);
        }
        Self::of(worst)
    }

    const fn readings(&self) -> [Option<f64>; READINGS] {
        [
            self.sm_clock,
            self.heat_part,
            self.brake_part,
            self.cap_part,
            self.steal,
            self.cpu_pressure,
            self.memory_pressure,
            self.io_pressure,
        ]
    }

    const fn of(readings: [Option<f64>; READINGS]) -> Self {
        let [
            sm_clock,
            heat_part,
            brake_part,
            cap_part,
            steal,
            cpu_pressure,
            memory_pressure,
            io_pressure,
        ] = readings;
        Self {
            sm_clock,
            heat_part,
            brake_part,
            cap_part,
            steal,
            cpu_pressure,
            memory_pressure,
            io_pressure,
        }
    }
}

impl History {
    /// Whether it is time for another look.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let last = self.0.back().map(|it| Timestamp::from_seconds(it.0.into()));
        // The clock may have been set back.
        last.is_none_or(|last| now < last || now.since(last) >= EVERY_NS)
    }

    /// Takes in what the machines read now.
    pub fn push(&mut self, now: Timestamp, machines: &Machines) {
        let now_s = u32::try_from(now.seconds()).unwrap_or(0);
        self.0.retain(|it| it.0 < now_s);
        if self.0.len() >= SAMPLES {
            self.0.pop_front();
        }
        let readings = machines.readings();
        let readings = readings.map(|it| it.map_or(f32::NAN, |it| it as f32));
        self.0.push_back((now_s, readings));
    }

    /// What they read before this moment, and since.
    pub fn around(&self, onset: Timestamp) -> (Machines, Machines) {
        let is_before = |at: u32| i64::from(at) < onset.seconds();
        (self.median(&is_before), self.median(&|at| !is_before(at)))
    }

    fn median(&self, is_in: &dyn Fn(u32) -> bool) -> Machines {
        let mut medians = [None; READINGS];
        for (place, median_of) in medians.iter_mut().enumerate() {
            let all = self.0.iter().filter(|it| is_in(it.0));
            let values = all.map(|it| f64::from(it.1[place]));
            let mut known: Vec<f64> = values.filter(|it| it.is_finite()).collect();
            *median_of = (known.len() >= LEAST_SAMPLES)
                .then(|| median(&mut known))
                .flatten();
        }
        Machines::of(medians)
    }
}

/// Names what changed with a run of which a step takes `ratio` times the `step_ns` that it took before.
pub fn judge(ratio: f64, step_ns: f64, before: &Window, since: &Window) -> Verdict {
    let excess = ratio - 1.0;
    if !excess.is_finite() || excess <= 0.0 || step_ns.is_nan() || step_ns <= 0.0 {
        return Verdict::default();
    }
    let rank = side_by_side(ratio, step_ns, before, since);
    let grew = |wait: Pair| wait.beyond().filter(|it| *it > WAIT_NOISE).unwrap_or(0.0);
    let network = grew(rank.collective_wait);
    let mut found = of_host(&rank);
    found.extend(of_clock(&rank));
    for it in &mut found {
        // What goes by in a wait is not computed slowly.
        let is_of_gpu = !matches!(
            it.cause,
            Cause::Data | Cause::Storage | Cause::HostCpu | Cause::HostMemory
        );
        let data = if is_of_gpu { grew(rank.data_wait) } else { 0.0 };
        it.part = it.part.min(excess - network - data).max(0.0);
    }
    if network > 0.0 {
        let wait = rank
            .collective_wait
            .reading("waiting in collectives", Unit::Ratio);
        found.push(Explains {
            cause: Cause::Network,
            part: network,
            readings: wait.into_iter().collect(),
        });
    }
    for it in &mut found {
        it.part = (it.part / excess).min(1.0);
    }
    named(found)
}

/// What was not read, and would tell more of why a run became slower: the names of readings.
pub fn untold(before: &Window, since: &Window) -> Vec<&'static str> {
    let rank = side_by_side(2.0, 1.0, before, since);
    let known = [
        (rank.data_wait, "waiting for data"),
        (rank.collective_wait, "waiting in collectives"),
        (rank.sm_clock, "clocks of its GPUs"),
        (rank.heat_part, "what slows its GPUs down"),
        (rank.cpu_pressure, "waiting for a CPU"),
        (rank.memory_pressure, "waiting for memory"),
        (rank.io_pressure, "waiting for I/O"),
        (rank.steal, "CPU time stolen"),
    ];
    let unknown = known
        .into_iter()
        .filter(|(pair, _)| pair.beyond().is_none());
    unknown.map(|(_, name)| name).collect()
}

/// The time since as a rank, and the time before as its peers'.
fn side_by_side(ratio: f64, step_ns: f64, before: &Window, since: &Window) -> Rank {
    let pair = |of: fn(&Machines) -> Option<f64>| Pair {
        own: of(&since.machines),
        like: of(&before.machines),
    };
    let wait = |of: fn(&Spent) -> f32| {
        let part = |it: &Window| it.spent.map(|it| f64::from(of(&it)) / step_ns);
        let pair = Pair {
            own: part(since),
            like: part(before),
        };
        // Nobody who measures it waits for nothing at all, before and since.
        let is_told = pair.own.is_some_and(|it| it > 0.0) || pair.like.is_some_and(|it| it > 0.0);
        if is_told { pair } else { Pair::default() }
    };
    Rank {
        slowness: ratio,
        sm_clock: pair(|it| it.sm_clock),
        heat_part: pair(|it| it.heat_part),
        brake_part: pair(|it| it.brake_part),
        cap_part: pair(|it| it.cap_part),
        steal: pair(|it| it.steal),
        cpu_pressure: pair(|it| it.cpu_pressure),
        memory_pressure: pair(|it| it.memory_pressure),
        io_pressure: pair(|it| it.io_pressure),
        data_wait: wait(|it| it.data_wait_ns),
        collective_wait: wait(|it| it.collective_wait_ns),
        ..Rank::default()
    }
}
