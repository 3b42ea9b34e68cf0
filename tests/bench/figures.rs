//! Figures with their spread, printed beside what they must reach.

/// What was measured several times.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::MIN, f64::max)
    }

    fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::MAX, f64::min)
    }

    /// "mean (min-max, n)".
    pub(crate) fn told(&self) -> String {
        format!(
            "{:.3} ({:.3}-{:.3}, n={})",
            self.mean(),
            self.min(),
            self.max(),
            self.0.len()
        )
    }
}

/// Prints one line; returns whether the limit is kept.
#[expect(
    clippy::print_stdout,
    reason = "printing figures is what the program is for"
)]
pub(crate) fn line(name: &str, figure: &str, value: f64, limit: f64) -> bool {
    let kept = value <= limit;
    let verdict = if kept { "reached" } else { "NOT REACHED" };
    println!("{name:<52} {figure:<40} limit {limit:<8} {verdict}");
    kept
}

/// Prints one line that has no limit.
#[expect(
    clippy::print_stdout,
    reason = "printing figures is what the program is for"
)]
pub(crate) fn told(text: &str) {
    println!("{text}");
}
