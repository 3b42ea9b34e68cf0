//! Reads figures out of a server's /metrics.

/// Every value of a metric.
pub(crate) fn values<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    series(text, name).map(|(_, value)| value)
}

/// The sum of a metric over its series.
pub(crate) fn sum(text: &str, name: &str) -> f64 {
    values(text, name).sum()
}

/// The sum over the series with this label, `name="value"`.
pub(crate) fn labelled(text: &str, name: &str, label: &str) -> f64 {
    series(text, name)
        .filter(|(labels, _)| labels.contains(label))
        .map(|(_, value)| value)
        .sum()
}

/// Labels and value of each series of a metric.
fn series<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> + 'a {
    text.lines()
        .filter_map(move |line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with(['{', ' ']))
        .filter_map(|rest| {
            let (labels, value) = rest.rsplit_once(' ')?;
            Some((labels, value.parse().ok()?))
        })
}
