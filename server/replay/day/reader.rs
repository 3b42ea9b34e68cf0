//! Reads the minutes, events and steps of a day, a piece at a time, and remembers what is the same in all of it.
//!
//! Limits: [`MAX_EVENTS`] events and [`MAX_ENTRIES`] steps in memory, [`MAX_RUNS`] runs; what is beyond is left out
//! and said. Of [`MAX_KNOWN`] resources and holders it is remembered what is the same; then it is read anew.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::{AgentId, Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::otlp::DecodedSteps;
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::training::RankId;

use super::super::{ReplayError, minutes};
use crate::fleet::FOREIGN_AGENT;
use crate::fleet::naming::origin_of;
use crate::runs::{RunKey, StepDelta};
use crate::store::model::{EventFilter, KnownResource, ResourceKey, StoredEvent};
use crate::store::{self, RunFilter, Store};

/// Most events of what is read at a time; of more the newest.
const MAX_EVENTS: usize = 100_000;

/// Most steps in memory, of all ranks, 32 bytes each: ten minutes of 20,000 ranks at a step a second, and a third more.
const MAX_ENTRIES: usize = 16_000_000;

/// Most resources, and most holders, that are remembered: as many as the fleet takes.
const MAX_KNOWN: usize = crate::fleet::MAX_RESOURCES;

/// Minutes of one row of steps.
const BUCKET: i64 = 10;

/// Most runs whose steps are looked for.
const MAX_RUNS: usize = crate::runs::MAX_RUNS;

/// What was read of some minutes.
#[derive(Default)]
pub(super) struct Read {
    pub(super) resources: Vec<KnownResource>,
    /// By minute; each with the place of its resource.
    pub(super) rows: BTreeMap<i64, Vec<(usize, MinuteRow)>>,
    /// Rows of the fullest minute.
    pub(super) most_rows: usize,
    /// The oldest first.
    pub(super) events: VecDeque<StoredEvent>,
}

/// A resource as it was last described: of today, who held it, and as it was with him.
type Described = (Arc<Resource>, Option<i64>, Arc<Resource>);

/// Reads the store, and remembers what is the same from minute to minute.
pub(super) struct Reader<'a> {
    store: &'a Store,
    cluster: Option<&'a str>,
    /// Who tells of each rank.
    ranks: HashMap<ResourceKey, AgentId>,
    described: HashMap<ResourceKey, Described>,
    /// Who holders are, by number; none is not known.
    holders: HashMap<i64, Option<Holder>>,
    senders: HashMap<Arc<str>, Arc<Resource>>,
    /// Runs with the minutes from their start to when they were last heard.
    runs: Vec<(RunKey, i64, i64)>,
    /// Steps that are to come, by rank; in the order of time.
    steps: BTreeMap<(RunKey, u32), VecDeque<StepBlock>>,
    entries: usize,
    bucket: Option<i64>,
    unreadable: usize,
    events_left_out: bool,
    steps_left_out: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(store: &'a Store, cluster: Option<&'a str>) -> Self {
        Self {
            store,
            cluster,
            ranks: HashMap::new(),
            described: HashMap::new(),
            holders: HashMap::new(),
            senders: HashMap::new(),
            runs: Vec::new(),
            steps: BTreeMap::new(),
            entries: 0,
            bucket: None,
            unreadable: 0,
            events_left_out: false,
            steps_left_out: false,
        }
    }

    /// Whether a resource, event or run of this cluster is replayed.
    fn is_wanted(&self, cluster: &str) -> bool {
        let is_named = self.cluster.is_none_or(|it| it == cluster);
        is_named && origin_of(cluster) != Origin::Recorded
    }

    /// The minutes of all resources in a range, and its events.
    pub(super) async fn read(&mut self, from: i64, until: i64) -> Result<Read, ReplayError> {
        let mut read = Read::default();
        let mut after = 0;
        if self.ranks.len() >= MAX_KNOWN {
            // Those that go on are in the pages that follow.
            self.ranks.clear();
        }
        loop {
            let minutes = Minute(from)..Minute(until);
            let page = self.store.minutes_page(minutes, after, store::MAX_EXPORTED);
            let page = page.await?;
            self.unreadable += page.unreadable;
            let first = read.resources.len();
            for (minute, place, row) in page.rows {
                if self.is_wanted(&page.resources[place].key.cluster) {
                    let rows = read.rows.entry(minute.0).or_default();
                    rows.push((first + place, row));
                }
            }
            for known in &page.resources {
                if known.key.kind == ResourceKind::Rank {
                    let agent = known.agent.unwrap_or(FOREIGN_AGENT);
                    self.ranks.insert(known.key.clone(), agent);
                }
            }
            read.resources.extend(page.resources);
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        read.most_rows = read.rows.values().map(Vec::len).max().unwrap_or(0);
        self.know_holders(&read).await?;
        read.events = self
            .events(Minute(from).start(), Minute(until).start())
            .await?;
        Ok(read)
    }

    async fn events(
        &mut self,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<VecDeque<StoredEvent>, ReplayError> {
        let filter = EventFilter {
            cluster: self.cluster.map(Arc::from),
            from: Some(from),
            until: Some(until),
            ..EventFilter::default()
        };
        let (mut found, mut before) = (VecDeque::new(), None);
        loop {
            let page = self
                .store
                .events(&filter, before, store::MAX_EVENTS)
                .await?;
            for stored in page.events {
                if self.is_wanted(&stored.cluster) {
                    found.push_front(stored);
                }
            }
            before = page.next;
            if before.is_none() {
                return Ok(found);
            }
            if found.len() >= MAX_EVENTS {
                self.events_left_out = true;
                return Ok(found);
            }
        }
    }

    /// A resource as it was in a tick: with the cluster that it is in, and who held it.
    pub(super) fn described(
        &mut self,
        known: &KnownResource,
        row: &MinuteRow,
        tick: u32,
    ) -> Arc<Resource> {
        let is_card = matches!(known.key.kind, ResourceKind::Gpu | ResourceKind::Share);
        let number = match is_card {
            true => minutes::holder(row, tick),
            false => None,
        };
        if let Some((today, before, then)) = self.described.get_mut(&known.key)
            && *before == number
            && (Arc::ptr_eq(today, &known.resource) || *today == known.resource)
        {
            // Each read has copies of its own: the next tick of this one has the same.
            *today = Arc::clone(&known.resource);
            return Arc::clone(then);
        }
        let mut then = Resource::clone(&known.resource);
        let cluster = known.key.cluster.to_string();
        then.attributes
            .insert(attribute::CLUSTER.to_owned(), cluster);
        let of_today = Holder::told_by(&known.resource).map(|it| it.number());
        if is_card && number != Some(of_today.unwrap_or(0)) {
            let held_by = number.and_then(|it| self.holders.get(&it)?.as_ref());
            hold(&mut then, held_by);
        }
        let (today, then) = (Arc::clone(&known.resource), Arc::new(then));
        let kept = (today, number, Arc::clone(&then));
        if self.described.len() >= MAX_KNOWN {
            self.described.clear();
        }
        self.described.insert(known.key.clone(), kept);
        then
    }

    /// Looks up who holds what in these minutes.
    async fn know_holders(&mut self, read: &Read) -> Result<(), ReplayError> {
        if self.holders.len() >= MAX_KNOWN {
            self.holders.clear();
        }
        let rows = read.rows.values().flatten();
        let numbers = rows.flat_map(|(_, row)| row.holders.keys().copied());
        let strangers = numbers.filter(|it| !self.holders.contains_key(it));
        let strangers: BTreeSet<i64> = strangers.collect();
        if strangers.is_empty() {
            return Ok(());
        }
        let mut found = self.store.holders(&strangers).await?;
        let known = strangers.into_iter().map(|it| (it, found.remove(&it)));
        self.holders.extend(known);
        Ok(())
    }

    /// Who tells an event or steps of a cluster.
    pub(super) fn sender(&mut self, cluster: &Arc<str>) -> Arc<Resource> {
        let make = || {
            let node = Resource::new(ResourceKind::Node, "replayed");
            let node = node.with(attribute::CLUSTER, &**cluster);
            Arc::new(node.with(attribute::ORIGIN, origin_of(cluster).name()))
        };
        let known = self.senders.entry(Arc::clone(cluster));
        Arc::clone(known.or_insert_with(make))
    }

    /// The runs that were heard in a range of minutes.
    pub(super) async fn find_runs(&mut self, from: i64, until: i64) -> Result<(), ReplayError> {
        let filter = RunFilter {
            cluster: self.cluster.map(Arc::from),
            heard_since: Some(Minute(from).start()),
            ..RunFilter::default()
        };
        let mut after = None;
        loop {
            let (page, next) = self
                .store
                .runs(&filter, after, store::MAX_RUNS_READ)
                .await?;
            for run in page {
                let began = run.facts.started.map_or(from, |at| at.minute().0);
                if began < until && self.is_wanted(&run.key.cluster) {
                    self.runs.push((run.key, began, run.facts.heard.minute().0));
                }
            }
            after = next;
            if after.is_none() {
                return Ok(());
            }
            if self.runs.len() >= MAX_RUNS {
                self.steps_left_out = true;
                return Ok(());
            }
        }
    }

    /// Reads the steps of the ten minutes that a minute is in, unless they were.
    pub(super) async fn find_steps(&mut self, minute: i64) -> Result<(), ReplayError> {
        let bucket = minute.div_euclid(BUCKET);
        if self.bucket.replace(bucket) == Some(bucket) {
            return Ok(());
        }
        let is_in = |began: i64, heard: i64| {
            // A rank may be older than its run's first word, and heard is told every five minutes.
            began - BUCKET < (bucket + 1) * BUCKET && heard + BUCKET >= bucket * BUCKET
        };
        for (key, began, heard) in &self.runs {
            if !is_in(*began, *heard) {
                continue;
            }
            let (steps, entries) = (&mut self.steps, &mut self.entries);
            let mut is_full = false;
            let take = |delta: StepDelta| {
                let of = delta.blocks.iter().map(|it| it.times.len());
                *entries += of.sum::<usize>();
                is_full = *entries > MAX_ENTRIES;
                if is_full {
                    return ControlFlow::Break(());
                }
                let waiting = steps.entry((delta.key, delta.rank)).or_default();
                waiting.extend(delta.blocks);
                ControlFlow::Continue(())
            };
            let buckets = bucket..bucket + 1;
            let read = self.store.each_steps(key, (None, 1), buckets, take);
            read.await?;
            self.steps_left_out |= is_full;
        }
        Ok(())
    }

    /// The steps that ended by this moment, each with who tells them.
    pub(super) fn steps_until(&mut self, end: Timestamp) -> Vec<(AgentId, DecodedSteps)> {
        let mut found = Vec::new();
        for ((key, rank), waiting) in &mut self.steps {
            let mut blocks = Vec::new();
            while let Some(first) = waiting.front_mut() {
                let Some(over) = cut(first, end) else {
                    break;
                };
                self.entries = self.entries.saturating_sub(over.times.len());
                blocks.push(over);
                if first.times.is_empty() {
                    waiting.pop_front();
                }
            }
            let of = key.rank(*rank);
            if let (false, Ok(id)) = (blocks.is_empty(), RankId::parse(&of.id)) {
                let agent = self.ranks.get(&of).copied().unwrap_or(FOREIGN_AGENT);
                found.push((agent, of.cluster, id, blocks));
            }
        }
        self.steps.retain(|_, waiting| !waiting.is_empty());
        let told = found.into_iter().map(|(agent, cluster, rank, blocks)| {
            let sender = self.sender(&cluster);
            let steps = DecodedSteps {
                sender,
                rank,
                blocks,
            };
            (agent, steps)
        });
        told.collect()
    }

    /// What was left out, and where the day begins.
    pub(super) fn notes(&self, oldest: i64, begins: i64) -> Vec<String> {
        let mut notes = Vec::new();
        match oldest - begins {
            0.. => notes.push(
                "The store has nothing before that, so what detectors learn over time they learnt in the day itself."
                    .to_owned(),
            ),
            _ => notes.push("The hour before was played first, so that what detectors remember was there.".to_owned()),
        }
        if self.unreadable > 0 {
            notes.push(format!(
                "{} rows of the store cannot be read.",
                self.unreadable
            ));
        }
        if self.events_left_out {
            notes.push(
                "There were more events than are taken: the oldest of some hours are left out."
                    .to_owned(),
            );
        }
        if self.steps_left_out {
            notes.push(
                "There were more steps than are taken: those of some ranks are left out."
                    .to_owned(),
            );
        }
        notes
    }
}

/// Says of a resource that this one holds it, or that nobody is known to.
fn hold(resource: &mut Resource, holder: Option<&Holder>) {
    for name in attribute::OF_HOLDER {
        resource.attributes.remove(name);
    }
    let Some(holder) = holder else {
        return;
    };
    for (name, value) in [
        (attribute::HOLDER, &holder.name),
        (attribute::WORKLOAD, &holder.job),
        (attribute::NAMESPACE, &holder.namespace),
    ] {
        if !value.is_empty() {
            resource.attributes.insert(name.to_owned(), value.clone());
        }
    }
    if holder.is_starting {
        let starting = attribute::HOLDER_STARTING.to_owned();
        resource.attributes.insert(starting, "true".to_owned());
    }
}

/// Takes from the front of a block the steps that ended by a moment; none when there are none.
fn cut(block: &mut StepBlock, end: Timestamp) -> Option<StepBlock> {
    if block.ended_at <= end {
        let rest = StepBlock {
            times: Vec::new(),
            ..block.clone()
        };
        return Some(std::mem::replace(block, rest)).filter(|it| !it.times.is_empty());
    }
    let ends: Vec<Timestamp> = block.ends().take_while(|it| *it <= end).collect();
    let last = *ends.last()?;
    let rest = block.times.split_off(ends.len());
    let over = StepBlock {
        ended_at: last,
        times: std::mem::replace(&mut block.times, rest),
        ..*block
    };
    block.first_step += ends.len() as u64 * block.steps_per_entry();
    (block.started_at, block.tokens, block.samples) = (last, 0, 0);
    Some(over)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::steps::StepTimes;
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;

    #[test]
    fn a_block_is_told_as_far_as_its_steps_have_ended() {
        let start = Timestamp::from_seconds(1_795_000_000);
        let at = |seconds: i64| start.shifted(seconds * NANOS_PER_SECOND);
        let times = StepTimes {
            wall_ns: 4_000_000_000,
            ..StepTimes::default()
        };
        let whole = StepBlock {
            first_step: 100,
            steps_log2: 1,
            started_at: start,
            ended_at: at(40),
            tokens: 7,
            samples: 7,
            times: vec![times; 10],
        };
        let mut block = whole.clone();
        assert_eq!(cut(&mut block, at(3)), None);
        let mut told = Vec::new();
        for tick in 1..=4 {
            let piece = cut(&mut block, at(tick * 10)).expect("some have ended");
            told.push((
                piece.first_step,
                piece.times.len(),
                piece.started_at,
                piece.ended_at,
            ));
        }
        let expected = [
            (100, 2, at(0), at(8)),
            (104, 3, at(8), at(20)),
            (110, 2, at(20), at(28)),
            (114, 3, at(28), at(40)),
        ];
        assert_eq!(told, expected);
        assert!(block.times.is_empty());
        assert_eq!(cut(&mut block, at(50)), None, "it is told once");
    }

    #[test]
    fn a_gpu_is_held_by_whom_it_was_held_then() {
        let mut gpu = Resource::new(ResourceKind::Gpu, "GPU-1")
            .with(attribute::HOLDER, "pod:team/today-0")
            .with(attribute::POD, "today-0")
            .with(attribute::GPU_MODEL, "NVIDIA H100");
        let holder = Holder {
            name: "job:team/then".to_owned(),
            job: "job:team/then".to_owned(),
            namespace: "team".to_owned(),
            ..Holder::default()
        };
        hold(&mut gpu, Some(&holder));
        assert_eq!(gpu.attribute(attribute::HOLDER), Some("job:team/then"));
        assert_eq!(gpu.attribute(attribute::POD), None);
        assert_eq!(gpu.attribute(attribute::HOLDER_STARTING), None);
        let starts = Holder {
            is_starting: true,
            ..holder.clone()
        };
        hold(&mut gpu, Some(&starts));
        assert_eq!(gpu.attribute(attribute::HOLDER_STARTING), Some("true"));
        assert_eq!(gpu.attribute(attribute::GPU_MODEL), Some("NVIDIA H100"));
        hold(&mut gpu, None);
        assert_eq!(Holder::told_by(&gpu), None);
    }
}
