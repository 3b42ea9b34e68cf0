//! What takes turns: readings that change rarely or matter less, one driver call each, in what the
//! fixed readings leave of a round's budget.
#![expect(unsafe_code, reason = "some of it is not in the safe wrapper")]

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::sample::{Missing, Reading};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureThreshold};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    nvmlEccSramErrorStatus_t, nvmlGpuFabricInfo_v2_t, nvmlMarginTemperature_t,
};

use super::device::{fatal, percent};
use super::fields::{Fields, Place};
use super::function::Function;
use super::library::Library;
use super::values::Samples;

/// One reading or batch. Each is one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Encoder,
    Decoder,
    PerformanceState,
    Margin,
    ProcessUtilization,
    PowerLimit,
    MaxClock,
    Slowdown,
    PcieGeneration,
    PcieWidth,
    Sram,
    Fabric,
    Fields,
    Links,
    LinkErrors,
    LinkDetails,
    Mig,
}

/// Asked in turn, one after the other.
pub(crate) const OFTEN: [Turn; 5] = [
    Turn::Encoder,
    Turn::Decoder,
    Turn::PerformanceState,
    Turn::Margin,
    Turn::ProcessUtilization,
];

/// [`SELDOM_PER_ROW`] of these after each row of [`OFTEN`].
pub(crate) const SELDOM: [Turn; 12] = [
    Turn::PowerLimit,
    Turn::MaxClock,
    Turn::Slowdown,
    Turn::PcieGeneration,
    Turn::PcieWidth,
    Turn::Sram,
    Turn::Fabric,
    Turn::Fields,
    Turn::Links,
    Turn::LinkErrors,
    Turn::LinkDetails,
    Turn::Mig,
];

/// With one turn a round, [`OFTEN`] comes every 7 s and [`SELDOM`] every 42 s.
const SELDOM_PER_ROW: usize = 2;

/// Which turn is the n-th. Under MIG the whole chip has no codec or process figures, and their
/// turns look for a changed layout instead.
pub(crate) fn nth(number: usize, mig: bool) -> Turn {
    let row_length = OFTEN.len() + SELDOM_PER_ROW;
    let (row, place) = (number / row_length, number % row_length);
    match OFTEN.get(place) {
        Some(Turn::Encoder | Turn::Decoder | Turn::ProcessUtilization) if mig => Turn::Mig,
        Some(turn) => *turn,
        None => SELDOM[(row * SELDOM_PER_ROW + place - OFTEN.len()) % SELDOM.len()],
    }
}

/// Asks what needs nothing but the handle. A failure of the whole GPU is the error.
pub(crate) fn simple(
    turn: Turn,
    library: &Library,
    at: &Place,
    device: &Device<'static>,
    to: &mut Samples,
) -> Result<(), Missing> {
    let one = |function, call: &dyn Fn() -> Result<f64, NvmlError>| {
        fatal(library.ask(Some(at.index), function, |_| call()))
    };
    let (metric, reading) = match turn {
        Turn::Encoder => (
            gpu::ENCODER_UTILIZATION,
            one(Function::EncoderUtilization, &|| {
                device
                    .encoder_utilization()
                    .map(|it| percent(it.utilization))
            })?,
        ),
        Turn::Decoder => (
            gpu::DECODER_UTILIZATION,
            one(Function::DecoderUtilization, &|| {
                device
                    .decoder_utilization()
                    .map(|it| percent(it.utilization))
            })?,
        ),
        Turn::PerformanceState => (
            gpu::PERFORMANCE_STATE,
            one(Function::PerformanceState, &|| {
                device.performance_state().map(|it| f64::from(it.as_c()))
            })?,
        ),
        Turn::PowerLimit => (
            gpu::POWER_LIMIT,
            one(Function::EnforcedPowerLimit, &|| {
                device
                    .enforced_power_limit()
                    .map(|milliwatts| f64::from(milliwatts) / 1e3)
            })?,
        ),
        Turn::MaxClock => (
            gpu::SM_CLOCK_MAX,
            one(Function::MaxClockInfo, &|| {
                device
                    .max_clock_info(Clock::SM)
                    .map(|mhz| f64::from(mhz) * 1e6)
            })?,
        ),
        Turn::Slowdown => (
            gpu::TEMPERATURE_SLOWDOWN,
            one(Function::TemperatureThreshold, &|| {
                device
                    .temperature_threshold(TemperatureThreshold::Slowdown)
                    .map(f64::from)
            })?,
        ),
        Turn::PcieGeneration => (
            gpu::PCIE_GENERATION,
            one(Function::PcieLinkGeneration, &|| {
                device.current_pcie_link_gen().map(f64::from)
            })?,
        ),
        Turn::PcieWidth => (
            gpu::PCIE_WIDTH,
            one(Function::PcieLinkWidth, &|| {
                device.current_pcie_link_width().map(f64::from)
            })?,
        ),
        Turn::Margin => (gpu::TEMPERATURE_MARGIN, fatal(margin(library, at))?),
        Turn::Sram => return sram(library, at, to),
        Turn::Fabric => return fabric(library, at, to),
        Turn::Fields => return fatal(Fields::in_turn(library, at, to)).map(|_| ()),
        Turn::ProcessUtilization
        | Turn::Links
        | Turn::LinkErrors
        | Turn::LinkDetails
        | Turn::Mig => return Ok(()),
    };
    to.push(&metric, reading);
    Ok(())
}

/// `NVML_STRUCT_VERSION(T, n)`.
const fn version<T>(number: u32) -> u32 {
    (size_of::<T>() as u32) | (number << 24)
}

/// Degrees left before the card slows itself down.
fn margin(library: &Library, at: &Place) -> Reading {
    let mut margin = nvmlMarginTemperature_t {
        version: version::<nvmlMarginTemperature_t>(1),
        marginTemperature: 0,
    };
    library.ask_raw(Some(at.index), Function::MarginTemperature, |lib| {
        let get = lib.nvmlDeviceGetMarginTemperature.as_ref().ok()?;
        // SAFETY: the handle came from this library, and the struct is ours and versioned.
        Some(unsafe { get(at.device, &mut margin) })
    })?;
    Ok(f64::from(margin.marginTemperature))
}

fn sram(library: &Library, at: &Place, to: &mut Samples) -> Result<(), Missing> {
    // SAFETY: the struct is integers; all zeros is a valid value of it.
    let mut status: nvmlEccSramErrorStatus_t = unsafe { std::mem::zeroed() };
    status.version = version::<nvmlEccSramErrorStatus_t>(1);
    let asked = fatal(
        library.ask_raw(Some(at.index), Function::SramEccErrors, |lib| {
            let get = lib.nvmlDeviceGetSramEccErrorStatus.as_ref().ok()?;
            // SAFETY: the handle came from this library, and the struct is ours and versioned.
            Some(unsafe { get(at.device, &mut status) })
        }),
    )?;
    let uncorrected = |parity: u64, sec_ded: u64| parity.saturating_add(sec_ded);
    for (metric, count) in [
        (gpu::SRAM_CORRECTED_VOLATILE, status.volatileCor),
        (
            gpu::SRAM_UNCORRECTED_VOLATILE,
            uncorrected(status.volatileUncParity, status.volatileUncSecDed),
        ),
        (gpu::SRAM_CORRECTED_AGGREGATE, status.aggregateCor),
        (
            gpu::SRAM_UNCORRECTED_AGGREGATE,
            uncorrected(status.aggregateUncParity, status.aggregateUncSecDed),
        ),
        (
            gpu::SRAM_THRESHOLD_EXCEEDED,
            u64::from(status.bThresholdExceeded),
        ),
    ] {
        to.push(&metric, asked.map(|()| count as f64));
    }
    Ok(())
}

fn fabric(library: &Library, at: &Place, to: &mut Samples) -> Result<(), Missing> {
    let asked = fatal(fabric_info(library, at))?;
    // Without a fabric there is nothing to be healthy or not.
    let joined = asked.and_then(|info| match info.state {
        0 => Err(Missing::NotSupported),
        _ => Ok(info),
    });
    to.push(&gpu::FABRIC_STATE, joined.map(|info| f64::from(info.state)));
    to.push(
        &gpu::FABRIC_HEALTH,
        joined.map(|info| f64::from(info.healthMask)),
    );
    Ok(())
}

/// The card's place in its NVLink fabric.
pub(crate) fn fabric_info(
    library: &Library,
    at: &Place,
) -> Result<nvmlGpuFabricInfo_v2_t, Missing> {
    let mut info = nvmlGpuFabricInfo_v2_t {
        version: version::<nvmlGpuFabricInfo_v2_t>(2),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
    };
    library.ask_raw(Some(at.index), Function::FabricInfo, |lib| {
        let get = lib.nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
        // SAFETY: the handle came from this library; the function looks at the version first and
        // writes no more than the struct of that version, which is ours.
        Some(unsafe { get(at.device, (&raw mut info).cast()) })
    })?;
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reading_gets_its_turn_within_a_minute() {
        let minute: Vec<_> = (1..=60).map(|number| nth(number, false)).collect();
        for wanted in OFTEN.into_iter().chain(SELDOM) {
            assert!(minute.contains(&wanted), "{wanted:?} has no turn");
        }
    }

    #[test]
    fn under_mig_the_layout_is_looked_at_instead_of_what_is_not_there() {
        let turns: Vec<_> = (1..=60).map(|number| nth(number, true)).collect();
        assert!(!turns.contains(&Turn::Encoder));
        assert!(turns.iter().filter(|it| **it == Turn::Mig).count() >= 24);
    }
}
