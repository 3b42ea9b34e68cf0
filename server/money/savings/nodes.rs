//! Nodes that stand free by habit: of each kind in a cluster how many were free as a whole, hour by hour.
//!
//! Only nodes that are there now count, that are rented by the hour, and no more of them than run beyond what somebody
//! committed to: one that is bought or committed to costs the same when it is off. The ledger is read a day at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::price_book::Basis;
use gpufleet_analysis::shutdown::{HourSeen, WEEK, WEEKS, Window, windows};
use gpufleet_telemetry::identity::{Origin, Resource, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::committed::Like;
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

/// A node that is rented by the hour.
struct Rented {
    kind: Kind,
    region: String,
    /// How many like it in its region somebody committed to.
    committed: Like,
    origin: Origin,
    whole: Whole,
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
    committed: Committed,
    at: Timestamp,
) -> Result<Vec<Off>, StoreError> {
    let (own, terms, found) = (app.clone(), Arc::clone(terms), Arc::clone(found));
    let nodes = apart(move || nodes(&own, &terms, &committed, &found, at)).await;
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

/// The nodes of a moment.
fn nodes(
    app: &App,
    terms: &Terms,
    committed: &Committed,
    found: &MoneySnapshot,
    at: Timestamp,
) -> Nodes {
    let rented = by_node(found)
        .into_iter()
        .filter_map(|((cluster, name), gpus)| {
            let resource = node(app, cluster, name);
            let of = (cluster, resource.as_deref());
            let (kind, region, committed) = kind((terms, committed), of, &gpus, at)?;
            Some(Rented {
                kind,
                region,
                committed,
                origin: gpus[0].1.resource.origin(),
                whole: Whole {
                    cluster: Arc::clone(cluster),
                    ids: gpus.iter().map(|it| Arc::clone(it.0)).collect(),
                },
            })
        });
    shared_out(rented)
}

/// Nodes by their kind. What is committed to in a region its kinds there take up one after the other, each of no more than
/// it has nodes, and first what is of their cluster alone.
fn shared_out(seen: impl Iterator<Item = Rented>) -> Nodes {
    let mut nodes = Nodes::default();
    // How many nodes of a kind are in a region, and how many like them are committed to there.
    let mut like: BTreeMap<(Kind, String), (usize, Like)> = BTreeMap::new();
    for it in seen {
        // Of nodes on Spot none are: they leave what is committed to for others of their type.
        if it.committed != Like::default() {
            let like = like.entry((it.kind.clone(), it.region));
            like.or_insert((0, it.committed)).0 += 1;
        }
        let cluster = Arc::clone(&it.whole.cluster);
        nodes.origins.insert(cluster, it.origin);
        nodes.of.entry(it.kind).or_default().push(it.whole);
    }
    // By cluster, machine type and region; without a cluster what any may take up.
    let mut left: HashMap<(String, String, String), usize> = HashMap::new();
    let mut take = |of: (&str, &Kind, &str), committed: usize, count: usize| {
        let key = (of.0.to_owned(), of.1.1.clone(), of.2.to_owned());
        let left = left.entry(key).or_insert(committed);
        let taken = count.min(*left);
        *left -= taken;
        taken
    };
    for ((kind, region), (count, committed)) in like {
        let cluster = kind.0.as_str();
        let own = take((cluster, &kind, region.as_str()), committed.own, count);
        let of_all = ("", &kind, region.as_str());
        let shared = take(of_all, committed.shared, count - own);
        *nodes.committed.entry(kind).or_default() += own + shared;
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
    (terms, committed): (&Terms, &Committed),
    (cluster, resource): (&Arc<str>, Option<&Resource>),
    gpus: &[(&Arc<str>, &PricedGpu)],
    at: Timestamp,
) -> Option<(Kind, String, Like)> {
    let first = &gpus.first()?.1.resource;
    let model = first.attribute(attribute::GPU_MODEL).unwrap_or_default();
    let machine = Machine::told(cluster, resource, model, 1);
    let at_ms = at.millis();
    let (_, basis, _) = terms.machine(&machine, at_ms);
    let is_rented = basis != Basis::Own && !machine.machine_type.is_empty();
    if !is_rented || committed.covers(&machine, (first.origin(), basis)) {
        return None;
    }
    let seconds: Option<i64> = gpus.iter().map(|it| it.1.last).sum();
    let hour = seconds?.checked_mul(3_600)?;
    let of_these = committed.nodes(&machine, (first.origin(), basis));
    let kind = (cluster.to_string(), machine.machine_type.to_owned(), hour);
    Some((kind, machine.region.to_owned(), of_these))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::State;
    use gpufleet_analysis::owner::Payer;
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;
    use crate::money::terms::Sources;

    /// Two live nodes of `a3` in a cluster, each at this price, of which so many are committed to in their region.
    fn two(cluster: &str, region: &str, hour: i64, shared: usize) -> [Rented; 2] {
        two_with(cluster, region, hour, Like { own: 0, shared })
    }

    fn two_with(cluster: &str, region: &str, hour: i64, committed: Like) -> [Rented; 2] {
        ["n-0", "n-1"].map(|name| Rented {
            kind: (cluster.to_owned(), "a3".to_owned(), hour),
            region: region.to_owned(),
            committed,
            origin: Origin::Live,
            whole: Whole {
                cluster: cluster.into(),
                ids: vec![name.into()],
            },
        })
    }

    /// By cluster and price, how many of these nodes there are and how many of them are paid for all the same.
    fn shared(nodes: impl IntoIterator<Item = [Rented; 2]>) -> Vec<(String, i64, usize, usize)> {
        let nodes = shared_out(nodes.into_iter().flatten());
        let row = |(kind, all): (&Kind, &Vec<Whole>)| {
            let committed = nodes.committed.get(kind).copied().unwrap_or(0);
            (kind.0.clone(), kind.2, all.len(), committed)
        };
        nodes.of.iter().map(row).collect()
    }

    #[test]
    fn what_is_committed_to_in_a_region_is_shared_out_among_its_clusters_and_prices_and_not_beyond_it()
     {
        let row = |cluster: &str, hour: i64, committed: usize| {
            (cluster.to_owned(), hour, 2_usize, committed)
        };
        let of_clusters = shared([two("b", "us", 10, 3), two("a", "us", 10, 3)]);
        assert_eq!(of_clusters, [row("a", 10, 2), row("b", 10, 1)]);
        let of_prices = shared([two("a", "us", 20, 3), two("a", "us", 10, 3)]);
        assert_eq!(of_prices, [row("a", 10, 2), row("a", 20, 1)]);
        let elsewhere = shared([two("a", "us", 10, 3), two("b", "eu", 10, 1)]);
        assert_eq!(elsewhere, [row("a", 10, 2), row("b", 10, 1)]);
        let on_spot = shared([two("a", "us", 5, 0), two("a", "us", 10, 3)]);
        assert_eq!(on_spot, [row("a", 5, 0), row("a", 10, 2)]);
        // A cluster that lies in two regions takes up what is committed to in either.
        let in_both = shared([two("a", "us", 10, 1), two("a", "eu", 10, 1)]);
        assert_eq!(in_both, [("a".to_owned(), 10, 4, 2)]);
        // What is of one cluster alone no other takes up.
        let like = |own| Like { own, shared: 1 };
        let named = shared([
            two_with("a", "us", 10, like(2)),
            two_with("b", "us", 10, like(0)),
        ]);
        assert_eq!(named, [row("a", 10, 2), row("b", 10, 1)]);
    }

    #[test]
    fn a_node_is_of_a_kind_where_it_is_rented_by_the_hour_and_commitments_are_of_live_ones_on_demand()
     {
        const MACHINE: &str = "a3-highgpu-8g";
        const REGION: &str = "us-central1";
        const CARD: &str = "NVIDIA H100 80GB HBM3";
        let at = Timestamp::from_seconds(1_790_000_000);
        let table = format!(
            "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n\
             c1,{MACHINE},{REGION},2,commitment_3y,USD,40,2026-01-01,2029-01-01,\n"
        );
        let bought = format!(
            "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
             {MACHINE},basement,own,USD,20,,2026-01-01,,list,mine\n"
        );
        let terms = Terms::of(Sources {
            gpu_hour_usd: BTreeMap::from([(CARD.to_owned(), "5".to_owned())]),
            files: vec![
                ("commitments.csv".to_owned(), Ok(table)),
                ("rates.csv".to_owned(), Ok(bought)),
            ],
            ..Sources::default()
        });
        let of = || {
            let names = ["prod", MACHINE, REGION].map(str::to_owned);
            let [cluster, machine_type, region] = names;
            (cluster, machine_type, region, Basis::OnDemand)
        };
        let three = [of(), of(), of()].into_iter();
        let committed = Committed::counted(terms.book.commitments(), three, at.millis());
        let kind = |machine: &str, region: &str, provisioning: &str, origin: Origin| {
            let node = Resource::new(ResourceKind::Node, "n-0")
                .with(attribute::MACHINE_TYPE, machine)
                .with(attribute::REGION, region)
                .with(attribute::PROVISIONING, provisioning);
            let card = Resource::new(ResourceKind::Gpu, "GPU-0")
                .with(attribute::GPU_MODEL, CARD)
                .with(attribute::ORIGIN, origin.name());
            let gpu = PricedGpu {
                resource: Arc::new(card),
                part: (1, 1),
                second: Some(900),
                last: Some(1_000),
                payer: Payer::Nobody,
                state: State::Unallocated,
            };
            let (cluster, id) = (Arc::<str>::from("prod"), Arc::<str>::from("GPU-0"));
            let gpus = [(&id, &gpu), (&id, &gpu)];
            super::kind((&terms, &committed), (&cluster, Some(&node)), &gpus, at)
        };
        let known = |shared: usize| {
            let committed = Like { own: 0, shared };
            let kind = ("prod".to_owned(), MACHINE.to_owned(), 7_200_000_i64);
            Some((kind, REGION.to_owned(), committed))
        };
        assert_eq!(kind(MACHINE, REGION, "", Origin::Live), known(2));
        assert_eq!(kind(MACHINE, REGION, "spot", Origin::Live), known(0));
        assert_eq!(kind(MACHINE, REGION, "", Origin::Simulated), known(0));
        // It is bought as a whole.
        assert_eq!(kind(MACHINE, "basement", "", Origin::Live), None);
        // By its card: no rate of its machine type is known there, or it tells none.
        assert_eq!(kind(MACHINE, "nowhere", "", Origin::Live), None);
        assert_eq!(kind("", "", "", Origin::Live), None);
    }

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
