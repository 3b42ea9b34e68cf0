//! Reads a request's place in its sender's spool from its headers.

use gpufleet_telemetry::identity::{AgentId, Epoch};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::{self, Lane, Stream};
use http::HeaderMap;
use uuid::Uuid;

use crate::fleet::FOREIGN_AGENT;
use crate::store::model::CursorKey;

/// A request's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) key: CursorKey,
    pub(super) seq: u64,
    pub(super) session: u64,
    pub(super) sent_at: Timestamp,
    pub(super) lane: Lane,
    pub(super) dropped: Option<(u64, u64)>,
}

/// A header that does not say what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadHeader {
    #[error("header {0} is missing; a request that names an epoch or agent needs it")]
    Missing(&'static str),
    #[error("header {name} is {value:?}, it must be {expected}")]
    Value {
        name: &'static str,
        value: String,
        expected: &'static str,
    },
}

/// The place that the headers name; none when they name none, which makes the request foreign.
pub(super) fn read(headers: &HeaderMap, stream: Stream) -> Result<Option<Place>, BadHeader> {
    if !headers.contains_key(wire::EPOCH) && !headers.contains_key(wire::AGENT) {
        return Ok(None);
    }
    let agent = needed(headers, wire::AGENT, "a UUID", uuid)?;
    if AgentId(agent) == FOREIGN_AGENT {
        return Err(bad(headers, wire::AGENT, "a UUID that is not nil"));
    }
    let told = optional(headers, wire::STREAM, "metrics or logs", Stream::parse)?;
    if told.is_some_and(|told| told != stream) {
        let expected = match stream {
            Stream::Metrics => "metrics, because the request carries metrics",
            Stream::Logs => "logs, because the request carries logs",
        };
        return Err(bad(headers, wire::STREAM, expected));
    }
    Ok(Some(Place {
        key: CursorKey {
            agent: AgentId(agent),
            epoch: Epoch(needed(headers, wire::EPOCH, "a UUID", uuid)?),
            stream,
        },
        seq: needed(headers, wire::SEQ, "a number from 1", |text| {
            number(text).filter(|seq| (1..=MAX_SEQ).contains(seq))
        })?,
        session: needed(headers, wire::SESSION, "a number", number)?,
        sent_at: needed(headers, wire::SENT_AT, "Unix nanoseconds", |text| {
            text.parse().ok().map(Timestamp)
        })?,
        lane: optional(headers, wire::LANE, "live or backfill", Lane::parse)?.unwrap_or_default(),
        dropped: optional(headers, wire::DROPPED, "first..last, both included", range)?,
    }))
}

/// Highest seq: what an SQL integer can hold.
const MAX_SEQ: u64 = i64::MAX as u64;

fn uuid(text: &str) -> Option<Uuid> {
    Uuid::parse_str(text).ok()
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once("..")?;
    let (first, last) = (number(first)?, number(last)?);
    (1 <= first && first <= last && last < MAX_SEQ).then_some((first, last))
}

fn needed<T>(
    headers: &HeaderMap,
    name: &'static str,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, BadHeader> {
    optional(headers, name, expected, parse)?.ok_or(BadHeader::Missing(name))
}

fn optional<T>(
    headers: &HeaderMap,
    name: &'static str,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, BadHeader> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let value = value.to_str().ok().and_then(parse);
    match value {
        Some(value) => Ok(Some(value)),
        None => Err(bad(headers, name, expected)),
    }
}

fn bad(headers: &HeaderMap, name: &'static str, expected: &'static str) -> BadHeader {
    /// Longest part of a bad value that an answer repeats.
    const SHOWN: usize = 64;
    let value = headers
        .get(name)
        .map(|it| it.as_bytes())
        .unwrap_or_default();
    BadHeader::Value {
        name,
        value: String::from_utf8_lossy(&value[..value.len().min(SHOWN)]).into_owned(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const AGENT: &str = "00000000-0000-4000-8000-000000000001";
    const EPOCH: &str = "00000000-0000-4000-8000-000000000002";

    /// The headers of a good request, with some of them replaced or, by an empty value, removed.
    fn headers(changes: &[(&'static str, &'static str)]) -> HeaderMap {
        let good = [
            (wire::AGENT, AGENT),
            (wire::EPOCH, EPOCH),
            (wire::STREAM, "metrics"),
            (wire::SEQ, "7"),
            (wire::SESSION, "18446744073709551615"),
            (wire::SENT_AT, "1700000000000000000"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in good.iter().chain(changes) {
            let name = HeaderName::from_static(name);
            if value.is_empty() {
                headers.remove(name);
            } else {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        headers
    }

    #[test]
    fn a_good_request_has_a_place_and_a_foreign_one_has_none() {
        let place = read(
            &headers(&[(wire::DROPPED, "3..6"), (wire::LANE, "backfill")]),
            Stream::Metrics,
        )
        .expect("good")
        .expect("named");
        assert_eq!((place.seq, place.session), (7, u64::MAX));
        assert_eq!((place.dropped, place.lane), (Some((3, 6)), Lane::Backfill));
        assert_eq!(read(&HeaderMap::new(), Stream::Logs), Ok(None));
    }

    #[test]
    fn a_bad_header_is_named() {
        for (name, value) in [
            (wire::AGENT, ""),
            (wire::AGENT, "me"),
            (wire::AGENT, "00000000-0000-0000-0000-000000000000"),
            (wire::EPOCH, ""),
            (wire::EPOCH, "0"),
            (wire::SEQ, ""),
            (wire::SEQ, "0"),
            (wire::SEQ, "-1"),
            (wire::SEQ, "9223372036854775808"),
            (wire::SESSION, ""),
            (wire::SENT_AT, "now"),
            (wire::LANE, "fast"),
            (wire::STREAM, "logs"),
            (wire::STREAM, "traces"),
            (wire::DROPPED, "5"),
            (wire::DROPPED, "6..5"),
            (wire::DROPPED, "0..5"),
        ] {
            let error = read(&headers(&[(name, value)]), Stream::Metrics).expect_err(value);
            assert!(error.to_string().contains(name), "{name}={value}: {error}");
        }
    }
}
