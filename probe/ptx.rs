//! The work that the probe does on the GPU, and which of the three PTX files it is in. The driver turns
//! PTX into what the card runs, so the files are few: which one a card and a driver can take is decided
//! here. `scripts/ptx.sh` makes them.

use serde::{Deserialize, Serialize};

/// For every card from Turing on.
const BASE: &str = include_str!("kernels/base.ptx");
/// Tensor cores of Ampere and newer.
const MMA_SM80: &str = include_str!("kernels/mma_sm80.ptx");
/// fp8, of Ada, Hopper and newer.
const MMA_SM89: &str = include_str!("kernels/mma_sm89.ptx");

/// The oldest card that the probe runs on: older ones are no target of today's compilers.
pub const OLDEST: Capability = Capability(7, 5);

/// The oldest driver that takes the base file (PTX 7.0), as CUDA writes its version.
pub const OLDEST_CUDA: i32 = 11_000;

/// The oldest driver that knows fp8 (PTX 8.4).
const CUDA_WITH_FP8: i32 = 12_040;

/// What a card can do: CUDA's compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Capability(pub i32, pub i32);

/// A file of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name beside its source.
    pub name: &'static str,
    /// The oldest card it is for.
    pub oldest: Capability,
    /// The oldest driver that takes it.
    pub oldest_cuda: i32,
    /// What the driver is given.
    pub text: &'static str,
}

/// Every file, the one for all cards first.
pub const FILES: [File; 3] = [
    File {
        name: "base",
        oldest: OLDEST,
        oldest_cuda: OLDEST_CUDA,
        text: BASE,
    },
    File {
        name: "mma_sm80",
        oldest: Capability(8, 0),
        oldest_cuda: OLDEST_CUDA,
        text: MMA_SM80,
    },
    File {
        name: "mma_sm89",
        oldest: Capability(8, 9),
        oldest_cuda: CUDA_WITH_FP8,
        text: MMA_SM89,
    },
];

/// What is done on the GPU and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Integer and fp32 arithmetic.
    Arithmetic,
    /// Tensor cores in fp16.
    Fp16,
    /// Tensor cores in int8.
    Int8,
    /// Tensor cores in bf16.
    Bf16,
    /// Tensor cores in tf32.
    Tf32,
    /// Tensor cores in fp8 (e4m3).
    Fp8,
    /// Memory, written and read back.
    Memory,
}

/// The shape of one product of tensor work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Matrices B of a warp, one tile of sums for each with each A.
    pub tiles: i32,
    /// Columns of a tile; it has 16 rows.
    pub columns: i32,
    /// How deep the product is.
    pub depth: i32,
    /// Whether the sums are integers; else fp32.
    pub is_integer: bool,
}

impl Work {
    /// Everything, in the order in which it is done.
    pub const ALL: [Self; 7] = [
        Self::Arithmetic,
        Self::Memory,
        Self::Fp16,
        Self::Int8,
        Self::Bf16,
        Self::Tf32,
        Self::Fp8,
    ];

    /// The name in readings, on pages and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arithmetic => "arithmetic",
            Self::Fp16 => "fp16",
            Self::Int8 => "int8",
            Self::Bf16 => "bf16",
            Self::Tf32 => "tf32",
            Self::Fp8 => "fp8",
            Self::Memory => "memory",
        }
    }

    /// The file its kernels are in.
    pub const fn file(self) -> File {
        match self {
            Self::Arithmetic | Self::Memory | Self::Fp16 | Self::Int8 => FILES[0],
            Self::Bf16 | Self::Tf32 => FILES[1],
            Self::Fp8 => FILES[2],
        }
    }

    /// The kernel that compares.
    pub const fn kernel(self) -> &'static str {
        match self {
            Self::Arithmetic => "gpufleet_arithmetic",
            Self::Fp16 => "gpufleet_tensor_fp16",
            Self::Int8 => "gpufleet_tensor_int8",
            Self::Bf16 => "gpufleet_tensor_bf16",
            Self::Tf32 => "gpufleet_tensor_tf32",
            Self::Fp8 => "gpufleet_tensor_fp8",
            Self::Memory => "gpufleet_verify",
        }
    }

    /// The shape of its products; none of what is not tensor work.
    pub const fn shape(self) -> Option<Shape> {
        let (tiles, columns, depth, is_integer) = match self {
            Self::Arithmetic | Self::Memory => return None,
            Self::Fp16 | Self::Bf16 => (4, 16, 16, false),
            Self::Int8 => (4, 16, 16, true),
            Self::Tf32 => (4, 16, 8, false),
            Self::Fp8 => (8, 8, 32, false),
        };
        Some(Shape {
            tiles,
            columns,
            depth,
            is_integer,
        })
    }

    /// Why a card with this driver cannot do it; none where it can.
    pub fn refusal(self, card: Capability, cuda: i32) -> Option<String> {
        let file = self.file();
        let Capability(major, minor) = file.oldest;
        if card < file.oldest {
            return Some(format!(
                "the card is older than compute capability {major}.{minor}"
            ));
        }
        (cuda < file.oldest_cuda).then(|| {
            let (major, minor) = (file.oldest_cuda / 1_000, file.oldest_cuda % 1_000 / 10);
            format!("the driver is older than CUDA {major}.{minor}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directive's value in a file.
    fn directive(text: &'static str, name: &str) -> &'static str {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("", str::trim)
    }

    #[test]
    fn each_file_says_the_card_and_the_version_that_it_is_chosen_by() {
        for (file, target, version) in [
            (FILES[0], "sm_75", "7.0"),
            (FILES[1], "sm_80", "7.0"),
            (FILES[2], "sm_89", "8.4"),
        ] {
            assert_eq!(directive(file.text, ".target"), target, "{}", file.name);
            assert_eq!(directive(file.text, ".version"), version, "{}", file.name);
            let Capability(major, minor) = file.oldest;
            assert_eq!(target, format!("sm_{major}{minor}"));
        }
    }

    #[test]
    fn every_work_has_its_kernel_in_its_file() {
        for work in Work::ALL {
            let entry = format!(".entry {}(", work.kernel());
            assert!(work.file().text.contains(&entry), "{work:?}");
        }
        for kernel in ["gpufleet_fill", "gpufleet_copy"] {
            assert!(BASE.contains(&format!(".entry {kernel}(")), "{kernel}");
        }
        // The driver reads to the zero behind it, so there must be none within.
        assert!(FILES.iter().all(|it| !it.text.contains('\0')));
    }

    #[test]
    fn what_a_card_or_a_driver_cannot_do_is_said_with_what_it_would_take() {
        let turing = Capability(7, 5);
        let hopper = Capability(9, 0);
        assert_eq!(Work::Fp16.refusal(turing, 13_000), None);
        let refused = Work::Bf16.refusal(turing, 13_000).expect("no bf16");
        assert!(refused.contains("8.0"), "{refused}");
        let refused = Work::Fp8.refusal(hopper, 12_020).expect("no fp8");
        assert!(refused.contains("CUDA 12.4"), "{refused}");
        assert_eq!(Work::Fp8.refusal(hopper, 12_040), None);
        let refused = Work::Arithmetic.refusal(Capability(7, 0), 12_000);
        assert!(refused.expect("Volta").contains("7.5"));
        // 12.0 of Blackwell is newer than 8.9, not older.
        assert_eq!(Work::Fp8.refusal(Capability(12, 0), 13_000), None);
    }
}
