//! CUDA's driver as a training process has it loaded already: found, never loaded, and as much of it as the
//! probe needs. Everything unsafe of this crate is here.
//!
//! No function here waits for the GPU: there is no call that synchronises, allocates or frees memory of it, or
//! makes a context.
#![expect(
    unsafe_code,
    reason = "CUDA's driver is a C library whose functions are looked up by name"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::Cannot;
use crate::launch::Argument;

/// CUDA's numbers of what is told apart here.
const NOT_READY: u32 = 600;
const CAPTURE_IMPLICIT: u32 = 906;

/// Attributes of a device: SMs, capability.
pub(super) const SM_COUNT: c_int = 16;
pub(super) const MAJOR: c_int = 75;
pub(super) const MINOR: c_int = 76;

/// The attribute of an address that says whose memory it is, and the device's.
const MEMORY_TYPE: c_int = 2;
const OF_DEVICE: c_uint = 2;

/// The attribute of a kernel that is asked for, to have it loaded: its registers.
const REGISTERS: c_int = 4;

/// A stream that the legacy default stream, which frameworks launch on, does not wait for.
const NON_BLOCKING: c_uint = 1;

/// An event that is not timed costs less.
const UNTIMED: c_uint = 2;

/// The mode in which this thread's calls leave a capture of another thread alone.
const RELAXED: c_int = 2;

/// Declares the functions that are looked up: field, symbol, arguments. All return CUDA's number of an error.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)+) => {
        /// The functions, by address.
        #[derive(Clone, Copy)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_uint,)+
        }

        impl Functions {
            /// Each of them, or the name of the first that the driver lacks.
            fn find(library: *mut c_void) -> Result<Self, Cannot> {
                Ok(Self {
                    $($field: {
                        let address = symbol(library, $symbol);
                        if address.is_null() {
                            let name = $symbol.to_str().unwrap_or_default();
                            return Err(Cannot::Lacks(name));
                        }
                        // SAFETY: the driver's symbol of this name has this signature since CUDA 11.0;
                        // the library is never unloaded.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_uint,
                            >(address)
                        }
                    },)+
                })
            }
        }
    };
}

functions! {
    version = c"cuDriverGetVersion" (*mut c_int);
    context = c"cuCtxGetCurrent" (*mut u64);
    enter = c"cuCtxSetCurrent" (u64);
    device = c"cuCtxGetDevice" (*mut c_int);
    attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    priorities = c"cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
    stream = c"cuStreamCreateWithPriority" (*mut u64, c_uint, c_int);
    is_capturing = c"cuStreamIsCapturing" (u64, *mut c_int);
    wait_event = c"cuStreamWaitEvent" (u64, u64, c_uint);
    event = c"cuEventCreate" (*mut u64, c_uint);
    record = c"cuEventRecord" (u64, u64);
    query = c"cuEventQuery" (u64);
    elapsed = c"cuEventElapsedTime" (*mut f32, u64, u64);
    load = c"cuModuleLoadData" (*mut u64, *const c_char);
    kernel = c"cuModuleGetFunction" (*mut u64, u64, *const c_char);
    kernel_attribute = c"cuFuncGetAttribute" (*mut c_int, c_int, u64);
    free_bytes = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    pointer_attribute = c"cuPointerGetAttribute" (*mut c_void, c_int, u64);
    host_memory = c"cuMemHostAlloc" (*mut *mut u8, usize, c_uint);
    clear = c"cuMemsetD8Async" (u64, u8, usize, u64);
    to_gpu = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, u64);
    from_gpu = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, u64);
    launch = c"cuLaunchKernel" (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, *mut *mut c_void, *mut *mut c_void);
}

/// The driver of this process.
#[derive(Clone, Copy)]
pub(super) struct Driver(Functions);

/// A context, a stream, an event, a kernel: the driver's own handles, each for as long as the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Context(u64);
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream(u64);
#[derive(Debug, Clone, Copy)]
pub(super) struct Event(u64);
#[derive(Debug, Clone, Copy)]
pub(super) struct Module(u64);
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel(u64);

/// Memory of the host that the GPU copies from and to by itself; never given back.
#[derive(Debug)]
pub(super) struct Pinned {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory at an address that nobody else knows; who has it has it alone.
unsafe impl Send for Pinned {}

impl Stream {
    /// The stream that a framework names by its handle; 0 is the default one.
    pub(super) const fn named(handle: u64) -> Self {
        Self(handle)
    }
}

/// An answer of the driver's.
fn told(code: c_uint, doing: &'static str) -> Result<(), Cannot> {
    match code {
        0 => Ok(()),
        code => Err(Cannot::Cuda { code, doing }),
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the library is open, and the name ends with a zero.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Has this thread run no handler of the training process.
pub(super) fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is ours and is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

/// While this lives, what its thread asks of the driver leaves the captures of other threads alone.
pub(super) struct Relaxed<'a>(&'a Driver, c_int);

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        // SAFETY: the pointer is to an integer that lives through the call. What was before is put back; an
        // error would have come before.
        unsafe { (self.0.0.exchange_capture_mode)(&raw mut self.1) };
    }
}

impl Driver {
    /// The driver, where this process has loaded it.
    pub(super) fn find() -> Result<Self, Cannot> {
        // SAFETY: the name ends with a zero. A library that is not loaded is not loaded by this.
        let library = unsafe {
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
            libc::dlopen(c"libcuda.so.1".as_ptr(), flags)
        };
        if library.is_null() {
            return Err(Cannot::NotLoaded);
        }
        Functions::find(library).map(Self)
    }

    /// Makes this thread's calls harmless to captures until the answer is dropped.
    pub(super) fn relaxed(&self) -> Result<Relaxed<'_>, Cannot> {
        let mut mode = RELAXED;
        // SAFETY: the pointer is to an integer that lives through the call.
        let code = unsafe { (self.0.exchange_capture_mode)(&raw mut mode) };
        told(code, "changing the capture mode")?;
        Ok(Relaxed(self, mode))
    }

    /// Its CUDA version.
    pub(super) fn version(&self) -> Result<i32, Cannot> {
        let mut version = 0;
        // SAFETY: the pointer is to an integer that lives through the call.
        let code = unsafe { (self.0.version)(&raw mut version) };
        told(code, "asking for its version")?;
        Ok(version)
    }

    /// The context of this thread.
    pub(super) fn context(&self) -> Result<Context, Cannot> {
        let mut context = 0;
        // SAFETY: the pointer is to a handle that lives through the call.
        let code = unsafe { (self.0.context)(&raw mut context) };
        told(code, "asking for the context")?;
        match context {
            0 => Err(Cannot::NoContext),
            context => Ok(Context(context)),
        }
    }

    /// Makes a context this thread's.
    pub(super) fn enter(&self, context: Context) -> Result<(), Cannot> {
        // SAFETY: the context is one that the driver named; that of a framework lives as long as the process.
        let code = unsafe { (self.0.enter)(context.0) };
        told(code, "entering the context")
    }

    /// An attribute of the device of this thread's context.
    pub(super) fn attribute(&self, attribute: c_int) -> Result<i32, Cannot> {
        const DOING: &str = "asking what the device is";
        let (mut device, mut value) = (0, 0);
        // SAFETY: both pointers are to integers that live through the calls.
        unsafe {
            told((self.0.device)(&raw mut device), DOING)?;
            told((self.0.attribute)(&raw mut value, attribute, device), DOING)?;
        }
        Ok(value)
    }

    /// A new stream of the lowest priority.
    pub(super) fn stream(&self) -> Result<Stream, Cannot> {
        const DOING: &str = "making a stream";
        let (mut lowest, mut highest, mut stream) = (0, 0, 0);
        // SAFETY: all pointers are to values that live through the calls.
        unsafe {
            told(
                (self.0.priorities)(&raw mut lowest, &raw mut highest),
                DOING,
            )?;
            told(
                (self.0.stream)(&raw mut stream, NON_BLOCKING, lowest),
                DOING,
            )?;
        }
        Ok(Stream(stream))
    }

    /// Whether work on this stream would become a part of a graph.
    pub(super) fn is_capturing(&self, stream: Stream) -> Result<bool, Cannot> {
        let mut status = 0;
        // SAFETY: the stream is the framework's or ours; the pointer is to an integer that lives through the
        // call.
        match unsafe { (self.0.is_capturing)(stream.0, &raw mut status) } {
            // The default stream, while another is captured.
            CAPTURE_IMPLICIT => Ok(true),
            code => told(code, "asking for captures").map(|()| status != 0),
        }
    }

    /// A new event.
    pub(super) fn event(&self, is_timed: bool) -> Result<Event, Cannot> {
        let mut event = 0;
        let flags = if is_timed { 0 } else { UNTIMED };
        // SAFETY: the pointer is to a handle that lives through the call.
        let code = unsafe { (self.0.event)(&raw mut event, flags) };
        told(code, "making an event")?;
        Ok(Event(event))
    }

    /// Notes the event after what is on the stream.
    pub(super) fn record(&self, event: Event, stream: Stream) -> Result<(), Cannot> {
        // SAFETY: the event was made by `event` and is never destroyed; the stream is the framework's or ours.
        let code = unsafe { (self.0.record)(event.0, stream.0) };
        told(code, "recording an event")
    }

    /// Has the stream wait for the event, on the GPU.
    pub(super) fn wait(&self, stream: Stream, event: Event) -> Result<(), Cannot> {
        // SAFETY: both were made here and are never destroyed.
        let code = unsafe { (self.0.wait_event)(stream.0, event.0, 0) };
        told(code, "ordering streams")
    }

    /// Whether the GPU is past the event.
    pub(super) fn is_past(&self, event: Event) -> Result<bool, Cannot> {
        // SAFETY: the event was made by `event` and is never destroyed.
        match unsafe { (self.0.query)(event.0) } {
            NOT_READY => Ok(false),
            code => told(code, "running its kernels, or training's before them").map(|()| true),
        }
    }

    /// Seconds between two events that the GPU is past.
    pub(super) fn between(&self, from: Event, to: Event) -> Result<f64, Cannot> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are timed and never destroyed; the pointer is to a number that lives through the
        // call.
        let code = unsafe { (self.0.elapsed)(&raw mut milliseconds, from.0, to.0) };
        told(code, "reading its time")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Has the driver compile a file of kernels.
    pub(super) fn compile(&self, text: &str) -> Result<Module, Cannot> {
        const DOING: &str = "having the driver compile the kernels";
        let text = CString::new(text).map_err(|_| Cannot::Lacks("kernels"))?;
        let mut module = 0;
        // SAFETY: the driver reads the text up to its zero and keeps nothing of it.
        let code = unsafe { (self.0.load)(&raw mut module, text.as_ptr()) };
        told(code, DOING)?;
        Ok(Module(module))
    }

    /// A kernel of a module, loaded. The driver loads it when it is first needed, for which it may wait for the
    /// GPU: now, in the thread that compiles, and not at the first launch.
    pub(super) fn kernel(&self, module: Module, name: &str) -> Result<Kernel, Cannot> {
        let name = CString::new(name).map_err(|_| Cannot::Lacks("a kernel"))?;
        let mut kernel = 0;
        // SAFETY: the module was loaded by `compile` and is never unloaded; the name ends with a zero.
        let code = unsafe { (self.0.kernel)(&raw mut kernel, module.0, name.as_ptr()) };
        told(code, "looking a kernel up")?;
        let mut registers = 0;
        // SAFETY: the kernel was found one call above; the pointer is to an integer that lives through the call.
        let code = unsafe { (self.0.kernel_attribute)(&raw mut registers, REGISTERS, kernel) };
        told(code, "loading a kernel")?;
        Ok(Kernel(kernel))
    }

    /// Bytes of the GPU's memory that nobody has.
    pub(super) fn free_bytes(&self) -> Result<u64, Cannot> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to integers that live through the call.
        let code = unsafe { (self.0.free_bytes)(&raw mut free, &raw mut total) };
        told(code, "asking for free memory")?;
        Ok(free as u64)
    }

    /// Whether an address is of the GPU's memory.
    pub(super) fn is_of_device(&self, address: u64) -> bool {
        let mut whose: c_uint = 0;
        // SAFETY: this attribute is an integer of four bytes, which lives through the call.
        let code =
            unsafe { (self.0.pointer_attribute)((&raw mut whose).cast(), MEMORY_TYPE, address) };
        code == 0 && whose == OF_DEVICE
    }

    /// Memory of the host with these bytes at its beginning, zero after them.
    pub(super) fn pinned(&self, beginning: &[u8], bytes: usize) -> Result<Pinned, Cannot> {
        let mut address = ptr::null_mut();
        let bytes = bytes.max(beginning.len());
        // SAFETY: the pointer is to a pointer that lives through the call.
        let code = unsafe { (self.0.host_memory)(&raw mut address, bytes, 0) };
        told(code, "getting pinned memory")?;
        // SAFETY: the driver has just given so many bytes at this address, nobody else's.
        unsafe {
            ptr::write_bytes(address, 0, bytes);
            ptr::copy_nonoverlapping(beginning.as_ptr(), address, beginning.len());
        }
        Ok(Pinned { address, bytes })
    }

    /// Has the GPU make a part of its memory zero.
    pub(super) fn clear(&self, address: u64, bytes: usize, stream: Stream) -> Result<(), Cannot> {
        // SAFETY: the caller was lent so many bytes of the GPU's memory at this address, until an event after
        // this call is past.
        let code = unsafe { (self.0.clear)(address, 0, bytes, stream.0) };
        told(code, "clearing memory")
    }

    /// Has the GPU copy the beginning of pinned memory to its own.
    pub(super) fn copy_to(
        &self,
        address: u64,
        from: &Pinned,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), Cannot> {
        let bytes = bytes.min(from.bytes);
        // SAFETY: the pinned memory is as long and lives as long as the process; the GPU's was lent.
        let code = unsafe { (self.0.to_gpu)(address, from.address.cast(), bytes, stream.0) };
        told(code, "copying to the GPU")
    }

    /// Has the GPU copy of its memory to pinned memory, from `at` on.
    pub(super) fn copy_from(
        &self,
        to: &Pinned,
        at: usize,
        address: u64,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), Cannot> {
        let at = at.min(to.bytes);
        let bytes = bytes.min(to.bytes - at);
        // SAFETY: what is written is within the pinned memory, which lives as long as the process, and is read
        // after an event that comes after this call is past.
        let code =
            unsafe { (self.0.from_gpu)(to.address.add(at).cast(), address, bytes, stream.0) };
        told(code, "copying from the GPU")
    }

    /// Launches a kernel after what is on the stream.
    pub(super) fn launch(
        &self,
        kernel: Kernel,
        (blocks, threads): (u32, u32),
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<(), Cannot> {
        let mut arguments = arguments.to_vec();
        let mut places: Vec<*mut c_void> = arguments.iter_mut().map(Argument::place).collect();
        // SAFETY: the arguments are those of the kernel's declaration (probe/kernels/*.cu; a test runs each
        // through the stand-in, which reads them by it) and live through the call, which copies them; every
        // address among them lies in memory that the caller was lent.
        let code = unsafe {
            let given = places.as_mut_ptr();
            let none = ptr::null_mut();
            (self.0.launch)(
                kernel.0, blocks, 1, 1, threads, 1, 1, 0, stream.0, given, none,
            )
        };
        told(code, "launching a kernel")
    }
}

impl Pinned {
    /// What is in a part of it, once the GPU has written it.
    pub(super) fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let at = at.min(self.bytes);
        let bytes = bytes.min(self.bytes - at);
        let mut read = vec![0; bytes];
        // SAFETY: the part is within the memory, and the event after the GPU's copy is past.
        unsafe { ptr::copy_nonoverlapping(self.address.add(at), read.as_mut_ptr(), bytes) };
        read
    }
}
