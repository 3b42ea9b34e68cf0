//! /sys/class/net and /sys/class/infiniband: what went over the wire, per device.
//!
//! A network device is taken where it has a `device` behind it: that leaves out loopback, bridges,
//! bonds, and the virtual pairs of containers, whose bytes pass through the devices that are read.
//! RDMA devices are read beside them, because their traffic passes by the network stack.

use std::path::Path;

use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::sample::{Missing, Reading};

use super::files;

/// Most network devices, and most RDMA ports, that are read, in the order of names. An 8-GPU node
/// has 8 to 16 RDMA ports.
pub const MAX_DEVICES: usize = 64;

/// What the InfiniBand data counters count in.
const WORD_BYTES: f64 = 4.0;

/// Bytes a second of a megabit, which the speed of a network device is told in, and of a gigabit.
const MEGABIT_BYTES: f64 = 1e6 / 8.0;
const GIGABIT_BYTES: f64 = 1e9 / 8.0;

/// What was read of one device: its name and a reading per metric.
pub type DeviceReadings = (String, Vec<(&'static Metric, Reading)>);

/// Every network device with hardware behind it.
pub fn network_devices(sys: &Path) -> Vec<DeviceReadings> {
    let class = sys.join("class/net");
    let names = files::names(&class).into_iter();
    names
        .filter(|name| class.join(name).join("device").exists())
        .take(MAX_DEVICES)
        .map(|name| {
            let readings = network_device(&class.join(&name));
            (name, readings)
        })
        .collect()
}

fn network_device(folder: &Path) -> Vec<(&'static Metric, Reading)> {
    let statistics = folder.join("statistics");
    let total = |names: &[&str]| sum(&statistics, names);
    vec![
        (&node::NIC_RECEIVED, total(&["rx_bytes"])),
        (&node::NIC_SENT, total(&["tx_bytes"])),
        (&node::NIC_ERRORS, total(&["rx_errors", "tx_errors"])),
        (&node::NIC_DROPS, total(&["rx_dropped", "tx_dropped"])),
        (&node::NIC_UP, network_up(folder)),
        (&node::NIC_SPEED, network_speed(folder)),
    ]
}

/// Megabits a second. A device that is down refuses to say, or says -1; a driver that does not know says
/// -1 or 0.
fn network_speed(folder: &Path) -> Reading {
    let text = files::text(&folder.join("speed")).map_err(|missing| match missing {
        Missing::Unreachable => Missing::NotSupported,
        other => other,
    })?;
    let megabits: i64 = text.trim().parse().map_err(|_| Missing::Invalid)?;
    match megabits {
        ..=0 => Err(Missing::NotSupported),
        megabits => Ok(megabits as f64 * MEGABIT_BYTES),
    }
}

/// `up` is up, `down` and the like are down; `unknown` is a driver that does not say.
fn network_up(folder: &Path) -> Reading {
    match files::text(&folder.join("operstate"))?.trim() {
        "up" => Ok(1.0),
        "unknown" => Err(Missing::NotSupported),
        _ => Ok(0.0),
    }
}

/// Every port of every RDMA device; named by the device, and the port where it has several.
pub fn rdma_ports(sys: &Path) -> Vec<DeviceReadings> {
    let class = sys.join("class/infiniband");
    let mut found = Vec::new();
    for device in files::names(&class) {
        let ports = class.join(&device).join("ports");
        let numbers = files::names(&ports);
        let single = numbers.len() == 1;
        for number in numbers {
            if found.len() == MAX_DEVICES {
                return found;
            }
            let readings = rdma_port(&ports.join(&number));
            let name = if single {
                device.clone()
            } else {
                format!("{device}/{number}")
            };
            found.push((name, readings));
        }
    }
    found
}

fn rdma_port(folder: &Path) -> Vec<(&'static Metric, Reading)> {
    let counters = folder.join("counters");
    let hardware = folder.join("hw_counters");
    let words = |name: &str| sum(&counters, &[name]).map(|words| words * WORD_BYTES);
    vec![
        (&node::NIC_RECEIVED, words("port_rcv_data")),
        (&node::NIC_SENT, words("port_xmit_data")),
        (
            &node::NIC_ERRORS,
            sum(&counters, &["port_rcv_errors", "symbol_error"]),
        ),
        (&node::NIC_DROPS, sum(&counters, &["port_xmit_discards"])),
        (
            &node::RDMA_RETRIES,
            sum(&hardware, &["packet_seq_err", "local_ack_timeout_err"]),
        ),
        (&node::NIC_UP, rdma_up(folder)),
        (&node::NIC_SPEED, rdma_speed(folder)),
    ]
}

/// `400 Gb/sec (4X NDR)`. The kernel says a speed for a port that is down, too: its lowest.
fn rdma_speed(folder: &Path) -> Reading {
    let text = files::text(&folder.join("rate")).map_err(|missing| match missing {
        Missing::Unreachable => Missing::NotSupported,
        other => other,
    })?;
    let (number, unit) = text.trim().split_once(' ').ok_or(Missing::Invalid)?;
    let gigabits: f64 = number.parse().map_err(|_| Missing::Invalid)?;
    let is_right = unit.starts_with("Gb/sec") && gigabits.is_finite() && gigabits > 0.0;
    match is_right {
        true if rdma_up(folder)? == 1.0 => Ok(gigabits * GIGABIT_BYTES),
        true => Err(Missing::NotSupported),
        false => Err(Missing::Invalid),
    }
}

/// `4: ACTIVE` is up.
fn rdma_up(folder: &Path) -> Reading {
    let text = files::text(&folder.join("state"))?;
    let (number, _) = text.split_once(':').ok_or(Missing::Invalid)?;
    Ok(if number.trim() == "4" { 1.0 } else { 0.0 })
}

/// The sum of several counters; missing when one is, because a part of a sum is not the sum. A
/// counter without a file is one the device does not have.
fn sum(folder: &Path, names: &[&str]) -> Reading {
    let mut total = 0.0;
    for name in names {
        total += files::number(&folder.join(name)).map_err(|missing| match missing {
            Missing::Unreachable => Missing::NotSupported,
            other => other,
        })?;
    }
    Ok(total)
}
