//! Asks Slurm every half minute: `sinfo -a -N --json` for nodes, `squeue -a --json` for jobs that wait or run; or reads
//! the files sinfo.json and squeue.json in a folder, where the server may not run Slurm's commands and a
//! cron job writes what they say.
//!
//! Jobs that ask for no GPU are forgotten as they are read. What a running job holds is what its nodes say
//! is used.
//!
//! Limits: those of `ask` and `partitions`; what is kept of it is `known`'s to bound.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_analysis::inventory::{Claim, Node, Ready, Reason, cut};
use gpufleet_telemetry::holder;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::known::{Bound, Pod, Pods};
use super::now;
use crate::App;

mod ask;

mod partitions;

use ask::ask;
use partitions::{Closed, Shut, partitions};

/// How often it is asked: the controller is busy with other things.
const EVERY: Duration = Duration::from_secs(30);

/// States in which a node can run nothing.
const DOWN: [&str; 8] = [
    "DOWN",
    "FAIL",
    "ERROR",
    "UNKNOWN",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWERING_UP",
];

/// States in which it takes nothing new.
const CLOSED: [&str; 3] = ["DRAIN", "MAINTENANCE", "FUTURE"];

/// Reasons for which the scheduler does not look for a place.
const HELD_BACK: [&str; 2] = ["JobHeldAdmin", "Reservation"];

/// States in which a task of an array counts against its limit. One whose nodes boot runs, which older releases do not
/// tell beside it.
const RUNS: [&str; 3] = ["RUNNING", "CONFIGURING", "SUSPENDED"];

/// The reason of an array of which as many tasks run as its owner lets run at once.
const ARRAY_IS_FULL: &str = "JobArrayTaskLimit";

/// Reasons that whoever submitted the job gave: more GPUs would not let it begin.
const BY_OWNER: [&str; 5] = [
    "Dependency",
    "DependencyNeverSatisfied",
    "BeginTime",
    "JobHeldUser",
    ARRAY_IS_FULL,
];

/// What `sinfo --json` says; `nodes` is how releases before 23.02, and `scontrol show nodes --json`, do.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sinfo {
    sinfo: Vec<Entry>,
    nodes: Vec<OneNode>,
}

/// Nodes of a partition that are alike.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    node: States,
    nodes: Names,
    gres: Gres,
    partition: Partition,
    reason: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct States {
    state: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Names {
    nodes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Gres {
    total: String,
    used: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Partition {
    name: String,
    /// Where newer releases tell the state.
    partition: States,
    /// Where older ones do.
    state: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OneNode {
    name: String,
    state: Value,
    gres: String,
    gres_used: String,
    partitions: Vec<String>,
    reason: Value,
}

#[derive(Debug, Deserialize)]
struct Squeue {
    jobs: Vec<Job>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Job {
    job_id: Value,
    /// The array that it is of; 0 or not set where it is of none. A task that runs is a record of its own.
    array_job_id: Value,
    /// Which tasks of an array wait, `0-9:3,12%4`; they are one record.
    array_task_string: String,
    job_state: Value,
    state_reason: String,
    account: String,
    partition: String,
    tres_req_str: String,
    submit_time: Value,
    node_count: Value,
}

/// What sinfo says.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// Nodes with GPUs, and how many of each are in use; none where it does not say.
    nodes: Vec<(Node, Option<u32>)>,
    /// Partitions that are not up.
    closed: Closed,
}

/// How many tasks of each array run.
type Running = BTreeMap<i64, u32>;

/// Jobs that wait, by their number.
type Jobs = Vec<(String, Claim)>;

/// Asks for ever.
pub(super) async fn run(app: &App) {
    let folder = &app.config.inventory.slurm_folder;
    loop {
        let at = app.clock.now();
        let told = ask(folder, ("sinfo", &["-a", "-N", "--json"]), at).await;
        let told = told.and_then(|it| nodes(&it).map_err(|why| format!("sinfo: {why}")));
        // Of arrays it counts how many of their tasks run.
        let jobs = [
            "-a",
            "--json",
            "--states=PENDING,RUNNING,CONFIGURING,SUSPENDED",
        ];
        let jobs = ask(folder, ("squeue", &jobs), at).await;
        let nothing = Closed::default();
        let closed = told.as_ref().map_or(&nothing, |it| &it.closed);
        let jobs = jobs.and_then(|it| claims(&it, closed).map_err(|why| format!("squeue: {why}")));
        take(app, told, jobs);
        tokio::time::sleep(EVERY).await;
    }
}

fn take(app: &App, told: Result<Told, String>, jobs: Result<Jobs, String>) {
    let now = now(app);
    let mut known = app.inventory.known();
    let told = match told {
        Ok(told) => told.nodes,
        Err(why) => {
            if known.nodes.failed(why.clone(), None) {
                tracing::warn!(error = why, "the cluster's nodes are not seen");
            }
            // What is free is told by nodes as well.
            known.claims.failed(why, None);
            return;
        }
    };
    let mut pods = Pods::default();
    for (node, used) in &told {
        let node = node.name.as_str();
        let uid = format!("on {node}");
        let Some(gpus) = *used else {
            pods.is_not_told(&uid);
            continue;
        };
        let bound = Bound {
            node: node.into(),
            gpus,
        };
        pods.put(&uid, Pod::Bound(bound));
    }
    known.all_nodes(told.into_iter().map(|it| it.0).collect(), now);
    match jobs {
        Ok(jobs) => {
            for (id, claim) in jobs {
                pods.put(&id, Pod::Waits(Box::new(claim)));
            }
            known.all_pods(pods, now);
        }
        Err(why) => {
            if known.claims.failed(why.clone(), None) {
                tracing::warn!(error = why, "who waits for GPUs is not seen");
            }
        }
    }
}

/// Nodes with GPUs; one that is in several partitions is there once, and named after the first. One of which no
/// partition is up takes nothing new.
fn nodes(answer: &[u8]) -> Result<Told, String> {
    let said: Sinfo = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    if said.sinfo.is_empty() && said.nodes.is_empty() {
        return Err("it names no node at all".to_owned());
    }
    let mut found: BTreeMap<String, (Node, Option<u32>)> = BTreeMap::new();
    let mut closed = Closed::default();
    for entry in &said.sinfo {
        let of = &entry.partition;
        let shut = Shut::of(&of.partition.state).or_else(|| Shut::of(&of.state));
        closed.note(&of.name, shut);
        for name in &entry.nodes.nodes {
            let gres = (entry.gres.total.as_str(), entry.gres.used.as_str());
            let (of, partition) = ((&entry.node.state, &entry.reason), &entry.partition.name);
            let first = || node(name, of, gres, partition);
            let (one, _) = found.entry(name.clone()).or_insert_with(first);
            one.partitions.push(partition.clone());
        }
    }
    for it in &said.nodes {
        let pool = it.partitions.first().map_or("", String::as_str);
        let gres = (it.gres.as_str(), it.gres_used.as_str());
        let first = || node(&it.name, (&it.state, &it.reason), gres, pool);
        let (one, _) = found.entry(it.name.clone()).or_insert_with(first);
        one.partitions.extend(it.partitions.iter().cloned());
    }
    for (node, _) in found.values_mut() {
        let all = std::mem::take(&mut node.partitions);
        node.partitions = partitions(all.iter().map(String::as_str));
        match closed.open(&node.partitions) {
            Some(open) => node.partitions = open,
            // It keeps their names: without any it would be everybody's.
            None => node.cordoned = true,
        }
    }
    let with_gpus = found.into_values().filter(|it| it.0.gpus > 0);
    Ok(Told {
        nodes: with_gpus.collect(),
        closed,
    })
}

fn node(
    name: &str,
    (state, reason): (&Value, &Value),
    (total, used): (&str, &str),
    pool: &str,
) -> (Node, Option<u32>) {
    let states = words(state);
    let is = |these: &[&str]| states.iter().any(|it| these.contains(&it.as_str()));
    let (gpus, model) = gres(total);
    // A machine of a cloud that is powered down is none, and nobody bills it; one that is to come is none yet.
    let is_none = is(&["FUTURE"]) || is(&["CLOUD"]) && is(&["POWERED_DOWN"]);
    let gpus = if is_none { 0 } else { gpus };
    let down = is(&DOWN) || states.is_empty();
    let said = reason.as_str().unwrap_or_default();
    let trouble = match (down, said) {
        (false, _) => String::new(),
        (true, "") => states.join("+"),
        (true, said) => format!("{}: {said}", states.join("+")),
    };
    let node = Node {
        name: name.to_owned(),
        model: holder::cut(&model).to_owned(),
        pool: holder::cut(pool).to_owned(),
        gpus,
        allocatable: gpus,
        ready: if down { Ready::No } else { Ready::Yes },
        trouble: holder::cut(&trouble).to_owned(),
        cordoned: is(&CLOSED),
        kept_for: match is(&["RESERVED"]) {
            true => vec!["a reservation".to_owned()],
            false => Vec::new(),
        },
        ..Node::default()
    };
    // Of a node that is idle it says `gpu:l40s:0(IDX:N/A)`; of one that is down nothing is free anyway.
    let says = down || used.split(',').any(|it| it.starts_with("gpu:"));
    (node, says.then(|| gres(used).0))
}

/// How many GPUs a text such as `tmp:7T,gpu:l40s:4(S:0-1)` names, and their type.
fn gres(text: &str) -> (u32, String) {
    let (mut count, mut model) = (0_u32, String::new());
    let mut depth = 0;
    let is_end = |it: char| {
        match it {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        it == ',' && depth == 0
    };
    for piece in text.split(is_end) {
        let piece = piece.split('(').next().unwrap_or_default();
        let words: Vec<&str> = piece.split(':').collect();
        let (of, many) = match words[..] {
            ["gpu", many] => ("", many),
            ["gpu", of, many] => (of, many),
            _ => continue,
        };
        count = count.saturating_add(many.parse().unwrap_or(0));
        if model.is_empty() {
            model = of.to_owned();
        }
    }
    (count, model)
}

/// Jobs that wait for GPUs, by their number.
fn claims(answer: &[u8], closed: &Closed) -> Result<Jobs, String> {
    let said: Squeue = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let mut running: Running = BTreeMap::new();
    for job in said.jobs.iter().filter(|it| it.is(&RUNS)) {
        if let Some(array) = array(job) {
            *running.entry(array).or_default() += 1;
        }
    }
    let waiting = said.jobs.iter();
    let waiting = waiting.filter_map(|it| claim(it, closed, &running));
    Ok(waiting.collect())
}

impl Job {
    fn is(&self, these: &[&str]) -> bool {
        let states = words(&self.job_state);
        states.iter().any(|it| these.contains(&it.as_str()))
    }
}

/// The array that a job is of.
fn array(job: &Job) -> Option<i64> {
    number(&job.array_job_id).filter(|it| *it > 0)
}

fn claim(job: &Job, closed: &Closed, running: &Running) -> Option<(String, Claim)> {
    if !job.is(&["PENDING"]) {
        return None;
    }
    let (gpus, model) = asked(&job.tres_req_str);
    let id = number(&job.job_id)?.to_string();
    if gpus == 0 {
        return None;
    }
    let nodes = number(&job.node_count).and_then(|it| u32::try_from(it).ok());
    let nodes = nodes.filter(|it| *it > 0 && gpus % it == 0).unwrap_or(1);
    let partitions = partitions(job.partition.split(','));
    let running = array(job).and_then(|it| running.get(&it)).copied();
    let limit = at_once(&job.array_task_string);
    let may_begin = limit.saturating_sub(running.unwrap_or(0));
    // Until Slurm looks at it again it tells the reason from before its last task began.
    let why = match may_begin {
        0 => ARRAY_IS_FULL,
        _ => job.state_reason.as_str(),
    };
    // What keeps it back by itself keeps it however its partition is.
    let shut = closed.why(&partitions);
    let by_owner = BY_OWNER.contains(&why);
    let shut = shut.filter(|_| !by_owner && !HELD_BACK.contains(&why));
    let tasks = match (tasks(&job.array_task_string), by_owner) {
        (all, true) => all,
        // Its owner lets no more of them run at once.
        (all, false) => all.min(may_begin),
    };
    let claim = Claim {
        namespace: holder::cut(&job.account).to_owned(),
        workload: format!("slurm:{id}"),
        queue: holder::cut(&job.partition).to_owned(),
        model: holder::cut(&model).to_owned(),
        places: nodes.saturating_mul(tasks),
        gpus_each: gpus / nodes,
        together: Some(nodes),
        is_shares: false,
        since: number(&job.submit_time).map_or_else(Timestamp::default, |seconds| {
            Timestamp(seconds.saturating_mul(NANOS_PER_SECOND))
        }),
        reason: match why {
            _ if shut.is_some() => Reason::HeldBack,
            _ if by_owner => Reason::ByOwner,
            "" | "None" => Reason::NotTried,
            it if HELD_BACK.contains(&it) => Reason::HeldBack,
            _ => Reason::NoPlace,
        },
        words: cut(shut.unwrap_or(why)),
        // What a reservation keeps is kept from everybody else.
        tolerates: Vec::new(),
        partitions,
        scaler: None,
    };
    Some((format!("job {id}"), claim))
}

/// How many tasks a text such as `0-9:3,12%4` names, at least 1: of a job that is no array it is empty. Slurm
/// ends a long one with `...`: those behind are not counted.
fn tasks(text: &str) -> u32 {
    let text = text.split('%').next().unwrap_or_default();
    let of = |piece: &str| -> Option<u32> {
        let (range, step) = piece.split_once(':').unwrap_or((piece, "1"));
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        let step: u32 = step.parse().ok().filter(|it| *it > 0)?;
        Some((to.checked_sub(from)? / step).saturating_add(1))
    };
    let all = text.split(',').filter_map(of);
    all.fold(0, u32::saturating_add).max(1)
}

/// How many tasks of such an array run at once at most, at least 1: those beyond are held back by its owner.
fn at_once(text: &str) -> u32 {
    let limit = text.split_once('%').and_then(|it| it.1.parse().ok());
    limit.map_or(u32::MAX, |it: u32| it.max(1))
}

/// GPUs of a text such as `cpu=2,mem=20G,node=1,gres/gpu=4,gres/gpu:a40=4`, and their type.
fn asked(tres: &str) -> (u32, String) {
    let pairs = || tres.split(',').filter_map(|it| it.split_once('='));
    let count = |text: &str| text.parse::<u32>().unwrap_or(0);
    let all = pairs().find(|(name, _)| *name == "gres/gpu");
    let of = || pairs().filter_map(|(name, many)| Some((name.strip_prefix("gres/gpu:")?, many)));
    let model = of().next().map_or("", |it| it.0);
    let all = match all {
        Some((_, many)) => count(many),
        None => of().map(|it| count(it.1)).fold(0, u32::saturating_add),
    };
    (all, model.to_owned())
}

/// A number, which newer releases wrap: `{"set": true, "infinite": false, "number": 7}`.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Object(it) if it.get("set") == Some(&Value::Bool(false)) => None,
        Value::Object(it) => it.get("number")?.as_i64(),
        other => other.as_i64(),
    }
}

/// Words, which older releases write as one: `IDLE+DRAIN`.
fn words(value: &Value) -> Vec<String> {
    let clean = |it: &str| {
        it.trim_end_matches(['*', '~', '#', '$', '@', '+'])
            .to_uppercase()
    };
    match value {
        Value::String(it) => it.split('+').map(clean).collect(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).map(clean).collect(),
        _ => Vec::new(),
    }
}

/// Whether these bytes are an answer with a node that has GPUs, or with a job that waits for some.
pub fn understands(bytes: &[u8]) -> bool {
    let a_node = nodes(bytes).is_ok_and(|it| !it.nodes.is_empty());
    a_node || claims(bytes, &Closed::default()).is_ok_and(|it| !it.is_empty())
}

#[cfg(test)]
#[path = "slurm_tests.rs"]
mod tests;
