//! What the agents of a simulated fleet would serve on /metrics: the newest live tick of every node, written by the
//! agent's own encoder, all on one address.
//!
//! A real agent serves its newest reading, one a second; here it is that of the last tick, so a counter moves every
//! 10 s.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpufleet_agent::prometheus::{DcgmNames, PrometheusConfig, encode};
use gpufleet_agent::sample::{Latest, LatestResource, LatestValue};
use gpufleet_telemetry::tick::{PointValue, ResourceTick};

/// The newest tick of every node, by its number.
#[derive(Debug, Default)]
pub struct Served(Mutex<BTreeMap<usize, Vec<LatestResource>>>);

impl Served {
    /// Takes a tick of a node in place of the one before.
    pub fn note(&self, node: usize, ticks: &[ResourceTick]) {
        let latest = ticks.iter().map(latest).collect();
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(node, latest);
    }

    /// All of it as Prometheus' text.
    pub fn text(&self) -> String {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = Latest {
            resources: nodes.values().flatten().cloned().collect(),
            ..Latest::default()
        };
        drop(nodes);
        // Nobody asks a fleet that is not there under others' names.
        let config = PrometheusConfig {
            dcgm_names: DcgmNames::Off,
        };
        encode(&latest, &config)
    }
}

fn latest(tick: &ResourceTick) -> LatestResource {
    let values = tick.points.iter().filter_map(|point| {
        let reading = match point.value {
            PointValue::Gauge { value, .. } | PointValue::Counter { value, .. } => Ok(value),
            PointValue::Missing(reason) => Err(reason),
            // Evidence by second is the server's alone.
            PointValue::SecondBits(_) => return None,
        };
        Some(LatestValue {
            metric: point.metric,
            part: point.part.clone(),
            reading,
            at: tick.end,
        })
    });
    LatestResource {
        resource: tick.resource.clone(),
        values: values.collect(),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::simulator::faults::Fault;
    use crate::simulator::fleet::SimulatedFleet;
    use crate::simulator::node::Plan;

    #[test]
    fn a_node_serves_its_newest_tick_with_its_origin_and_the_xid_that_came() {
        let plan = Plan {
            nodes: 2,
            ..Plan::demo()
        };
        let mut fleet = SimulatedFleet::new(&plan);
        let (served, ids) = (Served::default(), fleet.gpu_ids());
        let at = |tick: i64| Timestamp::from_seconds(1_800_000_000 + 10 * tick);
        let tick = |fleet: &mut SimulatedFleet, number: i64| {
            for node in &mut fleet.nodes {
                served.note(node.index(), &node.tick(at(number), 10, &fleet.faults));
            }
            served.text()
        };
        let of = |text: &str, metric: &str| -> Vec<String> {
            let start = format!("{metric}{{");
            let lines = text.lines().filter(|it| it.starts_with(&start));
            lines.map(str::to_owned).collect()
        };
        let well = tick(&mut fleet, 0);
        let power = of(&well, "gpufleet_gpu_power_watts");
        assert_eq!(power.len(), 16, "{power:?}");
        assert!(power.iter().all(|it| it.contains("origin=\"simulated\"")));
        assert_eq!(of(&well, "gpufleet_gpu_xid_total"), Vec::<String>::new());
        fleet.faults.inject(Fault::Xid79, &ids, at(1));
        for number in 1..3 {
            let broken = tick(&mut fleet, number);
            let xids = of(&broken, "gpufleet_gpu_xid_total");
            assert_eq!(xids.len(), 1, "{xids:?}");
            assert!(xids[0].contains("xid=\"79\"") && xids[0].ends_with(" 1"));
            assert_eq!(of(&broken, "gpufleet_gpu_power_watts").len(), 15);
        }
        fleet.faults.inject(Fault::Heal, &ids, at(3));
        let mended = tick(&mut fleet, 3);
        assert_eq!(of(&mended, "gpufleet_gpu_power_watts").len(), 16);
        assert_eq!(
            of(&mended, "gpufleet_gpu_xid_total").len(),
            1,
            "it is counted for good"
        );
    }
}
