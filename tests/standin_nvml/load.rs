//! What a GPU does, as functions of whole seconds and slot: the same question has the same answer,
//! in the library and in the test that reads it.
//!
//! Values are in NVML's units (percent, milliwatts, MHz, MiB/s), because they are what the reader
//! has to convert.

use serde::{Deserialize, Serialize};

use crate::models::Model;
use crate::scenario::Gpu;

/// A pattern of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing runs.
    Idle,
    /// Steps of training: tensor cores busy, links busy, a short dip every 20 s.
    Training,
    /// A collective that will never end: utilisation 100 %, no tensor, no memory, no traffic.
    Deadlocked,
    /// From nothing to everything over 100 s, then again.
    Ramp,
    /// No work at all: every reading is a number of its own, on a card that has every part. A field
    /// reads its own id, a metric of GPM its own too. For tests of what is read from where.
    Distinct,
}

/// What NVML says of a GPU at one moment, in NVML's units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Values {
    /// `utilization.gpu`, percent.
    pub gpu_percent: u32,
    /// `utilization.memory`, percent.
    pub memory_percent: u32,
    /// Encoder and decoder, percent.
    pub codec_percent: [u32; 2],
    /// Device memory used, without what is reserved.
    pub memory_used_mib: u64,
    /// Board power.
    pub power_mw: u32,
    /// Die temperature.
    pub temperature_c: u32,
    /// Memory temperature.
    pub memory_temperature_c: u32,
    /// SM and memory clock.
    pub clock_mhz: [u32; 2],
    /// Performance state.
    pub performance_state: u32,
    /// Why the clocks are below their maximum.
    pub throttle: u64,
    /// Energy since the driver was loaded.
    pub energy_mj: u64,
    /// Time below maximum clocks: power, thermal, sync boost, board limit, low use, reliability.
    pub violation_ns: [u64; 6],
    /// GPM percentages, by GPM's metric ids 1 to 13.
    pub gpm_percent: [f64; 13],
    /// PCIe sent and received.
    pub pcie_mib_s: [f64; 2],
    /// NVLink received and sent over all links.
    pub nvlink_mib_s: [f64; 2],
    /// PCIe bytes sent and received since the driver was loaded.
    pub pcie_bytes: [u64; 2],
    /// NVLink KiB sent and received since the driver was loaded.
    pub nvlink_kib: [u64; 2],
}

/// How busy the parts of the chip are, each 0 to 1.
struct Activity {
    engine: f64,
    sm: f64,
    tensor: f64,
    dram: f64,
    links: f64,
    memory: f64,
}

fn activity(load: Load, second: u64, slot: u8) -> Activity {
    // Slots are out of step by a second each, so that no two GPUs read the same.
    let at = second + u64::from(slot);
    match load {
        Load::Idle => Activity {
            engine: 0.0,
            sm: 0.0,
            tensor: 0.0,
            dram: 0.0,
            links: 0.0,
            memory: 0.0,
        },
        Load::Training => {
            let dip = if at.is_multiple_of(20) { 0.5 } else { 1.0 };
            let wave = (at % 10) as f64 / 100.0;
            Activity {
                engine: 0.99 * dip,
                sm: (0.80 + wave) * dip,
                tensor: (0.42 + wave) * dip,
                dram: (0.55 + wave) * dip,
                links: (0.30 + wave) * dip,
                memory: 0.85,
            }
        }
        Load::Deadlocked => Activity {
            engine: 1.0,
            sm: 0.15,
            tensor: 0.0,
            dram: 0.0,
            links: 0.0,
            memory: 0.85,
        },
        Load::Ramp => {
            let level = (at % 100) as f64 / 100.0;
            Activity {
                engine: level,
                sm: level * 0.9,
                tensor: level * 0.5,
                dram: level * 0.6,
                links: level * 0.4,
                memory: level * 0.8,
            }
        }
        Load::Distinct => Activity {
            engine: 0.2,
            sm: 0.3,
            tensor: 0.4,
            dram: 0.5,
            links: 0.6,
            memory: 0.7,
        },
    }
}

fn percent(share: f64) -> u32 {
    (share * 100.0).round() as u32
}

/// What NVML says of the GPU in `slot` at this time in Unix seconds.
pub fn values(gpu: &Gpu, model: &Model, slot: u8, time_s: f64) -> Values {
    let second = time_s.max(0.0) as u64;
    let activity = activity(gpu.load, second, slot);
    let (idle_watts, limit_watts) = model.power_watts;
    let effort = 0.2 * activity.engine + 0.5 * activity.tensor.min(0.5) * 2.0 + 0.2 * activity.dram;
    let span = f64::from(limit_watts - idle_watts);
    let power_mw = (f64::from(idle_watts) * 1000.0 + span * effort * 1000.0) as u32;
    // Energy and byte counters grow at the card's mean rate, not by the integral of the pattern:
    // a closed form that any second can be asked for.
    let mean_watts = u64::from(idle_watts + limit_watts) / 2;
    let since = second.saturating_sub(u64::from(gpu.resets) * 1_000);
    let running = activity.engine > 0.0;
    let gpm = |share: f64| share * 100.0;
    let pcie = [2_000.0 * activity.links, 3_000.0 * activity.links];
    let nvlink_peak = f64::from(model.nvlinks.0) * f64::from(model.nvlinks.1);
    let nvlink = [
        nvlink_peak * activity.links,
        nvlink_peak * activity.links * 0.9,
    ];
    let mean_pcie: [u64; 2] = if running {
        [600 << 20, 900 << 20]
    } else {
        [0, 0]
    };
    let mean_nvlink: [u64; 2] = match (running, model.nvlinks.0) {
        (true, 1..) => [90 << 20, 100 << 20],
        _ => [0, 0],
    };
    let values = Values {
        gpu_percent: percent(activity.engine),
        memory_percent: percent(activity.dram),
        codec_percent: [0, 0],
        memory_used_mib: (model.memory_mib.0 as f64 * activity.memory) as u64,
        power_mw,
        temperature_c: 28 + (effort * 45.0) as u32 + u32::from(slot % 4),
        memory_temperature_c: 36 + (effort * 50.0) as u32 + u32::from(slot % 4),
        clock_mhz: if running {
            [model.clock_mhz.0, model.clock_mhz.1]
        } else {
            [345, model.clock_mhz.1]
        },
        performance_state: if running { 0 } else { 8 },
        throttle: gpu.throttle | if running { 0 } else { 1 },
        energy_mj: since * mean_watts * 1000,
        violation_ns: [since * 1_000_000, since * 1_000, 0, 0, since * 2_000, 0],
        gpm_percent: [
            gpm(activity.engine),
            gpm(activity.sm),
            gpm(activity.sm * 0.4),
            gpm(activity.sm * 0.2),
            gpm(activity.tensor),
            0.0,
            gpm(activity.tensor),
            0.0,
            0.0,
            gpm(activity.dram),
            0.0,
            gpm(activity.sm * 0.1),
            gpm(activity.sm * 0.05),
        ],
        pcie_mib_s: pcie,
        nvlink_mib_s: nvlink,
        pcie_bytes: mean_pcie.map(|rate| since * rate),
        nvlink_kib: mean_nvlink.map(|rate| since * rate),
    };
    match gpu.load {
        Load::Distinct => distinct(values),
        _ => values,
    }
}

/// The same with a number of its own for each reading that a function or GPM gives.
fn distinct(values: Values) -> Values {
    Values {
        gpu_percent: 31,
        memory_percent: 32,
        codec_percent: [33, 34],
        memory_used_mib: 35_000,
        power_mw: 36_000,
        temperature_c: 37,
        clock_mhz: [1_038, 1_039],
        performance_state: 9,
        throttle: 0x155,
        gpm_percent: std::array::from_fn(|place| place as f64 + 1.0),
        pcie_mib_s: [20.0, 21.0],
        nvlink_mib_s: [60.0, 61.0],
        ..values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::by_name;

    fn at(load: Load, time_s: f64) -> Values {
        let gpu = Gpu {
            load,
            ..Gpu::default()
        };
        values(&gpu, by_name(&gpu.model), 3, time_s)
    }

    #[test]
    fn the_same_second_has_the_same_values() {
        assert_eq!(at(Load::Training, 17.1), at(Load::Training, 17.9));
        assert_ne!(at(Load::Training, 17.1), at(Load::Training, 18.1));
    }

    #[test]
    fn a_deadlocked_collective_looks_busy_and_does_nothing() {
        let values = at(Load::Deadlocked, 5.0);
        assert_eq!(values.gpu_percent, 100);
        assert_eq!((values.gpm_percent[4], values.gpm_percent[9]), (0.0, 0.0));
    }

    #[test]
    fn no_pattern_draws_more_than_the_limit() {
        for load in [Load::Idle, Load::Training, Load::Deadlocked, Load::Ramp] {
            for second in 0..100 {
                let power = at(load, f64::from(second)).power_mw;
                assert!((69_000..=700_000).contains(&power), "{load:?}: {power}");
            }
        }
    }
}
