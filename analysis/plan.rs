//! What a run intends, how far it is, and what it will have cost: finish, cost, deadline.
//!
//! Progress is the share of planned steps or tokens done; the rate is what the last window did, so
//! that a slow start does not spoil the forecast and lost time between attempts still counts as
//! cost. Nothing is foreseen from a rate of 0, and a plan that is not told is not guessed.
//!
//! Money is integer nano-USD: GPU-nanoseconds × price of a GPU-hour, i128 between.

use gpufleet_telemetry::time::Timestamp;

/// Nanoseconds in an hour.
const HOUR_NS: i128 = 3_600_000_000_000;

/// Longest forecast, nanoseconds: ten years. Beyond it the rate is taken for none.
pub const MAX_FORECAST_NS: f64 = 10.0 * 365.0 * 24.0 * HOUR_NS as f64;

/// What is known of a run now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Now.
    pub now: Timestamp,
    /// Steps or tokens planned, if the run says so.
    pub planned: Option<u64>,
    /// How many of them are done, repeated ones not counted twice.
    pub done: u64,
    /// How many of them the last window did.
    pub window_done: u64,
    /// How long the window was, nanoseconds.
    pub window_ns: u64,
    /// GPUs the run holds.
    pub gpus: u32,
    /// GPU-nanoseconds it has held, over all attempts.
    pub held_gpu_ns: u128,
    /// Nano-USD of one GPU for one hour, if it is known.
    pub nano_usd_per_gpu_hour: Option<i64>,
    /// When it has to be done, if the run says so.
    pub deadline: Option<Timestamp>,
}

/// What follows from it. What cannot be said is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Share done, 0 to 1.
    pub share: Option<f64>,
    /// When it will be done at the present rate; now, when it is.
    pub finish_at: Option<Timestamp>,
    /// What it has cost, nano-USD.
    pub cost_so_far: Option<i128>,
    /// What it will have cost at its finish, nano-USD.
    pub cost_at_finish: Option<i128>,
    /// Nanoseconds after its deadline that it finishes; negative when before.
    pub late_ns: Option<i64>,
}

/// What GPU-nanoseconds cost at so many nano-USD a GPU-hour, nano-USD; none of what no number holds.
pub fn cost(gpu_ns: u128, nano_usd_per_gpu_hour: i64) -> Option<i128> {
    let sum = i128::try_from(gpu_ns).ok()?;
    let sum = sum.checked_mul(i128::from(nano_usd_per_gpu_hour));
    sum.map(|it| it / HOUR_NS)
}

/// The forecast.
pub fn forecast(progress: &Progress) -> Forecast {
    let left = progress
        .planned
        .map(|planned| planned.saturating_sub(progress.done));
    let left_ns = left.and_then(|left| left_ns(left, progress));
    let finish_at = left_ns.map(|left| progress.now.shifted(left));
    let cost = |gpu_ns: u128| cost(gpu_ns, progress.nano_usd_per_gpu_hour?);
    let more = |left: i64| u128::from(progress.gpus) * u128::from(left.max(0).cast_unsigned());
    Forecast {
        share: progress
            .planned
            .filter(|planned| *planned > 0)
            .map(|planned| (progress.done as f64 / planned as f64).min(1.0)),
        finish_at,
        cost_so_far: cost(progress.held_gpu_ns),
        cost_at_finish: left_ns.and_then(|left| cost(progress.held_gpu_ns + more(left))),
        late_ns: finish_at
            .zip(progress.deadline)
            .map(|(finish, deadline)| finish.since(deadline)),
    }
}

/// How long what is left takes at the window's rate.
fn left_ns(left: u64, progress: &Progress) -> Option<i64> {
    if left == 0 {
        return Some(0);
    }
    if progress.window_done == 0 || progress.window_ns == 0 {
        return None;
    }
    let each = progress.window_ns as f64 / progress.window_done as f64;
    let left = left as f64 * each;
    (left <= MAX_FORECAST_NS).then_some(left as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = HOUR_NS as u64;

    /// 100 of 400 steps done, 50 an hour, on 8 GPUs at 2 USD.
    fn progress() -> Progress {
        Progress {
            now: Timestamp::from_seconds(1_700_000_000),
            planned: Some(400),
            done: 100,
            window_done: 25,
            window_ns: HOUR / 2,
            gpus: 8,
            held_gpu_ns: u128::from(24 * HOUR),
            nano_usd_per_gpu_hour: Some(2_000_000_000),
            deadline: Some(Timestamp::from_seconds(1_700_000_000 + 5 * 3_600)),
        }
    }

    #[test]
    fn the_finish_the_cost_and_the_delay_follow_from_the_present_rate() {
        let found = forecast(&progress());
        assert_eq!(found.share, Some(0.25));
        assert_eq!(
            found.finish_at,
            Some(Timestamp::from_seconds(1_700_000_000 + 6 * 3_600))
        );
        assert_eq!(found.cost_so_far, Some(48_000_000_000));
        assert_eq!(
            found.cost_at_finish,
            Some(48_000_000_000 + 6 * 8 * 2_000_000_000)
        );
        assert_eq!(found.late_ns, Some(HOUR as i64));
    }

    #[test]
    fn what_is_not_known_stays_unknown() {
        let check = |change: fn(&mut Progress), expected: fn(&Forecast) -> bool| {
            let mut changed = progress();
            change(&mut changed);
            let found = forecast(&changed);
            assert!(expected(&found), "{found:?}");
        };
        check(
            |it| it.planned = None,
            |it| it.share.is_none() && it.finish_at.is_none(),
        );
        check(
            |it| it.window_done = 0,
            |it| it.finish_at.is_none() && it.cost_so_far.is_some(),
        );
        check(|it| it.window_ns = 0, |it| it.cost_at_finish.is_none());
        check(
            |it| it.nano_usd_per_gpu_hour = None,
            |it| it.cost_so_far.is_none() && it.late_ns.is_some(),
        );
        check(|it| it.deadline = None, |it| it.late_ns.is_none());
        check(
            |it| it.planned = Some(u64::MAX),
            |it| it.finish_at.is_none(),
        );
    }

    #[test]
    fn a_run_that_is_done_finishes_now_and_costs_no_more() {
        let done = Progress {
            done: 500,
            window_done: 0,
            ..progress()
        };
        let found = forecast(&done);
        assert_eq!((found.share, found.finish_at), (Some(1.0), Some(done.now)));
        assert_eq!(found.cost_at_finish, found.cost_so_far);
    }
}
