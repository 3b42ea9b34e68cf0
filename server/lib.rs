//! The server: takes what the agents send, keeps it, says what it means, and shows it.

pub mod store;
