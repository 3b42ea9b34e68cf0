//! GPUs that make the others of their job wait, by their clocks alone: of jobs whose processes tell nothing.
//!
//! Without steps and without times of collectives nothing says what a rank does. What is left is how fast its GPU
//! can be beside those of the same model under the same job that are at work too. Such a group is judged as the ranks
//! of a run are, a tick as a step ([`straggler::Source::Telemetry`]), and [`straggler::clocks`] says of which jobs
//! a low clock makes others wait at all. What is told is told as likely and no more; where the GPU is hot, braked
//! or broken it is evidence of that incident and none of its own.
//!
//! A job is left alone whose run is judged by steps or collectives. What a group had said of it is neither true nor
//! over while it rests, half of its clocks cannot be read, or more of them are low than can be named.
//!
//! Limits: [`FORGET_NS`]; 276 bytes a GPU and 2 KiB a job. A job is judged after 25 ticks at work, and a GPU
//! named 6 ticks after its clock fell.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpufleet_analysis::cause::{self, Looks, Reading};
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::robust::median;
use gpufleet_analysis::straggler::clocks::{LEAST_GPUS, LEAST_RATIO, Pace, Together};
use gpufleet_analysis::straggler::{self, Silent, Source, Straggler, busy_of_clock};
use gpufleet_telemetry::catalog::{Unit, gpu};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::TICK;
use super::detector::Need::{Holders, Reading as Read};
use super::detector::{Detector, Findings, Finds, TickSnapshot};
use super::gather::{Alike, GpuSnapshot, is_at_work};
use super::runs::{self, slow};
use crate::runs::State;

/// A job that did not work for this long is judged anew when it does, nanoseconds: longer than it saves or
/// evaluates.
const FORGET_NS: i64 = 600 * NANOS_PER_SECOND;

/// Clocks down to this part of the group's median are alike: there is nothing to judge.
const ALIKE: f64 = 0.95;

/// GPUs whose readings a slow one's are held against: more change no median.
const PEERS: usize = 64;

/// A reading that a cause names too.
const CLOCK: &str = "clock of the SMs";

/// What is kept of each group of like GPUs.
#[derive(Default)]
pub(super) struct Clocks(HashMap<Arc<Alike>, Watched>);

/// What is kept of one.
struct Watched {
    run: straggler::Run,
    ticks: u64,
    worked: Timestamp,
    /// Of each GPU that is told, by its number, since when, and the last looks at why.
    told: BTreeMap<u32, (Timestamp, Looks)>,
}

impl Detector for Clocks {
    fn finds(&self) -> Vec<Finds> {
        vec![Finds::of(
            "a GPU whose clock makes its job wait",
            Family::Straggler,
            &[Read(&gpu::SM_CLOCK), Holders],
            &[Basis::LowerPace],
        )]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        // The GPUs of each that are at work; of one that rests, none.
        let mut groups: HashMap<*const Alike, (&Arc<Alike>, Vec<&GpuSnapshot>)> = HashMap::new();
        for seen in tick.seen {
            if together(&seen.alike) != Together::No {
                let group = groups.entry(Arc::as_ptr(&seen.alike));
                let (_, working) = group.or_insert_with(|| (&seen.alike, Vec::new()));
                working.extend(is_at_work(seen.status.state).then_some(seen));
            }
        }
        self.0
            .retain(|group, _| groups.contains_key(&Arc::as_ptr(group)));
        if groups.is_empty() {
            return;
        }
        let judged = of_judged_runs(tick, found);
        for (group, working) in groups.values() {
            if working.iter().any(|it| judged.contains(&it.number)) {
                self.0.remove(*group);
                continue;
            }
            let is_judged = working.len() >= LEAST_GPUS;
            let watched = match is_judged {
                true => {
                    let known = self.0.entry(Arc::clone(group));
                    Some(known.or_insert_with(|| Watched::new(tick.now)))
                }
                false => self.0.get_mut(*group),
            };
            let Some(watched) = watched else {
                continue;
            };
            let signals = match is_judged {
                true => watched.judge(working, together(group), tick),
                // It rests, or works on too few of its GPUs.
                false => Err(Silent::RanksMissing),
            };
            match signals {
                Ok(signals) => found.signals.extend(signals),
                // Of what was told before the server started it is not known yet whether it is over.
                Err(why) if watched.told.is_empty() && why != Silent::Starting => {}
                Err(_) => {
                    let job = group.job.as_deref().unwrap_or_default().to_owned();
                    let job = (group.cluster.to_string(), job);
                    let models = found.unjudged_models.entry(job).or_default();
                    models.insert(group.model.to_string());
                }
            }
        }
    }
}

/// Whether GPUs of one job wait for one another.
fn together(group: &Alike) -> Together {
    group.job.as_deref().map_or(Together::No, Together::of)
}

/// The numbers of the GPUs of runs of which it is judged who makes the others wait.
fn of_judged_runs(tick: &TickSnapshot<'_>, found: &Findings) -> HashSet<u32> {
    let mut numbers = HashSet::new();
    for key in tick.runs().keys() {
        tick.runs().look(&key, |run| {
            let goes_on = runs::is_judged(run) && run.state(tick.now) == State::Running;
            let is_told = found.by_collectives.contains(&key) || run.steps_tell();
            if !goes_on || !is_told {
                return;
            }
            let gpus = run.living().map(|(_, it)| &*it.facts.gpu);
            let gpus = gpus.filter_map(|it| tick.gpus.get(&(&*key.cluster, it)));
            numbers.extend(gpus.map(|it| it.number));
        });
    }
    numbers
}

impl Watched {
    fn new(now: Timestamp) -> Self {
        Self {
            run: straggler::Run::new(Source::Telemetry),
            ticks: 0,
            worked: now,
            told: BTreeMap::new(),
        }
    }

    /// Takes in a tick and says who makes the others wait; or why nobody is judged.
    fn judge(
        &mut self,
        working: &[&GpuSnapshot],
        together: Together,
        tick: &TickSnapshot<'_>,
    ) -> Result<Vec<Signal>, Silent> {
        let now = tick.now;
        if now.since(self.worked) > FORGET_NS {
            *self = Self {
                told: std::mem::take(&mut self.told),
                ..Self::new(now)
            };
        }
        self.worked = now;
        self.ticks += 1;
        let reading = |seen: &&GpuSnapshot| {
            Some(straggler::Reading {
                rank: seen.number,
                seat: straggler::Seat::default(),
                busy_ns: busy_of_clock(seen.clock?)?,
            })
        };
        let readings: Vec<straggler::Reading> = working.iter().filter_map(reading).collect();
        let observed = self.run.observe(&straggler::Step {
            step: self.ticks,
            wall_ns: 0,
            readings: &readings,
        });
        if readings.len() * 2 < working.len() || observed == straggler::Observed::TooFewRanks {
            return Err(Silent::RanksMissing);
        }
        let Some(usual) = median(&mut clocks(working)) else {
            return Err(Silent::RanksMissing);
        };
        let is_low = |it: &f64| *it < ALIKE * usual;
        if self.told.is_empty() && !clocks(working).iter().any(is_low) {
            return Ok(Vec::new());
        }
        let by = &tick.by.straggler;
        let verdict = self.run.judge_by(by);
        // Where several look slow nobody is named, and of who was it is not known whether it is over.
        if let Some(why) = verdict.silent {
            return Err(why);
        }
        let around = Around::of(working, together);
        let mut named = Vec::new();
        for slow in &verdict.stragglers {
            let known = self.told.remove(&slow.rank);
            // One that is merely not cleared yet has a z of 0: it was slow by less, and now perhaps all are.
            let is_told =
                known.is_some() || (slow.ratio >= by.ratio.max(LEAST_RATIO) && slow.z > 0.0);
            let own = around.by_number.get(&slow.rank);
            let Some(own) = own.filter(|it| is_told && around.is_waited_for(it)) else {
                continue;
            };
            let new = || (self.at(slow.since_step, now), Looks::default());
            named.push((*own, slow, known.unwrap_or_else(new)));
        }
        let parts = shares(&named.iter().map(|it| it.1.ratio).collect::<Vec<_>>());
        self.told.clear();
        let mut signals = Vec::new();
        for ((own, slow, (since, mut looks)), part) in std::iter::zip(named, parts) {
            signals.push(around.signal(own, (slow, part), since, &mut looks));
            self.told.insert(slow.rank, (since, looks));
        }
        Ok(signals)
    }

    /// When a tick of this number was.
    fn at(&self, step: u64, now: Timestamp) -> Timestamp {
        let ticks = i64::try_from(self.ticks.saturating_sub(step)).unwrap_or(0);
        let tick = i64::try_from(TICK.as_nanos()).unwrap_or(0);
        now.shifted(-ticks.saturating_mul(tick))
    }
}

fn clocks(working: &[&GpuSnapshot]) -> Vec<f64> {
    working.iter().filter_map(|it| it.clock).collect()
}

/// Which part of its job's time each of several slow GPUs takes, by how many times slower they are. The job is as slow as
/// its slowest: what one is slower than the next it bears alone, and what some are slower than all others they bear
/// in equal parts. So together they bear what the job loses, once.
fn shares(ratios: &[f64]) -> Vec<f64> {
    let mut slowest: Vec<usize> = (0..ratios.len()).collect();
    slowest.sort_by(|one, other| ratios[*other].total_cmp(&ratios[*one]));
    let ratio = |place: usize| slowest.get(place).map_or(1.0, |it| ratios[*it].max(1.0));
    let mut parts = vec![0.0; ratios.len()];
    let mut borne = 0.0;
    for (place, own) in slowest.iter().enumerate().rev() {
        let more = ratio(place) - ratio(place + 1);
        borne += more / (place + 1) as f64 / ratio(0);
        parts[*own] = borne;
    }
    parts
}

/// A group in which somebody is slow.
struct Around<'a> {
    working: &'a [&'a GpuSnapshot],
    by_number: HashMap<u32, &'a GpuSnapshot>,
    together: Together,
    usual: Option<Pace>,
    /// What a second of one of its GPUs costs, on average.
    price: Option<i64>,
}

impl<'a> Around<'a> {
    fn of(working: &'a [&'a GpuSnapshot], together: Together) -> Self {
        let tensor = working.iter().filter_map(|it| it.tensor);
        let tensor = median(&mut tensor.collect::<Vec<_>>());
        let price = working.iter().map(|it| Losing::gpus(1, it.price));
        let price = price.fold(Losing::default(), |sum, it| sum.and(&it));
        Self {
            working,
            by_number: working.iter().map(|it| (it.number, *it)).collect(),
            together,
            usual: median(&mut clocks(working)).map(|clock| Pace { clock, tensor }),
            price: price.nano_usd_per_gpu_second,
        }
    }

    /// Whether the others do no more work than this one, as far as that can be read.
    fn is_waited_for(&self, own: &GpuSnapshot) -> bool {
        let Some((clock, usual)) = own.clock.zip(self.usual) else {
            return false;
        };
        let pace = Pace {
            clock,
            tensor: own.tensor,
        };
        self.together.waits_for(pace, usual)
    }

    fn signal(
        &self,
        own: &GpuSnapshot,
        (slow, part): (&Straggler, f64),
        since: Timestamp,
        looks: &mut Looks,
    ) -> Signal {
        let peers = self.working.iter().filter(|it| it.number != own.number);
        let peers: Vec<&GpuSnapshot> = peers.take(PEERS).copied().collect();
        let read = cause::Rank {
            slowness: slow.ratio,
            ..slow::read_of_gpu(own, &peers)
        };
        let why = looks.take(cause::judge(&read));
        let name = "its time for the same work by its clock, beside its peers'";
        let mut readings = vec![Reading::new(name, slow.ratio, Some(1.0), Unit::Count)];
        let clock = own.clock.unwrap_or_default();
        let usual = self.usual.map(|it| it.clock);
        readings.push(Reading::new(CLOCK, clock, usual, Unit::Hertz));
        let causes = why.0.iter().flat_map(|it| it.readings.iter().cloned());
        readings.extend(causes.filter(|it| it.name != CLOCK));
        readings.extend(read.beside());
        let (action, remedy) = slow::action(why.cause());
        Signal {
            family: Family::Straggler,
            place: Place {
                run: own.alike.job.as_deref().map(str::to_owned),
                ..Place::gpu(&own.cluster, &own.node, &own.id)
            },
            severity: Severity::Warning,
            what: "probably makes the other GPUs of its job wait".to_owned(),
            action: action.to_owned(),
            remedy,
            cause: why.cause(),
            since: Some(since),
            readings,
            // At most: what memory bounds, the clock does not make longer.
            price: Price::of(
                Basis::LowerPace,
                Losing::part(self.working.len() as u64, part, self.price),
            ),
            confidence: Some(slow.confidence),
            booted_at: own.booted_at,
        }
    }
}

#[cfg(test)]
mod tests;
