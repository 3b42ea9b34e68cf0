//! The way of a request, the same for gRPC and HTTP: place, decode, offer, answer.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpufleet_program::traces;
use gpufleet_telemetry::command::{Command, MAX_COMMAND_BYTES};
use gpufleet_telemetry::otlp::{self, Encoding, Limits, ParseError, Reject, Rejected};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::wire::{self, Refusal, Stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use tracing::Instrument as _;

use super::foreign::Foreign;
use super::place::{self, Place};
use super::refuse::{Kind, Refused};
use super::room::Room;
use crate::App;
use crate::auth::Grant;
use crate::fleet::{Answer, Body, Drops, Offer, Outcome};

/// When an agent that met a full server is to come again: after the next commit, most likely.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How far a point's time may lie ahead of the server's clock before it is known by how much the
/// sender's clock was off when it was made: as far as behind. What is ahead after all is left out when
/// it is folded.
const MAX_AHEAD: i64 = MAX_AGE;

/// How old a point may be: nothing is kept longer by minute.
const MAX_AGE: i64 = 8 * 86_400 * NANOS_PER_SECOND;

/// What a request carries.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Metrics(ExportMetricsServiceRequest),
    Logs(ExportLogsServiceRequest),
}

/// A request that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Accepted {
    /// How many points or events were left out.
    pub(super) rejected: i64,
    /// Why, by reason; empty when nothing was.
    pub(super) message: String,
    /// What an agent reads beside it.
    pub(super) headers: HeaderMap,
}

/// Takes requests. Cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    pub(super) app: App,
    foreign: Arc<OnceLock<Foreign>>,
    pub(super) room: Arc<Room>,
}

/// Points, attributes and events that were left out while decoding, since the server started. What
/// is left out later, while folding, is a [`crate::fleet::Drop`].
#[derive(Debug, Default)]
pub struct Rejections {
    counts: [AtomicU64; Reject::ALL.len()],
    /// When the last one was, Unix milliseconds; 0 before the first.
    last_ms: [AtomicI64; Reject::ALL.len()],
}

impl Rejections {
    /// Every reason with its count.
    pub fn counts(&self) -> [(Reject, u64); Reject::ALL.len()] {
        Reject::ALL.map(|reason| (reason, self.counts[reason as usize].load(Ordering::Relaxed)))
    }

    /// When something was last left out for this reason; none when nothing was.
    pub fn last(&self, reason: Reject) -> Option<Timestamp> {
        let last = self.last_ms[reason as usize].load(Ordering::Relaxed);
        (last > 0).then(|| Timestamp::from_millis(last))
    }

    /// Counts what was left out of a request.
    pub(crate) fn add(&self, rejected: &Rejected, now: Timestamp) {
        for (reason, count) in rejected.iter() {
            self.counts[reason as usize].fetch_add(count, Ordering::Relaxed);
            self.last_ms[reason as usize].store(now.millis(), Ordering::Relaxed);
        }
    }
}

impl Ingest {
    /// Takes requests for `app`.
    pub fn new(app: App) -> Self {
        let room = Room::new(app.config.ingest.max_concurrent_requests);
        Self {
            app,
            foreign: Arc::default(),
            room: Arc::new(room),
        }
    }

    /// Takes those of others than agents, too, through this spool. Called once, when the server leads.
    pub fn begin(&self, foreign: Foreign) {
        self.foreign.get_or_init(|| foreign);
    }

    pub(super) async fn accept(
        &self,
        headers: &HeaderMap,
        grant: Grant,
        request: Request,
    ) -> Result<Accepted, Refused> {
        let span = tracing::debug_span!("accept", stream = request.stream().name());
        let parent = headers.get(traces::HEADER);
        traces::follow(&span, parent.and_then(|it| it.to_str().ok()));
        let accepting = async {
            let place = place::read(headers, request.stream()).map_err(misplaced)?;
            match place {
                Some(place) => self.offer(&place, grant, request),
                None => {
                    let starting = || Refused::new(Kind::Unavailable, "this server is starting");
                    let foreign = self.foreign.get().ok_or_else(starting)?;
                    let (rejected, drops) = foreign.take(request, grant).await?;
                    Ok(self.accepted(&rejected, &drops))
                }
            }
        };
        accepting.instrument(span).await
    }

    fn offer(&self, place: &Place, grant: Grant, request: Request) -> Result<Accepted, Refused> {
        let received = self.app.clock.now();
        let limits = limits(received);
        let default_cluster = self.app.config.ingest.default_cluster.as_str().into();
        let offer = |body| {
            self.app.fleet.offer(&Offer {
                key: place.key,
                seq: place.seq,
                session: place.session,
                lane: place.lane,
                dropped: place.dropped,
                sent_at: place.sent_at,
                received,
                bound_cluster: grant.cluster,
                default_cluster,
                body,
            })
        };
        let (answer, rejected) = match request {
            Request::Metrics(request) => {
                let decoded = otlp::decode_metrics(request, &limits);
                (offer(Body::Metrics(&decoded)), decoded.rejected)
            }
            Request::Logs(request) => {
                let decoded = otlp::decode_events(request, &limits);
                (offer(Body::Events(&decoded)), decoded.rejected)
            }
        };
        let drops = match answer.outcome {
            Outcome::Folded(drops) => drops,
            Outcome::Already => {
                let mut accepted = Accepted::default();
                set_reply(&mut accepted.headers, &answer);
                return Ok(accepted);
            }
            _ => return Err(refusal(&answer)),
        };
        let mut accepted = self.accepted(&rejected, &drops);
        set_reply(&mut accepted.headers, &answer);
        Ok(accepted)
    }

    /// Counts what was left out and puts it into words.
    fn accepted(&self, rejected: &Rejected, drops: &Drops) -> Accepted {
        self.app.rejections.add(rejected, self.app.clock.now());
        let lost: u64 = rejected
            .iter()
            .filter(|(reason, _)| !reason.is_partial())
            .map(|(_, count)| count)
            .sum();
        let mut message = rejected.to_string();
        if drops.total() > 0 {
            let separator = if message.is_empty() { "" } else { "; " };
            message.push_str(&format!("{separator}{drops}"));
        }
        Accepted {
            rejected: i64::try_from(lost + drops.total()).unwrap_or(i64::MAX),
            message,
            headers: HeaderMap::new(),
        }
    }
}

impl Request {
    /// Parses a request, unless it would take too much memory. What calls this folds the request or
    /// writes it away before it waits for anything: so there are no more parsed requests than threads.
    pub(super) fn parse(stream: Stream, encoding: Encoding, bytes: &[u8]) -> Result<Self, Refused> {
        let parsed = match stream {
            Stream::Metrics => otlp::parse(encoding, bytes).map(Self::Metrics),
            Stream::Logs => otlp::parse(encoding, bytes).map(Self::Logs),
        };
        parsed.map_err(|error: ParseError| {
            let kind = if error.is_too_large() {
                Kind::TooLarge
            } else {
                Kind::Invalid
            };
            Refused::new(kind, error.to_string())
        })
    }

    pub(super) const fn stream(&self) -> Stream {
        match self {
            Self::Metrics(_) => Stream::Metrics,
            Self::Logs(_) => Stream::Logs,
        }
    }
}

/// What a request that arrived at `received` may hold.
pub(super) fn limits(received: Timestamp) -> Limits {
    Limits {
        earliest: received.shifted(-MAX_AGE),
        latest: received.shifted(MAX_AHEAD),
        ..Limits::default()
    }
}

/// Headers that cannot be read say nothing about the data under them: a proxy may have lost one. So
/// the agent is not told to give the request up.
fn misplaced(error: impl std::fmt::Display) -> Refused {
    let mut refused = Refused::new(Kind::Invalid, error.to_string());
    refused.refusal = None;
    refused
}

fn set_reply(headers: &mut HeaderMap, answer: &Answer) {
    for (name, seq) in [
        (wire::DURABLE_SEQ, answer.durable_seq),
        (wire::FOLDED_SEQ, answer.folded_seq),
    ] {
        headers.insert(HeaderName::from_static(name), seq.into());
    }
    if let Some(command) = answer.command.as_ref().and_then(command_header) {
        headers.insert(HeaderName::from_static(wire::COMMAND), command);
    }
}

/// A command as a header. JSON of plain text: what is not ASCII is escaped.
fn command_header(command: &Command) -> Option<HeaderValue> {
    let json = serde_json::to_string(command).expect("a command is plain data");
    let ascii: String = json
        .chars()
        .map(|it| match it {
            ' '..='~' => it.to_string(),
            other => {
                let mut units = [0; 2];
                let escape = |unit: &u16| format!("\\u{unit:04x}");
                other.encode_utf16(&mut units).iter().map(escape).collect()
            }
        })
        .collect();
    if ascii.len() > MAX_COMMAND_BYTES {
        tracing::error!(id = %command.id, bytes = ascii.len(), "a command is too long for a header");
        return None;
    }
    HeaderValue::from_str(&ascii).ok()
}

/// A refusal of the fleet in words and codes.
fn refusal(answer: &Answer) -> Refused {
    let mut refused = match answer.outcome {
        Outcome::WrongSeq { wanted } => {
            let message = format!("the next seq of this stream is {wanted}");
            let mut refused = Refused::new(Kind::OutOfPlace, message);
            refused.refusal = Some(Refusal::WrongSeq);
            refused.wanted_seq = Some(wanted);
            refused
        }
        Outcome::Conflict => {
            let message = "a newer process sends under this agent id: a cloned disk or a second agent; take a new id";
            let mut refused = Refused::new(Kind::OutOfPlace, message);
            refused.refusal = Some(Refusal::AgentIdConflict);
            refused
        }
        Outcome::Quarantined { off_nanos } => {
            let message = format!(
                "the sender's clock is {} s off and at most 3600 s are corrected: keep the data, fix the clock (NTP)",
                off_nanos / NANOS_PER_SECOND
            );
            let mut refused = Refused::new(Kind::OutOfPlace, message);
            refused.refusal = Some(Refusal::ClockQuarantine);
            refused
        }
        Outcome::OtherCluster => Refused::new(
            Kind::Forbidden,
            "this token is bound to another cluster than the one this agent id was first heard in: give the agent a token of its cluster, or a new id",
        ),
        Outcome::TooManyAgents => Refused::new(
            Kind::Full,
            "this server has as many agents as it takes (120000): give the fleet a second one",
        ),
        Outcome::TooManyStreams => Refused::new(
            Kind::Full,
            "this agent has begun more epochs (4096 streams) than are durable yet: try again after the next commit",
        ),
        Outcome::Late => Refused::new(
            Kind::Full,
            "another process of this agent has sent something later than this: try again",
        ),
        Outcome::Full | Outcome::Folded(_) | Outcome::Already => Refused::new(
            Kind::Full,
            "the data that waits to be committed fills the server's memory for it: try again",
        ),
    };
    if refused.kind == Kind::Full {
        refused.retry_after = Some(RETRY_AFTER);
    }
    refused.durable_seq = Some(answer.durable_seq);
    refused
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use uuid::Uuid;

    use super::*;

    fn command(gpu: String) -> Command {
        Command {
            id: Uuid::from_u128(7),
            expires: Timestamp(5),
            action: "release_nvml".to_owned(),
            arguments: BTreeMap::from([("gpu".to_owned(), gpu)]),
        }
    }

    #[test]
    fn a_command_rides_in_a_header_of_plain_text_and_is_read_back_as_it_was() {
        let given = command("GPU-é 🦀 \"7\"\n".to_owned());
        let header = command_header(&given).expect("short enough");
        let text = header.to_str().expect("plain text");
        assert!(
            text.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Command>(text).expect("JSON"), given);
        assert_eq!(
            command_header(&command("é".repeat(MAX_COMMAND_BYTES / 6))),
            None
        );
    }
}
