//! The words that agent and server share: what a metric, a sample, an event and an identity are.
//!
//! No I/O, no async and no clock in this crate: everything here is a value or a pure function, so
//! that a recording, a stored day and live data go through the same code.
//!
//! Read in this order: [`time`], [`identity`], [`holder`] and [`training`] (when and who), [`catalog`] (every
//! metric once), [`sample`] and [`event`] (what was read), [`minute`] and [`steps`] (what is kept),
//! [`otlp`] and [`wire`] (how it travels), [`gpu_specs`] and [`pcie`] (what a card and its link could do at best).
//! [`sorted`] is the map that all of them use for what there is much of.

pub mod time;

mod varint;

pub mod sorted;

pub mod identity;

pub mod holder;

pub mod training;

pub mod workload;

pub mod machine;

pub mod catalog;

pub mod sample;

pub mod event;

pub mod tick;

pub mod minute;

pub mod steps;

pub mod otlp;

pub mod wire;

pub mod command;

pub mod gpu_specs;

pub mod pcie;
