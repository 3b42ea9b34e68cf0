//! What a GPU did in each second of an hour: the partition, first match wins.
//!
//! Method. A second of evidence (five bits of a minute row) is classed on its own: not observed,
//! holder unknown, not held, activity unknown, stalled, active, inactive. Then runs decide:
//!
//! - Not observed for more than [`Policy::silent_after_s`] (two ticks, 20 s): `unobserved`, all of
//!   it. A shorter gap takes the class of the second before it. After [`Policy::gone_after_s`] (1 h)
//!   in which nobody told anything of it, not even that it is missing, it is gone: nothing is
//!   accounted until it is told of again.
//! - Stalled evidence for [`Policy::stalled_after_s`] (300 s): `stalled` from then on, not before;
//!   until then it is active, which is what it looks like.
//! - Inactive for less than [`Policy::parked_after_s`] (300 s): `gap`. From then on the whole run,
//!   back to the last activity, is `parked` (more than [`Policy::empty_below_bytes`], 512 MiB, in use)
//!   or `held_empty`. A run is cut by whatever is not inactive, also by `unobserved`: what was not
//!   seen is never called idle.
//! - Active for over a minute while nobody is known to hold it, pauses of up to 20 s being part of it: its
//!   holder is unknown, all of that time. Shorter work, as that of the agent's own probe, leaves it free
//!   (`unheld`).
//! - `unhealthy` from a fatal event to the event that ends it, or until it was seen active again
//!   [`Policy::healed_after_s`] (60 s) or more after the last fatal event. A recovery action also
//!   ends when the driver's reading says that it asks for nothing.
//!
//! Precedence: not billed (in no state), starting node, unhealthy, unobserved for want of a sample,
//! holder unknown, draining, unallocated, starting pod, activity unknown, stalled, active, inactive.
//! What needs more than the GPU's own evidence comes from [`Around`]: billing, readiness, cordons, parts of a card in
//! its place (`family`), holders, demand, steps that stay out (stalled at once), targets. Without it nothing is starting
//! or draining and active time is `active_unrated`. With targets a minute's active seconds are
//! efficient or not by what its mean reached; what was missing is summed apart ([`Held::lost_millis`]),
//! never as idle. Where billing is known exactly the billed seconds are accounted.
//!
//! Numbers. Resolution one second, results in integer milliseconds; every second asked for is in
//! exactly one state. A run crosses hours: what is behind comes as a [`Carry`], what is ahead as the
//! minute rows of the next hour ([`LOOKAHEAD_MINUTES`], 5). So an hour is final 5 minutes and the
//! lateness of data after its end.
//! Energy is told by the card's counter, second by second beside the state (`energy`); it decides nothing.
//! Limits. Whether it was active is one bit: engine ≥0.05 over that second, as the agent read it. A
//! GPU that gives neither engine activity nor utilisation reads `unobserved`, activity unknown. A
//! change of holder without a second in between is seen only where someone watches holders.

use std::collections::BTreeMap;

use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ledger::{Energy, LedgerHour, Reason, State};

mod around;

mod energy;

mod family;

mod health;

mod now;

mod second;

mod unheld;

#[cfg(test)]
mod around_tests;

#[cfg(test)]
pub(crate) mod tests;

pub use around::{
    Around, Demand, Hold, Measure, NotReady, Span, TAKEN_BACK_S, TRAINING_TARGETS, Target,
};
pub use family::{Relative, away, family_minutes};
pub use health::{Edge, FATAL_XIDS, HEALTH_KINDS, HealthEvent, edge, recovery_breaks};
pub use now::{AtNode, Now, Recent, Status, now};

use around::Second;
use second::{Class, MinuteFacts};
use unheld::Work;

/// Minutes after its end that an hour looks at: the longest run that is decided backwards.
pub const LOOKAHEAD_MINUTES: i64 = 5;

/// Seconds in one hour.
const HOUR_S: usize = 3_600;

/// The numbers of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Longest time without a sample that is bridged, seconds. Two ticks.
    pub silent_after_s: u32,
    /// Time without a sample after which it is taken as gone, seconds.
    pub gone_after_s: u32,
    /// Stalled evidence for this long is a stall, seconds.
    pub stalled_after_s: u32,
    /// Inactive for this long is parked or empty, seconds. At most 300: hours look no further.
    pub parked_after_s: u32,
    /// Memory in use, bytes, up to which an inactive GPU is called empty.
    pub empty_below_bytes: u64,
    /// Activity this long after the last fatal event ends `unhealthy`, seconds.
    pub healed_after_s: u32,
}

/// What an hour hands to the next one: the runs that cross its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Carry {
    /// Whether it was there at the end.
    pub is_there: bool,
    /// Seconds without a sample at the end; 0 when its last second was observed.
    pub silent_s: u32,
    /// Seconds at the end in which nobody told anything of it, not even that it is missing.
    pub untold_s: u32,
    /// The class of the last second.
    class: Class,
    /// Seconds of inactivity at the end, not counted beyond the pause that parks it.
    pub inactive_s: u32,
    /// Seconds of stalled evidence at the end, not counted beyond what makes a stall.
    pub stalled_s: u32,
    /// Memory in use in the last minute that knew it, bytes.
    pub memory_bytes: Option<u64>,
    /// Why it was unhealthy at the end, and the second of Unix time of the newest fatal event.
    pub unhealthy: Option<(Reason, i64)>,
    /// Who held it at the end, as [`Around`] numbers holders; 0 when nobody or not known.
    pub holder: i64,
    /// Since which second of Unix time it has been free, or inactive in the same hands; none when it
    /// is neither.
    pub idle_since_s: Option<i64>,
    /// The work that it was at, at the end, while nobody was known to hold it.
    unheld: Option<Work>,
    /// The last that its energy counter told.
    metered: Option<energy::Point>,
}

/// What is known about one hour of one GPU or share.
#[derive(Debug, Clone, Copy)]
pub struct Hour<'a> {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// Its minute rows, and those of the [`LOOKAHEAD_MINUTES`] after it. Others are ignored.
    pub minutes: &'a BTreeMap<Minute, MinuteRow>,
    /// What broke or healed it in the hour and the minutes after it, in any order.
    pub health: &'a [HealthEvent],
    /// What the hour before handed over; the default when there was none.
    pub carry: Carry,
    /// How far data can be complete: later seconds are not accounted.
    pub until: Timestamp,
    /// What stands around it.
    pub around: &'a Around,
}

/// One hour, and in whose hands it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accounted {
    /// The hour.
    pub ledger: LedgerHour,
    /// The same time by holder; the sums by state and reason are those of the hour.
    pub held: BTreeMap<(i64, State, Reason), Held>,
    /// When in the hour that time is, one stretch after the other.
    pub spans: Vec<Span>,
    /// What the next hour must know.
    pub carry: Carry,
}

/// Time of one holder in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// How long.
    pub millis: i64,
    /// Of inefficient time, what was missing to the target: Σ time × (1 − achieved ÷ target).
    pub lost_millis: i64,
    /// What it drew.
    pub energy: Energy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            silent_after_s: 20,
            gone_after_s: 3_600,
            stalled_after_s: 300,
            parked_after_s: 300,
            empty_below_bytes: 512 * 1024 * 1024,
            healed_after_s: 60,
        }
    }
}

/// Accounts one hour, and says what the next one must know.
/// The sum of the hour is the number of its seconds before `until` in which the GPU was there, or
/// was billed where that is known, times 1,000. The carry is that of the last second before `until`:
/// the next hour may take it only when `until` is not before the hour's end.
pub fn hour(asked: &Hour<'_>, policy: &Policy) -> (LedgerHour, Carry) {
    let accounted = account(asked, policy);
    (accounted.ledger, accounted.carry)
}

/// Accounts one hour, by holder too.
pub fn account(asked: &Hour<'_>, policy: &Policy) -> Accounted {
    let start_s = asked.hour * HOUR_S as i64;
    let most = HOUR_S as i64 + LOOKAHEAD_MINUTES * 60;
    let length = usize::try_from((asked.until.seconds() - start_s).clamp(0, most))
        .expect("between 0 and one hour and the lookahead");
    let mut accounted = Accounted {
        ledger: LedgerHour::new(asked.hour, BTreeMap::new()),
        held: BTreeMap::new(),
        spans: Vec::new(),
        carry: asked.carry,
    };
    let Some(last) = length.min(HOUR_S).checked_sub(1) else {
        return accounted;
    };
    let mut around = asked.around.seconds(start_s, length);
    let evidence = Evidence::read(asked, &around, length, policy);
    let mut bridged = evidence.bridged(&asked.carry, start_s, policy);
    let unheld = Work::settle(&mut bridged, start_s, last, asked.carry.unheld);
    evidence.hold_on(&bridged, &asked.carry, &mut around);
    let of_node: Vec<Option<(State, Reason)>> = std::iter::zip(&around, &bridged)
        .map(|(it, class)| it.not_ready.and_then(|why| why.state(*class)))
        .collect();
    let broken = health::broken(asked, start_s, &bridged, policy);
    let cut: Vec<bool> = std::iter::zip(&broken, std::iter::zip(&of_node, &around))
        .map(|(broken, (node, it))| broken.is_some() || node.is_some() || it.is_standing)
        .collect();
    let runs = Runs::of(&bridged, &around, &cut, &asked.carry);
    let meter = energy::Meter::read(asked.hour, asked.minutes, asked.carry.metered);
    let mut is_accounted = vec![false; last + 1];
    for second in 0..=last {
        let state = match asked.around.is_billed(start_s + second as i64) {
            Some(false) => None,
            _ if around[second].is_away => None,
            _ if of_node[second].is_some() => of_node[second],
            billed => match (bridged[second], broken[second]) {
                (Class::Gone, _) => billed.map(|_| (State::Unobserved, Reason::NoSample)),
                (_, Some((reason, _))) => Some((State::Unhealthy, reason)),
                (class, None) => {
                    let memory = evidence.memory[second / 60];
                    Some(runs.state(second, class, memory, policy))
                }
            },
        };
        let Some(state) = state else { continue };
        is_accounted[second] = true;
        let minute = asked.hour * 60 + (second / 60) as i64;
        let (state, lost) = rated(asked, &around[second], Minute(minute), state);
        let key = (around[second].holder, state.0, state.1);
        let held = accounted.held.entry(key).or_default();
        held.millis += 1_000;
        held.lost_millis += lost;
        held.energy.add(meter.of_second(second));
    }
    let mut time: BTreeMap<(State, Reason), i64> = BTreeMap::new();
    for ((_, state, reason), held) in &accounted.held {
        *time.entry((*state, *reason)).or_default() += held.millis;
    }
    accounted.ledger = LedgerHour::new(asked.hour, time);
    accounted.spans = family::spans(&is_accounted, start_s);
    accounted.carry = Carry {
        is_there: bridged[last] != Class::Gone,
        silent_s: evidence.silent[last],
        untold_s: evidence.untold[last],
        class: bridged[last],
        inactive_s: runs
            .trailing(Class::Inactive, last)
            .min(policy.parked_after_s),
        stalled_s: runs
            .trailing(Class::Stalled, last)
            .min(policy.stalled_after_s),
        memory_bytes: evidence.memory[last / 60],
        unhealthy: broken[last],
        holder: around[last].holder,
        idle_since_s: runs.idle_since(last, start_s, &asked.carry),
        unheld,
        metered: meter.last(last),
    };
    accounted
}

/// A second of activity by what its minute reached of the holder's target, and what was missing of
/// it in milliseconds; a pause of a standby by its reason.
fn rated(
    asked: &Hour<'_>,
    around: &Second,
    minute: Minute,
    state: (State, Reason),
) -> ((State, Reason), i64) {
    match state.0 {
        State::ActiveUnrated if !asked.around.targets.is_empty() => {
            let row = asked.minutes.get(&minute);
            match asked.around.achieved(around.holder, minute, row) {
                None => (state, 0),
                Some(reached) if reached >= 1_000_000 => ((State::ActiveEfficient, state.1), 0),
                Some(reached) => {
                    let lost = (1_000_000 - reached) / 1_000;
                    ((State::ActiveInefficient, state.1), lost)
                }
            }
        }
        State::Parked | State::HeldEmpty if asked.around.standby.contains(&around.holder) => {
            ((state.0, Reason::WarmStandby), 0)
        }
        _ => (state, 0),
    }
}

/// What the minute rows say, second by second.
struct Evidence {
    classes: Vec<Class>,
    /// For how many seconds there has been no sample, up to and with this one; 0 while gone.
    silent: Vec<u32>,
    /// For how many seconds nobody has told anything, up to and with this one.
    untold: Vec<u32>,
    /// By minute: memory in use, as last known.
    memory: Vec<Option<u64>>,
}

impl Evidence {
    fn read(asked: &Hour<'_>, around: &[Second], length: usize, policy: &Policy) -> Self {
        let mut all = Self {
            classes: Vec::with_capacity(length),
            silent: Vec::with_capacity(length),
            untold: Vec::with_capacity(length),
            memory: Vec::with_capacity(length.div_ceil(60)),
        };
        let (mut is_there, mut silent) = (asked.carry.is_there, asked.carry.silent_s);
        let (mut untold, mut memory) = (asked.carry.untold_s, asked.carry.memory_bytes);
        for (minute, first) in (asked.hour * 60..).zip((0..length).step_by(60)) {
            let row = asked.minutes.get(&Minute(minute));
            let facts = row.map(|it| MinuteFacts::of(it, asked.around.is_activity_told));
            memory = facts.as_ref().and_then(|it| it.memory_bytes).or(memory);
            all.memory.push(memory);
            for second in 0..(length - first).min(60) as u32 {
                untold = if facts.is_some() {
                    0
                } else {
                    untold.saturating_add(1)
                };
                let around = &around[first + second as usize];
                let facts = facts.as_ref();
                let seen = facts.and_then(|it| it.class(second, around.claim));
                let seen = seen.filter(|_| !around.is_away);
                is_there = match (&seen, facts) {
                    _ if around.is_away => false,
                    (Some(_), _) => true,
                    // Told to be missing; of a minute it was seen in, only from then on.
                    (None, Some(facts)) => is_there || facts.is_never_observed(),
                    (None, None) => is_there && untold <= policy.gone_after_s,
                };
                silent = if seen.is_some() || !is_there {
                    0
                } else {
                    silent.saturating_add(1)
                };
                let unseen = if is_there { Class::Silent } else { Class::Gone };
                all.classes.push(seen.unwrap_or(unseen));
                all.silent.push(silent);
                all.untold.push(untold);
            }
        }
        all
    }

    /// A short gap between samples changes nothing of who holds it either.
    fn hold_on(&self, bridged: &[Class], carry: &Carry, around: &mut [Second]) {
        let mut before = carry.holder;
        for (second, it) in around.iter_mut().enumerate() {
            let is_bridged =
                self.classes[second] == Class::Silent && bridged[second] != Class::Silent;
            if is_bridged && it.claim == around::Claim::Unsaid {
                it.holder = before;
            }
            before = it.holder;
        }
    }

    /// The classes with short gaps between samples filled by what was before them.
    fn bridged(&self, carry: &Carry, start_s: i64, policy: &Policy) -> Vec<Class> {
        let mut bridged = self.classes.clone();
        let mut before = if carry.is_there {
            Work::undone(carry.unheld, carry.class, start_s - 1)
        } else {
            Class::Gone
        };
        let mut first = 0;
        for run in self.classes.chunk_by(|a, b| a == b) {
            let end = first + run.len();
            let is_short = self.silent[end - 1] <= policy.silent_after_s;
            if run[0] == Class::Silent && is_short && before != Class::Gone {
                bridged[first..end].fill(before);
            }
            before = bridged[end - 1];
            first = end;
        }
        bridged
    }
}

/// How long runs of one class in the same hands are.
struct Runs {
    /// Length of the run a second is part of, before and after it, with what the hour before had.
    whole: Vec<u32>,
    /// Length of the run up to and with a second, with what the hour before had.
    so_far: Vec<u32>,
    /// Whether the run goes on from the hour before.
    is_carried: Vec<bool>,
    /// The class the run is of and who holds it; none where something else decides.
    class: Vec<Option<(Class, i64)>>,
    /// What stands around each second.
    around: Vec<Second>,
}

impl Runs {
    fn of(bridged: &[Class], around: &[Second], cut: &[bool], carry: &Carry) -> Self {
        let class: Vec<Option<(Class, i64)>> = std::iter::zip(bridged, std::iter::zip(around, cut))
            .map(|(class, (around, cut))| (!cut).then_some((*class, around.holder)))
            .collect();
        let (mut whole, mut so_far, mut is_carried) = (Vec::new(), Vec::new(), Vec::new());
        for run in class.chunk_by(|a, b| a == b) {
            let goes_on = so_far.is_empty() && run[0] == Some((carry.class, carry.holder));
            let before = match carry.class {
                Class::Inactive if goes_on => carry.inactive_s,
                Class::Stalled if goes_on => carry.stalled_s,
                _ => 0,
            };
            let length = u32::try_from(run.len()).expect("at most an hour and the lookahead");
            whole.extend(run.iter().map(|_| before + length));
            so_far.extend((1..=length).map(|seconds| before + seconds));
            is_carried.extend(run.iter().map(|_| goes_on));
        }
        Self {
            whole,
            so_far,
            is_carried,
            class,
            around: around.to_vec(),
        }
    }

    /// Since when it has been free, or inactive in the same hands, at this second.
    fn idle_since(&self, second: usize, start_s: i64, carry: &Carry) -> Option<i64> {
        let class = self.class[second]?;
        if !matches!(class.0, Class::NotHeld | Class::Inactive) {
            return None;
        }
        let run = self.class[..=second].iter().rev();
        let length = run.take_while(|it| **it == Some(class)).count();
        let first_s = start_s + (second + 1 - length) as i64;
        let before = carry.idle_since_s.filter(|_| self.is_carried[second]);
        Some(before.unwrap_or(first_s))
    }

    /// How long the class has lasted at this second; 0 when it is in another one.
    fn trailing(&self, class: Class, second: usize) -> u32 {
        if self.class[second].is_some_and(|it| it.0 == class) {
            self.so_far[second]
        } else {
            0
        }
    }

    /// The state of a second in which it is there and not broken.
    fn state(
        &self,
        second: usize,
        class: Class,
        memory_bytes: Option<u64>,
        policy: &Policy,
    ) -> (State, Reason) {
        let around = &self.around[second];
        match class {
            Class::Gone | Class::Silent => (State::Unobserved, Reason::NoSample),
            Class::HolderUnknown => (State::Unobserved, Reason::HolderUnknown),
            Class::NotHeld | Class::Unclaimed if around.is_draining => {
                (State::Draining, Reason::Unknown)
            }
            Class::NotHeld | Class::Unclaimed => (State::Unallocated, around.free),
            Class::Starting => (State::StartingPod, Reason::Unknown),
            Class::ActivityUnknown => (State::Unobserved, Reason::ActivityUnknown),
            _ if around.is_standing => (State::Stalled, Reason::Unknown),
            Class::Stalled if self.so_far[second] > policy.stalled_after_s => {
                (State::Stalled, Reason::Unknown)
            }
            Class::Stalled | Class::Active => (State::ActiveUnrated, Reason::Unknown),
            Class::Inactive if self.whole[second] < policy.parked_after_s => {
                (State::Gap, Reason::Unknown)
            }
            Class::Inactive => idle_state(memory_bytes, policy),
        }
    }
}

/// What a long inactivity is called, by the memory in use.
fn idle_state(memory_bytes: Option<u64>, policy: &Policy) -> (State, Reason) {
    match memory_bytes {
        None => (State::Parked, Reason::MemoryUnknown),
        Some(bytes) if bytes > policy.empty_below_bytes => (State::Parked, Reason::Unknown),
        Some(_) => (State::HeldEmpty, Reason::Unknown),
    }
}
