//! What is still to be said, to whom, and when: pure, without clock, network or database.
//!
//! Incidents come in as they change ([`Outbox::note`]); what that changes of the groups is written in
//! the incidents' own transaction ([`Outbox::unwritten`], [`Outbox::written`]); only what is written is
//! sent ([`Outbox::next`]), and what became of it is noted ([`Outbox::done`]) and written again. So a
//! crash at any moment forgets nothing that an incident in the database is worth: it says it again,
//! under the same key.
//!
//! A database that does not answer for [`WRITE_PATIENCE`] keeps nobody from being told: then what is
//! not written is sent as well.
//!
//! Limits: [`FLOOD_GROUPS`] groups of a receiver wait for their first message; the incidents of
//! further ones are one message, the flood's. Beyond [`MAX_GROUPS`] groups of a receiver all is the flood's; to a receiver
//! that calls people once a key what comes after a flood was told is the next flood.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::{Incident, State as Life};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::group::{Group, Name, Says, later};
use super::lane::{Fault, Lane, Outcome};
use super::settings::{By, Settings, Way};

mod room;

/// Groups of one receiver that may wait for their first message.
pub const FLOOD_GROUPS: usize = 5;
/// Groups of one receiver; what opens beyond is the flood's.
pub const MAX_GROUPS: usize = 500;
/// After so many attempts a message waits for all others.
const CHOKES: u32 = 3;
/// How long after a start a receiver is not told that an incident is over that could not be read: by then
/// the detectors have found again what is still wrong.
pub const FOUND_AGAIN: Duration = Duration::from_secs(600);
/// How long a database that takes nothing is waited for before people are told all the same.
pub const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// A message on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sending {
    /// The group as it is now.
    pub group: Group,
    /// What is said of it.
    pub says: Says,
    /// To whom.
    pub way: Way,
}

/// Incidents that are in the store as open and cannot be read, at a start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unread {
    /// Spoilt: what is still wrong of them the detectors find again.
    pub spoilt: BTreeSet<Uuid>,
    /// Written by a newer version, which reads them when it comes back.
    pub newer: BTreeSet<Uuid>,
}

/// What is still to be said.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    settings: Arc<Settings>,
    groups: BTreeMap<Uuid, Group>,
    lanes: BTreeMap<Arc<str>, Lane>,
    /// Groups that are not written as they are, and since when; none is since the last look.
    unwritten: BTreeMap<Uuid, Option<Timestamp>>,
    /// Incidents that nobody can read, and when they are called over.
    spoilt: BTreeMap<Uuid, Timestamp>,
}

impl Outbox {
    /// An empty one.
    pub fn new(settings: Arc<Settings>) -> Self {
        let lanes = settings.ways.iter();
        let lanes = lanes.map(|it| (Arc::clone(&it.name), Lane::default()));
        Self {
            lanes: lanes.collect(),
            settings,
            ..Self::default()
        }
    }

    /// Who is told of what.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Takes in what was written before a restart. What the book no longer knows as open is over, unless
    /// nobody could read it; a receiver that is no longer configured is told nothing any more.
    pub fn restore(
        &mut self,
        groups: Vec<Group>,
        open: &dyn Fn(Uuid) -> bool,
        unread: &Unread,
        now: Timestamp,
    ) {
        let called_over = later(now, FOUND_AGAIN);
        let spoilt = unread.spoilt.iter();
        self.spoilt.extend(spoilt.map(|id| (*id, called_over)));
        let stands =
            |id: Uuid| open(id) || unread.spoilt.contains(&id) || unread.newer.contains(&id);
        for mut group in groups {
            group.goes_out();
            // Whoever starts a server has often mended something.
            group.try_again();
            let mut changed = group.end(&|id| !stands(id), now);
            let way = self.settings.way(&group.way);
            let is_said = |it: &Way| group.notice.is_none() || it.kind.takes_notices();
            if !way.is_some_and(is_said) {
                group.error = Some("this channel is no longer configured".to_owned());
                group.refused = Some(group.version);
                group.over_at = Some(now);
                changed = true;
            }
            if changed {
                self.unwritten.insert(group.id, None);
            }
            self.groups.insert(group.id, group);
        }
    }

    /// Takes in an incident as it is now.
    pub fn note(&mut self, incident: &Incident, now: Timestamp) {
        if incident.state == Life::Pending {
            return;
        }
        let settings = Arc::clone(&self.settings);
        // Who was told once is told to the end, whatever the routes say by now.
        let knows = |it: &Group| it.over_at.is_none() && it.members.contains_key(&incident.id);
        let known: Vec<Uuid> = self
            .groups
            .values()
            .filter(|it| knows(it))
            .map(|it| it.id)
            .collect();
        let mut told: Vec<Arc<str>> = Vec::new();
        for id in known {
            if let Some(group) = self.groups.get_mut(&id) {
                told.push(Arc::clone(&group.way));
                let way = settings.way(&group.way);
                let name = way.and_then(|way| name(way, incident, &settings));
                if group.take(incident, name, now) {
                    self.unwritten.entry(id).or_default();
                }
            }
        }
        if incident.state != Life::Open {
            return;
        }
        for way in settings.ways_of(incident) {
            if !told.contains(&way.name) {
                self.join(way, incident, now);
            }
        }
    }

    /// Puts an incident into the group that it belongs to, or begins one.
    fn join(&mut self, way: &Way, incident: &Incident, now: Timestamp) {
        let common = common(way, incident, &self.settings);
        let own = |it: &&Group| it.way == way.name && it.over_at.is_none() && it.notice.is_none();
        let groups = || self.groups.values().filter(own);
        let is_open = |it: &&Group| own(it) && it.is_open_to_more(way);
        let open = || self.groups.values().filter(is_open);
        let fits = open().find(|it| !it.is_flood && it.common == common);
        let id = match fits.map(|it| it.id) {
            Some(id) => id,
            None => {
                let is_first = |it: &&Group| it.first_at.is_none() && it.refused.is_none();
                let waits = |it: &&Group| is_first(it) && it.to_say(way).is_some();
                let waiting = groups().filter(waits).count();
                let is_flood = waiting >= FLOOD_GROUPS || groups().count() >= MAX_GROUPS;
                let flood = open().find(|it| it.is_flood).map(|it| it.id);
                if is_flood && let Some(lane) = self.lanes.get_mut(&way.name) {
                    lane.folded += 1;
                }
                match flood.filter(|_| is_flood) {
                    Some(id) => id,
                    None => {
                        let id = new_id(incident.id, way, now);
                        let common = if is_flood { Vec::new() } else { common };
                        let mut group = Group::new(id, way, common, now);
                        group.is_flood = is_flood;
                        self.groups.insert(id, group);
                        id
                    }
                }
            }
        };
        let name = name(way, incident, &self.settings);
        if let Some(group) = self.groups.get_mut(&id)
            && group.take(incident, name, now)
        {
            self.unwritten.entry(id).or_default();
        }
    }

    /// Takes in notices that are written; those that it has already stay as they are.
    pub fn announce(&mut self, notices: Vec<Group>) {
        for group in notices.into_iter().filter(|it| it.notice.is_some()) {
            self.groups.entry(group.id).or_insert(group);
        }
    }

    /// Whether something has to be written.
    pub fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Groups as they have to be written.
    pub fn unwritten(&self) -> Vec<Group> {
        let known = self.unwritten.keys().filter_map(|id| self.groups.get(id));
        known.cloned().collect()
    }

    /// They are written as they were handed out; those that are over are forgotten.
    pub fn written(&mut self, groups: &[Group]) {
        for group in groups {
            let Some(held) = self.groups.get_mut(&group.id) else {
                continue;
            };
            let is_as_written = held == group;
            for (id, member) in &mut held.members {
                member.is_linked |= group.members.contains_key(id);
            }
            if !is_as_written {
                // It has changed since; the database does take things.
                self.unwritten.insert(group.id, None);
                continue;
            }
            self.unwritten.remove(&group.id);
            if group.over_at.is_some() {
                self.groups.remove(&group.id);
            }
        }
    }

    /// The messages that may go now: of each receiver one at most, what is new before what is not.
    pub fn next(&mut self, now: Timestamp) -> Vec<Sending> {
        let settings = Arc::clone(&self.settings);
        self.go_on(&settings, now);
        let ways = settings.ways.iter();
        ways.filter_map(|way| self.next_of(way, now)).collect()
    }

    /// What time alone changes.
    fn go_on(&mut self, settings: &Settings, now: Timestamp) {
        self.lanes.values_mut().for_each(|it| it.turned_back(now));
        let called_over = later(now, FOUND_AGAIN);
        for at in self.spoilt.values_mut() {
            *at = called_over.min(*at);
        }
        let is_over = |id| self.spoilt.get(&id).is_some_and(|at| *at <= now);
        for group in self.groups.values_mut().filter(|it| it.over_at.is_none()) {
            group.turned_back(now);
            let woke = group.wake(now);
            let ended = group.end(&is_over, now);
            let way = settings.way(&group.way);
            let settled = way.is_some_and(|way| group.settle(way, now));
            if woke || ended || settled {
                self.unwritten.entry(group.id).or_default();
            }
        }
        self.spoilt.retain(|_, at| *at > now);
        for since in self.unwritten.values_mut() {
            *since = Some(since.map_or(now, |at| now.min(at)));
        }
    }

    fn next_of(&mut self, way: &Way, now: Timestamp) -> Option<Sending> {
        let lane = self.lanes.get_mut(&way.name)?;
        if lane.is_busy {
            return None;
        }
        // Nor while what became of the last message is not written: so a crash repeats one at most.
        let is_written = |id: &Uuid| {
            let since = self.unwritten.get(id).copied();
            since.is_none_or(|since| since.is_some_and(|it| later(it, WRITE_PATIENCE) <= now))
        };
        let mut own = self.groups.values().filter(|it| it.way == way.name);
        if !own.all(|it| is_written(&it.id)) {
            return None;
        }
        let due = self
            .groups
            .values()
            .filter(|it| it.way == way.name && it.over_at.is_none())
            .filter_map(|it| {
                let (says, from) = it.to_say(way)?;
                // One that the receiver chokes on does not hold the others up.
                let order = (it.attempts >= CHOKES, says, it.attempts, from, it.id);
                (from <= now).then_some(order)
            })
            .min();
        let (says, id) = match due {
            Some((_, says, _, _, id)) => (says, id),
            None if lane.may_look(now) => {
                let broken = self.groups.values().filter(|it| {
                    it.way == way.name && it.over_at.is_none() && it.fault == Some(Fault::Way)
                });
                let looks = broken.filter_map(|it| {
                    let (says, from) = it.undelivered(way)?;
                    (from <= now).then_some((says, from, it.id))
                });
                let (says, _, id) = looks.min()?;
                (says, id)
            }
            None => return None,
        };
        if lane.free_at(says, way.kind.spacing(), now)? > now {
            return None;
        }
        lane.begins(now);
        let group = self.groups.get_mut(&id)?;
        group.goes_out();
        let (group, way) = (group.clone(), way.clone());
        Some(Sending { group, says, way })
    }

    /// What became of a message; `dice` is from 0 to 1.
    pub fn done(&mut self, sending: &Sending, outcome: Outcome, now: Timestamp, dice: f64) {
        let lane = self.lanes.get(&sending.way.name);
        let was_broken = lane.is_some_and(|it| it.broken_since.is_some());
        let was_mended = lane.is_some_and(|it| it.was_mended_meanwhile);
        if let Some(lane) = self.lanes.get_mut(&sending.way.name) {
            lane.ended(&sending.way, &outcome, now, dice);
            let opened = sending.group.members.values().map(|it| it.opened_at).min();
            if let (Outcome::Delivered, None, Some(opened)) =
                (&outcome, sending.group.first_at, opened)
            {
                let nanos = now.since(opened).max(0).unsigned_abs();
                lane.delay = Some(Duration::from_nanos(nanos));
            }
        }
        let Some(group) = self.groups.get_mut(&sending.group.id) else {
            return;
        };
        let is_well = outcome == Outcome::Delivered;
        match outcome {
            Outcome::Delivered => group.delivered(&sending.group, sending.says, now),
            Outcome::Later { why, .. } => {
                group.failed(&sending.group, (why, None), was_broken, now);
            }
            Outcome::Refused { why, fault } => {
                group.failed(&sending.group, (why, Some(fault)), was_broken, now);
                if was_mended {
                    group.try_again();
                }
            }
        }
        let parted = match is_well && sending.way.kind.calls_once() {
            true => group.part(),
            false => BTreeMap::new(),
        };
        group.settle(&sending.way, now);
        self.unwritten.entry(group.id).or_default();
        self.regroup(sending, parted, now);
        if is_well {
            self.again(&sending.way.name, Group::way_is_well);
        }
    }

    /// Somebody may have mended what a receiver refuses: all of it goes out once more.
    pub fn try_again(&mut self, way: &str) {
        if let Some(lane) = self.lanes.get_mut(way) {
            lane.was_mended_meanwhile = lane.is_busy;
        }
        self.again(way, Group::try_again);
    }

    /// The same, and it is known that the receiver takes messages.
    pub fn works(&mut self, way: &str, now: Timestamp) {
        if let Some(lane) = self.lanes.get_mut(way) {
            lane.works(now);
        }
        self.try_again(way);
    }

    fn again(&mut self, way: &str, of: fn(&mut Group) -> bool) {
        let own = |it: &&mut Group| *it.way == *way && it.over_at.is_none();
        for group in self.groups.values_mut().filter(own) {
            if of(group) {
                self.unwritten.entry(group.id).or_default();
            }
        }
    }

    /// The receivers, each with how it goes.
    pub fn lanes(&self) -> impl Iterator<Item = (&Way, &Lane)> {
        let ways = self.settings.ways.iter();
        ways.filter_map(|way| Some((way, self.lanes.get(&way.name)?)))
    }

    /// Groups that are not over.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// How many messages of a receiver wait that could go, or could if the way to it were mended, and since when
    /// the oldest does. Notices, which take their time, are not counted: a receiver that takes none is told otherwise.
    pub fn waiting(&self, way: &Way, now: Timestamp) -> (usize, Option<Timestamp>) {
        let waits = |it: &Group| match it.fault {
            Some(Fault::Way) => it.undelivered(way),
            Some(Fault::Message) | None => it.to_say(way),
        };
        let due: Vec<Timestamp> = self
            .groups
            .values()
            .filter(|it| it.way == way.name && it.over_at.is_none() && it.notice.is_none())
            .filter_map(|it| waits(it).map(|(_, from)| from))
            .filter(|from| *from <= now)
            .collect();
        (due.len(), due.into_iter().min())
    }
}

/// What the incidents of a group have in common, in the order in which it is configured.
fn common(way: &Way, incident: &Incident, settings: &Settings) -> Vec<(String, String)> {
    let place = &incident.place;
    let pair = |by: &By| {
        let (name, value) = match by {
            By::Cluster => ("cluster", place.cluster.clone()),
            By::Family => ("kind", incident.family.name().to_owned()),
            By::Node => ("node", place.node.clone().unwrap_or_default()),
            By::Severity => ("severity", incident.severity.name().to_owned()),
            By::Team => (
                "team",
                settings.owner(incident).unwrap_or_default().to_owned(),
            ),
            By::Incident => ("incident", incident.id.to_string()),
        };
        (name.to_owned(), value)
    };
    way.by.iter().map(pair).collect()
}

/// What a receiver calls an incident that knows it by its labels.
fn name(way: &Way, incident: &Incident, settings: &Settings) -> Option<Name> {
    let owner = || settings.owner_words(incident);
    way.kind.wants_each().then(|| Name::of(incident, owner()))
}

/// An id for ever: version 7 like all of ours, its random part made of what the group begins with, the receiver and
/// the moment, so that one run of a simulation is like the next.
fn new_id(of: Uuid, way: &Way, now: Timestamp) -> Uuid {
    let name = format!("{} {}", way.name, now.0);
    let random = Uuid::new_v5(&of, name.as_bytes());
    let mut bytes = [0; 10];
    bytes.copy_from_slice(&random.as_bytes()[..10]);
    let millis = u64::try_from(now.millis()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod hard_days;

#[cfg(test)]
mod refused;

#[cfg(test)]
mod notices;
