//! Nodes that stand free by habit: of each kind in a cluster how many were free as a whole, hour by hour.
//!
//! Only nodes that are there now count, that are rented by the hour, and that no commitment covers: one that is
//! bought or committed costs the same when it is off. The ledger is read a day at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::shutdown::{HourSeen, WEEK, WEEKS, Window, windows};
use gpufleet_telemetry::identity::{Origin, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::{PricedGpu, by_node, is_committed, node};
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
    for ((cluster, name), gpus) in by_node(found) {
        if let Some(kind) = kind(app, terms, (cluster, name), &gpus, at) {
            let origin = gpus[0].1.resource.origin();
            nodes.origins.insert(Arc::clone(cluster), origin);
            let whole = Whole {
                cluster: Arc::clone(cluster),
                ids: gpus.iter().map(|it| Arc::clone(it.0)).collect(),
            };
            nodes.of.entry(kind).or_default().push(whole);
        }
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
            let count = all.iter().filter(is_free).count();
            let free = u32::try_from(count).unwrap_or(u32::MAX);
            match seen.get_mut(kind) {
                Some(seen) => seen.push(HourSeen { hour, free }),
                None => _ = seen.insert(kind.clone(), vec![HourSeen { hour, free }]),
            }
        }
    }
}

/// The kind of a node; none of one that costs the same when it is off, or has no price.
fn kind(
    app: &App,
    terms: &Terms,
    (cluster, name): (&Arc<str>, &str),
    gpus: &[(&Arc<str>, &PricedGpu)],
    at: Timestamp,
) -> Option<Kind> {
    let first = &gpus.first()?.1.resource;
    let model = first.attribute(attribute::GPU_MODEL).unwrap_or_default();
    let resource = node(app, cluster, name);
    let machine = Machine::told(cluster, resource.as_deref(), model, 1);
    let at_ms = at.millis();
    let (priced_as, _, _) = terms.machine(&machine, at_ms, at_ms + 1);
    let is_rented = !priced_as.is_empty() && priced_as == machine.machine_type;
    if !is_rented || is_committed(terms, &machine, at_ms) {
        return None;
    }
    let seconds: Option<i64> = gpus.iter().map(|it| it.1.second).sum();
    let hour = seconds?.checked_mul(3_600)?;
    Some((cluster.to_string(), machine.machine_type.to_owned(), hour))
}
