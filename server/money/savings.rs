//! What could be saved: holders that could do with fewer or smaller GPUs, and whole nodes that stand free by habit.
//!
//! The judgement is analysis' (`right_size`, `shutdown`); here is what it is asked with. Of each holder of the
//! moment the last seven days: the hours in which it had each of its GPUs (the ledger), and of these the ten-minute rows. They
//! hold the peak and the mean of each metric and are kept for a month on either database; minutes are not. Of nodes the
//! last four whole weeks of the ledger.
//!
//! Limits: [`MAX_GPUS`] GPUs are looked at, [`MAX_OF_ONE`] of one holder, the dearest holders first; who is not
//! looked at is counted. An answer is made again at most once in [`FRESH_FOR`], one at a time, and no page waits for
//! it: the last one stands meanwhile, for [`STANDS_FOR`] at most. What walks over every GPU is done on a thread apart
//! from those that answer.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use gpufleet_analysis::owner::{Holder, Payer};
use gpufleet_analysis::price_book::Basis;
use gpufleet_analysis::report::efficiency::Advised;
use gpufleet_analysis::right_size::{Held, Proposal, Silent, right_size};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::advice;
use super::now::{self, MoneySnapshot, PricedGpu};
use super::{Machine, Terms};
use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::store::StoreError;
use crate::store::model::ResourceKey;
use crate::threads::apart;

mod cards;

mod committed;

mod measure;

mod nodes;

pub mod reached;

#[cfg(test)]
mod fixture;

use committed::Committed;
pub(crate) use measure::measure;
pub use nodes::Off;
use reached::Reached;

/// How long an answer is kept: it is of days and weeks.
const FRESH_FOR: Duration = Duration::from_secs(3_600);

/// And that of a server that has just begun, whose fleet is still to be heard.
const AT_FIRST: Duration = Duration::from_secs(60);

/// How old the last answer may be while the next one is made: for a reader who did not look since Friday it names the jobs
/// of Friday.
const STANDS_FOR: Duration = Duration::from_secs(2 * 3_600);

/// Most readers with rights of their own whose answers are kept.
const KEPT: usize = 16;

/// Of so long what was advised is shown, milliseconds: 30 days.
const ADVISED_FOR: i64 = 30 * 86_400_000;

/// Most GPUs that are looked at: each is a thousand rows.
const MAX_GPUS: usize = 128;

/// Most GPUs of one holder that are looked at.
const MAX_OF_ONE: usize = 4;

/// A holder that could do with less.
#[derive(Debug, Clone, PartialEq)]
pub struct RightSize {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// Where its data comes from.
    pub origin: Origin,
    /// Its job.
    pub job: String,
    /// Who pays.
    pub payer: Payer,
    /// How many GPUs it has.
    pub gpus: u32,
    /// Of which card.
    pub card: String,
    /// How many were looked at.
    pub looked_at: usize,
    /// What would do.
    pub proposal: Proposal,
}

#[cfg(test)]
impl RightSize {
    /// A live job of `prod` that has eight big GPUs and could do with four small ones.
    pub(crate) fn for_tests(job: &str, payer: Payer) -> Self {
        Self {
            cluster: "prod".into(),
            origin: Origin::Live,
            job: job.to_owned(),
            payer,
            gpus: 8,
            card: "big".to_owned(),
            looked_at: 4,
            proposal: Proposal {
                gpus: 4,
                card: "small".to_owned(),
                saved_per_day: 1_760_000_000_000,
                measured: gpufleet_analysis::right_size::Measured::default(),
                confidence: gpufleet_analysis::right_size::Confidence::Low,
            },
        }
    }
}

/// What could be saved.
#[derive(Debug, Default)]
pub struct Savings {
    /// When it began to be made.
    pub at: Timestamp,
    /// What money is counted in.
    pub currency: String,
    /// Holders that could do with less, the most saving first.
    pub right_size: Vec<RightSize>,
    /// Holders of which nothing is said, by why, counted.
    pub silent: BTreeMap<Silent, usize>,
    /// Holders whose card has no price or no known figures.
    pub unknown: usize,
    /// Holders that were not looked at, because there are so many.
    pub more: usize,
    /// Nodes that could be off, the most saving first.
    pub off: Vec<Off>,
    /// What MFU runs reached that ended.
    pub reached: Reached,
    /// What was advised in the time before, whatever its origin.
    pub advised: Advised,
    /// That time, milliseconds since the epoch.
    pub advised_in: Range<i64>,
}

/// Answers as they were last made, by the cluster that a reader is bound to.
pub struct Kept(Answers<Option<Arc<str>>, Savings, Arc<str>>);

impl Default for Kept {
    fn default() -> Self {
        Self(Answers::growing(AT_FIRST..FRESH_FOR, KEPT, 1))
    }
}

impl Kept {
    /// The answer for a reader.
    ///
    /// # Errors
    /// When the store does not answer, with its words.
    pub async fn get(
        &self,
        app: &App,
        specs: &Arc<Specs>,
        grant: &Grant,
        at: Timestamp,
    ) -> Result<Arc<Savings>, Arc<str>> {
        let (own, specs, seen) = (app.clone(), Arc::clone(specs), grant.clone());
        let making = async move {
            let made = make(&own, &specs, &seen, at).await;
            made.map_err(|error| Arc::from(error.to_string()))
        };
        self.0.get(grant.cluster.clone(), &app.clock, making).await
    }

    /// The answer for a reader as it was last made; none before the first, and none where that is older than
    /// [`STANDS_FOR`]. One that is no longer fresh is made anew meanwhile.
    pub fn last(
        &self,
        app: &App,
        specs: &Arc<Specs>,
        grant: &Grant,
        at: Timestamp,
    ) -> Option<Arc<Savings>> {
        let last = self.0.last_within(&grant.cluster, &app.clock, STANDS_FOR);
        match self.get(app, specs, grant, at).now_or_never() {
            Some(Ok(fresh)) => Some(fresh),
            // It is being made, to its end; or the store did not answer, which the next look finds out.
            Some(Err(_)) | None => last,
        }
    }
}

async fn make(
    app: &App,
    specs: &Arc<Specs>,
    grant: &Grant,
    at: Timestamp,
) -> Result<Savings, StoreError> {
    let terms = app.money.terms();
    let found = now::walked(app, &terms, grant, at).await;
    let reached = reached::read(&app.store, &found, specs, grant.cluster.as_ref(), at).await?;
    let (own, specs) = (app.clone(), Arc::clone(specs));
    let (prices, all) = (Arc::clone(&terms), Arc::clone(&found));
    let choosing = move || choose(&own, &prices, &specs, &all, at);
    let (chosen, committed, mut savings) = apart(choosing).await;
    for it in chosen {
        let mut measured = Vec::with_capacity(it.looked_at.len());
        for key in &it.looked_at {
            measured.push(measure(&app.store, key, it.number, at).await?);
        }
        let held = Held {
            gpus: it.gpus,
            measured,
            card: it.choice.card,
        };
        match right_size(&held, &it.choice.others) {
            Ok(proposal) => savings.right_size.push(RightSize {
                cluster: it.cluster,
                origin: it.origin,
                job: it.job,
                payer: it.payer,
                gpus: held.gpus,
                card: held.card.name,
                looked_at: it.looked_at.len(),
                proposal,
            }),
            Err(why) => *savings.silent.entry(why).or_default() += 1,
        }
    }
    let saved = |it: &RightSize| std::cmp::Reverse(it.proposal.saved_per_day);
    savings.right_size.sort_by_key(saved);
    savings.reached = reached;
    savings.off = nodes::off(app, &terms, &found, committed, at).await?;
    let since = Timestamp::from_millis(at.millis() - ADVISED_FOR);
    let cluster = grant.cluster.as_deref();
    savings.advised = advice::kept(&app.store, since..at, cluster).await?;
    savings.advised_in = since.millis()..at.millis();
    Ok(savings)
}

/// A holder that is looked at.
struct Chosen {
    cluster: Arc<str>,
    origin: Origin,
    job: String,
    payer: Payer,
    number: i64,
    gpus: u32,
    /// Those of its GPUs that are looked at.
    looked_at: Vec<ResourceKey>,
    choice: Choice,
}

/// Who is looked at, with what is committed to and the counts of those who are not: a walk over every GPU.
fn choose(
    app: &App,
    terms: &Terms,
    specs: &Specs,
    found: &MoneySnapshot,
    at: Timestamp,
) -> (Vec<Chosen>, Committed, Savings) {
    let mut savings = Savings {
        at,
        currency: terms.sources.cost.currency.clone(),
        ..Savings::default()
    };
    let committed = Committed::of(app, terms, found, at);
    let (mut chosen, mut room) = (Vec::new(), MAX_GPUS);
    for holder in holders(found) {
        if room == 0 {
            savings.more += 1;
            continue;
        }
        let Some(choice) = asked(app, (terms, &committed), specs, &holder, at) else {
            savings.unknown += 1;
            continue;
        };
        if choice.is_committed {
            *savings.silent.entry(Silent::Committed).or_default() += 1;
            continue;
        }
        let mut looked_at = holder.gpus;
        let gpus = u32::try_from(looked_at.len()).unwrap_or(u32::MAX);
        looked_at.truncate(MAX_OF_ONE.min(room));
        room -= looked_at.len();
        chosen.push(Chosen {
            cluster: Arc::clone(&looked_at[0].cluster),
            origin: holder.first.resource.origin(),
            job: holder.holder.job,
            payer: holder.first.payer.clone(),
            number: holder.number,
            gpus,
            looked_at,
            choice,
        });
    }
    (chosen, committed, savings)
}

/// GPUs that one holder has now, all of one card.
struct Holding<'a> {
    holder: Holder,
    number: i64,
    first: &'a PricedGpu,
    gpus: Vec<ResourceKey>,
}

/// Every holder of whole GPUs, the one with the most GPUs first.
fn holders(found: &MoneySnapshot) -> Vec<Holding<'_>> {
    let mut all: BTreeMap<(&Arc<str>, i64, &str), Holding<'_>> = BTreeMap::new();
    for (cluster, gpus) in &found.all {
        for (id, gpu) in gpus {
            let resource = &gpu.resource;
            if resource.kind != ResourceKind::Gpu || gpu.payer == Payer::Nobody {
                continue;
            }
            let Some(holder) = Holder::told_by(resource) else {
                continue;
            };
            let model = resource.attribute(attribute::GPU_MODEL).unwrap_or_default();
            let number = holder.number();
            let holding = all.entry((cluster, number, model));
            let holding = holding.or_insert_with(|| Holding {
                holder,
                number,
                first: gpu,
                gpus: Vec::new(),
            });
            holding.gpus.push(ResourceKey {
                cluster: Arc::clone(cluster),
                kind: ResourceKind::Gpu,
                id: Arc::clone(id),
            });
        }
    }
    let mut all: Vec<Holding<'_>> = all.into_values().collect();
    for it in &mut all {
        it.gpus.sort();
    }
    // What is simulated stands behind what is live.
    let rank = |it: &Holding<'_>| {
        let second = i128::from(it.first.last.unwrap_or(0));
        let dear = second * i128::try_from(it.gpus.len()).unwrap_or(0);
        (
            it.first.resource.origin() != Origin::Live,
            std::cmp::Reverse(dear),
        )
    };
    all.sort_by_key(rank);
    all
}

/// A holder's card and what it could have instead.
struct Choice {
    card: gpufleet_analysis::right_size::Card,
    others: Vec<gpufleet_analysis::right_size::Card>,
    /// Whether its machines are paid for whether they are used or not.
    is_committed: bool,
}

/// None where its card has no price or no known figures.
fn asked(
    app: &App,
    (terms, committed): (&Terms, &Committed),
    specs: &Specs,
    holding: &Holding<'_>,
    at: Timestamp,
) -> Option<Choice> {
    let resource = &holding.first.resource;
    let model = resource.attribute(attribute::GPU_MODEL)?;
    let card = cards::card(specs.lookup(model)?, holding.first.last?)?;
    let cluster = &holding.gpus[0].cluster;
    let node = node(
        app,
        cluster,
        resource.attribute(attribute::NODE).unwrap_or_default(),
    );
    let machine = Machine::told(cluster, node.as_deref(), model, 1);
    let (_, basis, _) = terms.machine(&machine, at.millis());
    // Of a machine that is bought nothing else is to be had, and of one whose like are all committed to nobody asks.
    let is_committed = committed.covers(&machine, (resource.origin(), basis));
    let is_rented = basis != Basis::Own;
    let others = match is_rented && !is_committed {
        true => cards::to_be_had(terms, specs, (machine.region, basis), at.millis()),
        false => Vec::new(),
    };
    Some(Choice {
        card,
        others,
        is_committed,
    })
}

fn node(
    app: &App,
    cluster: &Arc<str>,
    name: &str,
) -> Option<Arc<gpufleet_telemetry::identity::Resource>> {
    let key = ResourceKey {
        cluster: Arc::clone(cluster),
        kind: ResourceKind::Node,
        id: name.into(),
    };
    app.fleet.look(&key, |it| Arc::clone(&it.resource))
}

/// A node: its cluster and its name.
type ByName<'a> = (&'a Arc<str>, &'a str);

/// GPUs and shares by the node that they are on.
fn by_node(found: &MoneySnapshot) -> HashMap<ByName<'_>, Vec<(&Arc<str>, &PricedGpu)>> {
    let mut nodes: HashMap<ByName<'_>, Vec<_>> = HashMap::new();
    for (cluster, gpus) in &found.all {
        for (id, gpu) in gpus {
            if let Some(node) = gpu.resource.attribute(attribute::NODE) {
                nodes.entry((cluster, node)).or_default().push((id, gpu));
            }
        }
    }
    nodes
}
