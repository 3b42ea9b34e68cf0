//! Figures with their spread, printed beside what they must reach.

/// What was measured several times.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::MIN, f64::max)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest value that `share` (0 to 1) of all do not exceed; NaN when there are none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let place = (sorted.len() as f64 * share).ceil() as usize;
        sorted
            .get(place.saturating_sub(1))
            .copied()
            .unwrap_or(f64::NAN)
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
pub(crate) fn line(name: &str, figure: &str, value: f64, limit: f64) -> bool {
    verdict(name, figure, "limit", limit, value <= limit)
}

/// The same of a figure that must not be smaller.
pub(crate) fn at_least(name: &str, figure: &str, value: f64, least: f64) -> bool {
    verdict(name, figure, "least", least, value >= least)
}

fn verdict(name: &str, figure: &str, word: &str, bound: f64, kept: bool) -> bool {
    let verdict = if kept { "reached" } else { "NOT REACHED" };
    told(&format!(
        "{name:<56} {figure:<40} {word} {bound:<8} {verdict}"
    ));
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
