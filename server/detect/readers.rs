//! What agents that are heard cannot read: a reader that has read nothing for minutes, and readings that the
//! driver refuses. What is missing so would show no trouble, and nobody else says that it is missing.
//!
//! Method: a reader fails when [`FAILS_FOR_NS`] have passed since it last read something, whether it says so
//! or stands; before its first round, and where there is nothing for it to read, it says nothing. Of readings
//! that are refused one is enough, for [`REFUSED_FOR_NS`].
//!
//! Limits: [`MAX_READERS`] of a node; further ones are not judged. A server that starts knows since when a
//! reader fails that has read before, and counts anew for the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::{Unit, gpu, own};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::detector::{Detector, Findings, Finds, Need, TickSnapshot};
use super::gather::NodeName;
use super::seconds_since;
use super::watch::GAP_S;
use crate::fleet::{Live, LiveValue};

/// A reader that has read nothing for this long fails, nanoseconds. As its rule in `alerts/rules/agent.yml`.
const FAILS_FOR_NS: i64 = 300 * NANOS_PER_SECOND;

/// One that stands is found again in this time after a start, seconds.
const LEARNS_S: i64 = FAILS_FOR_NS / NANOS_PER_SECOND + 60;

/// What is said of one that fails.
const FAILS: &str = "a reader of its agent fails";

/// Readings that were refused for this long are told, nanoseconds. As their rule has it.
const REFUSED_FOR_NS: i64 = 600 * NANOS_PER_SECOND;

/// Most readers of a node: an agent has about ten.
const MAX_READERS: usize = 32;

/// A node that was not seen for this long is forgotten, nanoseconds.
const FORGET_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// What is kept of every node from tick to tick.
#[derive(Default)]
pub(super) struct Readers {
    nodes: HashMap<NodeName, Kept>,
}

/// What is kept of one.
#[derive(Default)]
struct Kept {
    seen: Timestamp,
    readers: Vec<Reader>,
    /// Since when readings are refused.
    refused_since: Option<Timestamp>,
    /// How many are, by this tick.
    refused: u32,
    /// Whether the node is heard, by this tick.
    is_heard: bool,
    /// Which reader fails since when, by this tick.
    failing: BTreeMap<Arc<str>, Timestamp>,
    /// Whether one fails that may be told soon: what was told before is not over.
    may_fail: bool,
}

/// One reader.
struct Reader {
    name: Arc<str>,
    /// When it last read something, as its agent says, seconds since 1970.
    last: Option<f64>,
    /// When that last became another, by the server's time.
    moved: Timestamp,
    /// When it was last told of.
    told: Timestamp,
}

impl Readers {
    /// A new tick.
    pub(super) fn begin(&mut self) {
        for kept in self.nodes.values_mut() {
            kept.failing.clear();
            (kept.refused, kept.may_fail, kept.is_heard) = (0, false, false);
        }
    }

    /// Takes in what is live of one resource, of which so many readings are [`refused`]; those of a GPU count.
    pub(super) fn look(&mut self, live: &Live, refused: usize, now: Timestamp) {
        let is_node = live.key.kind == ResourceKind::Node;
        let refused = match live.key.kind {
            ResourceKind::Gpu => refused,
            _ => 0,
        };
        if live.node.is_empty() || !is_node && refused == 0 {
            return;
        }
        let name = (Arc::clone(&live.key.cluster), Arc::clone(&live.node));
        let kept = self.nodes.entry(name).or_default();
        kept.seen = now;
        kept.refused = kept
            .refused
            .saturating_add(u32::try_from(refused).unwrap_or(u32::MAX));
        if is_node {
            kept.is_heard = seconds_since(now, live.last_point) <= GAP_S;
            for told in live.parts(own::READER_SUCCESS.id) {
                kept.take(live, told, now);
            }
        }
    }
}

impl Detector for Readers {
    fn finds(&self) -> Vec<Finds> {
        let prices = &[Basis::NotObserved, Basis::GpusObserved];
        let of = |name, metric| Finds::of(name, Family::Blind, &[Need::Reading(metric)], prices);
        vec![
            of("a reader that fails", &own::READER_SUCCESS).learns(&[FAILS], LEARNS_S),
            of("readings that the driver refuses", &gpu::OBSERVED),
        ]
    }

    /// One signal a node and kind of trouble.
    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let now = tick.now;
        let mut signals = Vec::new();
        self.nodes.retain(|_, it| now.since(it.seen) < FORGET_NS);
        for ((cluster, node), kept) in &mut self.nodes {
            match kept.refused > 0 {
                true => _ = kept.refused_since.get_or_insert(now),
                false if kept.is_heard => kept.refused_since = None,
                false => {}
            }
            let place = Place::node(cluster, node);
            let refuses = kept.refuses(&place, now);
            let may_refuse = kept.refused > 0 && refuses.is_none();
            signals.extend(kept.fails(&place, now));
            signals.extend(refuses);
            if kept.may_fail || may_refuse {
                found.unread.push((Family::Blind, place));
            }
        }
        price(&mut signals, tick);
        found.signals.extend(signals);
    }
}

/// What of their nodes' GPU time nobody can account for, of signals that there are.
fn price(signals: &mut [Signal], tick: &TickSnapshot<'_>) {
    if signals.is_empty() {
        return;
    }
    let mut unobserved: HashMap<(&str, &str), Losing> = HashMap::new();
    let all = tick.seen.iter();
    for seen in all.filter(|it| it.status.state == State::Unobserved) {
        let of_node = unobserved.entry((&seen.cluster, &seen.node)).or_default();
        *of_node = of_node.and(&Losing::gpus(1, seen.price));
    }
    for signal in signals {
        let node = signal.place.node.as_deref().unwrap_or_default();
        let gpus = unobserved.get(&(signal.place.cluster.as_str(), node));
        signal.price = Price::measured(gpus.copied(), Basis::NotObserved, Basis::GpusObserved);
    }
}

impl Kept {
    fn take(&mut self, live: &Live, told: &LiveValue, now: Timestamp) {
        let (Some(part), Ok(success)) = (&told.part, told.reading) else {
            return;
        };
        // What is not told any more says nothing of now: its reader may be turned off.
        if seconds_since(now, told.at) > GAP_S {
            return;
        }
        let is_failing = success == 0.0;
        let mut lasts = live.parts(own::READER_LAST_SUCCESS.id);
        let last = lasts.find(|it| it.part.as_ref() == Some(part));
        let last = last.and_then(|it| it.reading.ok()).filter(|it| *it > 0.0);
        let known = self.readers.iter().position(|it| it.name == part.id);
        let reader = match known {
            Some(known) => &mut self.readers[known],
            None if self.readers.len() < MAX_READERS => {
                // Since it last read something, where that is known of one that fails.
                let since = last.filter(|_| is_failing);
                let since = since.map_or(told.at, |it| Timestamp::from_millis((it * 1e3) as i64));
                self.readers.push(Reader {
                    name: Arc::clone(&part.id),
                    last,
                    moved: since.min(told.at),
                    told: told.at,
                });
                self.readers.last_mut().expect("it was just put in")
            }
            None => return,
        };
        let has_read = last.is_some() && last != reader.last;
        // What was between is not known: a machine that comes up has its driver later than its agent.
        let was_failing = reader.told.since(reader.moved) >= FAILS_FOR_NS;
        let is_new = seconds_since(told.at, reader.told) > GAP_S && !was_failing;
        if has_read || is_new || !is_failing && last.is_none() {
            reader.moved = told.at;
        }
        (reader.last, reader.told) = (last.or(reader.last), told.at);
        if told.at.since(reader.moved) >= FAILS_FOR_NS {
            self.failing.insert(Arc::clone(&part.id), reader.moved);
        } else {
            self.may_fail |= is_failing;
        }
    }

    fn fails(&self, place: &Place, now: Timestamp) -> Option<Signal> {
        let since = self.failing.values().min()?;
        let readings = self.failing.iter().map(|(name, since)| {
            let name = format!("without a reading, {name}");
            Reading::new(&name, seconds_since(now, *since), None, Unit::Seconds)
        });
        Some(Signal {
            since: Some(*since),
            readings: readings.collect(),
            ..signal(
                place,
                FAILS,
                "gpufleet-agent doctor on the node says why and what mends it; what it reads is missing until then, not zero.",
            )
        })
    }

    fn refuses(&self, place: &Place, now: Timestamp) -> Option<Signal> {
        let since = self.refused_since?;
        if now.since(since) < REFUSED_FOR_NS {
            return None;
        }
        let count = f64::from(self.refused);
        Some(Signal {
            since: Some(since),
            readings: vec![Reading::new(
                "readings of its GPUs missing",
                count,
                None,
                Unit::Count,
            )],
            ..signal(
                place,
                "the driver refuses readings",
                "The agent lacks a right, or the driver was replaced or unloaded under it: gpufleet-agent doctor on the node says which; after an update of the driver restart the agent.",
            )
        })
    }
}

/// How many readings of a resource the driver refuses.
pub(super) fn refused(live: &Live, now: Timestamp) -> usize {
    live.values.iter().filter(|it| is_refused(it, now)).count()
}

/// Whether a reading is missing because the agent lacks a right, or its driver is not the one any more.
fn is_refused(value: &LiveValue, now: Timestamp) -> bool {
    let is_so = matches!(
        value.reading,
        Err(Missing::NoPermission | Missing::LibraryMismatch | Missing::DriverNotLoaded)
    );
    is_so && seconds_since(now, value.at) <= GAP_S
}

fn signal(place: &Place, what: &str, action: &str) -> Signal {
    Signal {
        family: Family::Blind,
        place: place.clone(),
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        remedy: Remedy::Look,
        cause: Cause::Reader,
        since: None,
        readings: Vec::new(),
        price: Price::none(Basis::GpusObserved),
        confidence: None,
        booted_at: None,
    }
}

#[cfg(test)]
mod tests;
