//! What was wrong when this server took over, by its open incidents: the store keeps no state of a detector, and one
//! that learns anew what is usual would learn it from what is wrong.
//!
//! What was said of a place, with its readings ([`Said`]), is handed to who holds something against what was before:
//! links, counters, limits, idle GPUs and runs are judged on from it. Of what is found only after a while of looking
//! ([`Finds::learns`]) the silence of its detector says nothing in that time, unless it has told of it again.
//!
//! Limits: what belongs to a place is handed to what is met within [`MET_NS`], and forgotten after [`KEPT_NS`]; nothing
//! is waited for at a run that has ended or a job that holds nothing.

use std::collections::HashMap;

use gpufleet_analysis::cause::Reading;
use gpufleet_analysis::incident::{Family, Incident, Place, Signal, Standing};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::detector::Finds;
use super::runs::{COMPUTED, STANDS};
use crate::runs::RunKey;
use crate::store::model::ResourceKey;

/// What is met so long after the start is new, or has been away: what was said of its name says nothing of it.
const MET_NS: i64 = 600 * NANOS_PER_SECOND;

/// A day: by then whoever judges on from it does so by itself.
const KEPT_NS: i64 = 86_400 * NANOS_PER_SECOND;

/// What was said of a place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) place: Place,
    /// In the words of its signal.
    pub(super) what: String,
    /// Since when it was so.
    pub(super) since: Timestamp,
    /// When its incident was last signalled.
    pub(super) seen_at: Timestamp,
    /// What was read when it was first said, or last where that says more.
    pub(super) readings: Vec<Reading>,
}

/// All that was said of what is not over.
#[derive(Debug, Default)]
pub(super) struct Before {
    started: Timestamp,
    said: Vec<Said>,
    /// Where something is in it, by the id of a GPU, else the name of a node, and by the run or job.
    about: HashMap<String, Vec<usize>>,
    awaited: Vec<Awaited>,
}

/// An incident of which its detector may have nothing to say yet.
#[derive(Debug, Clone)]
pub(super) struct Awaited {
    family: Family,
    place: Place,
    until: Timestamp,
}

impl Said {
    /// What was read by this name.
    pub(super) fn reading(&self, name: &str) -> Option<&Reading> {
        self.readings.iter().find(|it| it.name == name)
    }

    /// Whether it is about this resource itself; of a rank where it names none, about each of its run.
    fn is_of(&self, kind: ResourceKind, id: &str, rank: Option<u32>) -> bool {
        let place = &self.place;
        let is = |own: &Option<String>| own.as_deref() == Some(id);
        match kind {
            ResourceKind::Gpu | ResourceKind::Share => is(&place.gpu),
            ResourceKind::Node => is(&place.node) && place.gpu.is_none(),
            ResourceKind::Endpoint => is(&place.run),
            ResourceKind::Rank => is(&place.run) && (place.rank.is_none() || place.rank == rank),
        }
    }
}

impl Before {
    /// Of these open incidents, by what detectors find.
    pub(super) fn of(open: &[Incident], finds: &[Finds], now: Timestamp) -> Self {
        let mut before = Self {
            started: now,
            ..Self::default()
        };
        for incident in open {
            for it in &incident.evidence {
                before.push(Said {
                    place: it.place.clone(),
                    what: it.what.clone(),
                    since: it.at,
                    seen_at: incident.seen_at,
                    readings: it.readings.clone(),
                });
            }
            // Of many runs in one incident some have no piece of evidence of their own.
            for (run, stood) in &incident.standing {
                if let Some(last) = stood.last().filter(|it| !it.is_over) {
                    before.push(standing(incident, run, last));
                }
            }
            let mut said: Vec<&str> = incident.evidence.iter().map(|it| &*it.what).collect();
            said.push(&incident.what);
            let own = finds.iter().filter(|it| it.family == incident.family);
            if let Some(seconds) = own.filter_map(|it| it.learns_s(&said)).max() {
                before.awaited.push(Awaited {
                    family: incident.family,
                    place: incident.place.clone(),
                    until: now.shifted(seconds * NANOS_PER_SECOND),
                });
            }
        }
        before
    }

    fn push(&mut self, said: Said) {
        let place = &said.place;
        let resource = place.gpu.as_ref().or(place.node.as_ref());
        for id in resource.into_iter().chain(&place.run) {
            let about = self.about.entry(id.clone()).or_default();
            about.push(self.said.len());
        }
        self.said.push(said);
    }

    /// When the server took over.
    pub(super) const fn started(&self) -> Timestamp {
        self.started
    }

    /// What was said in these words, wherever.
    pub(super) fn said(&self, what: &str) -> impl Iterator<Item = &Said> {
        self.said.iter().filter(move |it| it.what == what)
    }

    /// Whether these words were said of a node itself.
    pub(super) fn is_said_of(&self, cluster: &str, node: &str, what: &str) -> bool {
        let known = self.about.get(node).into_iter().flatten();
        let mut said = known.map(|at| &self.said[*at]).filter(|it| it.what == what);
        said.any(|it| it.place == Place::node(cluster, node))
    }

    /// What was said of a resource that is met now for the first time.
    pub(super) fn about(&self, key: &ResourceKey, now: Timestamp) -> Vec<&Said> {
        if self.said.is_empty() || now.since(self.started) > MET_NS {
            return Vec::new();
        }
        let (id, rank) = match (key.kind, key.id.rsplit_once('/')) {
            (ResourceKind::Rank, Some((run, rank))) => (run, rank.parse().ok()),
            _ => (&*key.id, None),
        };
        let is_it = |it: &&Said| *it.place.cluster == *key.cluster && it.is_of(key.kind, id, rank);
        let known = self.about.get(id).into_iter().flatten();
        known.map(|at| &self.said[*at]).filter(is_it).collect()
    }

    /// Since when a run stands, if it stood; and whether it was said to have computed without a step.
    pub(super) fn stood(&self, key: &RunKey) -> Option<(Timestamp, bool)> {
        if self.said.is_empty() {
            return None;
        }
        let is_it = |it: &&Said| {
            let is_said = STANDS.iter().any(|words| it.what.starts_with(words));
            is_said && *it.place.cluster == *key.cluster
        };
        let known = self.about.get(&key.run.to_string());
        let known = known.into_iter().flatten().map(|at| &self.said[*at]);
        let stood = known
            .filter(is_it)
            .map(|it| (it.since, it.what.starts_with(COMPUTED)));
        stood.reduce(|one, other| (one.0.min(other.0), one.1 || other.1))
    }

    /// Whether its detector may have nothing to say yet of an incident of this family at this place.
    pub(super) fn awaits(&self, family: Family, place: &Place, now: Timestamp) -> bool {
        let mut awaited = self.awaited.iter().filter(|it| it.family == family);
        awaited.any(|it| now < it.until && it.place.overlaps(place))
    }

    /// What is still waited for after these signals: whoever speaks of something again can also say that it is over.
    pub(super) fn awaited(&self, signals: &[Signal], now: Timestamp) -> Vec<Awaited> {
        let is_told = |it: &Awaited| {
            let mut own = signals.iter().filter(|signal| signal.family == it.family);
            own.any(|signal| signal.place.overlaps(&it.place))
        };
        let awaited = self.awaited.iter();
        let awaited = awaited.filter(|it| now < it.until && !is_told(it));
        awaited.cloned().collect()
    }

    /// Keeps what is still of use after a tick.
    pub(super) fn keep(&mut self, awaited: Vec<Awaited>, now: Timestamp) {
        self.awaited = awaited;
        if now.since(self.started) > KEPT_NS {
            (self.said, self.about) = (Vec::new(), HashMap::new());
        }
    }
}

/// One of many runs that stand for one cause.
fn standing(incident: &Incident, run: &str, last: &Standing) -> Said {
    Said {
        place: Place {
            cluster: incident.place.cluster.clone(),
            run: Some(run.to_owned()),
            ..Place::default()
        },
        what: STANDS[0].to_owned(),
        since: last.from,
        seen_at: last.until,
        readings: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
