//! What the ranks of this node do together: where that is known from, or why it is not, and which
//! collective has been in flight for longer than it should.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_hooks_shm::reader::{CommunicatorTotals, Snapshot};
use gpufleet_hooks_shm::records::Collective;
use gpufleet_hooks_shm::words::{Collecting, WriterKind};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{CollectivesFrom, attribute};

use super::nccl_ras::standing::Standing;
use super::outside::Told;
use super::process::Process;

/// A collective in flight for this long is told, and for [`TIMES_LONGEST`] the longest that there was
/// on its communicator: the slowest that are well take seconds.
const STUCK_AFTER_NS: i64 = 60 * NANOS_PER_SECOND;

/// How many times the longest.
const TIMES_LONGEST: i64 = 3;

/// Most collectives that are remembered as told; beyond it all are forgotten.
const MAX_TOLD: usize = 1_024;

/// The variable that says which plugin NCCL loads, as the fingerprint has it.
const PLUGIN: &str = "NCCL_PROFILER_PLUGIN";

/// How a plugin of ours is told from others by its name.
const OURS: &str = "gpufleet";

/// Longest collective of each communicator, by its hash, nanoseconds.
pub(super) type Longest = BTreeMap<u64, u64>;

/// What a collective is the same by on every rank: communicator, function, number.
type Same = (u64, u64, u64);

/// Where what is known of a process' collectives comes from, or why nothing is.
pub(super) fn from(process: &Process, outside: Option<&Told>, is_asked: bool) -> CollectivesFrom {
    let of_nccl = |it: &&Snapshot| it.header.writer == Some(WriterKind::Nccl);
    let plugin = process.snapshots().find(of_nccl);
    let collecting = plugin.and_then(|it| it.together.collecting);
    match collecting {
        Some(Collecting::Timed) => return CollectivesFrom::Plugin,
        Some(Collecting::Untimed) => return CollectivesFrom::PluginUntimed,
        Some(Collecting::Silent) => return CollectivesFrom::Silent,
        Some(Collecting::OneRank) => return CollectivesFrom::OneRank,
        Some(Collecting::SwitchedOff | Collecting::NotSaid) | None => {}
    }
    if let Some(from @ (CollectivesFrom::Ras | CollectivesFrom::Inspector)) =
        outside.map(|it| it.from)
    {
        return from;
    }
    let script = process.script();
    let identity = script.and_then(|it| it.identity.as_ref());
    if identity.is_some_and(|it| it.world == 1) {
        return CollectivesFrom::OneRank;
    }
    if collecting == Some(Collecting::SwitchedOff) {
        return CollectivesFrom::SwitchedOff;
    }
    let pairs = script.and_then(|it| it.fingerprint.as_ref());
    let pairs = pairs.map_or(&[][..], |it| it.pairs.as_slice());
    match pairs.iter().find(|(name, _)| name == PLUGIN) {
        Some((_, name)) if name.contains(OURS) => CollectivesFrom::NotLoaded,
        Some((_, name)) if !name.is_empty() && name != "none" => CollectivesFrom::OtherPlugin,
        _ if !is_asked => CollectivesFrom::NotAsked,
        _ => outside.map_or(CollectivesFrom::NotYet, |it| it.from),
    }
}

/// Keeps the longest collective of each communicator.
pub(super) fn measure(snapshot: &Snapshot, longest: &mut Longest) {
    let together = &snapshot.together;
    for collective in &together.recent {
        if let Some(of) = communicator(snapshot, collective) {
            let before = longest.entry(of.communicator.hash).or_default();
            *before = (*before).max(collective.duration_ns);
        }
    }
    let is_there = |hash: &u64| {
        let mut all = together.communicators.iter();
        all.any(|it| it.communicator.hash == *hash)
    };
    longest.retain(|hash, _| is_there(hash));
}

fn communicator<'a>(
    snapshot: &'a Snapshot,
    collective: &Collective,
) -> Option<&'a CommunicatorTotals> {
    let mut all = snapshot.together.communicators.iter();
    all.find(|it| it.index == collective.communicator)
}

/// What was told to be stuck.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    told: BTreeSet<Same>,
    standing: BTreeSet<(u64, String, u64)>,
}

/// One rank of this node that waits in a collective.
struct Waiting<'a> {
    resource: &'a Arc<Resource>,
    communicator: &'a CommunicatorTotals,
    collective: &'a Collective,
}

impl Stuck {
    /// Whether a communicator that stands was not told yet; it counts as told from now on.
    pub(super) fn is_new(&mut self, standing: &Standing) -> bool {
        self.standing.insert((
            standing.communicator,
            standing.function.clone(),
            standing.number,
        ))
    }

    /// Collectives that are stuck and were not told yet, with the ranks of this node that are in them
    /// and those that are not.
    pub(super) fn of<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a Process> + Clone,
        now: Timestamp,
    ) -> Vec<Event> {
        let mut stuck: BTreeMap<Same, Vec<Waiting<'a>>> = BTreeMap::new();
        for process in processes.clone() {
            let Some(resource) = process.resource() else {
                continue;
            };
            for snapshot in process.snapshots() {
                for collective in &snapshot.together.in_flight {
                    let Some(communicator) = communicator(snapshot, collective) else {
                        continue;
                    };
                    let hash = communicator.communicator.hash;
                    let longest = process.longest.get(&hash).copied().unwrap_or(0);
                    let longest = i64::try_from(longest).unwrap_or(i64::MAX);
                    let limit = STUCK_AFTER_NS.max(longest.saturating_mul(TIMES_LONGEST));
                    if now.since(Timestamp(collective.started_at)) >= limit {
                        let same = (hash, collective.function.number(), collective.number);
                        stuck.entry(same).or_default().push(Waiting {
                            resource,
                            communicator,
                            collective,
                        });
                    }
                }
            }
        }
        if self.told.len() + self.standing.len() > MAX_TOLD {
            self.told.clear();
            self.standing.clear();
        }
        stuck.retain(|same, _| self.told.insert(*same));
        let told = stuck.values().filter_map(|waiting| {
            let elsewhere = not_in(waiting, processes.clone());
            stuck_event(waiting, &elsewhere, now)
        });
        told.collect()
    }
}

/// The ranks of this node on the communicator that are not in the collective, by their rank in it.
fn not_in<'a>(
    waiting: &[Waiting<'_>],
    processes: impl Iterator<Item = &'a Process>,
) -> BTreeSet<u64> {
    let Some(first) = waiting.first() else {
        return BTreeSet::new();
    };
    let (hash, collective) = (first.communicator.communicator.hash, first.collective);
    let mut ranks = BTreeSet::new();
    for snapshot in processes.flat_map(Process::snapshots) {
        let together = &snapshot.together;
        let communicators = together.communicators.iter();
        for of in communicators.filter(|it| it.communicator.hash == hash) {
            let is_in = together.in_flight.iter().any(|it| {
                it.communicator == of.index
                    && it.function == collective.function
                    && it.number == collective.number
            });
            if !is_in {
                ranks.insert(of.communicator.rank);
            }
        }
    }
    ranks
}

fn stuck_event(waiting: &[Waiting<'_>], not_in: &BTreeSet<u64>, now: Timestamp) -> Option<Event> {
    let oldest = waiting.iter().min_by_key(|it| it.collective.started_at)?;
    let ranks = waiting.iter().map(|it| it.communicator.communicator.rank);
    let (communicator, collective) = (&oldest.communicator.communicator, oldest.collective);
    let age_ns = now.since(Timestamp(collective.started_at)).max(0);
    let function = collective.function.text();
    Some(event(
        oldest.resource,
        now,
        format!(
            "{function} {} on a communicator of {} ranks has been in flight for {} s",
            collective.number,
            communicator.ranks,
            age_ns / NANOS_PER_SECOND
        ),
        [
            (
                attribute::COMMUNICATOR,
                format!("{:016x}", communicator.hash),
            ),
            (attribute::FUNCTION, function.to_owned()),
            (attribute::SEQUENCE, collective.number.to_string()),
            (
                attribute::AGE,
                (age_ns as f64 / NANOS_PER_SECOND as f64).to_string(),
            ),
            (attribute::SIZE, communicator.ranks.to_string()),
            (attribute::RANKS_IN, listed(ranks)),
            (attribute::RANKS_NOT_IN, listed(not_in.iter().copied())),
        ],
    ))
}

/// The event of a communicator that stands still, as NCCL's RAS service tells it.
pub(super) fn standing(resource: &Arc<Resource>, it: &Standing, now: Timestamp) -> Event {
    let not_in = it.behind.union(&it.missing).copied();
    let what = match it.function.is_empty() {
        true => "a communicator".to_owned(),
        false => format!("{} {} on a communicator", it.function, it.number),
    };
    event(
        resource,
        now,
        format!(
            "{what} of {} ranks stands still: {} ranks are behind, {} do not answer",
            it.size,
            it.behind.len(),
            it.missing.len()
        ),
        [
            (attribute::COMMUNICATOR, format!("{:016x}", it.communicator)),
            (attribute::FUNCTION, it.function.clone()),
            (attribute::SEQUENCE, it.number.to_string()),
            (attribute::SIZE, it.size.to_string()),
            (attribute::RANKS_NOT_IN, listed(not_in)),
        ],
    )
}

/// Numbers in order, as many as an attribute holds; the last is `…` where there are more.
fn listed(ranks: impl Iterator<Item = u64>) -> String {
    const MOST: usize = 32;
    let all: BTreeSet<u64> = ranks.collect();
    let some: Vec<String> = all.iter().take(MOST).map(u64::to_string).collect();
    let more = if all.len() > MOST { ",…" } else { "" };
    format!("{}{more}", some.join(","))
}

fn event<const COUNT: usize>(
    resource: &Arc<Resource>,
    at: Timestamp,
    message: String,
    attributes: [(&'static str, String); COUNT],
) -> Event {
    let attributes = attributes.into_iter();
    let attributes = attributes.filter(|(_, value)| !value.is_empty());
    Event {
        at,
        kind: EventKind::CollectiveStuck,
        severity: Severity::Error,
        resource_kind: ResourceKind::Rank,
        resource_id: Arc::clone(&resource.id),
        message,
        attributes: attributes
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    }
}
