//! What a model server did in an hour: tokens, and for how long they were told.
//!
//! Method. Its counters' points are a line, as with energy: between points, and over pauses of up to
//! [`MAX_PAUSE_MS`], it did what they grew by; after a reset they count from zero. Time before the first point of
//! the hour, after the last one and in longer pauses is not told, and its tokens are in no sum. Prompts that are told
//! for less of the time than generated tokens are not told.
//!
//! Numbers. Tokens as whole numbers, milliseconds.

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::{Metric, serving};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

/// Longest time between two points of which it is said what was done, ms: the longest period of a scrape.
const MAX_PAUSE_MS: i64 = 300_000;

/// Prompts count where they are told for so much of the time for which generated tokens are.
const NEARLY: (i64, i64) = (99, 100);

/// What a model server did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// Tokens of prompts; none where nobody told them.
    pub prompt_tokens: Option<i64>,
    /// Tokens that it generated.
    pub generated_tokens: i64,
    /// For how long these were told, milliseconds.
    pub told_millis: i64,
}

/// What it did in an hour; none where nothing says it.
pub fn served(hour: i64, minutes: &BTreeMap<Minute, MinuteRow>) -> Option<Served> {
    let (generated_tokens, told_millis) = grown(hour, minutes, serving::GENERATED_TOKENS)?;
    let prompt = grown(hour, minutes, serving::PROMPT_TOKENS);
    // Of less time than the others they would make a token dearer than it was.
    let prompt = prompt.filter(|it| it.1 * NEARLY.1 >= told_millis * NEARLY.0);
    Some(Served {
        prompt_tokens: prompt.map(|it| it.0),
        generated_tokens,
        told_millis,
    })
}

/// How much a counter grew in an hour, and for how long that is known; none where it is for no time.
fn grown(hour: i64, minutes: &BTreeMap<Minute, MinuteRow>, metric: Metric) -> Option<(i64, i64)> {
    let (mut growth, mut told) = (0.0, 0_i64);
    let mut before: Option<(i64, f64)> = None;
    for (minute, row) in minutes.range(Minute(hour * 60)..Minute((hour + 1) * 60)) {
        let Some(counter) = row.counters.get(&metric.id) else {
            continue;
        };
        for it in counter.stretches() {
            let at = |into: u32| minute.start().millis() + i64::from(into);
            if let Some((since, raw)) = before
                && (0..=MAX_PAUSE_MS).contains(&(at(it.from) - since))
            {
                growth += match it.first >= raw {
                    true => it.first - raw,
                    false => it.first,
                };
                told += at(it.from) - since;
            }
            growth += it.growth;
            told += i64::from(it.to - it.from);
            before = Some((at(it.to), it.last));
        }
    }
    (told > 0).then_some((growth.round() as i64, told))
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::minute::Counter;

    use super::*;

    const HOUR: i64 = 480_000;

    /// An hour of a server that is read every 30 s and says this at each end (seconds into the hour).
    fn hour(raw: impl Fn(i64) -> Option<f64>) -> Option<Served> {
        let mut rows: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
        for end in (30..=3_600).step_by(30) {
            let Some(raw) = raw(end) else { continue };
            let into = u32::try_from((end - 1) % 60 + 1).expect("small") * 1_000;
            let point = Counter::point(raw, into - 30_000, into).expect("finite");
            let row = rows.entry(Minute(HOUR * 60 + (end - 1) / 60)).or_default();
            row.add_counter(serving::GENERATED_TOKENS.id, &point);
        }
        served(HOUR, &rows)
    }

    #[test]
    fn tokens_are_what_the_counters_grew_by_in_the_time_that_they_told() {
        let told = |generated_tokens: i64, seconds: i64| {
            Some(Served {
                prompt_tokens: None,
                generated_tokens,
                told_millis: seconds * 1_000,
            })
        };
        assert_eq!(hour(|_| None), None, "not told is not none");
        assert_eq!(hour(|_| Some(7.0)), told(0, 3_570), "idle");
        let steady = |end: i64| 1e9 + end as f64 * 50.0;
        assert_eq!(hour(|end| Some(steady(end))), told(3_570 * 50, 3_570));
        // It began anew after 600 s: what it did between is what it counts from zero.
        let anew = |end: i64| Some((if end <= 600 { end } else { end - 600 }) as f64 * 50.0);
        assert_eq!(hour(anew), told(3_570 * 50, 3_570));
        let pause =
            |until: i64| hour(move |end| (end <= 600 || end >= until).then_some(steady(end)));
        assert_eq!(pause(900), told(3_570 * 50, 3_570));
        assert_eq!(pause(930), told(3_240 * 50, 3_240));
        let both = |prompts_until: i64| {
            let mut rows: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
            for end in (60..=3_600_u32).step_by(60) {
                let row = rows
                    .entry(Minute(HOUR * 60 + i64::from(end) / 60 - 1))
                    .or_default();
                let point = Counter::point(f64::from(end), 0, 60_000).expect("finite");
                row.add_counter(serving::GENERATED_TOKENS.id, &point);
                if i64::from(end) <= prompts_until {
                    row.add_counter(serving::PROMPT_TOKENS.id, &point);
                }
            }
            served(HOUR, &rows).expect("it tells").prompt_tokens
        };
        assert!(both(3_600).is_some());
        assert_eq!(both(1_800), None, "half of the hour is not all of it");
        assert_eq!(
            hour(|end| (end == 30).then_some(9.0)),
            None,
            "one point says no growth"
        );
    }
}
