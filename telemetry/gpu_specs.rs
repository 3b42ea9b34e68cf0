//! What a card could do at best: dense peak rates by NVML name and data type, with their source.
//!
//! Names match as a whole: `NVIDIA H200` is not `NVIDIA GH200 480GB`. All rates are dense; the
//! headlines of datasheets count sparsity and are twice as high. Real kernels reach 70 to 87 % of
//! a peak. The table is `gpu_specs/peaks.csv`; a card it lacks reads `peak unknown` until one line
//! of the configuration tells it: [`Spec::parse`].

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

mod counts;

pub use counts::{mig_slices, nvlinks};

/// The table: rates in 10^12 operations a second, memory in 10^9 bytes.
const TABLE: &str = include_str!("gpu_specs/peaks.csv");

/// Most cards that a configuration may add: one fleet has a handful of kinds.
pub const MAX_ADDED: usize = 64;

/// What arithmetic works on, and on which units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// 64-bit floats on the ordinary cores.
    Fp64,
    /// 64-bit floats on the tensor cores.
    Fp64Tensor,
    /// 32-bit floats on the ordinary cores.
    Fp32,
    /// TF32 on the tensor cores.
    Tf32Tensor,
    /// 16-bit floats on the tensor cores, adding up in 32 bits.
    Fp16Tensor,
    /// Brain floats on the tensor cores, adding up in 32 bits.
    Bf16Tensor,
    /// 8-bit floats on the tensor cores.
    Fp8Tensor,
    /// 8-bit integers.
    Int8,
    /// 4-bit floats on the tensor cores.
    Fp4Tensor,
}

/// How sure a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// From the vendor's datasheet, or from the user.
    High,
    /// Sources disagree by a few per cent.
    Medium,
    /// Worked out from unit counts and clocks.
    Low,
}

/// What one kind of card could do at best.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Its name as NVML spells it.
    pub name: String,
    /// Operations a second by data type, dense; none where the card has no such units.
    pub peaks: BTreeMap<DataType, f64>,
    /// Memory in bytes, as sold (10^9 a GB).
    pub memory_bytes: Option<f64>,
    /// Bandwidth of the memory in bytes a second.
    pub memory_bytes_per_second: Option<f64>,
    /// Bandwidth of all NVLinks in bytes a second, both ways together.
    pub nvlink_bytes_per_second: Option<f64>,
    /// Power it may draw in watts.
    pub power_watts: Option<f64>,
    /// How sure the figures are.
    pub confidence: Confidence,
    /// Where they are from.
    pub source: String,
    /// What to know about them; may be empty.
    pub notes: String,
}

/// The table with what the configuration adds. An added card stands over one of the table.
#[derive(Debug, Clone, Default)]
pub struct Specs {
    added: HashMap<String, Spec>,
}

/// Why a line of the configuration does not describe a card.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Too many cards.
    #[error("{count} cards are described, at most {MAX_ADDED} can be: leave out those you lack")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A word that is no figure.
    #[error("`{card}`: `{word}` is not known; write e.g. `bf16 989.4, fp8 1979`: {KEYS}")]
    Unknown {
        /// The card.
        card: String,
        /// The word.
        word: String,
    },
    /// A number that is no number, or not above 0.
    #[error("`{card}`: the {word} of `{value}` is not a number above 0")]
    NotANumber {
        /// The card.
        card: String,
        /// Of which figure.
        word: String,
        /// What stands there.
        value: String,
    },
    /// One figure twice.
    #[error("`{card}`: {word} stands there twice")]
    Twice {
        /// The card.
        card: String,
        /// Which figure.
        word: String,
    },
    /// No rate at all.
    #[error("`{card}`: no peak rate; write e.g. `bf16 989.4, fp8 1979`: {KEYS}")]
    Empty {
        /// The card.
        card: String,
    },
}

/// What a line may say, for those who wrote something else.
const KEYS: &str = "fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, int8, fp4 in dense TFLOPS, \
                    memory_gb, memory_gbs, nvlink_gbs, power_watts";

impl DataType {
    /// Every type, from wide to narrow.
    pub const ALL: [Self; 9] = [
        Self::Fp64,
        Self::Fp64Tensor,
        Self::Fp32,
        Self::Tf32Tensor,
        Self::Fp16Tensor,
        Self::Bf16Tensor,
        Self::Fp8Tensor,
        Self::Int8,
        Self::Fp4Tensor,
    ];

    /// The name in configuration and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp64 => "fp64",
            Self::Fp64Tensor => "fp64_tensor",
            Self::Fp32 => "fp32",
            Self::Tf32Tensor => "tf32",
            Self::Fp16Tensor => "fp16",
            Self::Bf16Tensor => "bf16",
            Self::Fp8Tensor => "fp8",
            Self::Int8 => "int8",
            Self::Fp4Tensor => "fp4",
        }
    }

    /// The type with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The column of the table.
    const fn column(self) -> &'static str {
        match self {
            Self::Tf32Tensor => "tf32_tensor",
            Self::Fp16Tensor => "fp16_tensor",
            Self::Bf16Tensor => "bf16_tensor",
            Self::Int8 => "int8_tops",
            other => other.name(),
        }
    }
}

impl Confidence {
    /// The name in the table and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// The card of the table with this NVML name. None reads `peak unknown`, never 0.
pub fn lookup(name: &str) -> Option<&'static Spec> {
    static SPECS: LazyLock<HashMap<&'static str, Spec>> = LazyLock::new(|| {
        let mut lines = TABLE.lines();
        let header = cells(lines.next().unwrap_or_default());
        lines
            .map(|line| spec_of_row(&header.iter().copied().zip(cells(line)).collect()))
            .collect()
    });
    SPECS.get(name)
}

/// The line to put into the configuration for a card that is not known, figures to be replaced.
pub fn config_line(name: &str) -> String {
    let name = name.replace(['"', '\\', '\n'], "");
    format!("\"{name}\" = \"bf16 989.4, fp8 1978.9, memory_gbs 3350, power_watts 700\"")
}

impl Specs {
    /// The table with the cards that a configuration describes: NVML name and line each.
    ///
    /// # Errors
    /// The first line that does not describe a card.
    pub fn with<'a>(
        lines: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, SpecError> {
        let mut added = HashMap::new();
        for (name, line) in lines {
            added.insert(name.clone(), Spec::parse(name, line)?);
        }
        match added.len() {
            count if count > MAX_ADDED => Err(SpecError::TooMany { count }),
            _ => Ok(Self { added }),
        }
    }

    /// The card with this NVML name.
    pub fn lookup(&self, name: &str) -> Option<&Spec> {
        self.added.get(name).or_else(|| lookup(name))
    }
}

impl Spec {
    /// Operations a second at best; none where the card has no such units or nobody says.
    pub fn peak(&self, data_type: DataType) -> Option<f64> {
        self.peaks.get(&data_type).copied()
    }

    /// A card from a configuration's line: figures with their names, separated by commas. Rates in
    /// dense TFLOPS (TOPS), `memory_gb`, `memory_gbs`, `nvlink_gbs` and `power_watts`.
    ///
    /// # Errors
    /// What in the line is not a figure, with the words that are.
    pub fn parse(name: &str, line: &str) -> Result<Self, SpecError> {
        let card = || name.to_owned();
        let mut spec = Self {
            name: card(),
            peaks: BTreeMap::new(),
            memory_bytes: None,
            memory_bytes_per_second: None,
            nvlink_bytes_per_second: None,
            power_watts: None,
            confidence: Confidence::High,
            source: "configuration".to_owned(),
            notes: String::new(),
        };
        for figure in line.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let (word, value) = figure.split_once([' ', '=']).unwrap_or((figure, ""));
            let value = value.trim_matches([' ', '=']);
            let number = value.parse::<f64>().ok();
            let number = number.filter(|it| it.is_finite() && *it > 0.0);
            let number = || {
                number.ok_or_else(|| SpecError::NotANumber {
                    card: card(),
                    word: word.to_owned(),
                    value: value.to_owned(),
                })
            };
            let before = match word {
                "memory_gb" => spec.memory_bytes.replace(number()? * 1e9),
                "memory_gbs" => spec.memory_bytes_per_second.replace(number()? * 1e9),
                "nvlink_gbs" => spec.nvlink_bytes_per_second.replace(number()? * 1e9),
                "power_watts" => spec.power_watts.replace(number()?),
                _ => match DataType::parse(word) {
                    Some(data_type) => spec.peaks.insert(data_type, number()? * 1e12),
                    None => {
                        return Err(SpecError::Unknown {
                            card: card(),
                            word: word.to_owned(),
                        });
                    }
                },
            };
            if before.is_some() {
                return Err(SpecError::Twice {
                    card: card(),
                    word: word.to_owned(),
                });
            }
        }
        if spec.peaks.is_empty() {
            return Err(SpecError::Empty { card: card() });
        }
        Ok(spec)
    }
}

fn spec_of_row(row: &HashMap<&'static str, &'static str>) -> (&'static str, Spec) {
    let text = |column: &str| row.get(column).copied().unwrap_or_default();
    let number = |column: &str| text(column).parse::<f64>().ok();
    let name = text("nvml_name");
    let peaks = DataType::ALL
        .into_iter()
        .filter_map(|it| Some((it, number(it.column())? * 1e12)));
    let spec = Spec {
        name: name.to_owned(),
        peaks: peaks.collect(),
        memory_bytes: number("mem_gb").map(|it| it * 1e9),
        memory_bytes_per_second: number("mem_bw_gbs").map(|it| it * 1e9),
        nvlink_bytes_per_second: number("nvlink_gbs_bidir").map(|it| it * 1e9),
        power_watts: number("tdp_w"),
        confidence: match text("confidence") {
            "high" => Confidence::High,
            "medium" => Confidence::Medium,
            _ => Confidence::Low,
        },
        source: text("source").to_owned(),
        notes: text("notes").to_owned(),
    };
    (name, spec)
}

/// The cells of a line; a cell with commas stands in quotes.
fn cells(line: &'static str) -> Vec<&'static str> {
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        let (cell, after) = match rest.strip_prefix('"').and_then(|it| it.split_once('"')) {
            Some((cell, after)) => (cell, after.strip_prefix(',')),
            None => match rest.split_once(',') {
                Some((cell, after)) => (cell, Some(after)),
                None => (rest, None),
            },
        };
        cells.push(cell);
        match after {
            Some(after) => rest = after,
            None => return cells,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tera(name: &str, data_type: DataType) -> Option<f64> {
        let peak = lookup(name)?.peak(data_type)?;
        Some((peak / 1e10).round() / 100.0)
    }

    #[test]
    fn a_name_matches_as_a_whole() {
        let memory = |name: &str| lookup(name).and_then(|it| it.memory_bytes);
        assert_eq!(memory("NVIDIA H200"), Some(141e9));
        assert_eq!(memory("NVIDIA GH200 480GB"), Some(96e9));
        assert_eq!(memory("NVIDIA B200"), Some(180e9));
        assert_eq!(memory("NVIDIA GB200"), Some(186e9));
        for name in ["H200", "NVIDIA H200 ", "nvidia h200", "NVIDIA H2000", ""] {
            assert_eq!(lookup(name), None, "{name}");
        }
    }

    #[test]
    fn tensor_peaks_are_dense() {
        use DataType::{Bf16Tensor, Fp4Tensor, Fp8Tensor, Fp16Tensor, Int8};
        for (name, data_type, expected) in [
            ("NVIDIA H100 80GB HBM3", Bf16Tensor, 989.4),
            ("NVIDIA H100 80GB HBM3", Fp8Tensor, 1978.9),
            ("NVIDIA A100-SXM4-80GB", Fp16Tensor, 312.0),
            ("NVIDIA L4", Fp8Tensor, 242.0),
            ("NVIDIA B200", Fp4Tensor, 9000.0),
            ("NVIDIA GeForce RTX 4090", Bf16Tensor, 165.2),
            ("NVIDIA H20", Bf16Tensor, 148.0),
            ("NVIDIA L40", Int8, 362.0),
        ] {
            assert_eq!(tera(name, data_type), Some(expected), "{name}");
        }
        assert_eq!(tera("NVIDIA A100-SXM4-80GB", Fp8Tensor), None);
    }

    #[test]
    fn every_row_of_the_table_is_whole_and_of_one_card() {
        let names: Vec<_> = TABLE.lines().skip(1).map(|line| cells(line)[0]).collect();
        for (place, name) in names.iter().enumerate() {
            assert!(!names[..place].contains(name), "{name} stands there twice");
            let spec = lookup(name).expect("every row is found");
            assert!(spec.peaks.contains_key(&DataType::Fp32), "{name}");
            assert!(spec.memory_bytes_per_second.is_some(), "{name}");
            assert!(!spec.source.is_empty(), "{name} has no source");
            for (narrow, wide, most) in [
                (DataType::Fp8Tensor, DataType::Bf16Tensor, 2.1),
                (DataType::Fp16Tensor, DataType::Tf32Tensor, 2.1),
                // GeForce has FP8 at half rate where it adds up in 32 bits.
                (DataType::Fp4Tensor, DataType::Fp8Tensor, 4.1),
            ] {
                if let (Some(narrow), Some(wide)) = (spec.peak(narrow), spec.peak(wide)) {
                    // A sparse figure beside a dense one would be twice as much.
                    let ratio = narrow / wide;
                    assert!((1.0..=most).contains(&ratio), "{name}: {ratio}");
                }
            }
        }
        let columns = cells(TABLE.lines().next().expect("a header")).len();
        assert!(TABLE.lines().all(|line| cells(line).len() == columns));
        for name in "NVIDIA RTX A6000,NVIDIA A30,NVIDIA A40,NVIDIA H800,NVIDIA A800-SXM4-80GB,\
                     NVIDIA GeForce RTX 3090,NVIDIA GeForce RTX 5090,Tesla T4"
            .split(',')
        {
            assert!(names.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_line_of_the_configuration_makes_a_card_known() {
        let line = "bf16 1000, fp8=2000, memory_gbs = 4000, power_watts 750".to_owned();
        let name = "NVIDIA X100".to_owned();
        let specs = Specs::with([(&name, &line)]).expect("a good line");
        let spec = specs.lookup(&name).expect("the card is known now");
        assert_eq!(spec.peak(DataType::Bf16Tensor), Some(1e15));
        assert_eq!(spec.peak(DataType::Fp8Tensor), Some(2e15));
        assert_eq!(spec.memory_bytes_per_second, Some(4e12));
        assert_eq!(spec.power_watts, Some(750.0));
        assert_eq!(spec.peak(DataType::Fp32), None);
        assert!(specs.lookup("NVIDIA H200").is_some());
        assert_eq!(Specs::default().lookup(&name), None);
        let offered = config_line(&name);
        let (_, offered) = offered.split_once(" = ").expect("a name and a value");
        assert!(Spec::parse(&name, offered.trim_matches('"')).is_ok());
    }

    #[test]
    fn a_wrong_line_is_refused_with_the_word_that_is_wrong() {
        for (line, expected) in [
            ("", "`X`: no peak rate; write e.g."),
            ("memory_gbs 1", "`X`: no peak rate"),
            ("bf16 1, bfloat 2", "`X`: `bfloat` is not known; write e.g."),
            ("bf16", "`X`: the bf16 of `` is not a number above 0"),
            ("bf16 -1", "`X`: the bf16 of `-1` is not a number above 0"),
            ("bf16 inf", "`X`: the bf16 of `inf` is not a number above 0"),
            ("bf16 1, bf16 2", "`X`: bf16 stands there twice"),
        ] {
            let error = Spec::parse("X", line).expect_err(line).to_string();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
        let many: Vec<_> = (0..=MAX_ADDED)
            .map(|it| (it.to_string(), "bf16 1".to_owned()))
            .collect();
        let error = Specs::with(many.iter().map(|(name, line)| (name, line)));
        assert_eq!(
            error.err(),
            Some(SpecError::TooMany {
                count: MAX_ADDED + 1
            })
        );
    }
}
