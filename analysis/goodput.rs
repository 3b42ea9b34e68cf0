//! Where the time of a run went: goodput, and badput by category.
//!
//! The time is what the run held its GPUs, from its first attempt to the end of its last, the gaps
//! between attempts included. Each nanosecond is in exactly one category, integers only; a test
//! holds the sum against the total. Categories, as Google's goodput library has them:
//!
//! - productive: steps that were not thrown away, without their wait for data and without the time in them in which
//!   training stood still: steps lie end to end, so checkpoints and evaluations are in them;
//! - initialisation: from when the GPUs were held to the first step, without going back to a
//!   checkpoint;
//! - program startup: what the first step of an attempt took above the ideal one (compilation,
//!   autotuning);
//! - data loading: waiting for the next batch, in steps that were kept;
//! - checkpoint save and restore: time in which training stood still for it;
//! - wasted progress: steps that the same or a later attempt did again, or will have to: those that the end of the last
//!   attempt lost, until a later one says where it went on; and what an attempt that broke off did after its last step;
//! - infrastructure recovery: between the end of one attempt and the start of the next;
//! - custom: evaluation, and phases that the script named itself;
//! - not observed: time in which steps were done that nobody kept (before the record begins, or lost on
//!   the way), less its share of what is known of it otherwise. The ratio is of the time that was observed;
//! - other: what nothing above explains.
//!
//! Ideal step: the mean of the steps up to median + 3·MAD. Where what was measured overlaps and adds
//! up to more than an attempt's time, the categories are cut in the order below, so that none
//! counts twice.

use gpufleet_telemetry::time::Timestamp;

pub mod totals;

/// Multiples of the median absolute deviation above the median that a step may have to count
/// towards the ideal one.
pub const IDEAL_DEVIATIONS: u64 = 3;

/// Categories, productive first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Steps that were kept.
    Productive,
    /// Before the first step.
    Initialisation,
    /// The first step's surplus.
    ProgramStartup,
    /// Waiting for batches.
    DataLoading,
    /// Saving.
    CheckpointSave,
    /// Going back.
    CheckpointRestore,
    /// Done and lost.
    WastedProgress,
    /// Between attempts.
    InfrastructureRecovery,
    /// Evaluation and named phases.
    Custom,
    /// Its steps are not kept.
    NotObserved,
    /// Not explained.
    Other,
}

/// One step of an attempt, of the rank that stands for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The run's number of it.
    pub step: u64,
    /// How long it took, nanoseconds.
    pub wall_ns: u64,
    /// How long of it was waiting for data.
    pub data_wait_ns: u64,
    /// How long of it training stood still, for a checkpoint or an evaluation.
    pub stood_ns: u64,
}

/// Where the time of one step went; the three are the step.
struct Parts {
    busy: u64,
    data_wait: u64,
    stood: u64,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempt {
    /// When it began to hold its GPUs.
    pub started_at: Timestamp,
    /// When it let go of them; now, while it runs.
    pub ended_at: Timestamp,
    /// When its first step began; none when it did none.
    pub first_step_at: Option<Timestamp>,
    /// When its last step ended; none when it did none, or that one is not kept.
    pub last_step_at: Option<Timestamp>,
    /// Whether steps were done before the first that is kept: then `first_step_at` is of that one, and
    /// when training began is not known.
    pub began_unseen: bool,
    /// Time between kept steps, and behind the last, in which others were done that are not kept,
    /// nanoseconds.
    pub unseen_ns: u64,
    /// Whether it broke off: neither finished nor still running.
    pub was_disrupted: bool,
    /// The last of its steps that its end lost, where it broke off and that is known.
    pub steps_lost: Option<u64>,
    /// Its steps, oldest first.
    pub steps: Vec<Step>,
    /// Whether steps whose numbers went back are steps done again, as those of a process that began anew are; else they
    /// are of another training in the same process.
    pub goes_back: bool,
    /// Time in which training stood still to save checkpoints, nanoseconds.
    pub checkpoint_save_ns: u64,
    /// Time spent going back to a checkpoint.
    pub checkpoint_restore_ns: u64,
    /// Time of evaluation and of phases that the script named.
    pub custom_ns: u64,
}

/// The partition of a run's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Goodput {
    ns: [u64; Category::ALL.len()],
    /// The ideal step, nanoseconds; 0 when there was none.
    pub ideal_step_ns: u64,
    /// Of the productive time, what steps took above the ideal one.
    pub above_ideal_ns: u64,
    /// Steps that were kept.
    pub steps: u64,
    /// Steps that the same or a later attempt did again, or will have to.
    pub steps_wasted: u64,
}

impl Category {
    /// Every category, in the order in which time is given out.
    pub const ALL: [Self; 11] = [
        Self::Productive,
        Self::Initialisation,
        Self::ProgramStartup,
        Self::DataLoading,
        Self::CheckpointSave,
        Self::CheckpointRestore,
        Self::WastedProgress,
        Self::InfrastructureRecovery,
        Self::Custom,
        Self::NotObserved,
        Self::Other,
    ];

    /// The name in the API and on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Productive => "productive",
            Self::Initialisation => "initialisation",
            Self::ProgramStartup => "program_startup",
            Self::DataLoading => "data_loading",
            Self::CheckpointSave => "checkpoint_save",
            Self::CheckpointRestore => "checkpoint_restore",
            Self::WastedProgress => "wasted_progress",
            Self::InfrastructureRecovery => "infrastructure_recovery",
            Self::Custom => "custom",
            Self::NotObserved => "not_observed",
            Self::Other => "other",
        }
    }
}

impl Goodput {
    /// The time of a category, nanoseconds.
    pub const fn of(&self, category: Category) -> u64 {
        self.ns[category as usize]
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// The share of the observed time that was productive; none where nothing was observed.
    pub fn ratio(&self) -> Option<f64> {
        let observed = self.total() - self.of(Category::NotObserved);
        (observed > 0).then(|| self.of(Category::Productive) as f64 / observed as f64)
    }

    /// The share of all time that was observed; none of a run without time.
    pub fn observed(&self) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| 1.0 - self.of(Category::NotObserved) as f64 / total as f64)
    }
}

/// What is left of a span to give out.
struct Span<'a> {
    left: u64,
    goodput: &'a mut Goodput,
}

impl Span<'_> {
    fn give(&mut self, category: Category, ns: u64) {
        let given = ns.min(self.left);
        self.left -= given;
        self.goodput.ns[category as usize] += given;
    }
}

/// The partition of the time of a run's attempts, oldest first.
pub fn goodput(attempts: &[Attempt]) -> Goodput {
    let mut goodput = Goodput {
        ideal_step_ns: ideal_step(attempts.iter().flat_map(|it| &it.steps)),
        ..Goodput::default()
    };
    let mut behind: Option<Timestamp> = None;
    for (place, attempt) in attempts.iter().enumerate() {
        // Attempts that overlap count once: the later one begins where the earlier ended.
        let started_at = behind.map_or(attempt.started_at, |end| end.max(attempt.started_at));
        if let Some(end) = behind {
            let gap = between(end, started_at);
            goodput.ns[Category::InfrastructureRecovery as usize] += gap;
        }
        let ended_at = attempt.ended_at.max(started_at);
        behind = Some(ended_at);
        let redone_from = redone_from(&attempts[place + 1..]).or_else(|| attempt.lost_from());
        let redone_from = redone_from.unwrap_or(u64::MAX);
        give_out(attempt, started_at, ended_at, redone_from, &mut goodput);
    }
    goodput
}

/// The first step that a later attempt did again; none where none did a step.
fn redone_from(later: &[Attempt]) -> Option<u64> {
    let first = |attempt: &Attempt| attempt.steps.iter().map(|it| it.step).min();
    later.iter().filter_map(first).min()
}

impl Attempt {
    /// The first of the steps that its end lost.
    fn lost_from(&self) -> Option<u64> {
        let last = self.steps.last()?.step;
        Some((last + 1).saturating_sub(self.steps_lost?))
    }
}

impl Step {
    /// Its parts, where what was measured adds up to more the first ones first.
    fn parts(&self) -> Parts {
        let data_wait = self.data_wait_ns.min(self.wall_ns);
        let stood = self.stood_ns.min(self.wall_ns - data_wait);
        Parts {
            busy: self.wall_ns - data_wait - stood,
            data_wait,
            stood,
        }
    }
}

fn give_out(
    attempt: &Attempt,
    started_at: Timestamp,
    ended_at: Timestamp,
    mut redone_from: u64,
    goodput: &mut Goodput,
) {
    let ideal = goodput.ideal_step_ns;
    let (mut productive, mut data, mut wasted, mut startup) = (0_u64, 0_u64, 0_u64, 0_u64);
    // From the last back, so that what was done again later is known.
    let mut later = None;
    for (place, step) in attempt.steps.iter().enumerate().rev() {
        // Another training of the same process, which counts anew: the end lost nothing of this one.
        if !attempt.goes_back && later.is_some_and(|it| step.step > it) {
            redone_from = u64::MAX;
        }
        later = Some(step.step);
        let Parts {
            mut busy,
            data_wait,
            stood,
        } = step.parts();
        if step.step >= redone_from {
            // A checkpoint or an evaluation in it is what it is.
            wasted = wasted.saturating_add(step.wall_ns - stood);
            goodput.steps_wasted += 1;
            continue;
        }
        if attempt.goes_back {
            redone_from = step.step;
        }
        if place == 0 && !attempt.began_unseen {
            startup = busy.saturating_sub(ideal);
            busy -= startup;
        }
        data = data.saturating_add(data_wait);
        productive = productive.saturating_add(busy);
        goodput.above_ideal_ns += busy.saturating_sub(ideal);
        goodput.steps += 1;
    }
    let before = attempt.first_step_at.unwrap_or(ended_at).min(ended_at);
    let before = between(started_at, before);
    let restore = attempt.checkpoint_restore_ns;
    let (before, unseen) = match attempt.began_unseen {
        true => (0, before.saturating_add(attempt.unseen_ns)),
        false => (before, attempt.unseen_ns),
    };
    let after = attempt.last_step_at.map_or(0, |at| between(at, ended_at));
    let length = between(started_at, ended_at);
    let mut span = Span {
        left: length,
        goodput,
    };
    span.give(Category::Productive, productive);
    span.give(Category::ProgramStartup, startup);
    span.give(Category::DataLoading, data);
    span.give(Category::WastedProgress, wasted);
    span.give(Category::CheckpointRestore, restore);
    span.give(Category::Initialisation, before.saturating_sub(restore));
    let known = [restore, attempt.checkpoint_save_ns, attempt.custom_ns];
    span.give(Category::NotObserved, unexplained(unseen, known, length));
    span.give(Category::CheckpointSave, attempt.checkpoint_save_ns);
    span.give(Category::Custom, attempt.custom_ns);
    if attempt.was_disrupted {
        span.give(Category::WastedProgress, after);
    }
    span.give(Category::Other, u64::MAX);
}

/// What of the unseen time is left when the phases, whose totals are of the whole attempt, have their
/// share of it.
fn unexplained(unseen: u64, phases: [u64; 3], length: u64) -> u64 {
    let phases: u128 = phases.iter().map(|it| u128::from(*it)).sum();
    let share = phases * u128::from(unseen) / u128::from(length.max(1));
    unseen.saturating_sub(u64::try_from(share).unwrap_or(u64::MAX))
}

/// The mean of the steps up to median + 3·MAD, without their wait for data and what training stood still in them; 0 of
/// no steps.
pub fn ideal_step<'a>(steps: impl Iterator<Item = &'a Step>) -> u64 {
    let mut busy: Vec<u64> = steps.map(|it| it.parts().busy).collect();
    busy.sort_unstable();
    let Some(median) = middle(&busy) else {
        return 0;
    };
    let mut deviations: Vec<u64> = busy.iter().map(|it| it.abs_diff(median)).collect();
    deviations.sort_unstable();
    let deviation = middle(&deviations).unwrap_or(0);
    let most = median.saturating_add(deviation.saturating_mul(IDEAL_DEVIATIONS));
    let kept = busy.partition_point(|it| *it <= most);
    let sum: u128 = busy[..kept].iter().map(|it| u128::from(*it)).sum();
    u64::try_from(sum / kept.max(1) as u128).unwrap_or(u64::MAX)
}

/// The middle of sorted numbers; of two middles the lower.
fn middle(sorted: &[u64]) -> Option<u64> {
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

fn between(from: Timestamp, to: Timestamp) -> u64 {
    to.since(from).max(0).cast_unsigned()
}

#[cfg(test)]
mod tests;
