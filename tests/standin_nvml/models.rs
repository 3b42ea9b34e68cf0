//! The cards the stand-in can show, with what NVML says of them when nothing is wrong.
//!
//! Figures are those of `nvidia-smi -q` on real cards; they need not be exact, but must be such as
//! NVML could say.

/// What NVML says of a card whatever it does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// The product name, as `nvmlDeviceGetName` spells it.
    pub name: &'static str,
    /// NVML's number for the architecture.
    pub architecture: u32,
    /// The CUDA compute capability.
    pub capability: (i32, i32),
    /// Device memory, and what of it driver and firmware reserve.
    pub memory_mib: (u64, u64),
    /// Power when idle, and the limit in force.
    pub power_watts: (u32, u32),
    /// Highest SM and memory clock.
    pub clock_mhz: (u32, u32),
    /// NVLink links and the rate of one, one way.
    pub nvlinks: (u8, u32),
    /// PCIe generation.
    pub pcie_generation: u32,
    /// Whether GPM is there (Hopper and newer).
    pub gpm: bool,
    /// Whether the memory has a temperature sensor.
    pub memory_sensor: bool,
    /// Most MIG instances; 0: the card cannot do MIG.
    pub mig_instances: u32,
    /// Whether rows are remapped (Ampere data-centre cards and newer) or pages retired.
    pub remaps_rows: bool,
}

/// The card that the others are told by.
const H100: Model = Model {
    name: "NVIDIA H100 80GB HBM3",
    architecture: 9,
    capability: (9, 0),
    memory_mib: (81_559, 480),
    power_watts: (69, 700),
    clock_mhz: (1980, 2619),
    nvlinks: (18, 26_562),
    pcie_generation: 5,
    gpm: true,
    memory_sensor: true,
    mig_instances: 7,
    remaps_rows: true,
};

/// What a card for inference lacks: links, GPM, a memory sensor, MIG.
const SMALL: Model = Model {
    nvlinks: (0, 0),
    gpm: false,
    memory_sensor: false,
    mig_instances: 0,
    ..H100
};

/// The cards by name.
pub const MODELS: &[Model] = &[
    H100,
    Model {
        name: "NVIDIA H200",
        memory_mib: (143_771, 600),
        power_watts: (76, 700),
        clock_mhz: (1980, 3201),
        ..H100
    },
    Model {
        name: "NVIDIA B200",
        architecture: 10,
        capability: (10, 0),
        memory_mib: (183_359, 620),
        power_watts: (140, 1000),
        clock_mhz: (1965, 3996),
        nvlinks: (18, 53_125),
        pcie_generation: 6,
        ..H100
    },
    Model {
        name: "NVIDIA A100-SXM4-80GB",
        architecture: 7,
        capability: (8, 0),
        memory_mib: (81_920, 596),
        power_watts: (60, 400),
        clock_mhz: (1410, 1593),
        nvlinks: (12, 25_781),
        pcie_generation: 4,
        gpm: false,
        ..H100
    },
    Model {
        name: "NVIDIA A30",
        architecture: 7,
        capability: (8, 0),
        memory_mib: (24_576, 484),
        power_watts: (30, 165),
        clock_mhz: (1440, 1215),
        nvlinks: (4, 25_781),
        pcie_generation: 4,
        gpm: false,
        mig_instances: 4,
        ..H100
    },
    Model {
        name: "NVIDIA L4",
        architecture: 8,
        capability: (8, 9),
        memory_mib: (23_034, 496),
        power_watts: (16, 72),
        clock_mhz: (2040, 6251),
        pcie_generation: 4,
        ..SMALL
    },
    Model {
        name: "Tesla T4",
        architecture: 6,
        capability: (7, 5),
        memory_mib: (15_360, 448),
        power_watts: (10, 70),
        clock_mhz: (1590, 5001),
        pcie_generation: 3,
        remaps_rows: false,
        ..SMALL
    },
];

/// The card with this name; the first of the list for a name that is not in it.
pub fn by_name(name: &str) -> &'static Model {
    MODELS
        .iter()
        .find(|model| model.name == name)
        .unwrap_or(&MODELS[0])
}

/// The compute slices and memory of a MIG profile's GPU instance, from its name `<slices>g.<GiB>gb`, also behind the part
/// of it that a compute instance has (`1c.3g.40gb`).
pub fn mig_profile(name: &str) -> Option<(u32, u64)> {
    let instance = name.split_once("c.").map_or(name, |it| it.1);
    let (slices, memory) = instance.split_once("g.")?;
    let gib: u64 = memory.strip_suffix("gb")?.parse().ok()?;
    Some((slices.parse().ok()?, gib * 1024))
}

/// The compute slices that are its own: those of its GPU instance, unless it is a part of that.
pub fn mig_compute_slices(name: &str) -> Option<u32> {
    match name.split_once("c.") {
        Some((slices, _)) => slices.parse().ok(),
        None => mig_profile(name).map(|it| it.0),
    }
}

/// The number of the profile of an instance with so many compute slices, and the memory slices that it takes, of the 8 of
/// an A100 or H100.
pub const fn mig_place(slices: u32) -> (u32, u32) {
    match slices {
        1 => (19, 1),
        2 => (14, 2),
        3 => (9, 4),
        4 => (5, 4),
        _ => (0, 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mig_profile_says_its_slices_and_memory() {
        assert_eq!(mig_profile("3g.40gb"), Some((3, 40 * 1024)));
        assert_eq!(mig_profile("1c.3g.40gb"), mig_profile("3g.40gb"));
        assert_eq!(mig_profile("seven"), None);
        let own = ["3g.40gb", "1c.3g.40gb", "seven"].map(mig_compute_slices);
        assert_eq!(own, [Some(3), Some(1), None]);
    }
}
