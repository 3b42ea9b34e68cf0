//! The reply to a request that was taken: what was left out of it, in the words of OTLP.

use gpufleet_telemetry::otlp::Encoding;
use gpufleet_telemetry::wire::Stream;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message;
use serde::Serialize;

use super::accept::Accepted;

/// The body of the reply.
pub(super) fn encode(accepted: &Accepted, stream: Stream, encoding: Encoding) -> Vec<u8> {
    let is_partial = accepted.rejected > 0 || !accepted.message.is_empty();
    let rejected = accepted.rejected;
    let error_message = accepted.message.clone();
    match stream {
        Stream::Metrics => {
            let partial_success = is_partial.then_some(ExportMetricsPartialSuccess {
                rejected_data_points: rejected,
                error_message,
            });
            write(&ExportMetricsServiceResponse { partial_success }, encoding)
        }
        Stream::Logs => {
            let partial_success = is_partial.then_some(ExportLogsPartialSuccess {
                rejected_log_records: rejected,
                error_message,
            });
            write(&ExportLogsServiceResponse { partial_success }, encoding)
        }
    }
}

fn write<T: Message + Serialize>(body: &T, encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Protobuf => body.encode_to_vec(),
        Encoding::Json => serde_json::to_vec(body).expect("an OTLP reply is plain data"),
    }
}
