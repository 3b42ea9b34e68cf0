//! From OTLP log records to events and to the steps of ranks. Records that are not events of the catalog are counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;

use super::point::time;
use super::sender::Sender;
use super::{DecodedEvent, DecodedEvents, DecodedSteps, as_text, text};
use crate::event::{self, Event, EventKind, Severity};
use crate::identity::{Resource, ResourceKind, attribute};
use crate::otlp::limits::{Limits, Reject, Rejected, cut, has_control, printable};
use crate::otlp::{EVENT_PREFIX, RESOURCE_ID, STEPS_EVENT};
use crate::steps::{self, StepBlock};
use crate::time::Timestamp;
use crate::training::RankId;

/// Reads a logs request. Events have to name their resource; everything else is counted under its
/// reason and the rest goes on.
pub fn decode_events(request: ExportLogsServiceRequest, limits: &Limits) -> DecodedEvents {
    let mut decoded = DecodedEvents::default();
    for sent in request.resource_logs {
        let attributes = sent.resource.unwrap_or_default().attributes;
        let sender = match Sender::read(attributes, limits, &mut decoded.rejected) {
            Sender::Ours(resource) => Some(Arc::new(resource)),
            Sender::Foreign(attributes) => {
                let id = attributes.get(attribute::NODE).cloned().unwrap_or_default();
                Some(Arc::new(Resource {
                    attributes: attributes.into_iter().collect(),
                    ..Resource::new(ResourceKind::Node, id)
                }))
            }
            Sender::Unprintable => None,
        };
        for record in sent.scope_logs.into_iter().flat_map(|it| it.log_records) {
            let name = record.event_name.clone();
            if decoded.events.len() + decoded.steps.len() >= limits.events {
                decoded.rejected.add(Reject::TooManyEvents, 1, || name);
                continue;
            }
            let Some(sender) = &sender else {
                decoded.rejected.add(Reject::UnprintableId, 1, || name);
                continue;
            };
            if name == STEPS_EVENT {
                match read_steps(record, limits) {
                    Ok((rank, blocks)) => decoded.steps.push(DecodedSteps {
                        sender: Arc::clone(sender),
                        rank,
                        blocks,
                    }),
                    Err(reason) => decoded.rejected.add(reason, 1, || name),
                }
                continue;
            }
            match read_record(record, limits, &mut decoded.rejected) {
                Ok(event) => decoded.events.push(DecodedEvent {
                    sender: Arc::clone(sender),
                    event,
                }),
                Err(reason) => decoded.rejected.add(reason, 1, || name),
            }
        }
    }
    decoded
}

fn read_record(
    record: LogRecord,
    limits: &Limits,
    rejected: &mut Rejected,
) -> Result<Event, Reject> {
    let kind = record
        .event_name
        .strip_prefix(EVENT_PREFIX)
        .and_then(EventKind::parse)
        .ok_or(Reject::UnknownEvent)?;
    let at = time_of(&record, limits)?;
    let mut message = printable(as_text(record.body).unwrap_or_default());
    if cut(&mut message, limits.message_bytes) {
        rejected.add(Reject::TooLong, 1, || format!("message of {}", kind.name()));
    }
    let mut event = Event {
        at,
        kind,
        severity: severity(record.severity_number),
        resource_kind: ResourceKind::Node,
        resource_id: "".into(),
        message,
        attributes: BTreeMap::new(),
    };
    let mut resource_kind = None;
    for KeyValue { key, value, .. } in record.attributes {
        let Some(value) = as_text(value) else {
            continue;
        };
        if key == RESOURCE_ID && has_control(&value) {
            return Err(Reject::UnprintableId);
        }
        let (key, mut value) = (printable(key), printable(value));
        if key.len() > limits.label_bytes {
            rejected.add(Reject::TooLong, 1, || format!("attribute {key}"));
            continue;
        }
        if cut(&mut value, limits.message_bytes) {
            rejected.add(Reject::TooLong, 1, || format!("attribute {key}"));
        }
        if key == attribute::KIND {
            resource_kind = ResourceKind::parse(&value);
        } else if key == RESOURCE_ID {
            event.resource_id = value.into();
        } else if event.attributes.len() >= event::MAX_ATTRIBUTES {
            rejected.add(Reject::TooManyAttributes, 1, || key);
        } else {
            event.attributes.insert(key, value);
        }
    }
    event.resource_kind = resource_kind.ok_or(Reject::UnidentifiedResource)?;
    match event.resource_id.len() {
        0 => Err(Reject::UnidentifiedResource),
        length if length > limits.label_bytes => Err(Reject::LongId),
        _ => Ok(event),
    }
}

fn read_steps(record: LogRecord, limits: &Limits) -> Result<(RankId, Vec<StepBlock>), Reject> {
    time_of(&record, limits)?;
    let is_of_rank = text(&record.attributes, attribute::KIND) == Some(ResourceKind::Rank.name());
    let id = text(&record.attributes, RESOURCE_ID).filter(|_| is_of_rank);
    let rank = id.and_then(|id| RankId::parse(id).ok());
    let rank = rank.ok_or(Reject::BadSteps)?;
    match record.body.and_then(|body| body.value) {
        Some(Value::BytesValue(bytes)) => {
            let blocks = steps::decode(&bytes).map_err(|_| Reject::BadSteps)?;
            Ok((rank, blocks))
        }
        _ => Err(Reject::BadSteps),
    }
}

fn time_of(record: &LogRecord, limits: &Limits) -> Result<Timestamp, Reject> {
    let at = match record.time_unix_nano {
        0 => time(record.observed_time_unix_nano)?,
        nanos => time(nanos)?,
    };
    if at < limits.earliest || at > limits.latest {
        return Err(Reject::TimeOutOfRange);
    }
    Ok(at)
}

/// OTLP's 24 steps as our three; unspecified is info.
fn severity(number: i32) -> Severity {
    match number {
        17.. => Severity::Error,
        13..=16 => Severity::Warning,
        _ => Severity::Info,
    }
}
