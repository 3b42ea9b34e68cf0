//! What a card could do at best, on its page; a card that the table does not know says how to tell.

use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::gpu_specs::{self, DataType, Spec, Specs};
use gpufleet_telemetry::identity::attribute;

use crate::fleet::live::Live;
use crate::words::text::{self, quantity};

/// Peak rates, or the line that makes them known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peaks {
    /// What the rate is of, and the rate.
    pub rates: Vec<(String, String)>,
    /// How sure the table is and from where; or why there are none.
    pub source: String,
    /// The configuration to add; none when the card is known, or its name is not.
    pub config: Option<String>,
    /// Whether there are none.
    pub is_unknown: bool,
}

/// The peak rates of a GPU.
pub fn of(live: &Live, specs: &Specs) -> Peaks {
    let Some(model) = live.resource.attribute(attribute::GPU_MODEL) else {
        return Peaks {
            source: "the card's name is not reported.".to_owned(),
            is_unknown: true,
            ..Peaks::default()
        };
    };
    match specs.lookup(model) {
        Some(spec) => known(spec),
        None => Peaks {
            source: format!(
                "the table does not have “{}”. Until it is told, nothing is compared with a peak.",
                text::harmless(model, text::SHOWN_CHARACTERS)
            ),
            config: Some(format!(
                "[gpu.peaks]\n{}",
                gpu_specs::config_line(&text::harmless(model, text::TITLE_CHARACTERS))
            )),
            is_unknown: true,
            ..Peaks::default()
        },
    }
}

fn known(spec: &Spec) -> Peaks {
    let mut rates: Vec<(String, String)> = DataType::ALL
        .into_iter()
        .filter_map(|it| {
            let word = if it == DataType::Int8 {
                "TOPS"
            } else {
                "TFLOPS"
            };
            Some((
                words(it).to_owned(),
                format!("{} {word}", trimmed(spec.peak(it)? / 1e12)),
            ))
        })
        .collect();
    let others = [
        (
            "Memory bandwidth",
            spec.memory_bytes_per_second,
            Unit::BytesPerSecond,
        ),
        (
            "NVLink, both ways",
            spec.nvlink_bytes_per_second,
            Unit::BytesPerSecond,
        ),
        ("Power, at most", spec.power_watts, Unit::Watts),
    ];
    for (name, value, unit) in others {
        if let Some(value) = value {
            rates.push((name.to_owned(), quantity(unit, value)));
        }
    }
    let mut source = format!(
        "Dense rates, half of a datasheet's headline; real kernels reach 70 to 87 % of them. Confidence {}",
        spec.confidence.name()
    );
    for said in [&spec.source, &spec.notes] {
        if !said.is_empty() {
            source.push_str("; ");
            source.push_str(said);
        }
    }
    source.push('.');
    Peaks {
        rates,
        source,
        ..Peaks::default()
    }
}

const fn words(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Fp64 => "FP64",
        DataType::Fp64Tensor => "FP64, tensor cores",
        DataType::Fp32 => "FP32",
        DataType::Tf32Tensor => "TF32, tensor cores",
        DataType::Fp16Tensor => "FP16, tensor cores",
        DataType::Bf16Tensor => "BF16, tensor cores",
        DataType::Fp8Tensor => "FP8, tensor cores",
        DataType::Int8 => "INT8",
        DataType::Fp4Tensor => "FP4, tensor cores",
    }
}

/// `989.4`, `67`: one decimal where it says something.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind};

    use super::*;
    use crate::view::fixture;

    fn peaks(model: Option<&str>, specs: &Specs) -> Peaks {
        let mut live = fixture::live("c", "n", ResourceKind::Gpu, "GPU-1", Origin::Live);
        let resource = Resource::new(ResourceKind::Gpu, "GPU-1");
        let resource = match model {
            Some(model) => resource.with(attribute::GPU_MODEL, model),
            None => resource,
        };
        live.resource = std::sync::Arc::new(resource);
        of(&live, specs)
    }

    #[test]
    fn an_unknown_card_says_the_line_that_makes_it_known_and_the_line_does() {
        let unknown = peaks(Some("NVIDIA Z900"), &Specs::default());
        let config = unknown.config.expect("the line to add");
        assert!(unknown.is_unknown && unknown.rates.is_empty());
        let table: toml::Table = config.parse().expect("it is TOML");
        let lines: std::collections::BTreeMap<String, String> = table["gpu"]["peaks"]
            .clone()
            .try_into()
            .expect("a line per card");
        let specs = Specs::with(&lines).expect("the line is good");
        let known = peaks(Some("NVIDIA Z900"), &specs);
        assert!(!known.is_unknown && !known.rates.is_empty());
    }

    #[test]
    fn a_card_without_a_name_gets_no_line_to_add() {
        let nameless = peaks(None, &Specs::default());
        assert!(nameless.is_unknown && nameless.config.is_none());
    }

    #[test]
    fn a_known_card_has_its_dense_rates() {
        let known = peaks(Some("NVIDIA H100 80GB HBM3"), &Specs::default());
        let bf16 = known
            .rates
            .iter()
            .find(|(name, _)| name.starts_with("BF16"));
        assert_eq!(bf16.map(|(_, rate)| rate.as_str()), Some("989.4 TFLOPS"));
    }
}
