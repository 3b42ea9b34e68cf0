//! When a run stood still by its incident: what the ledger takes as `stalled`.
//!
//! It counts from when it was told, and not before the run had made no step for [`STANDS_AFTER_NS`]; until it was last
//! signalled, because what came after moved; and where its ranks fell silent until then, because of after that nobody
//! knows. Its detector asks for more than 5 median steps ([`crate::hang::GAPS`]), so the median is in it.
//!
//! Of many runs that stand for one cause and are one incident (`breaker`) the same holds of each ([`Standing`]).
//!
//! Limits: [`MAX_RUNS`] runs in one incident, [`MAX_TIMES`] times each; of what is beyond the GPUs are idle.

use std::collections::BTreeMap;

use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Family, Happened, Incident, Signal, State};

/// Without a step for so long a run stands, nanoseconds: shorter are checkpoints and evaluations.
const STANDS_AFTER_NS: i64 = 300 * 1_000_000_000;

/// Most runs in one incident: as many as are watched, some 150 bytes each.
const MAX_RUNS: usize = 4_096;

/// Most times that one of them stands in it: one that goes on and stands again is not of one outage for long.
const MAX_TIMES: usize = 8;

/// From when until when something stood; without an end where it does so still.
type Span = (Timestamp, Option<Timestamp>);

/// When each of many runs stood, by its name.
pub type StandingRuns = BTreeMap<String, Vec<Standing>>;

/// A time in which one of many runs stood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// From when.
    pub from: Timestamp,
    /// When that was last signalled.
    pub until: Timestamp,
    /// Whether it is over.
    pub is_over: bool,
    /// Whether its ranks were heard since.
    pub is_heard: bool,
}

impl Incident {
    /// The runs that stood still by this, each with from when until when, in their order. Nothing of an incident that is
    /// about something else.
    pub fn stood(&self) -> Vec<(&str, Vec<Span>)> {
        if self.family != Family::Hang {
            return Vec::new();
        }
        let own = self.place.run.as_deref();
        let own = own.map(|run| (run, self.stood_alone()));
        let of = |it: &Standing| -> Option<Span> {
            let goes_on = !it.is_over && it.is_heard && self.state != State::Resolved;
            Some((it.from.max(self.opened_at?), (!goes_on).then_some(it.until)))
        };
        let others = self.standing.iter();
        let others = others.map(|(run, all)| (&**run, all.iter().filter_map(of).collect()));
        let mut all: Vec<(&str, Vec<Span>)> = own.into_iter().chain(others).collect();
        for (_, spans) in &mut all {
            spans.retain(|(from, until)| until.is_none_or(|until| *from < until));
        }
        all.retain(|(_, spans)| !spans.is_empty());
        all
    }

    /// The same of an incident of one run.
    fn stood_alone(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        if self.opened_at.is_none() {
            return spans;
        }
        let mut from = self.opened_at;
        for line in &self.log {
            match line.happened {
                Happened::Opened | Happened::Reopened => from = Some(line.at),
                // It was over when it was last signalled, and told so after a while.
                Happened::Resolved => {
                    let until = line.at.shifted(-self.family.clear_ns());
                    spans.extend(from.take().map(|from| (from, Some(until))));
                }
                Happened::Explained(_) => {
                    spans.extend(from.take().map(|from| (from, Some(line.at))));
                }
                _ => {}
            }
        }
        let until = match self.state {
            State::Resolved => Some(self.seen_at),
            State::Open | State::Pending => self.unheard_since,
        };
        spans.extend(from.map(|from| (from, until)));
        let stands_from = self.since.shifted(STANDS_AFTER_NS);
        for (from, _) in &mut spans {
            *from = stands_from.max(*from);
        }
        spans
    }

    /// One of its runs is signalled to stand.
    pub(super) fn stands(&mut self, signal: &Signal, now: Timestamp) {
        let Some(run) = &signal.place.run else {
            return;
        };
        let is_full = self.standing.len() >= MAX_RUNS && !self.standing.contains_key(run);
        if is_full {
            return;
        }
        let times = self.standing.entry(run.clone()).or_default();
        let count = times.len();
        match times.last_mut().filter(|it| !it.is_over) {
            Some(known) => (known.until, known.is_heard) = (now, true),
            None if count >= MAX_TIMES => {}
            None => {
                let since = signal.since.unwrap_or(now).shifted(STANDS_AFTER_NS);
                times.push(Standing {
                    from: since.max(now),
                    until: now,
                    is_over: false,
                    is_heard: true,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use gpufleet_telemetry::event::Severity;
    use uuid::Uuid;

    use super::*;
    use crate::cause::Cause;
    use crate::incident::{Book, Nodes, Place, Remedy, Signal, Tick};
    use crate::lost::Losing;
    use crate::price::{Basis, Price};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + second)
    }

    /// A run that made its last step at 0, as the book has it after ticks of ten seconds: until when each says that it
    /// stands, that it does not, or nothing because nobody is heard.
    fn stood(family: Family, ticks: &[(i64, Option<bool>)]) -> Vec<(i64, Option<i64>)> {
        let mut book = Book::default();
        let signal = Signal {
            family,
            place: Place {
                cluster: "live".to_owned(),
                run: Some("ml/train/u1/0".to_owned()),
                ..Place::default()
            },
            severity: Severity::Error,
            what: "stands still".to_owned(),
            action: String::new(),
            remedy: Remedy::Look,
            cause: Cause::Unknown,
            since: Some(at(0)),
            readings: Vec::new(),
            price: Price::of(Basis::RunStands, Losing::default()),
            confidence: None,
            booted_at: None,
        };
        let (mut second, mut last) = (120, None);
        for (until, stands) in ticks {
            while second < *until {
                let signals = match stands {
                    Some(true) => vec![signal.clone()],
                    _ => Vec::new(),
                };
                let tick = Tick {
                    now: at(second),
                    signals,
                    is_heard: &|_, _| stands.is_some(),
                    in_its_place: &|_, _| None,
                    is_forgotten: &|_, _| false,
                    quiet_runs: &BTreeSet::new(),
                    nodes: &Nodes::default(),
                    runs: &BTreeMap::new(),
                };
                book.tick(tick, &mut || Uuid::from_u128(1));
                last = book.get(Uuid::from_u128(1)).cloned().or(last);
                second += 10;
            }
        }
        let second = |it: Timestamp| it.since(at(0)) / 1_000_000_000;
        let stood = last.iter().flat_map(Incident::stood);
        let spans = stood.flat_map(|(run, spans)| {
            assert_eq!(run, "ml/train/u1/0");
            spans
        });
        spans
            .map(|(from, until)| (second(from), until.map(second)))
            .collect()
    }

    #[test]
    fn a_run_stands_from_five_minutes_without_a_step_until_it_was_last_seen_to() {
        let stands = (1_000, Some(true));
        let hang = |ticks: &[(i64, Option<bool>)]| stood(Family::Hang, ticks);
        assert_eq!(hang(&[stands]), [(300, None)]);
        let over = hang(&[stands, (1_200, Some(false))]);
        let [(300, Some(end))] = over[..] else {
            panic!("{over:?}");
        };
        assert!((990..1_010).contains(&end), "{end}");
        // It comes back within ten minutes: the same incident, and the time between moved.
        let again = hang(&[stands, (1_200, Some(false)), (1_500, Some(true))]);
        assert_eq!(again, [(300, Some(end)), (1_200, None)]);
        assert_eq!(
            hang(&[stands, (1_200, None)]),
            [(300, Some(1_000))],
            "nobody is heard"
        );
        assert_eq!(
            hang(&[stands, (1_200, None), (1_300, Some(true))]),
            [(300, None)]
        );
        assert_eq!(
            hang(&[(250, Some(true)), (400, Some(false))]),
            [],
            "too short"
        );
        assert_eq!(stood(Family::Straggler, &[stands]), []);
    }
}
