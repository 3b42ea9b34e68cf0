//! What commitments cover of the nodes that there are now, and what a second of a GPU costs with that.
//!
//! Nodes are those that the month bills of an hour in which nothing changes: live ones that are paid on demand, of which an
//! agent tells or that the cluster lists. One that is silent counts as long as the cluster lists it, and not once that says
//! that it went, else for [`ACCOUNTED_FOR_NS`]. As in the report of all live clusters commitments of whatever cluster cover them
//! ([`standing`]), so what a GPU costs is told alike to whoever may see it.
//!
//! Limits: for pages one answer stands for [`STANDS_FOR_NS`]; without commitments nobody looks at any node.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_analysis::chargeback::standing::{Alike, Covered, standing};
use gpufleet_analysis::price_book::{Basis, Unpriced, second_of};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::terms::ask;
use super::{Machine, Terms};
use crate::fleet::Fleet;
use crate::inventory::Inventory;
use crate::view::contact::Contact;

/// For so long the ledger accounts for GPUs that fell silent.
const ACCOUNTED_FOR_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// How old an answer for pages may be: a tick.
const STANDS_FOR_NS: i64 = 10 * NANOS_PER_SECOND;

/// What commitments cover, by what nodes are alike in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CoveredNow(BTreeMap<Alike, Covered>);

/// What a second of a GPU costs with its part of the node, nano-units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecondPrice {
    /// As the month books it: the mean over all nodes like its own, covered or not.
    pub mean: i64,
    /// What one less would save: the price that no commitment covers, as long as that is paid for some of them.
    pub last: i64,
}

/// What is heard of a node.
#[derive(Default)]
struct Heard {
    resource: Option<Arc<Resource>>,
    has_gpus: bool,
    contact: Contact,
    at: Timestamp,
}

/// Nodes by what they are alike in and their provisioning.
type Kinds = BTreeMap<(Alike, String), u32>;

impl CoveredNow {
    /// As it is at a moment: a walk over everything where somebody committed to something.
    pub fn of((fleet, inventory): (&Fleet, &Inventory), terms: &Terms, at: Timestamp) -> Self {
        let (commitments, at_ms) = (terms.book.commitments(), at.millis());
        if commitments.is_empty() {
            return Self::default();
        }
        let mut nodes: BTreeMap<Alike, u32> = BTreeMap::new();
        for ((alike, provisioning), count) in kinds(fleet, inventory, at) {
            let machine = Machine {
                cluster: &alike.cluster,
                machine_type: &alike.machine_type,
                region: &alike.region,
                provisioning: &provisioning,
                gpu_model: "",
                gpus: 1,
            };
            let mut all = commitments.iter();
            let may_be_covered = all.any(|it| it.may_cover(&alike, at_ms));
            if may_be_covered && terms.machine(&machine, at_ms).1 == Basis::OnDemand {
                *nodes.entry(alike).or_default() += count;
            }
        }
        Self(standing(commitments, &nodes, at_ms))
    }

    /// What they cover of nodes like this one.
    fn like(&self, machine: &Machine<'_>) -> Option<&Covered> {
        // Most have no commitments: then no name is copied.
        (!self.0.is_empty()).then(|| self.0.get(&alike(machine)))?
    }
}

impl Terms {
    /// What one of its GPUs costs a second at a moment, with its part of the node.
    ///
    /// # Errors
    /// When there is no price, with the reason.
    pub fn gpu_second(
        &self,
        machine: &Machine<'_>,
        covered: &CoveredNow,
        at_ms: i64,
    ) -> Result<SecondPrice, Unpriced> {
        let priced = self.priced_as(machine, at_ms, at_ms + 1);
        let paid = priced.within(at_ms, at_ms + 1);
        let card = priced.card_beside(at_ms, at_ms + 1);
        let too_large = || Unpriced::TooLarge(paid.0.clone());
        let second = |hour: i64| second_of(hour, paid.2).ok_or_else(too_large);
        let asked = ask(machine, paid, at_ms, at_ms + 1);
        let stretches = self.book.quote_or_cards(&asked, card).into_iter();
        let mut quotes = stretches.map(|it| it.quote.map(|it| it.hour));
        let uncovered = quotes.next().unwrap_or(Err(Unpriced::NoMachine));
        let is_coverable = paid.1 == Basis::OnDemand && paid.0 == machine.machine_type;
        let covered = covered.like(machine).filter(|_| is_coverable);
        let Some(covered) = covered else {
            let own = second(uncovered?)?;
            return Ok(SecondPrice {
                mean: own,
                last: own,
            });
        };
        let whole = covered.is_whole().then_some(0);
        // Of what is covered whole nobody need know what it costs on demand.
        let uncovered = whole.map_or(uncovered, Ok)?;
        let mean = second(covered.hour(uncovered).ok_or_else(too_large)?)?;
        let last = match whole {
            Some(_) => mean,
            None => second(uncovered)?,
        };
        Ok(SecondPrice { mean, last })
    }
}

/// What is covered as it was last looked at, with by which terms and when.
#[derive(Default)]
pub(super) struct KeptCovered(Mutex<Option<(u64, Timestamp, Arc<CoveredNow>)>>);

impl KeptCovered {
    /// What is covered, looked at again where that is older than [`STANDS_FOR_NS`].
    pub(super) fn get(
        &self,
        (fleet, inventory): (&Fleet, &Inventory),
        terms: &Terms,
        at: Timestamp,
    ) -> Arc<CoveredNow> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, since, known)) = &*kept
            && *number == terms.number
            && (0..STANDS_FOR_NS).contains(&at.since(*since))
        {
            return Arc::clone(known);
        }
        let made = Arc::new(CoveredNow::of((fleet, inventory), terms, at));
        *kept = Some((terms.number, at, Arc::clone(&made)));
        made
    }
}

fn alike(machine: &Machine<'_>) -> Alike {
    Alike {
        machine_type: machine.machine_type.to_owned(),
        region: machine.region.to_owned(),
        cluster: machine.cluster.to_owned(),
    }
}

/// The live nodes that there are.
fn kinds(fleet: &Fleet, inventory: &Inventory, at: Timestamp) -> Kinds {
    let mut heard: HashMap<(Arc<str>, Arc<str>), Heard> = HashMap::new();
    fleet.visit(|live| {
        if live.origin != Origin::Live {
            return;
        }
        let name = (Arc::clone(&live.key.cluster), Arc::clone(&live.node));
        let node = heard.entry(name).or_default();
        node.contact.note(live);
        node.at = node.at.max(live.last_point);
        match live.key.kind {
            ResourceKind::Node => node.resource = Some(Arc::clone(&live.resource)),
            ResourceKind::Gpu | ResourceKind::Share => node.has_gpus = true,
            ResourceKind::Endpoint | ResourceKind::Rank => {}
        }
    });
    heard.retain(|(cluster, name), it| {
        let is_listed = inventory.is_listed(cluster, Some(&**name));
        let is_lately = at.since(it.at) < ACCOUNTED_FOR_NS;
        // The cluster may say what it likes of a node that is heard.
        let is_gone = it.contact.is_silent(at) && inventory.is_gone(cluster, name);
        it.has_gpus && (is_listed || (is_lately && !is_gone))
    });
    let mut kinds = Kinds::new();
    let mut add = |machine: &Machine<'_>| {
        let kind = (alike(machine), machine.provisioning.to_owned());
        *kinds.entry(kind).or_default() += 1;
    };
    for ((cluster, _), it) in &heard {
        add(&Machine::told(cluster, it.resource.as_deref(), "", 1));
    }
    let own = heard.keys().filter(|it| it.0 == *inventory.cluster());
    let told = inventory.told(own.map(|it| &*it.1));
    let known = inventory.known();
    let there = known.records().filter(|it| !it.is_gone());
    for record in there.filter(|it| !told.has(&it.node.name)) {
        add(&Machine::listed(inventory.cluster(), &record.node));
    }
    kinds
}
