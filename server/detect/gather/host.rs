//! How pressed a machine is.

use gpufleet_analysis::port::Port;
use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::time::Timestamp;

use super::super::watch::fresh;
use crate::fleet::Live;

/// How pressed a node is, as parts, and how its network devices are. None is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Host {
    pub(in crate::detect) steal: Option<f64>,
    pub(in crate::detect) cpu_pressure: Option<f64>,
    pub(in crate::detect) memory_pressure: Option<f64>,
    pub(in crate::detect) io_pressure: Option<f64>,
    /// Errors of all its network devices a second.
    pub(in crate::detect) nic_errors: Option<f64>,
    /// Of them those that are down; some of every machine are not connected.
    pub(in crate::detect) nics_down: Option<u32>,
}

/// What its readings and those of its ports say.
pub(super) fn of(live: &Live, ports: &[Port], now: Timestamp) -> Host {
    let value = |metric: &Metric| fresh(live, metric, now);
    let errors = ports.iter().filter_map(|it| it.errors);
    let up = ports.iter().filter_map(|it| it.is_up);
    Host {
        steal: value(&node::CPU_STEAL),
        cpu_pressure: value(&node::PSI_CPU),
        memory_pressure: value(&node::PSI_MEMORY_SOME),
        io_pressure: value(&node::PSI_IO_SOME),
        nic_errors: errors.reduce(|sum, it| sum + it),
        nics_down: up.map(|is_up| u32::from(!is_up)).reduce(|sum, it| sum + it),
    }
}

/// What part of its memory a machine cannot give out.
pub(super) fn memory_used(live: &Live, now: Timestamp) -> Option<f64> {
    let left = fresh(live, &node::MEMORY_AVAILABLE, now)?;
    let all = live.value(node::MEMORY_TOTAL.id)?.reading.ok()?;
    (all > 0.0).then(|| 1.0 - left / all)
}

/// When it came up; none where it does not say how long it has been up.
pub(super) fn booted_at(live: &Live) -> Option<Timestamp> {
    let uptime = live.value(node::UPTIME.id)?;
    let seconds = uptime.reading.ok()?;
    Some(uptime.at.shifted(-((seconds * 1e9) as i64)))
}
