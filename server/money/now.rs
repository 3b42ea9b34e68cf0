//! What is idle this moment, whose it is, since when, and what it costs a day; and what has no price or
//! no owner.
//!
//! One walk over what is live. What is idle by design, a warm standby, is not told as idle, nor is what is on a node that
//! takes no work: what nobody holds on one that is cordoned or taken back drains, and what does not work on one that is
//! not ready is unhealthy. What is on a node that went costs nothing and is in no list. Of a GPU that has shares these are
//! looked at, each a part of its card, and what they leave of it, which nobody can hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::owner::{self, Holder, Payer, idle};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::covered::{CoveredNow, SecondPrice};
use super::rule::rule_for;
use super::{Machine, Terms};
use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::fleet::{Fleet, Live};
use crate::inventory::Inventory;
use crate::inventory::known::Moment;
use crate::ledger::days;
use crate::store::model::ResourceKey;
use crate::threads::apart;
use crate::view::FRESH_FOR;
use crate::view::contact::Contact;
use crate::view::judge::{NodesNow, judge_on};

mod rest;

use rest::rest_of;

/// Seconds of a day.
const DAY_S: i128 = 86_400;

/// How old a snapshot may be that is given while the next one is made.
const STANDS_FOR: Duration = Duration::from_secs(10);

/// Most snapshots that are kept, the newest: of all clusters, and of those that tokens are bound to.
const KEPT: usize = 8;

/// A GPU or share that is idle, or on a node that takes no work; or what the shares of a GPU leave of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// Which.
    pub key: ResourceKey,
    /// Where its data comes from.
    pub origin: Origin,
    /// The node it is on.
    pub node: Arc<str>,
    /// Its index on its node; empty where not told.
    pub index: String,
    /// How it is idle, or what its node makes of it.
    pub state: State,
    /// Since when at least; none when not known.
    pub since: Option<Timestamp>,
    /// The job that holds it; empty of nobody, and of a holder without a name.
    pub job: String,
    /// Whose it is; of a free one who is to give it out.
    pub payer: Payer,
    /// So many slices of so many of its card it is: of a GPU that has shares those that are left.
    pub part: (u32, u32),
    /// What it costs a day, nano-units; none without a price.
    pub day_cost: Option<i128>,
}

/// How many GPUs these are together, thousandths: a share is a part of one.
pub fn milli_gpus<'a>(all: impl IntoIterator<Item = &'a Idle>) -> u64 {
    let parts = all.into_iter().map(|it| it.part);
    let gpus: f64 = parts.map(|it| f64::from(it.0) / f64::from(it.1)).sum();
    (gpus * 1e3).round() as u64
}

impl MoneySnapshot {
    /// A GPU or share by cluster and id, also one of a node that went: what ran on it has its price and its owner.
    pub fn gpu(&self, cluster: &str, id: &str) -> Option<&PricedGpu> {
        let mut maps = [&self.all, &self.gone].into_iter();
        maps.find_map(|it| it.get(cluster)?.get(id))
    }

    /// The columns of the rows that would name the owners of what is unowned.
    pub fn rule_columns(&self) -> String {
        match self.has_clusters {
            true => owner::COLUMNS_OF_CLUSTERS.join(","),
            false => owner::COLUMNS.join(","),
        }
    }
}

/// GPUs of one kind of node without a price, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unpriced {
    /// Their cluster.
    pub cluster: Arc<str>,
    /// Their model.
    pub model: String,
    /// Why, and what to do.
    pub why: String,
}

/// A holder without an owner.
#[derive(Debug, Default)]
pub struct Unowned {
    /// The GPUs that it has, or has shares of.
    pub cards: BTreeSet<Arc<str>>,
    /// The row of the table of owner rules that could name its team; none where nothing is known of it that a rule is of.
    pub rule: Option<String>,
}

/// What stands now.
#[derive(Debug, Default)]
pub struct MoneySnapshot {
    /// When that was.
    pub at: Timestamp,
    /// What is idle, the dearest and then the longest first.
    pub idle: Vec<Idle>,
    /// What drains, and what is unhealthy because its node is not ready.
    pub held_back: Vec<Idle>,
    /// GPUs without a price, by their ids; of one that has shares it is the card's.
    pub unpriced: BTreeMap<Unpriced, BTreeSet<Arc<str>>>,
    /// Whether there are several live clusters, also such that this reader may not see: a rule that named none would be of all.
    pub has_clusters: bool,
    /// Holders without an owner, by their cluster and name.
    pub unowned: BTreeMap<(Arc<str>, String), Unowned>,
    /// What everything costs an hour, nano-units, by origin; of what has a price.
    pub hour_cost: BTreeMap<Origin, i128>,
    /// Every GPU or share by cluster and id.
    pub all: HashMap<Arc<str>, HashMap<Arc<str>, PricedGpu>>,
    /// The same of nodes that went: nothing of them is in what is above.
    pub gone: HashMap<Arc<str>, HashMap<Arc<str>, PricedGpu>>,
}

/// What is known of a GPU or share that may be idle or not.
#[derive(Debug)]
pub struct PricedGpu {
    /// What it says of itself.
    pub resource: Arc<Resource>,
    /// So many slices of so many of its card it is.
    pub part: (u32, u32),
    /// What a second of it costs as the month books it, nano-units; none without a price.
    pub second: Option<i64>,
    /// What a second less of it would save ([`SecondPrice::last`]).
    pub last: Option<i64>,
    /// Whose it is.
    pub payer: Payer,
    /// What it does.
    pub state: State,
}

/// What is known of a node while GPUs are gathered.
#[derive(Default)]
struct OfNode {
    resource: Option<Arc<Resource>>,
    gpus: u32,
    contact: Contact,
    /// Whether the cluster says that it went, and nothing is heard of it.
    is_gone: bool,
    /// Its node pool; empty where it is not known or nobody asks.
    pool: String,
    /// What a second of one of its GPUs costs, looked up once for each model.
    seconds: HashMap<String, Result<SecondPrice, String>>,
}

/// A card that has shares.
#[derive(Default)]
struct Cut {
    /// So many slices of so many each of them is.
    parts: Vec<(u32, u32)>,
    /// Whether anything is heard of any of them.
    is_heard: bool,
}

/// A GPU or share with its state.
struct IdleCandidate {
    idle: Idle,
    resource: Arc<Resource>,
    is_share: bool,
    /// Whether it is what shares leave of their card.
    is_rest: bool,
    /// Whether its node takes no work.
    is_drained: bool,
    /// Whether nothing is heard of it.
    is_silent: bool,
    /// Whether its node is not ready.
    is_lost: bool,
    /// Whether nobody held it when it was heard last.
    was_free: bool,
    /// Whether nobody holds it.
    is_free: bool,
}

/// What [`now`] said last, by the only cluster that a reader may see and by the terms: made at most once in
/// [`FRESH_FOR`] for all who ask.
pub(super) struct Snapshots(Answers<(Option<Arc<str>>, u64), MoneySnapshot, Infallible>);

impl Default for Snapshots {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, 1))
    }
}

/// The same as [`now`], where it keeps nobody waiting: as it was last made, where that is no older than [`STANDS_FOR`],
/// and made anew beside the threads that answer.
pub async fn walked(
    app: &App,
    terms: &Arc<Terms>,
    grant: &Grant,
    at: Timestamp,
) -> Arc<MoneySnapshot> {
    let (fleet, inventory) = (Arc::clone(&app.fleet), Arc::clone(&app.inventory));
    let of = (grant.cluster.clone(), terms.number);
    let (terms, asked) = (Arc::clone(terms), grant.clone());
    let moment = Moment {
        at,
        monotonic: app.clock.monotonic(),
    };
    let making =
        async move { Ok(apart(move || now((&fleet, &inventory), &terms, &asked, moment)).await) };
    let snapshots = &app.money.snapshots.0;
    let made = snapshots.get_standing(of, &app.clock, STANDS_FOR, making);
    let Ok(found) = made.await;
    found
}

/// Looks at everything that this reader may see: a walk over every GPU.
pub fn now(
    (fleet, inventory): (&Fleet, &Inventory),
    terms: &Terms,
    grant: &Grant,
    moment: Moment,
) -> MoneySnapshot {
    let (at, said) = (moment.at, NodesNow::of(fleet, inventory, moment));
    // Without policies nobody asks for pools.
    let has_policies = !terms.owners.idle.is_empty();
    let pools = has_policies.then(|| inventory.node_pools());
    let mut nodes: HashMap<(Arc<str>, Arc<str>), OfNode> = HashMap::new();
    let mut siblings: HashMap<(Arc<str>, String), u32> = HashMap::new();
    let mut all = Vec::new();
    let (mut first, mut has_clusters) = (None, false);
    fleet.visit(|live| {
        if live.origin == Origin::Recorded {
            return;
        }
        if live.origin == Origin::Live {
            let first = first.get_or_insert_with(|| Arc::clone(&live.key.cluster));
            has_clusters |= *first != live.key.cluster;
        }
        if !grant.may_see(&live.key.cluster) {
            return;
        }
        let name = (Arc::clone(&live.key.cluster), Arc::clone(&live.node));
        let node = nodes.entry(name).or_default();
        node.contact.note(live);
        match live.key.kind {
            ResourceKind::Node => node.resource = Some(Arc::clone(&live.resource)),
            ResourceKind::Gpu => {
                node.gpus += 1;
                all.push(seen(live, at, &said));
            }
            ResourceKind::Share => {
                let parent = live
                    .resource
                    .attribute(attribute::PARENT)
                    .unwrap_or_default();
                let card = (Arc::clone(&live.key.cluster), parent.to_owned());
                *siblings.entry(card).or_default() += 1;
                all.push(seen(live, at, &said));
            }
            ResourceKind::Endpoint | ResourceKind::Rank => {}
        }
    });
    for ((cluster, name), node) in &mut nodes {
        node.is_gone = node.contact.is_silent(at) && inventory.is_gone(cluster, name);
    }
    let mut cut: HashMap<(Arc<str>, String), Cut> = HashMap::new();
    for it in all.iter_mut().filter(|it| it.is_share) {
        let parent = it.resource.attribute(attribute::PARENT).unwrap_or_default();
        let card = (Arc::clone(&it.idle.key.cluster), parent.to_owned());
        it.idle.part = days::part(&it.resource, siblings.get(&card).copied().unwrap_or(1));
        let cut = cut.entry(card).or_default();
        cut.parts.push(it.idle.part);
        cut.is_heard |= !it.is_silent;
    }
    let covered = CoveredNow::of((fleet, inventory), terms, at);
    let mut found = MoneySnapshot {
        at,
        has_clusters,
        ..MoneySnapshot::default()
    };
    let mut of_gone = MoneySnapshot::default();
    for mut it in all {
        let key = &it.idle.key;
        let card = (Arc::clone(&key.cluster), key.id.to_string());
        if let Some(cut) = cut.get(&card).filter(|_| !it.is_share) {
            let Some(rest) = rest_of(&cut.parts) else {
                continue;
            };
            it = it.rest(rest, cut.is_heard);
        }
        let key = &it.idle.key;
        let name = (Arc::clone(&key.cluster), Arc::clone(&it.idle.node));
        let node_pool = pools
            .as_ref()
            .map(|it| it.of_node(&name.0, &name.1).to_owned());
        let node = nodes.entry(name).or_default();
        node.pool = node_pool.unwrap_or_default();
        // What was given back before its node went is not who had it last's any more.
        it.is_free |= node.is_gone && it.was_free;
        let found = match node.is_gone {
            true => &mut of_gone,
            false => &mut found,
        };
        take(found, it, node, (terms, &covered), at);
    }
    found.gone = of_gone.all;
    let since = |it: &Idle| it.since.unwrap_or(Timestamp(i64::MAX));
    found
        .idle
        .sort_by_key(|it| (std::cmp::Reverse(it.day_cost), since(it), it.key.clone()));
    found
}

fn seen(live: &Live, at: Timestamp, nodes: &NodesNow) -> IdleCandidate {
    let status = judge_on(live, at, nodes);
    let is_lost = status.reason == Reason::NodeNotReady;
    let was_free = live.bits.holder_known != 0 && live.bits.held == 0;
    let text = |name| live.resource.attribute(name).unwrap_or_default().to_owned();
    IdleCandidate {
        idle: Idle {
            key: live.key.clone(),
            origin: live.origin,
            node: Arc::clone(&live.node),
            index: text(attribute::GPU_INDEX),
            state: status.state,
            since: status.since,
            job: String::new(),
            payer: Payer::Nobody,
            part: (1, 1),
            day_cost: None,
        },
        is_rest: false,
        is_silent: status.is_silent,
        is_drained: nodes.is_draining(live),
        resource: Arc::clone(&live.resource),
        is_share: live.key.kind == ResourceKind::Share,
        is_lost,
        was_free,
        is_free: match status.state {
            State::Unallocated | State::Draining => true,
            _ => is_lost && was_free,
        },
    }
}

impl IdleCandidate {
    /// The card that it is, or is a share of.
    fn card(&self) -> Arc<str> {
        let parent = self.resource.attribute(attribute::PARENT);
        match parent.filter(|it| self.is_share && !it.is_empty()) {
            Some(parent) => parent.into(),
            None => Arc::clone(&self.idle.key.id),
        }
    }

    /// What shares leave of it: so many slices of so many; and whether any of them is heard.
    fn rest(mut self, part: (u32, u32), is_heard: bool) -> Self {
        // Since when is not known: the card was whole, or its shares held more of it.
        let state = match self.idle.state {
            state if self.is_lost || state == State::Unhealthy => state,
            _ if !is_heard => State::Unobserved,
            _ if self.is_drained => State::Draining,
            _ => State::Unallocated,
        };
        self.idle = Idle {
            state,
            since: None,
            part,
            ..self.idle
        };
        (self.is_rest, self.is_free) = (true, true);
        self
    }
}

fn take(
    found: &mut MoneySnapshot,
    mut it: IdleCandidate,
    node: &mut OfNode,
    (terms, covered): (&Terms, &CoveredNow),
    at: Timestamp,
) {
    let model = it
        .resource
        .attribute(attribute::GPU_MODEL)
        .unwrap_or_default()
        .to_owned();
    let cluster = Arc::clone(&it.idle.key.cluster);
    let second = node.seconds.entry(model.clone()).or_insert_with(|| {
        let resource = node.resource.as_deref();
        let machine = Machine::told(&cluster, resource, &model, node.gpus.max(1));
        let second = terms.gpu_second(&machine, covered, at.millis());
        second.map_err(|why| why.to_string())
    });
    let (slices, of) = it.idle.part;
    let (mut own_second, mut own_last) = (None, None);
    match second {
        Ok(second) => {
            let part = |second: i64, seconds: i128| {
                i128::from(second) * seconds * i128::from(slices) / i128::from(of)
            };
            it.idle.day_cost = Some(part(second.mean, DAY_S));
            let hour = part(second.mean, 3_600);
            *found.hour_cost.entry(it.idle.origin).or_default() += hour;
            own_second = i64::try_from(part(second.mean, 1)).ok();
            own_last = i64::try_from(part(second.last, 1)).ok();
        }
        Err(why) => {
            let fix = format!("[detect.gpu_hour_usd] \"{model}\" = \"what an hour costs\"");
            let unpriced = Unpriced {
                cluster: Arc::clone(&cluster),
                model: model.clone(),
                why: format!("{why}. One line mends it: {fix}"),
            };
            let cards = found.unpriced.entry(unpriced).or_default();
            cards.insert(it.card());
        }
    }
    let holder = Holder::told_by(&it.resource);
    let mut is_standby = false;
    // Of a GPU that nobody holds the attributes may still name who held it last.
    if let Some(holder) = holder.filter(|_| !it.is_free) {
        it.idle.job = holder.job.clone();
        is_standby = terms.standby.has(&cluster, &holder, at.millis());
        it.idle.payer = terms.owners.payer(&cluster, &holder, at.millis());
        if it.idle.payer == Payer::Unowned {
            let job = (Arc::clone(&cluster), holder.job.clone());
            let of = found.has_clusters.then_some(&*cluster);
            let unowned = found.unowned.entry(job).or_default();
            // Not every node may tell as much of it.
            if unowned.rule.is_none() {
                unowned.rule = rule_for(of, &holder, at);
            }
            unowned.cards.insert(it.card());
        }
    }
    let known = PricedGpu {
        resource: it.resource,
        part: it.idle.part,
        second: own_second,
        last: own_last,
        payer: it.idle.payer.clone(),
        state: it.idle.state,
    };
    if it.is_free {
        let pool = idle::pool(&cluster, &node.pool, &model);
        let keeper = terms.owners.keeper(&pool, at.millis());
        it.idle.payer = Payer::Team(keeper.to_owned());
    }
    if !it.is_rest {
        let in_cluster = found.all.entry(cluster).or_default();
        in_cluster.insert(Arc::clone(&it.idle.key.id), known);
    }
    match it.idle.state {
        State::Draining => found.held_back.push(it.idle),
        _ if it.is_lost => found.held_back.push(it.idle),
        state if state.is_idle() && !is_standby => found.idle.push(it.idle),
        _ => {}
    }
}
