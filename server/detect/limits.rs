//! Readings over a limit, of machines, GPUs, model servers and ranks: what needs no peers to be wrong.
//!
//! What is read and how much is too much stands in one list ([`table`]); how it is judged is
//! [`gpufleet_analysis::limit`]. Of a reading that is as it should be one bit is kept for each limit and
//! resource; only the others have a state.
//!
//! Limits: [`MAX_STATES`] readings of a resource, of limits of which one is not as it should be, [`KEPT_BYTES`] each;
//! what is beyond is not judged. What was wrong before the server started, and of which no incident tells, is seen when
//! it grows.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::cause::Reading;
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::limit::{State, Test};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::{Metric, Unit};
use gpufleet_telemetry::identity::{Part, ResourceKind, attribute};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::before::Said;
use super::detector::{Detector, Findings, Finds, Need, TickSnapshot};
use super::gather::{Gpus, NodeSnapshots};
use super::stake;
use super::watch::reading;
use crate::fleet::Live;

pub(super) mod table;

#[cfg(test)]
mod tests;

use table::{COUNT, LIMITS, Limit, Read};

/// Most readings of a resource that are kept: 18 NVLinks and 16 network devices are a large machine.
const MAX_STATES: usize = 64;

/// From one reading to the next, nanoseconds, for what was well and is not.
const TICK_NS: i64 = 10 * NANOS_PER_SECOND;

/// A limit of the config that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("detect.limits: {0}")]
pub struct LimitError(String);

/// Refuses what is no limit.
///
/// # Errors
/// With the first that is none.
pub fn check(limits: &BTreeMap<String, f64>) -> Result<(), LimitError> {
    for (kind, limit) in limits {
        let known = || LIMITS.iter().filter(|it| it.test.has_limit());
        if !known().any(|it| it.kind == kind) {
            let mut names: Vec<&str> = known().map(|it| it.kind).collect();
            names.dedup();
            let names = names.join(", ");
            return Err(LimitError(format!(
                "{kind:?} is no limit of a reading; these are: {names}"
            )));
        }
        if !limit.is_finite() || *limit <= 0.0 {
            return Err(LimitError(format!("{kind} = {limit} is no number above 0")));
        }
    }
    Ok(())
}

/// What is kept of every resource, and what is wrong at this tick.
pub(super) struct Limits {
    /// The tests of [`LIMITS`], with the limits of the config.
    tests: [Test; COUNT],
    found: Vec<Exceeded>,
    unread: Vec<(Family, Place)>,
}

/// What is kept of one resource.
#[derive(Default)]
pub(super) struct Kept {
    /// The limits of which every reading was as it should be, one bit each.
    well: u32,
    states: Vec<(u8, Option<Arc<Part>>, State)>,
}

const _: () = assert!(size_of::<Kept>() <= 32);

/// Most bytes that are kept of a reading that is not as it should be.
const KEPT_BYTES: usize = 64;
const _: () = assert!(size_of::<(u8, Option<Arc<Part>>, State)>() <= KEPT_BYTES);

/// One reading that is wrong.
struct Exceeded {
    limit: &'static Limit,
    test: Test,
    place: Place,
    part: Option<Arc<Part>>,
    since: Timestamp,
    value: f64,
}

/// What a reading says.
enum Says {
    /// This.
    Value(f64),
    /// That there is nothing to judge: nobody waits, nobody holds it.
    Well,
}

/// Who looks at a reading: of which part, what it says, when.
type Look<'a> = dyn FnMut(Option<&Arc<Part>>, Says, Timestamp) + 'a;

impl Says {
    /// The value, where there is something to judge.
    const fn when(is_judged: bool, value: f64) -> Self {
        match is_judged {
            true => Self::Value(value),
            false => Self::Well,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let mut limits = Self {
            tests: [Test::Down; COUNT],
            found: Vec::new(),
            unread: Vec::new(),
        };
        limits.set(&BTreeMap::new());
        limits
    }
}

impl Limits {
    /// From now on with these limits.
    pub(super) fn set(&mut self, limits: &BTreeMap<String, f64>) {
        self.tests = std::array::from_fn(|index| {
            let limit = &LIMITS[index];
            let own = limits.get(limit.kind);
            own.map_or(limit.test, |own| limit.test.with(*own))
        });
    }

    /// A new tick.
    pub(super) fn begin(&mut self) {
        self.found.clear();
        self.unread.clear();
    }

    /// Takes in what is live of one resource.
    pub(super) fn look(&mut self, live: &Live, kept: &mut Kept, now: Timestamp) {
        for (index, limit) in (0_u8..).zip(&LIMITS) {
            if limit.read.of() == live.key.kind {
                kept.take(index, limit, self.tests[usize::from(index)], live);
            }
        }
        kept.states.retain(|(.., state)| !state.is_given_up(now));
        for (index, part, state) in &kept.states {
            let limit = &LIMITS[usize::from(*index)];
            let test = self.tests[usize::from(*index)];
            let Some(since) = state.is_over(test, limit.for_ns, now) else {
                continue;
            };
            if state.is_fresh(now) {
                self.found.push(Exceeded {
                    limit,
                    test,
                    place: place(live),
                    part: part.clone(),
                    since,
                    value: state.reading(test),
                });
            } else {
                self.unread.push((limit.family, place(live)));
            }
        }
    }

    /// What is wrong at this tick; of a kind of trouble one signal a place, and one a run, whatever its ranks.
    fn signals(&self, nodes: &NodeSnapshots, gpus: &Gpus<'_>) -> Vec<Signal> {
        let mut signals: BTreeMap<(&str, Place), Signal> = BTreeMap::new();
        for found in &self.found {
            let key = (found.limit.kind, run_of(&found.place));
            let signal = signals.entry(key).or_insert_with(|| found.signal());
            if signal.place != found.place {
                // Several ranks of a run, or parts of one place: the run's, and the place's.
                let (one, other) = (&signal.place, &found.place);
                let is_same = |of: fn(&Place) -> Option<&String>| of(one) == of(other);
                let (is_node, is_gpu) = (
                    is_same(|it| it.node.as_ref()),
                    is_same(|it| it.gpu.as_ref()),
                );
                signal.place.rank = None;
                signal.place.gpu = signal.place.gpu.take().filter(|_| is_gpu);
                signal.place.node = signal.place.node.take().filter(|_| is_node);
            }
            signal.since = signal.since.min(Some(found.since));
        }
        let mut signals: Vec<Signal> = signals.into_values().collect();
        for signal in &mut signals {
            let Some(node) = &signal.place.node else {
                continue;
            };
            let name = (Arc::from(&*signal.place.cluster), Arc::from(&**node));
            signal.booted_at = nodes.get(&name).and_then(|it| it.booted);
            let gpu = signal.place.gpu.as_deref();
            let seen = gpu.and_then(|gpu| gpus.get(&(signal.place.cluster.as_str(), gpu)));
            if let (Family::Idle, Some(seen)) = (signal.family, seen) {
                // What it uses at most is not lost.
                let used = signal.readings.first().map_or(0.0, |it| it.value);
                let losing = Losing::part(1, 1.0 - used, seen.price);
                signal.price = Price::of(Basis::PartUnused, losing);
                signal.place.run = seen.alike.job.as_deref().map(str::to_owned);
            }
        }
        signals
    }
}

impl Detector for Limits {
    fn finds(&self) -> Vec<Finds> {
        let of = |it: &Limit| {
            let needs: Vec<Need> = it.read.metrics().into_iter().map(Need::Reading).collect();
            Finds::of(it.kind, it.family, &needs, it.prices())
        };
        LIMITS.iter().map(of).collect()
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let mut signals = self.signals(tick.nodes, tick.gpus);
        let of_runs = |it: &&mut Signal| it.price.basis == Basis::NoRunKnown;
        stake::price(signals.iter_mut().filter(of_runs), tick);
        found.signals.extend(signals);
        found.unread.append(&mut self.unread);
    }
}

impl Kept {
    /// Of a resource of which this was said before the server started: what was over a limit is, until a reading says
    /// otherwise. Of several parts of one place the first was named.
    pub(super) fn resumed(kind: ResourceKind, said: &[&Said], now: Timestamp) -> Self {
        let of = |said: &&Said| {
            let mut all = (0_u8..).zip(&LIMITS).filter(|it| it.1.read.of() == kind);
            let (index, limit) = all.find(|it| it.1.what == said.what)?;
            let told = said.readings.first()?;
            let times = (said.since, said.seen_at);
            let state = State::resumed(limit.test, times, told.value, now);
            Some((index, limit.part_of(&told.name).map(Arc::new), state))
        };
        Self {
            well: 0,
            states: said.iter().filter_map(of).take(MAX_STATES).collect(),
        }
    }

    fn take(&mut self, index: u8, limit: &'static Limit, test: Test, live: &Live) {
        let bit = 1_u32 << (index % 32);
        let was_well = self.well & bit != 0;
        let (mut are_well, mut is_any) = (true, false);
        let is_ones = |it: &(u8, Option<Arc<Part>>, State)| it.0 == index;
        // Beside one that is not as it should be the others are remembered too: which of them changes?
        let are_kept = self.states.iter().any(is_ones);
        read(limit.read, live, &mut |part, says, at| {
            is_any = true;
            let is_own = |it: &(u8, Option<Arc<Part>>, State)| is_ones(it) && it.1.as_ref() == part;
            let known = self.states.iter().position(is_own);
            let Says::Value(value) = says else {
                if let Some(known) = known {
                    self.states.swap_remove(known);
                }
                return;
            };
            are_well &= test.well() == Some(value);
            if let Some(known) = known {
                self.states[known].2.observe(test, value, at);
                return;
            }
            let state = first(test, was_well, value, at);
            let is_kept = are_kept || !state.is_nothing(test);
            if is_kept && self.states.len() < MAX_STATES {
                self.states.push((index, part.cloned(), state));
            }
        });
        let is_nothing = |it: &(u8, Option<Arc<Part>>, State)| it.2.is_nothing(test);
        if self.states.iter().filter(|it| is_ones(it)).all(is_nothing) {
            self.states.retain(|it| !is_ones(it));
        }
        if is_any {
            self.well = if are_well {
                self.well | bit
            } else {
                self.well & !bit
            };
        }
    }
}

/// A reading of which nothing is kept: what it was before is known where all were as they should be.
fn first(test: Test, was_well: bool, value: f64, at: Timestamp) -> State {
    match test.well().filter(|_| was_well) {
        Some(well) => {
            let mut state = State::first(test, well, at.shifted(-TICK_NS));
            state.observe(test, value, at);
            state
        }
        None => State::first(test, value, at),
    }
}

/// Hands out the readings of a resource, each with its part and its time.
fn read(read: Read, live: &Live, look: &mut Look<'_>) {
    let value = |metric: &Metric| reading(live, metric);
    let says = match read {
        Read::Plain(metric) if metric.part.is_some() => {
            for known in live.parts(metric.id) {
                if let Some(value) = known.reading.ok().filter(|it| it.is_finite()) {
                    look(known.part.as_ref(), Says::Value(value), known.at);
                }
            }
            None
        }
        Read::Plain(metric) => value(metric).map(|(own, at)| (Says::Value(own), at)),
        Read::Share(part, whole) => value(part)
            .zip(value(whole))
            .filter(|(_, (whole, _))| *whole > 0.0)
            .map(|((own, at), (whole, _))| (Says::Value(own / whole), at)),
        Read::Margin(own, up_to) => value(own)
            .zip(value(up_to))
            .map(|((own, at), (up_to, _))| (Says::Value(up_to - own), at)),
        Read::Fabric(metric) => value(metric).map(|(mask, at)| (Says::Value(fabric(mask)), at)),
        Read::Behind(then, now) => value(then)
            .zip(value(now))
            .map(|((then, _), (now, at))| (Says::Value(now - then), at)),
        Read::Held(metric) => value(metric).map(|(own, at)| {
            let is_at_work = live.bits.held != 0 && live.bits.active != 0;
            (Says::when(is_at_work, own), at)
        }),
        Read::Stuck(done, waiting) => value(done)
            .zip(value(waiting))
            .map(|((done, at), (waiting, _))| (Says::when(waiting > 0.0, done), at)),
    };
    if let Some((says, at)) = says {
        look(None, says, at);
    }
}

/// NVML's mask: two bits each, of which 1 is true. Degraded bandwidth is the lowest, an unhealthy route the
/// third.
fn fabric(mask: f64) -> f64 {
    let mask = mask as u32;
    let is_bad = mask & 3 == 1 || (mask >> 4) & 3 == 1;
    if is_bad { 1.0 } else { 0.0 }
}

fn place(live: &Live) -> Place {
    let (cluster, node, id) = (&*live.key.cluster, &*live.node, &*live.key.id);
    let at_node = || match node {
        "" => Place {
            cluster: cluster.to_owned(),
            ..Place::default()
        },
        node => Place::node(cluster, node),
    };
    match live.key.kind {
        ResourceKind::Gpu | ResourceKind::Share => Place {
            gpu: Some(id.to_owned()),
            ..at_node()
        },
        ResourceKind::Rank => {
            let (run, rank) = id.rsplit_once('/').unwrap_or((id, ""));
            Place {
                gpu: live
                    .resource
                    .attribute(attribute::GPU_ID)
                    .filter(|it| !it.is_empty())
                    .map(str::to_owned),
                run: Some(run.to_owned()),
                rank: rank.parse().ok(),
                ..at_node()
            }
        }
        ResourceKind::Endpoint => Place {
            run: Some(id.to_owned()),
            ..at_node()
        },
        ResourceKind::Node => at_node(),
    }
}

/// What the signals of several ranks have in common.
fn run_of(place: &Place) -> Place {
    match &place.run {
        Some(run) => Place {
            cluster: place.cluster.clone(),
            run: Some(run.clone()),
            ..Place::default()
        },
        None => place.clone(),
    }
}

impl Exceeded {
    fn signal(&self) -> Signal {
        let limit = self.limit;
        let (_, unit) = limit.reading;
        let name = limit.name_of(self.part.as_deref());
        // A link that is up reads 1; that it should is no news.
        let usual = Some(self.test.limit()).filter(|it| *it != 0.0 && unit != Unit::Flag);
        Signal {
            family: limit.family,
            place: self.place.clone(),
            severity: limit.severity,
            what: limit.what.to_owned(),
            action: limit.action.to_owned(),
            remedy: limit.remedy,
            cause: limit.cause,
            since: Some(self.since),
            readings: vec![Reading::new(&name, self.value, usual, unit)],
            price: Price::none(limit.price),
            confidence: None,
            booted_at: None,
        }
    }
}
