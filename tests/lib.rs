//! What the tests are made of: a simulated fleet, the harness that runs the real programs, and the
//! checkers that know what must have come out.

pub mod simulator;

pub mod harness;

pub mod receiver;

pub mod people;

pub mod simulation;
