//! What is read through `nvmlDeviceGetFieldValues`: many values in one call, each with its own
//! return code.
//!
//! Adding a field is a row here. Called through the bare bindings, because the safe wrapper cannot
//! name a link (scopeId) and cuts values of 64 bits.
#![expect(unsafe_code, reason = "GetFieldValues takes a bare array")]

use std::time::Duration;

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::sample::{Missing, Reading};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlValue_t};

use super::function::Function;
use super::library::{Library, missing};
use super::values::{Growth, Samples};

/// One field, the metric it becomes, and how many base units its unit is.
type Row = (u32, Metric, f64);

/// Read in every round.
const EVERY_ROUND: &[Row] = &[
    (3, gpu::ECC_CORRECTED_VOLATILE, 1.0),
    (4, gpu::ECC_UNCORRECTED_VOLATILE, 1.0),
    (5, gpu::ECC_CORRECTED_AGGREGATE, 1.0),
    (6, gpu::ECC_UNCORRECTED_AGGREGATE, 1.0),
    // Nanoseconds.
    (74, gpu::THROTTLE_POWER, 1e-9),
    (75, gpu::THROTTLE_THERMAL, 1e-9),
    (76, gpu::THROTTLE_SYNC_BOOST, 1e-9),
    (77, gpu::THROTTLE_BOARD_LIMIT, 1e-9),
    (78, gpu::THROTTLE_LOW_UTILIZATION, 1e-9),
    (79, gpu::THROTTLE_RELIABILITY, 1e-9),
    (80, gpu::THROTTLE_APPLICATION_CLOCKS, 1e-9),
    (81, gpu::THROTTLE_BASE_CLOCKS, 1e-9),
    (MEMORY_TEMPERATURE, gpu::MEMORY_TEMPERATURE, 1.0),
    // Millijoules.
    (83, gpu::ENERGY, 1e-3),
    (94, gpu::PCIE_REPLAYS, 1.0),
    // Milliwatts.
    (185, gpu::POWER_AVERAGE, 1e-3),
    (186, gpu::POWER_INSTANT, 1e-3),
];

/// Read in turn, because they change rarely.
const IN_TURN: &[Row] = &[
    (1, gpu::ECC_MODE, 1.0),
    (29, gpu::RETIRED_PAGES_SINGLE, 1.0),
    (30, gpu::RETIRED_PAGES_DOUBLE, 1.0),
    (31, gpu::RETIRED_PAGES_PENDING, 1.0),
    (142, gpu::REMAPPED_CORRECTABLE, 1.0),
    (143, gpu::REMAPPED_UNCORRECTABLE, 1.0),
    (144, gpu::REMAP_PENDING, 1.0),
    (145, gpu::REMAP_FAILURE, 1.0),
    (173, gpu::PCIE_CORRECTABLE_ERRORS, 1.0),
    (179, gpu::PCIE_NON_FATAL_ERRORS, 1.0),
    (180, gpu::PCIE_FATAL_ERRORS, 1.0),
    (193, gpu::TEMPERATURE_MARGIN_SHUTDOWN, 1.0),
    (194, gpu::TEMPERATURE_MARGIN_SLOWDOWN, 1.0),
    (195, gpu::TEMPERATURE_MARGIN_MEMORY, 1.0),
    (196, gpu::TEMPERATURE_MARGIN_MAX, 1.0),
    (230, gpu::RECOVERY_ACTION, 1.0),
];

/// Counters whose growth is a rate where GPM gives none: field, metric, bytes for each count.
const RATES: [Row; 4] = [
    (197, gpu::PCIE_SENT, 1.0),
    (198, gpu::PCIE_RECEIVED, 1.0),
    (138, gpu::NVLINK_SENT, 1024.0),
    (139, gpu::NVLINK_RECEIVED, 1024.0),
];

/// Above [`NO_SENSOR_CELSIUS`] this field means that there is no sensor.
const MEMORY_TEMPERATURE: u32 = 82;
const NO_SENSOR_CELSIUS: f64 = 200.0;

/// Links a GPU can have (NVML_NVLINK_MAX_LINKS).
const MAX_LINKS: u32 = 18;
const LINK_SPEED: u32 = 164;
const LINK_STATE: u32 = 165;
/// Errors of one link; their sum over the links is the metric.
const LINK_ERRORS: [Row; 3] = [
    (161, gpu::NVLINK_REPLAYS, 1.0),
    (162, gpu::NVLINK_RECOVERIES, 1.0),
    (163, gpu::NVLINK_CRC_ERRORS, 1.0),
];
/// What NVLink 5 says of one link.
const LINK_DETAILS: [Row; 6] = [
    (208, gpu::NVLINK_RECEIVE_ERRORS, 1.0),
    (213, gpu::NVLINK_RECOVERED, 1.0),
    (214, gpu::NVLINK_NOT_RECOVERED, 1.0),
    (219, gpu::NVLINK_EFFECTIVE_ERRORS, 1.0),
    (LINK_BIT_ERRORS, gpu::NVLINK_EFFECTIVE_BER, 1.0),
    (221, gpu::NVLINK_SYMBOL_ERRORS, 1.0),
];
/// A ratio packed into an integer, [`unpacked`].
const LINK_BIT_ERRORS: u32 = 220;
/// "All links" as a scope.
const ALL_LINKS: u32 = u32::MAX;

/// The batches of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    rates: [Growth; RATES.len()],
    links: Vec<u32>,
}

impl Fields {
    /// The batch of every round; with the rates only where GPM gives none.
    pub(crate) fn every_round(
        &mut self,
        library: &Library,
        at: &Place,
        with_rates: bool,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        let rates: &[Row] = if with_rates { &RATES } else { &[] };
        let mut values: Vec<_> = EVERY_ROUND.iter().map(|row| ask(row.0, 0)).collect();
        values.extend(rates.iter().map(|row| ask(row.0, scope_of(row.0))));
        let done = fetch(library, at, &mut values);
        // By position: newer drivers renumber some fields, and the answer has the new number.
        for (value, (id, metric, scale)) in values.iter().zip(EVERY_ROUND) {
            to.push(
                metric,
                done.and_then(|()| number(value))
                    .and_then(|it| seen(*id, it, *scale)),
            );
        }
        let answers = &values[EVERY_ROUND.len()..];
        let mut nvlink = [Err(Missing::NotReady); 2];
        for (place, (value, (_, metric, scale))) in answers.iter().zip(rates).enumerate() {
            let count = done.and_then(|()| number(value)).map(|it| it as u64);
            let rate = self.rates[place].rate(count, at.now, *scale);
            to.push(metric, rate);
            if let Some(place) = place.checked_sub(2) {
                nvlink[place] = rate;
            }
        }
        if with_rates {
            to.push(&gpu::NVLINK_BANDWIDTH, sum(nvlink));
        }
        done
    }

    /// What changes rarely.
    pub(crate) fn in_turn(library: &Library, at: &Place, to: &mut Samples) -> Result<(), Missing> {
        let mut values: Vec<_> = IN_TURN.iter().map(|row| ask(row.0, 0)).collect();
        let done = fetch(library, at, &mut values);
        for (value, (id, metric, scale)) in values.iter().zip(IN_TURN) {
            to.push(
                metric,
                done.and_then(|()| number(value))
                    .and_then(|it| seen(*id, it, *scale)),
            );
        }
        done
    }

    /// State and speed of every link. Finds out which links there are.
    pub(crate) fn links(
        &mut self,
        library: &Library,
        at: &Place,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        let both = |link| [ask(LINK_STATE, link), ask(LINK_SPEED, link)];
        let mut values: Vec<_> = (0..MAX_LINKS).flat_map(both).collect();
        let done = fetch(library, at, &mut values);
        self.links.clear();
        let mut up = 0;
        for (link, pair) in values.chunks_exact(2).enumerate() {
            let Ok(state) = done.and_then(|()| number(&pair[0])) else {
                continue;
            };
            self.links.push(link as u32);
            up += u32::from(state == 1.0);
            let part = Part::new(PartKind::NvLink, link.to_string());
            to.push_part(
                &gpu::NVLINK_UP,
                part.clone(),
                Ok(f64::from(u8::from(state == 1.0))),
            );
            // MB/s of the line, as NVML counts them.
            to.push_part(
                &gpu::NVLINK_SPEED,
                part,
                number(&pair[1]).map(|speed| speed * 1e6),
            );
        }
        let none = match (done, self.links.is_empty()) {
            (Err(missing), _) => Some(missing),
            (Ok(()), true) => Some(Missing::NotSupported),
            (Ok(()), false) => None,
        };
        to.push(&gpu::NVLINKS_ACTIVE, none.map_or(Ok(f64::from(up)), Err));
        done
    }

    /// Errors over all links that [`Fields::links`] found.
    pub(crate) fn link_errors(
        &self,
        library: &Library,
        at: &Place,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        if self.links.is_empty() {
            for (_, metric, _) in &LINK_ERRORS {
                to.push(metric, Err(Missing::NotSupported));
            }
            return Ok(());
        }
        let of_link = |link: &u32| LINK_ERRORS.map(|row| ask(row.0, *link));
        let mut values: Vec<_> = self.links.iter().flat_map(of_link).collect();
        let done = fetch(library, at, &mut values);
        for (place, (_, metric, _)) in LINK_ERRORS.iter().enumerate() {
            let total = values
                .chunks_exact(LINK_ERRORS.len())
                .map(|link| done.and_then(|()| number(&link[place])))
                .sum();
            to.push(metric, total);
        }
        for (link, values) in self
            .links
            .iter()
            .zip(values.chunks_exact(LINK_ERRORS.len()))
        {
            let total: Reading = values
                .iter()
                .map(|value| done.and_then(|()| number(value)))
                .sum();
            push_link(*link, &gpu::NVLINK_LINK_ERRORS, total, to);
        }
        done
    }

    /// What NVLink 5 says of each link that [`Fields::links`] found.
    pub(crate) fn link_details(
        &self,
        library: &Library,
        at: &Place,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        if self.links.is_empty() {
            return Ok(());
        }
        let of_link = |link: &u32| LINK_DETAILS.map(|row| ask(row.0, *link));
        let mut values: Vec<_> = self.links.iter().flat_map(of_link).collect();
        let done = fetch(library, at, &mut values);
        for (link, values) in self
            .links
            .iter()
            .zip(values.chunks_exact(LINK_DETAILS.len()))
        {
            for (value, (id, metric, _)) in values.iter().zip(&LINK_DETAILS) {
                let read = done.and_then(|()| number(value));
                let read = match *id {
                    LINK_BIT_ERRORS => read.map(|it| unpacked(it as u64)),
                    _ => read,
                };
                push_link(*link, metric, read, to);
            }
        }
        done
    }
}

/// Tells of one link; what its generation does not have is not told 18 times.
fn push_link(link: u32, metric: &Metric, reading: Reading, to: &mut Samples) {
    if reading != Err(Missing::NotSupported) {
        to.push_part(
            metric,
            Part::new(PartKind::NvLink, link.to_string()),
            reading,
        );
    }
}

/// A bit error ratio as the driver packs it: mantissa in bits 8 to 11, negative decimal exponent in
/// bits 0 to 7.
fn unpacked(packed: u64) -> f64 {
    let mantissa = (packed >> 8 & 0xf) as f64;
    mantissa * 10f64.powi(-((packed & 0xff) as i32))
}

/// Whose fields, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The GPU's index, for the shared page.
    pub(crate) index: u32,
    /// Its handle.
    pub(crate) device: nvmlDevice_t,
    /// The time on the clock both processes share.
    pub(crate) now: Duration,
}

fn scope_of(id: u32) -> u32 {
    if matches!(id, 138 | 139) {
        ALL_LINKS
    } else {
        0
    }
}

fn ask(field: u32, scope: u32) -> nvmlFieldValue_t {
    nvmlFieldValue_t {
        fieldId: field,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // Not answered until the driver says so.
        nvmlReturn: 999,
        value: nvmlValue_t { ullVal: 0 },
    }
}

fn fetch(library: &Library, at: &Place, values: &mut [nvmlFieldValue_t]) -> Result<(), Missing> {
    library.ask_raw(Some(at.index), Function::FieldValues, |lib| {
        let get = lib.nvmlDeviceGetFieldValues.as_ref().ok()?;
        // SAFETY: the handle came from this library, and the array has the length that is passed
        // and is ours alone during the call.
        Some(unsafe { get(at.device, values.len() as i32, values.as_mut_ptr()) })
    })
}

/// The number a field came back with, whatever its type.
fn number(value: &nvmlFieldValue_t) -> Reading {
    if value.nvmlReturn != 0 {
        return Err(missing(value.nvmlReturn));
    }
    // SAFETY: every bit pattern is a valid number of each of the union's types, all eight bytes
    // were initialised to zero before the call, and the driver says which type it wrote.
    let number = unsafe {
        match value.valueType {
            0 => value.value.dVal,
            1 if value.value.uiVal == u32::MAX => return Err(Missing::NotSupported),
            1 => f64::from(value.value.uiVal),
            2 | 3 if value.value.ullVal == u64::MAX => return Err(Missing::NotSupported),
            2 | 3 => value.value.ullVal as f64,
            4 => value.value.sllVal as f64,
            5 => f64::from(value.value.siVal),
            6 => f64::from(value.value.usVal),
            _ => return Err(Missing::Invalid),
        }
    };
    if number.is_nan() {
        return Err(Missing::Invalid);
    }
    Ok(number)
}

fn seen(id: u32, number: f64, scale: f64) -> Reading {
    if id == MEMORY_TEMPERATURE && number > NO_SENSOR_CELSIUS {
        return Err(Missing::NotSupported);
    }
    Ok(number * scale)
}

/// Both directions together; missing when one is.
pub(crate) fn sum(both: [Reading; 2]) -> Reading {
    Ok(both[0]? + both[1]?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(kind: u32, code: u32, value: nvmlValue_t) -> nvmlFieldValue_t {
        nvmlFieldValue_t {
            valueType: kind,
            nvmlReturn: code,
            value,
            ..ask(1, 0)
        }
    }

    #[test]
    fn a_value_is_read_by_the_type_that_the_driver_names() {
        let cases = [
            (value(0, 0, nvmlValue_t { dVal: 1.5 }), Ok(1.5)),
            (
                value(0, 0, nvmlValue_t { dVal: f64::NAN }),
                Err(Missing::Invalid),
            ),
            (value(1, 0, nvmlValue_t { uiVal: 7 }), Ok(7.0)),
            (
                value(1, 0, nvmlValue_t { uiVal: u32::MAX }),
                Err(Missing::NotSupported),
            ),
            (
                value(3, 0, nvmlValue_t { ullVal: 1 << 40 }),
                Ok((1u64 << 40) as f64),
            ),
            (value(4, 0, nvmlValue_t { sllVal: -3 }), Ok(-3.0)),
            (value(5, 0, nvmlValue_t { siVal: -2 }), Ok(-2.0)),
            (value(6, 0, nvmlValue_t { usVal: 9 }), Ok(9.0)),
            (value(7, 0, nvmlValue_t { uiVal: 9 }), Err(Missing::Invalid)),
            (
                value(1, 3, nvmlValue_t { uiVal: 9 }),
                Err(Missing::NotSupported),
            ),
            (
                value(1, 4, nvmlValue_t { uiVal: 9 }),
                Err(Missing::NoPermission),
            ),
            (ask(1, 0), Err(Missing::Unknown)),
        ];
        for (value, expected) in cases {
            assert_eq!(number(&value), expected, "type {}", value.valueType);
        }
    }

    #[test]
    fn a_bit_error_ratio_is_unpacked() {
        assert!((unpacked(0x0f0f) / 15e-15 - 1.0).abs() < 1e-9);
        assert_eq!(unpacked(0), 0.0);
    }

    #[test]
    fn a_memory_temperature_above_200_means_no_sensor() {
        assert_eq!(seen(82, 255.0, 1.0), Err(Missing::NotSupported));
        assert_eq!(seen(82, 95.0, 1.0), Ok(95.0));
        assert_eq!(seen(83, 255_000.0, 1e-3), Ok(255.0));
    }
}
