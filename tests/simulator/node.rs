//! One simulated node: its facts, its machine readings and its GPUs.

use std::sync::Arc;

use gpufleet_agent::read::NodeFacts;
use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::identity::{AgentId, Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::tick::{Point, PointValue, ResourceTick};
use gpufleet_telemetry::time::Timestamp;

use super::card;
use super::faults::{Condition, Faults};
use super::gpu::SimulatedGpu;
use super::network::{self, Network};
use super::noise::Noise;
use super::role::GROUP;
use super::training::{Cast, Told, Training};
use super::trouble::Trouble;

/// What a fleet is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The same seed makes the same fleet doing the same things.
    pub seed: u64,
    /// The cluster's name; simulated data has one of its own.
    pub cluster: String,
    /// How many nodes.
    pub nodes: usize,
    /// How many GPUs each has.
    pub gpus_per_node: usize,
    /// How many metrics each GPU has at most.
    pub metrics: usize,
    /// Whether the processes of its training jobs tell of themselves.
    pub training: bool,
    /// Whether GPUs say what started the pods that hold them, as where the agent may ask Kubernetes.
    pub workloads: bool,
}

/// One node with its agent's identity.
#[derive(Debug, Clone)]
pub struct SimulatedNode {
    index: usize,
    facts: Arc<NodeFacts>,
    resource: Arc<Resource>,
    gpus: Vec<SimulatedGpu>,
    network: Network,
    training: Option<Training>,
    told: Told,
    fleet_noise: Noise,
    noise: Noise,
    metrics: usize,
    booted: Timestamp,
}

impl Plan {
    /// The demo: eight nodes with eight GPUs each.
    pub fn demo() -> Self {
        Self {
            seed: 1,
            cluster: "demo".to_owned(),
            nodes: 8,
            gpus_per_node: 8,
            metrics: usize::MAX,
            training: true,
            workloads: false,
        }
    }
}

impl SimulatedNode {
    /// Node `index` of a fleet.
    pub fn new(plan: &Plan, index: usize) -> Self {
        let noise = Noise::new(plan.seed, 1, index as u64);
        let id = u128::from(noise.bits(0, 1)) << 64 | u128::from(noise.bits(0, 2));
        let facts = NodeFacts {
            cluster: plan.cluster.clone(),
            node: format!("{}-node-{}", plan.cluster, index + 1),
            boot_id: format!("{:032x}", u128::from(noise.bits(0, 3))),
            agent_id: AgentId(uuid::Builder::from_random_bytes(id.to_be_bytes()).into_uuid()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let resource = facts.resource(
            ResourceKind::Node,
            &*facts.node,
            Origin::Simulated,
            "simulator",
        );
        // What a node of Google Cloud says of itself; no machine there has another number of these GPUs.
        let resource = match plan.gpus_per_node {
            8 => resource
                .with(attribute::MACHINE_TYPE, card::of_node(index).machine_type)
                .with(attribute::REGION, "us-central1")
                .with(attribute::ZONE, "us-central1-a")
                .with(attribute::PROVISIONING, card::provisioning(index)),
            _ => resource,
        };
        let gpus: Vec<_> = (0..plan.gpus_per_node)
            .map(|gpu| SimulatedGpu::new(plan.seed, index, gpu, &facts))
            .map(|gpu| match plan.workloads {
                true => gpu.with_workload(index / GROUP),
                false => gpu,
            })
            .collect();
        let gpu_ids = gpus.iter().map(|it| it.resource().id.to_string()).collect();
        let fleet_noise = Noise::new(plan.seed, 0, 0);
        let cast = Cast::of(plan, index, gpu_ids).filter(|_| plan.training);
        Self {
            index,
            network: Network::new(gpus.len()),
            gpus,
            training: cast.map(|cast| Training::new(cast, fleet_noise, plan.seed)),
            told: Told::default(),
            facts: Arc::new(facts),
            resource: Arc::new(resource),
            fleet_noise,
            noise,
            metrics: plan.metrics,
            booted: Timestamp::default(),
        }
    }

    /// Which node of the fleet it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Who and where its agent is.
    pub fn facts(&self) -> &Arc<NodeFacts> {
        &self.facts
    }

    /// The node itself as a resource.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The ids of its GPUs.
    pub fn gpu_ids(&self) -> Vec<String> {
        self.gpus
            .iter()
            .map(|gpu| gpu.resource().id.to_string())
            .collect()
    }

    /// What the training processes told in the last tick beside their readings.
    pub fn take_told(&mut self) -> Told {
        std::mem::take(&mut self.told)
    }

    /// What its agent would ship for the tick of `seconds` that begins at `start`.
    pub fn tick(&mut self, start: Timestamp, seconds: u32, faults: &Faults) -> Vec<ResourceTick> {
        if self.booted == Timestamp::default() {
            self.booted = start.shifted(-3 * 86_400 * 1_000_000_000);
        }
        let end = start.shifted(i64::from(seconds) * 1_000_000_000);
        let (index, fleet) = (self.index, self.fleet_noise);
        let mut of_ranks = Vec::new();
        let mut traffic = network::Traffic::default();
        if let Some(training) = &mut self.training {
            let trouble = Trouble::of(faults, start, &training.cast().nodes(), GROUP);
            (of_ranks, self.told) = training.tick(&self.facts, (start, end), trouble);
            traffic = network::Traffic::of(trouble, index % GROUP, training.talks(start));
        }
        let mut machine = self.machine(start);
        let since = self.booted;
        machine.extend(self.network.points((since, seconds), traffic));
        let mut ticks = vec![ResourceTick {
            resource: Arc::clone(&self.resource),
            start,
            end,
            points: machine,
        }];
        let is_broken = self.training.as_ref().is_some_and(Training::is_broken);
        ticks.extend(self.gpus.iter_mut().enumerate().map(|(place, gpu)| {
            let condition = match faults.condition(index, place) {
                gone @ Condition::Gone { .. } => gone,
                _ if is_broken => Condition::Abandoned,
                condition => condition,
            };
            let mut points = gpu.tick(fleet, start, seconds, condition);
            points.truncate(self.metrics);
            ResourceTick {
                resource: Arc::clone(gpu.resource_in(condition)),
                start,
                end,
                points,
            }
        }));
        ticks.extend(of_ranks);
        ticks
    }

    fn machine(&self, at: Timestamp) -> Vec<Point> {
        let second = at.seconds();
        let noise = |channel| self.noise.even(second, channel);
        let uptime = at.since(self.booted) as f64 / 1e9;
        [
            (&node::CPU_BUSY, 0.18 + 0.1 * noise(1)),
            (&node::CPU_STEAL, 0.0),
            (&node::CPU_IOWAIT, 0.004 * noise(2)),
            (&node::CPU_COUNT, 208.0),
            (&node::LOAD_1M, 30.0 + 20.0 * noise(3)),
            (&node::MEMORY_TOTAL, 1.8e12),
            (&node::MEMORY_AVAILABLE, 1.1e12 + 1e11 * noise(4)),
            (&node::PSI_CPU, 0.01 * noise(5)),
            (&node::PSI_MEMORY, 0.0),
            (&node::PSI_IO, 0.003 * noise(6)),
            (&node::PSI_MEMORY_SOME, 0.0),
            (&node::PSI_IO_SOME, 0.006 * noise(6)),
            (&node::UPTIME, uptime),
        ]
        .map(|(metric, value): (&Metric, f64)| Point {
            metric: metric.id,
            part: None,
            value: PointValue::Gauge { value, max: None },
        })
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_fleets_of_one_seed_say_the_same() {
        let start = Timestamp::from_seconds(1_800_000_000);
        let tick = |seed| {
            let plan = Plan {
                seed,
                ..Plan::demo()
            };
            SimulatedNode::new(&plan, 2).tick(start, 10, &Faults::default())
        };
        assert_eq!(tick(1), tick(1));
        assert_ne!(tick(1), tick(2));
    }

    #[test]
    fn everything_says_that_it_is_simulated_and_in_which_cluster() {
        let mut node = SimulatedNode::new(&Plan::demo(), 0);
        let ticks = node.tick(Timestamp::from_seconds(60), 60, &Faults::default());
        let of = |kind| ticks.iter().filter(|it| it.resource.kind == kind).count();
        let kinds = [ResourceKind::Node, ResourceKind::Gpu, ResourceKind::Rank];
        assert_eq!(kinds.map(of), [1, 8, 8]);
        for tick in ticks {
            assert_eq!(tick.resource.origin(), Origin::Simulated);
            assert_eq!(tick.resource.attribute("k8s.cluster.name"), Some("demo"));
        }
    }
}
