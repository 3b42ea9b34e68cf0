//! Gives the library the SONAME of the one it stands in for, so that a loader that looks the name
//! up finds it as it would find the driver's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
}
