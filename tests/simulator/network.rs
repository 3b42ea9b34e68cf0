//! The network of a simulated node: the host's port, and an RDMA port for each GPU.

use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::tick::{Point, PointValue};
use gpufleet_telemetry::time::Timestamp;

use super::trouble::Trouble;

/// 400 Gbit/s of an RDMA port and 200 of the host's, bytes a second.
const RDMA_SPEED: f64 = 50e9;
const HOST_SPEED: f64 = 25e9;
/// What goes over an RDMA port while a job trains over nodes, each way, bytes a second.
const RDMA_BYTES: f64 = 1.8e10;
/// What goes over the host's port: always, and where a job has fallen back to it.
const HOST_BYTES: f64 = 3e6;
const FALLEN_BACK_BYTES: f64 = 2.1e9;

/// What goes over the ports of a node in a tick.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// Whether a job moves data between nodes.
    talks: bool,
    /// Whether it does so over the host's port.
    is_wrong: bool,
    /// The RDMA port that came up at half its speed.
    slow_port: Option<usize>,
}

/// The ports of a node with their running totals.
#[derive(Debug, Clone)]
pub struct Network(Vec<Port>);

#[derive(Debug, Clone)]
struct Port {
    part: Part,
    is_rdma: bool,
    sent: f64,
    received: f64,
}

impl Traffic {
    /// Of a job on this node of its group.
    pub fn of(trouble: Trouble, node: usize, talks: bool) -> Self {
        let slow_port = match trouble {
            Trouble::SlowLink(it) if it.node == node => Some(it.gpu),
            _ => None,
        };
        Self {
            talks: talks && !matches!(trouble, Trouble::Stuck | Trouble::Broken(_)),
            is_wrong: trouble == Trouble::WrongNetwork,
            slow_port,
        }
    }

    /// Bytes a second each way over a port.
    fn bytes(self, is_rdma: bool) -> f64 {
        match (is_rdma, self.talks, self.is_wrong) {
            (true, true, false) => RDMA_BYTES,
            (true, ..) => 0.0,
            (false, true, true) => HOST_BYTES + FALLEN_BACK_BYTES,
            (false, ..) => HOST_BYTES,
        }
    }
}

impl Network {
    /// The ports of a node with so many GPUs.
    pub fn new(gpus: usize) -> Self {
        let port = |name: String, is_rdma: bool| Port {
            part: Part::new(PartKind::Nic, name),
            is_rdma,
            sent: 0.0,
            received: 0.0,
        };
        let rdma = (0..gpus).map(|it| port(format!("mlx5_{it}"), true));
        Self(
            std::iter::once(port("eth0".to_owned(), false))
                .chain(rdma)
                .collect(),
        )
    }

    /// The readings of a tick of so many seconds, of totals that began `since`.
    pub fn points(&mut self, (since, seconds): (Timestamp, u32), traffic: Traffic) -> Vec<Point> {
        let mut points = Vec::with_capacity(self.0.len() * 7);
        for (place, port) in self.0.iter_mut().enumerate() {
            let bytes = traffic.bytes(port.is_rdma) * f64::from(seconds);
            port.sent += bytes;
            port.received += 1.05 * bytes;
            // The host's port comes first.
            let is_slow = place > 0 && traffic.slow_port == Some(place - 1);
            let speed = match (port.is_rdma, is_slow) {
                (true, true) => RDMA_SPEED / 2.0,
                (true, false) => RDMA_SPEED,
                (false, _) => HOST_SPEED,
            };
            let mut push = |metric: &Metric, value: PointValue| {
                points.push(Point {
                    metric: metric.id,
                    part: Some(port.part.clone()),
                    value,
                });
            };
            let count = |value| PointValue::Counter { value, since };
            let gauge = |value| PointValue::Gauge { value, max: None };
            push(&node::NIC_SENT, count(port.sent));
            push(&node::NIC_RECEIVED, count(port.received));
            push(&node::NIC_ERRORS, count(0.0));
            push(&node::NIC_DROPS, count(0.0));
            push(&node::NIC_UP, gauge(1.0));
            push(&node::NIC_SPEED, gauge(speed));
            if port.is_rdma {
                push(&node::RDMA_RETRIES, count(0.0));
            }
        }
        points
    }
}
