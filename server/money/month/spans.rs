//! Spans of time, half open, in Unix milliseconds.

use std::ops::Range;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;

/// A span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) from_ms: i64,
    /// The first millisecond behind it.
    pub(super) until_ms: i64,
}

/// Spans, in any order unless they are said to be [`joined`].
pub(super) type Spans = Vec<Span>;

impl Span {
    pub(super) const fn new(from_ms: i64, until_ms: i64) -> Self {
        Self { from_ms, until_ms }
    }

    /// These days since the Unix epoch.
    pub(super) const fn days(days: &Range<i64>) -> Self {
        Self::new(days.start * MILLIS_PER_DAY, days.end * MILLIS_PER_DAY)
    }

    /// What of it lies in another; none where nothing does.
    pub(super) fn within(self, other: Self) -> Option<Self> {
        let both = Self {
            from_ms: self.from_ms.max(other.from_ms),
            until_ms: self.until_ms.min(other.until_ms),
        };
        (both.from_ms < both.until_ms).then_some(both)
    }

    /// It without what others have of it, joined.
    pub(super) fn without(self, others: &[Self]) -> Spans {
        let (mut left, mut at) = (Spans::new(), self.from_ms);
        for other in within(&joined(others.to_vec()), self) {
            left.push(Self::new(at, other.from_ms));
            at = at.max(other.until_ms);
        }
        left.push(Self::new(at, self.until_ms));
        left.retain(|it| it.from_ms < it.until_ms);
        left
    }

    pub(super) const fn length(self) -> i64 {
        self.until_ms - self.from_ms
    }
}

impl From<(i64, i64)> for Span {
    fn from((from_ms, until_ms): (i64, i64)) -> Self {
        Self { from_ms, until_ms }
    }
}

impl From<Span> for (i64, i64) {
    fn from(span: Span) -> Self {
        (span.from_ms, span.until_ms)
    }
}

/// Spans one after the other, those that overlap or touch as one.
pub(super) fn joined(mut spans: Spans) -> Spans {
    spans.sort_unstable();
    let mut joined = Spans::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from_ms <= last.until_ms => {
                last.until_ms = span.until_ms.max(last.until_ms);
            }
            _ => joined.push(span),
        }
    }
    joined
}

/// What of each of these spans lies in one.
pub(super) fn within(spans: &[Span], one: Span) -> Spans {
    spans.iter().filter_map(|it| it.within(one)).collect()
}

/// How long spans are, that do not overlap.
pub(super) fn length(spans: &[Span]) -> i64 {
    spans.iter().map(|it| it.length()).sum()
}
