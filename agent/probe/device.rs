//! One GPU through CUDA's driver, as much of it as the probe needs. Everything unsafe of the probe is
//! here. The library is loaded when it is first asked for something, in the child process only.
//!
//! Nothing is given back: the process that has this ends right after, and takes its context with it.
#![expect(
    unsafe_code,
    reason = "CUDA's driver is a C library; cudarc's thin layer hands its functions on as they are"
)]

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute};

use super::launch::Argument;
use super::measured::Why;
use super::ptx::{Capability, File, OLDEST_CUDA};

mod peer;

pub(super) use peer::{Apart, Peer};

/// CUDA's numbers of what is told apart here.
const OUT_OF_MEMORY: u32 = 2;
const DEVICE_UNAVAILABLE: u32 = 46;
const NO_DEVICE: u32 = 100;
const INVALID_DEVICE: u32 = 101;
const UNSUPPORTED_PTX: u32 = 222;

/// A compute mode of the card.
const PROHIBITED: i32 = 2;

/// The GPU that this process sees, and the driver's word about it.
pub(super) struct Gpu {
    device: sys::CUdevice,
    /// The driver's CUDA version.
    pub(super) cuda: i32,
    /// Its name as CUDA spells it.
    pub(super) name: String,
    /// What it can do.
    pub(super) capability: Capability,
    /// SMs it has.
    pub(super) sms: u32,
}

/// A file of kernels, compiled for the GPU.
#[derive(Clone, Copy)]
pub(super) struct Module(sys::CUmodule);

/// A kernel of it.
#[derive(Clone, Copy)]
pub(super) struct Kernel(sys::CUfunction);

/// Memory of the GPU.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    /// Its address there.
    pub(super) address: u64,
    /// Its length.
    pub(super) bytes: usize,
}

/// Memory of the host that the GPU copies from and to by itself.
pub(super) struct Pinned {
    address: *mut c_void,
    bytes: usize,
}

/// A moment on the GPU.
pub(super) struct Moment(sys::CUevent);

/// Whether there is a driver to load at all.
pub(super) fn is_driver_here() -> bool {
    // SAFETY: loads the library by its name, as any call below would; its initialisers are the
    // driver's own.
    unsafe { sys::is_culib_present() }
}

fn why(error: DriverError) -> Why {
    let code = error.0 as u32;
    match code {
        NO_DEVICE | INVALID_DEVICE => Why::NoGpu,
        code => Why::Cuda(code, format!("{:?}", error.0)),
    }
}

impl Gpu {
    /// The first GPU that this process is shown.
    pub(super) fn open() -> Result<Self, Why> {
        result::init().map_err(why)?;
        let mut cuda = 0;
        // SAFETY: the pointer is to an integer that lives through the call.
        unsafe { sys::cuDriverGetVersion(&raw mut cuda) }
            .result()
            .map_err(why)?;
        if cuda < OLDEST_CUDA {
            return Err(Why::OldDriver(cuda));
        }
        if result::device::get_count().map_err(why)? < 1 {
            return Err(Why::NoGpu);
        }
        let device = result::device::get(0).map_err(why)?;
        let attribute = |it: CUdevice_attribute| {
            // SAFETY: the device was returned by the driver two lines above.
            unsafe { result::device::get_attribute(device, it) }.map_err(why)
        };
        let mode = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?;
        if mode == PROHIBITED {
            return Err(Why::ComputeMode("prohibited".to_owned()));
        }
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let sms = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(Self {
            device,
            cuda,
            name: result::device::get_name(device).map_err(why)?,
            capability: Capability(major, minor),
            sms: u32::try_from(sms).unwrap_or(0),
        })
    }

    /// Makes a context on it and makes it this thread's.
    pub(super) fn enter(&self) -> Result<(), Why> {
        // SAFETY: the device is one the driver returned, and the context is never released.
        let entered = unsafe {
            result::primary_ctx::retain(self.device).and_then(|it| result::ctx::set_current(it))
        };
        entered.map_err(|error| match why(error) {
            Why::Cuda(DEVICE_UNAVAILABLE, _) => {
                Why::ComputeMode("exclusive, and another process is in".to_owned())
            }
            Why::Cuda(OUT_OF_MEMORY, _) => Why::NoMemory(0),
            other => other,
        })
    }

    /// Has the driver compile a file.
    pub(super) fn compile(&self, file: File) -> Result<Module, Why> {
        let text = CString::new(file.text).map_err(|_| Why::OldDriver(self.cuda))?;
        // SAFETY: the driver reads the text up to its zero and keeps nothing of it.
        let loaded = unsafe { result::module::load_data(text.as_ptr().cast()) };
        loaded.map(Module).map_err(|error| match why(error) {
            Why::Cuda(UNSUPPORTED_PTX, _) => Why::OldDriver(self.cuda),
            other => other,
        })
    }

    /// Bytes that are free on it.
    pub(super) fn free_bytes(&self) -> Result<u64, Why> {
        let (free, _) = result::mem_get_info().map_err(why)?;
        Ok(free as u64)
    }

    /// Memory of it, with whatever was in it.
    pub(super) fn allocate(&self, bytes: usize) -> Result<Buffer, Why> {
        // SAFETY: what is in it is only read by the driver's copies and our kernels, as numbers.
        let allocated = unsafe { result::malloc_sync(bytes) };
        let address = allocated.map_err(|error| match why(error) {
            Why::Cuda(OUT_OF_MEMORY, _) => Why::NoMemory(self.free_bytes().unwrap_or(0)),
            other => other,
        })?;
        Ok(Buffer { address, bytes })
    }

    /// Launches a kernel after what was launched before.
    pub(super) fn launch(
        &self,
        kernel: Kernel,
        (blocks, threads): (u32, u32),
        arguments: &[Argument],
    ) -> Result<(), Why> {
        let mut arguments = arguments.to_vec();
        let mut places: Vec<*mut c_void> = arguments.iter_mut().map(Argument::place).collect();
        // SAFETY: the arguments are those of the kernel's declaration (probe/kernels/*.cu; a test runs each
        // through the stand-in, which reads them by it), they live through the call, which copies
        // them, and every address among them is of a buffer of this process that is never freed.
        unsafe {
            let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
            let stream = ptr::null_mut();
            result::launch_kernel(kernel.0, grid, block, 0, stream, &mut places).map_err(why)
        }
    }

    /// Waits until everything that was launched has ended.
    pub(super) fn wait(&self) -> Result<(), Why> {
        result::ctx::synchronize().map_err(why)
    }

    /// Notes a moment after what was launched before.
    pub(super) fn mark(&self) -> Result<Moment, Why> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(why)?;
        // SAFETY: the event was made one line above; the stream is the context's own.
        unsafe { result::event::record(event, ptr::null_mut()) }.map_err(why)?;
        Ok(Moment(event))
    }

    /// Seconds between two moments; waits for the later one.
    pub(super) fn between(&self, from: &Moment, to: &Moment) -> Result<f64, Why> {
        // SAFETY: both events were made and recorded by `mark` and are never destroyed.
        let elapsed = unsafe {
            result::event::synchronize(to.0).and_then(|()| result::event::elapsed(from.0, to.0))
        };
        Ok(f64::from(elapsed.map_err(why)?) / 1e3)
    }
}

impl Module {
    /// A kernel of it.
    pub(super) fn kernel(self, name: &str) -> Result<Kernel, Why> {
        let name = CString::new(name).map_err(|_| Why::NoGpu)?;
        // SAFETY: the module was loaded and is never unloaded.
        unsafe { result::module::get_function(self.0, name) }
            .map(Kernel)
            .map_err(why)
    }
}

impl Buffer {
    /// A part of it.
    pub(super) fn part(self, from: usize, bytes: usize) -> Self {
        let from = from.min(self.bytes);
        Self {
            address: self.address + from as u64,
            bytes: bytes.min(self.bytes - from),
        }
    }

    /// Makes all of it zero.
    pub(super) fn clear(self) -> Result<(), Why> {
        // SAFETY: the buffer is memory of this process's context and as long as it says.
        unsafe { result::memset_d8_sync(self.address, 0, self.bytes) }.map_err(why)
    }

    /// Writes bytes to its beginning.
    pub(super) fn write(self, bytes: &[u8]) -> Result<(), Why> {
        let bytes = &bytes[..bytes.len().min(self.bytes)];
        // SAFETY: not more bytes than the buffer has, from memory that lives through the call.
        unsafe { result::memcpy_htod_sync(self.address, bytes) }.map_err(why)
    }

    /// Reads all of it.
    pub(super) fn read(self) -> Result<Vec<u8>, Why> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: as many bytes as the buffer has, into memory that lives through the call.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address) }.map_err(why)?;
        Ok(bytes)
    }
}

impl Pinned {
    /// So many bytes, all zero.
    pub(super) fn allocate(bytes: usize) -> Result<Self, Why> {
        // SAFETY: what was in the memory is overwritten before anybody reads it.
        let address = unsafe { result::malloc_host(bytes, 0) }.map_err(why)?;
        // SAFETY: the driver has just given so many bytes at this address, nobody else's.
        unsafe { ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        Ok(Self { address, bytes })
    }

    /// Has the GPU copy it into a buffer, after what was launched before.
    pub(super) fn copy_to(&self, buffer: Buffer) -> Result<(), Why> {
        let bytes = self.bytes.min(buffer.bytes);
        // SAFETY: both are at least so long and live as long as the process.
        unsafe { sys::cuMemcpyHtoDAsync_v2(buffer.address, self.address, bytes, ptr::null_mut()) }
            .result()
            .map_err(why)
    }

    /// Has the GPU copy a buffer into it, after what was launched before.
    pub(super) fn copy_from(&self, buffer: Buffer) -> Result<(), Why> {
        let bytes = self.bytes.min(buffer.bytes);
        // SAFETY: both are at least so long and live as long as the process, and nobody reads the
        // host's side.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.address, buffer.address, bytes, ptr::null_mut()) }
            .result()
            .map_err(why)
    }
}
