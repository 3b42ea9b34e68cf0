//! The judgement: pure functions over telemetry types. No I/O, no async, no clock.
//!
//! One file for each question, with its method, numbers, limits and tests inside. A replay of a
//! recording, a recomputed day and live data go through the same functions.

pub mod ledger;

pub mod states;

pub mod money;

pub mod table;

pub mod price_book;

pub mod owner;

pub mod chargeback;

pub mod report;

pub mod digest;

pub mod mfu;

pub mod goodput;

pub mod ending;

pub mod scaling;

pub mod plan;

pub mod right_size;

pub mod serving;

pub mod shutdown;

pub mod taken;

pub mod hang;

pub mod health;

pub mod leak;

pub mod limit;

pub mod loss;

pub mod regression;

pub mod offender;

pub mod port;

pub mod robust;

pub mod silent;

pub mod slow_link;

pub mod straggler;

pub mod unused;

pub mod wrong_network;

pub mod cause;

pub mod lost;

pub mod price;

pub mod incident;

pub mod inventory;

pub mod adviser;

pub mod words;

#[cfg(test)]
mod quality;
