//! The memory that a training process and the agent share, and the way it gets from one to the other.
//!
//! A training process writes into a region of its own ([`writer`]) with no lock, allocation or system
//! call; a thread of it hands the region to the agent ([`client`]) and does so again whenever the
//! agent was away. The agent takes it ([`server`]) and reads it ([`reader`]), trusting nothing in
//! it. What the process wrote survives its hang and its death by SIGKILL, and an agent that was away
//! finds every counter where it is now. `docs/hooks-shm.md` is for those who write another client.
#![deny(missing_docs)]

pub mod layout;
pub mod words;

mod cell;
mod gaps;
mod memory;
mod place;

pub mod asked;

pub mod client;
pub mod process;
pub mod reader;
pub mod records;
pub mod server;
pub mod stepping;
pub mod wire;
pub mod writer;

pub use memory::{MapError, Mapped, create};

/// Longest name, key or value the agent keeps of a client, in bytes: a label.
pub const MAX_NAME_BYTES: usize = 64;
