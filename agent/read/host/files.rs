//! Small files of /proc and /sys: their text, or the reason why there is none.
//!
//! Limits: [`MAX_FILE_BYTES`].

use std::io::{ErrorKind, Read};
use std::path::Path;

use gpufleet_telemetry::sample::Missing;

/// Most bytes that are read of one file. /proc/stat of 512 CPUs with its interrupt line is 100 KB.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The text of a file.
pub fn text(path: &Path) -> Result<String, Missing> {
    let file = std::fs::File::open(path).map_err(|error| reason(&error))?;
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| reason(&error))?;
    Ok(text)
}

/// The one whole number that a file holds.
pub fn number(path: &Path) -> Result<f64, Missing> {
    let text = text(path)?;
    let number: u64 = text.trim().parse().map_err(|_| Missing::Invalid)?;
    Ok(number as f64)
}

/// The names in a folder, sorted; none where there is no folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn reason(error: &std::io::Error) -> Missing {
    match error.kind() {
        ErrorKind::NotFound => Missing::Unreachable,
        ErrorKind::PermissionDenied => Missing::NoPermission,
        // Pressure files of a kernel that was booted with psi=0, counters a device does not have.
        ErrorKind::Unsupported | ErrorKind::InvalidInput => Missing::NotSupported,
        ErrorKind::InvalidData => Missing::Invalid,
        _ if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Missing::NotSupported,
        _ => Missing::Unknown,
    }
}
