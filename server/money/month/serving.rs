//! What model servers served in a month, with the cost of the GPUs that served them.
//!
//! Method. Day by day a model server is of the job that its agent's config names, else of the only one that held GPUs
//! of its node on that day. Of that job's GPU time on the node counts the share in which its model servers there
//! told their tokens, at the mean rate of the job on the node over the time of the report. Each of them that was there
//! on the day is in that share, also one that told nothing: what it served is in no sum, so its part of the time is
//! not either. How much that is stands beside all GPU time of the job, on whatever node.
//!
//! Limits. Where several jobs held GPUs of a node and none is named, whose a model server is is not known, and it
//! stands by itself without a cost. When a model server was there is known by its first and its last sample: one that
//! was away in between was there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use gpufleet_analysis::chargeback::{Chargeback, Fleet, MILLIS_PER_DAY, Sum};
use gpufleet_analysis::money::ratio;
use gpufleet_analysis::report::efficiency::Serving;
use gpufleet_analysis::serving::Served;
use gpufleet_telemetry::identity::attribute;

use super::Days;
use super::gather::is_held;
use crate::store::ServedDays;

/// A node by cluster and name.
type Place<'a> = (&'a str, &'a str);

/// What a job held of a node on a day.
#[derive(Debug, Clone, Copy, Default)]
struct HeldDay {
    /// GPU-milliseconds.
    gpu_millis: i64,
    /// For how long it held the GPU that it held longest, milliseconds.
    longest: i64,
}

/// What jobs held of a node, by day and job.
type HeldDays<'a> = BTreeMap<i64, BTreeMap<&'a str, HeldDay>>;

/// Time and money of jobs in the lines.
#[derive(Debug, Default)]
struct Lines<'a> {
    /// On nodes with model servers, by cluster, node and job.
    on_nodes: BTreeMap<(&'a str, &'a str, &'a str), Sum>,
    /// By cluster and job all GPU-milliseconds of who pays.
    of_jobs: BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, i64>>,
}

/// A job while its model servers are gathered.
#[derive(Debug, Default)]
struct Job<'a> {
    models: BTreeSet<&'a str>,
    endpoints: BTreeSet<&'a str>,
    served: Option<Served>,
    /// By node and day for how long its model servers told.
    told: BTreeMap<(&'a str, i64), OnDay>,
    why: String,
}

/// A job's model servers on a node on a day.
#[derive(Debug, Default)]
struct OnDay {
    /// For how long they told their tokens together, milliseconds.
    told: i64,
    /// For how long each of them was there.
    there: Vec<i64>,
}

/// Why there is no cost where no token is told.
const SILENT: &str = "it tells no generated tokens";

/// Jobs that serve, the dearest first, then those of which it is not known what they cost.
pub(super) fn serving(
    days: &Days,
    range: &Range<i64>,
    fleet: &Fleet,
    made: &Chargeback,
) -> Vec<Serving> {
    let places: BTreeSet<Place<'_>> = days.served.iter().map(place).collect();
    let held = held(days, range, &places);
    let lines = lines(fleet, made, &places);
    let mut jobs: BTreeMap<(&str, &str), Job<'_>> = BTreeMap::new();
    for it in &days.served {
        let (cluster, node) = place(it);
        let id = &*it.resource.key.id;
        let model = text(it, attribute::MODEL_NAME);
        let there = there(it, range);
        if it.days.is_empty() && there.is_empty() {
            let job = jobs.entry((cluster, id)).or_default();
            job.meet(id, model);
            SILENT.clone_into(&mut job.why);
        }
        for (day, there) in there {
            let served = it.days.get(&day);
            let on_day = held.get(&(cluster, node)).and_then(|it| it.get(&day));
            let whose = whose(text(it, attribute::WORKLOAD), node, on_day);
            let job = jobs
                .entry((cluster, *whose.as_ref().unwrap_or(&id)))
                .or_default();
            job.meet(id, model);
            if let Some(served) = served {
                job.add(served);
            }
            match (whose, served) {
                (Ok(_), _) => {
                    let of = job.told.entry((node, day)).or_default();
                    of.told += served.map_or(0, |it| it.told_millis);
                    of.there.push(there);
                }
                (Err(why), Some(_)) => job.why = why,
                // What it is of does not matter where it says nothing.
                (Err(_), None) if job.why.is_empty() => SILENT.clone_into(&mut job.why),
                (Err(_), None) => {}
            }
        }
    }
    let of =
        |((cluster, name), job): ((&str, &str), Job<'_>)| job.told(cluster, name, &held, &lines);
    let mut found: Vec<Serving> = jobs.into_iter().map(of).collect();
    found.sort_by_key(|it| std::cmp::Reverse((it.cost, it.generated_tokens)));
    found
}

impl<'a> Job<'a> {
    fn meet(&mut self, id: &'a str, model: &'a str) {
        self.endpoints.insert(id);
        self.models.extend(Some(model).filter(|it| !it.is_empty()));
    }

    fn add(&mut self, served: &Served) {
        let Some(sum) = &mut self.served else {
            self.served = Some(*served);
            return;
        };
        sum.generated_tokens = sum.generated_tokens.saturating_add(served.generated_tokens);
        sum.told_millis += served.told_millis;
        // Where one of them tells no prompts, nobody knows how many there were.
        let both = sum.prompt_tokens.zip(served.prompt_tokens);
        sum.prompt_tokens = both.map(|(sum, it)| sum.saturating_add(it));
    }

    fn told(
        self,
        cluster: &str,
        name: &str,
        held: &HashMap<Place<'_>, HeldDays<'_>>,
        lines: &Lines<'_>,
    ) -> Serving {
        let mut serving = Serving {
            cluster: cluster.to_owned(),
            job: name.to_owned(),
            models: self.models.iter().map(|it| (*it).to_owned()).collect(),
            endpoints: self.endpoints.len(),
            prompt_tokens: self.served.and_then(|it| it.prompt_tokens),
            generated_tokens: self.served.map(|it| it.generated_tokens),
            why: self.why,
            ..Serving::default()
        };
        if self.told.is_empty() {
            return serving;
        }
        let mut covered: BTreeMap<&str, i64> = BTreeMap::new();
        for ((node, day), of) in &self.told {
            let days = held.get(&(cluster, *node));
            let held = days.and_then(|it| it.get(day)?.get(name)).copied();
            let held = held.unwrap_or_default();
            let there = of.there.iter().map(|it| *it.min(&held.longest));
            let whole: i128 = there.map(i128::from).sum();
            let part = ratio(
                held.gpu_millis.into(),
                i128::from(of.told).min(whole),
                whole,
            );
            *covered.entry(node).or_default() += narrow(part.unwrap_or(0));
        }
        let (mut cost, mut unpriced) = (0, false);
        let all = lines.of_jobs.get(&(cluster, name));
        serving.held_millis = all.map_or(0, |it| it.values().sum());
        for (node, millis) in covered {
            serving.gpu_millis += millis;
            let sum = lines.on_nodes.get(&(cluster, node, name)).copied();
            let sum = sum.unwrap_or_default();
            let priced = sum.gpu_millis - sum.unpriced_millis;
            match ratio(sum.cost, millis.into(), priced.into()) {
                Some(part) if sum.unpriced_millis == 0 => cost += part,
                _ => unpriced |= millis > 0,
            }
        }
        let payer = all.and_then(|it| it.iter().max_by_key(|it| it.1));
        serving.payer = payer.map_or("", |it| *it.0).to_owned();
        let is_silent = self.told.values().all(|it| it.told == 0);
        match (unpriced, serving.gpu_millis) {
            _ if is_silent => SILENT.clone_into(&mut serving.why),
            (true, _) => serving.why = "not all of its time has a price".to_owned(),
            (false, 0) => serving.why = "its GPU time is not in the ledger".to_owned(),
            (false, _) => (serving.cost, serving.why) = (Some(cost), String::new()),
        }
        serving
    }
}

/// Whose a model server is on a day, or why nobody knows.
fn whose<'a>(
    named: &'a str,
    node: &str,
    held: Option<&BTreeMap<&'a str, HeldDay>>,
) -> Result<&'a str, String> {
    let jobs = || held.into_iter().flatten().map(|it| *it.0);
    if !named.is_empty() {
        let has = jobs().any(|it| it == named);
        let why = || format!("{named}, which is to serve it, held no GPU of {node}");
        return has.then_some(named).ok_or_else(why);
    }
    let mut jobs = jobs();
    match (jobs.next(), jobs.next()) {
        (None, _) => Err(format!("nobody held a GPU of {node}, as far as is known")),
        (Some(""), None) => Err(format!("who held the GPUs of {node} is not known")),
        (Some(job), None) => Ok(job),
        (Some(_), Some(_)) => Err(format!(
            "several jobs held GPUs of {node}: name whose it is (workload of exporter.targets)"
        )),
    }
}

/// What jobs held of these nodes.
fn held<'a>(
    days: &'a Days,
    range: &Range<i64>,
    places: &BTreeSet<Place<'_>>,
) -> HashMap<Place<'a>, HeldDays<'a>> {
    let mut held: HashMap<Place<'a>, HeldDays<'a>> = HashMap::new();
    for day in days.days.iter().filter(|it| range.contains(&it.day)) {
        let facts = &day.of.facts;
        let place = (day.of.cluster.as_str(), facts.node.as_str());
        if !places.contains(&place) {
            continue;
        }
        let jobs = held.entry(place).or_default().entry(day.day).or_default();
        let mut of_gpu: BTreeMap<&str, i64> = BTreeMap::new();
        let is_somebodys = |holder: i64, state| holder != 0 || is_held(state);
        for time in day
            .times
            .iter()
            .filter(|it| is_somebodys(it.holder, it.state))
        {
            let holder = days.holders.get(&time.holder);
            *of_gpu.entry(holder.map_or("", |it| &it.job)).or_default() += time.millis;
        }
        for (job, millis) in of_gpu {
            let held = jobs.entry(job).or_default();
            let (slices, of) = (i64::from(facts.slices), i64::from(facts.of.max(1)));
            held.gpu_millis += millis * slices / of;
            held.longest = held.longest.max(millis);
        }
    }
    held
}

/// Time and money of jobs, on these nodes and in all.
fn lines<'a>(fleet: &'a Fleet, made: &'a Chargeback, places: &BTreeSet<Place<'_>>) -> Lines<'a> {
    let mut lines = Lines::default();
    for (key, sum) in &made.lines {
        let (Some(node), Some(holder)) = (key.node, key.holder) else {
            continue;
        };
        let (node, job) = (&fleet.nodes[node], &fleet.holders[holder].job);
        if places.contains(&(node.cluster.as_str(), node.name.as_str())) {
            let place = (node.cluster.as_str(), node.name.as_str(), job.as_str());
            lines.on_nodes.entry(place).or_default().add(sum);
        }
        let payers = lines.of_jobs.entry((&node.cluster, job)).or_default();
        *payers.entry(made.payers[key.payer].name()).or_default() += sum.gpu_millis;
    }
    lines
}

/// The days of a range on which a model server was there, and for how long, milliseconds: a whole one where it told
/// its tokens and nobody knows when it came.
fn there(it: &ServedDays, range: &Range<i64>) -> BTreeMap<i64, i64> {
    let (first, last) = (it.resource.first_seen, it.resource.last_seen);
    let (first, last) = (first.millis(), last.millis());
    let day = |at: i64| at.div_euclid(MILLIS_PER_DAY);
    let mut there: BTreeMap<i64, i64> = it.days.keys().map(|it| (*it, MILLIS_PER_DAY)).collect();
    for of in day(first).max(range.start)..(day(last) + 1).min(range.end) {
        let (from, until) = (of * MILLIS_PER_DAY, (of + 1) * MILLIS_PER_DAY);
        let seen = last.min(until) - first.max(from);
        let told = it.days.get(&of).map_or(0, |it| it.told_millis);
        there.insert(of, seen.max(told));
    }
    there.retain(|_, it| *it > 0);
    there
}

fn place(served: &ServedDays) -> Place<'_> {
    (&served.resource.key.cluster, text(served, attribute::NODE))
}

fn text<'a>(served: &'a ServedDays, name: &str) -> &'a str {
    served.resource.resource.attribute(name).unwrap_or_default()
}

fn narrow(part: i128) -> i64 {
    i64::try_from(part).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
