//! What one incident explains of others: what is its evidence and no incident of its own.
//!
//! A cause is often sure later than what it does: a rank is slow after ten steps, that its GPU is hot
//! takes three ticks. So an open incident whose cause opens becomes the cause's, under the id that people
//! know; further ones are taken into it. Until it opens they go on: what may be explained soon is not over. And what
//! was explained is explained for as long as its cause is open, also where the two end, or are seen, some ticks apart.
//!
//! GPUs that do no work because their run stands are explained while it does and for [`WAITS_NS`] after: what it stood
//! for may be open for days in which it goes on elsewhere, and when it stands again that has another cause. A run that is
//! not heard, or is quiet, stands as it did. After a restart of the server each run that an open incident names may.

use std::collections::BTreeMap;

use gpufleet_telemetry::time::Timestamp;

use super::book::{Book, Change};
use super::group::{Group, run_of, standing};
use super::{Evidence, Family, Happened, Incident, MAX_EVIDENCE, Place, Signal, State};

/// What the log says of what was silent or in hand and turns out to come from something worse: a note, which every older
/// server reads.
const WORSE: &str =
    "it comes from something worse: nobody has that in hand, and no silence of before holds";

/// For so long after a run was last signalled to stand its GPUs may do no work because it did, nanoseconds: they tell
/// some ticks later that it moves.
const WAITS_NS: i64 = 60 * 1_000_000_000;

/// The runs that stand or did a moment ago, with when that was last signalled, or could not be: as many as are watched.
pub(super) type StoodLately = BTreeMap<Place, Timestamp>;

/// The runs that these incidents name, of which nothing else is known yet: as if they stood now.
pub(super) fn may_stand(incidents: &[Incident], now: Timestamp) -> StoodLately {
    let open = incidents.iter().filter(|it| it.state == State::Open);
    let places = open.flat_map(Incident::places);
    let runs = places.filter(|it| it.run.is_some());
    runs.map(|it| (run_of(it), now)).collect()
}

impl Book {
    /// Keeps which runs stand, and which did a moment ago as far as that is `heard`.
    pub(super) fn keep_standing(
        &mut self,
        signals: &[Signal],
        heard: &dyn Fn(Family, &Place) -> bool,
        now: Timestamp,
    ) {
        self.stood_lately.retain(|run, last| {
            *last = match heard(Family::Hang, run) {
                true => now.min(*last),
                false => now,
            };
            now.since(*last) < WAITS_NS
        });
        let stands = standing(signals.iter()).into_iter();
        self.stood_lately.extend(stands.map(|run| (run, now)));
    }

    /// Whether an open incident has explained all of this before.
    pub(super) fn has_explained(&self, group: &Group) -> bool {
        // With a run that stands go its GPUs that do no work, whatever the run stands for.
        let waits = group.family.is_without_work();
        let explains = |it: &Incident| {
            let is_why = it.family.explains(group.family);
            let is_cause = is_why || waits && it.family.explains(Family::Hang);
            let is_its = |signal: &Signal| {
                let is_there = is_why && it.place.contains(&signal.place);
                let goes_on = !waits || is_there || self.waits_still(&signal.place);
                goes_on && it.has_explained(signal)
            };
            it.state == State::Open && is_cause && group.signals.iter().all(is_its)
        };
        self.incidents.iter().any(explains)
    }

    /// Whether the run of GPUs that do no work stood a moment ago; of what is in none there is nothing to ask.
    fn waits_still(&self, place: &Place) -> bool {
        place.run.is_none() || self.stood_lately.contains_key(&run_of(place))
    }

    /// Where the incident at `at` has just opened and explains an open one that nothing else is told of
    /// at this tick, the oldest such becomes it. Returns where it is, and what changed.
    pub(super) fn understand(
        &mut self,
        at: usize,
        change: Option<Change>,
        explained: &[&Signal],
        is_told: &dyn Fn(usize) -> bool,
        now: Timestamp,
    ) -> (usize, Option<Change>) {
        // One that comes back has an id that people know.
        if self.incidents[at].opened_at != Some(now) {
            return (at, change);
        }
        let all = self.incidents.iter().enumerate();
        let known = all
            .filter(|(it, _)| !is_told(*it))
            .filter(|(_, it)| it.state == State::Open && it.is_any_of(explained))
            .min_by_key(|(_, it)| it.since)
            .map(|(known, _)| known);
        let Some(known) = known else {
            return (at, change);
        };
        let cause = self.incidents[at].clone();
        // Nobody was told of it: it is forgotten.
        self.incidents[at].end(now);
        self.incidents[at].opened_at = None;
        self.incidents[known].becomes(cause, now);
        (known, Some(Change::Updated(self.incidents[known].id)))
    }

    /// The incidents of what an open one explains are taken into it.
    pub(super) fn explain(
        &mut self,
        at: usize,
        explained: &[&Signal],
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        // What only might be says nothing away.
        if self.incidents[at].state != State::Open {
            return;
        }
        let all = self.incidents.iter().enumerate();
        let others: Vec<usize> = all
            .filter(|(other, _)| *other != at)
            .filter(|(_, it)| it.state != State::Resolved && it.is_any_of(explained))
            .map(|(other, _)| other)
            .collect();
        for other in others {
            self.take_in(at, other, now, changes);
        }
    }

    /// What one explains that is not open yet is neither over nor unheard: incidents of it that nothing else is told of at
    /// this tick go on as they are, until it opens and they become it, or it is gone and they are told again. Returns
    /// where they are.
    pub(super) fn go_on(
        &mut self,
        explained: &[&Signal],
        is_told: &dyn Fn(usize) -> bool,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> Vec<usize> {
        let all = self.incidents.iter().enumerate();
        let theirs: Vec<usize> = all
            .filter(|(at, _)| !is_told(*at))
            .filter(|(_, it)| it.state != State::Resolved && it.is_any_of(explained))
            .map(|(at, _)| at)
            .collect();
        for at in &theirs {
            changes.extend(self.incidents[*at].goes_on(now));
        }
        theirs
    }
}

impl Incident {
    /// Its place, and those of its evidence.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.place).chain(self.evidence.iter().map(|it| &it.place))
    }

    /// Its place, with the run and the rank in it where its evidence names one: that a GPU is hot is about
    /// the rank that computes on it.
    pub fn place_and_run(&self) -> Place {
        let runs = || self.evidence.iter().filter(|it| it.place.run.is_some());
        let run = runs().next().and_then(|it| it.place.run.clone());
        let mut place = self.place.clone();
        if place.run.is_none() && runs().all(|it| it.place.run == run) {
            let rank = runs().find_map(|it| it.place.rank);
            let is_one = runs().all(|it| it.place.rank.is_none() || it.place.rank == rank);
            (place.run, place.rank) = (run, rank.filter(|_| is_one));
        }
        place
    }

    fn is_any_of(&self, signals: &[&Signal]) -> bool {
        signals.iter().any(|it| self.is_of(it))
    }

    fn has_explained(&self, signal: &Signal) -> bool {
        let is_it = |it: &Evidence| it.what == signal.what && it.place.overlaps(&signal.place);
        self.evidence.iter().any(is_it)
    }

    /// What it comes from was found: it becomes that incident, with its own id, what people said to it, and
    /// what it has lost. Who has it in hand or has silenced it said so of what it was: of what is worse nobody did.
    fn becomes(&mut self, cause: Self, now: Timestamp) {
        let what = cause.what.clone();
        let mut own = std::mem::replace(self, cause);
        own.count(now);
        if self.severity > own.severity {
            own.let_go_of_people(now);
        }
        (self.id, self.opened_at) = (own.id, own.opened_at);
        (self.since, self.severity) = (own.since.min(self.since), own.severity.max(self.severity));
        (self.acknowledged_by, self.silenced_until) = (own.acknowledged_by, own.silenced_until);
        self.silenced_alone_until = own.silenced_alone_until;
        (self.lost, self.log) = (own.lost, own.log);
        self.owner = own.owner.or(self.owner.take());
        self.more_evidence += own.more_evidence;
        let newer = std::mem::replace(&mut self.evidence, own.evidence);
        for piece in newer {
            let said = (&*piece.what, &piece.place, piece.cause);
            if self.evidence.iter().any(|it| it.says(said)) {
                continue;
            }
            if self.evidence.len() < MAX_EVIDENCE {
                self.evidence.push(piece);
            } else {
                self.more_evidence += 1;
            }
        }
        self.tell(now, None, Happened::Understood(what));
    }

    /// It is in nobody's hands any more, nor silent.
    fn let_go_of_people(&mut self, now: Timestamp) {
        let is_silent = self.silent_until(now).is_some();
        if self.acknowledged_by.take().is_some() || is_silent {
            self.tell(now, None, Happened::Note(WORSE.to_owned()));
        }
        if is_silent {
            self.tell(now, None, Happened::Silenced(now));
        }
        (self.silenced_until, self.silenced_alone_until) = (None, None);
    }
}
