//! The C interface: every symbol under its real name.
#![allow(
    non_snake_case,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the names and shapes are CUDA's; a caller of C promises that its pointers are good"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::counted::{ELSEWHERE, UNLOADED, UNORDERED};
use crate::driver::{
    self, CAPTURE_MODE, CURRENT, Stream, call, code, count, rate_between, scenario, shown, wait,
    with,
};
use crate::kernels::{self, Arguments};
use crate::scenario::Capture;

/// Attributes of a device that are known.
const SM_COUNT: c_int = 16;
const COMPUTE_MODE: c_int = 20;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

/// Attributes of a pair of devices that are known.
const P2P_RANK: c_int = 1;
const P2P_ACCESS: c_int = 2;

/// A stream that the default stream does not wait for, and the lowest priority.
const NON_BLOCKING: c_uint = 1;
const LOWEST: c_int = 0;

/// Handles of streams that were made begin after this; those below are a framework's.
const MADE_STREAMS: u64 = 1_000;

/// The attribute of an address that says whose memory it is, and the device's.
const MEMORY_TYPE: c_int = 2;
const OF_DEVICE: c_uint = 2;

type Answer = Result<(), u32>;

/// A stream that was made.
fn made(streams: &mut [Stream], handle: u64) -> Option<&mut Stream> {
    let number = handle.checked_sub(MADE_STREAMS + 1)?;
    streams.get_mut(usize::try_from(number).ok()?)
}

fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the C interface asks for a pointer that is null or valid for writing one T.
    unsafe { to.write(value) };
    Ok(())
}

fn text(from: *const c_char) -> Result<String, u32> {
    if from.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the C interface asks for a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}

fn copy(to: u64, from: u64, bytes: usize) -> Answer {
    // SAFETY: both ends are memory of this process, given out for at least so many bytes or the
    // caller's; they do not overlap, because one is the host's and one the GPU's.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    Ok(())
}

/// The same over PCIe, which takes time on the GPU.
fn transfer(to: u64, from: u64, bytes: usize) -> Answer {
    let seconds = bytes as f64 / scenario().link_rate;
    with(|state| state.nanoseconds += (seconds * 1e9) as u64);
    copy(to, from, bytes)
}

/// Memory that is never given back.
fn allocate(bytes: usize) -> u64 {
    // Eights, so that it is aligned as the kernels want it.
    let words = vec![0_u64; bytes.div_ceil(8)];
    Vec::leak(words).as_mut_ptr() as u64
}

/// What stands behind a directive of PTX.
fn directive(text: &str, name: &str) -> Option<i32> {
    let line = text.lines().find_map(|it| it.strip_prefix(name))?;
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Declares functions of the interface: each answers, and has the faults of the scenario.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) => $answer:expr;)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> c_uint {
                call(stringify!($name), || $answer)
            }
        )+
    };
}

functions! {
    cuInit(_flags: c_uint) => Ok(());
    cuDriverGetVersion(version: *mut c_int) => put(version, scenario().cuda);
    cuDeviceGetCount(count: *mut c_int) => put(count, shown().len() as c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int) => {
        let is_shown = (0..shown().len() as c_int).contains(&ordinal);
        if is_shown { put(device, ordinal) } else { Err(code::INVALID_DEVICE) }
    };
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) => {
        let scenario = scenario();
        put(value, match attribute {
            SM_COUNT => scenario.sms as c_int,
            COMPUTE_MODE => scenario.compute_mode,
            MAJOR => scenario.capability[0],
            MINOR => scenario.capability[1],
            _ => return Err(code::INVALID_VALUE),
        })
    };
    cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) => {
        let bytes = scenario().name.bytes().take(length as usize - 1).chain([0]);
        for (place, byte) in bytes.enumerate() {
            // SAFETY: the caller's room is `length` long, and there are no more bytes than that.
            unsafe { name.add(place).write(byte as c_char) };
        }
        Ok(())
    };
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, from: c_int, to: c_int) => match attribute {
        _ if from == to => Err(code::INVALID_DEVICE),
        P2P_RANK => put(value, 0),
        P2P_ACCESS => put(value, c_int::from(scenario().peer_access)),
        _ => Err(code::INVALID_VALUE),
    };
    cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) => put(context, device as u64 + 1);
    cuCtxSetCurrent(context: u64) => {
        CURRENT.set(context);
        Ok(())
    };
    cuCtxEnablePeerAccess(context: u64, _flags: c_uint) => {
        let is_new = with(|state| state.ways.insert((CURRENT.get(), context)));
        if is_new { Ok(()) } else { Err(code::ALREADY_ENABLED) }
    };
    cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize, _stream: u64) => {
        let own = CURRENT.get();
        let other = if own == to_context { from_context } else { to_context };
        let seconds = bytes as f64 / rate_between(own, other);
        with(|state| state.nanoseconds += (seconds * 1e9) as u64);
        copy(to, from, bytes)
    };
    cuCtxGetCurrent(context: *mut u64) => put(context, scenario().context);
    cuCtxGetDevice(device: *mut c_int) => put(device, 0);
    cuCtxSynchronize() => wait();
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => {
        let taken = with(|state| state.allocated);
        put(free, ((scenario().free_mib << 20).saturating_sub(taken)) as usize)
            .and_then(|()| put(total, (scenario().memory_mib << 20) as usize))
    };
    cuMemAlloc_v2(address: *mut u64, bytes: usize) => {
        let left = (scenario().free_mib << 20).saturating_sub(with(|state| state.allocated));
        if bytes as u64 > left {
            return Err(code::OUT_OF_MEMORY);
        }
        with(|state| state.allocated += bytes as u64);
        put(address, allocate(bytes))
    };
    cuMemHostAlloc(address: *mut u64, bytes: usize, _flags: c_uint) => put(address, allocate(bytes));
    cuMemsetD8_v2(address: u64, value: u8, bytes: usize) => {
        // SAFETY: memory that this library gave out for at least so many bytes.
        unsafe { (address as *mut u8).write_bytes(value, bytes) };
        wait()
    };
    cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) => wait().and_then(|()| copy(to, from, bytes));
    cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) => wait().and_then(|()| copy(to, from, bytes));
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: u64) => transfer(to, from, bytes);
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, _stream: u64) => transfer(to, from, bytes);
    cuMemsetD8Async(address: u64, value: u8, bytes: usize, _stream: u64) => {
        // SAFETY: memory that this library gave out for at least so many bytes.
        unsafe { (address as *mut u8).write_bytes(value, bytes) };
        Ok(())
    };
    cuModuleLoadData(module: *mut u64, image: *const c_char) => {
        let text = text(image)?;
        let (version, target) = (directive(&text, ".version "), directive(&text, ".target "));
        let (Some(version), Some(target)) = (version, target) else {
            return Err(code::INVALID_PTX);
        };
        // 7.0 came with 11.0, 8.0 with 12.0, and so on.
        if (version / 10 + 4) * 1_000 + version % 10 * 10 > scenario().cuda {
            return Err(code::UNSUPPORTED_PTX);
        }
        let [major, minor] = scenario().capability;
        if target > major * 10 + minor {
            return Err(code::NO_BINARY);
        }
        let number = with(|state| {
            state.modules.push(text);
            state.modules.len() as u64
        });
        put(module, number)
    };
    cuModuleGetFunction(kernel: *mut u64, module: u64, name: *const c_char) => {
        let name = text(name)?;
        let number = with(|state| {
            let text = state.modules.get(module as usize - 1)?;
            text.contains(&format!(".entry {name}(")).then(|| {
                state.kernels.push(name);
                state.kernels.len() as u64
            })
        });
        number.ok_or(code::NOT_FOUND).and_then(|it| put(kernel, it))
    };
    cuFuncGetAttribute(value: *mut c_int, _attribute: c_int, kernel: u64) => {
        with(|state| state.loaded.insert(kernel));
        put(value, 32)
    };
    cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, priority: c_int) => {
        let is_aside = flags == NON_BLOCKING && priority == LOWEST;
        let number = with(|state| {
            state.streams.push(Stream { is_aside, is_ordered: false });
            state.streams.len() as u64
        });
        put(stream, MADE_STREAMS + number)
    };
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) =>
        put(least, LOWEST).and_then(|()| put(greatest, -5));
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int) => {
        if mode.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the C interface asks for a pointer to an integer, which may be read and written.
        unsafe { mode.write(CAPTURE_MODE.replace(mode.read())) };
        Ok(())
    };
    cuStreamIsCapturing(_stream: u64, status: *mut c_int) => match scenario().capture {
        Capture::Implicit => Err(code::CAPTURE_IMPLICIT),
        capture => put(status, c_int::from(capture == Capture::Own)),
    };
    cuStreamWaitEvent(stream: u64, _event: u64, _flags: c_uint) => with(|state| {
        let stream = made(&mut state.streams, stream).ok_or(code::INVALID_VALUE)?;
        stream.is_ordered = true;
        Ok(())
    });
    cuPointerGetAttribute(value: *mut c_uint, attribute: c_int, address: u64) => {
        let is_asked = attribute == MEMORY_TYPE && address != 0;
        if is_asked { put(value, OF_DEVICE) } else { Err(code::INVALID_VALUE) }
    };
    cuEventCreate(event: *mut u64, _flags: c_uint) => {
        let number = with(|state| {
            state.events.push((0, 0));
            state.events.len() as u64
        });
        put(event, number)
    };
    cuEventRecord(event: u64, _stream: u64) => with(|state| {
        let now = state.nanoseconds;
        let moment = state.events.get_mut(event as usize - 1).ok_or(code::INVALID_VALUE)?;
        *moment = (now, scenario().ready_after);
        Ok(())
    });
    cuEventQuery(event: u64) => {
        let is_past = with(|state| {
            let (_, left) = state.events.get_mut(event as usize - 1).ok_or(code::INVALID_VALUE)?;
            let is_past = *left == 0 && !state.is_stuck;
            *left = left.saturating_sub(1);
            Ok::<bool, u32>(is_past)
        })?;
        if is_past { wait() } else { Err(code::NOT_READY) }
    };
    cuEventSynchronize(_event: u64) => wait();
    cuEventElapsedTime(milliseconds: *mut f32, from: u64, to: u64) => {
        let took = with(|state| {
            let of = |event: u64| state.events.get(event as usize - 1).copied();
            Some(of(to)?.0.saturating_sub(of(from)?.0))
        });
        took.ok_or(code::INVALID_VALUE).and_then(|it| put(milliseconds, it as f32 / 1e6))
    };
}

/// What a launch was given.
struct Given(*mut *mut c_void);

impl Arguments for Given {
    fn four(&self, place: usize) -> u32 {
        // SAFETY: a launch passes a pointer to each argument of the kernel, in its order.
        unsafe { (*self.0.add(place)).cast::<u32>().read() }
    }

    fn eight(&self, place: usize) -> u64 {
        // SAFETY: the same.
        unsafe { (*self.0.add(place)).cast::<u64>().read() }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    kernel: u64,
    blocks: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _threads: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    stream: u64,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_uint {
    call("cuLaunchKernel", || {
        let stream = with(|state| made(&mut state.streams, stream).copied());
        if stream.is_none_or(|it| !it.is_aside) {
            count(ELSEWHERE);
        }
        if stream.is_none_or(|it| !it.is_ordered) {
            count(UNORDERED);
        }
        if with(|state| state.loaded.insert(kernel)) {
            count(UNLOADED);
        }
        let name = with(|state| state.kernels.get(kernel as usize - 1).cloned());
        kernels::run(&name.ok_or(code::INVALID_VALUE)?, blocks, &Given(arguments));
        Ok(())
    })
}

/// From now on this scenario holds, a text of TOML; counts begin anew.
#[unsafe(no_mangle)]
extern "C" fn gpufleet_standin_scenario(scenario: *const c_char) {
    driver::set(&text(scenario).expect("a text"));
}

/// How often a function was called, or something else was done, under this scenario.
#[unsafe(no_mangle)]
extern "C" fn gpufleet_standin_calls(what: *const c_char) -> u64 {
    let what = text(what).expect("a text");
    with(|state| state.calls.get(what.as_str()).copied().unwrap_or(0))
}
