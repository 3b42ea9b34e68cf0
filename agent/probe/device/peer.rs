//! Another GPU of the node, which the process is shown besides, and copies between the two.

use std::ffi::c_int;
use std::ptr;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_P2PAttribute};

use super::{Buffer, Gpu, Why, why};

/// CUDA's number of what is no error here: an earlier pair may have opened the way.
const ALREADY_ENABLED: u32 = 704;

/// Another GPU with memory of its own, reached by the one that copies and reaching it.
pub(in crate::probe) struct Peer {
    own: sys::CUcontext,
    context: sys::CUcontext,
    buffer: Buffer,
    /// CUDA's rank of the link between the two.
    pub(in crate::probe) link: i32,
}

/// Why there are no copies with another GPU.
pub(in crate::probe) enum Apart {
    /// CUDA does not show it.
    NotShown,
    /// There is no way from one to the other but through the host.
    NoAccess,
    /// The driver refuses something.
    Refused(Why),
}

impl From<DriverError> for Apart {
    fn from(error: DriverError) -> Self {
        Self::Refused(why(error))
    }
}

fn attribute(of: CUdevice_P2PAttribute, from: c_int, to: c_int) -> Result<c_int, DriverError> {
    let mut value = 0;
    // SAFETY: the pointer is to an integer that lives through the call; both devices were returned by the
    // driver.
    unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, of, from, to) }.result()?;
    Ok(value)
}

/// Lets what runs in the current context reach the memory of another.
fn open_way(to: sys::CUcontext) -> Result<(), DriverError> {
    // SAFETY: both contexts are primary ones that this process holds until it ends.
    let opened = unsafe { sys::cuCtxEnablePeerAccess(to, 0) };
    match opened as u32 {
        ALREADY_ENABLED => Ok(()),
        _ => opened.result(),
    }
}

impl Gpu {
    /// The GPU that this process is shown at a place, with so much memory of it; this one is at place 0, and its
    /// context is the thread's before and after.
    pub(in crate::probe) fn peer(&self, place: i32, bytes: usize) -> Result<Peer, Apart> {
        if place >= result::device::get_count()? {
            return Err(Apart::NotShown);
        }
        let device = result::device::get(place)?;
        let access = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
        let (to, from) = (
            attribute(access, self.device, device)?,
            attribute(access, device, self.device)?,
        );
        if to == 0 || from == 0 {
            return Err(Apart::NoAccess);
        }
        let rank = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
        let link = attribute(rank, self.device, device)?;
        // SAFETY: both devices were returned by the driver, and the contexts are never released.
        let (own, context) = unsafe {
            (
                result::primary_ctx::retain(self.device)?,
                result::primary_ctx::retain(device)?,
            )
        };
        // SAFETY: the context was made above, as was the other one.
        unsafe { result::ctx::set_current(context) }?;
        let prepared = open_way(own)
            .map_err(why)
            .and_then(|()| self.allocate(bytes));
        // SAFETY: the same.
        unsafe { result::ctx::set_current(own) }?;
        let buffer = prepared.map_err(Apart::Refused)?;
        open_way(context)?;
        Ok(Peer {
            own,
            context,
            buffer,
            link,
        })
    }
}

impl Peer {
    /// Has the GPU copy a buffer of its own to the other one, after what was launched before.
    pub(in crate::probe) fn copy_to(&self, own: Buffer) -> Result<(), Why> {
        let to = (self.context, self.buffer);
        Self::copy((self.own, own), to)
    }

    /// Has it copy from the other one into a buffer of its own.
    pub(in crate::probe) fn copy_from(&self, own: Buffer) -> Result<(), Why> {
        Self::copy((self.context, self.buffer), (self.own, own))
    }

    fn copy(from: (sys::CUcontext, Buffer), to: (sys::CUcontext, Buffer)) -> Result<(), Why> {
        let bytes = from.1.bytes.min(to.1.bytes);
        let stream = ptr::null_mut();
        // SAFETY: both buffers are at least so long, of the contexts that stand with them, and live as long as
        // the process.
        unsafe {
            result::memcpy_peer_async(to.0, to.1.address, from.0, from.1.address, bytes, stream)
        }
        .map_err(why)
    }
}
