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

/// Newest blocks over which tokens and FLOPs a second are told: a minute at a shipment each 10 s.
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

    /// Tokens a second of the run; none where no rank says its tokens. The ranks of one place of the data-parallel and
    /// the context-parallel dimension are given the same tokens, which count once.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let mut places: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for (number, rank) in self.computing() {
            if let Some(tokens) = tokens_per_second(rank) {
                let known = places.entry(rank.place(*number)).or_default();
                *known = known.max(tokens);
            }
        }
        places.into_values().reduce(|sum, it| sum + it)
    }

    /// How many places of these dimensions are given tokens of their own; as many as there are ranks where nobody says.
    pub fn data_places(&self) -> usize {
        let places = self.computing();
        let places = places.map(|(number, rank)| rank.place(*number));
        places.collect::<BTreeSet<_>>().len()
    }

    /// Whether what the newest process of a rank counts, as its tokens, is of all steps that the run has done: it neither
    /// went on from a checkpoint nor began anew.
    pub fn counts_from_its_first_step(&self, rank: &Rank) -> bool {
        let told = |metric: Metric| rank.facts.reading(metric.id);
        let steps = told(training::LAST_STEP).zip(told(training::STEPS));
        let has_more = steps.is_some_and(|(last, own)| last > own);
        self.facts.restored.is_none() && !rank.facts.came_up_again() && !has_more
    }

    /// The GPUs that its ranks name.
    pub fn gpus(&self) -> BTreeSet<&str> {
        let named = self.members().map(|(_, it)| &*it.facts.gpu);
        named.filter(|it| !it.is_empty()).collect()
    }

    /// The GPUs that those of its ranks name that go on.
    pub fn gpus_computing(&self) -> BTreeSet<&str> {
        let named = self.computing().map(|(_, it)| &*it.facts.gpu);
        named.filter(|it| !it.is_empty()).collect()
    }

    /// How many GPUs it computes on: those that its ranks name, or one a rank where one names none.
    pub fn gpu_count(&self) -> usize {
        let ranks = self.computing().count();
        match self.computing().all(|(_, it)| !it.facts.gpu.is_empty()) {
            true => self.gpus_computing().len(),
            false => {
                let gone = self.members().count() - ranks;
                ranks.max((self.facts.world as usize).saturating_sub(gone))
            }
        }
    }

    /// Why the GPUs that its ranks name are fewer than those on which it computes; none where nothing says so.
    pub(super) fn names_too_few_gpus(&self) -> Option<String> {
        let gpus: u32 = self.facts.fingerprint.get(GPUS_PER_PROCESS)?.parse().ok()?;
        (gpus > 1)
            .then(|| format!("not known: a process of it computes on {gpus} GPUs and names one"))
    }

    /// How long ranks held a GPU each that have ended while others go on, nanoseconds in all; 0 where nobody said when the
    /// run began.
    pub fn gone_gpu_ns(&self) -> u128 {
        let gone = self.members().filter_map(|(_, it)| it.facts.end.as_ref());
        match self.facts.started {
            Some(from) if self.computing().all(|(_, it)| it.facts.end.is_none()) => gone
                .map(|it| u128::from(it.at.since(from).max(0).unsigned_abs()))
                .sum(),
            _ => 0,
        }
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
        let tokens = told(training::PLANNED_TOKENS);
        let tokens = tokens.filter(|_| self.counts_from_its_first_step(rank));
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

    /// Where it stands, as rank of this number, among those that are given tokens of their own: data-parallel ranks are
    /// given other sequences, and context-parallel ones other parts of each.
    pub(crate) fn place(&self, number: u32) -> (u32, u32) {
        let mesh = &self.facts.mesh;
        let data = mesh.dp.map_or(number, |it| it.at);
        (data, mesh.cp.map_or(0, |it| it.at))
    }

    /// What part it did lately of all that its newest process counted, and in how many seconds of steps; all of it where
    /// its last steps are not at hand. None where it tells no time of steps.
    ///
    /// The part is that of its tokens, else of its samples, with which its FLOPs grow; else of its steps, which holds where
    /// all of them are alike.
    pub(super) fn part_done_lately(&self) -> Option<(f64, f64)> {
        let told = |metric: Metric| self.facts.reading(metric.id).filter(|it| *it > 0.0);
        let lately = self.ring.lately(BLOCKS);
        let of = [
            (training::TOKENS, lately.tokens),
            (training::SAMPLES, lately.samples),
            (training::STEPS, lately.steps),
        ];
        let mut parts = of.into_iter().filter(|it| it.1 > 0);
        let part = parts.find_map(|(metric, done)| Some(done as f64 / told(metric)?));
        match part.filter(|_| lately.wall_ns > 0) {
            Some(part) => Some((part, lately.wall_ns as f64 / 1e9)),
            None => Some((1.0, told(training::STEP_WALL)?)),
        }
    }
}

/// Tokens a second that one rank was given: lately, else over its whole life.
fn tokens_per_second(rank: &Rank) -> Option<f64> {
    let lately = rank.ring.lately(BLOCKS);
    if lately.tokens > 0 && lately.wall_ns > 0 {
        return Some(lately.tokens as f64 / lately.wall_ns as f64 * 1e9);
    }
    let told = |metric: Metric| rank.facts.reading(metric.id);
    let (tokens, wall) = (told(training::TOKENS)?, told(training::STEP_WALL)?);
    (tokens > 0.0 && wall > 0.0).then(|| tokens / wall)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::Mesh;

    use super::*;
    use crate::runs::facts::Occasion;
    use crate::runs::fixture;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    /// A rank at this place of the mesh that is given a thousand tokens a second.
    fn rank(number: usize, mesh: &str) -> Rank {
        let told = [
            (training::STEPS, 100.0),
            (training::TOKENS, 100_000.0),
            (training::LAST_STEP, 100.0),
            (training::STEP_WALL, 100.0),
        ];
        let mut rank = fixture::rank(&format!("GPU-{number}"), &told);
        rank.facts.mesh = Mesh::parse(mesh);
        rank
    }

    fn run(meshes: &[&str]) -> Run {
        let ranks = (0..).zip(meshes.iter().enumerate());
        let ranks = ranks.map(|(number, (place, mesh))| (number, rank(place, mesh)));
        let mut run = Run {
            ranks: ranks.collect(),
            ..Run::default()
        };
        run.facts.started = Some(at(0));
        run
    }

    #[test]
    fn parts_of_a_sequence_are_tokens_of_their_own_and_tensor_parallel_ranks_share_theirs() {
        for (meshes, places) in [
            (
                [
                    "dp=0/2 cp=0/2",
                    "dp=0/2 cp=1/2",
                    "dp=1/2 cp=0/2",
                    "dp=1/2 cp=1/2",
                ],
                4,
            ),
            (
                [
                    "dp=0/2 tp=0/2",
                    "dp=0/2 tp=1/2",
                    "dp=1/2 tp=0/2",
                    "dp=1/2 tp=1/2",
                ],
                2,
            ),
            (["", "", "", ""], 4),
        ] {
            let run = run(&meshes);
            assert_eq!(run.data_places(), places, "{meshes:?}");
            let tokens = run.tokens_per_second();
            assert_eq!(tokens, Some(1_000.0 * places as f64), "{meshes:?}");
        }
    }

    #[test]
    fn ranks_that_have_ended_are_in_no_figure_of_now_while_others_go_on() {
        let mut run = run(&["", "", "", ""]);
        let figures = |run: &Run| (run.tokens_per_second(), run.gpu_count(), run.gone_gpu_ns());
        assert_eq!(figures(&run), (Some(4_000.0), 4, 0));
        let end = |run: &mut Run, number: u32, seconds: i64| {
            let rank = run.ranks.get_mut(&number).expect("a rank");
            rank.facts.end = Some(fixture::vanished(at(seconds)));
        };
        end(&mut run, 2, 60);
        end(&mut run, 3, 100);
        assert_eq!(figures(&run), (Some(2_000.0), 2, 160_000_000_000));
        // When it is over it is all that it was.
        run.facts.ended = Some(at(200));
        assert_eq!(figures(&run), (Some(4_000.0), 4, 0));
        run.facts.ended = None;
        end(&mut run, 0, 200);
        end(&mut run, 1, 200);
        assert_eq!(figures(&run), (Some(4_000.0), 4, 0));
    }

    #[test]
    fn what_a_process_counts_is_not_of_all_steps_where_it_went_on_from_others() {
        let counts = |change: fn(&mut Run)| {
            let mut run = run(&[""]);
            change(&mut run);
            run.counts_from_its_first_step(&run.ranks[&0])
        };
        assert!(counts(|_| ()));
        assert!(!counts(|run| {
            run.facts.restored = Some(Occasion {
                at: at(1),
                step: 600,
                rank: None,
            });
        }));
        assert!(!counts(|run| {
            let facts = &mut run.ranks.get_mut(&0).expect("a rank").facts;
            (facts.began, facts.began_last) = (Some(at(0)), Some(at(600)));
        }));
        assert!(!counts(|run| {
            let readings = &mut run.ranks.get_mut(&0).expect("a rank").facts.readings;
            let last = readings
                .iter_mut()
                .filter(|it| it.0 == training::LAST_STEP.id);
            last.for_each(|it| it.1 = 700.0);
        }));
    }
}
