//! The tick under way, on disk: what was read since the last tick was spooled, so that an agent that is
//! killed loses nothing of it and a machine that loses its power at most a second.
//!
//! Each round of a reader is appended as it comes and made safe every `spool.sync_seconds`. When its tick
//! is in the spool it is forgotten. An agent that finds rounds at its start makes the tick of them that its
//! predecessor could not make. What it cannot read it sets aside: some seconds of readings are not worth the
//! start of the agent.
//!
//! Limits: [`MOST_BYTES`], [`SEGMENT_BYTES`].
//!
//! The format is the spool's, in a folder of its own, so that a torn end is cut and a newer one told; a
//! record is a byte with its [`VERSION`] and a [`Record`] in postcard, which says nothing of its own shape: of
//! another version nothing is read. Two records stand around the append of a tick to the spool: where
//! it will lie, and that it lies there. By them a tick is told apart that was spooled just before the end.
//! What a tick of several requests had not spooled of them by then is lost.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use gpufleet_spool::disk::{Disk, RealDisk};
use gpufleet_spool::{Limits, Spool, SpoolError};
use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::sample::Readings;
use gpufleet_telemetry::tick::ResourceTick;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::attribute::SOURCE;
use crate::read::NodeFacts;
use crate::sample::collect::Collector;
use crate::sample::{Round, SampleConfig, nanos};

/// The folder in the state folder.
pub const FOLDER: &str = "under_way";

/// Where what cannot be read is set aside, until the next that cannot.
const ASIDE: &str = "under_way.unreadable";

/// The version of a record: another one whenever anything that is in it changes its shape.
const VERSION: u8 = 1;

/// Bytes on disk: a tick of a minute on the largest node is 16 MiB, and one waits for its segment.
const MOST_BYTES: u64 = 64 << 20;

/// Size at which a file is closed; it is removed when the ticks in it are spooled.
const SEGMENT_BYTES: u64 = 1 << 20;

/// One record. `Found` is what is read: borrowed when it is written.
#[derive(Debug, Serialize, Deserialize)]
enum Record<Found> {
    /// A reader came back with something.
    Round {
        /// The node that it was read on: a copied state folder brings another's along.
        node: String,
        reader: String,
        period: Duration,
        /// How long ticks are.
        interval: Duration,
        at: Timestamp,
        readings: Found,
    },
    /// The tick that ends here is about to be spooled at this place.
    Closing {
        end: Timestamp,
        epoch: Epoch,
        seq: u64,
    },
    /// The tick that ends here is spooled, or lost for good.
    Closed { end: Timestamp },
}

/// A round as it was found again.
struct Kept {
    epoch: Epoch,
    seq: u64,
    reader: String,
    period: Duration,
    interval: Duration,
    at: Timestamp,
    readings: Readings,
}

/// The record of a round; none of one that failed.
pub fn record(
    node: &str,
    reader: &str,
    period: Duration,
    interval: Duration,
    round: &Round,
) -> Option<Vec<u8>> {
    let readings = round.result.as_ref().ok()?;
    let record = Record::Round {
        node: node.to_owned(),
        reader: reader.to_owned(),
        period,
        interval,
        at: round.at,
        readings,
    };
    Some(encoded(&record))
}

fn encoded<Found: Serialize>(record: &Record<Found>) -> Vec<u8> {
    postcard::to_extend(record, vec![VERSION]).expect("readings are plain data")
}

/// The record in these bytes.
fn decoded(bytes: &[u8]) -> Result<Record<Readings>, String> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => postcard::from_bytes(rest).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!(
            "it has version {version}, and this agent reads {VERSION}"
        )),
        None => Err("it is empty".to_owned()),
    }
}

/// Whether these bytes are a record.
pub fn understands(bytes: &[u8]) -> bool {
    decoded(bytes).is_ok()
}

/// What is kept of the tick under way.
pub struct UnderWay<D: Disk> {
    spool: Spool<D>,
    /// The rounds whose tick is not spooled, by place and time.
    waiting: VecDeque<(u64, Timestamp)>,
}

impl UnderWay<RealDisk> {
    /// What is kept in this state folder, and the ticks of it ([`Self::recover`]). What cannot be read is set
    /// aside, and it begins empty.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub fn begin(
        state_folder: &Path,
        node: &Arc<NodeFacts>,
        next_seq: impl Fn(Epoch) -> u64,
        now: Timestamp,
    ) -> anyhow::Result<(Self, Vec<Vec<ResourceTick>>)> {
        let folder = state_folder.join(FOLDER);
        let attempt = || {
            let disk = RealDisk::open(&folder).with_context(|| {
                let path = folder.display();
                format!(
                    "cannot use {path}: set node.state_folder to a folder that this user may write"
                )
            })?;
            let mut found = Self::on(disk, now)?;
            let ticks = found.recover(node, &next_seq)?;
            Ok((found, ticks))
        };
        attempt().or_else(|error: anyhow::Error| {
            let aside = state_folder.join(ASIDE);
            let moved = match fs::remove_dir_all(&aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => fs::rename(&folder, &aside),
            };
            if moved.is_err() {
                return Err(error);
            }
            tracing::warn!(
                error = format!("{error:#}"),
                aside = %aside.display(),
                "what was kept of the tick under way cannot be read and is set aside: up to a tick of readings is lost"
            );
            attempt()
        })
    }
}

impl<D: Disk> UnderWay<D> {
    fn on(disk: D, now: Timestamp) -> Result<Self, SpoolError> {
        let limits = Limits {
            bytes: MOST_BYTES,
            segment_bytes: SEGMENT_BYTES,
            ..Limits::default()
        };
        let (spool, _) = Spool::open(disk, limits, Epoch(Uuid::new_v4()), now)?;
        Ok(Self {
            spool,
            waiting: VecDeque::new(),
        })
    }

    /// Keeps a round's [`record`].
    ///
    /// # Errors
    /// When the disk fails.
    pub fn note(&mut self, record: &[u8], at: Timestamp) -> Result<(), SpoolError> {
        let seq = self.spool.append(Stream::Metrics, record, at)?;
        self.waiting.push_back((seq, at));
        Ok(())
    }

    /// Makes what was noted safe.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        self.spool.sync()
    }

    /// The tick that ends at `end` is about to be spooled there.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn closing(
        &mut self,
        end: Timestamp,
        (epoch, seq): (Epoch, u64),
        now: Timestamp,
    ) -> Result<(), SpoolError> {
        let record = encoded::<()>(&Record::Closing { end, epoch, seq });
        self.spool.append(Stream::Metrics, &record, now)?;
        self.spool.sync()
    }

    /// The tick that ends at `end` is spooled, or lost: its rounds are no longer needed.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn closed(&mut self, end: Timestamp, now: Timestamp) -> Result<(), SpoolError> {
        let record = encoded::<()>(&Record::Closed { end });
        let newest = self.spool.append(Stream::Metrics, &record, now)?;
        let needed = self.waiting.iter().position(|(_, at)| *at >= end);
        self.waiting.drain(..needed.unwrap_or(self.waiting.len()));
        let durable = self.waiting.front().map_or(newest, |(seq, _)| seq - 1);
        self.spool
            .trim(self.spool.epoch(), Stream::Metrics, durable)
    }

    /// The ticks that a predecessor could not spool, in order; they are kept until each is
    /// [`Self::closed`]. `next_seq` is the spool's, of metrics.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn recover(
        &mut self,
        node: &Arc<NodeFacts>,
        next_seq: &impl Fn(Epoch) -> u64,
    ) -> Result<Vec<Vec<ResourceTick>>, SpoolError> {
        let mut rounds: Vec<Kept> = Vec::new();
        let epochs: Vec<Epoch> = self.spool.epochs().collect();
        for epoch in epochs.into_iter().rev() {
            let mut seq = 0;
            while let Some(found) = self.spool.get(epoch, Stream::Metrics, seq + 1)? {
                seq = found.seq;
                match decoded(&found.payload) {
                    Ok(Record::Round { node: other, .. }) if other != node.node => {}
                    Ok(Record::Round {
                        node: _,
                        reader,
                        period,
                        interval,
                        at,
                        readings,
                    }) => rounds.push(Kept {
                        epoch,
                        seq,
                        reader,
                        period,
                        interval,
                        at,
                        readings,
                    }),
                    Ok(Record::Closing { end, epoch, seq }) if next_seq(epoch) > seq => {
                        rounds.retain(|it| it.at >= end);
                    }
                    Ok(Record::Closing { .. }) => {}
                    Ok(Record::Closed { end }) => rounds.retain(|it| it.at >= end),
                    Err(error) => {
                        tracing::warn!(error, "a record of the tick under way cannot be read");
                    }
                }
            }
            // One that was corrupt is not gone on with.
            if epoch != self.spool.epoch() {
                self.spool.trim(epoch, Stream::Metrics, seq)?;
            }
        }
        let live = self.spool.epoch();
        let waiting = rounds.iter().filter(|it| it.epoch == live);
        self.waiting = waiting.map(|it| (it.seq, it.at)).collect();
        Ok(ticks(node, rounds))
    }
}

/// The ticks of these rounds.
fn ticks(node: &Arc<NodeFacts>, rounds: Vec<Kept>) -> Vec<Vec<ResourceTick>> {
    let Some(interval) = rounds.first().map(|it| it.interval) else {
        return Vec::new();
    };
    // Where its rounds are missing, who holds a GPU is not known.
    let mut readers: Vec<(Arc<str>, Duration)> = vec![(SOURCE.into(), Duration::from_secs(1))];
    let mut by_tick: BTreeMap<Timestamp, Vec<Round>> = BTreeMap::new();
    for kept in rounds {
        let known = readers.iter().position(|(name, _)| **name == *kept.reader);
        let reader = known.unwrap_or_else(|| {
            readers.push((kept.reader.as_str().into(), kept.period));
            readers.len() - 1
        });
        let round = Round {
            reader,
            at: kept.at,
            // What happened was spooled when it did.
            result: Ok(Readings {
                events: Vec::new(),
                ..kept.readings
            }),
            duration: Duration::ZERO,
        };
        let start = kept.at.aligned_to(interval);
        by_tick.entry(start).or_default().push(round);
    }
    let config = SampleConfig {
        ship_interval_seconds: u32::try_from(interval.as_secs()).unwrap_or(u32::MAX),
        ..SampleConfig::default()
    };
    let mut collector = Collector::new(Arc::clone(node), &config, readers.into_iter());
    let closed = by_tick.into_iter().map(|(start, rounds)| {
        rounds.into_iter().for_each(|round| collector.round(round));
        collector.close_tick(start, start.shifted(nanos(interval)))
    });
    closed.filter(|ticks| !ticks.is_empty()).collect()
}

#[cfg(test)]
#[path = "under_way_tests.rs"]
mod tests;
