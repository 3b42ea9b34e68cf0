//! What stands around the GPUs of hours that are computed: read for all hours of a round together.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::inventory::Phase;
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::states::Span;

use super::database::Transaction;
use super::error::StoreError;
use super::ledger::Inputs;
use super::model::DemandHour;
use super::{demand, notices, phases, standing, training, unheld};

/// What stands around one hour of a GPU or share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// Its node as the inventory names it; none where that does not know it.
    pub node: Option<String>,
    /// Since when, Unix milliseconds, its node is in which phase: the one in force when the hour begins, and
    /// those after it. Empty where the inventory does not know the node.
    pub phases: Vec<(i64, Phase)>,
    /// When its provider had said that it takes the machine back.
    pub taken_back: Vec<Span>,
    /// GPUs that were waited for in its cluster in that hour; none where nobody saw that.
    pub waited_for: Option<DemandHour>,
    /// The minutes in which GPUs like it were free for each reason: [`super::model::FreeHour::minutes`].
    pub free: [u64; 3],
    /// Its holders by their numbers, those that are known.
    pub holders: BTreeMap<i64, Holder>,
    /// Those of them that are training jobs.
    pub training: BTreeSet<i64>,
    /// When the run of each of them stood still; of those that did.
    pub standing: BTreeMap<i64, Vec<Span>>,
}

/// Hands each hour what stands around it.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    phases::read(transaction, lease, inputs).await?;
    notices::read(transaction, lease, inputs).await?;
    demand::read(transaction, lease, inputs).await?;
    unheld::read(transaction, lease, inputs).await?;
    training::read(transaction, lease, inputs).await?;
    standing::read(transaction, lease, inputs).await
}
