//! Many bad days in one process: simulated clock, disk, network and store around the real agent's
//! shipping and the real server's fleet. One seed replays one day.
//!
//! Read in this order: [`memory_store`] (what a database would keep).

pub mod memory_store;
