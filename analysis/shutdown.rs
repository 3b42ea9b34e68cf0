//! When whole nodes stand free by habit: candidates for a shutdown on a schedule, and what each would save.
//!
//! Method. Of each cluster and each hour of the week (168, in UTC, Monday first) the least number of nodes of a kind that
//! nobody held for the whole hour, over the weeks that are known: what was free in *every* one of them. Hours that
//! follow one another with the same number or more are one window. A window of at least [`LEAST_HOURS`] hours is a
//! candidate; of those that overlap the one that saves most is taken first, and its nodes are taken off the others.
//!
//! Numbers. Nodes, hours, nano-units (integers): nodes × hours × the price of one for an hour, a week.
//!
//! Limits. An hour of the week of which less than [`LEAST_WEEKS`] weeks are known is no candidate: one holiday is no habit.
//! Time that nobody observed counts as held. That a node takes minutes to come back is not taken off; nor
//! does this know of jobs that would begin then. Nodes that a commitment covers cost the same when they are off: whoever
//! asks leaves them out of the price.

use std::collections::BTreeMap;

/// Hours of a week.
pub const WEEK: usize = 168;

/// Weeks that are looked at.
pub const WEEKS: usize = 4;

/// Weeks of which an hour of the week must be known.
pub const LEAST_WEEKS: usize = 3;

/// The shortest window: what takes a node down and brings it back costs a quarter of an hour.
pub const LEAST_HOURS: usize = 3;

/// Most windows of a kind of node.
pub const MAX_WINDOWS: usize = 5;

/// Nodes of one kind in one hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HourSeen {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// Nodes that nobody held in all of it.
    pub free: u32,
}

/// A time in which nodes could be off every week.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its first hour of the week, 0 is Monday 00:00 UTC.
    pub from: usize,
    /// How many hours; it may reach over the end of the week.
    pub hours: usize,
    /// How many nodes.
    pub nodes: u32,
    /// What that saves a week, nano-units.
    pub saved_per_week: i128,
}

/// Days of the week.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

impl Window {
    /// When it is: `Sat 00:00 to Mon 06:00 UTC`.
    pub fn words(&self) -> String {
        if self.hours >= WEEK {
            return "all week".to_owned();
        }
        let moment = |hour: usize| format!("{} {:02}:00", DAYS[hour % WEEK / 24], hour % 24);
        format!(
            "{} to {} UTC",
            moment(self.from),
            moment(self.from + self.hours)
        )
    }
}

/// The hour of the week that an hour since the epoch is; the epoch was a Thursday.
pub fn hour_of_week(hour: i64) -> usize {
    let week = i64::try_from(WEEK).unwrap_or(i64::MAX);
    usize::try_from((hour + 3 * 24).rem_euclid(week)).unwrap_or(0)
}

/// When nodes of one kind could be off, of which one costs so much an hour (nano-units); the most saving first.
pub fn windows(seen: &[HourSeen], node_hour: i64) -> Vec<Window> {
    let mut free = least(seen);
    let mut found = Vec::new();
    while found.len() < MAX_WINDOWS {
        let Some(window) = best(&free, node_hour) else {
            break;
        };
        for step in 0..window.hours {
            free[(window.from + step) % WEEK] -= window.nodes;
        }
        found.push(window);
    }
    found
}

/// By hour of the week what was free in every week; nothing of one that is not known well enough.
fn least(seen: &[HourSeen]) -> [u32; WEEK] {
    let mut known: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
    for it in seen {
        let (weeks, free) = known.entry(hour_of_week(it.hour)).or_insert((0, u32::MAX));
        *weeks += 1;
        *free = it.free.min(*free);
    }
    let mut least = [0; WEEK];
    for (place, (weeks, free)) in known {
        if weeks >= LEAST_WEEKS {
            least[place] = free;
        }
    }
    least
}

/// The window that saves most; of equal ones the first.
fn best(free: &[u32; WEEK], node_hour: i64) -> Option<Window> {
    let mut best: Option<Window> = None;
    let mut levels: Vec<u32> = free.iter().copied().filter(|it| *it > 0).collect();
    levels.sort_unstable();
    levels.dedup();
    for nodes in levels {
        for (from, hours) in stretches(free, nodes) {
            let hours_of_nodes = i128::from(nodes) * i128::try_from(hours).unwrap_or(0);
            let saved_per_week = hours_of_nodes * i128::from(node_hour);
            let is_better = best.is_none_or(|it| saved_per_week > it.saved_per_week);
            if hours >= LEAST_HOURS && saved_per_week > 0 && is_better {
                best = Some(Window {
                    from,
                    hours,
                    nodes,
                    saved_per_week,
                });
            }
        }
    }
    best
}

/// Longest stretches of the week in which so many are free: first hour and length. One may go round the week's end.
fn stretches(free: &[u32; WEEK], nodes: u32) -> Vec<(usize, usize)> {
    let is_free = |place: usize| free[place % WEEK] >= nodes;
    let Some(first_held) = (0..WEEK).find(|it| !is_free(*it)) else {
        return vec![(0, WEEK)];
    };
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut length = 0;
    // Once round from an hour that is held, to it again.
    for place in first_held..=first_held + WEEK {
        if is_free(place) {
            length += 1;
        } else if length > 0 {
            found.push(((place - length) % WEEK, length));
            length = 0;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Monday, 2026-10-05 00:00 UTC, hours since the epoch.
    const MONDAY: i64 = 497_448 + 4 * 24;

    /// So many weeks in which so many nodes were free at each hour of the week.
    fn weeks(count: i64, free: impl Fn(i64, usize) -> u32) -> Vec<HourSeen> {
        let hours = 0..count * 168;
        let seen = hours.map(|it| HourSeen {
            hour: MONDAY + it,
            free: free(it / 168, hour_of_week(MONDAY + it)),
        });
        seen.collect()
    }

    #[test]
    fn the_week_begins_on_monday() {
        assert_eq!(hour_of_week(MONDAY), 0);
        assert_eq!(hour_of_week(0), 3 * 24, "1970-01-01 was a Thursday");
        assert_eq!(hour_of_week(MONDAY - 1), 167);
    }

    #[test]
    fn what_is_free_every_week_is_a_window_and_what_was_free_once_is_not() {
        // Five nodes free from Saturday 00:00 on until Monday 06:00; once only three; two more on Tuesday of one week.
        let seen = weeks(4, |week, hour| match hour {
            120.. | 0..6 if week == 2 => 3,
            120.. | 0..6 => 5,
            30..40 if week == 0 => 2,
            _ => 0,
        });
        let window = Window {
            from: 120,
            hours: 54,
            nodes: 3,
            saved_per_week: 54 * 3 * 10,
        };
        assert_eq!(windows(&seen, 10), [window]);
        assert_eq!(window.words(), "Sat 00:00 to Mon 06:00 UTC");
        assert_eq!(windows(&seen, 0), [], "nothing is saved");
    }

    #[test]
    fn windows_do_not_count_a_node_twice() {
        // Two all night, one more of them between two and six.
        let seen = weeks(4, |_, hour| match hour {
            2..6 => 3,
            0..8 => 2,
            _ => 0,
        });
        let found = windows(&seen, 1);
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.from, it.hours, it.nodes))
            .collect();
        assert_eq!(told, [(0, 8, 2), (2, 4, 1)]);
        let saved: i128 = found.iter().map(|it| it.saved_per_week).sum();
        assert_eq!(saved, 20);
    }

    #[test]
    fn a_week_that_is_always_free_is_one_window_and_two_weeks_are_no_habit() {
        let always = |count| windows(&weeks(count, |_, _| 1), 1);
        assert_eq!(
            always(4).iter().map(|it| it.hours).collect::<Vec<_>>(),
            [168]
        );
        assert_eq!(always(2), []);
        let short = weeks(4, |_, hour| u32::from((3..5).contains(&hour)));
        assert_eq!(windows(&short, 1), [], "two hours are too short");
    }
}
