//! Curves as inline SVG, drawn on the server: a line for the mean, a band from least to greatest,
//! and a hatched box wherever nothing was observed. A gap is never a line at zero.
//!
//! A curve has one column per bucket of minutes and at most [`MAX_COLUMNS`] columns, so that a day
//! costs no more bytes than an hour; the band keeps a one-minute spike visible in a 3-minute bucket.

use std::fmt::Write as _;

/// Most columns of one curve: about one per two pixels of a desktop page.
pub const MAX_COLUMNS: usize = 480;

/// Height of a curve in its own units; the page stretches it.
pub const HEIGHT: f64 = 100.0;

/// What is known of one column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Column {
    /// How many points went in.
    pub count: u32,
    /// Their sum.
    pub sum: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

/// A box where nothing was observed, in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Its first column.
    pub from: usize,
    /// How many columns wide it is.
    pub width: usize,
}

/// One curve, ready for a template.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// Columns in all: the width of the view box.
    pub columns: usize,
    /// The path of the band from least to greatest.
    pub band: String,
    /// The path of the mean.
    pub line: String,
    /// Where nothing was observed.
    pub gaps: Vec<Gap>,
}

impl Column {
    /// A column of one value.
    pub const fn of(value: f64) -> Self {
        Self {
            count: 1,
            sum: value,
            least: value,
            greatest: value,
        }
    }

    /// The mean.
    pub fn mean(self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }

    /// Both as one.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            greatest: self.greatest.max(other.greatest),
        }
    }
}

/// Joins the columns of one minute each into buckets of `minutes`.
pub fn bucketed(minutes: &[Option<Column>], per_bucket: usize) -> Vec<Option<Column>> {
    minutes
        .chunks(per_bucket.max(1))
        .map(|chunk| chunk.iter().flatten().copied().reduce(Column::joined))
        .collect()
}

/// Minutes per bucket so that `minutes` fit in [`MAX_COLUMNS`].
pub const fn minutes_per_bucket(minutes: usize) -> usize {
    let buckets = minutes.div_ceil(MAX_COLUMNS);
    if buckets == 0 { 1 } else { buckets }
}

/// Draws columns between `floor` and `ceiling`; a value outside is drawn at the edge.
pub fn curve(columns: &[Option<Column>], floor: f64, ceiling: f64) -> Curve {
    let mut curve = Curve {
        columns: columns.len(),
        ..Curve::default()
    };
    let height = |value: f64| {
        let range = (ceiling - floor).max(f64::MIN_POSITIVE);
        HEIGHT * (1.0 - ((value - floor) / range).clamp(0.0, 1.0))
    };
    let mut from = 0;
    while from < columns.len() {
        let known = columns[from].is_some();
        let end = columns[from..]
            .iter()
            .position(|column| column.is_some() != known)
            .map_or(columns.len(), |length| from + length);
        if known {
            let run: Vec<Column> = columns[from..end].iter().flatten().copied().collect();
            draw_run(&mut curve, from, &run, height);
        } else {
            curve.gaps.push(Gap {
                from,
                width: end - from,
            });
        }
        from = end;
    }
    curve
}

/// Draws one run of known columns: each a step as wide as its bucket, so that a lone minute between
/// two gaps is seen too.
fn draw_run(curve: &mut Curve, from: usize, run: &[Column], height: impl Fn(f64) -> f64) {
    let mut upper = String::new();
    let mut lower = Vec::with_capacity(run.len());
    for (offset, column) in run.iter().enumerate() {
        let (x, mean) = (from + offset, height(column.mean()));
        let (top, bottom) = (height(column.greatest), height(column.least));
        let word = if offset == 0 { 'M' } else { 'L' };
        let _ = write!(upper, "{word}{x} {top:.1}H{}", x + 1);
        let _ = write!(curve.line, "{word}{x} {mean:.1}H{}", x + 1);
        lower.push((x, bottom));
    }
    curve.band.push_str(&upper);
    for (x, bottom) in lower.into_iter().rev() {
        let _ = write!(curve.band, "V{bottom:.1}H{x}");
    }
    curve.band.push('Z');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(values: &[Option<f64>]) -> Vec<Option<Column>> {
        values.iter().map(|value| value.map(Column::of)).collect()
    }

    #[test]
    fn a_gap_is_a_box_and_breaks_the_line() {
        let drawn = curve(&columns(&[Some(0.5), None, None, Some(1.0)]), 0.0, 1.0);
        assert_eq!(drawn.gaps, [Gap { from: 1, width: 2 }]);
        assert_eq!(drawn.line, "M0 50.0H1M3 0.0H4");
    }

    #[test]
    fn nothing_observed_draws_no_line_at_all() {
        let drawn = curve(&columns(&[None, None]), 0.0, 1.0);
        assert_eq!((drawn.line.as_str(), drawn.band.as_str()), ("", ""));
        assert_eq!(drawn.gaps, [Gap { from: 0, width: 2 }]);
    }

    #[test]
    fn a_true_zero_is_a_line_at_the_floor() {
        let drawn = curve(&columns(&[Some(0.0)]), 0.0, 1.0);
        assert_eq!(drawn.line, "M0 100.0H1");
        assert_eq!(drawn.gaps, []);
    }

    #[test]
    fn a_bucket_keeps_the_spike_of_one_minute_and_counts_every_point() {
        let joined = bucketed(&columns(&[Some(0.1), Some(1.0), None, None]), 2);
        assert_eq!(joined.len(), 2);
        let first = joined[0].expect("two minutes were observed");
        assert_eq!(
            (first.least, first.greatest, first.mean()),
            (0.1, 1.0, 0.55)
        );
        assert_eq!(joined[1], None);
    }

    #[test]
    fn a_day_fits_the_columns() {
        for (minutes, per_bucket) in [(0, 1), (60, 1), (480, 1), (481, 2), (1440, 3)] {
            assert_eq!(minutes_per_bucket(minutes), per_bucket);
        }
    }

    #[test]
    fn a_value_outside_the_scale_is_drawn_at_its_edge() {
        let drawn = curve(&columns(&[Some(7.0), Some(-3.0)]), 0.0, 1.0);
        assert_eq!(drawn.line, "M0 0.0H1L1 100.0H2");
    }
}
