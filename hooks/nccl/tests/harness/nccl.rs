//! NCCL's side of the interface, written from the facts about it and not from the plugin's own
//! structures: bytes at offsets.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::ptr::{null, null_mut};

/// Every version that the plugin has.
pub(crate) const VERSIONS: [u32; 4] = [4, 5, 6, 7];

/// Types of events, the bits of the mask.
pub(crate) const GROUP: u64 = 1;
pub(crate) const COLLECTIVE: u64 = 2;
pub(crate) const POINT_TO_POINT: u64 = 4;
pub(crate) const KERNEL_CHANNEL: u64 = 64;

/// Everything the plugin can make something of.
pub(crate) const ALL: [(&str, &str); 1] = [("GPUFLEET_NCCL_MASK", "0x46")];

/// Where a handle was before the plugin wrote it: NCCL keeps old values there.
pub(crate) const OLD: usize = 0xdead_0000;

type Log = unsafe extern "C" fn(u32, c_ulong, *const c_char, c_int, *const c_char, ...);
type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Log>,
) -> c_int;
type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Log>,
) -> c_int;

/// A table as NCCL sees it.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: *const c_void,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, u32, *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: a table is constant.
unsafe impl Sync for Table {}

/// A context or a handle. NCCL gives it to any of its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer(pub(crate) *mut c_void);

// SAFETY: nobody follows it.
unsafe impl Send for Pointer {}
// SAFETY: likewise.
unsafe impl Sync for Pointer {}

impl Pointer {
    pub(crate) const NULL: Self = Self(null_mut());

    pub(crate) const fn number(number: usize) -> Self {
        Self(std::ptr::without_provenance_mut(number))
    }
}

/// The loaded plugin, by one version of its interface.
#[derive(Clone, Copy)]
pub(crate) struct Nccl {
    pub(crate) version: u32,
    pub(crate) library: Pointer,
    table: &'static Table,
    log: Option<Log>,
}

/// A descriptor: what is not set is garbage.
#[repr(C, align(8))]
pub(crate) struct Descriptor([u8; 136]);

impl Descriptor {
    fn new(version: u32, kind: u64, parent: Pointer) -> Self {
        let mut this = Self([0xa5; 136]);
        match version {
            4 => this.put(0, &[kind as u8]),
            _ => this.put(0, &kind.to_le_bytes()),
        }
        this.put(8, &parent.0.addr().to_le_bytes());
        this.put(16, &0_i32.to_le_bytes());
        this
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn text(&mut self, offset: usize, text: Option<&'static CStr>) {
        let address = text.map_or(0, |it| it.as_ptr().expose_provenance());
        self.put(offset, &address.to_le_bytes());
    }
}

/// What the tests say of a collective.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: Option<&'static CStr>,
    pub(crate) sequence: u64,
    pub(crate) count: usize,
    pub(crate) data_type: Option<&'static CStr>,
    pub(crate) root: i32,
    pub(crate) channels: u8,
}

impl Call {
    pub(crate) const ALL_REDUCE: Self = Self {
        function: Some(c"AllReduce"),
        sequence: 1,
        count: 1000,
        data_type: Some(c"ncclBfloat16"),
        root: 0,
        channels: 2,
    };
}

impl Nccl {
    fn path() -> CString {
        let program = std::env::current_exe().expect("this program");
        let path = program.with_file_name("libgpufleet_nccl_profiler.so");
        CString::new(path.to_str().expect("a path")).expect("a path")
    }

    /// Whether the plugin is in this process' memory.
    pub(crate) fn is_loaded() -> bool {
        // SAFETY: loads nothing, it gives the library that is there.
        let found =
            unsafe { libc::dlopen(Self::path().as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        !found.is_null()
    }

    /// Loads the plugin as NCCL does.
    pub(crate) fn load(version: u32) -> Self {
        let path = Self::path();
        // SAFETY: the plugin's own initialisers are those of Rust's library.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        let name = CString::new(format!("ncclProfiler_v{version}")).expect("a name");
        // SAFETY: the library is loaded.
        let table = unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: the symbol is a table, and the library stays.
        let table: &'static Table = unsafe { table.cast::<Table>().as_ref() }.expect("a table");
        // SAFETY: the name is a C string of the library.
        let plugin = unsafe { CStr::from_ptr(table.name) };
        assert_eq!(plugin, c"gpufleet");
        Self {
            version,
            library: Pointer(library),
            table,
            log: None,
        }
    }

    /// The same with a log function, which lies in some library.
    pub(crate) fn with_log(self, log: *mut c_void) -> Self {
        // SAFETY: the function is never called, only its address is looked at.
        let log = unsafe { std::mem::transmute::<*mut c_void, Option<Log>>(log) };
        Self { log, ..self }
    }

    /// Makes a communicator; its context and the mask asked for.
    pub(crate) fn init(self, hash: u64, ranks: i32, rank: i32) -> (Pointer, i32) {
        let mut context = Pointer::number(OLD);
        let mut mask = -1;
        let (name, log) = (c"dp".as_ptr(), self.log);
        // SAFETY: the functions are of these types in these versions.
        let result = unsafe {
            if self.version == 4 {
                let init = std::mem::transmute::<*const c_void, InitV4>(self.table.init);
                init(
                    &raw mut context.0,
                    &raw mut mask,
                    name,
                    hash,
                    2,
                    ranks,
                    rank,
                    log,
                )
            } else {
                let init = std::mem::transmute::<*const c_void, Init>(self.table.init);
                init(
                    &raw mut context.0,
                    hash,
                    &raw mut mask,
                    name,
                    2,
                    ranks,
                    rank,
                    log,
                )
            }
        };
        assert_eq!(result, 0, "init never fails");
        (context, mask)
    }

    /// Makes a communicator with null for every pointer.
    pub(crate) fn init_with_nothing(self) {
        // SAFETY: the functions are of these types, and take null.
        let result = unsafe {
            if self.version == 4 {
                let init = std::mem::transmute::<*const c_void, InitV4>(self.table.init);
                init(null_mut(), null_mut(), null(), 1, 1, 2, 0, None)
            } else {
                let init = std::mem::transmute::<*const c_void, Init>(self.table.init);
                init(null_mut(), 1, null_mut(), null(), 1, 2, 0, None)
            }
        };
        assert_eq!(result, 0, "init never fails");
    }

    /// A communicator of eight ranks.
    pub(crate) fn eight(self) -> Pointer {
        let (context, _mask) = self.init(0xabc, 8, 3);
        assert_ne!(context, Pointer::NULL);
        context
    }

    fn start(self, context: Pointer, descriptor: &mut Descriptor) -> Pointer {
        let mut handle = Pointer::number(OLD);
        let descriptor = (&raw mut *descriptor).cast();
        // SAFETY: the descriptor is as long as the longest, and of the type that it says.
        let result = unsafe { (self.table.start)(context.0, &raw mut handle.0, descriptor) };
        assert_eq!(result, 0);
        assert_ne!(handle, Pointer::number(OLD), "the handle is always written");
        handle
    }

    /// Starts with null where a pointer is expected.
    pub(crate) fn start_nothing(self, context: Pointer) {
        let mut handle = Pointer::number(OLD);
        let mut descriptor = Descriptor::new(self.version, COLLECTIVE, Pointer::NULL);
        self.fill(&mut descriptor, Call::ALL_REDUCE);
        // SAFETY: the plugin takes null for each.
        let results = unsafe {
            [
                (self.table.start)(context.0, &raw mut handle.0, null_mut()),
                (self.table.start)(context.0, null_mut(), (&raw mut descriptor).cast()),
            ]
        };
        assert_eq!(results, [0, 0]);
        assert_eq!(handle, Pointer::NULL);
    }

    /// An event of a type that says nothing more.
    pub(crate) fn other(self, context: Pointer, kind: u64) -> Pointer {
        self.start(
            context,
            &mut Descriptor::new(self.version, kind, Pointer::NULL),
        )
    }

    fn fill(self, descriptor: &mut Descriptor, call: Call) {
        descriptor.put(24, &call.sequence.to_le_bytes());
        descriptor.text(32, call.function);
        descriptor.put(56, &call.count.to_le_bytes());
        descriptor.put(64, &call.root.to_le_bytes());
        descriptor.text(72, call.data_type);
        descriptor.put(80, &[call.channels]);
    }

    /// A collective is enqueued.
    pub(crate) fn collective(self, context: Pointer, call: Call) -> Pointer {
        let mut descriptor = Descriptor::new(self.version, COLLECTIVE, Pointer::NULL);
        self.fill(&mut descriptor, call);
        self.start(context, &mut descriptor)
    }

    /// A send or a receive is enqueued.
    pub(crate) fn point_to_point(
        self,
        context: Pointer,
        function: &'static CStr,
        peer: i32,
        count: usize,
    ) -> Pointer {
        let mut descriptor = Descriptor::new(self.version, POINT_TO_POINT, Pointer::NULL);
        descriptor.text(24, Some(function));
        descriptor.text(40, Some(c"ncclFloat32"));
        descriptor.put(48, &count.to_le_bytes());
        descriptor.put(56, &peer.to_le_bytes());
        descriptor.put(60, &[1]);
        self.start(context, &mut descriptor)
    }

    /// A channel of a kernel starts.
    pub(crate) fn kernel(
        self,
        context: Pointer,
        parent: Pointer,
        channel: u8,
        timer: u64,
    ) -> Pointer {
        let mut descriptor = Descriptor::new(self.version, KERNEL_CHANNEL, parent);
        descriptor.put(24, &[channel]);
        descriptor.put(32, &timer.to_le_bytes());
        self.start(context, &mut descriptor)
    }

    /// An event comes into a state.
    pub(crate) fn record(self, handle: Pointer, state: u32, timer: Option<u64>) {
        let mut arguments = timer.unwrap_or_default();
        let pointer = match timer {
            Some(_) => (&raw mut arguments).cast(),
            None => null_mut(),
        };
        // SAFETY: the arguments are eight bytes or null.
        assert_eq!(unsafe { (self.table.record)(handle.0, state, pointer) }, 0);
    }

    /// An event stops.
    pub(crate) fn stop(self, handle: Pointer) {
        // SAFETY: any handle may be stopped.
        assert_eq!(unsafe { (self.table.stop)(handle.0) }, 0);
    }

    /// A communicator is gone.
    pub(crate) fn finalize(self, context: Pointer) {
        // SAFETY: any context may be finalized.
        assert_eq!(unsafe { (self.table.finalize)(context.0) }, 0);
    }

    /// One channel from its start to its end.
    pub(crate) fn channel(
        self,
        context: Pointer,
        parent: Pointer,
        channel: u8,
        from: u64,
        to: u64,
    ) {
        let handle = self.kernel(context, parent, channel, from);
        self.record(handle, 22, Some(to));
        self.stop(handle);
    }

    /// A collective as NCCL enqueues one in a group, with everything around it.
    pub(crate) fn enqueue(self, context: Pointer, call: Call) -> Pointer {
        let api = self.other(context, 256);
        self.record(api, 23, None);
        let collective_api = self.other(context, 512);
        self.stop(collective_api);
        self.record(api, 24, None);
        let launch = self.other(context, 2048);
        self.stop(launch);
        let group = self.other(context, GROUP);
        let handle = self.collective(context, call);
        self.stop(handle);
        self.stop(group);
        self.stop(api);
        handle
    }
}
