//! A group: incidents that are one message to one receiver, from the first of them to the end of the
//! last. It is what stands in the outbox: a row that is written with the incident, and tells after a
//! crash what is still to be said.
//!
//! A group has one key for its whole life, so that a receiver that knows keys (PagerDuty, a webhook)
//! makes one alarm of it and ends that one. To a receiver whose alarm calls people once (PagerDuty) what breaks after the
//! first message is another group. Its *version* grows with everything there is to say; a
//! message is a version, and the same version is the same message however often it is sent.
//!
//! A group may have a [`Notice`] in place of incidents: something that is said once, as somebody's week is. It goes the
//! same way: written before it is sent, tried again, under one key.
//!
//! Limits: [`MAX_MEMBERS`] incidents; what is beyond is counted, and taken in when there is room. What is over and does
//! not get through is forgotten after [`Way::gives_up`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::lane::Fault;
use super::settings::Way;

mod member;

mod name;

mod room;

pub use member::{Delivered, Member};
pub use name::{Name, Names};

/// Most incidents of one group: as many as the book has. A longer message nobody reads.
pub const MAX_MEMBERS: usize = 1_000;
/// After a refusal the next message of the group, which says something else, is not sent sooner than this: what
/// changes each second makes no retry of what is not to be retried.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// A message that was refused so often while others got through is what is wrong itself: between us and the
/// receiver somebody reads along.
const REFUSALS: u32 = 3;
/// The end is not told sooner than this after the last message: what comes back by then was never over.
pub const RESOLVE_PAUSE: Duration = Duration::from_secs(60);

/// What a message says of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// Something is wrong.
    Opened,
    /// More, or worse, or still.
    Updated,
    /// It is over.
    Resolved,
    /// Nothing is wrong: a notice. Everything else goes before it.
    Notice,
}

/// Something that is said once, and is about no incident. Whoever makes it keeps it short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The line above everything.
    pub title: String,
    /// All the rest, for people.
    pub text: String,
    /// Our page.
    pub link: String,
    /// The same for programs.
    pub digest: serde_json::Value,
}

/// Where a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its message has not gone out yet.
    Waiting,
    /// It did not get through, and is tried again.
    Retrying,
    /// The receiver knows all there is to say.
    Delivered,
    /// The receiver will not take it: it is not tried again before somebody mends what is wrong.
    Refused,
    /// Everything is over and told.
    Over,
}

/// One group of incidents for one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its id, which makes its key.
    pub id: Uuid,
    /// The receiver.
    pub way: Arc<str>,
    /// What its incidents have in common, by name.
    pub common: Vec<(String, String)>,
    /// Whether it is what was too much for groups of their own.
    pub is_flood: bool,
    /// Its incidents.
    pub members: BTreeMap<Uuid, Member>,
    /// What it says where it is about none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Arc<Notice>>,
    /// Incidents that there was no room for.
    pub left_out: u64,
    /// The ids of the last of them, so that each is counted once.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub beyond: BTreeSet<Uuid>,
    /// Grows with everything there is to say.
    pub version: u64,
    /// Whether the receiver believes that something is wrong.
    pub is_raised: bool,
    /// When it began.
    pub began_at: Timestamp,
    /// When the first message got through.
    pub first_at: Option<Timestamp>,
    /// When the last one got through, and what it said.
    pub last: Option<(Timestamp, Says)>,
    /// When the last attempt was.
    pub tried_at: Option<Timestamp>,
    /// Attempts since the last one that got through.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// The version that the receiver will not take: it is not sent again until somebody mends what is wrong.
    pub refused: Option<u64>,
    /// What is wrong; of a row that an older version wrote the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Refusals since the last message that got through, but for those of a way that took nothing then.
    #[serde(default)]
    pub refusals: u32,
    /// When everything was over and told.
    pub over_at: Option<Timestamp>,
}

impl Group {
    /// A new one.
    pub fn new(id: Uuid, way: &Way, common: Vec<(String, String)>, now: Timestamp) -> Self {
        Self {
            id,
            way: Arc::clone(&way.name),
            common,
            is_flood: false,
            members: BTreeMap::new(),
            notice: None,
            left_out: 0,
            beyond: BTreeSet::new(),
            version: 0,
            is_raised: false,
            began_at: now,
            first_at: None,
            last: None,
            tried_at: None,
            attempts: 0,
            error: None,
            refused: None,
            fault: None,
            refusals: 0,
            over_at: None,
        }
    }

    /// The key that a receiver knows it by, for its whole life.
    pub fn key(&self) -> String {
        format!("gpufleet/{}", self.id)
    }

    /// The key of the next message.
    pub fn message_key(&self) -> String {
        format!("{}/{}", self.key(), self.version)
    }

    /// Takes in an incident as it is now; whether that is a change. `name` is for receivers that know it by that.
    pub fn take(&mut self, incident: &Incident, name: Option<Name>, now: Timestamp) -> bool {
        let mut new = Member::of(incident, name, now);
        match self.members.get_mut(&incident.id) {
            Some(known) => {
                (new.told, new.told_severity) = (known.told, known.told_severity);
                (new.opened_at, new.may_be_told) = (known.opened_at, known.may_be_told);
                new.may_be_over = known.may_be_over;
                new.is_linked = known.is_linked;
                new.names = known.names.clone().become_now(new.names.now);
                if new.resolved_at.is_some() && known.resolved_at.is_none() {
                    // Silent while it was so is silent for ever; what was loud was not.
                    new.silenced_until = known.silenced_until;
                }
                if *known == new {
                    return false;
                }
                *known = new;
            }
            None if new.resolved_at.is_some() => return false,
            None => {
                if !self.take_new(incident.id, new) {
                    return false;
                }
            }
        }
        self.version += 1;
        self.over_at = None;
        true
    }

    /// Ends incidents of which nothing else is heard; whether there was one.
    pub fn end(&mut self, is_over: &dyn Fn(Uuid) -> bool, now: Timestamp) -> bool {
        let mut ended = false;
        for (id, member) in &mut self.members {
            if member.resolved_at.is_none() && is_over(*id) {
                member.resolved_at = Some(now);
                ended = true;
            }
        }
        self.version += u64::from(ended);
        ended
    }

    /// Ends silences that have run out; whether one did.
    pub fn wake(&mut self, now: Timestamp) -> bool {
        let mut woke = false;
        for member in self.members.values_mut() {
            if member.resolved_at.is_none() && member.silenced_until.is_some_and(|it| it <= now) {
                member.silenced_until = None;
                woke = true;
            }
        }
        self.version += u64::from(woke);
        woke
    }

    /// The clock may have been set back since: nothing waits for a time that was wrong.
    pub fn turned_back(&mut self, now: Timestamp) {
        let moments = [
            Some(&mut self.began_at),
            self.first_at.as_mut(),
            self.last.as_mut().map(|(at, _)| at),
            self.tried_at.as_mut(),
            self.over_at.as_mut(),
        ];
        for at in moments.into_iter().flatten() {
            *at = now.min(*at);
        }
        for member in self.members.values_mut() {
            member.turned_back(now);
        }
    }

    /// What there is to say, and from when on it may be said. What the receiver will not take is not said again, but
    /// by a receiver that is told of everything again and again: then with the next time.
    pub fn to_say(&self, way: &Way) -> Option<(Says, Timestamp)> {
        let (says, from) = self.undelivered(way)?;
        let (Some(refused), Some(at)) = (self.refused, self.tried_at) else {
            return Some((says, from));
        };
        let pause = match refused == self.version {
            true => way.repeat?,
            false => way.repeat.map_or(REFUSED_PAUSE, |it| it.min(REFUSED_PAUSE)),
        };
        Some((says, from.max(later(at, pause))))
    }

    /// What the receiver does not know and should, and since when; also where it will not take it.
    pub fn undelivered(&self, way: &Way) -> Option<(Says, Timestamp)> {
        if self.notice.is_some() {
            return (self.first_at.is_none()).then_some((Says::Notice, self.began_at));
        }
        let any = |of: fn(&Member) -> bool| self.members.values().any(of);
        let is_so = any(|it| it.is_loud() || it.is_known());
        let paused = |says: Says| {
            let from = self
                .last
                .map_or(self.began_at, |(at, _)| later(at, way.interval));
            Some((says, from))
        };
        if is_so {
            let is_news =
                any(Member::is_news) || any(Member::is_missed) || any(Member::is_over_untold);
            return match (is_news, self.is_raised) {
                (true, false) => Some((Says::Opened, self.began_at)),
                (true, true) => paused(Says::Updated),
                (false, _) => self.again(way),
            };
        }
        if any(Member::is_over_untold) || any(Member::is_missed) {
            let pause = way.interval.min(RESOLVE_PAUSE);
            let from = self.last.map_or(self.began_at, |(at, _)| later(at, pause));
            return Some((Says::Resolved, from));
        }
        // Alertmanager is told of what is over until it is surely not believed any more.
        self.again(way).filter(|_| way.kind.wants_each())
    }

    /// The next repetition. One that does not get through is due until it does: the receiver has heard
    /// nothing since.
    fn again(&self, way: &Way) -> Option<(Says, Timestamp)> {
        let (repeat, tried) = (way.repeat?, self.tried_at?);
        let is_tried_again = self.attempts > 0 && self.refused.is_none();
        let repeat = if is_tried_again {
            Duration::ZERO
        } else {
            repeat
        };
        let is_wanted = |it: &Member| it.is_loud() || way.kind.wants_each();
        let is_one = self.members.values().any(is_wanted);
        is_one.then(|| (Says::Updated, later(tried, repeat)))
    }

    /// A message goes out, or may have gone out before a restart.
    pub fn goes_out(&mut self) {
        for member in self.members.values_mut() {
            member.may_be_over |= member.is_over_untold();
        }
        for member in self.members.values_mut().filter(|it| it.is_loud()) {
            member.may_be_told = true;
            member.names.go_out();
            if member.told == Delivered::Over {
                // It came back: from now on the receiver may believe either.
                member.told = Delivered::Nothing;
            }
        }
    }

    /// A message got through: what it said, as the group was when it was sent.
    pub fn delivered(&mut self, as_sent: &Self, says: Says, now: Timestamp) {
        for (id, sent) in &as_sent.members {
            let Some(member) = self.members.get_mut(id) else {
                continue;
            };
            if sent.resolved_at.is_some() {
                (member.told, member.may_be_over) = (Delivered::Over, false);
            } else if sent.is_loud() || sent.told == Delivered::Open {
                (member.told, member.may_be_over) = (Delivered::Open, false);
                member.told_severity = sent.severity;
                member.names.are_told(&sent.names, sent.is_loud());
            }
        }
        self.is_raised = says != Says::Resolved;
        self.first_at.get_or_insert(now);
        self.last = Some((now, says));
        (self.tried_at, self.attempts) = (Some(now), 0);
        self.error = None;
        self.try_again();
        // The next message is another one.
        self.version += 1;
    }

    /// A message did not get through. Of a way that takes nothing, as `was_broken` says, it says nothing of this group
    /// that one message more is refused.
    pub fn failed(
        &mut self,
        as_sent: &Self,
        (why, fault): (String, Option<Fault>),
        was_broken: bool,
        now: Timestamp,
    ) {
        self.tried_at = Some(now);
        self.attempts = self.attempts.saturating_add(1);
        self.error = Some(why);
        self.refused = fault.map(|_| as_sent.version);
        self.fault = fault;
        let says_something = fault == Some(Fault::Message) || fault.is_some() && !was_broken;
        self.refusals += u32::from(says_something);
    }

    /// What was wrong may be mended: what was refused may go out again; whether there was something.
    pub fn try_again(&mut self) -> bool {
        let was = self.refused.take().is_some();
        (self.fault, self.refusals) = (None, 0);
        was
    }

    /// The receiver takes other messages: what it refused for the way's sake may go out again, but for what it
    /// refuses each time while it takes others; whether it may.
    pub fn way_is_well(&mut self) -> bool {
        if self.fault != Some(Fault::Way) {
            return false;
        }
        if self.refusals >= REFUSALS {
            self.fault = Some(Fault::Message);
            return false;
        }
        (self.refused, self.fault) = (None, None);
        true
    }

    /// Whether the receiver will not take what it is to know of something that is so.
    pub fn is_refused(&self) -> bool {
        let is_so = self.members.values().any(Member::is_loud) || self.notice.is_some();
        self.over_at.is_none() && self.refused.is_some() && is_so
    }

    /// Forgets incidents of which nothing is left to say, and ends a group without any; whether that
    /// changed something.
    pub fn settle(&mut self, way: &Way, now: Timestamp) -> bool {
        let before = (self.members.len(), self.over_at);
        self.members.retain(|_, it| !it.is_done(way, now));
        // A notice is over when it got through, or when nobody wants to hear of that week any more.
        let is_to_say = self.notice.is_some()
            && self.first_at.is_none()
            && now < later(self.began_at, way.gives_up());
        // An end that was refused is kept as well: the receiver may believe that it is so, and will be mended.
        if self.members.is_empty() && !is_to_say {
            self.over_at.get_or_insert(now);
        }
        before != (self.members.len(), self.over_at)
    }

    /// Where it is.
    pub fn state(&self) -> State {
        match () {
            () if self.refused.is_some() => State::Refused,
            () if self.over_at.is_some() => State::Over,
            () if self.attempts > 0 => State::Retrying,
            () if self.first_at.is_some() => State::Delivered,
            () => State::Waiting,
        }
    }
}

impl State {
    /// The name in the API, on the page and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Delivered => "delivered",
            Self::Refused => "refused",
            Self::Over => "over",
        }
    }
}

impl Says {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Updated => "updated",
            Self::Resolved => "resolved",
            Self::Notice => "notice",
        }
    }
}

/// A moment so much later.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.shifted(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX))
}
