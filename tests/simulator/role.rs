//! What a job does to the GPUs it holds.

use gpufleet_telemetry::time::Timestamp;

use super::noise::Noise;
use super::schedule::{Doing, Schedule, Size};

/// Every eight nodes do the same: one group.
pub const GROUP: usize = 8;
const DAY_SECONDS: i64 = 86_400;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A large training run: full steps, checkpoints, two restarts a day.
    Pretraining,
    /// A smaller one that waits for its data loader a third of the time, and for its evaluation.
    Finetuning,
    /// A model server: follows the day.
    Serving,
    /// A notebook: holds memory, does nothing.
    HeldEmpty,
    /// A collective that waits for ever: looks busy, does no work.
    Stalled,
    /// Nobody.
    Free,
}

/// Who holds a GPU, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// What it does.
    pub role: Role,
    /// Its name; empty when nobody holds the GPU.
    pub name: &'static str,
    /// The namespace of its pod.
    pub namespace: &'static str,
    /// What started that pod.
    pub started_by: &'static str,
    /// The team that owns it.
    pub team: &'static str,
}

/// What a GPU does in one second, as shares of what it could do.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// The engine.
    pub engine: f64,
    /// The tensor cores.
    pub tensor: f64,
    /// The memory's bandwidth.
    pub dram: f64,
    /// The memory's size.
    pub memory: f64,
    /// NVLink.
    pub nvlink: f64,
    /// PCIe.
    pub pcie: f64,
    /// Whether its job waits for the GPU that throttles.
    pub is_slowed: bool,
}

const JOBS: [Job; 6] = [
    Job {
        role: Role::Pretraining,
        name: "llama-70b-pretrain",
        namespace: "foundation",
        started_by: "jobset",
        team: "foundation-models",
    },
    Job {
        role: Role::Finetuning,
        name: "support-assistant-sft",
        namespace: "search",
        started_by: "job",
        team: "search",
    },
    Job {
        role: Role::Serving,
        name: "chat-serving",
        namespace: "inference",
        started_by: "deployment",
        team: "inference-platform",
    },
    Job {
        role: Role::HeldEmpty,
        name: "notebook-mira",
        namespace: "research",
        started_by: "statefulset",
        team: "research",
    },
    Job {
        role: Role::Stalled,
        name: "moe-8x7b-ablation",
        namespace: "research",
        started_by: "jobset",
        team: "research",
    },
    Job {
        role: Role::Free,
        name: "",
        namespace: "",
        started_by: "",
        team: "",
    },
];

/// Which job holds GPU `gpu` of node `node`: of every eight nodes four train one large model, one
/// tunes a small one, one serves, one is half parked, one holds a stalled GPU among free ones.
pub fn job(node: usize, gpu: usize) -> Job {
    let role = match (node % GROUP, gpu) {
        (0..=3, _) => Role::Pretraining,
        (4, _) => Role::Finetuning,
        (5, _) => Role::Serving,
        (6, 0..=3) | (7, 1..=2) => Role::HeldEmpty,
        (7, 0) => Role::Stalled,
        _ => Role::Free,
    };
    JOBS.into_iter()
        .find(|job| job.role == role)
        .expect("every role has a job")
}

impl Role {
    /// What the role does to a GPU in a second. `fleet` is the same for all GPUs of a job, so that
    /// they step together; `gpu` is the GPU's own.
    pub fn load(self, fleet: Noise, gpu: Noise, second: i64) -> Load {
        match self {
            Self::Pretraining => pretraining(fleet, gpu, second),
            Self::Finetuning => finetuning(fleet, gpu, second),
            Self::Serving => serving(gpu, second),
            Self::HeldEmpty => Load {
                memory: 0.31,
                ..Load::default()
            },
            Self::Stalled => Load {
                engine: 1.0,
                memory: 0.74,
                ..Load::default()
            },
            Self::Free => Load::default(),
        }
    }
}

fn pretraining(fleet: Noise, gpu: Noise, second: i64) -> Load {
    let doing = Schedule::new(Size::Large, fleet).doing(Timestamp::from_seconds(second));
    let memory = 0.93;
    let wobble = gpu.around_zero(second, 1);
    match doing {
        Doing::Down => Load::default(),
        Doing::Starting | Doing::Restoring | Doing::Saving | Doing::Evaluating => Load {
            engine: 0.02,
            dram: 0.03,
            pcie: 0.35,
            memory,
            ..Load::default()
        },
        Doing::Training { slow } => {
            // Steps are shorter than two seconds: a second has a share of each part of one. Whoever
            // waits for a slow rank waits in a collective, which keeps the engine busy.
            let share_of_work = if slow { 0.84 } else { 1.0 };
            Load {
                engine: share(0.975 + 0.015 * wobble),
                tensor: share((0.48 + 0.04 * wobble) * share_of_work),
                dram: share((0.42 + 0.04 * wobble) * share_of_work),
                nvlink: share(0.4 + 0.08 * wobble),
                pcie: 0.04,
                memory,
                is_slowed: slow,
            }
        }
    }
}

fn finetuning(fleet: Noise, gpu: Noise, second: i64) -> Load {
    let doing = Schedule::new(Size::Small, fleet).doing(Timestamp::from_seconds(second));
    let wobble = gpu.around_zero(second, 1);
    // Steps of six seconds: two of waiting for the data loader, four of work.
    let waits = second.rem_euclid(6) < 2;
    match doing {
        Doing::Down => Load::default(),
        Doing::Training { .. } if !waits => Load {
            engine: share(0.92 + 0.05 * wobble),
            tensor: share(0.31 + 0.05 * wobble),
            dram: share(0.37 + 0.05 * wobble),
            nvlink: 0.02,
            pcie: 0.12,
            memory: 0.71,
            is_slowed: false,
        },
        Doing::Training { .. } => Load {
            engine: share(0.03 + 0.01 * wobble),
            pcie: 0.22,
            memory: 0.71,
            ..Load::default()
        },
        _ => Load {
            memory: 0.71,
            ..Load::default()
        },
    }
}

fn serving(gpu: Noise, second: i64) -> Load {
    // Quiet at night, busy in the afternoon (UTC).
    let hour = second.rem_euclid(DAY_SECONDS) as f64 / 3_600.0;
    let day = 0.5 - 0.5 * ((hour - 2.0) / 24.0 * std::f64::consts::TAU).cos();
    let wobble = gpu.around_zero(second, 1);
    Load {
        engine: share(0.12 + 0.7 * day + 0.1 * wobble),
        tensor: share(0.02 + 0.2 * day + 0.04 * wobble),
        dram: share(0.1 + 0.55 * day + 0.08 * wobble),
        nvlink: share(0.01 + 0.04 * day),
        pcie: 0.02,
        memory: 0.88,
        is_slowed: false,
    }
}

fn share(value: f64) -> f64 {
    value.clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_played_in_eight_nodes() {
        for role in JOBS.map(|job| job.role) {
            let count = (0..64)
                .filter(|index| job(index / 8, index % 8).role == role)
                .count();
            assert!(count > 0, "{role:?}");
        }
    }

    #[test]
    fn a_day_of_training_is_nearly_all_work_with_two_gaps() {
        let fleet = Noise::new(1, 0, 0);
        let gpu = Noise::new(1, 1, 0);
        let load = |second| Role::Pretraining.load(fleet, gpu, second);
        let worked = (0..DAY_SECONDS).filter(|it| load(*it).tensor > 0.3).count();
        let gone = (0..DAY_SECONDS)
            .filter(|it| load(*it).memory == 0.0)
            .count();
        // Twice 712 minutes, less 17 checkpoints of 48 s.
        assert_eq!(worked, 2 * (712 * 60 - 17 * 48));
        assert_eq!(gone, 2 * 6 * 60);
    }

    #[test]
    fn the_small_job_waits_for_data_and_for_its_evaluation_and_holds_its_memory() {
        let fleet = Noise::new(1, 0, 0);
        let load = |second| Role::Finetuning.load(fleet, Noise::new(1, 1, 0), second);
        let share = |is: fn(&Load) -> bool| {
            let found = (0..DAY_SECONDS).filter(|second| is(&load(*second)));
            found.count() as f64 / DAY_SECONDS as f64
        };
        let worked = share(|it| it.tensor > 0.1);
        assert!((0.35..0.42).contains(&worked), "{worked}");
        let held = share(|it| it.memory > 0.0);
        assert!((0.99..1.0).contains(&held), "{held}");
    }

    #[test]
    fn only_the_stalled_role_looks_busy_without_work() {
        for Job { role, .. } in JOBS {
            let stalls = (0..DAY_SECONDS).step_by(7).any(|second| {
                let load = role.load(Noise::new(1, 0, 0), Noise::new(1, 1, 0), second);
                load.engine >= 0.95 && load.tensor < 0.01
            });
            assert_eq!(stalls, role == Role::Stalled, "{role:?}");
        }
    }
}
