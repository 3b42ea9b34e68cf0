//! What becomes of one incident at a tick: it begins, is told again, is told of no more, and ends.

use std::cmp::Reverse;

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::book::{Change, SETTLE_NS};
use super::group::Group;
use super::trouble::stands;
use super::{
    Evidence, Family, Happened, Incident, Line, MAX_EVIDENCE, MAX_LOG, Place, REOPEN_NS, Signal,
    StandingRuns, State,
};
use crate::cause::Cause;
use crate::lost::{Losing, Lost};
use crate::price::{Basis, Price, Stake};
use crate::straggler::Confidence;

/// What the log says where it is not known to be over.
const FORGOTTEN: &str = "nothing tells of it any more: it was not seen to be over";

impl Incident {
    /// The clock may have been set back since the last tick: nothing waits for a time that was wrong.
    pub(super) fn turned_back(&mut self, now: Timestamp) {
        self.clear_from = self.clear_from.min(now.shifted(SETTLE_NS));
        self.counted_to = self.counted_to.min(now);
        self.resolved_at = self.resolved_at.map(|at| at.min(now));
    }

    pub(super) fn pending(id: Uuid, group: &Group, now: Timestamp) -> Self {
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
            remedy: Some(first.remedy),
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
    pub(super) fn signalled(
        &mut self,
        groups: &[Group],
        enough: u32,
        now: Timestamp,
    ) -> Option<Change> {
        if self.comes_back_later(enough) {
            self.ticks += 1;
            return None;
        }
        self.learn_remedy(groups);
        let before = self.as_told();
        let own = || groups.iter().flat_map(|it| &it.signals);
        self.take_words(groups, now);
        self.take_place(groups);
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
                    let moved = self.moved(&before.0);
                    self.tell(now, None, moved);
                }
                (before != self.as_told() || heard_again).then_some(Change::Updated(self.id))
            }
        }
    }

    /// It grows to the places of its groups. A run that stands is where the rank is that it is thought to wait for now,
    /// and where nobody is named any more it keeps that for as long as its words do.
    fn take_place(&mut self, groups: &[Group]) {
        if let Some((group, names)) = self.standing(groups) {
            if names || group.signals.iter().any(|it| it.what == self.what) {
                self.place = group.place.clone();
            }
            return;
        }
        for group in groups {
            if !self.place.contains(&group.place) {
                self.place = group.place.clone();
            }
        }
    }

    /// What the log says of a place that is not the one of before: that it is about more, or about whom. The latter is a
    /// note, which every older server reads.
    fn moved(&self, before: &Place) -> Happened {
        let node = self.place.node.as_ref();
        let said = node.unwrap_or(&self.place.cluster);
        match self.place.rank {
            _ if self.place.contains(before) => Happened::Widened(said.clone()),
            Some(rank) => Happened::Note(format!("it is about rank {rank} on {said}")),
            None => Happened::Note(format!("it is about {said}")),
        }
    }

    /// Whether it is over and this tick does not bring it back yet, because it takes so many in a row.
    pub(super) const fn comes_back_later(&self, enough: u32) -> bool {
        matches!(self.state, State::Resolved) && self.ticks.saturating_add(1) < enough
    }

    /// What an incident asks for that an older version wrote is what its own words are told with now.
    fn learn_remedy(&mut self, groups: &[Group]) {
        if self.remedy.is_none() {
            let mut own = groups.iter().flat_map(|it| &it.signals);
            let said = own.find(|it| it.what == self.what);
            self.remedy = said.map(|it| it.remedy);
        }
    }

    /// Of a run that stands the one group that tells it, and whether that names a rank or node that the run waits for.
    fn standing<'a>(&self, groups: &'a [Group]) -> Option<(&'a Group, bool)> {
        let [group] = groups else {
            return None;
        };
        let names = group.place.node.is_some() || group.place.rank.is_some();
        stands(self.family, &self.place).then_some((group, names))
    }

    /// Whether a run that stands is thought to wait for another rank or node than it was.
    fn waits_for_another(&self, groups: &[Group]) -> bool {
        let whom = |place: &Place| (place.node.clone(), place.rank);
        let told = self.standing(groups);
        told.is_some_and(|(group, names)| names && whom(&group.place) != whom(&self.place))
    }

    /// Takes its words and its cause from what says most, where that says worse than was known, or why, or where it is
    /// about another rank or node now, of which what was known of the one before says nothing; from what says another
    /// cause, where nothing says its own any more; and for its own cause from what asks for more than what it has its words
    /// from, or is left of it.
    fn take_words(&mut self, groups: &[Group], now: Timestamp) {
        let own = || groups.iter().flat_map(|it| &it.signals);
        let most = |it: &&Signal| (it.severity, it.cause.is_known(), it.remedy.weight());
        let Some(first) = own().max_by_key(most) else {
            return;
        };
        // A budget that is raised makes it less bad than it was.
        let is_anew = self.family == Family::Budget;
        let is_worse = first.severity > self.severity || !self.cause.is_known();
        let is_another = self.waits_for_another(groups);
        self.severity = match is_anew {
            true => first.severity,
            false => self.severity.max(first.severity),
        };
        let is_told = own().any(|it| it.cause == self.cause);
        let others = own().filter(|it| !is_told && it.cause.is_known());
        let other = others.max_by_key(|it| it.severity);
        let Some(said) = Some(first)
            .filter(|_| is_worse || is_anew || is_another)
            .or(other)
            .or_else(|| self.says_more(own(), now))
        else {
            return;
        };
        let causes = groups.iter().map(|it| it.trouble().cause());
        let mut known = std::iter::once(said.cause).chain(causes);
        let cause = known.find(|it| it.is_known()).unwrap_or_default();
        let before = std::mem::replace(&mut self.cause, cause);
        let asked = self.weight();
        let what = std::mem::replace(&mut self.what, said.what.clone());
        self.action.clone_from(&said.action);
        self.remedy = Some(said.remedy);
        if self.opened_at.is_none() {
            return;
        }
        // A note, which every older server reads.
        let note = match before.is_known() && cause.is_known() && before != cause {
            true => {
                let (cause, before) = (cause.words(), before.words());
                format!("because of {cause}, no longer of {before}")
            }
            false if what != self.what && asked != self.weight() => {
                format!(
                    "what is to be done is for: {}; before it was for: {what}",
                    self.what
                )
            }
            false => return,
        };
        self.tell(now, None, Happened::Note(note));
    }

    /// Of signals of its cause the first of those that say most, where it does not have its words from one as bad that is
    /// told still. After a restart of the server that may be told some ticks later.
    fn says_more<'a>(
        &self,
        signals: impl Iterator<Item = &'a Signal> + Clone,
        now: Timestamp,
    ) -> Option<&'a Signal> {
        let weight = |it: &Signal| (it.severity, it.remedy.weight());
        let own = signals.filter(|it| it.cause == self.cause);
        let as_now = own.clone().filter(|it| it.what == self.what);
        let settles = self.clear_from > now;
        let as_before = || settles.then(|| (self.severity, self.weight()));
        let as_now = as_now.map(weight).max().or_else(as_before);
        let more = own.filter(|it| as_now.is_none_or(|now| weight(it) > now));
        // The first of those that are alike.
        more.min_by_key(|it| Reverse(weight(it)))
    }

    /// What people are told again of when it changes.
    fn as_told(&self) -> (Place, Severity, Cause, Option<Confidence>, usize, u8) {
        let place = self.place.clone();
        let (evidence, weight) = (self.evidence.len(), self.weight());
        (
            place,
            self.severity,
            self.cause,
            self.confidence,
            evidence,
            weight,
        )
    }

    /// A tick at which it is told as what something else may be why of: it is as it was, and costs what it did.
    pub(super) fn goes_on(&mut self, now: Timestamp) -> Option<Change> {
        let is_open = self.state == State::Open;
        if is_open {
            self.count(now);
        }
        (self.seen_at, self.clear_from) = (now, now.max(self.clear_from));
        let heard_again = self.unheard_since.take().is_some();
        (is_open && heard_again).then_some(Change::Updated(self.id))
    }

    /// A tick that says nothing of it.
    pub(super) fn not_signalled(
        &mut self,
        is_heard: bool,
        is_forgotten: &dyn Fn(Family, &Place) -> bool,
        now: Timestamp,
    ) -> Option<Change> {
        if self.state == State::Resolved {
            // In a row: what is not heard says nothing.
            self.ticks = if is_heard { 0 } else { self.ticks };
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
        if is_forgotten(self.family, &self.place) {
            self.tell(now, None, Happened::Note(FORGOTTEN.to_owned()));
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
    pub(super) fn is_kept(&self, now: Timestamp) -> bool {
        let was_told = self.opened_at.is_some();
        match self.resolved_at {
            Some(at) => was_told && now.since(at) < REOPEN_NS,
            None => true,
        }
    }

    /// Puts a line into the log. When it is full the oldest that no person wrote goes, but for the
    /// first, which says when it opened.
    pub(super) fn tell(&mut self, at: Timestamp, who: Option<String>, happened: Happened) {
        if self.log.len() >= MAX_LOG {
            let old = self.log.iter().skip(1).position(|it| it.who.is_none());
            self.log.remove(old.map_or(1, |place| place + 1));
        }
        self.log.push(Line { at, who, happened });
    }

    /// Keeps what a signal says, if it says something new: a cause that was not known at first is, another one beside the
    /// first, and so are amounts, counts and times that run out. What is about a run finds room, because it says what the
    /// rest of it does.
    pub(super) fn keep_evidence(&mut self, signal: &Signal, at: Timestamp) {
        let mut evidence = self.evidence.iter_mut();
        let said = (&*signal.what, &signal.place, signal.cause);
        if let Some(known) = evidence.find(|it| it.says(said)) {
            let is_found = !known.cause.is_known() && signal.cause.is_known();
            if is_found {
                known.cause = signal.cause;
            }
            if is_found || signal.family.is_read_anew() {
                known.readings.clone_from(&signal.readings);
            }
            return;
        }
        if self.evidence.len() >= MAX_EVIDENCE {
            self.more_evidence += 1;
            let is_other = |it: &Evidence| it.place.run.is_none();
            let room = self.evidence.iter().rposition(is_other);
            let Some(room) = room.filter(|_| signal.place.run.is_some()) else {
                return;
            };
            self.evidence.remove(room);
        }
        self.evidence.push(Evidence {
            at: signal.since.unwrap_or(at).min(at),
            place: signal.place.clone(),
            what: signal.what.clone(),
            cause: signal.cause,
            readings: signal.readings.clone(),
        });
    }
}

impl Evidence {
    /// Whether it says this already: the same of the same place, and no other cause.
    pub(super) fn says(&self, (what, place, cause): (&str, &Place, Cause)) -> bool {
        let are_known = self.cause.is_known() && cause.is_known();
        self.what == what && self.place == *place && (!are_known || self.cause == cause)
    }
}
