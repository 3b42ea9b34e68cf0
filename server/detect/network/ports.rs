//! The network and RDMA ports of one machine over its last readings: what goes over each a second, what it
//! could carry, and what it makes wrong.
//!
//! Limits: 130 bytes a port of a machine, at most [`MAX_PORTS`] ports.

use std::sync::Arc;

use gpufleet_analysis::port::Port;
use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::time::Timestamp;

use crate::detect::seconds_since;
use crate::detect::watch::GAP_S;
use crate::fleet::{Live, LiveValue};

/// Whether a port is up and how fast is read each minute; what is older than three of them is gone, seconds.
const FRESH_S: f64 = 180.0;

/// Most ports of a machine: as many as its agent reads of each kind.
const MAX_PORTS: usize = 128;

/// What is counted of a port.
const COUNTED: [&Metric; 4] = [
    &node::NIC_SENT,
    &node::NIC_RECEIVED,
    &node::NIC_ERRORS,
    &node::RDMA_RETRIES,
];

/// What is kept of one machine's ports.
#[derive(Debug, Default)]
pub(in crate::detect) struct PortsWatch(Vec<Kept>);

#[derive(Debug)]
struct Kept {
    part: Arc<Part>,
    counted: [Counter; COUNTED.len()],
}

const _: () = assert!(size_of::<Kept>() <= 200);

/// The last reading of a counter, and what it grew by a second to get there.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    last: Option<(f64, Timestamp)>,
    rate: Option<f64>,
}

impl Counter {
    /// Takes in a reading. One that went back was reset, and two far apart are not joined.
    fn read(&mut self, value: f64, at: Timestamp) {
        let Some((before, then)) = self.last else {
            self.last = Some((value, at));
            return;
        };
        let passed = seconds_since(at, then);
        if passed <= 0.0 {
            return;
        }
        let is_joined = value >= before && passed <= GAP_S;
        self.rate = is_joined.then(|| (value - before) / passed);
        self.last = Some((value, at));
    }

    fn rate(&self, now: Timestamp) -> Option<f64> {
        let (_, at) = self.last?;
        self.rate.filter(|_| seconds_since(now, at) <= GAP_S)
    }
}

impl PortsWatch {
    /// Takes in what is live of a machine.
    pub(in crate::detect) fn read(&mut self, live: &Live, now: Timestamp) -> Vec<Port> {
        let is_named = |kept: &Kept| {
            let mut up = live.parts(node::NIC_UP.id);
            up.any(|it| it.part.as_ref() == Some(&kept.part))
        };
        if live.parts(node::NIC_UP.id).count() < self.0.len() {
            self.0.retain(is_named);
        }
        // Parts are in the order of their names, whatever the metric.
        let mut hint = 0;
        for (place, metric) in COUNTED.into_iter().enumerate() {
            for value in live.parts(metric.id) {
                let reading = value.reading.ok().filter(|it| it.is_finite());
                if let (Some(kept), Some(reading)) = (self.kept(value, &mut hint), reading) {
                    kept.counted[place].read(reading, value.at);
                }
            }
        }
        let mut ports: Vec<Port> = self.0.iter().map(|it| it.port(now)).collect();
        let mut each = |metric: &Metric, set: &dyn Fn(&mut Port, &LiveValue)| {
            let fresh = |it: &&LiveValue| seconds_since(now, it.at) <= FRESH_S;
            for value in live.parts(metric.id).filter(fresh) {
                if let Some(place) = self.place(value, &mut hint) {
                    set(&mut ports[place], value);
                }
            }
        };
        each(&node::RDMA_RETRIES, &|port, _| port.is_rdma = true);
        each(&node::NIC_UP, &|port, it| {
            port.is_up = it.reading.ok().map(|it| it > 0.0);
        });
        each(&node::NIC_SPEED, &|port, it| port.speed = it.reading.ok());
        ports
    }

    /// Where a reading's port is, looked for from `hint` on.
    fn place(&self, value: &LiveValue, hint: &mut usize) -> Option<usize> {
        let part = value.part.as_ref()?;
        let count = self.0.len();
        let mut places = (0..count).map(|it| (*hint + it) % count);
        let found = places.find(|it| self.0[*it].part == *part)?;
        *hint = (found + 1) % count;
        Some(found)
    }

    fn kept(&mut self, value: &LiveValue, hint: &mut usize) -> Option<&mut Kept> {
        if let Some(place) = self.place(value, hint) {
            return self.0.get_mut(place);
        }
        let part = value.part.as_ref()?;
        if self.0.len() >= MAX_PORTS {
            return None;
        }
        self.0.push(Kept {
            part: Arc::clone(part),
            counted: [Counter::default(); COUNTED.len()],
        });
        self.0.last_mut()
    }
}

impl Kept {
    fn port(&self, now: Timestamp) -> Port {
        let [sent, received, errors, repeats] = self.counted.map(|it| it.rate(now));
        Port {
            name: Arc::clone(&self.part.id),
            sent,
            received,
            errors,
            repeats,
            ..Port::default()
        }
    }
}
