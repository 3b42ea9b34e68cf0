//! `nvidia-smi -q -x`: one document of every GPU's state, as a table of paths.
//!
//! A value it prints as `N/A`, and every other text that is no value of the row, is a reading with
//! its reason. Limits: [`MAX_DEPTH`], [`MAX_GPUS`].

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute, gpu_id};
use gpufleet_telemetry::sample::{Missing, Reading, ResourceSamples, Sample};
use quick_xml::Reader;
use quick_xml::events::Event;

/// Deepest element; nvidia-smi's documents have six levels.
pub const MAX_DEPTH: usize = 32;

/// Most GPUs of one document.
pub const MAX_GPUS: usize = 64;

/// How a text becomes a value in base units.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// `81559 MiB`
    Mebibytes,
    /// `97 %`
    Percent,
    /// `1980 MHz`
    Megahertz,
    /// `627.40 W`
    Watts,
    /// `52 C`
    Celsius,
    /// `7015662857 us`
    Microseconds,
    /// `16x`
    Lanes,
    /// `P0`
    PerformanceState,
    /// `Yes`, `No`
    YesNo,
    /// `None`, `Reset`, `Reboot`, `Drain P2P`, `Drain and Reset`
    RecoveryAction,
    /// `150`
    Number,
}

use Shape::{
    Celsius, Lanes, Mebibytes, Megahertz, Microseconds, Number, Percent, PerformanceState,
    RecoveryAction, Watts, YesNo,
};

/// Path under `gpu`, metric, shape. Of two rows for one metric the first with a value counts.
const ROWS: &[(&str, &Metric, Shape)] = &[
    ("utilization/gpu_util", &gpu::UTILIZATION, Percent),
    ("utilization/memory_util", &gpu::MEMORY_UTILIZATION, Percent),
    (
        "utilization/encoder_util",
        &gpu::ENCODER_UTILIZATION,
        Percent,
    ),
    (
        "utilization/decoder_util",
        &gpu::DECODER_UTILIZATION,
        Percent,
    ),
    ("fb_memory_usage/total", &gpu::MEMORY_TOTAL, Mebibytes),
    ("fb_memory_usage/used", &gpu::MEMORY_USED, Mebibytes),
    ("fb_memory_usage/free", &gpu::MEMORY_FREE, Mebibytes),
    ("fb_memory_usage/reserved", &gpu::MEMORY_RESERVED, Mebibytes),
    ("gpu_power_readings/average_power_draw", &gpu::POWER, Watts),
    ("gpu_power_readings/power_draw", &gpu::POWER, Watts),
    (
        "gpu_power_readings/instant_power_draw",
        &gpu::POWER_INSTANT,
        Watts,
    ),
    (
        "gpu_power_readings/current_power_limit",
        &gpu::POWER_LIMIT,
        Watts,
    ),
    ("temperature/gpu_temp", &gpu::TEMPERATURE, Celsius),
    ("temperature/memory_temp", &gpu::MEMORY_TEMPERATURE, Celsius),
    (
        "temperature/gpu_temp_tlimit",
        &gpu::TEMPERATURE_MARGIN,
        Celsius,
    ),
    ("clocks/sm_clock", &gpu::SM_CLOCK, Megahertz),
    ("clocks/mem_clock", &gpu::MEMORY_CLOCK, Megahertz),
    ("max_clocks/sm_clock", &gpu::SM_CLOCK_MAX, Megahertz),
    (
        "performance_state",
        &gpu::PERFORMANCE_STATE,
        PerformanceState,
    ),
    (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",
        &gpu::THROTTLE_POWER,
        Microseconds,
    ),
    (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost",
        &gpu::THROTTLE_SYNC_BOOST,
        Microseconds,
    ),
    ("pci/replay_counter", &gpu::PCIE_REPLAYS, Number),
    (
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        &gpu::PCIE_GENERATION,
        Number,
    ),
    (
        "pci/pci_gpu_link_info/link_widths/current_link_width",
        &gpu::PCIE_WIDTH,
        Lanes,
    ),
    (
        "remapped_rows/remapped_row_corr",
        &gpu::REMAPPED_CORRECTABLE,
        Number,
    ),
    (
        "remapped_rows/remapped_row_unc",
        &gpu::REMAPPED_UNCORRECTABLE,
        Number,
    ),
    (
        "remapped_rows/remapped_row_pending",
        &gpu::REMAP_PENDING,
        YesNo,
    ),
    (
        "remapped_rows/remapped_row_failure",
        &gpu::REMAP_FAILURE,
        YesNo,
    ),
    ("gpu_recovery_action", &gpu::RECOVERY_ACTION, RecoveryAction),
];

/// Path of a throttle reason → its bit; `Active` sets it.
const THROTTLE_BITS: [(&str, u32); 9] = [
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clocks_setting", 0x100),
];

/// Path under `gpu`, attribute.
const ATTRIBUTES: [(&str, &str); 4] = [
    ("product_name", attribute::GPU_MODEL),
    ("vbios_version", attribute::VBIOS_VERSION),
    ("minor_number", attribute::GPU_MINOR),
    ("pci/pci_bus_id", attribute::PCI_ADDRESS),
];

/// Every GPU of a document. `node` stands in the ids of GPUs without a UUID.
///
/// # Errors
/// When it is no such document or has no GPU.
pub fn read(text: &str, node: &str) -> Result<Vec<ResourceSamples>, String> {
    let (shared, gpus) = texts(text)?;
    if gpus.is_empty() {
        return Err("the document has no GPU".to_owned());
    }
    let gpus = gpus.iter().enumerate();
    Ok(gpus
        .map(|(index, values)| one(index, values, &shared, node))
        .collect())
}

/// Path → text, of one GPU or of the document.
type Texts = HashMap<String, String>;

fn one(index: usize, values: &Texts, shared: &Texts, node: &str) -> ResourceSamples {
    let get = |path: &str| values.get(path).map_or("", String::as_str);
    let present = |text: &str| !matches!(text, "" | "N/A" | "[N/A]");
    let address = get("pci/pci_bus_id");
    let id = gpu_id(get("uuid"), node, address);
    let mut resource =
        Resource::new(ResourceKind::Gpu, id).with(attribute::GPU_INDEX, index.to_string());
    for (path, name) in ATTRIBUTES {
        if present(get(path)) {
            resource = resource.with(name, get(path));
        }
    }
    for (path, name) in [
        ("driver_version", attribute::DRIVER_VERSION),
        ("cuda_version", attribute::CUDA_VERSION),
    ] {
        let value = shared.get(path).map_or("", String::as_str);
        resource = resource.with(name, value);
    }
    let mut samples: Vec<Sample> = Vec::with_capacity(ROWS.len() + 1);
    for (path, metric, shape) in ROWS {
        let Some(text) = values.get(*path) else {
            continue;
        };
        let reading = parse(text, *shape);
        match samples.iter_mut().find(|it| it.metric == metric.id) {
            Some(earlier) if earlier.reading.is_err() => earlier.reading = reading,
            Some(_) => {}
            None => samples.push(Sample {
                metric: metric.id,
                part: None,
                reading,
            }),
        }
    }
    if let Some(bits) = throttle_bits(values) {
        samples.push(Sample {
            metric: gpu::THROTTLE_REASONS.id,
            part: None,
            reading: Ok(f64::from(bits)),
        });
    }
    ResourceSamples {
        resource: Arc::new(resource),
        samples,
    }
}

fn throttle_bits(values: &Texts) -> Option<u32> {
    let mut found = None;
    for (name, bit) in THROTTLE_BITS {
        // Drivers before 535 say `throttle` where newer ones say `event`.
        for word in ["event", "throttle"] {
            let path = format!("clocks_{word}_reasons/clocks_{word}_reason_{name}");
            if let Some(text) = values.get(&path) {
                let bits = found.get_or_insert(0);
                *bits |= if text == "Active" { bit } else { 0 };
            }
        }
    }
    found
}

fn parse(text: &str, shape: Shape) -> Reading {
    if matches!(text, "N/A" | "[N/A]" | "Not Supported" | "[Not Supported]") {
        return Err(Missing::NotSupported);
    }
    let number = |unit: &str, scale: f64| -> Reading {
        let digits = text.strip_suffix(unit).ok_or(Missing::Invalid)?.trim();
        let value: f64 = digits.parse().map_err(|_| Missing::Invalid)?;
        if value.is_finite() {
            Ok(value * scale)
        } else {
            Err(Missing::Invalid)
        }
    };
    match shape {
        Mebibytes => number("MiB", 1_048_576.0),
        Percent => number("%", 0.01),
        Megahertz => number("MHz", 1e6),
        Watts => number("W", 1.0),
        Celsius => number("C", 1.0),
        Microseconds => number("us", 1e-6),
        Lanes => number("x", 1.0),
        Number => number("", 1.0),
        PerformanceState => {
            let digits = text.strip_prefix('P').ok_or(Missing::Invalid)?;
            let state: u8 = digits.parse().map_err(|_| Missing::Invalid)?;
            Ok(f64::from(state))
        }
        YesNo => match text {
            "Yes" => Ok(1.0),
            "No" => Ok(0.0),
            _ => Err(Missing::Invalid),
        },
        RecoveryAction => match text {
            "None" => Ok(0.0),
            "Reset" => Ok(1.0),
            "Reboot" => Ok(2.0),
            "Drain P2P" => Ok(3.0),
            "Drain and Reset" => Ok(4.0),
            _ => Err(Missing::Invalid),
        },
    }
}

/// The texts of the document's head and of each `gpu` element.
fn texts(text: &str) -> Result<(Texts, Vec<Texts>), String> {
    let mut reader = Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    let mut shared = Texts::new();
    let mut gpus: Vec<Texts> = Vec::new();
    loop {
        let event = reader
            .read_event()
            .map_err(|error| format!("byte {}: {error}", reader.error_position()))?;
        match event {
            Event::Start(start) => {
                if path.len() == MAX_DEPTH {
                    return Err(format!("elements deeper than {MAX_DEPTH}"));
                }
                let name = String::from_utf8_lossy(start.local_name().as_ref()).into_owned();
                if path.is_empty() && name != "nvidia_smi_log" {
                    return Err(format!(
                        "it begins with <{name}>, not with <nvidia_smi_log>"
                    ));
                }
                if path.len() == 1 && name == "gpu" {
                    if gpus.len() == MAX_GPUS {
                        return Err(format!("more than {MAX_GPUS} GPUs"));
                    }
                    gpus.push(Texts::new());
                }
                path.push(name);
            }
            Event::End(_) => {
                path.pop();
            }
            Event::Text(content) => {
                let content = content.decode().map_err(|error| error.to_string())?;
                let content = content.trim();
                let in_gpu = path.get(1).is_some_and(|name| name == "gpu");
                if content.is_empty() || path.len() < 2 {
                    continue;
                }
                let (under, texts) = match gpus.last_mut() {
                    Some(texts) if in_gpu => (path[2..].join("/"), texts),
                    _ => (path[1..].join("/"), &mut shared),
                };
                texts.entry(under).or_insert_with(|| content.to_owned());
            }
            Event::Eof => {
                if let Some(open) = path.last() {
                    return Err(format!("the document breaks off inside <{open}>"));
                }
                return Ok((shared, gpus));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(inside: &str) -> String {
        format!(
            "<?xml version=\"1.0\" ?>\n<nvidia_smi_log><driver_version>580.1</driver_version><gpu id=\"a\">{inside}</gpu></nvidia_smi_log>"
        )
    }

    #[test]
    fn every_shape_becomes_a_base_unit_or_a_reason() {
        let cases = [
            ("81559 MiB", Mebibytes, Ok(81_559.0 * 1_048_576.0)),
            ("50 %", Percent, Ok(0.5)),
            ("1980 MHz", Megahertz, Ok(1.98e9)),
            ("68.57 W", Watts, Ok(68.57)),
            ("-8 C", Celsius, Ok(-8.0)),
            ("2000000 us", Microseconds, Ok(2.0)),
            ("16x", Lanes, Ok(16.0)),
            ("P8", PerformanceState, Ok(8.0)),
            ("Yes", YesNo, Ok(1.0)),
            ("Reboot", RecoveryAction, Ok(2.0)),
            ("Dance", RecoveryAction, Err(Missing::Invalid)),
            ("150", Number, Ok(150.0)),
            ("N/A", Number, Err(Missing::NotSupported)),
            ("inf W", Watts, Err(Missing::Invalid)),
            ("12 GiB", Mebibytes, Err(Missing::Invalid)),
        ];
        for (text, shape, expected) in cases {
            assert_eq!(parse(text, shape), expected, "{text}");
        }
    }

    #[test]
    fn a_gpu_gets_its_readings_attributes_and_throttle_bits() {
        let text = document(
            "<product_name>NVIDIA L4</product_name><uuid>GPU-5f2c</uuid>\
             <clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>\
             <clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>\
             <gpu_power_readings><average_power_draw>N/A</average_power_draw><power_draw>20.5 W</power_draw></gpu_power_readings>",
        );
        let gpus = read(&text, "n").expect("a GPU");
        assert_eq!(gpus[0].resource.id.as_ref(), "GPU-5f2c");
        assert_eq!(
            gpus[0].resource.attribute(attribute::DRIVER_VERSION),
            Some("580.1")
        );
        let of = |metric: &Metric| {
            let sample = gpus[0].samples.iter().find(|it| it.metric == metric.id);
            sample.map(|it| it.reading)
        };
        assert_eq!(of(&gpu::POWER), Some(Ok(20.5)));
        assert_eq!(of(&gpu::THROTTLE_REASONS), Some(Ok(5.0)));
        assert_eq!(of(&gpu::UTILIZATION), None);
    }

    #[test]
    fn a_document_that_is_none_says_why() {
        let whole = document("<uuid>GPU-1</uuid>");
        let cases = [
            ("<?xml version=\"1.0\" ?><other/>".to_owned(), "no GPU"),
            (
                "<?xml version=\"1.0\" ?><other></other>".to_owned(),
                "not with <nvidia_smi_log>",
            ),
            ("<nvidia_smi_log></nvidia_smi_log>".to_owned(), "no GPU"),
            (
                whole.replace("</gpu></nvidia_smi_log>", ""),
                "breaks off inside",
            ),
            (document(&"<a>".repeat(MAX_DEPTH)), "deeper than"),
            (document("</wrong>"), "byte"),
        ];
        for (text, why) in cases {
            let error = read(&text, "n").expect_err(why);
            assert!(error.contains(why), "{error} for {why}");
        }
    }
}
