//! Nodes that stand free by habit: of each kind in a cluster how many were free as a whole, hour by hour.
//!
//! Only nodes that are there now count, that are rented by the hour, and no more of them than run beyond what somebody
//! committed to: one that is bought or committed to costs the same when it is off. The ledger is read a day at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::shutdown::{HourSeen, WEEK, WEEKS, Window, windows};
use gpufleet_telemetry::identity::{Origin, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::{Committed, PricedGpu, by_node, node};
use crate::App;
use crate::money::now::MoneySnapshot;
use crate::money::{Machine, Terms};
use crate::store::{FreeHours, StoreError};
use crate::threads::apart;

/// Hours of a day.
const HOURS: i64 = 24;

/// Nodes of one kind that could be off at a time of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Off {
    /// Their cluster.
    pub cluster: String,
    /// Where its data comes from.
    pub origin: Origin,
    /// Their machine type.
    pub machine_type: String,
    /// When, how many, and what that saves.
    pub window: Window,
}

/// Nodes of one kind: cluster, machine type, and what one costs an hour, nano-units.
type Kind = (String, String, i64);

/// A node with its GPUs and shares.
struct Whole {
    cluster: Arc<str>,
    ids: Vec<Arc<str>>,
}

/// Nodes that could be off, by their kind.
#[derive(Default)]
struct Nodes {
    of: BTreeMap<Kind, Vec<Whole>>,
    /// How many of them are paid for all the same.
    committed: HashMap<Kind, usize>,
    origins: HashMap<Arc<str>, Origin>,
}

/// How many nodes of each kind were free, hour by hour.
type Seen = BTreeMap<Kind, Vec<HourSeen>>;

/// What could be off, the most saving first.
///
/// # Errors
/// When the store does not answer.
pub(super) async fn off(
    app: &App,
    terms: &Arc<Terms>,
    found: &Arc<MoneySnapshot>,
    at: Timestamp,
) -> Result<Vec<Off>, StoreError> {
    let (own, terms, found) = (app.clone(), Arc::clone(terms), Arc::clone(found));
    let nodes = apart(move || nodes(&own, &terms, &found, at)).await;
    if nodes.of.is_empty() {
        return Ok(Vec::new());
    }
    let nodes = Arc::new(nodes);
    let today = at.seconds().div_euclid(86_400);
    let span = i64::try_from(WEEKS * WEEK).unwrap_or(0) / HOURS;
    let days = today - span..today;
    let first = app.store.first_days(days.clone()).await?;
    let mut seen = Seen::new();
    for day in days {
        // The day in which the record begins is not a whole one.
        let is_whole = |cluster: &str| first.get(cluster).is_some_and(|first| day > *first);
        let whole: HashSet<String> = first.keys().filter(|it| is_whole(it)).cloned().collect();
        if whole.is_empty() {
            continue;
        }
        let hours = day * HOURS..(day + 1) * HOURS;
        let free = app.store.free_hours(hours.clone()).await?;
        let of = Arc::clone(&nodes);
        seen = apart(move || {
            count(&of, &whole, hours, &free, &mut seen);
            seen
        })
        .await;
    }
    let mut found = Vec::new();
    for ((cluster, machine_type, hour), seen) in seen {
        let origin = nodes.origins.get(cluster.as_str()).copied();
        let off = |window| Off {
            cluster: cluster.clone(),
            origin: origin.unwrap_or_default(),
            machine_type: machine_type.clone(),
            window,
        };
        found.extend(windows(&seen, hour).into_iter().map(off));
    }
    found.sort_by_key(|it| std::cmp::Reverse(it.window.saved_per_week));
    Ok(found)
}

fn nodes(app: &App, terms: &Terms, found: &MoneySnapshot, at: Timestamp) -> Nodes {
    let mut nodes = Nodes::default();
    let committed = Committed::of(app, terms, found, at);
    // What is committed to in a region, as far as no cluster there has taken it up.
    let mut left: HashMap<(String, String), usize> = HashMap::new();
    let mut like: BTreeMap<Kind, (String, String)> = BTreeMap::new();
    for ((cluster, name), gpus) in by_node(found) {
        if let Some((kind, region, of_these)) =
            kind(app, (terms, &committed), (cluster, name), &gpus, at)
        {
            if of_these > 0 {
                let its = (kind.1.clone(), region);
                left.insert(its.clone(), of_these);
                like.insert(kind.clone(), its);
            }
            let origin = gpus[0].1.resource.origin();
            nodes.origins.insert(Arc::clone(cluster), origin);
            let whole = Whole {
                cluster: Arc::clone(cluster),
                ids: gpus.iter().map(|it| Arc::clone(it.0)).collect(),
            };
            nodes.of.entry(kind).or_default().push(whole);
        }
    }
    for (kind, its) in like {
        let left = left.entry(its).or_default();
        let taken = nodes.of.get(&kind).map_or(0, Vec::len).min(*left);
        *left -= taken;
        nodes.committed.insert(kind, taken);
    }
    nodes
}

/// Counts the free nodes of these clusters in a day.
fn count(
    nodes: &Nodes,
    clusters: &HashSet<String>,
    hours: Range<i64>,
    free: &FreeHours,
    seen: &mut Seen,
) {
    for hour in hours {
        let free = free.get(&hour).map_or(&[][..], Vec::as_slice);
        let free: HashSet<(&str, &str)> = free.iter().map(|it| (&*it.0, &*it.1)).collect();
        for (kind, all) in nodes.of.iter().filter(|it| clusters.contains(&it.0.0)) {
            let is_free = |it: &&Whole| {
                it.ids
                    .iter()
                    .all(|id| free.contains(&(&*it.cluster, &**id)))
            };
            let rented = all.len() - nodes.committed.get(kind).copied().unwrap_or(0);
            let count = all.iter().filter(is_free).count().min(rented);
            let free = u32::try_from(count).unwrap_or(u32::MAX);
            match seen.get_mut(kind) {
                Some(seen) => seen.push(HourSeen { hour, free }),
                None => _ = seen.insert(kind.clone(), vec![HourSeen { hour, free }]),
            }
        }
    }
}

/// The kind of a node, its region, and how many like it there are committed to; none of one that costs the same when
/// it is off, or has no price.
fn kind(
    app: &App,
    (terms, committed): (&Terms, &Committed),
    (cluster, name): (&Arc<str>, &str),
    gpus: &[(&Arc<str>, &PricedGpu)],
    at: Timestamp,
) -> Option<(Kind, String, usize)> {
    let first = &gpus.first()?.1.resource;
    let model = first.attribute(attribute::GPU_MODEL).unwrap_or_default();
    let resource = node(app, cluster, name);
    let machine = Machine::told(cluster, resource.as_deref(), model, 1);
    let at_ms = at.millis();
    let (priced_as, basis, _) = terms.machine(&machine, at_ms, at_ms + 1);
    let is_rented = !priced_as.is_empty() && priced_as == machine.machine_type;
    if !is_rented || committed.covers(&machine, (first.origin(), basis)) {
        return None;
    }
    let seconds: Option<i64> = gpus.iter().map(|it| it.1.second).sum();
    let hour = seconds?.checked_mul(3_600)?;
    let of_these = committed.nodes(&machine, (first.origin(), basis));
    let kind = (cluster.to_string(), machine.machine_type.to_owned(), hour);
    Some((kind, machine.region.to_owned(), of_these))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_committed_to_are_no_free_ones() {
        let kind: Kind = ("prod".to_owned(), "a3".to_owned(), 1);
        let ids = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"].map(Arc::<str>::from);
        let prod = Arc::<str>::from("prod");
        let whole = |id: &Arc<str>| Whole {
            cluster: Arc::clone(&prod),
            ids: vec![Arc::clone(id)],
        };
        let nodes = Nodes {
            of: BTreeMap::from([(kind.clone(), ids.iter().map(whole).collect())]),
            committed: HashMap::from([(kind.clone(), 1)]),
            origins: HashMap::new(),
        };
        let all = ids.iter().map(|id| (prod.to_string(), id.to_string()));
        let two = all.clone().take(2).collect();
        let free = FreeHours::from([(5, all.collect()), (6, two)]);
        let mut seen = Seen::new();
        count(
            &nodes,
            &HashSet::from(["prod".to_owned()]),
            5..8,
            &free,
            &mut seen,
        );
        let free: Vec<u32> = seen[&kind].iter().map(|it| it.free).collect();
        assert_eq!(free, [3, 2, 0]);
    }
}
