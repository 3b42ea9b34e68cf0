//! The book of incidents: moves each on with the groups of a tick.
//!
//! A group belongs to the incidents of its family whose place overlaps its own: to the oldest of them,
//! which grows to the group's place, takes the others in, and never shrinks again. Of a run that stands it is the
//! incident of that run, which goes to the rank that the run waits for once that is found. A group that belongs to none
//! begins a pending one, unless an open incident has explained it already.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::breaker::Circuits;
use super::explained::{StoodLately, may_stand};
use super::group::{Group, Nodes, by_trouble, groups, waiting};
use super::outage::Outage;
use super::{BOOT_QUIET_NS, Family, Happened, Incident, MAX_INCIDENTS, Place, Signal, State};

/// After a restart nothing is resolved for this long, nanoseconds: detectors that look at a window
/// have nothing to say before it is full.
pub(super) const SETTLE_NS: i64 = 120 * 1_000_000_000;

/// What is known at a tick.
pub struct Tick<'a> {
    /// Now.
    pub now: Timestamp,
    /// What detectors say.
    pub signals: Vec<Signal>,
    /// Whether what would show trouble of a kind at a place is heard, so that no signal of it means
    /// something.
    pub is_heard: &'a dyn Fn(Family, &Place) -> bool,
    /// Of a GPU that is not known any more how many others of its node were seen first after this moment; none of one
    /// that is known, or whose node is gone or forgotten.
    pub in_its_place: &'a dyn Fn(&Place, Timestamp) -> Option<usize>,
    /// Whether nothing tells of a place any more, and nobody will: what is said to be heard there is over because of it.
    pub is_forgotten: &'a dyn Fn(Family, &Place) -> bool,
    /// Runs that start, evaluate, save or restore: cluster and run.
    pub quiet_runs: &'a BTreeSet<(String, String)>,
    /// The nodes with how many GPUs each has.
    pub nodes: &'a Nodes,
    /// How many runs of each cluster are watched.
    pub runs: &'a BTreeMap<String, usize>,
}

/// What became of an incident at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It opened, or came back.
    Opened(Uuid),
    /// It says something new.
    Updated(Uuid),
    /// It is over.
    Resolved(Uuid),
}

/// Every incident that is pending, open, or was lately resolved.
#[derive(Debug, Clone, Default)]
pub struct Book {
    pub(super) incidents: Vec<Incident>,
    /// Incidents that there was no room for.
    left_out: u64,
    /// What there was no room for at the last tick: each is looked at again with the next one.
    beyond: BTreeSet<(Family, Place)>,
    /// Ticks in a row that open an incident, of families of which it is not [`Family::ticks`].
    open_after: BTreeMap<Family, u32>,
    /// Runs whose trouble is one incident of their cluster.
    pub(super) circuits: Circuits,
    /// Nodes whose trouble is.
    pub(super) outages: Vec<Outage>,
    /// Runs whose GPUs may do no work because they stand.
    pub(super) stood_lately: StoodLately,
}

/// As many incidents may be there before one of this kind: when the book is full of idle GPUs, what is broken still
/// has room, and what says that gpufleet itself is blind has some more.
const fn room(family: Family, severity: Severity) -> usize {
    match (family, severity) {
        (Family::Blind, _) => MAX_INCIDENTS,
        (_, Severity::Error) => MAX_INCIDENTS - 50,
        (_, Severity::Warning) => MAX_INCIDENTS - 200,
        (_, Severity::Info) => MAX_INCIDENTS - 400,
    }
}

impl Book {
    /// The book as it was stored, opened again at `now`.
    pub fn restored(incidents: Vec<Incident>, now: Timestamp) -> Self {
        let mut incidents = incidents;
        incidents.truncate(MAX_INCIDENTS);
        for incident in &mut incidents {
            incident.clear_from = now.shifted(SETTLE_NS);
            incident.counted_to = incident.counted_to.max(now);
        }
        Self {
            stood_lately: may_stand(&incidents, now),
            incidents,
            ..Self::default()
        }
    }

    /// From now on so many ticks in a row open an incident of these families, and of the others [`Family::ticks`].
    pub fn open_after(&mut self, ticks: BTreeMap<Family, u32>) {
        self.open_after = ticks;
    }

    /// Open incidents, in the order in which they began.
    pub fn open_ones(&self) -> impl Iterator<Item = &Incident> {
        self.incidents.iter().filter(|it| it.state == State::Open)
    }

    /// An incident that people were told of.
    pub fn get(&self, id: Uuid) -> Option<&Incident> {
        let told = |it: &&Incident| it.id == id && it.state != State::Pending;
        self.incidents.iter().find(told)
    }

    /// Incidents that there was no room for since the start.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many groups of signals had no room at the last tick: so many incidents more there would be.
    pub fn beyond(&self) -> usize {
        self.beyond.len()
    }

    /// Says whose an incident is that has none: what has once been somebody's stays theirs, also when its GPU
    /// is given to others, unless it grows to a place that may be many people's.
    pub fn give(&mut self, id: Uuid, owner: Option<String>) {
        if let Some(incident) = self.told(id) {
            let (place, family) = (&incident.place, incident.family);
            let is_one = place.gpu.is_some() || place.run.is_some() || family == Family::Budget;
            let known = incident.owner.take().filter(|_| is_one);
            incident.owner = known.or(owner);
        }
    }

    pub(super) fn told(&mut self, id: Uuid) -> Option<&mut Incident> {
        let told = |it: &&mut Incident| it.id == id && it.state != State::Pending;
        self.incidents.iter_mut().find(told)
    }

    /// Moves every incident on. Nothing is said of those that only go on. The passes, in their order:
    ///
    /// 1. Signals of nodes that settle and of runs that are quiet are left out.
    /// 2. The others become groups, one for each cause, but for what an open incident has explained before.
    /// 3. Each group is handed to its incident, which takes in others that it covers, or begins one.
    /// 4. Incidents take in what they were handed, and open. One that has just opened may be why another is there; what
    ///    it explains it takes in. What one explains that is not open yet goes on meanwhile as it is.
    /// 5. Runs and nodes whose trouble is over leave the incident that they share.
    /// 6. Incidents that were handed nothing are over, or go on unheard.
    /// 7. What was over for long is forgotten.
    ///
    /// Once groups are handed out each incident stays where it is in the book up to the last pass: so they name it.
    pub fn tick(&mut self, tick: Tick<'_>, new_id: &mut dyn FnMut() -> Uuid) -> Vec<Change> {
        let now = tick.now;
        let is_quiet = |place: &Place| {
            let run = place.run.as_ref();
            run.is_some_and(|run| {
                let key = (place.cluster.clone(), run.clone());
                tick.quiet_runs.contains(&key)
            })
        };
        for incident in &mut self.incidents {
            incident.turned_back(now);
        }
        let mut signals = tick.signals;
        signals.retain(|it| !(settles(it, now) || it.family.is_of_run() && is_quiet(&it.place)));
        let heard = |family, place: &Place| (tick.is_heard)(family, place) && !is_quiet(place);
        let (signals, waiting) = waiting(signals);
        self.keep_standing(&signals, &heard, now);
        let all = self.of_clusters(by_trouble(signals, tick.nodes), tick.nodes, now);
        let mut groups = groups(all, waiting);
        groups.retain(|it| !self.has_explained(it));
        let groups = self.broken(groups, tick.runs, now);
        let mut changes = Vec::new();
        let handed = self.hand_out(groups, now, new_id, &mut changes);
        let told = self.take(&handed, now, &mut changes);
        self.clear_circuits(&heard, now);
        self.clear_outages(&heard, now);
        self.let_go(now);
        let missing = self.missing(tick.in_its_place);
        let heard_of = |it: &Incident| !missing.contains(&it.id) && heard(it.family, &it.place);
        self.end_others(&told, &heard_of, tick.is_forgotten, now, &mut changes);
        self.incidents.retain(|it| it.is_kept(now));
        changes.sort();
        changes.dedup();
        changes
    }

    /// Hands each group to its incident. Returns what each was handed, by where it is.
    fn hand_out(
        &mut self,
        groups: Vec<Group>,
        now: Timestamp,
        new_id: &mut dyn FnMut() -> Uuid,
        changes: &mut Vec<Change>,
    ) -> BTreeMap<usize, Vec<Group>> {
        let before = std::mem::take(&mut self.beyond);
        self.make_room(&groups);
        let mut handed: BTreeMap<usize, Vec<Group>> = BTreeMap::new();
        for group in groups {
            if let Some(at) = self.belongs_to(&group, &handed, now, new_id, changes) {
                handed.entry(at).or_default().push(group);
            }
        }
        self.left_out += self.beyond.difference(&before).count() as u64;
        handed
    }

    /// Incidents take in what they were handed. Returns where those are that something is told of.
    fn take(
        &mut self,
        handed: &BTreeMap<usize, Vec<Group>>,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> BTreeSet<usize> {
        let is_told = |at: usize| handed.contains_key(&at);
        let mut told = BTreeSet::new();
        for (at, groups) in handed {
            let enough = self.enough(self.incidents[*at].family);
            let change = self.incidents[*at].signalled(groups, enough, now);
            let explained: Vec<&Signal> = groups.iter().flat_map(|it| &it.explained).collect();
            let (at, change) = self.understand(*at, change, &explained, &is_told, now);
            changes.extend(change);
            self.explain(at, &explained, now, changes);
            told.insert(at);
            if self.incidents[at].state != State::Open {
                told.extend(self.go_on(&explained, &is_told, now, changes));
            }
        }
        told
    }

    /// Ticks in a row that open an incident of this family.
    fn enough(&self, family: Family) -> u32 {
        let own = self.open_after.get(&family).copied();
        own.unwrap_or_else(|| family.ticks())
    }

    /// Incidents that nothing is told of end, as far as they are heard.
    fn end_others(
        &mut self,
        told: &BTreeSet<usize>,
        heard: &dyn Fn(&Incident) -> bool,
        is_forgotten: &dyn Fn(Family, &Place) -> bool,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        for at in 0..self.incidents.len() {
            if !told.contains(&at) {
                let incident = &self.incidents[at];
                let is_heard = heard(incident)
                    && !self.is_unheard_in(incident, now)
                    && !self.has_unheard_node(incident, now);
                let change = self.incidents[at].not_signalled(is_heard, is_forgotten, now);
                changes.extend(change);
            }
        }
    }

    /// When the book is full, what is over and kept only in case it comes back goes, longest over first, but for what
    /// does come back now. The store has it still.
    fn make_room(&mut self, groups: &[Group]) {
        let least = room(Family::Idle, Severity::Info);
        if self.incidents.len() + groups.len() <= least {
            return;
        }
        let (mut goes_on, mut new, mut least) = (BTreeSet::new(), 0, MAX_INCIDENTS);
        for group in groups {
            let known = self.incidents.iter().filter(|it| it.is_about(group));
            let known: Vec<Uuid> = known.map(|it| it.id).collect();
            if known.is_empty() {
                (new, least) = (new + 1, least.min(group.room()));
            }
            goes_on.extend(known);
        }
        let wanted = (self.incidents.len() + new).saturating_sub(least);
        let over = self.incidents.iter().filter_map(|it| {
            let at = it.resolved_at.filter(|_| it.state == State::Resolved)?;
            (!goes_on.contains(&it.id)).then_some((at, it.id))
        });
        let mut over: Vec<(Timestamp, Uuid)> = over.collect();
        over.sort_unstable();
        let gone: BTreeSet<Uuid> = over.into_iter().take(wanted).map(|(_, id)| id).collect();
        self.incidents.retain(|it| !gone.contains(&it.id));
    }

    /// The incident that a group belongs to; others that it covers too are taken into it.
    fn belongs_to(
        &mut self,
        group: &Group,
        handed: &BTreeMap<usize, Vec<Group>>,
        now: Timestamp,
        new_id: &mut dyn FnMut() -> Uuid,
        changes: &mut Vec<Change>,
    ) -> Option<usize> {
        let its = group.trouble();
        // An incident without a known cause may be of any, but not of two at once.
        let is_free = |at: usize| {
            let mut others = handed.get(&at).into_iter().flatten();
            others.all(|it| it.trouble().may_have_cause_of(its))
        };
        let of = |state: State| {
            let all = self.incidents.iter().enumerate();
            let own =
                all.filter(|(at, it)| it.state == state && it.is_about(group) && is_free(*at));
            own.min_by_key(|(_, it)| it.since).map(|(at, _)| at)
        };
        let known = of(State::Open)
            .or_else(|| of(State::Pending))
            .or_else(|| of(State::Resolved));
        let at = match known {
            Some(at) => at,
            None if self.incidents.len() >= group.room() => {
                self.beyond.insert((group.family, group.place.clone()));
                return None;
            }
            None => {
                self.incidents.push(Incident::pending(new_id(), group, now));
                self.incidents.len() - 1
            }
        };
        if self.incidents[at].comes_back_later(self.enough(group.family)) {
            return Some(at);
        }
        self.incidents[at].lost.join(&group.before);
        let own = self.incidents[at].trouble();
        let is_part = |it: &Incident| {
            let is_its = it.is_about(group) || group.is_of_runs() && it.is_of_a_run_in(group);
            // What may be of two causes does not make them one.
            is_its && own.may_have_cause_of(it.trouble())
        };
        let others: Vec<usize> = (0..self.incidents.len())
            .filter(|it| *it != at && !handed.contains_key(it))
            .filter(|it| self.incidents[*it].state != State::Resolved)
            .filter(|it| is_part(&self.incidents[*it]))
            .collect();
        for other in others {
            self.take_in(at, other, now, changes);
        }
        Some(at)
    }

    /// One incident turns out to be another's: it ends, and what it lost is the other's.
    pub(super) fn take_in(
        &mut self,
        at: usize,
        other: usize,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        let id = self.incidents[at].id;
        let taken = &mut self.incidents[other];
        let (was_open, ticks) = (taken.state == State::Open, taken.ticks);
        let (other_id, lost) = (taken.id, std::mem::take(&mut taken.lost));
        let unobserved = taken.unobserved();
        if was_open {
            taken.tell(now, None, Happened::Explained(id));
            changes.push(Change::Resolved(other_id));
        }
        taken.end(now);
        // What was sure of a part is sure of all.
        let whole = &mut self.incidents[at];
        whole.ticks = whole.ticks.max(ticks);
        if was_open {
            self.incidents[at].lost.join(&lost);
            self.incidents[at].join_unobserved(&unobserved);
            self.incidents[at].tell(now, None, Happened::Merged(other_id));
            changes.push(Change::Updated(id));
        }
    }
}

impl Group {
    /// As many incidents may be there before one of this.
    fn room(&self) -> usize {
        let severity = self.signals.iter().map(|it| it.severity).max();
        room(self.family, severity.unwrap_or(Severity::Info))
    }
}

/// Whether it is of a node that settles after a boot.
fn settles(signal: &Signal, now: Timestamp) -> bool {
    let booted = signal
        .booted_at
        .filter(|_| signal.family.is_quiet_after_boot());
    booted.is_some_and(|at| now.since(at) < BOOT_QUIET_NS)
}
