//! Links the plugin so that it stays when NCCL closes it: its thread and its handles live on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
