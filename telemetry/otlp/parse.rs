//! From the bytes of a request to its messages, in memory that is bounded beforehand.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use serde::de::DeserializeOwned;

use super::weigh::{self, TooHeavy, Weight};

/// A request of OTLP that is parsed here: metrics or logs.
pub trait Request: Message + Default + DeserializeOwned {
    /// What it takes in memory once it is parsed from protobuf; an upper bound.
    ///
    /// # Errors
    /// When that is too much, or the bytes are no protobuf.
    fn weigh(bytes: &[u8]) -> Result<Weight, TooHeavy>;
}

/// How a request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Protobuf.
    Protobuf,
    /// JSON.
    Json,
}

/// Why bytes are not a request that is taken.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// It would take too much memory, or is no protobuf at all.
    #[error(transparent)]
    TooHeavy(#[from] TooHeavy),
    /// It is no OTLP.
    #[error("not an OTLP request in protobuf: {0}: does the content-type name what is sent?")]
    Protobuf(#[from] prost::DecodeError),
    /// It is no OTLP.
    #[error("not an OTLP request in JSON: {0}: does the content-type name what is sent?")]
    Json(#[from] serde_json::Error),
}

impl ParseError {
    /// Whether smaller batches would be taken.
    pub const fn is_too_large(&self) -> bool {
        matches!(self, Self::TooHeavy(TooHeavy::Memory { .. }))
    }
}

impl Request for ExportMetricsServiceRequest {
    fn weigh(bytes: &[u8]) -> Result<Weight, TooHeavy> {
        weigh::metrics(bytes)
    }
}

impl Request for ExportLogsServiceRequest {
    fn weigh(bytes: &[u8]) -> Result<Weight, TooHeavy> {
        weigh::logs(bytes)
    }
}

/// Parses a request. Takes at most [`weigh::MAX_PARSED_BYTES`] and half of that again while it
/// works.
///
/// # Errors
/// When the bytes are no request, or one that would take too much memory.
pub fn parse<T: Request>(encoding: Encoding, bytes: &[u8]) -> Result<T, ParseError> {
    match encoding {
        Encoding::Protobuf => {
            T::weigh(bytes)?;
            Ok(T::decode(bytes)?)
        }
        Encoding::Json => {
            weigh::json(bytes)?;
            Ok(serde_json::from_slice(bytes)?)
        }
    }
}
