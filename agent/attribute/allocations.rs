//! Which GPUs of this node Slurm gave to which jobs, as it says when it is asked: `squeue` and `scontrol show node`. So a
//! job that computes nothing yet, as after `salloc`, is known without a prolog.
//!
//! It is asked only while nothing else says who has a GPU: both commands make the controller look at everything. First
//! for jobs and then for the node: a job that begins between the two has a GPU and no name, and is not overlooked.
//!
//! Limits: [`EVERY`], [`SOONEST`], [`KEEP_FOR`], [`MAX_GPUS`], [`MAX_BRACKETS`], [`MAX_DIGITS`], and those of [`say`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng as _;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::AttributeConfig;
use super::slurm::{number, say};
use super::standing::{Source, Standing};
use super::task::Task;

/// How often it is asked, and up to a fifth later, so that a fleet does not ask at once.
const EVERY: Duration = Duration::from_secs(30);

/// How long after an answer it is asked at the soonest, where jobs come and go.
const SOONEST: Duration = Duration::from_secs(5);

/// For so long counts what it said last: two answers may be missed.
const KEEP_FOR: Duration = Duration::from_secs(90);

/// Most GPUs that a node may have: Slurm counts the parts of cards as well.
const MAX_GPUS: u32 = 128;

/// Most brackets in the name of a group of nodes: Slurm has up to five dimensions.
const MAX_BRACKETS: usize = 5;

/// Most digits of a number in it.
const MAX_DIGITS: usize = 20;

/// What a job's state says while it has what it was given. Older releases tell one word, newer ones several.
const HOLDING: [&str; 8] = [
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
];

/// What Slurm says of this node's GPUs, by its own numbers: their places in gres.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Given {
    /// How many there are.
    pub(super) total: usize,
    /// Those that jobs have.
    pub(super) used: BTreeSet<u32>,
    /// Which jobs have them, as far as it shows jobs.
    pub(super) of: BTreeMap<u32, BTreeSet<u64>>,
}

/// What is known of it; a task of its own asks.
#[derive(Debug)]
pub(super) struct Allocations {
    shared: Arc<Shared>,
    _task: Task,
}

#[derive(Debug)]
struct Shared {
    scontrol: PathBuf,
    squeue: PathBuf,
    /// The node's name in Slurm.
    node: String,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_wanted: bool,
    /// The jobs whose processes were seen last.
    jobs: BTreeSet<u64>,
    /// Whether they are others than when it was asked.
    is_changed: bool,
    given: Option<Arc<Given>>,
    standing: Standing,
}

/// What `scontrol show node --json` says, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    name: String,
    gres: Option<String>,
    gres_used: Option<String>,
}

/// What `squeue --json` says.
#[derive(Debug, Deserialize)]
struct Squeue {
    jobs: Vec<Job>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Job {
    job_id: Value,
    job_state: Value,
    nodes: Option<String>,
    /// For each of its nodes what it has there.
    gres_detail: Option<Vec<Option<String>>>,
}

/// A piece of a text such as `gpu:h100:2(IDX:0-1),shard:0`.
struct Piece {
    count: usize,
    /// Which ones, where that is said.
    indexes: Option<BTreeSet<u32>>,
}

impl Allocations {
    /// Begins to ask, where the config wants it, about this node; needs a runtime.
    pub(super) fn of(config: &AttributeConfig, node: &str) -> Option<Self> {
        if config.squeue_path.as_os_str().is_empty() {
            return None;
        }
        let short = node.split('.').next().unwrap_or_default();
        let name = match config.slurm_node.as_str() {
            "" => short,
            name => name,
        };
        Some(Self::start(
            &config.scontrol_path,
            &config.squeue_path,
            name,
        ))
    }

    /// Asks these programs about the node of this name; needs a runtime.
    fn start(scontrol: &Path, squeue: &Path, node: &str) -> Self {
        let shared = Arc::new(Shared {
            scontrol: scontrol.to_owned(),
            squeue: squeue.to_owned(),
            node: node.to_owned(),
            state: Mutex::default(),
            wake: Notify::new(),
        });
        Self {
            _task: Task::start(Arc::clone(&shared).keep()),
            shared,
        }
    }

    /// What Slurm said not too long ago, and how it is doing.
    pub(super) fn known(&self) -> (Option<Arc<Given>>, Standing) {
        self.shared.known()
    }

    /// Says whether it is of use, and of which jobs there are processes: when these change it is asked early.
    pub(super) fn want(&self, is_wanted: bool, jobs: BTreeSet<u64>) {
        self.shared.want(is_wanted, jobs);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> (Option<Arc<Given>>, Standing) {
        let state = self.lock();
        let is_fresh = state.standing.age().is_some_and(|it| it <= KEEP_FOR);
        let given = state.given.as_ref().filter(|_| is_fresh);
        (given.map(Arc::clone), state.standing.clone())
    }

    fn want(&self, is_wanted: bool, jobs: BTreeSet<u64>) {
        let mut state = self.lock();
        state.is_wanted = is_wanted;
        let is_changed = state.is_changed || state.jobs != jobs;
        state.is_changed = is_changed;
        state.jobs = jobs;
        if !is_wanted {
            state.standing.rests();
        }
        drop(state);
        self.wake.notify_one();
    }

    async fn keep(self: Arc<Self>) {
        loop {
            while !self.begins() {
                self.wake.notified().await;
            }
            let asked = self.ask().await;
            self.note(asked);
            tokio::time::sleep(SOONEST).await;
            let rest = EVERY.saturating_sub(SOONEST);
            let pause = rest + EVERY.mul_f64(rand::rng().random_range(0.0..0.2));
            // Either is a reason to ask again.
            let _ = tokio::time::timeout(pause, self.changed()).await;
        }
    }

    /// Whether it is to be asked: then what comes from here on is news.
    fn begins(&self) -> bool {
        let mut state = self.lock();
        let is_wanted = state.is_wanted;
        if is_wanted {
            state.is_changed = false;
        }
        is_wanted
    }

    async fn changed(&self) {
        while !self.is_changed() {
            self.wake.notified().await;
        }
    }

    fn is_changed(&self) -> bool {
        self.lock().is_changed
    }

    async fn ask(&self) -> Result<Option<Given>, String> {
        let node = self.node.as_str();
        let what = format!("node {node}");
        let key = "attribute.squeue_path";
        let arguments = ["--all", "-w", node, "--json"];
        let jobs = say(&self.squeue, key, &arguments, &what).await?;
        let key = "attribute.scontrol_path";
        let arguments = ["show", "node", node, "--json", "--all", "--details"];
        let of_node = say(&self.scontrol, key, &arguments, &what).await?;
        let failed =
            |program: &Path, why: String| format!("{} said of {what}: {why}", program.display());
        let of_node = gpus(&of_node, node).map_err(|why| failed(&self.scontrol, why))?;
        let of = jobs_of(&jobs, node).map_err(|why| failed(&self.squeue, why))?;
        Ok(of_node.map(|(total, used)| Given { total, used, of }))
    }

    fn note(&self, asked: Result<Option<Given>, String>) {
        let mut state = self.lock();
        match asked {
            Ok(given) => {
                state.given = given.map(Arc::new);
                state.standing.heard();
            }
            Err(error) => state.standing.failed(Source::Allocations, error),
        }
    }
}

impl Job {
    fn is_holding(&self) -> bool {
        let is = |it: &str| it.split('+').any(|it| HOLDING.contains(&it));
        match &self.job_state {
            Value::String(it) => is(it),
            Value::Array(all) => all.iter().filter_map(Value::as_str).any(is),
            _ => false,
        }
    }

    /// What it has on a node; none where that is none of its nodes, or it is not said.
    fn on(&self, node: &str) -> Option<&str> {
        let details = self.gres_detail.as_ref()?;
        let names = names(self.nodes.as_ref()?, details.len())?;
        if names.len() != details.len() {
            return None;
        }
        let place = names.iter().position(|it| it == node)?;
        details[place].as_deref()
    }
}

impl Piece {
    fn of(text: &str) -> Option<Self> {
        let (head, told) = text.split_once('(').unwrap_or((text, ""));
        let count = head.rsplit(':').next()?.parse().ok()?;
        let told = told.strip_prefix("IDX:").map(|it| it.trim_end_matches(')'));
        let indexes = match told {
            Some(told) => Some(indexes(told)?),
            None => None,
        };
        Some(Self { count, indexes })
    }
}

/// How many GPUs the node has, and which of them jobs have; none where it does not say which, or jobs have parts of some.
fn gpus(answer: &[u8], node: &str) -> Result<Option<(usize, BTreeSet<u32>)>, String> {
    let answer: Nodes = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let found = answer.nodes.into_iter().find(|it| it.name == node);
    let found = found.ok_or("no such node; set attribute.slurm_node to its name in slurm.conf")?;
    let total = total(found.gres.as_deref().unwrap_or_default());
    let used = used(found.gres_used.as_deref().unwrap_or_default());
    Ok(used.map(|used| (total, used)))
}

/// How many GPUs a text such as `tmp:7T,gpu:h100:4(S:0-1)` names.
fn total(text: &str) -> usize {
    let all = pieces(text, '(', ')').filter(|it| kind(it) == "gpu");
    let counts = all.filter_map(Piece::of).map(|it| it.count);
    counts.fold(0, usize::saturating_add)
}

/// The GPUs that a text such as `gpu:h100:2(IDX:0-1)` names; none where it does not say which they are.
fn used(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    let mut is_said = false;
    for text in pieces(text, '(', ')') {
        let kind = kind(text);
        // A GPU of which jobs have parts counts as one that nobody has.
        if !["gpu", "shard", "mps"].contains(&kind) {
            continue;
        }
        let piece = Piece::of(text)?;
        match piece.indexes {
            Some(indexes) if kind == "gpu" && indexes.len() == piece.count => all.extend(indexes),
            _ if piece.count == 0 => {}
            _ => return None,
        }
        is_said |= kind == "gpu";
    }
    is_said.then_some(all)
}

/// The jobs that have GPUs of the node, by the GPUs' numbers. Older releases tell of all jobs, whatever they are asked.
fn jobs_of(answer: &[u8], node: &str) -> Result<BTreeMap<u32, BTreeSet<u64>>, String> {
    let answer: Squeue = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let mut of: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for job in answer.jobs.iter().filter(|it| it.is_holding()) {
        let Some((id, text)) = number(&job.job_id).zip(job.on(node)) else {
            continue;
        };
        let gpus = pieces(text, '(', ')').filter(|it| kind(it) == "gpu");
        let indexes = gpus.filter_map(|it| Piece::of(it)?.indexes).flatten();
        for index in indexes {
            of.entry(index).or_default().insert(id);
        }
    }
    Ok(of)
}

fn kind(piece: &str) -> &str {
    piece.split(':').next().unwrap_or_default()
}

/// The parts of a list that commas part, but for those within these.
fn pieces(text: &str, open: char, close: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |it: char| {
        if it == open {
            depth += 1;
        } else if it == close {
            depth = depth.saturating_sub(1);
        }
        it == ',' && depth == 0
    })
}

/// The numbers of a text such as `0-1,3`, or `N/A` for none.
fn indexes(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    if text == "N/A" {
        return Some(all);
    }
    for range in text.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if from > to || to >= MAX_GPUS {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

/// The nodes that a text such as `gpu[01-03,07],login` names, in its order; none where they are more than `most`.
fn names(text: &str, most: usize) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for piece in pieces(text, '[', ']') {
        if piece.matches('[').count() > MAX_BRACKETS {
            return None;
        }
        expand(String::new(), piece, most, &mut all)?;
    }
    Some(all)
}

/// Every range has a number, so each turn adds a name or is the last.
fn expand(before: String, rest: &str, most: usize, all: &mut Vec<String>) -> Option<()> {
    let Some((start, rest)) = rest.split_once('[') else {
        all.push(before + rest);
        return (all.len() <= most).then_some(());
    };
    let (ranges, rest) = rest.split_once(']')?;
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let width = from.len();
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if from > to || width > MAX_DIGITS {
            return None;
        }
        for number in from..=to {
            let before = format!("{before}{start}{number:0width$}");
            expand(before, rest, most, all)?;
        }
    }
    Some(())
}

/// Whether these bytes are an answer with a node `n1` that says which of its GPUs are used, or with a job that has some
/// of that node.
pub fn understands(bytes: &[u8]) -> bool {
    let a_node = gpus(bytes, "n1").is_ok_and(|it| it.is_some());
    a_node || jobs_of(bytes, "n1").is_ok_and(|it| !it.is_empty())
}

#[cfg(test)]
#[path = "allocations_tests.rs"]
mod tests;
