//! A request that was not taken: why, in words for a person and in codes for gRPC and HTTP.

use std::time::Duration;

use gpufleet_telemetry::wire::{self, Refusal};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tonic::metadata::MetadataMap;
use tonic_types::{ErrorDetails, StatusExt};

/// What kind of refusal it is, for those who only know the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A token is needed.
    Unauthenticated,
    /// The token does not allow it.
    Forbidden,
    /// It can never be accepted.
    Invalid,
    /// It is of a content type that is not taken.
    ContentType,
    /// It is larger than a cap, which the message names.
    TooLarge,
    /// It does not fit what came before.
    OutOfPlace,
    /// The server has no room now: try again after a while.
    Full,
    /// The server cannot take it now: try again.
    Unavailable,
    /// It took too long.
    TooSlow,
}

/// A request that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What kind of refusal it is.
    pub kind: Kind,
    /// One sentence: what is wrong, and the way out.
    pub message: String,
    /// The word that an agent acts on.
    pub refusal: Option<Refusal>,
    /// The seq that the server wants next.
    pub wanted_seq: Option<u64>,
    /// The highest seq of the stream on the server's disk.
    pub durable_seq: Option<u64>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// A refusal without more than its kind and sentence.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let refusal = match kind {
            Kind::Invalid | Kind::ContentType | Kind::TooLarge => Some(Refusal::Invalid),
            Kind::Full => Some(Refusal::Full),
            _ => None,
        };
        Self {
            kind,
            message: message.into(),
            refusal,
            wanted_seq: None,
            durable_seq: None,
            retry_after: None,
        }
    }

    /// The same as gRPC status; a delay travels as RetryInfo.
    pub fn status(&self) -> tonic::Status {
        let mut details = ErrorDetails::new();
        if let Some(delay) = self.retry_after {
            details.set_retry_info(Some(delay));
        }
        let metadata = MetadataMap::from_headers(self.headers());
        let code = self.kind.grpc();
        tonic::Status::with_error_details_and_metadata(code, &self.message, details, metadata)
    }

    /// What an agent reads beside the code.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(refusal) = self.refusal {
            let name = HeaderName::from_static(wire::REFUSAL);
            headers.insert(name, HeaderValue::from_static(refusal.name()));
        }
        for (name, seq) in [
            (wire::WANTED_SEQ, self.wanted_seq),
            (wire::DURABLE_SEQ, self.durable_seq),
        ] {
            if let Some(seq) = seq {
                headers.insert(HeaderName::from_static(name), seq.into());
            }
        }
        headers
    }
}

impl Kind {
    /// The gRPC code.
    pub const fn grpc(self) -> tonic::Code {
        match self {
            Self::Unauthenticated => tonic::Code::Unauthenticated,
            Self::Forbidden => tonic::Code::PermissionDenied,
            Self::Invalid | Self::ContentType => tonic::Code::InvalidArgument,
            Self::TooLarge | Self::Full => tonic::Code::ResourceExhausted,
            Self::OutOfPlace => tonic::Code::FailedPrecondition,
            Self::Unavailable => tonic::Code::Unavailable,
            Self::TooSlow => tonic::Code::DeadlineExceeded,
        }
    }

    /// The HTTP code; OTLP retries 429, 502, 503 and 504 only.
    pub const fn http(self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::OutOfPlace => StatusCode::PRECONDITION_FAILED,
            Self::Full => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}
