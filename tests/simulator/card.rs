//! The cards of the simulated fleet, and how the machines that have them are paid.

/// A kind of card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// NVML's name.
    pub name: &'static str,
    /// The machine type that has eight of them.
    pub machine_type: &'static str,
    /// CUDA compute capability.
    pub capability: &'static str,
    /// Device memory, bytes.
    pub memory_bytes: f64,
    /// Power limit, watts.
    pub power_limit_watts: f64,
    /// Power when idle, watts.
    pub idle_watts: f64,
    /// Highest SM clock, hertz.
    pub sm_clock_hertz: f64,
    /// Memory clock, hertz.
    pub memory_clock_hertz: f64,
    /// NVLink's rate over all links, one way, bytes per second.
    pub nvlink_bytes_per_second: f64,
}

/// Bytes in a GiB.
pub const GIB: f64 = 1_073_741_824.0;

const H100: Card = Card {
    name: "NVIDIA H100 80GB HBM3",
    machine_type: "a3-highgpu-8g",
    capability: "9.0",
    memory_bytes: 80.0 * GIB,
    power_limit_watts: 700.0,
    idle_watts: 72.0,
    sm_clock_hertz: 1.98e9,
    memory_clock_hertz: 2.619e9,
    nvlink_bytes_per_second: 450e9,
};
const H200: Card = Card {
    name: "NVIDIA H200",
    machine_type: "a3-ultragpu-8g",
    memory_bytes: 141.0 * GIB,
    memory_clock_hertz: 3.201e9,
    ..H100
};
const A100: Card = Card {
    name: "NVIDIA A100-SXM4-80GB",
    machine_type: "a2-ultragpu-8g",
    capability: "8.0",
    power_limit_watts: 400.0,
    idle_watts: 52.0,
    sm_clock_hertz: 1.41e9,
    memory_clock_hertz: 1.593e9,
    nvlink_bytes_per_second: 300e9,
    ..H100
};

/// How a node is paid: one of each eight is on Spot, that which serves a model.
pub fn provisioning(node: usize) -> &'static str {
    match node % 8 {
        5 => "spot",
        _ => "on_demand",
    }
}

/// The card that every GPU of a node is: mostly H100, one node of each eight H200, one A100.
pub fn of_node(node: usize) -> Card {
    match node % 8 {
        6 => H200,
        7 => A100,
        _ => H100,
    }
}
