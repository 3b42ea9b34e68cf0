//! What every program of gpufleet needs before it does anything of its own: its config, its log,
//! the real clock, its connections with TLS or without, the comparison of tokens, and the client of the
//! Kubernetes API that both ask.
//!
//! Nothing here knows what a program is for; what two programs share of the data is in
//! `telemetry`, what they share of the disk in `spool`.

pub mod config;

pub mod log;

pub mod traces;

pub mod clock;

pub mod reloaded;

pub mod token;

pub mod tls;

pub mod stream;

pub mod listen;

pub mod connect;

pub mod kubernetes;
