//! A fleet that is not there: nodes whose GPUs train, serve, wait, stall and break, by seed.
//!
//! What a GPU does at a second is a function of (seed, GPU, second), so history and live data come
//! from the same code and two runs of one seed are the same. Only running totals are state.
//!
//! Read in this order: [`noise`] (the seed), [`schedule`] (when its training jobs step, save and
//! die), [`role`] (what a job does to a GPU), [`card`], [`gpu`], [`training`] and [`node`] (what an
//! agent would read of it), [`faults`] and [`trouble`] (what can be broken), [`record`] and
//! [`journal`] (what was made, for the checkers), [`fleet`] (all of them), [`served`] (what their agents
//! would serve to Prometheus).

/// What the program logs when the ticks of an outage wait in its spools.
pub const OUTAGE_MADE: &str = "the outage is in the spools";

/// What it logs when the server has them on its disk.
pub const OUTAGE_DRAINED: &str = "the outage is drained";

pub mod noise;

pub mod schedule;

pub mod role;

pub mod card;

mod evidence;

pub mod gpu;

pub mod training;

pub mod network;

pub mod node;

pub mod faults;

pub mod trouble;

pub mod record;

pub mod journal;

pub mod fleet;

pub mod served;
