//! How much one OTLP request may hold, and what is said about the part that was left out.
//!
//! A bad point never spoils its request: it is counted under its reason, the first of each reason
//! with its name, and the rest goes on.

use std::fmt;

use crate::time::Timestamp;

/// Most points of one request. An agent with 16 GPUs of 7 instances sends 10,000 a tick, a
/// Collector's batch holds 8,192; a decoded point takes 80 bytes, so this bounds them to 16 MiB.
pub const MAX_POINTS: usize = 200_000;
/// Most resources of one request: an agent has some 150, a Collector may gather for many nodes.
pub const MAX_RESOURCES: usize = 4_096;
/// Most attributes of one resource or point. Ours have 25; more are left out.
pub const MAX_ATTRIBUTES: usize = 64;
/// Most bytes of attributes that the resources of one request may hold together. Each GPU of a
/// foreign sender gets a copy of the sender's attributes; an agent's 150 resources have 0.15 MiB.
pub const MAX_ATTRIBUTE_BYTES: usize = 16 << 20;
/// Longest attribute value, metric name or id in bytes: a Kubernetes label may have 253.
pub const MAX_LABEL_BYTES: usize = 256;
/// Most distinct parts of one kind of one resource in a request: a card has 18 links and rarely
/// 100 processes. Someone who sends 10,000 label values gets the first of them.
pub const MAX_PARTS: usize = 1_024;
/// Most events of one request. Agents send what happened in a tick.
pub const MAX_EVENTS: usize = 10_000;
/// Longest message of an event in bytes; the rest of it is cut off.
pub const MAX_MESSAGE_BYTES: usize = 4_096;
/// Most examples that a refusal names, one per reason, so that an answer stays short.
const MAX_EXAMPLES: usize = 8;

/// What one request may hold. `Limits::default()` has the constants of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most points.
    pub points: usize,
    /// Most resources.
    pub resources: usize,
    /// Most attributes of one resource or point.
    pub attributes: usize,
    /// Most bytes of attributes that all resources hold together.
    pub attribute_bytes: usize,
    /// Longest attribute value, metric name or id in bytes.
    pub label_bytes: usize,
    /// Most distinct parts of one kind of one resource.
    pub parts: usize,
    /// Most events.
    pub events: usize,
    /// Longest message of an event in bytes.
    pub message_bytes: usize,
    /// The earliest time a point or event may have. By default the first nanosecond of 1970,
    /// because 0 means that there is no time; a server with a clock narrows it.
    pub earliest: Timestamp,
    /// The latest time a point or event may have. By default the end of the range (2262).
    pub latest: Timestamp,
}

/// Why a point, an attribute or an event was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reject {
    /// The value is NaN.
    NotANumber,
    /// The value is infinite.
    Infinite,
    /// A counter is below zero.
    NegativeCounter,
    /// A sum where a gauge belongs or the other way round, or no value at all.
    WrongType,
    /// The unit is not the metric's and cannot be converted to it.
    WrongUnit,
    /// A counter sent as deltas: only cumulative sums survive a lost or doubled request.
    DeltaCounter,
    /// A histogram, exponential histogram or summary: no metric of the catalog is one.
    Histogram,
    /// The catalog does not know the metric: not kept.
    UnknownMetric,
    /// The name is known, but its attributes do not say which of its series it is.
    UnknownSeries,
    /// A `hw.*` metric of something that is no GPU.
    OtherHardware,
    /// A metric about a part (a link, a disk) without the attribute that names the part.
    NoPart,
    /// A metric of one kind of resource on another kind.
    WrongResource,
    /// Nothing says what the point is about: no `hw.id`, UUID, `service.instance.id` or `host.name`.
    UnidentifiedResource,
    /// More points than a request may have.
    TooManyPoints,
    /// More resources, or more bytes of their attributes, than a request may have.
    TooManyResources,
    /// More distinct parts than a resource may have.
    TooManyParts,
    /// More attributes than a resource, point or event may have: the first were kept.
    TooManyAttributes,
    /// An attribute or message that is too long: it was left out or cut, the rest was kept.
    TooLong,
    /// An id of a resource or part that is too long: a cut id would be another's.
    LongId,
    /// An id of a resource, part, node or cluster with a control character in it: nobody can type
    /// it, and a database refuses some of them.
    UnprintableId,
    /// No time, a time before its start, outside what the server takes, or a tick over 60 s.
    TimeOutOfRange,
    /// Second bits with bits beyond the 60th.
    BadBits,
    /// A maximum without its mean.
    MaxAlone,
    /// More events than a request may have.
    TooManyEvents,
    /// A log record that is not one of the catalog's events: not kept.
    UnknownEvent,
    /// A record of steps that is not about a rank, or whose bytes are not blocks of steps.
    BadSteps,
}

/// What was left out of one request, counted by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rejected {
    counts: [u64; Reject::ALL.len()],
    examples: Vec<(Reject, String)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            points: MAX_POINTS,
            resources: MAX_RESOURCES,
            attributes: MAX_ATTRIBUTES,
            attribute_bytes: MAX_ATTRIBUTE_BYTES,
            label_bytes: MAX_LABEL_BYTES,
            parts: MAX_PARTS,
            events: MAX_EVENTS,
            message_bytes: MAX_MESSAGE_BYTES,
            earliest: Timestamp(1),
            latest: Timestamp(i64::MAX),
        }
    }
}

impl Reject {
    /// Every reason, in the order of the declaration.
    pub const ALL: [Self; 26] = [
        Self::NotANumber,
        Self::Infinite,
        Self::NegativeCounter,
        Self::WrongType,
        Self::WrongUnit,
        Self::DeltaCounter,
        Self::Histogram,
        Self::UnknownMetric,
        Self::UnknownSeries,
        Self::OtherHardware,
        Self::NoPart,
        Self::WrongResource,
        Self::UnidentifiedResource,
        Self::TooManyPoints,
        Self::TooManyResources,
        Self::TooManyParts,
        Self::TooManyAttributes,
        Self::TooLong,
        Self::LongId,
        Self::UnprintableId,
        Self::TimeOutOfRange,
        Self::BadBits,
        Self::MaxAlone,
        Self::TooManyEvents,
        Self::UnknownEvent,
        Self::BadSteps,
    ];

    /// The name in metrics and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotANumber => "not_a_number",
            Self::Infinite => "infinite",
            Self::NegativeCounter => "negative_counter",
            Self::WrongType => "wrong_type",
            Self::WrongUnit => "wrong_unit",
            Self::DeltaCounter => "delta_counter",
            Self::Histogram => "histogram",
            Self::UnknownMetric => "unknown_metric",
            Self::UnknownSeries => "unknown_series",
            Self::OtherHardware => "other_hardware",
            Self::NoPart => "no_part",
            Self::WrongResource => "wrong_resource",
            Self::UnidentifiedResource => "unidentified_resource",
            Self::TooManyPoints => "too_many_points",
            Self::TooManyResources => "too_many_resources",
            Self::TooManyParts => "too_many_parts",
            Self::TooManyAttributes => "too_many_attributes",
            Self::TooLong => "too_long",
            Self::LongId => "long_id",
            Self::UnprintableId => "unprintable_id",
            Self::TimeOutOfRange => "time_out_of_range",
            Self::BadBits => "bad_bits",
            Self::MaxAlone => "max_alone",
            Self::TooManyEvents => "too_many_events",
            Self::UnknownEvent => "unknown_event",
            Self::BadSteps => "bad_steps",
        }
    }

    /// Whether the sender did nothing wrong: gpufleet has no place for what was sent.
    pub const fn is_not_kept(self) -> bool {
        matches!(
            self,
            Self::UnknownMetric | Self::OtherHardware | Self::UnknownEvent | Self::Histogram
        )
    }

    /// Whether only an attribute or the end of a text was lost, and its point or event was kept.
    pub const fn is_partial(self) -> bool {
        matches!(self, Self::TooManyAttributes | Self::TooLong)
    }
}

impl Rejected {
    /// Counts `count` things of one reason; `what` names the first of them.
    pub(super) fn add(&mut self, reason: Reject, count: u64, what: impl FnOnce() -> String) {
        if count == 0 {
            return;
        }
        if self.count(reason) == 0 && self.examples.len() < MAX_EXAMPLES {
            let mut example = what();
            if cut(&mut example, MAX_LABEL_BYTES) {
                example.push('…');
            }
            self.examples.push((reason, example));
        }
        self.counts[reason as usize] += count;
    }

    /// How many were left out for this reason.
    pub fn count(&self, reason: Reject) -> u64 {
        self.counts[reason as usize]
    }

    /// Every reason that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Reject, u64)> + '_ {
        Reject::ALL
            .into_iter()
            .map(|reason| (reason, self.count(reason)))
            .filter(|(_, count)| *count > 0)
    }

    /// How many were left out for any reason.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds what was left out of another request.
    pub fn merge(&mut self, other: &Self) {
        for (reason, count) in other.iter() {
            let example = other.examples.iter().find(|(known, _)| *known == reason);
            self.add(reason, count, || {
                example.map(|(_, text)| text.clone()).unwrap_or_default()
            });
        }
    }
}

/// One line for OTLP's partial success: every reason with its count and the first example.
impl fmt::Display for Rejected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (reason, count)) in self.iter().enumerate() {
            let separator = if place > 0 { "; " } else { "" };
            write!(formatter, "{separator}{count} {}", reason.name())?;
            if let Some((_, example)) = self.examples.iter().find(|(known, _)| *known == reason) {
                write!(formatter, " (first: {example})")?;
            }
        }
        Ok(())
    }
}

/// Whether a text has control characters of ASCII in it. PostgreSQL refuses the first of them, NUL.
#[cfg(feature = "otlp")]
pub(super) fn has_control(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_control())
}

/// The text with each control character but line ends and tabs replaced by U+FFFD.
#[cfg(feature = "otlp")]
pub(super) fn printable(text: String) -> String {
    if !has_control(&text) {
        return text;
    }
    text.replace(
        |it: char| it.is_ascii_control() && it != '\n' && it != '\t',
        "\u{fffd}",
    )
}

/// Cuts a text at the last character that fits; whether there was more.
pub(super) fn cut(text: &mut String, bytes: usize) -> bool {
    let is_longer = text.len() > bytes;
    if is_longer {
        text.truncate(text.floor_char_boundary(bytes));
    }
    is_longer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_listed_in_their_own_order_with_their_own_names() {
        for (place, reason) in Reject::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.name());
            let same = Reject::ALL.iter().filter(|it| it.name() == reason.name());
            assert_eq!(same.count(), 1, "{}", reason.name());
        }
    }

    #[test]
    fn an_answer_names_the_first_of_each_reason_and_stays_short() {
        let mut rejected = Rejected::default();
        rejected.add(Reject::NotANumber, 1, || "hw.power".to_owned());
        rejected.add(Reject::NotANumber, 2, || "not named".to_owned());
        rejected.add(Reject::TooLong, 1, || "é".repeat(1_000));
        let mut sum = Rejected::default();
        sum.merge(&rejected);
        sum.merge(&rejected);
        assert_eq!((sum.count(Reject::NotANumber), sum.total()), (6, 8));
        let text = sum.to_string();
        assert!(
            text.starts_with("6 not_a_number (first: hw.power); 2 too_long (first: éé"),
            "{text}"
        );
        assert!(text.len() < 400, "{text}");
    }
}
