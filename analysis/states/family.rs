//! A card and what it is cut into: which of them is there in which second, so that each second of the card is
//! accounted once, of the card or of its parts.
//!
//! Method. A part (a MIG instance) is there from its first sample to its last: what is missing between two minutes
//! of its own that follow one on the other, and a minute that only says that it is missing, change nothing of that.
//! After its last it is no more as soon as the card or another part is seen without it. Where nothing of the card is
//! seen at all, an agent that is away, what was there before still is, for as long as it counts as there without a
//! word ([`Policy::gone_after_s`]). The card is accounted in the seconds in which no part of it is there.
//!
//! So a second of the card is that of its parts from the first sample of any of them on, and the card's own again after
//! the last sample of the last; what all parts leave of it is `stranded`, which the chargeback says.
//!
//! Limits. A part that is made anew under its name within the same or the next minute was there throughout, unless
//! another lived and went in between ([`MEETS_S`]): then it made room for that one, and both do not count at once. Of a
//! sender that leaves parts out that it cannot read, and says nothing of them, they are no more.

use std::collections::BTreeMap;

use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::{HOUR_S, LOOKAHEAD_MINUTES, Policy, Span};

/// The first minute that is looked at, before the hour: what was told an hour ago is there no more by then.
const BEFORE_MINUTES: i64 = 60;

/// How many minutes there are to look at, from [`BEFORE_MINUTES`] before the hour to one behind its lookahead, whose
/// last minute is seen to go on by the one after it.
const MINUTES: i64 = BEFORE_MINUTES + 60 + LOOKAHEAD_MINUTES + 1;

/// Two that are seen within so many seconds of each other are there together, seconds: all of a card are read in one go.
const MEETS_S: usize = 2;

/// Another of the family, as one of it sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Relative {
    /// Its minute rows in [`family_minutes`]; others are ignored.
    pub minutes: BTreeMap<Minute, MinuteRow>,
    /// Whether it is a part of who is asked: while it is there, it is accounted in its place.
    pub is_part: bool,
}

/// The minutes of each of a family that decide which of them is there in an hour and its lookahead.
pub fn family_minutes(hour: i64) -> std::ops::Range<i64> {
    let first = hour * 60 - BEFORE_MINUTES;
    first..first + MINUTES
}

/// When in an hour and the lookahead after it one of a family is not there: because parts of it are in its place, or
/// because it is a part itself that the card, or another of its parts, is seen without.
pub fn away(
    hour: i64,
    (own, is_part): (&BTreeMap<Minute, MinuteRow>, bool),
    relatives: &[Relative],
    policy: &Policy,
) -> Vec<Span> {
    let first = family_minutes(hour).start;
    let minutes = relatives.iter().map(|it| &it.minutes);
    let all = std::iter::once(own).chain(minutes);
    let mut all: Vec<Seen> = all.map(|it| Seen::of(first, it)).collect();
    make_room(&mut all);
    // Who has no sample in a second is not the one that is seen in it.
    let is_seen: Vec<bool> = (0..all[0].seconds.len())
        .map(|second| all.iter().any(|it| it.is_seen(second)))
        .collect();
    let (own, others) = all.split_first().expect("its own are the first");
    let there = |part: &Seen| {
        let mut is_there = false;
        let of = std::iter::zip(&part.seconds, &part.untold_s);
        let each = std::iter::zip(of, &is_seen).map(|((word, untold_s), is_seen)| {
            is_there = match word {
                Word::Observed | Word::There => true,
                Word::None => is_there && *untold_s <= policy.gone_after_s && !is_seen,
            };
            is_there
        });
        each.collect::<Vec<bool>>()
    };
    // Without a sample of its own it is not there, whatever else is told of its node.
    let mut is_away = match is_part {
        true => there(own).into_iter().map(|it| !it).collect(),
        false => vec![false; own.seconds.len()],
    };
    let parts = std::iter::zip(others, relatives).filter(|it| it.1.is_part);
    for (part, _) in parts {
        for (away, is_there) in std::iter::zip(&mut is_away, there(part)) {
            *away |= is_there;
        }
    }
    let start = usize::try_from(BEFORE_MINUTES * 60).expect("an hour of seconds");
    let end = start + HOUR_S + usize::try_from(LOOKAHEAD_MINUTES * 60).expect("minutes");
    spans(&is_away[start..end], hour * HOUR_S as i64)
}

/// Takes back that one was there in a pause in which another lived and went: then it had made room for that one.
fn make_room(all: &mut [Seen]) {
    let was_gone = |me: usize, pause: &(usize, usize)| {
        let others = all.iter().enumerate().filter(|it| it.0 != me);
        others.into_iter().any(|it| it.1.lived_in(*pause))
    };
    let gone: Vec<Vec<(usize, usize)>> = (0..all.len())
        .map(|me| {
            let pauses = all[me].pauses.iter().copied();
            pauses.filter(|it| was_gone(me, it)).collect()
        })
        .collect();
    for (seen, pauses) in std::iter::zip(all, gone) {
        for (last, next) in pauses {
            seen.seconds[last + 1..next].fill(Word::None);
        }
    }
}

/// The stretches of seconds that are set, of which the first is this second of Unix time.
pub(super) fn spans(seconds: &[bool], start_s: i64) -> Vec<Span> {
    let mut found = Vec::new();
    let mut from_s = start_s;
    for run in seconds.chunk_by(|a, b| a == b) {
        let until_s = from_s + run.len() as i64;
        if run[0] {
            found.push(Span { from_s, until_s });
        }
        from_s = until_s;
    }
    found
}

/// What is known of a member in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// A sample.
    Observed,
    /// No sample, and it is there: it is told to be missing, or is seen again soon.
    There,
    /// Nothing.
    None,
}

/// A member, second by second.
struct Seen {
    seconds: Vec<Word>,
    /// For how many seconds nobody has told anything, up to and with this one.
    untold_s: Vec<u32>,
    /// Where it was bridged: the last second before and the first after.
    pauses: Vec<(usize, usize)>,
}

impl Seen {
    fn of(first: i64, rows: &BTreeMap<Minute, MinuteRow>) -> Self {
        let length = usize::try_from(MINUTES * 60).expect("two hours of seconds");
        let mut seen = Self {
            seconds: Vec::with_capacity(length),
            untold_s: Vec::with_capacity(length),
            pauses: Vec::new(),
        };
        let mut untold = 0_u32;
        for minute in first..first + MINUTES {
            let observed = rows.get(&Minute(minute)).map(|it| it.bitmaps.observed);
            for second in 0..60 {
                untold = match observed {
                    Some(_) => 0,
                    None => untold.saturating_add(1),
                };
                seen.untold_s.push(untold);
                seen.seconds.push(match observed {
                    Some(0) => Word::There,
                    Some(bits) if bits >> second & 1 == 1 => Word::Observed,
                    _ => Word::None,
                });
            }
        }
        seen.bridge();
        seen
    }

    fn is_seen(&self, second: usize) -> bool {
        self.seconds[second] == Word::Observed
    }

    /// Whether it is seen in another's pause, and with it neither before nor after.
    fn lived_in(&self, (last, next): (usize, usize)) -> bool {
        let is_seen = |mut seconds: std::ops::Range<usize>| seconds.any(|it| self.is_seen(it));
        let end = (next + MEETS_S).min(self.seconds.len());
        let meets = is_seen(last.saturating_sub(MEETS_S)..last + 1) || is_seen(next..end);
        !meets && is_seen(last + 1..next)
    }

    /// Fills what is missing between two seconds of the same minute or of two that follow one on the other.
    fn bridge(&mut self) {
        let mut last: Option<usize> = None;
        for second in 0..self.seconds.len() {
            if self.seconds[second] == Word::None {
                continue;
            }
            let near = |it: &usize| second - it > 1 && second / 60 - it / 60 <= 1;
            if let Some(last) = last.filter(near) {
                self.seconds[last + 1..second].fill(Word::There);
                self.pauses.push((last, second));
            }
            last = Some(second);
        }
    }
}

#[cfg(test)]
mod tests;
