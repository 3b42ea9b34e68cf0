//! A day of the notifications: incidents come and go, receivers fail, answers are lost, the database
//! refuses, and the server dies between any two steps. The outbox, the channels and the strict
//! receivers are the real ones; clock, network, database and deaths are this seed's.
//!
//! What must hold, whatever happens: every incident that is in the database and was not silenced is told
//! to every receiver; in the end each receiver believes what is true; a receiver that knows keys shows
//! nothing twice (Alertmanager: one alert for each severity, place and owner that an incident had, however often it is
//! told, and never two of them at once); one that does not, once more for each death and each lost answer at most;
//! what is refused is sent once until somebody mends it, and is told then; not more than [`MOST_A_MINUTE`] messages a
//! minute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::{Incident, Place, State};
use gpufleet_server::notify::group::Group;
use gpufleet_server::notify::lane::{Fault, Outcome};
use gpufleet_server::notify::message::{self, Addresses};
use gpufleet_server::notify::outbox::{Outbox, Sending, Unread};
use gpufleet_server::notify::settings::{NotifyConfig, Settings};
use gpufleet_server::notify::template::Templates;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

mod receiver;

pub mod trouble;

mod check;

use receiver::{Receiver, config, receivers};
use trouble::{Name, name};

/// How long there is trouble, seconds.
const TROUBLE_S: i64 = 600;
/// How long it may take afterwards until everything is said: the longest pause of ours, and a few messages.
const QUIET_S: i64 = 900;
/// Messages in any minute to one receiver.
const MOST_A_MINUTE: usize = 20;
/// The first incident with nothing in its way is told within this, nanoseconds of the simulated clock.
const FIRST_WITHIN: i64 = NANOS_PER_SECOND;
/// The simulated clock goes on by this, and by twice that when all is well again.
const STEP: i64 = NANOS_PER_SECOND / 2;

const START: Timestamp = Timestamp(1_790_000_000_000_000_000);

/// What a day came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcomes {
    /// Incidents.
    pub incidents: u64,
    /// Messages that receivers took.
    pub messages: u64,
    /// Deaths of the server.
    pub deaths: u64,
    /// Answers that were lost after the receiver took the message.
    pub lost_answers: u64,
    /// Messages that receivers refused.
    pub refused: u64,
}

/// What the store has.
#[derive(Debug, Default, Clone)]
struct Database {
    incidents: BTreeMap<Uuid, Incident>,
    groups: BTreeMap<Uuid, Group>,
}

/// One day.
pub struct Day {
    rng: ChaCha8Rng,
    now: Timestamp,
    settings: Arc<Settings>,
    templates: Templates,
    receivers: BTreeMap<Arc<str>, Receiver>,
    database: Database,
    database_ill_until: Timestamp,
    /// What is true; the server's book.
    book: BTreeMap<Uuid, Incident>,
    unwritten: BTreeSet<Uuid>,
    /// What each incident was called by its labels since it began.
    names: BTreeMap<Uuid, BTreeSet<Name>>,
    outbox: Outbox,
    on_the_way: Vec<(Timestamp, Sending, Outcome)>,
    /// What receivers have refused since somebody last mended something, by receiver and message.
    refused: BTreeSet<(Arc<str>, String)>,
    next_id: u128,
    came: Outcomes,
    wrong: Vec<String>,
}

impl Day {
    /// The day of a seed.
    ///
    /// # Panics
    /// When its settings cannot be used.
    pub fn new(seed: u64) -> Self {
        let config = config(seed);
        let settings = Arc::new(Settings::read(&config).expect("they can be used"));
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: START,
            templates: Templates::ours(),
            receivers: receivers(&config),
            database: Database::default(),
            database_ill_until: START,
            book: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            names: BTreeMap::new(),
            outbox: Outbox::new(Arc::clone(&settings)),
            settings,
            on_the_way: Vec::new(),
            refused: BTreeSet::new(),
            next_id: 1,
            came: Outcomes::default(),
            wrong: Vec::new(),
        }
    }

    /// Lives it; what went wrong, if something did.
    ///
    /// # Errors
    /// Everything that must hold and did not.
    pub fn run(mut self) -> Result<Outcomes, Vec<String>> {
        let trouble_ends = START.shifted(TROUBLE_S * NANOS_PER_SECOND);
        let end = trouble_ends.shifted(QUIET_S * NANOS_PER_SECOND);
        self.first();
        while self.now < trouble_ends {
            self.incidents_come_and_go();
            self.things_fail();
            self.step(true);
        }
        self.all_is_well_again();
        while self.now < end {
            self.step(false);
            self.now = self.now.shifted(STEP);
        }
        self.check();
        match self.wrong.is_empty() {
            true => Ok(self.came),
            false => Err(self.wrong),
        }
    }

    /// The first incident, with nothing in its way, is told at once.
    fn first(&mut self) {
        self.open();
        for _ in 0..FIRST_WITHIN / STEP {
            self.step(false);
        }
        for (name, receiver) in &self.receivers {
            if receiver.heard.believes.len() != 1 {
                self.wrong.push(format!(
                    "{name} was not told of the first incident within a second"
                ));
            }
        }
    }

    fn happens(&mut self, one_in: u32) -> bool {
        self.rng.random_range(0..one_in) == 0
    }

    fn change(&mut self, id: Uuid, change: impl FnOnce(&mut Incident)) {
        if let Some(incident) = self.book.get_mut(&id) {
            change(incident);
            let names = self.names.entry(id).or_default();
            names.insert(name(incident, &self.settings));
            self.outbox.note(incident, self.now);
            self.unwritten.insert(id);
        }
    }

    fn things_fail(&mut self) {
        // Shorter than the patience of the outbox, and not one after the other.
        let is_well = self.now.since(self.database_ill_until) > 60 * NANOS_PER_SECOND;
        if self.happens(150) && is_well {
            let seconds = self.rng.random_range(1..25);
            self.database_ill_until = self.now.shifted(seconds * NANOS_PER_SECOND);
        }
        if self.happens(100) {
            let which = self.rng.random_range(0..self.receivers.len());
            let until = self
                .now
                .shifted(self.rng.random_range(1..120) * NANOS_PER_SECOND);
            let refuses = match self.rng.random_range(0..6) {
                0 => Some(Fault::Way),
                1 => Some(Fault::Message),
                _ => None,
            };
            if let Some(receiver) = self.receivers.values_mut().nth(which) {
                // What is refused is refused until it is mended, whatever fails beside it.
                receiver.refuses = receiver.refuses.or(refuses);
                receiver.ill_until = until.max(receiver.ill_until);
            }
        }
        self.people_mend();
    }

    /// Somebody puts in a good key, or tries the channel and sees that it works.
    fn people_mend(&mut self) {
        let now = self.now;
        for (name, receiver) in &mut self.receivers {
            if receiver.ill_until <= now && receiver.refuses.take().is_some() {
                self.refused.retain(|it| it.0 != *name);
                self.outbox.try_again(name);
            }
        }
    }

    /// One step of the server. It may die between any two of its steps.
    fn step(&mut self, may_die: bool) {
        let deadly = if may_die {
            self.rng.random_range(0..400_u32)
        } else {
            u32::MAX
        };
        if deadly == 0 {
            return self.die();
        }
        self.write();
        if deadly == 1 {
            return self.die();
        }
        for sending in self.outbox.next(self.now) {
            self.send(sending);
        }
        if deadly == 2 {
            return self.die();
        }
        let now = self.now;
        let (arrived, waits): (Vec<_>, Vec<_>) = std::mem::take(&mut self.on_the_way)
            .into_iter()
            .partition(|it| it.0 <= now);
        self.on_the_way = waits;
        for (_, sending, outcome) in arrived {
            let dice = self.rng.random_range(0.0..1.0);
            self.outbox.done(&sending, outcome, now, dice);
        }
        if deadly == 3 {
            return self.die();
        }
        self.write();
        self.now = self.now.shifted(STEP);
    }

    fn write(&mut self) {
        if self.now < self.database_ill_until {
            return;
        }
        for id in std::mem::take(&mut self.unwritten) {
            if let Some(incident) = self.book.get(&id) {
                self.database.incidents.insert(id, incident.clone());
            }
        }
        let groups = self.outbox.unwritten();
        let rows = groups.iter().map(|it| (it.id, it.clone()));
        self.database.groups.extend(rows);
        self.outbox.written(&groups);
    }

    /// The server dies and begins again with what the database has. What it did not know to be over is
    /// found to be over anew.
    fn die(&mut self) {
        self.came.deaths += 1;
        let truth = std::mem::replace(&mut self.book, self.database.incidents.clone());
        self.unwritten.clear();
        self.on_the_way.clear();
        // Whoever starts the server has perhaps mended something: it tries once more.
        self.refused.clear();
        self.outbox = Outbox::new(Arc::clone(&self.settings));
        let standing = self
            .database
            .groups
            .values()
            .filter(|it| it.over_at.is_none());
        let book = &self.book;
        let is_open = |id| book.get(&id).is_some_and(|it| it.state == State::Open);
        self.outbox.restore(
            standing.cloned().collect(),
            &is_open,
            &Unread::default(),
            self.now,
        );
        for incident in self.book.values().filter(|it| it.state == State::Open) {
            self.outbox.note(incident, self.now);
        }
        self.now = self.now.shifted(5 * NANOS_PER_SECOND);
        for (id, was) in truth {
            let known = self.book.get(&id).map(|it| it.state);
            if was.state == State::Resolved && known == Some(State::Open) {
                let now = self.now;
                self.change(id, |it| {
                    (it.state, it.resolved_at) = (State::Resolved, Some(now))
                });
            }
        }
    }

    fn send(&mut self, sending: Sending) {
        let told: Vec<Uuid> = message::told(&sending).collect();
        let known = |id: &Uuid| {
            self.book
                .get(id)
                .or_else(|| self.database.incidents.get(id))
        };
        let incidents: Vec<Incident> = told.iter().filter_map(known).cloned().collect();
        let addresses = Addresses::of(&NotifyConfig::default());
        let place = |place: &Place| place.node.clone().unwrap_or_default();
        let mut message = message::write(
            &sending,
            &incidents,
            &self.settings,
            &addresses,
            &place,
            "USD",
            self.now,
        );
        // Alertmanager has labels instead, and is told of hundreds at a time.
        if !sending.way.kind.wants_each() {
            match self.templates.write(&message) {
                Ok((title, text)) => (message.title, message.text) = (title, text),
                Err(why) => self.wrong.push(why),
            }
        }
        let (fate, hears, delay) = (
            self.rng.random_range(0..40),
            self.rng.random_range(0..3),
            self.rng.random_range(0..8),
        );
        let is_trouble = self.now < START.shifted(TROUBLE_S * NANOS_PER_SECOND) && self.next_id > 2;
        let now = self.now;
        let name = Arc::clone(&sending.way.name);
        let Some(receiver) = self.receivers.get_mut(&name) else {
            return;
        };
        let is_ill = now < receiver.ill_until;
        let refuses = receiver.refuses.filter(|_| is_ill);
        // Alertmanager is told of everything each minute, whatever it said before.
        let is_once = refuses.is_some() && !sending.way.kind.wants_each();
        let key = sending.group.message_key();
        if is_once && !self.refused.insert((Arc::clone(&name), key)) {
            let what = &message.title;
            let wrong = format!("{name} was sent again what it had refused: {what}");
            self.wrong.push(wrong);
        }
        let lost_answer = is_trouble && fate == 0;
        let later = |why: &str, after| Outcome::Later {
            why: why.to_owned(),
            after,
        };
        let outcome = match hears {
            _ if let Some(fault) = refuses => {
                self.came.refused += 1;
                let why = "401".to_owned();
                Outcome::Refused { why, fault }
            }
            0 if is_ill => later("503", None),
            1 if is_ill => later("429", Some(Duration::from_secs(20))),
            _ if is_ill => later("unreachable", None),
            _ => match receiver.take(&message, &sending, now) {
                Ok(()) if lost_answer => {
                    self.came.lost_answers += 1;
                    later("no answer", None)
                }
                Ok(()) => {
                    self.came.messages += 1;
                    Outcome::Delivered
                }
                Err(why) => {
                    self.wrong
                        .push(format!("{name} refused {}: {why}", message.title));
                    Outcome::Delivered
                }
            },
        };
        let delay = if is_trouble { delay * STEP } else { 0 };
        self.on_the_way.push((now.shifted(delay), sending, outcome));
    }

    /// From now on nothing fails, and nothing more happens.
    fn all_is_well_again(&mut self) {
        self.database_ill_until = self.now;
        for receiver in self.receivers.values_mut() {
            receiver.ill_until = self.now;
        }
        self.people_mend();
        // Half of what is open is over now.
        let open = self.open_ones();
        for id in open.iter().step_by(2) {
            let now = self.now;
            self.change(*id, |it| {
                (it.state, it.resolved_at) = (State::Resolved, Some(now))
            });
        }
    }
}
