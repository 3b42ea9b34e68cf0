//! NCCL's profiler interface, versions 4 to 7, as the C structures have it.
//!
//! Every version has the same five functions, and descriptors that differ in two ways only: the
//! type of an event is one byte in version 4 and eight since, and later versions append fields to
//! the union. So one set of structures reads all of them, as long as nothing past what version 4 has
//! is looked at. `tests/harness/descriptors.rs` compiles the structures in C and compares.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// What every function returns: success. The plugin knows no other answer.
pub const SUCCESS: c_int = 0;

/// Bits of the activation mask, which are the types of events.
pub mod event {
    /// A collective, from the moment it is enqueued.
    pub const COLLECTIVE: u64 = 1 << 1;
    /// A send or a receive.
    pub const POINT_TO_POINT: u64 = 1 << 2;
    /// One channel of a kernel, with the GPU's time.
    pub const KERNEL_CHANNEL: u64 = 1 << 6;
}

/// The state in which a kernel channel's end is recorded.
pub const KERNEL_CHANNEL_STOP: u32 = 22;

/// NCCL's own log. Never called: its address says where NCCL lies in memory.
pub type Log = unsafe extern "C" fn(u32, c_ulong, *const c_char, c_int, *const c_char, ...);

/// `init` of version 4.
pub type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Log>,
) -> c_int;

/// `init` since version 5.
pub type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Log>,
) -> c_int;

/// `startEvent`: context, where the handle goes, descriptor.
pub type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;

/// `stopEvent`: handle.
pub type Stop = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `recordEventState`: handle, state, its arguments.
pub type Record = unsafe extern "C" fn(*mut c_void, u32, *const c_void) -> c_int;

/// `finalize`: context.
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The table of functions that NCCL looks up by name.
#[repr(C)]
pub struct Table<I> {
    /// Name of the plugin, ends with a zero byte.
    pub name: *const c_char,
    /// A communicator is made.
    pub init: I,
    /// An event starts.
    pub start: Start,
    /// An event stops.
    pub stop: Stop,
    /// An event comes into a state.
    pub record: Record,
    /// A communicator is gone.
    pub finalize: Finalize,
}

// SAFETY: the table is constant: function addresses and the address of a constant text.
unsafe impl<I: Copy> Sync for Table<I> {}

/// What every descriptor begins with.
#[repr(C)]
pub struct Header {
    /// Type of the event: a byte in version 4, all eight since.
    pub kind: u64,
    /// The handle we gave for the event around this one.
    pub parent: *mut c_void,
    /// Rank; 0 for a kernel channel, whatever the rank is.
    pub rank: i32,
}

/// Descriptor of a collective.
#[repr(C)]
pub struct Collective {
    /// What every descriptor begins with.
    pub header: Header,
    /// Number per communicator and function, equal on all ranks.
    pub sequence: u64,
    /// `AllReduce`.
    pub function: *const c_char,
    /// Buffer to send from.
    pub send: *const c_void,
    /// Buffer to receive in.
    pub receive: *const c_void,
    /// Elements.
    pub count: usize,
    /// Root rank, where there is one.
    pub root: i32,
    /// `ncclFloat32`.
    pub data_type: *const c_char,
    /// Channels.
    pub channels: u8,
    /// Warps of each.
    pub warps: u8,
    /// `RING`.
    pub algorithm: *const c_char,
    /// `SIMPLE`.
    pub protocol: *const c_char,
}

/// Descriptor of a send or a receive.
#[repr(C)]
pub struct PointToPoint {
    /// What every descriptor begins with.
    pub header: Header,
    /// `Send` or `Recv`.
    pub function: *const c_char,
    /// The buffer.
    pub buffer: *const c_void,
    /// `ncclFloat32`.
    pub data_type: *const c_char,
    /// Elements.
    pub count: usize,
    /// The other rank.
    pub peer: i32,
    /// Channels.
    pub channels: u8,
}

/// Descriptor of one channel of a kernel.
#[repr(C)]
pub struct KernelChannel {
    /// What every descriptor begins with.
    pub header: Header,
    /// Which channel.
    pub channel: u8,
    /// The GPU's time at its start, nanoseconds.
    pub timer: u64,
}
