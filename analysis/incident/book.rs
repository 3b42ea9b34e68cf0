//! The book of incidents: moves each on with the groups of a tick.
//!
//! A group belongs to the incidents of its family whose place overlaps its own: to the oldest of them,
//! which grows to the group's place, takes the others in, and never shrinks again. A group that
//! belongs to none begins a pending one, unless an open incident has explained it already.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::breaker::Circuits;
use super::group::{Group, Nodes, groups};
use super::{
    BOOT_QUIET_NS, Family, Happened, Incident, MAX_INCIDENTS, Place, REOPEN_NS, Signal,
    StandingRuns, State,
};
use crate::cause::Cause;
use crate::lost::{Losing, Lost};
use crate::price::{Basis, Price, Stake};
use crate::straggler::Confidence;

/// After a restart nothing is resolved for this long, nanoseconds: detectors that look at a window
/// have nothing to say before it is full.
const SETTLE_NS: i64 = 120 * 1_000_000_000;

/// What is known at a tick.
pub struct Tick<'a> {
    /// Now.
    pub now: Timestamp,
    /// What detectors say.
    pub signals: Vec<Signal>,
    /// Whether what would show trouble of a kind at a place is heard, so that no signal of it means
    /// something.
    pub is_heard: &'a dyn Fn(Family, &Place) -> bool,
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

    /// Moves every incident on. Nothing is said of those that only go on.
    pub fn tick(&mut self, tick: Tick<'_>, new_id: &mut dyn FnMut() -> Uuid) -> Vec<Change> {
        let now = tick.now;
        let is_quiet = |place: &Place| {
            let run = place.run.as_ref();
            run.is_some_and(|run| {
                let key = (place.cluster.clone(), run.clone());
                tick.quiet_runs.contains(&key)
            })
        };
        let settles = |it: &Signal| {
            let booted = it.booted_at.filter(|_| it.family.is_quiet_after_boot());
            booted.is_some_and(|at| now.since(at) < BOOT_QUIET_NS)
        };
        for incident in &mut self.incidents {
            incident.turned_back(now);
        }
        let mut signals = tick.signals;
        signals.retain(|it| !(settles(it) || it.family.is_of_run() && is_quiet(&it.place)));
        let mut changes = Vec::new();
        let mut seen: BTreeMap<usize, Vec<Group>> = BTreeMap::new();
        let before = std::mem::take(&mut self.beyond);
        let mut groups = groups(signals, tick.nodes);
        groups.retain(|it| !self.has_explained(it));
        let groups = self.broken(groups, tick.runs, now);
        self.make_room(&groups);
        for group in groups {
            if let Some(place) = self.belongs_to(&group, now, new_id, &mut changes) {
                seen.entry(place).or_default().push(group);
            }
        }
        self.left_out += self.beyond.difference(&before).count() as u64;
        let is_told = |at: usize| seen.contains_key(&at);
        let mut told = BTreeSet::new();
        for (place, groups) in &seen {
            let incident = &mut self.incidents[*place];
            let own = self.open_after.get(&incident.family).copied();
            let enough = own.unwrap_or_else(|| incident.family.ticks());
            let change = incident.signalled(groups, enough, now);
            let explained: Vec<&Signal> = groups.iter().flat_map(|it| &it.explained).collect();
            let (place, change) = self.understand(*place, change, &explained, &is_told, now);
            changes.extend(change);
            self.explain(place, &explained, now, &mut changes);
            told.insert(place);
        }
        let heard = |family, place: &Place| (tick.is_heard)(family, place) && !is_quiet(place);
        self.clear_circuits(&heard, now);
        self.let_go(now);
        for place in 0..self.incidents.len() {
            if !told.contains(&place) {
                let incident = &self.incidents[place];
                let is_heard =
                    heard(incident.family, &incident.place) && !self.is_unheard_in(incident, now);
                changes.extend(self.incidents[place].not_signalled(is_heard, now));
            }
        }
        self.incidents.retain(|it| it.is_kept(now));
        changes.sort();
        changes.dedup();
        changes
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
        now: Timestamp,
        new_id: &mut dyn FnMut() -> Uuid,
        changes: &mut Vec<Change>,
    ) -> Option<usize> {
        let is_one = |it: &Incident| it.is_about(group);
        let of = |state: State| {
            let all = self.incidents.iter().enumerate();
            let own = all.filter(move |(_, it)| it.state == state && is_one(it));
            own.min_by_key(|(_, it)| it.since).map(|(place, _)| place)
        };
        let known = of(State::Open)
            .or_else(|| of(State::Pending))
            .or_else(|| of(State::Resolved));
        let place = match known {
            Some(place) => place,
            None if self.incidents.len() >= group.room() => {
                self.beyond.insert((group.family, group.place.clone()));
                return None;
            }
            None => {
                self.incidents.push(Incident::pending(new_id(), group, now));
                self.incidents.len() - 1
            }
        };
        self.incidents[place].lost.join(&group.before);
        let is_part = |it: &Incident| is_one(it) || group.is_of_runs() && it.is_of_a_run_in(group);
        let others: Vec<usize> = (0..self.incidents.len())
            .filter(|it| *it != place && is_part(&self.incidents[*it]))
            .filter(|it| self.incidents[*it].state != State::Resolved)
            .collect();
        for other in others {
            self.take_in(place, other, now, changes);
        }
        Some(place)
    }

    /// One incident turns out to be another's: it ends, and what it lost is the other's.
    pub(super) fn take_in(
        &mut self,
        place: usize,
        other: usize,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        let id = self.incidents[place].id;
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
        let whole = &mut self.incidents[place];
        whole.ticks = whole.ticks.max(ticks);
        if was_open {
            self.incidents[place].lost.join(&lost);
            self.incidents[place].join_unobserved(&unobserved);
            self.incidents[place].tell(now, None, Happened::Merged(other_id));
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

impl Incident {
    /// Whether a group of signals is about the same as this.
    fn is_about(&self, group: &Group) -> bool {
        let is_alike = self.is_of_readers() == group.is_of_readers();
        is_alike && self.is_at(group.family, &group.place)
    }

    /// Whether trouble of this kind at this place is its own. Runs have each their own, and many with one cause
    /// another one.
    pub(super) fn is_at(&self, family: Family, place: &Place) -> bool {
        let is_one = !family.is_of_run() || self.place.run == place.run;
        self.family == family && is_one && self.place.overlaps(place)
    }

    /// The clock may have been set back since the last tick: nothing waits for a time that was wrong.
    fn turned_back(&mut self, now: Timestamp) {
        self.clear_from = self.clear_from.min(now.shifted(SETTLE_NS));
        self.counted_to = self.counted_to.min(now);
        self.resolved_at = self.resolved_at.map(|at| at.min(now));
    }

    fn pending(id: Uuid, group: &Group, now: Timestamp) -> Self {
        let first = &group.signals[0];
        let since = group.signals.iter().filter_map(|it| it.since).min();
        let since = since.unwrap_or(now).min(now);
        Self {
            id,
            family: group.family,
            place: group.place.clone(),
            severity: first.severity,
            what: first.what.clone(),
            action: first.action.clone(),
            cause: first.cause,
            confidence: None,
            places: group.places(),
            state: State::Pending,
            since,
            opened_at: None,
            seen_at: now,
            clear_from: now,
            unheard_since: None,
            resolved_at: None,
            ticks: 0,
            losing: Losing::default(),
            lost: Lost::default(),
            basis: Basis::default(),
            is_least: false,
            stake: Stake::default(),
            // Runs that are told together began each at its own time.
            counted_to: if group.is_of_runs() { now } else { since },
            evidence: Vec::new(),
            more_evidence: 0,
            owner: None,
            standing: StandingRuns::new(),
            acknowledged_by: None,
            silenced_until: None,
            silenced_alone_until: None,
            log: Vec::new(),
        }
    }

    /// Takes in what is signalled of it at a tick; so many in a row are enough to open it.
    fn signalled(&mut self, groups: &[Group], enough: u32, now: Timestamp) -> Option<Change> {
        let before = self.as_told();
        let own = || groups.iter().flat_map(|it| &it.signals);
        for group in groups {
            if !self.place.contains(&group.place) {
                self.place = group.place.clone();
            }
        }
        if let Some(first) = own().max_by_key(|it| (it.severity, it.cause.is_known())) {
            let is_worse = first.severity > self.severity || !self.cause.is_known();
            // A budget that is raised makes it less bad than it was.
            let is_anew = self.family == Family::Budget;
            if is_worse || is_anew {
                self.severity = match is_anew {
                    true => first.severity,
                    false => self.severity.max(first.severity),
                };
                self.what.clone_from(&first.what);
                self.action.clone_from(&first.action);
                self.cause = first.cause;
            }
        }
        // A run that stands for a node that is silent is worse than the silence.
        let explained = groups.iter().flat_map(|it| &it.explained);
        if let Some(worst) = explained.map(|it| it.severity).max() {
            self.severity = self.severity.max(worst);
        }
        self.places = groups.iter().map(Group::places).sum();
        self.confidence = own().filter_map(|it| it.confidence).max();
        for signal in own().chain(groups.iter().flat_map(|it| &it.explained)) {
            self.keep_evidence(signal, now);
        }
        if self.place.run.is_none() && self.family == Family::Hang {
            own().for_each(|it| self.stands(it, now));
        }
        if self.state == State::Open {
            self.count(now);
        }
        if let Some(price) = groups.iter().map(Group::price).reduce(Price::and) {
            self.costs(&price);
        }
        (self.seen_at, self.clear_from) = (now, now.max(self.clear_from));
        let heard_again = self.unheard_since.take().is_some();
        self.ticks = self.ticks.saturating_add(1);
        match self.state {
            State::Pending if self.ticks < enough => None,
            State::Pending => {
                self.state = State::Open;
                self.opened_at = Some(now);
                self.count(now);
                self.tell(now, None, Happened::Opened);
                Some(Change::Opened(self.id))
            }
            State::Resolved => {
                self.state = State::Open;
                self.resolved_at = None;
                self.counted_to = now;
                self.tell(now, None, Happened::Reopened);
                Some(Change::Opened(self.id))
            }
            State::Open => {
                if before.0 != self.place {
                    let said = self.place.node.clone();
                    let said = said.unwrap_or_else(|| self.place.cluster.clone());
                    self.tell(now, None, Happened::Widened(said));
                }
                (before != self.as_told() || heard_again).then_some(Change::Updated(self.id))
            }
        }
    }

    /// What people are told again of when it changes.
    fn as_told(&self) -> (Place, Severity, Cause, Option<Confidence>, usize) {
        let place = self.place.clone();
        let evidence = self.evidence.len();
        (place, self.severity, self.cause, self.confidence, evidence)
    }

    /// A tick that says nothing of it.
    fn not_signalled(&mut self, is_heard: bool, now: Timestamp) -> Option<Change> {
        if self.state == State::Resolved {
            return None;
        }
        if !is_heard {
            // What may be missing because nobody is heard is not over, and costs nothing known.
            self.clear_from = self.clear_from.max(now);
            self.counted_to = now;
            let is_news = self.unheard_since.is_none() && self.state == State::Open;
            self.unheard_since.get_or_insert(now);
            return is_news.then_some(Change::Updated(self.id));
        }
        self.unheard_since = None;
        if self.state == State::Pending {
            self.end(now);
            return None;
        }
        if now.since(self.clear_from) < self.family.clear_ns() {
            return None;
        }
        // It was over when it was last signalled: what came after cost nothing.
        self.tell(now, None, Happened::Resolved);
        self.end(now);
        Some(Change::Resolved(self.id))
    }

    pub(super) fn end(&mut self, now: Timestamp) {
        self.state = State::Resolved;
        self.resolved_at = Some(now);
        self.losing = Losing::default();
        self.stake.losing = Losing::default();
        self.ticks = 0;
    }

    /// Whether the book has to know of it any more.
    fn is_kept(&self, now: Timestamp) -> bool {
        let was_told = self.opened_at.is_some();
        match self.resolved_at {
            Some(at) => was_told && now.since(at) < REOPEN_NS,
            None => true,
        }
    }
}
