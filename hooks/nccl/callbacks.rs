//! What NCCL calls. Every pointer may be null, every handle may be old.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use gpufleet_hooks_shm::process::unix_ns_coarse;
use gpufleet_hooks_shm::words::Function;

use crate::abi::{
    Collective, Header, KERNEL_CHANNEL_STOP, KernelChannel, Log, PointToPoint, SUCCESS, event,
};
use crate::handle::{self, Handle, Operation};
use crate::operation::Begin;
use crate::plugin::{Described, Plugin};
use crate::text;

/// `init` of version 4.
pub(crate) unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<Log>,
) -> c_int {
    // SAFETY: the same promises, in another order.
    unsafe { init::<4>(context, hash, mask, name, nodes, ranks, rank, log) }
}

/// `init` since version 5.
pub(crate) unsafe extern "C" fn init<const INTERFACE: u64>(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Option<Log>,
) -> c_int {
    let described = Described {
        hash,
        name,
        nodes,
        ranks,
        rank,
    };
    // SAFETY: NCCL's promises of `init` are those of `made`.
    unsafe { made(INTERFACE, context, mask, &described, log) }
}

/// A communicator is made.
///
/// # Safety
/// Each pointer is null or may be written, the name is null or a C string.
unsafe fn made(
    interface: u64,
    context: *mut *mut c_void,
    mask: *mut c_int,
    described: &Described,
    log: Option<Log>,
) -> c_int {
    let log = log.map_or(0, |log| log as usize);
    let plugin = Plugin::start(interface, log);
    if !mask.is_null() {
        // The mask is the process', not the communicator's, and the last word counts: so it is the
        // same every time, also for a communicator of which nothing can be counted.
        // SAFETY: it is not null, so NCCL lets us write it.
        unsafe { mask.write(plugin.mask() as c_int) };
    }
    // SAFETY: the name is what NCCL gave.
    let index = unsafe { plugin.make(described) };
    if !context.is_null() {
        let made = index.map_or(null_mut(), handle::context);
        // SAFETY: it is not null, so NCCL lets us write it.
        unsafe { context.write(made) };
    }
    SUCCESS
}

/// `startEvent` of version 4: the type is one byte, what follows it may be anything.
pub(crate) unsafe extern "C" fn start_v4(
    context: *mut c_void,
    out: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    let mut kind = 0;
    if !descriptor.is_null() {
        // SAFETY: it is not null, so it is a descriptor, which begins with its type.
        kind = u64::from(unsafe { descriptor.cast::<u8>().read() });
    }
    // SAFETY: NCCL's promises of `startEvent` are those of `started`.
    unsafe { started(context, out, descriptor, kind) }
}

/// `startEvent` since version 5.
pub(crate) unsafe extern "C" fn start(
    context: *mut c_void,
    out: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    let mut kind = 0;
    if !descriptor.is_null() {
        // SAFETY: it is not null, so it is a descriptor, which begins with its type.
        kind = unsafe { descriptor.cast::<u64>().read() };
    }
    // SAFETY: NCCL's promises of `startEvent` are those of `started`.
    unsafe { started(context, out, descriptor, kind) }
}

/// An event starts.
///
/// # Safety
/// `out` is null or may be written; the descriptor is null or one of the type that it says.
#[inline]
unsafe fn started(
    context: *mut c_void,
    out: *mut *mut c_void,
    descriptor: *const c_void,
    kind: u64,
) -> c_int {
    let handle = match kind {
        // SAFETY: the descriptor is not null, or its type would be 0, and it is of this type.
        event::KERNEL_CHANNEL => unsafe { kernel_channel(descriptor.cast()) },
        // SAFETY: likewise.
        event::COLLECTIVE => unsafe { collective(context, descriptor.cast()) },
        // SAFETY: likewise.
        event::POINT_TO_POINT => unsafe { point_to_point(context, descriptor.cast()) },
        _ => None,
    };
    if !out.is_null() {
        // Always written: NCCL would use what was there before.
        // SAFETY: it is not null, so NCCL lets us write it.
        unsafe { out.write(handle.map_or(null_mut(), Handle::to_pointer)) };
    }
    SUCCESS
}

unsafe fn collective(context: *mut c_void, descriptor: *const Collective) -> Option<Handle> {
    // SAFETY: the caller has a descriptor of this type; the fields are read one by one, because
    // the bytes between them may be uninitialised. The texts are null or C strings.
    let (sequence, count, root, channels, function, data_type) = unsafe {
        (
            (&raw const (*descriptor).sequence).read(),
            (&raw const (*descriptor).count).read(),
            (&raw const (*descriptor).root).read(),
            (&raw const (*descriptor).channels).read(),
            text::function((&raw const (*descriptor).function).read()),
            text::data_type((&raw const (*descriptor).data_type).read()),
        )
    };
    let has_root = matches!(function, Function::Broadcast | Function::Reduce);
    let begin = Begin {
        sequence,
        function,
        data_type,
        channels,
        bytes: count as u64,
        peer: if has_root { root } else { -1 },
        started_at: 0,
    };
    begun(context, begin)
}

unsafe fn point_to_point(context: *mut c_void, descriptor: *const PointToPoint) -> Option<Handle> {
    // SAFETY: as of a collective.
    let (count, peer, channels, data_type) = unsafe {
        (
            (&raw const (*descriptor).count).read(),
            (&raw const (*descriptor).peer).read(),
            (&raw const (*descriptor).channels).read(),
            text::data_type((&raw const (*descriptor).data_type).read()),
        )
    };
    let begin = Begin {
        // NCCL does not number them.
        sequence: 0,
        function: Function::PointToPoint,
        data_type,
        channels,
        bytes: count as u64,
        peer,
        started_at: 0,
    };
    begun(context, begin)
}

/// Begins an operation whose `bytes` are still elements.
#[inline]
fn begun(context: *mut c_void, begin: Begin) -> Option<Handle> {
    let plugin = Plugin::get()?;
    let index = handle::of_context(context)?;
    let communicator = plugin.communicator(index)?;
    let ranks = communicator.operations.ranks();
    let now = unix_ns_coarse();
    let number = communicator.begin(&Begin {
        bytes: text::bytes(begin.function, begin.data_type, begin.bytes, ranks),
        started_at: now,
        ..begin
    });
    plugin.look_after_another(number, now);
    Some(Handle::Operation(Operation {
        communicator: index,
        number,
    }))
}

unsafe fn kernel_channel(descriptor: *const KernelChannel) -> Option<Handle> {
    // SAFETY: as of a collective.
    let (parent, channel, timer) = unsafe {
        (
            (&raw const (*descriptor).header.parent).read(),
            (&raw const (*descriptor).channel).read(),
            (&raw const (*descriptor).timer).read(),
        )
    };
    let plugin = Plugin::get()?;
    let Some(Handle::Operation(operation)) = Handle::from_pointer(parent) else {
        return None;
    };
    let is_known = plugin
        .communicator(operation.communicator)
        .is_some_and(|it| it.channel_started(operation.number, timer));
    if !is_known {
        plugin.writer().report_late();
        return None;
    }
    Some(Handle::Channel(operation, channel))
}

/// `recordEventState`.
pub(crate) unsafe extern "C" fn record(
    handle: *mut c_void,
    state: u32,
    arguments: *const c_void,
) -> c_int {
    if state == KERNEL_CHANNEL_STOP
        && !arguments.is_null()
        && let Some(Handle::Channel(operation, _channel)) = Handle::from_pointer(handle)
        && let Some(plugin) = Plugin::get()
    {
        // SAFETY: in this state the arguments are the GPU's time.
        let timer = unsafe { arguments.cast::<u64>().read() };
        let communicator = plugin.communicator(operation.communicator);
        match communicator.and_then(|it| it.operations.begun(operation.number)) {
            Some(slot) => slot.channel_done(timer),
            None => plugin.writer().report_late(),
        }
    }
    SUCCESS
}

/// `stopEvent`.
pub(crate) unsafe extern "C" fn stop(handle: *mut c_void) -> c_int {
    if let Some(plugin) = Plugin::get()
        && let Some(handle) = Handle::from_pointer(handle)
    {
        stopped(plugin, handle);
    }
    SUCCESS
}

#[inline]
fn stopped(plugin: &Plugin, handle: Handle) {
    let (Handle::Operation(operation) | Handle::Channel(operation, _)) = handle;
    let Some(communicator) = plugin.communicator(operation.communicator) else {
        return;
    };
    match handle {
        Handle::Operation(_) => communicator.enqueued(operation.number, plugin.is_timed()),
        Handle::Channel(_, channel) => {
            if let Some(slot) = communicator.operations.begun(operation.number)
                && slot.channel_stopped(channel)
            {
                communicator.end(operation.number);
            }
        }
    }
}

/// `finalize`.
pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    if let Some(plugin) = Plugin::get()
        && let Some(index) = handle::of_context(context)
        && let Some(communicator) = plugin.communicator(index)
    {
        communicator.close();
    }
    SUCCESS
}

/// The offset at which the parts of a descriptor differ; everything before is common.
const _: () = assert!(std::mem::offset_of!(Collective, sequence) == size_of::<Header>());
