//! Who plays in a simulated training job: its ranks, where each of them sits, and what it says of
//! itself.

use gpufleet_agent::read::NodeFacts;
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::training::{JobId, Mesh, MeshSource, Place, RankId, RunId, Trust};

use crate::simulator::gpu::THROTTLING_GPU;
use crate::simulator::node::Plan;
use crate::simulator::noise::Noise;
use crate::simulator::role::{self, GROUP, Role};
use crate::simulator::schedule::{CHECKPOINT_STEPS, Size};

/// Nodes of each group of eight that train the large model.
const LARGE_NODES: usize = 4;
/// The node of each group of eight that tunes the small one.
const SMALL_NODE: usize = 4;
/// The rank whose script ends the others.
const EXCEPTION_RANK: u32 = 6;

/// What one node has to do with a job.
#[derive(Debug, Clone)]
pub struct Cast {
    size: Size,
    role: role::Job,
    noise: Noise,
    group: usize,
    /// The node within the job, and within its group.
    nodes: (usize, usize),
    /// The GPUs' ids.
    gpu_ids: Vec<String>,
    world: usize,
}

/// A rank and where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) rank: u32,
    /// Its node within the group.
    pub(super) node: usize,
    /// Its GPU on the node.
    pub(super) gpu: usize,
    mesh: Mesh,
}

impl Seat {
    /// Its pipeline stage.
    pub(super) fn stage(&self) -> u32 {
        self.mesh.pp.map_or(0, |place| place.at)
    }

    /// Who shares its part of the model, over the nodes: stage and tensor-parallel place.
    pub(super) fn data_group(&self) -> (u32, u32) {
        (self.stage(), self.mesh.tp.map_or(0, |place| place.at))
    }

    /// Who shares its data, within the node: stage and data-parallel place.
    pub(super) fn tensor_group(&self) -> (u32, u32) {
        (self.stage(), self.mesh.dp.map_or(0, |place| place.at))
    }
}

impl Cast {
    /// What node `index` has to do with a training job; none when it has nothing.
    pub fn of(plan: &Plan, index: usize, gpu_ids: Vec<String>) -> Option<Self> {
        let node = index % GROUP;
        let of_group = plan.nodes - (index - node);
        let role = role::job(index, 0);
        let (size, nodes) = match role.role {
            Role::Pretraining => (Size::Large, of_group.min(LARGE_NODES)),
            Role::Finetuning => (Size::Small, 1),
            _ => return None,
        };
        let place = match size {
            Size::Large => node,
            Size::Small => node - SMALL_NODE,
        };
        Some(Self {
            size,
            role,
            noise: Noise::new(plan.seed, 4, (index / GROUP) as u64),
            group: index / GROUP,
            nodes: (place, node),
            world: nodes * gpu_ids.len(),
            gpu_ids,
        })
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// A number of its own among all jobs.
    pub(super) fn number(&self) -> u64 {
        (self.group * 2 + self.size as usize) as u64
    }

    /// The nodes of the fleet whose GPUs it holds.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        let first = self.group * GROUP + self.nodes.1 - self.nodes.0;
        first..first + self.world / self.gpu_ids.len().max(1)
    }

    /// The job with this number among those of one name.
    pub(super) fn job(&self, number: i64) -> JobId {
        let bits = |channel| u128::from(self.noise.bits(number, channel + self.size as u64 * 2));
        let uid = uuid::Builder::from_random_bytes((bits(10) << 64 | bits(11)).to_be_bytes());
        JobId {
            namespace: self.role.namespace.to_owned(),
            name: self.role.name.to_owned(),
            uid: uid.into_uuid().to_string(),
        }
    }

    /// The ranks on this node.
    pub(super) fn seats(&self) -> impl Iterator<Item = Seat> + '_ {
        let gpus = self.gpu_ids.len();
        (0..gpus).map(move |gpu| self.seat(self.nodes.0 * gpus + gpu))
    }

    fn seat(&self, rank: usize) -> Seat {
        let gpus = self.gpu_ids.len().max(1);
        let divides = |size: usize, of: usize| if of.is_multiple_of(size) { size } else { 1 };
        let tp = divides(4, self.world);
        let pp = divides(2, self.world / tp);
        let (tp, pp) = match self.size {
            Size::Large => (tp, pp),
            Size::Small => (1, 1),
        };
        let dp = self.world / tp / pp;
        let place = |at: usize, of: usize| {
            Some(Place {
                at: at as u32,
                of: of as u32,
            })
        };
        let is_large = self.size == Size::Large;
        Seat {
            rank: rank as u32,
            node: self.nodes.1 - self.nodes.0 + rank / gpus,
            gpu: rank % gpus,
            mesh: Mesh {
                dp: place(rank / tp % dp, dp),
                pp: place(rank / tp / dp, pp).filter(|_| is_large),
                tp: place(rank % tp, tp).filter(|_| is_large),
                ..Mesh::default()
            },
        }
    }

    /// Whether the GPU of this rank is the one that throttles.
    pub(super) fn throttles(&self, seat: Seat) -> bool {
        (seat.node, seat.gpu) == THROTTLING_GPU
    }

    /// The rank on the GPU of this group, or the last one of a smaller job.
    pub(super) fn rank_on(&self, (node, gpu): (usize, usize)) -> u32 {
        let gpus = self.gpu_ids.len();
        let rank = node * gpus + gpu.min(gpus.saturating_sub(1));
        rank.min(self.world.saturating_sub(1)) as u32
    }

    /// Who sits on the GPU of this group.
    pub(super) fn seat_on(&self, place: (usize, usize)) -> Seat {
        self.seat(self.rank_on(place) as usize)
    }

    /// The rank whose script ends the others.
    pub(super) fn exception_rank(&self) -> u32 {
        EXCEPTION_RANK.min(self.world.saturating_sub(1) as u32)
    }

    /// The id of this node's GPU.
    pub(super) fn gpu_id(&self, gpu: usize) -> &str {
        self.gpu_ids.get(gpu).map_or("", String::as_str)
    }

    /// Tokens that a rank is given in a step; tensor and pipeline neighbours see the same ones.
    pub(super) fn tokens(&self) -> u64 {
        match self.size {
            Size::Large => 8_192,
            Size::Small => 4_096,
        }
    }

    /// Samples that a rank is given in a step.
    pub(super) fn samples(&self) -> u64 {
        match self.size {
            Size::Large => 2,
            Size::Small => 8,
        }
    }

    /// Steps from one checkpoint to the next; none where none are saved.
    pub(super) fn checkpoint_steps(&self) -> Option<u64> {
        (self.size == Size::Large).then_some(CHECKPOINT_STEPS)
    }

    /// Parameters of the model; none where the script does not say.
    pub(super) fn parameters(&self) -> Option<f64> {
        (self.size == Size::Large).then_some(70.6e9)
    }

    /// Model FLOPs of one rank in one step: 6 for each parameter and token, its share of the mesh.
    pub(super) fn flops_per_step(&self) -> Option<f64> {
        let seat = self.seat(0);
        let of = |place: Option<Place>| place.map_or(1.0, |it| f64::from(it.of));
        let sharing = of(seat.mesh.tp) * of(seat.mesh.pp);
        let parameters = self.parameters()?;
        Some(6.0 * parameters * self.tokens() as f64 / sharing)
    }

    /// The rank as a resource.
    pub(super) fn resource(&self, facts: &NodeFacts, run: &RunId, seat: Seat) -> Resource {
        let id = RankId {
            job: run.job.clone(),
            attempt: run.attempt,
            rank: seat.rank,
        };
        let (launcher, source) = match self.size {
            Size::Large => ("jobset", MeshSource::Megatron),
            Size::Small => ("torchrun", MeshSource::Given),
        };
        let pid = 20_000 + u64::from(run.attempt % 100) * 100 + seat.gpu as u64;
        let mut resource = facts
            .resource(
                ResourceKind::Rank,
                id.to_string(),
                Origin::Simulated,
                "simulator",
            )
            .with(attribute::JOB, run.job.to_string())
            .with(attribute::ATTEMPT, run.attempt.to_string())
            .with(attribute::RANK, seat.rank.to_string())
            .with(attribute::WORLD, self.world.to_string())
            .with(attribute::LOCAL_RANK, seat.gpu.to_string())
            .with(attribute::MESH, seat.mesh.to_string())
            .with(attribute::MESH_SOURCE, source.name())
            .with(attribute::TRUST, Trust::Proved.name())
            .with(attribute::PID, pid.to_string())
            .with(attribute::GPU_ID, self.gpu_id(seat.gpu))
            .with(attribute::FRAMEWORK, "pytorch 2.9.1")
            .with(attribute::LAUNCHER, launcher);
        if self.size == Size::Large {
            resource = resource
                .with(attribute::DATA_TYPE, "bf16")
                .with(attribute::FLOPS_SOURCE, "model_shape");
        }
        let tag = |name: &str| format!("{}{name}", attribute::TAG_PREFIX);
        if self.size == Size::Large {
            // The one rung of a ladder, which the next version of the job would be held against.
            resource = resource
                .with(&tag("ladder"), self.role.name)
                .with(&tag("rung"), "as it was");
        }
        resource.with(&tag("team"), self.role.team)
    }
}
