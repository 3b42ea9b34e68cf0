//! What is advised now, and what is there now of what was advised: one walk over what is live.
//!
//! Limits: [`MAX_GPUS`] GPUs of a job are remembered, spread over all of it, by which is seen that it gave some back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufleet_analysis::ledger::{MILLIS_PER_HOUR, State};
use gpufleet_analysis::owner::{Holder, Payer};
use gpufleet_analysis::shutdown::hour_of_week;
use gpufleet_analysis::taken::sight::{JobNow, RunNow, milli};
use gpufleet_analysis::taken::{Advice, Before, Kind, Record, Sight, Standing};
use gpufleet_analysis::unused::IDLE_AFTER_S;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::{Origin, attribute};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::around::Around;
use super::knobs;
use crate::App;
use crate::auth::Grant;
use crate::inventory;
use crate::inventory::known::Moment;
use crate::money::now;
use crate::money::savings::{Off, RightSize, Savings};
use crate::words::text;

/// GPUs of a job that are remembered.
const MAX_GPUS: usize = 32;

/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// A cluster and a job, or a machine type.
type Place = (String, String);

/// What is there now.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Jobs that have GPUs.
    pub(super) jobs: HashMap<Place, Job>,
    /// By cluster and GPU or share the job that has it, empty of nobody; of those that are observed.
    pub(super) holders: HashMap<Place, String>,
    /// Runs that go on, by cluster and job, with what is advised of each.
    pub(super) runs: HashMap<Place, Vec<knobs::Seen>>,
    /// Jobs of which a run came to its end, with when.
    pub(super) finished: Vec<(Place, i64)>,
    /// Nodes that are there by cluster and machine type; none where nobody sees nodes.
    pub(super) nodes: Option<(Arc<str>, BTreeMap<String, u32>)>,
}

/// A job with GPUs.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) now: JobNow,
    pub(super) origin: Origin,
    pub(super) payer: String,
    /// Its GPUs, each with its node before it.
    pub(super) gpus: Vec<(String, String)>,
    /// How many GPUs it has, millionths: a share counts by its part of the card.
    pub(super) held_micros: u64,
    /// Of them those that have been idle for so long that it is said, millionths, and what these cost a day.
    pub(super) told: (u64, Option<i64>),
}

impl Seen {
    /// Walks over everything.
    pub(super) fn now(app: &App, specs: &Specs, at: Timestamp) -> Self {
        let terms = app.money.terms();
        let moment = inventory::now(app);
        let walked = Moment { at, ..moment };
        let all = Grant::default();
        let found = now::now((&app.fleet, &app.inventory), &terms, &all, walked);
        let mut seen = Self::default();
        for (cluster, gpus) in &found.all {
            for (id, gpu) in gpus {
                seen.gpu(cluster, id, gpu);
            }
        }
        for (cluster, gpus) in &found.gone {
            for gpu in gpus.values() {
                seen.lost(cluster, gpu);
            }
        }
        for it in &found.idle {
            if let Some(job) = seen
                .jobs
                .get_mut(&(it.key.cluster.to_string(), it.job.clone()))
            {
                let gpu = found.gpu(&it.key.cluster, &it.key.id);
                job.idle(it, gpu.and_then(|gpu| gpu.last), at);
            }
        }
        if app.inventory.sees_nodes(moment) {
            let mut nodes: BTreeMap<String, u32> = BTreeMap::new();
            for record in app.inventory.known().records() {
                if record.gone_at.is_none() {
                    *nodes.entry(record.node.machine.clone()).or_default() += 1;
                }
            }
            seen.nodes = Some((Arc::clone(app.inventory.cluster()), nodes));
        }
        knobs::look(&mut seen, app, specs, &found, at);
        seen
    }

    fn gpu(&mut self, cluster: &str, id: &str, gpu: &now::PricedGpu) {
        let job = job_of(gpu);
        let is_observed = gpu.state != State::Unobserved;
        if is_observed {
            let place = (cluster.to_owned(), id.to_owned());
            self.holders.insert(place, job.clone());
        }
        if job.is_empty() {
            return;
        }
        let known = self.jobs.entry((cluster.to_owned(), job));
        let known = known.or_insert_with(|| Job {
            now: JobNow {
                day_cost: Some(0),
                idle_cost: Some(0),
                ..JobNow::default()
            },
            origin: gpu.resource.origin(),
            payer: gpu.payer.name().to_owned(),
            gpus: Vec::new(),
            held_micros: 0,
            told: (0, Some(0)),
        });
        let day = gpu.last.and_then(|it| it.checked_mul(DAY_S));
        known.now.gpus += 1;
        known.hold(gpu.part);
        // Whether what starts will work is not seen yet: nothing was given back.
        let is_seen = is_observed && gpu.state != State::StartingPod;
        known.now.unseen += u32::from(!is_seen);
        known.now.day_cost = sum(known.now.day_cost, day);
        let node = gpu.resource.attribute(attribute::NODE).unwrap_or_default();
        known.gpus.push((node.to_owned(), id.to_owned()));
    }

    /// Takes in a GPU of a node that went, once those that are there are known: its job lost it, and gave nothing back.
    pub(super) fn lost(&mut self, cluster: &str, gpu: &now::PricedGpu) {
        let place = (cluster.to_owned(), job_of(gpu));
        if let Some(job) = self.jobs.get_mut(&place) {
            job.now.unseen += 1;
        }
    }

    /// What is advised now.
    pub(super) fn given(&self, savings: &Savings) -> Vec<Advice> {
        let mut given = Vec::new();
        given.extend(
            savings
                .right_size
                .iter()
                .filter_map(|it| self.right_size(it)),
        );
        given.extend(savings.off.iter().map(|it| self.off(it)));
        let idle = self.jobs.iter().filter(|it| it.1.told.0 > 0);
        given.extend(idle.map(|((cluster, job), it)| it.advice(cluster, job)));
        for runs in self.runs.values() {
            given.extend(runs.iter().flat_map(|it| it.advised.iter().cloned()));
        }
        given
    }

    /// None of a job that has no GPUs any more: the answer may be an hour old.
    fn right_size(&self, it: &RightSize) -> Option<Advice> {
        let job = self.jobs.get(&(it.cluster.to_string(), it.job.clone()))?;
        Some(Advice {
            kind: Kind::RightSize,
            cluster: it.cluster.to_string(),
            origin: it.origin,
            about: it.job.clone(),
            payer: it.payer.name().to_owned(),
            what: "GPUs".to_owned(),
            today: format!("{} of {}", it.gpus, it.card),
            proposed: format!("{} of {}", it.proposal.gpus, it.proposal.card),
            worth: i64::try_from(it.proposal.saved_per_day).ok(),
            before: Before {
                count: job.now.gpus,
                day_cost: job.now.day_cost,
                gpus: job.remembered(),
                ..Before::default()
            },
        })
    }

    fn off(&self, it: &Off) -> Advice {
        let window = &it.window;
        let node_hours = i128::from(window.nodes) * i128::try_from(window.hours).unwrap_or(1);
        let day_cost = (window.saved_per_week * 24).checked_div(node_hours);
        Advice {
            kind: Kind::Shutdown,
            cluster: it.cluster.clone(),
            origin: it.origin,
            about: it.machine_type.clone(),
            // Nobody holds them.
            payer: Payer::Nobody.name().to_owned(),
            what: window.words(),
            today: "on".to_owned(),
            proposed: format!("{} off", window.nodes),
            worth: i64::try_from(window.saved_per_week / 7).ok(),
            before: Before {
                count: self.nodes(&it.cluster, &it.machine_type).unwrap_or(0),
                day_cost: day_cost.and_then(|it| i64::try_from(it).ok()),
                from_hour: window.from,
                hours: window.hours,
                nodes: window.nodes,
                ..Before::default()
            },
        }
    }

    fn nodes(&self, cluster: &str, machine_type: &str) -> Option<u32> {
        let (of, nodes) = self.nodes.as_ref()?;
        (**of == *cluster).then(|| nodes.get(machine_type).copied().unwrap_or(0))
    }

    /// What is seen of an advice, which is given again or not.
    pub(super) fn sight(
        &self,
        (it, around): (&Record, &Around),
        again: Option<Advice>,
        now_ms: i64,
    ) -> Sight {
        let again = again.map(|again| Box::new(settled(it, again, around)));
        let again = match again {
            // Idle GPUs of a job are idle whatever became of others of it.
            Some(again) if it.advice.kind == Kind::Idle => return Sight::Given(again),
            again => again,
        };
        match (self.changed(it, around, now_ms), again) {
            (sight @ Sight::Changed { .. }, _) => sight,
            // Between two times at which they are off it is advised by what was before.
            (Sight::NotSeen, Some(_))
                if it.advice.kind == Kind::Shutdown && it.standing != Standing::Told =>
            {
                Sight::NotSeen
            }
            (_, Some(again)) => Sight::Given(again),
            (sight, None) => sight,
        }
    }

    fn changed(&self, it: &Record, around: &Around, now_ms: i64) -> Sight {
        let advice = &it.advice;
        let place = (advice.cluster.clone(), advice.about.clone());
        match advice.kind {
            Kind::Knob => {
                let runs = self.runs.get(&place).into_iter().flatten();
                let runs: Vec<RunNow> = runs.map(|run| run.with_knob(&advice.what)).collect();
                let knobs: Vec<&str> = around.knobs.iter().map(String::as_str).collect();
                it.sight_of_runs(&runs, &knobs)
            }
            Kind::RightSize | Kind::Idle => {
                let holder = |gpu: &String| {
                    let place = (advice.cluster.clone(), gpu.clone());
                    self.holders.get(&place)
                };
                let had = &advice.before.gpus;
                let was_freed = had
                    .iter()
                    .any(|gpu| holder(gpu).is_some_and(|job| *job != advice.about));
                // Its node may have gone so long ago that nobody remembers the GPU.
                let is_told = advice.kind == Kind::Idle && it.standing == Standing::Told;
                let is_lost = is_told && had.iter().any(|gpu| holder(gpu).is_none());
                let has_finished = self.finished.iter().any(|(of, at)| {
                    let is_it = of.0 == place.0 && knobs::is_of(&advice.about, &of.1);
                    is_it && *at >= it.first_ms
                });
                let job = self.jobs.get(&place).map(|it| JobNow {
                    unseen: it.now.unseen + u32::from(is_lost),
                    ..it.now
                });
                it.sight_of_job(job, was_freed, has_finished)
            }
            Kind::Shutdown => match self.nodes(&advice.cluster, &advice.about) {
                Some(nodes) if is_in_window(&advice.before, now_ms) => {
                    match it.sight_of_nodes(nodes, around.off) {
                        Sight::Changed { .. } if around.has_prices => Sight::Changed {
                            less_a_day: Err("its nodes have more than one price"),
                        },
                        sight => sight,
                    }
                }
                // Off at a time at which nobody proposed it: they are lost, or gone for good.
                Some(nodes) if !around.is_off_time => match it.sight_of_nodes(nodes, 0) {
                    Sight::Changed { .. } => Sight::Unchanged,
                    _ => Sight::NotSeen,
                },
                _ => Sight::NotSeen,
            },
        }
    }
}

impl Job {
    /// Some of its GPUs, of all of its nodes alike: those of one node would say nothing of the others.
    pub(super) fn remembered(&self) -> Vec<String> {
        let mut gpus: Vec<&(String, String)> = self.gpus.iter().collect();
        gpus.sort_unstable();
        let every = gpus.len().div_ceil(MAX_GPUS).max(1);
        gpus.into_iter()
            .step_by(every)
            .map(|it| it.1.clone())
            .collect()
    }

    /// Takes in a GPU or share that it has.
    pub(super) fn hold(&mut self, part: (u32, u32)) {
        self.held_micros += micros(part);
    }

    /// Takes in one of these that is idle, with what a second less of it would save.
    pub(super) fn idle(&mut self, it: &now::Idle, second: Option<i64>, at: Timestamp) {
        let day = second.and_then(|it| it.checked_mul(DAY_S));
        self.now.idle_micros += micros(it.part);
        self.now.idle_cost = sum(self.now.idle_cost, day);
        let for_s = it
            .since
            .map_or(0, |since| at.since(since) / NANOS_PER_SECOND);
        if for_s >= IDLE_AFTER_S {
            self.told = (self.told.0 + micros(it.part), sum(self.told.1, day));
        }
    }

    /// That idle GPUs be given back.
    pub(super) fn advice(&self, cluster: &str, job: &str) -> Advice {
        let (told, held) = (milli(self.told.0), milli(self.held_micros));
        Advice {
            kind: Kind::Idle,
            cluster: cluster.to_owned(),
            origin: self.origin,
            about: job.to_owned(),
            payer: self.payer.clone(),
            what: "GPUs".to_owned(),
            today: format!(
                "{} of {} idle",
                text::gpu_count(told),
                text::gpu_count(held)
            ),
            proposed: "given back, or used".to_owned(),
            worth: self.told.1,
            before: Before {
                milli_gpus: told,
                day_cost: self.told.1,
                gpus: self.remembered(),
                ..Before::default()
            },
        }
    }
}

/// The job that has a GPU or share; empty of nobody, and of a holder without a name.
fn job_of(gpu: &now::PricedGpu) -> String {
    let holder = Holder::told_by(&gpu.resource).filter(|_| gpu.payer != Payer::Nobody);
    holder.map(|it| it.job).unwrap_or_default()
}

/// Advice as it is taken over: nodes that are off at their time are as many as they were before it.
fn settled(it: &Record, mut again: Advice, around: &Around) -> Advice {
    if again.kind == Kind::Shutdown && around.is_off_time {
        again.before.count = it.advice.before.count;
    }
    again
}

/// So many slices of so many of a card, millionths of it.
fn micros((slices, of): (u32, u32)) -> u64 {
    let of = u64::from(of.max(1));
    (u64::from(slices) * 1_000_000 + of / 2) / of
}

fn sum(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.zip(other)
        .and_then(|(one, other)| one.checked_add(other))
}

pub(super) fn is_in_window(before: &Before, now_ms: i64) -> bool {
    let week = gpufleet_analysis::shutdown::WEEK;
    let hour = hour_of_week(now_ms.div_euclid(MILLIS_PER_HOUR));
    (hour + week - before.from_hour % week) % week < before.hours
}
