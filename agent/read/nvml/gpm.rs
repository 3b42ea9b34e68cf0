//! GPM: profiling counters of Hopper and newer through NVML, in the child that reads it.
//!
//! A metric is the mean between two samples. A driver that says it supports GPM may still give no
//! data (a vGPU slice), so it is trusted only after two live samples gave a value.
#![expect(unsafe_code, reason = "GPM is called through the bare bindings")]

use std::time::Duration;

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::sample::{Missing, Reading};
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlGpmSupport_t,
};

use super::fields::{Place, sum};
use super::function::Function;
use super::library::{Library, missing};
use super::values::Samples;

/// Windows under this are invalid.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// After so many windows without one value the driver's word is no longer believed. A busy driver
/// may skip one or two at the start.
const WINDOWS_TO_PROVE: u8 = 5;

/// MiB/s.
const MIB: f64 = 1_048_576.0;

/// GPM's metric ids, what they become, and the scale: percent, or MiB/s.
const METRICS: &[(u32, Metric, f64)] = &[
    (1, gpu::GRAPHICS_ACTIVE, 0.01),
    (2, gpu::SM_ACTIVE, 0.01),
    (3, gpu::SM_OCCUPANCY, 0.01),
    (4, gpu::INTEGER_ACTIVE, 0.01),
    (5, gpu::TENSOR_ACTIVE, 0.01),
    (6, gpu::DFMA_ACTIVE, 0.01),
    (7, gpu::HMMA_ACTIVE, 0.01),
    (8, gpu::DMMA_ACTIVE, 0.01),
    (9, gpu::IMMA_ACTIVE, 0.01),
    (10, gpu::DRAM_ACTIVE, 0.01),
    (11, gpu::FP64_ACTIVE, 0.01),
    (12, gpu::FP32_ACTIVE, 0.01),
    (13, gpu::FP16_ACTIVE, 0.01),
    (20, gpu::PCIE_SENT, MIB),
    (21, gpu::PCIE_RECEIVED, MIB),
    (60, gpu::NVLINK_RECEIVED, MIB),
    (61, gpu::NVLINK_SENT, MIB),
];

/// From here on the metrics are rates of links, which other sources have too.
const FIRST_LINK_RATE: usize = 13;

/// What is believed of the driver's GPM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Nobody asked yet.
    Unasked,
    /// It is not there.
    Without(Missing),
    /// It says that it is there; so many windows gave nothing.
    Proving(u8),
    /// It gave a value.
    Proved,
}

/// GPM of one GPU or of one MIG instance.
pub(crate) struct Gpm {
    instance: Option<u32>,
    trust: Trust,
    /// Two samples that take turns, made once, because each is some 100 KiB of the library.
    samples: Option<[Sample; 2]>,
    newest: usize,
    taken: Option<Duration>,
}

/// Room for one sample in the library, which has it back when this is dropped.
struct Sample {
    library: Library,
    index: u32,
    room: nvmlGpmSample_t,
}

impl Sample {
    fn new(library: &Library, index: u32) -> Result<Self, Missing> {
        let mut room: nvmlGpmSample_t = std::ptr::null_mut();
        library.ask_raw(Some(index), Function::GpmSampleAlloc, |lib| {
            let allocate = lib.nvmlGpmSampleAlloc.as_ref().ok()?;
            // SAFETY: the library writes one handle to where we point.
            Some(unsafe { allocate(&mut room) })
        })?;
        Ok(Self {
            library: library.clone(),
            index,
            room,
        })
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let (index, free) = (Some(self.index), Function::GpmSampleFree);
        // What cannot be freed is left to the end of the process.
        let _ = self.library.ask_raw(index, free, |lib| {
            let free = lib.nvmlGpmSampleFree.as_ref().ok()?;
            // SAFETY: the library made the room, and this is the last use of it.
            Some(unsafe { free(self.room) })
        });
    }
}

/// The request that all GPUs share: it is 10 KiB of mostly room.
pub(crate) struct Request(Box<nvmlGpmMetricsGet_t>);

impl Request {
    pub(crate) fn new() -> Self {
        // SAFETY: the struct is integers, floats and pointers; all zeros is a valid value of it.
        let mut request: Box<nvmlGpmMetricsGet_t> = unsafe { Box::new(std::mem::zeroed()) };
        request.version = NVML_GPM_METRICS_GET_VERSION;
        Self(request)
    }
}

impl Gpm {
    /// GPM of a GPU, or of a MIG instance by its id.
    pub(crate) fn of(instance: Option<u32>) -> Self {
        Self {
            instance,
            trust: Trust::Unasked,
            samples: None,
            newest: 0,
            taken: None,
        }
    }

    /// Whether the rates of links come from elsewhere.
    pub(crate) fn is_without(&self) -> bool {
        matches!(self.trust, Trust::Without(_))
    }

    /// Asks the driver whether it has GPM, and makes room for the samples; a window needs two that
    /// were taken since.
    pub(crate) fn open(&mut self, library: &Library, at: &Place) {
        let mut support = nvmlGpmSupport_t {
            version: NVML_GPM_SUPPORT_VERSION,
            isSupportedDevice: 0,
        };
        let asked = library.ask_raw(Some(at.index), Function::GpmSupport, |lib| {
            let query = lib.nvmlGpmQueryDeviceSupport.as_ref().ok()?;
            // SAFETY: the handle came from this library, and the struct is ours and versioned.
            Some(unsafe { query(at.device, &mut support) })
        });
        let samples = asked.and_then(|()| match support.isSupportedDevice {
            0 => Err(Missing::NotSupported),
            _ => Ok([
                Sample::new(library, at.index)?,
                Sample::new(library, at.index)?,
            ]),
        });
        self.taken = None;
        self.trust = match &samples {
            Ok(_) => Trust::Proving(0),
            Err(missing) => Trust::Without(*missing),
        };
        self.samples = samples.ok();
    }

    /// One round: takes a sample, and tells what lies between it and the one before.
    pub(crate) fn read(
        &mut self,
        library: &Library,
        at: &Place,
        request: &mut Request,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        let window = self.window(library, at, request);
        let rows = match self.instance {
            // Links belong to the whole chip.
            Some(_) => &METRICS[..FIRST_LINK_RATE],
            None if self.is_without() => &METRICS[..FIRST_LINK_RATE],
            None => METRICS,
        };
        let mut nvlink = [Err(Missing::NotReady); 2];
        for (place, (id, metric, scale)) in rows.iter().enumerate() {
            let reading = window.and_then(|()| value(request, place, *scale));
            match id {
                60 => nvlink[0] = reading,
                61 => nvlink[1] = reading,
                _ => {}
            }
            if self.instance.is_none() || gpu::shares_have(metric) {
                to.push(metric, reading);
            }
        }
        if rows.len() > FIRST_LINK_RATE {
            to.push(&gpu::NVLINK_BANDWIDTH, sum(nvlink));
        }
        self.judge(window, request);
        match window {
            Err(missing) if super::library::ends_gpu(missing) => Err(missing),
            _ => Ok(()),
        }
    }

    /// Takes a sample and has the driver compare it with the one before.
    fn window(
        &mut self,
        library: &Library,
        at: &Place,
        request: &mut Request,
    ) -> Result<(), Missing> {
        if let Trust::Without(missing) = self.trust {
            return Err(missing);
        }
        let samples = self.samples.as_ref().ok_or(Missing::NotReady)?;
        let samples = samples.each_ref().map(|sample| sample.room);
        let since = self.taken.map(|taken| at.now.saturating_sub(taken));
        if since.is_some_and(|since| since < SHORTEST_WINDOW) {
            return Err(Missing::NotReady);
        }
        let older = self.newest;
        let newer = 1 - older;
        self.take(library, at, samples[newer])
            .inspect_err(|_| self.taken = None)?;
        self.newest = newer;
        if self.taken.replace(at.now).is_none() {
            return Err(Missing::NotReady);
        }
        request.0.sample1 = samples[older];
        request.0.sample2 = samples[newer];
        request.0.numMetrics = METRICS.len() as u32;
        for (metric, (id, _, _)) in request.0.metrics.iter_mut().zip(METRICS) {
            metric.metricId = *id;
            // Not answered until the driver says so.
            metric.nvmlReturn = 999;
            metric.value = f64::NAN;
        }
        library.ask_raw(Some(at.index), Function::GpmMetricsGet, |lib| {
            let get = lib.nvmlGpmMetricsGet.as_ref().ok()?;
            // SAFETY: both samples were made by this library and taken, the request is ours, of
            // this version, and has room for more metrics than it asks for.
            Some(unsafe { get(&mut *request.0) })
        })
    }

    fn take(&self, library: &Library, at: &Place, sample: nvmlGpmSample_t) -> Result<(), Missing> {
        match self.instance {
            None => library.ask_raw(Some(at.index), Function::GpmSampleGet, |lib| {
                let get = lib.nvmlGpmSampleGet.as_ref().ok()?;
                // SAFETY: handle and sample came from this library.
                Some(unsafe { get(at.device, sample) })
            }),
            Some(instance) => library.ask_raw(Some(at.index), Function::GpmMigSampleGet, |lib| {
                let get = lib.nvmlGpmMigSampleGet.as_ref().ok()?;
                // SAFETY: handle (of the whole GPU) and sample came from this library.
                Some(unsafe { get(at.device, instance, sample) })
            }),
        }
    }

    fn judge(&mut self, window: Result<(), Missing>, request: &Request) {
        let Trust::Proving(empty) = self.trust else {
            return;
        };
        // Before the second sample nothing was asked of the driver.
        if self.taken.is_none() || window == Err(Missing::NotReady) {
            return;
        }
        let proved = (0..METRICS.len()).any(|place| value(request, place, 1.0).is_ok());
        self.trust = match (window.is_ok() && proved, empty + 1) {
            (true, _) => Trust::Proved,
            (false, WINDOWS_TO_PROVE..) => Trust::Without(Missing::NotSupported),
            (false, empty) => Trust::Proving(empty),
        };
    }
}

/// One metric of the last request, by its own return code.
fn value(request: &Request, place: usize, scale: f64) -> Reading {
    let metric = &request.0.metrics[place];
    match (metric.nvmlReturn, metric.value) {
        // No value yet is what the driver means by it.
        (0, value) if value.is_nan() => Err(Missing::NotReady),
        (0, value) => Ok(value * scale),
        (code, _) => Err(missing(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(values: &[(u32, f64)]) -> Request {
        let mut request = Request::new();
        for (metric, (code, value)) in request.0.metrics.iter_mut().zip(values) {
            metric.nvmlReturn = *code;
            metric.value = *value;
        }
        request
    }

    #[test]
    fn each_metric_answers_for_itself() {
        let request = request(&[(0, 50.0), (3, 0.0), (0, f64::NAN), (21, 1.0)]);
        let read: Vec<_> = (0..4).map(|place| value(&request, place, 0.01)).collect();
        let expected = [
            Ok(0.5),
            Err(Missing::NotSupported),
            Err(Missing::NotReady),
            Err(Missing::NotReady),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_driver_that_never_gives_a_value_is_no_longer_asked() {
        let nothing: Vec<_> = METRICS.iter().map(|_| (21, 0.0)).collect();
        let request = request(&nothing);
        let mut gpm = Gpm::of(None);
        gpm.trust = Trust::Proving(0);
        gpm.taken = Some(Duration::ZERO);
        for _ in 1..WINDOWS_TO_PROVE {
            gpm.judge(Ok(()), &request);
            assert!(!gpm.is_without());
        }
        gpm.judge(Ok(()), &request);
        assert_eq!(gpm.trust, Trust::Without(Missing::NotSupported));
    }

    #[test]
    fn one_value_is_proof() {
        let request = request(&[(0, 1.0)]);
        let mut gpm = Gpm::of(None);
        gpm.trust = Trust::Proving(WINDOWS_TO_PROVE - 1);
        gpm.taken = Some(Duration::ZERO);
        gpm.judge(Ok(()), &request);
        assert_eq!(gpm.trust, Trust::Proved);
    }
}
