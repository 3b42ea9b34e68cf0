//! Spans of time, half open, in Unix milliseconds.

/// Spans.
pub(super) type Spans = Vec<(i64, i64)>;

/// Spans one after the other, those that overlap or touch as one.
pub(super) fn joined(mut spans: Spans) -> Spans {
    spans.sort_unstable();
    let mut joined: Spans = Vec::new();
    for (from, until) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = until.max(last.1),
            _ => joined.push((from, until)),
        }
    }
    joined
}

/// What of these spans, joined, lies in one.
pub(super) fn within(spans: &[(i64, i64)], (from, until): (i64, i64)) -> Spans {
    let cut = spans.iter().map(|it| (it.0.max(from), it.1.min(until)));
    cut.filter(|it| it.0 < it.1).collect()
}

/// A time without what others have of it.
pub(super) fn without((from, until): (i64, i64), others: Spans) -> Spans {
    let (mut left, mut at) = (Spans::new(), from);
    for other in within(&joined(others), (from, until)) {
        left.push((at, other.0));
        at = at.max(other.1);
    }
    left.push((at, until));
    left.retain(|it| it.0 < it.1);
    left
}

/// How long spans are, that do not overlap.
pub(super) fn length(spans: &[(i64, i64)]) -> i64 {
    spans.iter().map(|it| it.1 - it.0).sum()
}
