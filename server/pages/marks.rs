//! Marks on charts: what was changed about a GPU or its node, as a line at its time, in words for who cannot see it.
//!
//! Limits: [`MAX_MARKS`] on a chart, the newest: more are a wall. Several within a chart's narrowest step are one line.

use gpufleet_telemetry::time::Timestamp;

use crate::view::past::Happened;
use crate::words::text::{self, SHOWN_CHARACTERS};

/// Most marks on a chart.
const MAX_MARKS: usize = 12;

/// A line on a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its place from the left, in units of the chart.
    pub x: i64,
    /// When and what: `14:03 UTC: driver changed`.
    pub words: String,
}

/// The marks on a chart that is so wide and goes from one moment to before another, in the order of time.
pub(super) fn marks(
    happened: &[Happened],
    (from, until): (Timestamp, Timestamp),
    width: i64,
) -> Vec<Mark> {
    let length = until.millis() - from.millis();
    let mut inside: Vec<&Happened> = happened
        .iter()
        .filter(|it| (from..until).contains(&it.at) && length > 0)
        .collect();
    inside.sort_by_key(|it| it.at);
    let mut found: Vec<Mark> = Vec::new();
    for it in &inside[inside.len().saturating_sub(MAX_MARKS)..] {
        let x = (it.at.millis() - from.millis()) * width / length;
        let words = text::harmless(&it.words, SHOWN_CHARACTERS);
        let words = format!("{} UTC: {words}", text::clock_time(it.at));
        match found.last_mut().filter(|it| it.x == x) {
            Some(same) => same.words = format!("{}; {words}", same.words),
            None => found.push(Mark { x, words }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_812_800 + minutes * 60)
    }

    fn happened(minutes: i64, words: &str) -> Happened {
        Happened {
            at: at(minutes),
            words: words.to_owned(),
        }
    }

    #[test]
    fn a_mark_stands_at_its_time_and_what_is_outside_of_the_chart_is_not_on_it() {
        let all = [
            happened(60, "driver changed from 570 to 580"),
            happened(-1, "before"),
            happened(120, "behind"),
            happened(0, "at its edge"),
        ];
        let found = marks(&all, (at(0), at(120)), 240);
        let told: Vec<_> = found.iter().map(|it| (it.x, it.words.as_str())).collect();
        let expected = [
            (0, "00:00 UTC: at its edge"),
            (120, "01:00 UTC: driver changed from 570 to 580"),
        ];
        assert_eq!(told, expected);
        assert_eq!(marks(&all, (at(5), at(5)), 240), []);
    }

    #[test]
    fn what_falls_together_is_one_line_and_of_a_storm_the_newest_are_shown() {
        let together = [happened(1, "is cordoned"), happened(2, "is not ready")];
        let found = marks(&together, (at(0), at(1_440)), 240);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].words,
            "00:01 UTC: is cordoned; 00:02 UTC: is not ready"
        );
        let storm: Vec<Happened> = (0..100).map(|it| happened(it * 10, "again")).collect();
        let found = marks(&storm, (at(0), at(1_440)), 1_440);
        assert_eq!(found.len(), MAX_MARKS);
        assert_eq!(found[0].x, 880);
    }
}
