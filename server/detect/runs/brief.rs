//! What is needed of every run at every tick, taken while its lock is held: small, because of most runs nothing more is
//! looked at.

use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::CollectivesFrom;

use super::broken::activity;
use super::quiet::{self, Waiting};
use super::{TickSnapshot, is_heard, is_quiet, learning};
use crate::runs::{Judged, Rank, Run, RunKey};

/// What is needed of every run.
pub(super) struct Brief {
    pub(super) step: Option<u64>,
    /// What there is to say of its first step, before it.
    pub(super) first: Option<BeforeFirst>,
    pub(super) heard: Timestamp,
    pub(super) is_quiet: bool,
    has_made_its_steps: bool,
    /// Of one that has: whether it stands in collectives all the same.
    waiting: Waiting,
    pub(super) stands: bool,
    /// Whether it was said at the tick before that nothing shows whether it hangs.
    pub(super) lacks_evidence: bool,
    pub(super) judged: Option<Judged>,
    /// Whether who makes the others wait is to be judged by the times of its collectives.
    pub(super) asks_collectives: bool,
    pub(super) learning: Option<learning::Reading>,
}

/// A run whose ranks say that they have made no step.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeforeFirst {
    pub(super) up_since: Timestamp,
    /// Whether it evaluates, saves or restores.
    pub(super) is_quiet: bool,
    pub(super) activity: Option<f64>,
}

impl Brief {
    /// Of this run, which may stand for so long, nanoseconds.
    pub(super) fn of((key, run): (&RunKey, &Run), limit_ns: i64, tick: &TickSnapshot<'_>) -> Self {
        let living = || run.living().map(|(_, it)| it);
        // One that is not heard any more goes on saying what it did then.
        let speaking = || living().filter(|it| is_heard(it.facts.heard, tick.now));
        let is_timed = |it: &Rank| it.collectives_from() == Some(CollectivesFrom::Plugin);
        let heard = living().map(|it| it.facts.heard).max();
        let startup_s = tick.by.hang.first_step_s;
        let held = living().filter_map(|it| Some(it.ring.span()?.1)).max();
        // Steps of long before a start of the server are not read, and the last is told by its number.
        let told = living().filter_map(|it| it.facts.reading(training::LAST_STEP.id));
        let told = told.map(|it| (it as u64).saturating_add(1)).max();
        let step = held.or(told);
        let up_since = step.is_none().then(|| run.up_without_step(tick.now));
        let first = |up_since| BeforeFirst {
            up_since,
            is_quiet: speaking().any(|it| is_quiet(it, 0.0)),
            activity: activity(living().map(|it| {
                let gpu = tick.gpus.get(&(&*key.cluster, &*it.facts.gpu));
                (is_heard(it.facts.heard, tick.now), gpu.copied())
            })),
        };
        let is_quiet = speaking().any(|it| is_quiet(it, startup_s));
        let has_made_its_steps = run.has_made_its_steps();
        Self {
            step,
            first: up_since.flatten().map(first),
            heard: heard.unwrap_or_default(),
            is_quiet,
            has_made_its_steps,
            waiting: match has_made_its_steps && !is_quiet {
                true => quiet::waiting(run, limit_ns, tick.now),
                false => Waiting::No,
            },
            lacks_evidence: run.lacks_evidence,
            stands: run.stands_since(tick.now).is_some(),
            judged: run.judged.clone(),
            asks_collectives: !run.steps_tell() && living().any(is_timed),
            learning: living().find_map(|it| learning::Reading::of(&it.facts)),
        }
    }

    /// Whether it may rightly make no step: it does what takes long, or has made all that it planned and ends.
    pub(super) const fn rests(&self) -> bool {
        self.is_quiet || (self.has_made_its_steps && self.waits_since().is_none())
    }

    /// Of one that has made all that it planned: since when it stands in collectives all the same.
    pub(super) const fn waits_since(&self) -> Option<Timestamp> {
        match self.waiting {
            Waiting::Since(at) => Some(at),
            Waiting::No | Waiting::Unknown => None,
        }
    }

    /// Whether nobody knows if it does, because some of its ranks are not heard.
    pub(super) const fn may_wait(&self) -> bool {
        matches!(self.waiting, Waiting::Unknown)
    }

    /// Whether it makes step after step, so that what its ranks and machines do now says something of its pace.
    pub(super) const fn goes_on(&self) -> bool {
        !self.is_quiet && !self.has_made_its_steps && !self.stands
    }
}
