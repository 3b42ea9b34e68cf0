//! The agent: reads what every GPU of its node does, keeps it safe, ships it.
//!
//! Read in this order: [`read`] (sources), [`attribute`] (who holds what), [`sample`] (the loop and its ticks), [`ship`] (the way
//! to the server), [`prometheus`] and [`admin`] (the way to a scraper), [`commands`] (what the
//! server may ask), [`config`].

pub mod config;

pub mod read;

pub mod probe;

pub mod attribute;

pub mod sample;

pub mod spool;

pub mod under_way;

pub mod steps;

pub mod ship;

pub mod commands;

pub mod run;

pub mod prometheus;

pub mod admin;

pub mod record;

pub mod bundle;

pub mod doctor;
