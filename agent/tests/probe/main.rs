//! The probe end to end: this process as the parent, the real agent binary as the child, stand-ins in
//! place of CUDA's driver and of NVML. Each test is one promise of docs/probe.md.

mod bench;
mod between;
mod command;
mod ptx;
mod runs;
mod schedule;
mod suite;
