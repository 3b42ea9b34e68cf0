//! The circuit breaker of runs: the same trouble of many runs within minutes has one cause that they share, as
//! storage, a network or a service is, and is one incident of their cluster where there would be hundreds.
//!
//! Method: more than [`BREAKER_RUNS`] runs, and more than one in [`BREAKER_PART`] of those that are watched, have
//! trouble of a family that nothing explains, and none of these an incident of it that opened longer than
//! [`BREAKER_WITHIN_NS`] ago: such goes on by itself. Younger ones are taken in. While so many are in it others join;
//! each is in it until its own trouble is over, also when the others are well again, and the incident is over with
//! the last. What the trouble of a run explains of it has no incident of its own meanwhile.
//!
//! Limits: the runs are named by the evidence, [`super::MAX_EVIDENCE`] of them, beside how many there are. Who is in
//! it is kept in memory, as many as runs are watched: a server that begins anew takes in what is in trouble while
//! nothing resolves yet. Which of them stood, and when, is kept with the incident (`stood`), for the ledger.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::time::Timestamp;

use super::book::Book;
use super::group::Group;
use super::{BREAKER_PART, Family, Incident, Place, Remedy, State};
use crate::cause::Cause;
use crate::lost::Lost;

/// More runs than this with the same trouble: as many nodes are chance too, and a fleet of few runs has each in view.
pub const BREAKER_RUNS: usize = 5;
/// An incident that opened longer ago had a cause before, nanoseconds: detectors tell one outage of runs with short
/// and with long steps minutes apart.
pub const BREAKER_WITHIN_NS: i64 = 300 * 1_000_000_000;

/// What to do about a trouble that many runs have at once.
const ACTION: &str = "Look at what these runs share: storage, the network, a service they all ask, a change to the \
                      cluster within these minutes.";

/// A family in a cluster.
type Circuit = (Family, String);

/// By circuit the runs in its incident, with when each was last in trouble.
pub(super) type Circuits = BTreeMap<Circuit, BTreeMap<String, Timestamp>>;

impl Book {
    /// Puts together the groups of runs that have one cause.
    pub(super) fn broken(
        &mut self,
        groups: Vec<Group>,
        watched: &BTreeMap<String, usize>,
        now: Timestamp,
    ) -> Vec<Group> {
        self.forget_circuits();
        let mut troubled: BTreeMap<Circuit, BTreeSet<String>> = BTreeMap::new();
        for (circuit, run) in groups.iter().filter_map(circuit_of) {
            troubled.entry(circuit).or_default().insert(run);
        }
        let mut new = BTreeSet::new();
        // What explains others comes first.
        for (circuit, mut runs) in troubled {
            runs.retain(|run| self.explaining(&circuit, run).is_none());
            let watched = watched.get(&circuit.1).copied().unwrap_or(0);
            for run in self.together(&circuit, runs, watched, now) {
                let known = self.circuits.entry(circuit.clone()).or_default();
                if known.insert(run.clone(), now).is_none() {
                    new.insert((circuit.clone(), run));
                }
            }
        }
        let mut wide: BTreeMap<Circuit, Group> = BTreeMap::new();
        let mut others = Vec::new();
        for group in groups {
            let Some((circuit, run)) = circuit_of(&group) else {
                others.push(group);
                continue;
            };
            let is_in = |runs: &BTreeMap<String, Timestamp>| runs.get(&run) == Some(&now);
            if self.circuits.get(&circuit).is_some_and(is_in) {
                // Once a run, of however many of its ranks it is told.
                let is_new = new.remove(&(circuit.clone(), run.clone()));
                let lost = is_new.then(|| self.lost_before(&circuit, &group, now));
                let all = wide.entry(circuit).or_insert_with(|| group.widened());
                all.before.join(&lost.unwrap_or_default());
                all.signals.extend(group.signals);
                all.explained.extend(group.explained);
            } else if let Some(cause) = self.explaining(&circuit, &run) {
                if let Some(cause) = wide.get_mut(&cause) {
                    cause.explained.extend(group.signals);
                }
            } else {
                others.push(group);
            }
        }
        let wide = wide.into_values().map(Group::told_together);
        wide.chain(others).collect()
    }

    /// Which of the runs in trouble belong to the circuit's incident.
    fn together(
        &self,
        circuit: &Circuit,
        mut runs: BTreeSet<String>,
        watched: usize,
        now: Timestamp,
    ) -> BTreeSet<String> {
        let known = self.circuits.get(circuit);
        let is_known = |run: &String| known.is_some_and(|it| it.contains_key(run));
        let before = now.shifted(-BREAKER_WITHIN_NS);
        let of_old = self
            .incidents
            .iter()
            .filter(|it| it.state == State::Open && it.opened_at.is_some_and(|at| at < before));
        let of_old = of_old.filter(|it| it.circuit().as_ref() == Some(circuit));
        let old: BTreeSet<&String> = of_old.filter_map(|it| it.place.run.as_ref()).collect();
        runs.retain(|run| is_known(run) || !old.contains(run));
        // Of how many is not known where none is watched.
        let is_wide =
            runs.len() > BREAKER_RUNS && (1..runs.len() * BREAKER_PART).contains(&watched);
        if !is_wide && !self.is_restored(circuit, now) {
            runs.retain(is_known);
        }
        runs
    }

    /// Whether the circuit's incident was read from the store a moment ago: who is in it is not known any more.
    fn is_restored(&self, circuit: &Circuit, now: Timestamp) -> bool {
        let mut all = self.incidents.iter();
        all.any(|it| it.is_broken(circuit) && it.clear_from > now)
    }

    /// The circuit that has this run in it and explains trouble of this one.
    fn explaining(&self, (family, cluster): &Circuit, run: &str) -> Option<Circuit> {
        let is_it = |((cause, of), runs): &(&Circuit, &BTreeMap<String, Timestamp>)| {
            of == cluster && cause.explains(*family) && runs.contains_key(run)
        };
        self.circuits.iter().find(is_it).map(|(it, _)| it.clone())
    }

    /// What a run lost before it came in, where no incident of its own counted that.
    fn lost_before(&self, circuit: &Circuit, group: &Group, now: Timestamp) -> Lost {
        let mut lost = Lost::default();
        let is_counted = self.incidents.iter().any(|it| {
            it.state == State::Open && it.family == circuit.0 && it.is_of_a_run_in(group)
        });
        let since = group.signals.iter().filter_map(|it| it.since).min();
        if let Some(since) = since.filter(|_| !is_counted && !self.is_restored(circuit, now)) {
            lost.add(since, now, &group.price().lost());
        }
        lost
    }

    /// Circuits whose incident is over, or never came to be, are closed again.
    fn forget_circuits(&mut self) {
        let incidents = &self.incidents;
        let is_on = |circuit: &Circuit| incidents.iter().any(|it| it.is_broken(circuit));
        self.circuits.retain(|circuit, _| is_on(circuit));
    }

    /// Lets go the runs whose trouble is over as far as it is `heard`.
    pub(super) fn clear_circuits(
        &mut self,
        heard: &dyn Fn(Family, &Place) -> bool,
        now: Timestamp,
    ) {
        for ((family, cluster), runs) in &mut self.circuits {
            runs.retain(|run, last| {
                let place = of_run(cluster, run);
                *last = if heard(*family, &place) {
                    now.min(*last)
                } else {
                    now
                };
                now.since(*last) < family.clear_ns()
            });
        }
    }

    /// Notes of the runs that stand for one cause which do no more: those that are not in it any more, and until they are
    /// those that are not heard.
    pub(super) fn let_go(&mut self, now: Timestamp) {
        let wide = self.incidents.iter_mut();
        for incident in wide.filter(|it| !it.standing.is_empty()) {
            // Read from the store a moment ago: nothing was heard of them yet.
            let is_restored = incident.clear_from > now;
            let runs = incident.circuit().and_then(|it| self.circuits.get(&it));
            for (run, times) in &mut incident.standing {
                let last = runs.and_then(|runs| runs.get(run));
                for it in times.iter_mut().filter(|it| it.until < now) {
                    match last {
                        Some(last) => it.is_heard = *last < now,
                        None => it.is_over |= !is_restored,
                    }
                }
            }
        }
    }

    /// By circuit whether a run of it is not heard, or still in trouble.
    pub(super) fn is_unheard_in(&self, incident: &Incident, now: Timestamp) -> bool {
        let runs = incident.circuit().and_then(|it| self.circuits.get(&it));
        incident.place.run.is_none() && runs.is_some_and(|it| it.values().any(|at| *at == now))
    }
}

impl Incident {
    /// Its family and cluster, of trouble of runs.
    fn circuit(&self) -> Option<Circuit> {
        let is_one = self.family.is_of_run();
        is_one.then(|| (self.family, self.place.cluster.clone()))
    }

    /// Whether it is the incident of this circuit, and not over.
    fn is_broken(&self, circuit: &Circuit) -> bool {
        let is_wide = self.place.run.is_none() && self.place.node.is_none();
        is_wide && self.state != State::Resolved && self.circuit().as_ref() == Some(circuit)
    }

    /// Whether it is of one run that is in this group with others.
    pub(super) fn is_of_a_run_in(&self, group: &Group) -> bool {
        let is_its = |run: &String| {
            let mut all = group.signals.iter().map(|it| &it.place);
            all.any(|it| it.cluster == self.place.cluster && it.run.as_ref() == Some(run))
        };
        self.family == group.family && self.place.run.as_ref().is_some_and(is_its)
    }
}

impl Group {
    /// Whether it is of several runs that have one cause.
    pub(super) fn is_of_runs(&self) -> bool {
        let is_wide = self.place.run.is_none() && self.family.is_of_run();
        is_wide && self.signals.iter().all(|it| it.place.run.is_some())
    }

    /// The same of its whole cluster, empty.
    fn widened(&self) -> Self {
        Self {
            family: self.family,
            place: Place {
                cluster: self.place.cluster.clone(),
                ..Place::default()
            },
            signals: Vec::new(),
            explained: Vec::new(),
            before: Lost::default(),
        }
    }

    /// What one run's detector says to do, and why, is not what all have: a cause only where all tell the same.
    fn told_together(mut self) -> Self {
        let causes: BTreeSet<&str> = self.signals.iter().map(|it| it.cause.name()).collect();
        let is_one = causes.len() == 1;
        for signal in &mut self.signals {
            ACTION.clone_into(&mut signal.action);
            signal.remedy = Remedy::Look;
            if !is_one {
                signal.cause = Cause::Unknown;
            }
        }
        self
    }
}

fn circuit_of(group: &Group) -> Option<(Circuit, String)> {
    let run = group
        .place
        .run
        .clone()
        .filter(|_| group.family.is_of_run())?;
    Some(((group.family, group.place.cluster.clone()), run))
}

fn of_run(cluster: &str, run: &str) -> Place {
    Place {
        cluster: cluster.to_owned(),
        run: Some(run.to_owned()),
        ..Place::default()
    }
}
