//! All nodes of a simulated fleet.

use super::faults::Faults;
use super::node::{Plan, SimulatedNode};

/// A fleet and what is broken in it.
#[derive(Debug)]
pub struct SimulatedFleet {
    /// Its nodes, in the order of their names.
    pub nodes: Vec<SimulatedNode>,
    /// What is broken.
    pub faults: Faults,
}

impl SimulatedFleet {
    /// The fleet of a plan, all healthy.
    pub fn new(plan: &Plan) -> Self {
        Self {
            nodes: (0..plan.nodes)
                .map(|index| SimulatedNode::new(plan, index))
                .collect(),
            faults: Faults::default(),
        }
    }

    /// The ids of all GPUs, by node.
    pub fn gpu_ids(&self) -> Vec<Vec<String>> {
        self.nodes.iter().map(SimulatedNode::gpu_ids).collect()
    }
}
