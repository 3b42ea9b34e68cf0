//! What clocks alone say of who makes a job wait: for [`super::Source::Telemetry`].
//!
//! A low clock makes nobody wait by itself. Two things have to be so too. The job's GPUs go together: what
//! started them says so ([`Together`]), because replicas that serve, and pods that work off a queue, wait for
//! nobody. And where it can be read, the others do no more work than the slow one, although they could: work in a
//! second is the share of it in which tensor cores are busy × the clock. GPUs that wait for one another do
//! equally much of it; those that do not, as much as each can. By the same, power and temperature of a job's
//! GPUs can be held against one another ([`Together::compares`]).
//!
//! Limits: one GPU in 16 of a job at most, and with fewer than [`LEAST_GPUS`] nobody, because of two or three one
//! cannot tell a slow one from a fast one. Below [`LEAST_RATIO`] nobody: cards of one model at their power cap
//! differ by some percent in their clocks. Stages of a pipeline that do less work than others hide a slow GPU.

/// Fewer GPUs than this are not compared.
pub const LEAST_GPUS: usize = 4;

/// The least part by which a clock has to make a step longer: twice what cards of one model differ by.
pub const LEAST_RATIO: f64 = 1.10;

/// Tensor cores that are less busy than this say nothing of how much work is done.
const LEAST_TENSOR: f64 = 0.02;

/// GPUs whose work differs by more than this part may draw as much less power, and be as much cooler, for that alone.
const ALIKE_WORK: f64 = 0.2;

/// Kinds of workload whose pods start, work and end together.
const GANGS: [&str; 11] = [
    "jaxjob",
    "jobset",
    "mpijob",
    "paddlejob",
    "podgroup",
    "pytorchjob",
    "tfjob",
    "trainingjob",
    "trainjob",
    "vcjob",
    "xgboostjob",
];

/// Kinds whose parts may do so, or may each do a part of their own.
const PERHAPS: [&str; 2] = ["job", "slurm"];

/// Whether the GPUs of a job wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Together {
    /// What started them starts what belongs together.
    Yes,
    /// Only what they do can tell.
    Perhaps,
    /// They serve, or nobody knows what they are.
    #[default]
    No,
}

/// What a GPU does, or is usual among those of its job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Clock of the SMs, hertz.
    pub clock: f64,
    /// Part of the time in which its tensor cores are busy; none is not known.
    pub tensor: Option<f64>,
}

impl Together {
    /// Of the job with this name: `kind:namespace/name`, or `slurm:number`.
    pub fn of(job: &str) -> Self {
        let kind = job.split_once(':').map_or("", |it| it.0);
        match kind {
            kind if GANGS.contains(&kind) => Self::Yes,
            kind if PERHAPS.contains(&kind) => Self::Perhaps,
            _ => Self::No,
        }
    }

    /// Whether the others wait for a GPU whose clock is below theirs.
    pub fn waits_for(self, own: Pace, like: Pace) -> bool {
        match self {
            Self::Yes => own.is_as_fast_as(like) != Some(false),
            Self::Perhaps => own.is_as_fast_as(like) == Some(true),
            Self::No => false,
        }
    }

    /// Whether a GPU is under the load of the others, so that less power or more heat than theirs is of the GPU: what
    /// serves or works off a queue has the load that it is given.
    pub fn compares(self, own: Pace, like: Pace) -> bool {
        match self {
            Self::Yes => own.works_like(like) != Some(false),
            Self::Perhaps => own.works_like(like) == Some(true),
            Self::No => false,
        }
    }
}

impl Pace {
    /// Whether it does as much work as is usual, or as much less as its clock is lower: whichever is nearer. None
    /// where one of them is not known.
    fn is_as_fast_as(self, like: Self) -> Option<bool> {
        let work = self.work_beside(like)?;
        let clock = self.clock / like.clock;
        Some(work > 1.0_f64.midpoint(clock))
    }

    /// Whether it does about as much work as is usual. None where one of them is not known.
    fn works_like(self, like: Self) -> Option<bool> {
        let work = self.work_beside(like)?;
        Some((work - 1.0).abs() <= ALIKE_WORK)
    }

    /// Its work as a part of what is usual.
    fn work_beside(self, like: Self) -> Option<f64> {
        let tensor = like.tensor.filter(|it| *it >= LEAST_TENSOR)?;
        Some(self.tensor? * self.clock / (tensor * like.clock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIKE: Pace = Pace {
        clock: 2.0e9,
        tensor: Some(0.4),
    };

    fn at(clock: f64, tensor: Option<f64>) -> Pace {
        Pace { clock, tensor }
    }

    #[test]
    fn what_serves_or_is_not_known_waits_for_nobody() {
        for (job, expected) in [
            ("jobset:ml/train", Together::Yes),
            ("pytorchjob:ml/bert", Together::Yes),
            ("job:ml/sweep", Together::Perhaps),
            ("slurm:77", Together::Perhaps),
            ("deployment:ml/chat", Together::No),
            ("leaderworkerset:ml/chat", Together::No),
            ("statefulset:ml/chat", Together::No),
            ("raycluster:ml/r", Together::No),
            ("pod:ml/train", Together::No),
            ("process:ada/python3", Together::No),
            ("jobset", Together::No),
            ("", Together::No),
        ] {
            assert_eq!(Together::of(job), expected, "{job}");
            let slow = at(1.6e9, Some(0.5));
            assert_eq!(
                expected.waits_for(slow, LIKE),
                expected != Together::No,
                "{job}"
            );
        }
    }

    #[test]
    fn the_others_wait_where_they_do_no_more_work_than_the_slow_one() {
        // A fifth less clock: its cores are busy for a quarter longer where the others wait for it.
        for (tensor, is_waited_for) in [(0.5, true), (0.46, true), (0.4, false), (0.2, false)] {
            let own = at(1.6e9, Some(tensor));
            for together in [Together::Yes, Together::Perhaps] {
                assert_eq!(together.waits_for(own, LIKE), is_waited_for, "{tensor}");
            }
        }
    }

    #[test]
    fn work_that_is_not_known_leaves_it_to_what_started_them() {
        let own = at(1.6e9, None);
        let busy = at(1.6e9, Some(0.5));
        let unread = at(2.0e9, None);
        let others = at(2.0e9, Some(0.001));
        for (own, like) in [(own, LIKE), (busy, unread), (busy, others)] {
            assert!(Together::Yes.waits_for(own, like));
            assert!(!Together::Perhaps.waits_for(own, like));
        }
    }

    #[test]
    fn gpus_are_compared_where_they_do_about_the_same_work() {
        for (own, yes, perhaps) in [
            (at(2.0e9, Some(0.4)), true, true),
            (at(2.0e9, Some(0.35)), true, true),
            (at(1.6e9, Some(0.5)), true, true),
            (at(2.0e9, Some(0.25)), false, false),
            (at(2.0e9, Some(0.6)), false, false),
            (at(2.0e9, None), true, false),
        ] {
            assert_eq!(Together::Yes.compares(own, LIKE), yes, "{own:?}");
            assert_eq!(Together::Perhaps.compares(own, LIKE), perhaps, "{own:?}");
            assert!(!Together::No.compares(own, LIKE), "{own:?}");
        }
    }
}
