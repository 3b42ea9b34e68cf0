//! What stands around a GPU in an hour: its node, who holds it, what is asked for, what is aimed at.
//!
//! All of it is optional; what is not known decides nothing. Holders are numbers of the caller's, 0
//! is nobody or nobody known. Where two hold one device at once its holder is unknown: neither pays.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::second::Class;
use crate::ledger::{Reason, State};

/// How long a notice that the provider takes a machine back holds, seconds: until it is off for sure, and before another
/// one is up in its place.
pub const TAKEN_BACK_S: i64 = 60;

/// A stretch of time, seconds of Unix time, half open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its first second.
    pub from_s: i64,
    /// The second after its last.
    pub until_s: i64,
}

/// Someone holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Who, above 0.
    pub holder: i64,
    /// From its binding to its end.
    pub held: Span,
    /// Since when its container runs; none while it does not.
    pub runs_from_s: Option<i64>,
}

/// Why a node that is billed cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// It was not ready yet, or its device not allocatable yet.
    Starting,
    /// It was ready before.
    Lost,
}

impl NotReady {
    /// What it makes of a second of this class; none where what was measured counts: a kubelet that does not answer stops
    /// no GPU, and what was active stays active.
    pub(super) const fn state(self, class: Class) -> Option<(State, Reason)> {
        match (self, class) {
            (Self::Starting, _) => Some((State::StartingNode, Reason::Unknown)),
            (Self::Lost, Class::Active) => None,
            (Self::Lost, _) => Some((State::Unhealthy, Reason::NodeNotReady)),
        }
    }
}

impl Span {
    /// When a machine is about to be taken away, of which its provider said so in that second.
    pub const fn taken_back(said_s: i64) -> Self {
        Self {
            from_s: said_s,
            until_s: said_s + TAKEN_BACK_S,
        }
    }

    /// Whether a second is in it.
    pub const fn has(&self, second_s: i64) -> bool {
        self.from_s <= second_s && second_s < self.until_s
    }
}

/// Why nobody holds a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Nobody waits for GPUs.
    None,
    /// Somebody waits, for more than is free in one place.
    Fragmented,
    /// It is held back for a reservation.
    Reserved,
}

/// What a holder's activity is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Model FLOPs utilisation.
    Mfu,
    /// Share of time in which the tensor cores were active.
    TensorActive,
    /// Share of time in which an SM had a warp.
    SmActive,
}

/// At least this much is efficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// By which measure.
    pub measure: Measure,
    /// The least, millionths, above 0.
    pub least: i64,
}

/// What is known around one hour and the lookahead of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Around {
    /// When its node is billed; none: not known, then it is accounted from its first sample on.
    pub billed: Option<Vec<Span>>,
    /// When it is not there, whatever is told of it: see [`super::away`].
    pub away: Vec<Span>,
    /// Whether whoever tells of it tells only seconds of which it knows whether it was active, so that none of its
    /// metrics has to say so: a replica's.
    pub is_activity_told: bool,
    /// When its node cannot be used.
    pub not_ready: Vec<(Span, NotReady)>,
    /// When its node is cordoned or about to be taken away.
    pub draining: Vec<Span>,
    /// Who holds it when; none: nobody watches, then the agent's own evidence counts alone.
    pub holds: Option<Vec<Hold>>,
    /// Why it is free.
    pub demand: Vec<(Span, Demand)>,
    /// When its run made no step for more than the longer of 5 minutes and 5 median steps.
    pub standing: Vec<Span>,
    /// What each holder aims at; the first measure that is known of a minute counts.
    pub targets: BTreeMap<i64, Vec<Target>>,
    /// MFU by holder and minute, millionths.
    pub mfu: BTreeMap<(i64, Minute), i64>,
    /// Holders that are inactive by design, such as a standby of a service.
    pub standby: BTreeSet<i64>,
}

/// The targets of a training job that has none of its own: shipped defaults.
pub const TRAINING_TARGETS: [Target; 3] = [
    Target {
        measure: Measure::Mfu,
        least: 400_000,
    },
    Target {
        measure: Measure::TensorActive,
        least: 350_000,
    },
    Target {
        measure: Measure::SmActive,
        least: 600_000,
    },
];

/// Whether and by whom it is held in one second, as far as someone watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Claim {
    /// Nobody watches, or nobody claims it.
    #[default]
    Unsaid,
    /// One holder, whose container runs or not.
    One { runs: bool },
    /// More than one.
    Many,
}

/// What stands around one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Second {
    pub(super) claim: Claim,
    pub(super) holder: i64,
    pub(super) not_ready: Option<NotReady>,
    pub(super) is_draining: bool,
    pub(super) is_away: bool,
    pub(super) is_standing: bool,
    pub(super) free: Reason,
}

/// The stretches of set bits of a minute that begins here.
fn spans(start_s: i64, seconds: u64) -> impl Iterator<Item = Span> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let rest = seconds.checked_shr(first).filter(|it| *it != 0)?;
        let from = first + rest.trailing_zeros();
        let length = (seconds >> from).trailing_ones();
        first = from + length;
        Some(Span {
            from_s: start_s + i64::from(from),
            until_s: start_s + i64::from(from + length),
        })
    })
}

impl Around {
    /// What the nodes' own evidence says of who held it, second by second.
    pub fn told_by(minutes: &BTreeMap<Minute, MinuteRow>) -> Self {
        let mut holds: Vec<Hold> = Vec::new();
        for (minute, row) in minutes {
            let start_s = minute.start().seconds();
            for (holder, seconds) in &row.holders {
                for held in spans(start_s, *seconds) {
                    let before = holds.iter_mut().rev().find(|it| it.holder == *holder);
                    match before.filter(|it| it.held.until_s == held.from_s) {
                        Some(before) => before.held.until_s = held.until_s,
                        None => holds.push(Hold {
                            holder: *holder,
                            held,
                            runs_from_s: Some(held.from_s),
                        }),
                    }
                }
            }
        }
        Self {
            holds: (!holds.is_empty()).then_some(holds),
            ..Self::default()
        }
    }

    /// Each second from `start_s` on.
    pub(super) fn seconds(&self, start_s: i64, length: usize) -> Vec<Second> {
        let mut all = vec![Second::default(); length];
        let mut each = |span: &Span, set: &dyn Fn(&mut Second, i64)| {
            let first = (span.from_s - start_s).clamp(0, length as i64);
            let end = (span.until_s - start_s).clamp(first, length as i64);
            for second in first..end {
                let at = usize::try_from(second).expect("it is not below 0");
                set(&mut all[at], start_s + second);
            }
        };
        for hold in self.holds.iter().flatten() {
            each(&hold.held, &|it, second| {
                let runs = hold.runs_from_s.is_some_and(|from| from <= second);
                (it.claim, it.holder) = match it.claim {
                    Claim::Unsaid => (Claim::One { runs }, hold.holder),
                    _ => (Claim::Many, 0),
                };
            });
        }
        for (span, why) in &self.not_ready {
            each(span, &|it, _| it.not_ready = Some(*why));
        }
        for span in &self.draining {
            each(span, &|it, _| it.is_draining = true);
        }
        for span in &self.away {
            each(span, &|it, _| it.is_away = true);
        }
        for span in &self.standing {
            each(span, &|it, _| it.is_standing = true);
        }
        for (span, demand) in &self.demand {
            let reason = match demand {
                Demand::None => Reason::NoDemand,
                Demand::Fragmented => Reason::Fragmented,
                Demand::Reserved => Reason::ReservedHold,
            };
            each(span, &|it, _| it.free = reason);
        }
        all
    }

    /// Whether a second is billed; none when that is not known.
    pub(super) fn is_billed(&self, second_s: i64) -> Option<bool> {
        let spans = self.billed.as_ref()?;
        Some(spans.iter().any(|it| it.has(second_s)))
    }

    /// How much a holder reached of what it aims at in a minute, millionths of the target, and
    /// whether that is enough; none where nothing is aimed at or nothing known.
    pub(super) fn achieved(
        &self,
        holder: i64,
        minute: Minute,
        row: Option<&MinuteRow>,
    ) -> Option<i64> {
        let of_row = |metric: &Metric| {
            let mean = row?.metrics.get(&metric.id)?.mean();
            Some((mean.clamp(0.0, 1.0) * 1e6).round() as i64)
        };
        let known = |target: &Target| {
            let value = match target.measure {
                Measure::Mfu => self.mfu.get(&(holder, minute)).copied(),
                Measure::TensorActive => of_row(&gpu::TENSOR_ACTIVE),
                Measure::SmActive => of_row(&gpu::SM_ACTIVE),
            };
            value.map(|it| it.max(0).saturating_mul(1_000_000) / target.least.max(1))
        };
        self.targets.get(&holder)?.iter().find_map(known)
    }
}
