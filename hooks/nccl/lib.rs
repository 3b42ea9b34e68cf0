//! A profiler plugin for NCCL: counts collectives, their bytes and how long they take on the GPU,
//! into the memory that the process shares with the agent.
//!
//! NCCL calls it from threads of the training program and from one of its own. A callback takes no
//! lock, allocates nothing, enters no system call and has no way to panic; the bench looks for all
//! of them in the machine code. Only `init`, once per communicator, may do such things. No function
//! ever answers with an error: a training job does not fail over its telemetry. docs/collectives.md
//! is for those who use it.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable
    )
)]

pub mod abi;
pub mod handle;
pub mod operation;
pub mod text;
pub mod version;

mod callbacks;
mod communicator;
mod plugin;

use std::ffi::c_char;

use abi::{Init, InitV4, Table};

/// The plugin's name, as NCCL's log has it.
const NAME: *const c_char = c"gpufleet".as_ptr();

/// NCCL 2.27.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = Table {
    name: NAME,
    init: callbacks::init_v4,
    start: callbacks::start_v4,
    stop: callbacks::stop,
    record: callbacks::record,
    finalize: callbacks::finalize,
};

/// NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<Init> = table(callbacks::init::<5>);

/// NCCL 2.29 and 2.30.
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: Table<Init> = table(callbacks::init::<6>);

/// NCCL 2.31 and 2.32.
#[unsafe(no_mangle)]
pub static ncclProfiler_v7: Table<Init> = table(callbacks::init::<7>);

const fn table(init: Init) -> Table<Init> {
    Table {
        name: NAME,
        init,
        start: callbacks::start,
        stop: callbacks::stop,
        record: callbacks::record,
        finalize: callbacks::finalize,
    }
}
