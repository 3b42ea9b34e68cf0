//! When a run stood still by its incident: what the ledger takes as `stalled`.
//!
//! It counts from when it was told, and not before the run had made no step for [`STANDS_AFTER_NS`]; until it was last
//! signalled, because what came after moved; and where its ranks fell silent until then, because of after that nobody
//! knows. Its detector asks for more than 5 median steps ([`crate::hang::GAPS`]), so the median is in it.

use gpufleet_telemetry::time::Timestamp;

use super::{Family, Happened, Incident, State};

/// Without a step for so long a run stands, nanoseconds: shorter are checkpoints and evaluations.
const STANDS_AFTER_NS: i64 = 300 * 1_000_000_000;

impl Incident {
    /// From when until when a run stood still by this, in their order; without an end where it does so still. Nothing of
    /// an incident that is about something else.
    pub fn stood(&self) -> Vec<(Timestamp, Option<Timestamp>)> {
        let mut spans = Vec::new();
        if self.family != Family::Hang || self.opened_at.is_none() {
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
        spans.retain(|(from, until)| until.is_none_or(|until| *from < until));
        spans
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use gpufleet_telemetry::event::Severity;
    use uuid::Uuid;

    use super::*;
    use crate::cause::Cause;
    use crate::incident::{Book, Nodes, Place, Signal, Tick};
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
            cause: Cause::Unknown,
            since: Some(at(0)),
            readings: Vec::new(),
            price: Price::of(Basis::RunStands, Losing::default()),
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
        let spans = last.map(|it| it.stood()).unwrap_or_default();
        let spans = spans.into_iter();
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
