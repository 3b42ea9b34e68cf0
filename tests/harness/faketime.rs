//! Clocks that are off: Debian's package faketime, loaded into a program.

use std::path::Path;

/// Where the package has it.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The environment of a program whose clock of the day is another one, as this variable of libfaketime says:
/// `FAKETIME`, by how much, or `FAKETIME_TIMESTAMP_FILE`, the file that says so. Durations stay as they are.
///
/// # Panics
/// When the package is not there.
pub fn running<'a>(variable: &'a str, value: &'a str) -> [(&'a str, &'a str); 4] {
    assert!(
        Path::new(LIBRARY).exists(),
        "scripts/setup.sh test installs faketime"
    );
    [
        ("LD_PRELOAD", LIBRARY),
        (variable, value),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]
}
