//! Where data comes in: OTLP over gRPC (4317) and over HTTP (4318), from agents and from anyone.
//!
//! An agent's request names its place in the agent's spool ([`gpufleet_telemetry::wire`]) and goes
//! straight to the fleet. Any other request goes through the server's own spool and is on disk
//! before its reply.
//!
//! Both doors go one way: the guard reads the body, [`gpufleet_telemetry::otlp::parse`] says what it
//! would take in memory before it becomes messages, and then it is accepted.
//!
//! Limits: [`MAX_COMPRESSED_BYTES`], [`MAX_MESSAGE_BYTES`], [`MAX_CONNECTIONS`], requests at the same
//! time and their longest time by configuration; what one request may hold is in
//! [`gpufleet_telemetry::otlp::limits`].

mod accept;

mod body;

mod claimed;

pub mod foreign;

mod grpc;

mod guard;

mod http;

mod place;

mod reply;

mod room;

mod refuse;

#[cfg(test)]
mod tests;

pub use accept::{Ingest, Rejections};
pub use refuse::{Kind, Refused};

/// Largest request as it comes over the wire. A tick of the largest node is 1 MiB before
/// compression, a Collector's batch of 8,192 points 3 MiB.
pub const MAX_COMPRESSED_BYTES: usize = 8 << 20;

/// Largest request after decompression, the same as the largest record of a spool.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Most connections of one listener; each agent holds one.
pub const MAX_CONNECTIONS: usize = 25_000;

/// The gRPC server: metrics and logs; traces are answered with UNIMPLEMENTED.
pub fn grpc_router(ingest: &Ingest) -> axum::Router {
    grpc::router(ingest)
}

/// The HTTP server: /v1/metrics and /v1/logs.
pub fn http_router(ingest: &Ingest) -> axum::Router {
    http::router(ingest)
}
