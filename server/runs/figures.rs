//! What a run does in figures, each with why there is none: pace, tokens, phases, plan.
//!
//! Pure, over what the ranks said last. A figure that the run does not say is a sentence, never 0.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::plan::{self, Forecast, Progress};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Phase;

use super::cost::Cost;
use super::words::STANDS;
use super::{Rank, Run};

/// Newest blocks over which tokens a second are told: a minute at a shipment each 10 s.
const BLOCKS: usize = 6;

/// The pair of the fingerprint that says on how many GPUs a process computes, where these are several.
const GPUS_PER_PROCESS: &str = "gpus_per_process";

impl Run {
    /// The lowest rank that has done steps: it stands for the run where one has to.
    pub fn speaker(&self) -> Option<(u32, &Rank)> {
        let has_steps = |rank: &Rank| {
            !rank.ring.is_empty()
                || rank
                    .facts
                    .reading(training::STEPS.id)
                    .is_some_and(|it| it > 0.0)
        };
        let found = self.members().find(|(_, rank)| has_steps(rank));
        found.map(|(number, rank)| (*number, rank))
    }

    /// How long a step takes, seconds: now, else over the whole life of the rank that stands for it.
    pub fn step_seconds(&self) -> Option<f64> {
        if let Some(judged) = &self.judged {
            return Some(judged.step_ns as f64 / 1e9).filter(|it| *it > 0.0);
        }
        let (_, rank) = self.speaker()?;
        let told = |metric: Metric| rank.facts.reading(metric.id);
        let (wall, steps) = (told(training::STEP_WALL)?, told(training::STEPS)?);
        (steps > 0.0 && wall > 0.0).then(|| wall / steps)
    }

    /// A figure of its pace: none, with the reason, while it stands or where nobody tells it.
    ///
    /// # Errors
    /// `otherwise`, or that it stands.
    pub fn at_its_pace<T>(
        &self,
        told: Option<T>,
        otherwise: &'static str,
        now: Timestamp,
    ) -> Result<T, &'static str> {
        match self.stands_since(now) {
            Some(_) => Err(STANDS),
            None => told.ok_or(otherwise),
        }
    }

    /// The newest step of any rank.
    pub fn last_step(&self) -> Option<u64> {
        let told = |rank: &Rank| {
            let told = rank
                .facts
                .reading(training::LAST_STEP.id)
                .map(|it| it as u64);
            let held = rank.ring.span().map(|(_, next)| next.saturating_sub(1));
            told.max(held)
                .max(rank.facts.end.as_ref().and_then(|it| it.step))
        };
        self.members().filter_map(|(_, it)| told(it)).max()
    }

    /// Tokens a second of the run; none where no rank says its tokens. The ranks of one place of the
    /// data-parallel dimension are given the same tokens, which count once.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let mut places: BTreeMap<u32, f64> = BTreeMap::new();
        for (number, rank) in self.members() {
            if let Some(tokens) = tokens_per_second(rank) {
                let place = rank.facts.mesh.dp.map_or(*number, |it| it.at);
                let known = places.entry(place).or_default();
                *known = known.max(tokens);
            }
        }
        places.into_values().reduce(|sum, it| sum + it)
    }

    /// How many places of the data-parallel dimension are given tokens of their own; as many as
    /// there are ranks where nobody says.
    pub fn data_places(&self) -> usize {
        let places = self.members();
        let places = places.map(|(number, rank)| rank.facts.mesh.dp.map_or(*number, |it| it.at));
        places.collect::<BTreeSet<u32>>().len()
    }

    /// The GPUs that its ranks name.
    pub fn gpus(&self) -> BTreeSet<&str> {
        let named = self.members().map(|(_, it)| &*it.facts.gpu);
        named.filter(|it| !it.is_empty()).collect()
    }

    /// How many GPUs it computes on: those that its ranks name, or one a rank where one names none.
    pub fn gpu_count(&self) -> usize {
        let ranks = self.members().count();
        match self.members().all(|(_, it)| !it.facts.gpu.is_empty()) {
            true => self.gpus().len(),
            false => ranks.max(self.facts.world as usize),
        }
    }

    /// Why the GPUs that its ranks name are fewer than those on which it computes; none where nothing says so.
    pub(super) fn names_too_few_gpus(&self) -> Option<String> {
        let gpus: u32 = self.facts.fingerprint.get(GPUS_PER_PROCESS)?.parse().ok()?;
        (gpus > 1)
            .then(|| format!("not known: a process of it computes on {gpus} GPUs and names one"))
    }

    /// Seconds of each phase, mean over the ranks that tell any; phases without time are left out.
    pub fn phases(&self) -> Vec<(Phase, f64)> {
        let mean = |phase: Phase| {
            let told = self.members();
            let told: Vec<f64> = told
                .filter_map(|(_, it)| it.facts.reading(phase.seconds().id))
                .collect();
            let mean = told.iter().sum::<f64>() / told.len() as f64;
            (mean > 0.0).then_some((phase, mean))
        };
        Phase::ALL.iter().copied().filter_map(mean).collect()
    }

    /// When it will be done at its present pace, and what it costs; none where it plans nothing that can
    /// be counted, and where it stands.
    pub fn forecast(&self, cost: &Cost, now: Timestamp) -> Option<Forecast> {
        if self.stands_since(now).is_some() {
            return None;
        }
        let (_, rank) = self.speaker()?;
        let told = |metric: Metric| rank.facts.reading(metric.id).map(|it| it as u64);
        let second = self.step_seconds().map(|it| 1.0 / it);
        // Tokens of the attempts before are not known here.
        let tokens = told(training::PLANNED_TOKENS).filter(|_| self.facts.restored.is_none());
        let tokens_done = told(training::TOKENS).map(|it| it * self.data_places() as u64);
        let (planned, done, rate) = match (told(training::PLANNED_STEPS), tokens) {
            (Some(steps), _) => (steps, self.last_step()?, second?),
            (None, Some(tokens)) => (tokens, tokens_done?, self.tokens_per_second()?),
            (None, None) => return None,
        };
        Some(plan::forecast(&Progress {
            now,
            planned: Some(planned),
            done,
            // A million seconds' worth, so that a slow rate keeps its digits.
            window_done: (rate * 1e6) as u64,
            window_ns: 1_000_000_000_000_000,
            gpus: u32::try_from(self.gpu_count()).unwrap_or(u32::MAX),
            held_gpu_ns: cost.held_gpu_ns.clone().unwrap_or(0),
            nano_usd_per_gpu_hour: cost.known_price(),
            deadline: rank.deadline(),
        }))
    }

    /// The rank with the least memory left, with its peak and limit in bytes.
    pub fn tightest_memory(&self) -> Option<(u32, f64, f64)> {
        let of = |(number, rank): (&u32, &Rank)| {
            let told = |metric: Metric| rank.facts.reading(metric.id).filter(|it| *it > 0.0);
            let peak = told(training::MEMORY_PEAK_RESERVED).or(told(training::MEMORY_RESERVED))?;
            Some((*number, peak, told(training::MEMORY_LIMIT)?))
        };
        let all = self.members().filter_map(of);
        all.max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
    }
}

impl Rank {
    /// When its run has to be done; none where it does not say.
    pub fn deadline(&self) -> Option<Timestamp> {
        let told = self.facts.reading(training::DEADLINE_AT.id);
        told.map(|it| Timestamp::from_millis((it * 1e3) as i64))
    }
}

/// Tokens a second that one rank was given: lately, else over its whole life.
fn tokens_per_second(rank: &Rank) -> Option<f64> {
    let (tokens, wall_ns) = rank.ring.lately(BLOCKS);
    if tokens > 0.0 && wall_ns > 0.0 {
        return Some(tokens / wall_ns * 1e9);
    }
    let told = |metric: Metric| rank.facts.reading(metric.id);
    let (tokens, wall) = (told(training::TOKENS)?, told(training::STEP_WALL)?);
    (tokens > 0.0 && wall > 0.0).then(|| tokens / wall)
}
