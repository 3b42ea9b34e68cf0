//! Moments and spans as addresses and bodies have them: RFC 3339, half open.

use gpufleet_telemetry::time::Timestamp;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::problem::Problem;

/// The moment that a parameter says; none without one.
///
/// # Errors
/// When it says none between 1970 and 2262.
pub(super) fn moment(name: &str, raw: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    raw.map(|raw| {
        // A plus sign that was not percent-encoded arrives as a space.
        let parsed = OffsetDateTime::parse(&raw.replace(' ', "+"), &Rfc3339).ok();
        let nanos = parsed.and_then(|it| i64::try_from(it.unix_timestamp_nanos()).ok());
        nanos.filter(|it| *it >= 0).map(Timestamp).ok_or_else(|| {
            Problem::bad(format_args!(
                "{name}=“{raw}”: it is a moment in RFC 3339, like 2026-11-21T07:00:00Z, between 1970 and 2262"
            ))
        })
    })
    .transpose()
}

/// From which moment, and before which, of a list that may be open at both ends.
///
/// # Errors
/// When one of them is no moment, or nothing can lie between them: an empty list would say that nothing was.
pub(super) fn span(
    from: Option<&str>,
    to: Option<&str>,
) -> Result<(Option<Timestamp>, Option<Timestamp>), Problem> {
    let (first, end) = (moment("from", from)?, moment("to", to)?);
    if let (Some(one), Some(other)) = (first, end)
        && one >= other
    {
        let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
        return Err(Problem::bad(format_args!(
            "from={from} is not before to={to}"
        )));
    }
    Ok((first, end))
}
