//! Marks on charts: what was changed, as a line at its time, and the same in words under the chart, for who cannot
//! see it and for who wants to know when and by whom.
//!
//! Limits: [`MAX_MARKS`] lines on a chart, the newest: more are a wall. What falls within a chart's narrowest step is
//! one line, and the same of many machines is told once with how many; of one line [`MAX_TOLD`] sentences. What is
//! not marked is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gpufleet_telemetry::time::{Minute, Timestamp};

use super::draw;
use crate::view::changed::{Changed, Happened, Subject};
use crate::words::text::{self, SHOWN_CHARACTERS};

/// Most lines on a chart.
const MAX_MARKS: usize = 12;

/// Most sentences of a line.
const MAX_TOLD: usize = 4;

/// A line on a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its place from the left, in units of the chart.
    pub x: i64,
    /// When and what: `2026-11-21 14:03 UTC, node-7: is cordoned`.
    pub words: String,
}

/// The lines on a chart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Marks {
    /// In the order of time.
    pub lines: Vec<Mark>,
    /// What is not marked, or why nothing is.
    pub note: Option<String>,
}

/// The marks on a chart that is so wide and goes from one moment to before another.
pub(super) fn marks(changed: &Changed, (from, until): (Timestamp, Timestamp), width: i64) -> Marks {
    let length = until.millis() - from.millis();
    let mut places: BTreeMap<i64, Vec<&Happened>> = BTreeMap::new();
    let inside = changed.all.iter();
    for it in inside.filter(|it| (from..until).contains(&it.at)) {
        let x = (it.at.millis() - from.millis()) * width / length;
        places.entry(x).or_default().push(it);
    }
    let older = places.len().saturating_sub(MAX_MARKS);
    let left_out: usize = places.values().take(older).map(Vec::len).sum();
    let lines = places.into_iter().skip(older);
    Marks {
        lines: lines
            .map(|(x, all)| Mark {
                x,
                words: words(all),
            })
            .collect(),
        note: if changed.failed {
            Some(
                "What was changed is not known at the moment: the store does not answer."
                    .to_owned(),
            )
        } else if changed.is_cut {
            Some("So much was changed that the oldest is not marked.".to_owned())
        } else {
            let older = text::counted(left_out, "older change", "older changes");
            (left_out > 0).then(|| format!("Not marked: {older}."))
        },
    }
}

/// The marks on curves of these minutes, in their columns.
pub(super) fn of_curves(changed: &Changed, minutes: &Range<Minute>) -> Marks {
    let length = usize::try_from(minutes.end.0 - minutes.start.0).unwrap_or(0);
    let per_column = draw::minutes_per_bucket(length);
    let columns = i64::try_from(length.div_ceil(per_column)).unwrap_or(0);
    let end = minutes.start.0 + columns * i64::try_from(per_column).unwrap_or(0);
    marks(
        changed,
        (minutes.start.start(), Minute(end).start()),
        columns,
    )
}

/// The same change of one machine or of many.
struct Group<'a> {
    first: &'a Happened,
    last: Timestamp,
    subjects: BTreeSet<&'a Subject>,
}

fn words(mut all: Vec<&Happened>) -> String {
    all.sort_by_key(|it| it.at);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for it in all {
        match groups.iter_mut().find(|group| is_same(group.first, it)) {
            Some(group) => {
                group.last = it.at;
                group.subjects.insert(&it.subject);
            }
            None => groups.push(Group {
                first: it,
                last: it.at,
                subjects: BTreeSet::from([&it.subject]),
            }),
        }
    }
    let more = groups.len().saturating_sub(MAX_TOLD);
    groups.truncate(MAX_TOLD);
    let mut told: Vec<String> = groups.iter().map(sentence).collect();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told.join("; ")
}

/// Whether the same was done by the same to things of one kind.
fn is_same(one: &Happened, other: &Happened) -> bool {
    let of_kind = std::mem::discriminant(&one.subject) == std::mem::discriminant(&other.subject);
    of_kind && one.words == other.words && one.by == other.by
}

fn sentence(group: &Group<'_>) -> String {
    let harmless = |it: &str| text::harmless(it, SHOWN_CHARACTERS);
    let (first, last) = (text::minute(group.first.at), text::minute(group.last));
    let when = match first == last {
        true => first,
        false => format!("{first} to {}", text::clock_time(group.last)),
    };
    let who = match (&group.first.subject, group.subjects.len()) {
        (Subject::Server, _) => "the server".to_owned(),
        (Subject::Node(name), 1) => harmless(name),
        (Subject::Gpu(name), 1) => harmless(name),
        (Subject::Node(_), count) => text::counted(count, "node", "nodes"),
        (Subject::Gpu(_), count) => text::counted(count, "GPU", "GPUs"),
    };
    let what = harmless(&group.first.words);
    let by = group.first.by.as_deref();
    let by = by.map_or_else(String::new, |it| format!(", by {}", harmless(it)));
    format!("{when} UTC, {who}: {what}{by}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_812_800 + minutes * 60)
    }

    fn happened(minutes: i64, node: &str, words: &str) -> Happened {
        Happened {
            at: at(minutes),
            subject: Subject::Node(node.into()),
            words: words.to_owned(),
            by: None,
        }
    }

    fn changed(all: impl IntoIterator<Item = Happened>) -> Changed {
        Changed {
            all: all.into_iter().collect(),
            ..Changed::default()
        }
    }

    #[test]
    fn a_mark_says_when_what_and_by_whom_at_its_time_and_what_is_outside_is_not_on_it() {
        let by_ada = Happened {
            by: Some("ada".to_owned()),
            ..happened(60, "n-1", "was handed off")
        };
        let all = changed([
            by_ada,
            happened(-1, "n-1", "before"),
            happened(120, "n-1", "behind"),
            happened(0, "n-2", "is ready"),
        ]);
        let found = marks(&all, (at(0), at(120)), 240);
        let told: Vec<_> = found
            .lines
            .iter()
            .map(|it| (it.x, it.words.as_str()))
            .collect();
        let expected = [
            (0, "2026-10-01 00:00 UTC, n-2: is ready"),
            (120, "2026-10-01 01:00 UTC, n-1: was handed off, by ada"),
        ];
        assert_eq!((told.as_slice(), found.note), (&expected[..], None));
        assert_eq!(marks(&all, (at(5), at(5)), 240), Marks::default());
    }

    #[test]
    fn a_mark_on_curves_stands_over_the_column_of_its_minute() {
        let start = at(0).minute();
        let all = changed([
            happened(7, "n-1", "is ready"),
            happened(901, "n-1", "is gone"),
        ]);
        let x = |minutes: i64| -> Vec<i64> {
            let found = of_curves(&all, &(start..Minute(start.0 + minutes)));
            found.lines.iter().map(|it| it.x).collect()
        };
        assert_eq!((x(60), x(1_440)), (vec![7], vec![2, 300]));
    }

    #[test]
    fn the_same_of_many_machines_is_told_once_and_a_line_tells_few_things() {
        let nodes = (0..37).map(|it| happened(it / 10, &format!("n-{it}"), "is cordoned"));
        let found = marks(&changed(nodes), (at(0), at(1_440)), 240);
        let told: Vec<_> = found.lines.iter().map(|it| it.words.as_str()).collect();
        assert_eq!(
            told,
            ["2026-10-01 00:00 to 00:03 UTC, 37 nodes: is cordoned"]
        );
        let kinds = (0..6).map(|it| happened(1, "n-1", &format!("thing {it}")));
        let found = marks(&changed(kinds), (at(0), at(1_440)), 240);
        let words = &found.lines[0].words;
        assert!(words.contains("n-1: thing 3; and 2 more"), "{words}");
        assert!(!words.contains("thing 4"), "{words}");
    }

    #[test]
    fn of_a_storm_the_newest_lines_are_drawn_and_what_is_not_is_told() {
        let storm = (0..100).map(|it| happened(it * 10, "n-1", "again"));
        let found = marks(&changed(storm), (at(0), at(1_440)), 1_440);
        assert_eq!((found.lines.len(), found.lines[0].x), (MAX_MARKS, 880));
        assert_eq!(found.note.as_deref(), Some("Not marked: 88 older changes."));
        let cut = Changed {
            is_cut: true,
            ..changed([happened(1, "n-1", "again")])
        };
        let found = marks(&cut, (at(0), at(1_440)), 1_440);
        assert!(
            found
                .note
                .is_some_and(|it| it.contains("the oldest is not marked"))
        );
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_a_time_without_changes() {
        let failed = Changed {
            failed: true,
            ..Changed::default()
        };
        let note = marks(&failed, (at(0), at(1)), 1).note;
        assert!(note.is_some_and(|it| it.contains("not known")));
    }
}
