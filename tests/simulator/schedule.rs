//! When a training job of the simulated fleet starts, steps, saves, pauses and dies: a function of
//! the seed and the moment, so that history, live data and the checkers see the same steps.
//!
//! An attempt takes half a day: nobody for six minutes, then starting and going back to the last
//! checkpoint, then the same cycle again and again. The large job's cycle has 19 minutes at full
//! speed, 20 in which a GPU throttles and all wait for it, and one with a checkpoint; it dies 32
//! minutes into a cycle and does these again. The small one's has steps, and waits while its
//! answers are marked.

use gpufleet_telemetry::time::{Minute, Timestamp};

use super::noise::Noise;

/// From the end of one attempt to the end of the next.
const ATTEMPT_MINUTES: i64 = 720;
/// Of these nobody runs for so long at first.
const DOWN_MINUTES: i64 = 6;
/// Then it starts for a minute and goes back to the checkpoint for another.
const LEAD_MINUTES: i64 = 2;
/// So many attempts are one job of the large kind: a month.
const ATTEMPTS_OF_A_JOB: i64 = 64;
/// Steps of the large job from one checkpoint to the next: those of its cycle.
pub const CHECKPOINT_STEPS: u64 = 1_800;
const MINUTE_NS: i64 = 60_000_000_000;
/// The XID that ends every other attempt: an uncorrectable memory error that was contained, which
/// ends what runs on the GPU.
pub const ENDING_XID: u32 = 94;
/// How much sooner than on average a step may end: 3 % of the large job's.
const JITTER_NS: f64 = 36e6;

/// Which of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Steps of 1.2 s, checkpoints, an attempt after the other.
    Large,
    /// Steps of 6 s that wait for data, and evaluation after every 60 of them.
    Small,
}

/// What a job does at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It is not there.
    Down,
    /// Its processes come up.
    Starting,
    /// It goes back to its checkpoint.
    Restoring,
    /// It trains.
    Training {
        /// While everyone waits for the GPU that throttles.
        slow: bool,
    },
    /// It stands still to save a checkpoint.
    Saving,
    /// What it answers by now is marked, on another machine, and its GPUs wait.
    Evaluating,
}

/// One attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// How many attempts came before it in all time.
    pub turn: i64,
    /// Which job it belongs to, of those of one name.
    pub job: i64,
    /// Its number within its job.
    pub number: u32,
    /// When its processes came up.
    pub began: Timestamp,
    /// When it ends.
    pub ends: Timestamp,
    /// The step it goes on from.
    pub after_step: u64,
}

/// One step, as all ranks see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Whether everyone waits in it for the GPU that throttles.
    pub slow: bool,
}

/// Minutes of one kind in a row.
struct Stretch {
    minutes: i64,
    doing: Doing,
    /// Steps of each of its minutes, evenly in the first so many nanoseconds of it.
    steps: i64,
    within_ns: i64,
}

/// The schedule of one job.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    size: Size,
    noise: Noise,
    /// The minute of the half day at which attempts end.
    offset: i64,
}

const fn training(minutes: i64, slow: bool, steps: i64) -> Stretch {
    Stretch {
        minutes,
        doing: Doing::Training { slow },
        steps,
        within_ns: MINUTE_NS,
    }
}

static LARGE: [Stretch; 3] = [
    training(19, false, 50),
    training(20, true, 42),
    Stretch {
        minutes: 1,
        doing: Doing::Saving,
        steps: 10,
        within_ns: 12_000_000_000,
    },
];

static SMALL: [Stretch; 2] = [
    training(6, false, 10),
    Stretch {
        minutes: 4,
        doing: Doing::Evaluating,
        steps: 0,
        within_ns: MINUTE_NS,
    },
];

impl Attempt {
    /// Whether a GPU ends it; else a script does.
    pub fn ends_by_xid(&self) -> bool {
        self.turn.rem_euclid(2) == 0
    }
}

impl Schedule {
    /// The schedule of this job in the fleet of this noise.
    pub fn new(size: Size, fleet: Noise) -> Self {
        let offset = fleet.bits(size as i64, 1) % ATTEMPT_MINUTES.cast_unsigned();
        Self {
            size,
            noise: fleet,
            offset: offset.cast_signed(),
        }
    }

    /// Steps from one checkpoint to the next, or from one pause to the next.
    pub fn cycle_steps(&self) -> u64 {
        let steps: i64 = self.cycle().iter().map(|it| it.minutes * it.steps).sum();
        steps.cast_unsigned()
    }

    /// Steps that the job intends to do: those of all its attempts, of a job that has a plan.
    pub fn planned_steps(&self) -> Option<u64> {
        let attempts = ATTEMPTS_OF_A_JOB.cast_unsigned();
        (self.size == Size::Large).then(|| self.kept_steps() * attempts)
    }

    /// The attempt that runs in this minute.
    pub fn attempt(&self, minute: Minute) -> Option<Attempt> {
        let within = (minute.0 - self.offset).rem_euclid(ATTEMPT_MINUTES);
        (within >= DOWN_MINUTES).then(|| self.of_turn(self.turn(minute)))
    }

    /// The newest attempt that had ended by the end of this minute.
    pub fn ended(&self, minute: Minute) -> Attempt {
        self.of_turn(self.turn(minute) - 1)
    }

    /// What the job does in the second that begins here.
    pub fn doing(&self, at: Timestamp) -> Doing {
        let Some(attempt) = self.attempt(at.minute()) else {
            return Doing::Down;
        };
        let minutes = at.since(attempt.began) / MINUTE_NS;
        match (minutes - LEAD_MINUTES, self.size) {
            (..-1, _) | (-1, Size::Small) => Doing::Starting,
            (-1, Size::Large) => Doing::Restoring,
            (worked, _) => {
                let (stretch, _) = self.stretch(worked);
                let trains = at.since(at.minute().start()) < stretch.within_ns;
                match stretch.doing {
                    Doing::Saving if trains => Doing::Training { slow: false },
                    doing => doing,
                }
            }
        }
    }

    /// How many steps of the attempt have ended by this moment.
    pub fn done(&self, attempt: &Attempt, at: Timestamp) -> u64 {
        let worked = at.min(attempt.ends).since(first_step_begins(attempt));
        if worked <= 0 {
            return 0;
        }
        let (minutes, into) = (worked / MINUTE_NS, worked % MINUTE_NS);
        let (stretch, before) = self.stretch(minutes);
        // The first moment that is at or after the end of so many steps of this minute.
        let ended = ((into + 1) * stretch.steps - 1).div_euclid(stretch.within_ns);
        (before + ended.clamp(0, stretch.steps)).cast_unsigned()
    }

    /// A step of the attempt, counted from 0.
    pub fn step(&self, attempt: &Attempt, index: u64) -> Step {
        let (began, ended, slow) = self.on_grid(attempt, index);
        let before = index
            .checked_sub(1)
            .map(|before| (before, self.on_grid(attempt, before).1));
        let sooner = |index: u64| -(self.early(attempt, index) as i64);
        let began = match before {
            Some((index, ended)) if ended == began => ended.shifted(sooner(index)),
            _ => began,
        };
        Step {
            began,
            ended: ended.shifted(sooner(index)),
            slow,
        }
    }

    /// Nanoseconds by which a step ends sooner than the grid has it.
    fn early(&self, attempt: &Attempt, index: u64) -> f64 {
        let moment = attempt.turn * 100_000 + index.cast_signed();
        self.noise.even(moment, 8) * JITTER_NS
    }

    /// When a step begins and ends where all of a minute take equally long.
    fn on_grid(&self, attempt: &Attempt, index: u64) -> (Timestamp, Timestamp, bool) {
        let index = index.cast_signed();
        let of_cycle = self.cycle_steps().cast_signed();
        let cycles = index / of_cycle;
        let (mut minute, mut left) = (cycles * self.cycle_minutes(), index % of_cycle);
        let mut found = &self.cycle()[0];
        for stretch in self.cycle() {
            found = stretch;
            if left < stretch.minutes * stretch.steps {
                minute += left / stretch.steps;
                left %= stretch.steps;
                break;
            }
            minute += stretch.minutes;
            left -= stretch.minutes * stretch.steps;
        }
        let start = first_step_begins(attempt).shifted(minute * MINUTE_NS);
        let at = |steps: i64| start.shifted(steps * found.within_ns / found.steps.max(1));
        let slow = found.doing == Doing::Training { slow: true };
        (at(left), at(left + 1), slow)
    }

    fn of_turn(&self, turn: i64) -> Attempt {
        let starts = Minute(self.offset + turn * ATTEMPT_MINUTES);
        let (job, number) = match self.size {
            Size::Large => (
                turn.div_euclid(ATTEMPTS_OF_A_JOB),
                turn.rem_euclid(ATTEMPTS_OF_A_JOB),
            ),
            Size::Small => (turn, 0),
        };
        Attempt {
            turn,
            job,
            number: number as u32,
            began: starts.start().shifted(DOWN_MINUTES * MINUTE_NS),
            ends: starts.start().shifted(ATTEMPT_MINUTES * MINUTE_NS),
            after_step: number.cast_unsigned() * self.kept_steps(),
        }
    }

    fn turn(&self, minute: Minute) -> i64 {
        (minute.0 - self.offset).div_euclid(ATTEMPT_MINUTES)
    }

    /// Steps of an attempt up to its last checkpoint.
    fn kept_steps(&self) -> u64 {
        let minutes = ATTEMPT_MINUTES - DOWN_MINUTES - LEAD_MINUTES;
        (minutes / self.cycle_minutes()).cast_unsigned() * self.cycle_steps()
    }

    fn cycle(&self) -> &'static [Stretch] {
        match self.size {
            Size::Large => &LARGE,
            Size::Small => &SMALL,
        }
    }

    fn cycle_minutes(&self) -> i64 {
        self.cycle().iter().map(|it| it.minutes).sum()
    }

    /// The stretch that a minute of work lies in, and the steps of all minutes before it.
    fn stretch(&self, minutes: i64) -> (&'static Stretch, i64) {
        let cycles = minutes / self.cycle_minutes();
        let mut left = minutes % self.cycle_minutes();
        let mut before = cycles * self.cycle_steps().cast_signed();
        let mut found = &self.cycle()[0];
        for stretch in self.cycle() {
            found = stretch;
            if left < stretch.minutes {
                break;
            }
            before += stretch.minutes * stretch.steps;
            left -= stretch.minutes;
        }
        (found, before + left * found.steps)
    }
}

fn first_step_begins(attempt: &Attempt) -> Timestamp {
    attempt.began.shifted(LEAD_MINUTES * MINUTE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Minute = Minute(30_000_000);

    fn schedule(size: Size) -> Schedule {
        Schedule::new(size, Noise::new(1, 0, 0))
    }

    #[test]
    fn every_step_of_an_attempt_is_done_when_it_ended_and_follows_the_one_before() {
        for size in [Size::Large, Size::Small] {
            let schedule = schedule(size);
            let attempt = schedule.ended(DAY);
            let all = schedule.done(&attempt, attempt.ends);
            let mut before = attempt.began;
            for index in 0..all {
                let (_, grid, _) = schedule.on_grid(&attempt, index);
                assert_eq!(schedule.done(&attempt, grid), index + 1, "{size:?}");
                assert_eq!(schedule.done(&attempt, grid.shifted(-1)), index, "{size:?}");
                let step = schedule.step(&attempt, index);
                assert!(step.began >= before && step.ended > step.began, "{index}");
                before = step.ended;
            }
            assert!(all > 3_000, "{all}");
        }
    }

    #[test]
    fn an_attempt_goes_on_from_the_checkpoint_before_the_end_of_the_one_before() {
        let schedule = schedule(Size::Large);
        let first = schedule.ended(DAY);
        let next = schedule.of_turn(first.turn + 1);
        let done = first.after_step + schedule.done(&first, first.ends);
        assert_eq!(schedule.cycle_steps(), CHECKPOINT_STEPS);
        assert_eq!(next.after_step, done - done % 1_800);
        assert_eq!(done % 1_800, 1_496);
        assert_eq!((next.job, next.number), (first.job, first.number + 1));
        assert_eq!(
            next.began.since(first.ends),
            DOWN_MINUTES * MINUTE_NS,
            "nobody runs in between"
        );
    }

    #[test]
    fn a_day_has_two_ends_and_is_otherwise_nearly_all_work() {
        let schedule = schedule(Size::Large);
        let mut minutes = [0; 3];
        for minute in 0..1_440 {
            let at = Minute(DAY.0 + minute).start().shifted(20_000_000_000);
            let kind = match schedule.doing(at) {
                Doing::Training { .. } => 0,
                Doing::Saving => 1,
                _ => 2,
            };
            minutes[kind] += 1;
        }
        assert_eq!(minutes, [1_390, 34, 16]);
    }
}
