//! A made job of training that is well, with what such jobs do: loads that differ, cards that differ, garbage
//! collection, data that is late, checkpoints, evaluations, a day's tide, and restarts from the last checkpoint.

use std::f64::consts::TAU;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::loss;
use crate::quality::{NODE_RANKS, normal};
use crate::straggler::{Reading, Seat};

const DAY_S: f64 = 86_400.0;
/// What all ranks are slower at the day's worst hour than in its middle.
const TIDE: f64 = 0.005;
/// Cards of one model differ by this (σ) in what they take for the same, and by four times that at most.
const CARDS: f64 = 0.005;
/// The share of a step that is communication after the slowest rank.
const COMMUNICATION: f64 = 0.1;
/// Chances of a rank in a step to collect garbage, and to wait for its data, and up to how long, seconds.
const GARBAGE: (f64, f64) = (1.0 / 300.0, 2.0);
const LATE_DATA: (f64, f64) = (1.0 / 20_000.0, 20.0);
/// Chance of a node in a step to be slowed down by its storage, for one to three steps by up to half.
const STORAGE: f64 = 1.0 / 5_000.0;
/// Steps from one checkpoint to the next, and from one evaluation to the next.
const CHECKPOINT_STEPS: u64 = 100;
const EVALUATION_STEPS: u64 = 1_000;
/// GPU time between two restarts, and the steps after one in which ranks compile, each for its time.
const RESTART_GPU_S: f64 = 50.0 * DAY_S;
const COLD_STEPS: u32 = 5;

/// Where the ranks of a job are: tensor-parallel groups of stages of replicas.
#[derive(Clone, Copy)]
pub(super) struct Mesh {
    pub(super) tensor: u32,
    pub(super) stages: u32,
    pub(super) replicas: u32,
}

impl Mesh {
    pub(super) const fn ranks(self) -> u32 {
        self.tensor * self.stages * self.replicas
    }

    const fn replica(self, rank: u32) -> u32 {
        rank / (self.tensor * self.stages)
    }

    const fn seat(self, rank: u32) -> Seat {
        Seat {
            stage: Some(rank / self.tensor % self.stages),
            column: Some(self.replica(rank) * self.tensor + rank % self.tensor),
            host: Some(rank / NODE_RANKS),
            replica: Some(self.replica(rank)),
            context: None,
        }
    }
}

/// How much ranks differ from step to step: each for itself, and the replicas by what they are given.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) own: f64,
    pub(super) shared: f64,
}

/// A step that a job made.
pub(super) struct Made {
    /// Its number, which goes back in a restart.
    pub(super) step: u64,
    pub(super) is_restarted: bool,
    pub(super) readings: Vec<Reading>,
    /// When it began, had computed, and was over with what it saved or evaluated, seconds.
    pub(super) began_s: f64,
    pub(super) computed_s: f64,
    pub(super) ended_s: f64,
    pub(super) evaluates: bool,
    /// Whether the hooks say that it saves or evaluates.
    pub(super) is_told: bool,
    pub(super) learnt: loss::Step,
}

impl Made {
    pub(super) fn wall_ns(&self) -> u64 {
        ((self.ended_s - self.began_s) * 1e9) as u64
    }

    pub(super) fn pauses(&self) -> bool {
        self.ended_s > self.computed_s
    }
}

/// A job that goes on without end.
pub(super) struct Job {
    random: ChaCha8Rng,
    mesh: Mesh,
    load: Load,
    /// What a step takes a usual rank, seconds.
    step_s: f64,
    cards: Vec<f64>,
    /// Steps that a node is still slow, and by what part.
    storage: Vec<(u32, f64)>,
    tells: bool,
    tide: f64,
    at_s: f64,
    step: u64,
    saved: u64,
    since_start: u32,
    /// Steps that the loss still stands above its curve.
    spike: u32,
}

impl Job {
    pub(super) fn new(seed: u64, mesh: Mesh, load: Load) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let card = |_| 1.0 + (CARDS * normal(&mut random)).clamp(-4.0 * CARDS, 4.0 * CARDS);
        let cards = (0..mesh.ranks()).map(card).collect();
        Self {
            cards,
            storage: vec![(0, 0.0); mesh.ranks().div_ceil(NODE_RANKS) as usize],
            step_s: random.random_range(10.0..60.0),
            tells: random.random_bool(0.5),
            tide: random.random_range(0.0..TAU),
            mesh,
            load,
            random,
            at_s: 1_000.0,
            step: 1,
            saved: 1,
            since_start: 0,
            spike: 0,
        }
    }

    /// Whether it restarts before this step; then it is away for some minutes.
    fn restarts(&mut self) -> bool {
        let gpu_s = f64::from(self.mesh.ranks()) * self.step_s;
        let restarts = self.random.random_bool((gpu_s / RESTART_GPU_S).min(1.0));
        if restarts {
            self.at_s += self.random.random_range(180.0..1_200.0);
            self.step = self.saved;
            self.since_start = 0;
        }
        restarts
    }

    /// What each rank computes for, or waits for its own data.
    fn readings(&mut self) -> Vec<Reading> {
        let random = &mut self.random;
        let shared = self.load.shared;
        let loads: Vec<f64> = (0..self.mesh.replicas)
            .map(|_| shared * normal(random))
            .collect();
        for (left, part) in &mut self.storage {
            *left = left.saturating_sub(1);
            if *left == 0 && random.random_bool(STORAGE) {
                (*left, *part) = (random.random_range(1..=3), 0.5 * random.random::<f64>());
            }
        }
        let tide = 1.0 + TIDE * (self.at_s / DAY_S * TAU + self.tide).sin();
        let is_cold = self.since_start < COLD_STEPS;
        (0_u32..)
            .zip(&self.cards)
            .map(|(rank, card)| {
                let load = loads[self.mesh.replica(rank) as usize];
                let x = load + self.load.own * normal(random);
                let storage = match self.storage[(rank / NODE_RANKS) as usize] {
                    (0, _) => 0.0,
                    (_, part) => part,
                };
                let cold = if is_cold { random.random::<f64>() } else { 0.0 };
                let chance: f64 = random.random();
                let late_s = match chance {
                    _ if chance < LATE_DATA.0 => LATE_DATA.1 * random.random::<f64>(),
                    _ if chance < GARBAGE.0 => GARBAGE.1 * random.random::<f64>(),
                    _ => 0.0,
                };
                let busy_s = self.step_s * card * tide * x.exp() * (1.0 + storage) * (1.0 + cold);
                Reading {
                    rank,
                    seat: self.mesh.seat(rank),
                    busy_ns: ((busy_s + late_s) * 1e9) as u64,
                }
            })
            .collect()
    }

    /// What it learnt: a curve that falls, with noise of 2 %, and now and then some steps above it.
    fn learnt(&mut self) -> loss::Step {
        let random = &mut self.random;
        if self.spike == 0 && random.random_bool(0.001) {
            self.spike = random.random_range(1..=10);
        }
        let spike = if self.spike > 0 { 1.5 } else { 1.0 };
        self.spike = self.spike.saturating_sub(1);
        let falls = 2.0 + 9.0 / (1.0 + self.step as f64 / 300.0);
        loss::Step {
            step: self.step,
            loss: Some(falls * (1.0 + 0.02 * normal(random)) * spike),
            gradient_norm: Some(0.5 + 0.2 * random.random::<f64>()),
            is_skipped: random.random_bool(0.01),
            ..loss::Step::default()
        }
    }
}

impl Iterator for Job {
    type Item = Made;

    fn next(&mut self) -> Option<Made> {
        let is_restarted = self.restarts();
        let began_s = self.at_s;
        let mut readings = self.readings();
        let saves = self.step.is_multiple_of(CHECKPOINT_STEPS);
        let evaluates = self.step.is_multiple_of(EVALUATION_STEPS);
        if saves && let Some(first) = readings.first_mut() {
            // It puts together what is saved.
            first.busy_ns += first.busy_ns / 10;
        }
        let slowest_ns = readings.iter().map(|it| it.busy_ns).max().unwrap_or(0);
        let computed_s = began_s + slowest_ns as f64 / 1e9 * (1.0 + COMMUNICATION);
        let pause_s = match (evaluates, saves) {
            (true, _) => self.random.random_range(180.0..600.0),
            (_, true) => self.random.random_range(20.0..100.0),
            _ => 0.0,
        };
        let made = Made {
            step: self.step,
            is_restarted,
            readings,
            began_s,
            computed_s,
            ended_s: computed_s + pause_s,
            evaluates,
            is_told: self.tells,
            learnt: self.learnt(),
        };
        self.at_s = made.ended_s;
        self.step += 1;
        self.since_start += 1;
        if saves {
            self.saved = self.step;
        }
        Some(made)
    }
}
