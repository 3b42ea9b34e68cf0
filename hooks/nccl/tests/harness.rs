//! Loads the plugin as NCCL does and drives it as NCCL does, on every version of the interface.
//!
//! Each test is a process of its own, because a plugin is: it starts itself anew with only that test.
//! The agent's side is real too: the region comes over the socket.
#![expect(unsafe_code, reason = "functions of a loaded library are called")]

#[path = "harness/alone.rs"]
mod alone;
#[path = "harness/nccl.rs"]
mod nccl;

#[path = "harness/descriptors.rs"]
mod descriptors;
#[path = "harness/hostile.rs"]
mod hostile;
#[path = "harness/kernel.rs"]
mod kernel;
#[path = "harness/life.rs"]
mod life;
#[path = "harness/operations.rs"]
mod operations;
#[path = "harness/threads.rs"]
mod threads;
