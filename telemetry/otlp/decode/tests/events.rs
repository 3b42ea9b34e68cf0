//! Log records that are wrong, unknown or too much.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};

use super::*;
use crate::event::Severity;

pub(super) fn record(name: &str, attributes: Vec<KeyValue>) -> LogRecord {
    LogRecord {
        time_unix_nano: AT,
        severity_number: 14,
        body: any(Value::StringValue("m".repeat(5_000))),
        attributes,
        event_name: name.to_owned(),
        ..LogRecord::default()
    }
}

pub(super) fn logs(records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(OtlpResource {
                attributes: theirs(),
                ..OtlpResource::default()
            }),
            scope_logs: vec![ScopeLogs {
                log_records: records,
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    }
}

#[test]
fn wrong_events_get_their_reason_and_the_rest_goes_on() {
    let about = |id: &str| pairs(&[(names_of::KIND, "gpu"), ("gpufleet.resource.id", id)]);
    let many: Vec<_> = (0..40)
        .map(|number| KeyValue {
            key: number.to_string(),
            value: any(Value::IntValue(number)),
            ..KeyValue::default()
        })
        .collect();
    let timeless = LogRecord {
        time_unix_nano: 0,
        ..record("gpufleet.xid", about("GPU-1"))
    };
    let sent = vec![
        record("gpufleet.unheard_of", about("GPU-1")),
        record("", about("GPU-1")),
        record("gpufleet.xid", Vec::new()),
        record("gpufleet.xid", about(&"x".repeat(300))),
        timeless,
        record("gpufleet.xid", [about("GPU-1"), many].concat()),
        record("gpufleet.xid", about("GPU-2")),
    ];
    let limits = Limits {
        events: 1,
        ..Limits::default()
    };
    let decoded = decode_events(logs(sent), &limits);
    let reasons: Vec<_> = decoded.rejected.iter().collect();
    assert_eq!(
        reasons,
        [
            (Reject::UnidentifiedResource, 1),
            (Reject::TooManyAttributes, 8),
            // The message of each record that is read that far.
            (Reject::TooLong, 3),
            (Reject::LongId, 1),
            (Reject::TimeOutOfRange, 1),
            (Reject::TooManyEvents, 1),
            (Reject::UnknownEvent, 2),
        ]
    );
    let [kept] = decoded.events.as_slice() else {
        panic!("one event is kept");
    };
    assert_eq!(kept.event.message.len(), limits.message_bytes);
    assert_eq!(kept.event.severity, Severity::Warning);
    assert_eq!(&*kept.event.resource_id, "GPU-1");
    assert_eq!(
        (kept.sender.kind, &*kept.sender.id),
        (ResourceKind::Node, "node-1")
    );
}
