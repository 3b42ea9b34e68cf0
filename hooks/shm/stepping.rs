//! Where one step ends and the next begins, and what its time went into. No clock here.
//!
//! A step lasts from the end of the one before to its own end, so that no time lies between steps.
//! Of stalls inside each other (the loader of an evaluation) only the outermost counts, so that the
//! parts of a step are never longer than the step.

use crate::records::Step;
use crate::words::Phase;

/// How often `step` asks for what is done now and then: memory, who the rank is.
const TICK_NS: u64 = 1_000_000_000;

/// What a step costs in FLOPs, as the script said. 0 where it did not.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flops {
    /// Of each step.
    pub per_step: f64,
    /// Of each token.
    pub per_token: f64,
}

/// Tokens, samples, FLOPs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Tokens.
    pub tokens: u64,
    /// Samples.
    pub samples: u64,
    /// Model FLOPs; 0 where nothing was said of this very step.
    pub flops: f64,
}

/// The running step.
#[derive(Debug, Default)]
pub struct Stepping {
    began_at: Option<u64>,
    ticked_at: u64,
    step: u64,
    stalls: u32,
    data_wait_ns: u64,
    comm_wait_ns: u64,
    checkpoint_ns: u64,
    evaluation_ns: u64,
    work: Work,
    /// What a step costs.
    pub flops: Flops,
}

/// Whether time in this phase is time in which this rank does not compute: it waits for data or for
/// other ranks, or training stands still.
pub const fn is_stall(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::DataWait
            | Phase::Communication
            | Phase::CheckpointSave
            | Phase::CheckpointRestore
            | Phase::Evaluation
    )
}

impl Stepping {
    /// The first step begins, if none has: then how long training stood still before it, which is
    /// no part of a step.
    pub fn begin(&mut self, now: u64) -> Option<u64> {
        if self.began_at.is_some() {
            return None;
        }
        self.began_at = Some(now);
        self.ticked_at = now;
        let parts = [
            &mut self.data_wait_ns,
            &mut self.comm_wait_ns,
            &mut self.checkpoint_ns,
            &mut self.evaluation_ns,
        ];
        Some(parts.into_iter().map(std::mem::take).sum())
    }

    /// Training stands still from now on. True when it did not already.
    pub const fn stall(&mut self) -> bool {
        self.stalls += 1;
        self.stalls == 1
    }

    /// The stall is over; `duration_ns` of one that was the outermost.
    pub fn go_on(&mut self, phase: Phase, duration_ns: Option<u64>) {
        self.stalls = self.stalls.saturating_sub(1);
        let Some(duration_ns) = duration_ns else {
            return;
        };
        let part = match phase {
            Phase::DataWait => &mut self.data_wait_ns,
            Phase::Communication => &mut self.comm_wait_ns,
            Phase::Evaluation => &mut self.evaluation_ns,
            _ => &mut self.checkpoint_ns,
        };
        *part = part.saturating_add(duration_ns);
    }

    /// Whether training stands still.
    pub const fn is_stalled(&self) -> bool {
        self.stalls > 0
    }

    /// More work in the running step.
    pub fn add(&mut self, work: Work) {
        self.work.tokens = self.work.tokens.saturating_add(work.tokens);
        self.work.samples = self.work.samples.saturating_add(work.samples);
        self.work.flops += work.flops;
    }

    /// The number of the last step.
    pub const fn last(&self) -> u64 {
        self.step
    }

    /// The run goes on after `step`: it went back to a checkpoint.
    pub const fn go_on_after(&mut self, step: u64) {
        self.step = step;
    }

    /// The step ends: its record, and whether it is time for what is done now and then.
    pub fn end(&mut self, now: u64, ended_at: i64, number: Option<u64>) -> (Step, bool) {
        let began = self.began_at.unwrap_or(now);
        let wall_ns = now.saturating_sub(began);
        self.step = number.unwrap_or_else(|| self.step.saturating_add(1));
        // A stall that began in the step before counts here as a whole: cut to the step.
        let mut left = wall_ns;
        let mut part = |whole: &mut u64| {
            let part = (*whole).min(left);
            left -= part;
            *whole = 0;
            part
        };
        let work = std::mem::take(&mut self.work);
        let step = Step {
            step: self.step,
            ended_at,
            wall_ns,
            data_wait_ns: part(&mut self.data_wait_ns),
            comm_wait_ns: part(&mut self.comm_wait_ns),
            checkpoint_ns: part(&mut self.checkpoint_ns),
            evaluation_ns: part(&mut self.evaluation_ns),
            tokens: work.tokens,
            samples: work.samples,
            model_flops: self.cost(work),
            ..Step::default()
        };
        self.began_at = Some(now);
        let is_tick = now.saturating_sub(self.ticked_at) >= TICK_NS;
        if is_tick {
            self.ticked_at = now;
        }
        (step.busy_for_the_rest(), is_tick)
    }

    /// What was said of this very step goes before what was said of every step.
    fn cost(&self, work: Work) -> f64 {
        if work.flops > 0.0 {
            work.flops
        } else if self.flops.per_token > 0.0 && work.tokens > 0 {
            self.flops.per_token * work.tokens as f64
        } else {
            self.flops.per_step
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lie_end_to_end_from_the_first_beginning() {
        let mut stepping = Stepping::default();
        assert!(stepping.begin(100).is_some());
        assert_eq!(stepping.begin(900), None, "the first step began already");
        assert_eq!(stepping.end(1_100, 5, None).0.wall_ns, 1_000);
        let (second, _) = stepping.end(1_500, 6, None);
        assert_eq!((second.step, second.wall_ns, second.ended_at), (2, 400, 6));
        assert_eq!(stepping.end(1_600, 7, Some(90)).0.step, 90);
        stepping.go_on_after(40);
        assert_eq!(stepping.end(1_700, 8, None).0.step, 41);
    }

    #[test]
    fn of_stalls_inside_each_other_the_outermost_counts() {
        let mut stepping = Stepping::default();
        stepping.begin(0);
        assert!(stepping.stall());
        assert!(!stepping.stall());
        stepping.go_on(Phase::DataWait, None);
        assert!(stepping.is_stalled());
        stepping.go_on(Phase::Evaluation, Some(300));
        assert!(!stepping.is_stalled());
        let (step, _) = stepping.end(1_000, 1, None);
        assert_eq!((step.data_wait_ns, step.evaluation_ns), (0, 300));
        assert_eq!(step.busy_ns, 700);
        assert_eq!(stepping.end(1_100, 1, None).0.evaluation_ns, 0);
    }

    #[test]
    fn waiting_for_other_ranks_is_no_work_of_this_one() {
        let mut stepping = Stepping::default();
        stepping.begin(0);
        stepping.stall();
        stepping.go_on(Phase::Communication, Some(250));
        let (step, _) = stepping.end(1_000, 1, None);
        assert_eq!((step.comm_wait_ns, step.busy_ns), (250, 750));
        assert_eq!(stepping.end(1_100, 1, None).0.comm_wait_ns, 0);
    }

    #[test]
    fn what_stood_still_before_the_first_step_is_no_part_of_it() {
        let mut stepping = Stepping::default();
        stepping.stall();
        stepping.go_on(Phase::CheckpointRestore, Some(500));
        assert_eq!(stepping.begin(1_000), Some(500));
        assert_eq!(stepping.end(2_000, 1, None).0.checkpoint_ns, 0);
    }

    #[test]
    fn parts_are_never_longer_than_their_step() {
        let mut stepping = Stepping::default();
        stepping.begin(0);
        for phase in [Phase::DataWait, Phase::CheckpointSave, Phase::Evaluation] {
            stepping.stall();
            stepping.go_on(phase, Some(60));
        }
        let (step, _) = stepping.end(100, 1, None);
        assert_eq!((step.data_wait_ns, step.checkpoint_ns), (60, 40));
        assert_eq!((step.evaluation_ns, step.busy_ns), (0, 0));
    }

    #[test]
    fn flops_come_from_the_step_then_the_tokens_then_the_plan() {
        let cost = |work, flops| {
            let mut stepping = Stepping {
                flops,
                ..Stepping::default()
            };
            stepping.add(work);
            stepping.end(1, 1, None).0.model_flops
        };
        let of = |tokens, flops| Work {
            tokens,
            samples: 0,
            flops,
        };
        let said = Flops {
            per_step: 7.0,
            per_token: 3.0,
        };
        assert_eq!(cost(of(10, 5.0), said), 5.0);
        assert_eq!(cost(of(10, 0.0), said), 30.0);
        assert_eq!(cost(of(0, 0.0), said), 7.0);
    }

    #[test]
    fn a_tick_comes_once_a_second() {
        let mut stepping = Stepping::default();
        stepping.begin(0);
        assert!(!stepping.end(TICK_NS - 1, 1, None).1);
        assert!(stepping.end(TICK_NS, 1, None).1);
        assert!(!stepping.end(TICK_NS + 1, 1, None).1);
    }
}
