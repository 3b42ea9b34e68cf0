//! Days of the ledger: what they say, and what they are put together from.

use std::sync::Arc;

use gpufleet_telemetry::identity::Origin;
use serde::{Deserialize, Serialize};

use super::{DayTime, KnownResource};

/// What a day of a GPU or share needs beside its hours to be priced and charged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DayFacts {
    /// `live`, `recorded` or `simulated`.
    pub origin: Origin,
    /// The node it is on.
    pub node: String,
    /// The node's machine type; empty when not told, as with what follows.
    pub machine_type: String,
    /// Its region.
    pub region: String,
    /// Its zone.
    pub zone: String,
    /// On what terms it is paid: `on_demand`, `spot`, `reserved`.
    pub provisioning: String,
    /// The account it is paid by.
    pub account: String,
    /// Who provides it, as told: `gcp`, `aws`, `azure` or a name of one's own. Packed behind the others, because days of
    /// before do not have it.
    #[serde(skip)]
    pub provider: String,
    /// The provider's name of it.
    pub instance: String,
    /// The card's name.
    pub gpu_model: String,
    /// Of a share: its card.
    pub parent: String,
    /// Of a share: its part of the card, this many …
    pub slices: u32,
    /// … of so many.
    pub of: u32,
}

/// A GPU or share as one or many of its days tell of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DayOf {
    /// Its cluster.
    pub cluster: String,
    /// Its id.
    pub id: String,
    /// Whether it is a share of a card.
    pub is_share: bool,
    /// What it needs to be priced and charged.
    pub facts: DayFacts,
}

/// A day (UTC) of one GPU or share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerDay {
    /// Days since the Unix epoch.
    pub day: i64,
    /// Whose; days that were read together share it while it says the same.
    pub of: Arc<DayOf>,
    /// When it was accounted, Unix milliseconds, one after the other.
    pub spans: Vec<(i64, i64)>,
    /// Where its time went.
    pub times: Vec<DayTime>,
}

/// A day of one GPU or share that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadDay {
    /// Days since the Unix epoch.
    pub day: i64,
    /// The number of its resource.
    pub subject: i64,
    /// Its cluster.
    pub cluster: String,
}

/// An hour of a day.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DayHour {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// Where its time went.
    pub times: Vec<DayTime>,
    /// When in it that time is, Unix milliseconds, one stretch after the other; empty of one that is whole, and where
    /// that is not known.
    pub spans: Vec<(i64, i64)>,
}

/// What a day is put together from.
#[derive(Debug, Clone, PartialEq)]
pub struct DayInput {
    /// Days since the Unix epoch.
    pub day: i64,
    /// The store's number of the resource.
    pub subject: i64,
    /// The mark that the day had.
    pub mark: i64,
    /// The resource.
    pub resource: KnownResource,
    /// Its node.
    pub node: Option<KnownResource>,
    /// What the day said when it was put together last; none where it was not, or cannot be read.
    pub before: Option<DayFacts>,
    /// Of a share: how many its card has.
    pub siblings: u32,
    /// Its hours, those that are there, in their order.
    pub hours: Vec<DayHour>,
}
