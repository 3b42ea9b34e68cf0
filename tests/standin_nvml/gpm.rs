//! GPM: a sample is a moment, a metric is the mean between two of them. One that was freed, or never
//! taken, is refused, where the real library reads what lies there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlGpmMetric_t, nvmlGpmSample_t};

use crate::answer::Answering;
use crate::clock;
use crate::driver::code;
use crate::load::Values;

/// Windows under this give no data.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// The samples that there are, by the number that is their handle; each empty until it was taken.
struct Samples {
    /// The newest handle: none is given out twice.
    newest: usize,
    made: BTreeMap<usize, Option<Taken>>,
}

static SAMPLES: Mutex<Samples> = Mutex::new(Samples {
    newest: 0,
    made: BTreeMap::new(),
});

/// A moment of one GPU or MIG instance.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    at: Instant,
    /// Whose.
    pub(crate) slot: u8,
    instance: Option<u32>,
    values: Values,
    data: bool,
    nan: bool,
    nvlinks: bool,
}

fn samples() -> MutexGuard<'static, Samples> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new sample.
pub(crate) fn make() -> nvmlGpmSample_t {
    let mut samples = samples();
    samples.newest += 1;
    let handle = samples.newest;
    samples.made.insert(handle, None);
    handle as nvmlGpmSample_t
}

/// Frees a sample.
pub(crate) fn free(sample: nvmlGpmSample_t) -> Result<(), u32> {
    let freed = samples().made.remove(&(sample as usize));
    freed.map(|_| ()).ok_or(code::INVALID_ARGUMENT)
}

/// What a sample was taken of.
pub(crate) fn taken(sample: nvmlGpmSample_t) -> Result<Taken, u32> {
    let taken = samples().made.get(&(sample as usize)).copied();
    taken.flatten().ok_or(code::INVALID_ARGUMENT)
}

/// Takes a sample.
pub(crate) fn take(
    sample: nvmlGpmSample_t,
    device: &Answering,
    instance: Option<u32>,
) -> Result<(), u32> {
    if !device.model().gpm {
        return Err(code::NOT_SUPPORTED);
    }
    let mut samples = samples();
    let sample = samples.made.get_mut(&(sample as usize));
    *sample.ok_or(code::INVALID_ARGUMENT)? = Some(Taken {
        at: clock::monotonic(),
        slot: device.slot,
        instance,
        values: device.values(),
        data: device.gpu().gpm_data,
        nan: device.gpu().gpm_nan,
        nvlinks: device.model().nvlinks.0 > 0,
    });
    Ok(())
}

/// Fills one metric from two samples.
pub(crate) fn fill(metric: &mut nvmlGpmMetric_t, first: &Taken, second: &Taken) {
    let same = first.slot == second.slot && first.instance == second.instance;
    let window = second.at.saturating_duration_since(first.at);
    metric.value = 0.0;
    metric.nvmlReturn = if !same {
        code::INVALID_ARGUMENT
    } else if window < SHORTEST_WINDOW {
        code::NOT_READY
    } else if !second.data {
        code::NO_DATA
    } else {
        match value(metric.metricId, second) {
            Some(value) => {
                metric.value = if second.nan { f64::NAN } else { value };
                code::SUCCESS
            }
            None => code::NOT_SUPPORTED,
        }
    };
}

fn value(id: u32, taken: &Taken) -> Option<f64> {
    let values = &taken.values;
    match id {
        1..=13 => Some(values.gpm_percent[id as usize - 1]),
        // The whole chip's links are not a MIG instance's.
        20 | 21 if taken.instance.is_none() => Some(values.pcie_mib_s[id as usize - 20]),
        60 | 61 if taken.instance.is_none() && taken.nvlinks => {
            Some(values.nvlink_mib_s[id as usize - 60])
        }
        _ => None,
    }
}
