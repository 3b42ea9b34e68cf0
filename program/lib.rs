//! What every program of gpufleet needs before it does anything of its own: its config, its log,
//! the real clock, and the comparison of tokens.
//!
//! Nothing here knows what a program is for; what two programs share of the data is in
//! `telemetry`, what they share of the disk in `spool`.

pub mod config;

pub mod log;

pub mod clock;

pub mod token;
