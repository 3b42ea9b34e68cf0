//! Many bad days in one process: simulated clock, disk, network and store around the real agent's
//! spool and shipping and the real server's fleet. One seed replays one day.
//!
//! Read in this order: [`wire`] (what the network does), [`memory_store`] (what a database would
//! keep), [`receiver`] (the server in front of it), [`sender`] (an agent), [`day`] (all of them,
//! and what must be true in the end), [`outage`] (a day on which only the server is away), [`telling`] (a day
//! of the notifications), [`judged`] (hours of what goes wrong in a fleet, and what is said of it).

pub mod telling;

pub mod judged;

pub mod wire;

pub mod memory_store;

pub mod receiver;

pub mod sender;

pub mod day;

pub mod outage;
