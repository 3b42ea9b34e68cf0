//! The steps of a tick and where the time of each went, rank by rank.

use gpufleet_telemetry::steps::StepTimes;

use super::cast::Seat;
use super::{Span, Training};
use crate::simulator::schedule::{Attempt, Size, Step};
use crate::simulator::trouble::Trouble;

impl Training {
    /// The steps that end in the span.
    pub(super) fn steps(&self, attempt: &Attempt, span: Span, trouble: Trouble) -> Vec<Step> {
        let first = self.schedule.done(attempt, span.from);
        let last = self.schedule.done(attempt, span.until);
        let planned = (first..last).map(|index| self.schedule.step(attempt, index));
        match trouble {
            Trouble::Stuck => Vec::new(),
            Trouble::Slow(_)
            | Trouble::SlowRank(_)
            | Trouble::SlowLink(_)
            | Trouble::WrongNetwork
                if first < last =>
            {
                // A quarter longer each, so one in five is left out; a ninth over a slow link; twice as
                // long over the hosts' ports.
                let (part, whole) = match trouble {
                    Trouble::SlowLink(_) => (9, 10),
                    Trouble::WrongNetwork => (1, 2),
                    _ => (4, 5),
                };
                let count = ((last - first).cast_signed() * part / whole).max(1);
                let all = span.until.since(span.from);
                let at = |steps: i64| span.from.shifted(all * steps / count);
                let step = |place: i64| Step {
                    began: at(place),
                    ended: at(place + 1),
                    slow: false,
                };
                (0..count).map(step).collect()
            }
            _ => planned.collect(),
        }
    }

    /// Where the time of a rank's step went. Everyone takes as long as the slowest.
    pub(super) fn times(
        &self,
        seat: Seat,
        number: u64,
        step: &Step,
        trouble: Trouble,
    ) -> StepTimes {
        let moment = number.cast_signed();
        let jitter = |share| 1.0 + share * self.noise.around_zero(moment, seat.rank.into());
        let wall = step.ended.since(step.began).max(1) as f64;
        let waits = match self.cast.size() {
            Size::Large => 0.005 * wall * jitter(0.1),
            Size::Small => 0.34 * wall * jitter(0.05),
        };
        let is_slow = match trouble {
            Trouble::Slow(node) => seat.node == node,
            Trouble::SlowRank(it) => (seat.node, seat.gpu) == (it.node, it.gpu),
            _ => step.slow && self.cast.throttles(seat),
        };
        let busy = match (self.cast.size(), is_slow) {
            (Size::Large, true) => 0.94 * wall,
            (Size::Large, false) => {
                1.116e9 * jitter(0.004) * (1.0 + 0.006 * f64::from(seat.stage()))
            }
            (Size::Small, _) => 3.6e9 * jitter(0.01),
        };
        let busy = busy.min(0.97 * (wall - waits));
        StepTimes {
            wall_ns: wall as u64,
            busy_ns: busy as u64,
            data_wait_ns: waits as u64,
            comm_wait_ns: (wall - waits - busy) as u64,
        }
    }
}
