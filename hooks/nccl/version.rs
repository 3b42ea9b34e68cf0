//! Which NCCL has loaded us, and which events to ask it for.
//!
//! NCCL tells a plugin no version. It passes the address of its log function, though: the library
//! that holds it is NCCL, and exports `ncclGetVersion`. Where that does not work, a statically linked
//! NCCL for one, the version of the interface stands for it: NCCL takes the highest that it knows.

use std::ffi::{c_int, c_void};

use crate::abi::event;

/// What we can make something of. Every further bit would cost time and give nothing.
pub const HANDLED: u64 = event::COLLECTIVE | event::POINT_TO_POINT | event::KERNEL_CHANNEL;

/// Collectives without the time on the GPU.
const UNTIMED: u64 = event::COLLECTIVE | event::POINT_TO_POINT;

/// From this release on a kernel's events cost 4 to 13 % of an AllReduce of 128 KB to 4 MB.
const FIRST_DEAR: u64 = 23_100;

/// Its version of the interface.
const FIRST_DEAR_INTERFACE: u64 = 7;

/// The variable that overrides the mask: a decimal number, or a hexadecimal one after `0x`.
pub const MASK_VARIABLE: &str = "GPUFLEET_NCCL_MASK";

/// The version of the NCCL that the function at `address` belongs to: 22809 is 2.28.9.
pub fn of_library_with(address: usize) -> Option<u64> {
    // SAFETY: all zero is what dladdr finds nothing with.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; what is written is ours.
    if unsafe { libc::dladdr(std::ptr::without_provenance(address), &raw mut found) } == 0
        || found.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: the name ends with a zero byte and stays while the library does; RTLD_NOLOAD loads
    // nothing, it gives the library that is there.
    let library = unsafe { libc::dlopen(found.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    let mut version: c_int = 0;
    // SAFETY: the library is there, and the symbol is NCCL's function of one pointer to an int.
    let result = unsafe {
        let symbol = libc::dlsym(library, c"ncclGetVersion".as_ptr());
        let get = (!symbol.is_null()).then(|| {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(symbol)
        });
        let result = get.map(|get| get(&raw mut version));
        libc::dlclose(library);
        result
    };
    (result == Some(0)).then(|| u64::try_from(version).ok())?
}

/// The events to ask for. What the user asked for is taken where it is a number; bits we cannot use
/// are left out.
pub fn mask(interface: u64, version: Option<u64>, asked: Option<&str>) -> u64 {
    if let Some(asked) = asked.and_then(parse) {
        return asked & HANDLED;
    }
    let is_dear = match version {
        Some(version) => version >= FIRST_DEAR,
        None => interface >= FIRST_DEAR_INTERFACE,
    };
    if is_dear { UNTIMED } else { HANDLED }
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_goes_by_version_then_by_interface_and_the_user_is_above_both() {
        let check = |interface, version, asked, expected| {
            assert_eq!(mask(interface, version, asked), expected);
        };
        check(4, Some(22_705), None, 0x46);
        check(6, Some(23_007), None, 0x46);
        check(7, Some(23_102), None, 0x06);
        check(6, None, None, 0x46);
        check(7, None, None, 0x06);
        // A later NCCL that still takes an older table is as dear.
        check(6, Some(23_102), None, 0x06);
        check(7, Some(23_102), Some("0x46"), 0x46);
        check(7, Some(23_102), Some(" 70 "), 0x46);
        check(4, Some(22_705), Some("0"), 0);
        check(4, Some(22_705), Some("4095"), 0x46);
        check(4, Some(22_705), Some("all"), 0x46);
        check(4, Some(22_705), Some("-1"), 0x46);
    }

    #[test]
    fn a_library_that_is_not_nccl_has_no_version() {
        assert_eq!(of_library_with(0), None);
        assert_eq!(of_library_with(8), None);
        assert_eq!(of_library_with(mask as *const () as usize), None);
    }
}
