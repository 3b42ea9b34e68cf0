//! A month of a fleet that never was: which job was on which node, what each GPU did in each hour, and what
//! that has to come to.
//!
//! Nodes of eight in gangs of four; a gang works for one job for two days, one time in twenty for nobody. One
//! node in ten is Spot. The on-demand price changes at noon of the 15th.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::ledger::{Energy, LedgerHour, MILLIS_PER_HOUR, Reason, State};
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::states::{Carry, Held};
use gpufleet_server::store::model::{
    Commit, ComputedHour, DirtyHour, KnownHolder, KnownResource, MinuteDelta, MoneyTable,
    ResourceKey,
};
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

/// The month: 30 days, and over.
pub(super) const NAME: &str = "2026-09";
/// Its first hour, hours since the Unix epoch.
pub(super) const FIRST_HOUR: i64 = 496_728;
pub(super) const DAYS: i64 = 30;
pub(super) const GPUS_PER_NODE: usize = 8;
const NODES_OF_GANG: usize = 4;
/// How long a gang works for one job, hours.
const SLOT_HOURS: i64 = 48;
const JOBS: usize = 480;
pub(super) const TEAMS: usize = 12;
/// From this hour of the month on the on-demand price is the second.
const RISE: i64 = 14 * 24 + 12;
/// Nano-units an hour of a node: on demand before and after the rise, Spot.
const PRICES: [i128; 3] = [80_000_000_001, 90_000_000_007, 40_000_000_003];

pub(super) struct Month {
    nodes: usize,
    holders: Vec<KnownHolder>,
    /// What all of it comes to, GPU-milliseconds by state.
    pub(super) truth: BTreeMap<State, i64>,
}

impl Month {
    pub(super) fn of(gpus: usize) -> Self {
        let holder = |job: usize| {
            let holder = Holder {
                name: format!("job-{job}"),
                namespace: format!("team-{}-{}", job % TEAMS, job % 3),
                job: format!("train-{job}"),
                model: format!("model-{}", job % 40),
                project: format!("project-{}", job % 20),
                pod_labels: BTreeMap::from([("team".to_owned(), format!("team-{}", job % TEAMS))]),
                ..Holder::default()
            };
            KnownHolder {
                number: holder.number(),
                holder,
                met: begin(),
            }
        };
        Self {
            nodes: gpus / GPUS_PER_NODE,
            holders: (0..JOBS).map(holder).collect(),
            truth: BTreeMap::new(),
        }
    }

    pub(super) fn gpus(&self) -> usize {
        self.nodes * GPUS_PER_NODE
    }

    /// What its nodes cost, nano-units.
    pub(super) fn cost(&self) -> i128 {
        let spot = (0..self.nodes).filter(|it| is_spot(*it)).count() as i128;
        let others = self.nodes as i128 - spot;
        let hours = i128::from(DAYS * 24);
        let before = i128::from(RISE);
        others * (before * PRICES[0] + (hours - before) * PRICES[1]) + spot * hours * PRICES[2]
    }

    /// What they cost in a month of so many days before it, nano-units.
    pub(super) fn cost_before(&self, days: i64) -> i128 {
        let spot = (0..self.nodes).filter(|it| is_spot(*it)).count() as i128;
        let others = self.nodes as i128 - spot;
        i128::from(days * 24) * (others * PRICES[0] + spot * PRICES[2])
    }

    /// Rates of its machines.
    pub(super) fn tables() -> Vec<MoneyTable> {
        let rate = |basis: &str, price: i128, from: &str| {
            let (whole, nanos) = (price / 1_000_000_000, price % 1_000_000_000);
            format!(
                "a3-highgpu-8g,us-central1,{basis},USD,{whole}.{nanos:09},,{from},,list,bench\n"
            )
        };
        let rates = [
            "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n",
            &rate("on_demand", PRICES[0], "2026-01-01"),
            &rate("on_demand", PRICES[1], "2026-09-15T12:00:00Z"),
            &rate("spot", PRICES[2], "2026-01-01"),
        ];
        vec![MoneyTable {
            name: "rates.csv".to_owned(),
            kind: "rates".to_owned(),
            content: rates.concat(),
            imported: begin(),
        }]
    }

    /// What has to be in the store first: nodes, GPUs and who holds them, and of each GPU a minute of its
    /// first hour, which is what makes the ledger compute that.
    pub(super) fn commit(&self) -> Commit {
        let mut commit = Commit {
            number: 1,
            holders: self.holders.clone(),
            ..Commit::default()
        };
        let last = Timestamp::from_seconds((FIRST_HOUR + DAYS * 24) * 3_600);
        let known = |key: ResourceKey, resource: Resource| KnownResource {
            key,
            resource: Arc::new(resource),
            agent: None,
            first_seen: begin(),
            last_seen: last,
        };
        for node in 0..self.nodes {
            let name = node_name(node);
            let described = Resource::new(ResourceKind::Node, name.as_str())
                .with(attribute::NODE, name.as_str())
                .with(attribute::MACHINE_TYPE, "a3-highgpu-8g")
                .with(attribute::REGION, "us-central1")
                .with(attribute::ZONE, "us-central1-a")
                .with(attribute::CLOUD_ACCOUNT, "a-project")
                .with(attribute::HOST_ID, format!("//compute.googleapis.com/projects/a-project/zones/us-central1-a/instances/{name}"))
                .with(attribute::PROVISIONING, if is_spot(node) { "spot" } else { "on_demand" });
            let of_node = key(ResourceKind::Node, &name);
            commit.resources.push(known(of_node, described));
            for gpu in 0..GPUS_PER_NODE {
                let id = gpu_name(node * GPUS_PER_NODE + gpu);
                let described = Resource::new(ResourceKind::Gpu, id.as_str())
                    .with(attribute::NODE, name.as_str())
                    .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3");
                let key = key(ResourceKind::Gpu, &id);
                commit.minutes.push(MinuteDelta {
                    key: key.clone(),
                    minute: Minute(FIRST_HOUR * 60 + 30),
                    row: MinuteRow::default(),
                });
                commit.resources.push(known(key, described));
            }
        }
        commit
    }

    /// An hour of a GPU as the ledger would compute it.
    pub(super) fn computed(&mut self, dirty: DirtyHour, gpu: usize) -> ComputedHour {
        let held = self.hour(gpu, dirty.hour);
        let mut time = BTreeMap::new();
        for ((_, state, reason), held) in &held {
            *time.entry((*state, *reason)).or_default() += held.millis;
            *self.truth.entry(*state).or_default() += held.millis;
        }
        let mut ledger = LedgerHour::new(dirty.hour, time);
        ledger.is_final = true;
        // What it hands over is why the next is computed; the last hands over nothing.
        let is_last = dirty.hour + 1 == FIRST_HOUR + DAYS * 24;
        let mut carry = Carry::default();
        carry.is_there = true;
        carry.inactive_s = u32::try_from(gpu % 300).unwrap_or(0);
        carry.memory_bytes = Some(60_000_000_000);
        ComputedHour {
            dirty,
            ledger,
            held,
            spans: Vec::new(),
            family: Vec::new(),
            served: None,
            carry: (!is_last).then_some(carry),
            again: None,
            ten_minutes: Vec::new(),
            closed: BTreeMap::new(),
        }
    }

    /// Where an hour of a GPU went.
    fn hour(&self, gpu: usize, hour: i64) -> BTreeMap<(i64, State, Reason), Held> {
        let gang = gpu / GPUS_PER_NODE / NODES_OF_GANG;
        let slot = (hour + 5 * gang as i64) / SLOT_HOURS;
        let drawn = mixed(gang as u64, slot.unsigned_abs());
        let mut times = BTreeMap::new();
        let mut left = MILLIS_PER_HOUR;
        let mut add = |holder: i64, state: State, reason: Reason, millis: i64| {
            let held = Held {
                millis,
                lost_millis: 0,
                energy: Energy {
                    millijoules: millis * 400,
                    metered_millis: millis,
                },
            };
            times.insert((holder, state, reason), held);
            left -= millis;
            left
        };
        if drawn.is_multiple_of(20) {
            add(0, State::Unallocated, Reason::Unknown, MILLIS_PER_HOUR);
            return times;
        }
        let holder = self.holders[(drawn / 20) as usize % JOBS].number;
        let of_hour = mixed(gpu as u64, hour.unsigned_abs());
        let mut left = add(
            holder,
            State::Gap,
            Reason::Unknown,
            (of_hour % 240_000 + 1) as i64,
        );
        for (one_in, state, reason, holder, millis) in [
            (40, State::Parked, Reason::Unknown, holder, 1_800_000),
            (97, State::Stalled, Reason::Unknown, holder, 600_000),
            (211, State::Unobserved, Reason::NoSample, 0, 61_000),
        ] {
            if (of_hour >> 20).is_multiple_of(one_in) {
                left = add(holder, state, reason, millis);
            }
        }
        add(holder, State::ActiveUnrated, Reason::Unknown, left);
        times
    }
}

pub(super) fn begin() -> Timestamp {
    Timestamp::from_seconds(FIRST_HOUR * 3_600)
}

pub(super) fn gpu_name(number: usize) -> String {
    format!("GPU-{number:08}-0000-0000-0000-000000000000")
}

fn node_name(number: usize) -> String {
    format!("gke-train-a3-pool-{number:05}")
}

pub(super) fn key(kind: ResourceKind, id: &str) -> ResourceKey {
    ResourceKey {
        cluster: "prod".into(),
        kind,
        id: id.into(),
    }
}

fn is_spot(node: usize) -> bool {
    node % 10 == 9
}

/// Noise that is the same in every run.
fn mixed(one: u64, other: u64) -> u64 {
    let mut mixed = one
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(other.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    for shift in [30, 27, 31] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    mixed
}
