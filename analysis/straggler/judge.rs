//! The verdict over what is known: who is blamed, who no longer, and what no rank is to blame for.
//!
//! Limits: σ is the peers' spread about their median, and with fewer than [`FEW`] peers about each
//! one's own, because one of four moves the spread of all.

use super::{
    Confidence, FORGOTTEN_STEPS, IN_A_ROW, IN_A_ROW_Z, LEAST_STEPS, LONGEST, Moving, Parted, Price,
    Rank, Run, SCALE, SIGMA_FLOOR, SLOW_SHARE, STAGE_RATIO, Silent, Source, StageImbalance,
    Straggler, Thresholds, WINDOWS,
};
use crate::robust::{MAD_EFFICIENCY, MEDIAN_ERROR, median, normal_of, sigma_about};
use std::collections::{BTreeMap, BTreeSet};

mod context;
mod parted;

/// Fewer peers than this are few.
const FEW: usize = 8;
/// Values beyond this do not decide how much a column shares.
const SHARED_CLIP: f64 = 0.3;
/// A column shares at most this times what the other stages show.
const MAX_SHARED: f64 = 1.5;
/// Without stages, at most 1 of this many ranks is blamed at once.
const UNKNOWN_MESH_PART: usize = 16;
/// Of more than 1 of this many peers the confidence is low.
const MANY_PART: usize = 4;
/// A slowest rank that is this much slower than its peers in half the steps is worth a word.
const MOVING_RATIO: f64 = 1.1;

/// What the detector says now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict {
    /// Ranks to blame.
    pub stragglers: Vec<Straggler>,
    /// Stages with more work than the others.
    pub stages: Vec<StageImbalance>,
    /// Stages whose ranks have unequal work.
    pub parted: Vec<Parted>,
    /// The slowest rank keeps changing.
    pub moving: Option<Moving>,
    /// Why nobody is judged or blamed.
    pub silent: Option<Silent>,
}

/// A stretch of the last steps that is looked at.
struct Window {
    steps: usize,
    /// The part of them that has to be slow.
    slow: f64,
    /// By how much more than is set z has to be.
    more_z: f64,
}

/// What a window says of a rank.
#[derive(Clone, Copy)]
struct Evidence {
    window: usize,
    z: f64,
    slowness: f64,
}

/// The last steps of a rank.
#[derive(Clone, Copy)]
struct Last<'a> {
    rank: u32,
    /// Its x, as it is kept.
    own: &'a [i16],
    /// What the other stages of its column show.
    column: &'a [i16],
}

impl Run {
    /// Judges what is known by the documented thresholds, and remembers who is blamed.
    pub fn judge(&mut self) -> Verdict {
        self.judge_by(&Thresholds::default())
    }

    /// The same by these thresholds.
    pub fn judge_by(&mut self, by: &Thresholds) -> Verdict {
        let mut verdict = Verdict::default();
        let last = self.last_step.unwrap_or(0);
        self.ranks
            .retain(|_, rank| last.saturating_sub(rank.last_step) <= FORGOTTEN_STEPS);
        let mut stages: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
        for (number, rank) in self.current() {
            if rank.slow.len() >= LEAST_STEPS {
                stages.entry(rank.seat.stage).or_default().push(*number);
            }
        }
        stages.retain(|_, peers| peers.len() > 1);
        if self.incomplete.count_ones() * 2 > u64::BITS.min(self.seen) {
            verdict.silent = Some(Silent::RanksMissing);
        } else if stages.is_empty() {
            let why = self.why_no_peers();
            // Who is alone on its stage has no peers; how much work the stage has is known all the same.
            if why == Silent::NoPeers {
                verdict.stages = self.imbalance();
            }
            verdict.silent = Some(why);
        } else {
            for (stage, peers) in &stages {
                self.judge_stage((*stage, peers), by, &mut verdict);
            }
            verdict.stages = self.imbalance();
            verdict.moving = self.moving(&verdict);
        }
        verdict
    }

    fn why_no_peers(&self) -> Silent {
        let is_old = |rank: &Rank| rank.slow.len() >= LEAST_STEPS;
        match self.current().any(|(_, rank)| is_old(rank)) {
            true => Silent::NoPeers,
            false => Silent::Starting,
        }
    }

    fn judge_stage(
        &mut self,
        (stage, peers): (Option<u32>, &[u32]),
        by: &Thresholds,
        verdict: &mut Verdict,
    ) {
        let mut evidence = self.evidence(peers, by);
        // Without stages two parts are rather two stages.
        if let Some((stage, part)) = stage.zip(stage.and_then(|_| self.slow_part(peers, by))) {
            match part.unnamed {
                None => evidence.extend(part.ranks),
                Some(unnamed) if evidence.is_empty() => verdict.parted.push(Parted {
                    stage,
                    slow: part.ranks.len(),
                    of: peers.len(),
                    ratio: part.ratio,
                    unnamed,
                }),
                Some(_) => {}
            }
        }
        self.excuse_split((stage, peers), &mut evidence, verdict);
        let most = match stage {
            Some(_) => peers.len(),
            None => (peers.len() / UNKNOWN_MESH_PART).max(1),
        };
        if evidence.len() > most {
            verdict.silent = Some(Silent::MeshUnknown);
            for number in peers {
                self.clear(*number);
            }
            return;
        }
        for number in peers {
            match evidence.get(number) {
                Some(evidence) => self.blame(*number, evidence.window, by),
                None if self.is_over(*number, by) => self.clear(*number),
                None => {}
            }
        }
        let blamed = |number: &&u32| self.ranks[number].blamed_since.is_some();
        let many = peers.iter().filter(blamed).count() * MANY_PART > peers.len();
        let confidence = self.confidence(stage, peers.len(), many);
        let machines = match peers.iter().any(|it| blamed(&it)) {
            true => self.slow_machines(),
            false => BTreeSet::new(),
        };
        let is_of_slow = |number: &u32| {
            let host = self.ranks[number].seat.host;
            host.is_some_and(|it| machines.contains(&it))
        };
        for number in peers.iter().filter(blamed) {
            let now = evidence.get(number).copied();
            let now = now.unwrap_or_else(|| self.lately(*number));
            let rank = &self.ranks[number];
            verdict.stragglers.push(Straggler {
                rank: *number,
                since_step: rank.blamed_since.unwrap_or(rank.last_step),
                ratio: now.slowness.exp(),
                z: now.z,
                window: now.window,
                confidence: match self.is_alone_in_part(peers, *number) {
                    true => Confidence::Low,
                    false => confidence,
                },
                price: self.price_of(*number, many || is_of_slow(number)),
            });
        }
    }

    /// Ranks whose evidence is enough, by the window with the highest z.
    fn evidence(&self, peers: &[u32], by: &Thresholds) -> BTreeMap<u32, Evidence> {
        let mut found: BTreeMap<u32, Evidence> = BTreeMap::new();
        for window in self.windows() {
            let by = &Thresholds {
                z: by.z + window.more_z,
                ..*by
            };
            let last = peers.iter().filter_map(|it| self.last(*it, window.steps));
            let peers: Vec<Last<'_>> = last.collect();
            let shared = shared(&peers);
            let looks = [Some(0.0), (shared > 0.0).then_some(shared)];
            for part in looks.into_iter().flatten() {
                // Counting is cheap, and of nearly all ranks it says enough.
                let is_slow = |it: &&Last<'_>| is_often_slow(it.x(part), by, window.slow);
                let slow: Vec<&Last<'_>> = peers.iter().filter(is_slow).collect();
                if slow.is_empty() {
                    continue;
                }
                let sigma = sigma(&peers, part, peers.len() < FEW);
                let known = window.steps * self.loads(&peers).saturating_sub(1);
                for it in slow {
                    if let Some(now) = it.evidence((part, sigma, known), by)
                        && found.get(&it.rank).is_none_or(|before| before.z < now.z)
                    {
                        found.insert(it.rank, now);
                    }
                }
            }
        }
        found
    }

    /// What is looked at: where a tick stands for a step some ticks on end too.
    fn windows(&self) -> impl Iterator<Item = Window> {
        let in_a_row = (self.source != Source::Hooks).then_some(Window {
            steps: IN_A_ROW,
            slow: 1.0,
            more_z: IN_A_ROW_Z,
        });
        let usual = WINDOWS.map(|steps| Window {
            steps,
            slow: SLOW_SHARE,
            more_z: 0.0,
        });
        in_a_row.into_iter().chain(usual)
    }

    /// How many of these peers have a load of their own: replicas, where there are several and all are known.
    fn loads(&self, peers: &[Last<'_>]) -> usize {
        let replicas: Option<BTreeSet<u32>> = peers
            .iter()
            .map(|it| self.ranks[&it.rank].seat.replica)
            .collect();
        let replicas = replicas.map(|it| it.len()).filter(|it| *it > 1);
        replicas.unwrap_or(peers.len())
    }

    /// The last `window` steps of a rank that has as many.
    fn last(&self, number: u32, window: usize) -> Option<Last<'_>> {
        let rank = &self.ranks[&number];
        let from = rank.slow.len().checked_sub(window)?;
        Some(Last {
            rank: number,
            own: &rank.slow[from..],
            column: &rank.column[from..],
        })
    }

    fn lately(&self, number: u32) -> Evidence {
        let window = LEAST_STEPS;
        let last = self.last(number, window);
        Evidence {
            window,
            z: 0.0,
            slowness: last.map_or(0.0, |it| it.slowness(0.0)),
        }
    }

    /// Whether the last steps of a rank that is blamed are as fast as its peers'.
    fn is_over(&self, number: u32, by: &Thresholds) -> bool {
        let is_fast = |window: &usize| {
            let last = self.last(number, *window);
            last.is_none_or(|it| it.slowness(0.0) < by.clear())
        };
        self.ranks[&number].blamed_since.is_some() && WINDOWS[..2].iter().all(is_fast)
    }

    fn clear(&mut self, number: u32) {
        if let Some(rank) = self.ranks.get_mut(&number) {
            rank.blamed_since = None;
        }
    }

    fn blame(&mut self, number: u32, window: usize, by: &Thresholds) {
        let Some(rank) = self
            .ranks
            .get_mut(&number)
            .filter(|it| it.blamed_since.is_none())
        else {
            return;
        };
        let slow = rank.slow.iter().rev().take(window).rev();
        let first = slow
            .clone()
            .position(|x| f64::from(*x) / SCALE > by.slow_step());
        let steps = slow.len() - first.unwrap_or(0);
        let from = self.recent.len().saturating_sub(steps);
        let first = self.recent.get(from);
        rank.blamed_since = Some(first.map_or(rank.last_step, |it| it.step));
    }

    fn confidence(&self, stage: Option<u32>, peers: usize, many: bool) -> Confidence {
        let certain = self.source == Source::Hooks && stage.is_some();
        match (self.source, stage) {
            (Source::Telemetry, _) | (Source::Collectives, None) => Confidence::Low,
            _ if peers < 3 || many => Confidence::Low,
            _ if certain => Confidence::High,
            _ => Confidence::Medium,
        }
    }

    /// The machines that are slow as such: half of the ranks that are there are blamed, and two at least.
    fn slow_machines(&self) -> BTreeSet<u32> {
        let mut machines: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for (_, rank) in self.current() {
            if let Some(host) = rank.seat.host {
                let (slow, all) = machines.entry(host).or_default();
                *slow += usize::from(rank.blamed_since.is_some());
                *all += 1;
            }
        }
        let are_slow = |slow: usize, all: usize| slow > 1 && slow * 2 >= all;
        machines.retain(|_, (slow, all)| are_slow(*slow, *all));
        machines.into_keys().collect()
    }

    /// What a rank costs; one of many that are slow, or of a machine that is, costs what those of its machine do together,
    /// because without it alone the others would wait as long.
    fn price_of(&self, number: u32, together: bool) -> Option<Price> {
        let host = self.ranks[&number].seat.host.filter(|_| together);
        let is_beside = |longest: u32| {
            let longest = self.ranks.get(&longest);
            let longest = longest.filter(|it| it.blamed_since.is_some());
            host.is_some() && longest.is_some_and(|it| it.seat.host == host)
        };
        let lately = &self.recent[self.recent.len().saturating_sub(LEAST_STEPS)..];
        let is_priced = self.source != Source::Telemetry && lately.iter().all(|it| it.wall_ns > 0);
        let mut walls: Vec<f64> = lately.iter().map(|it| it.wall_ns as f64).collect();
        let excess = |it: &super::Recent| {
            if it.longest == number || is_beside(it.longest) {
                it.excess_ns
            } else {
                0
            }
        };
        let mut without: Vec<f64> = lately
            .iter()
            .map(|it| (it.wall_ns - excess(it).min(it.wall_ns)) as f64)
            .collect();
        is_priced.then_some(Price {
            step_ns: median(&mut walls)? as u64,
            without_ns: median(&mut without)? as u64,
        })
    }

    fn imbalance(&self) -> Vec<StageImbalance> {
        let busy =
            |times: &Vec<u64>| median(&mut times.iter().map(|it| *it as f64).collect::<Vec<_>>());
        let full = self
            .stages
            .iter()
            .filter(|(_, times)| times.len() == LEAST_STEPS);
        let stages: Vec<(u32, f64)> = full
            .filter_map(|(stage, times)| Some((*stage, busy(times)?)))
            .collect();
        let ratio = |(stage, own): &(u32, f64)| {
            let others = stages.iter().filter(|(other, _)| other != stage);
            let others = median(&mut others.map(|(_, busy)| *busy).collect::<Vec<_>>())?;
            let ratio = own / others;
            let stage = *stage;
            (ratio >= STAGE_RATIO).then_some(StageImbalance { stage, ratio })
        };
        stages.iter().filter_map(ratio).collect()
    }

    fn moving(&self, verdict: &Verdict) -> Option<Moving> {
        let mut x: Vec<f64> = self
            .recent
            .iter()
            .map(|it| f64::from(it.x) / SCALE)
            .collect();
        let ratio = median(&mut x)?.exp();
        let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
        for step in &self.recent {
            *turns.entry(step.slowest).or_default() += 1;
        }
        let is_one = turns.values().any(|turns| turns * 2 > self.recent.len());
        let is_full = self.recent.len() >= LONGEST / 2;
        let nobody = verdict.stragglers.is_empty() && verdict.silent.is_none();
        let ranks = turns.len();
        (nobody && is_full && !is_one && ratio >= MOVING_RATIO).then_some(Moving { ratio, ranks })
    }
}

impl Last<'_> {
    /// Its x, less this part of its column's.
    fn x(&self, part: f64) -> impl Iterator<Item = f64> {
        let each = std::iter::zip(self.own, self.column);
        each.map(move |(own, column)| value(*own) - part * value(*column))
    }

    /// The median of that; 0 of none.
    fn slowness(&self, part: f64) -> f64 {
        median(&mut self.x(part).collect::<Vec<_>>()).unwrap_or(0.0)
    }

    /// The median of what the other stages of its column show; 0 of none.
    fn of_column(&self) -> f64 {
        let each = self.column.iter().map(|it| value(*it));
        median(&mut each.collect::<Vec<_>>()).unwrap_or(0.0)
    }

    /// What it says, if it is enough to blame the rank; σ is that of `known` values of their own.
    fn evidence(
        &self,
        (part, sigma, known): (f64, f64, usize),
        by: &Thresholds,
    ) -> Option<Evidence> {
        let (window, slowness) = (self.own.len(), self.slowness(part));
        let t = slowness / (MEDIAN_ERROR * sigma / (window as f64).sqrt());
        let z = normal_of(t, MAD_EFFICIENCY * known as f64);
        let is_enough = z >= by.z && slowness >= by.ratio.ln();
        // What would clear it blames nobody.
        (is_enough && self.slowness(0.0) >= by.clear()).then_some(Evidence {
            window,
            z,
            slowness,
        })
    }
}

/// What is kept of an x.
fn value(kept: i16) -> f64 {
    f64::from(kept) / SCALE
}

/// How much of what a column's other stages show is in a rank too, by least squares.
fn shared(peers: &[Last<'_>]) -> f64 {
    let clip = |kept: &i16| value(*kept).clamp(-SHARED_CLIP, SHARED_CLIP);
    let pairs = peers
        .iter()
        .flat_map(|it| std::iter::zip(it.own, it.column));
    let (with, square) = pairs.fold((0.0, 0.0), |(with, square), (x, y)| {
        (with + clip(x) * clip(y), square + clip(y) * clip(y))
    });
    if square > 0.0 {
        (with / square).clamp(0.0, MAX_SHARED)
    } else {
        0.0
    }
}

/// The peers' spread: about their median, or of each about its own.
fn sigma(peers: &[Last<'_>], part: f64, is_own: bool) -> f64 {
    let mut values: Vec<f64> = Vec::new();
    for it in peers {
        let centre = if is_own { it.slowness(part) } else { 0.0 };
        values.extend(it.x(part).map(|x| x - centre));
    }
    let centre = median(&mut values).unwrap_or(0.0);
    sigma_about(&mut values, centre)
        .unwrap_or(0.0)
        .max(SIGMA_FLOOR)
}

/// Whether this part of a rank's steps is slow: it may be blamed.
fn is_often_slow(x: impl Iterator<Item = f64>, by: &Thresholds, part: f64) -> bool {
    let slow_step = by.slow_step();
    let (steps, slow) = x.fold((0_u32, 0_u32), |(steps, slow), x| {
        (steps + 1, slow + u32::from(x > slow_step))
    });
    f64::from(slow) >= part * f64::from(steps)
}
