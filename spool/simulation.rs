//! The spool against a model: what was synced is there after a crash, nothing is invented, and no
//! seq is ever seen with two contents.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use uuid::Uuid;

use super::sim::{Random, SimDisk};
use super::*;

/// Seeds of the simulation that every run goes through.
const SEEDS: u64 = 1_000;

fn epoch(number: u128) -> Epoch {
    Epoch(Uuid::from_u128(number))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_seconds(second)
}

type Key = (Epoch, usize, u64);

/// One run of the simulation: the spool, the disk, and what must be true of them.
struct World {
    random: Random,
    disk: SimDisk,
    spool: Option<Spool<SimDisk>>,
    limits: Limits,
    second: i64,
    epochs: u128,
    /// Every content that was ever given a seq; a seq may come back only before anyone read it.
    written: BTreeMap<Key, BTreeSet<Vec<u8>>>,
    /// What anyone has read: it never changes.
    seen: BTreeMap<Key, Vec<u8>>,
    /// What the spool promised to keep.
    safe: BTreeMap<Key, Vec<u8>>,
    /// Appended and not yet synced.
    loose: Vec<(Key, Vec<u8>)>,
    /// Whether a bit was flipped: then promises may be broken, if it is said.
    flipped: bool,
    told_of_corruption: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let limits = Limits {
            bytes: if random.one_in(4) { 20_000 } else { 1 << 20 },
            segment_bytes: 200 + random.below(3_000),
            ..Limits::default()
        };
        let mut world = Self {
            disk: SimDisk::new(random.next()),
            random,
            spool: None,
            limits,
            second: 0,
            epochs: 0,
            written: BTreeMap::new(),
            seen: BTreeMap::new(),
            safe: BTreeMap::new(),
            loose: Vec::new(),
            flipped: false,
            told_of_corruption: false,
        };
        world.reopen();
        world
    }

    fn spool(&mut self) -> &mut Spool<SimDisk> {
        self.spool.as_mut().expect("it is open between steps")
    }

    /// Opens until it succeeds: the power may go during the opening as well.
    fn reopen(&mut self) {
        self.spool = None;
        self.loose.clear();
        for attempt in 0.. {
            assert!(attempt < 20, "the spool opens in the end");
            self.epochs += 1;
            let now = at(self.second);
            match Spool::open(self.disk.clone(), self.limits, epoch(self.epochs), now) {
                Ok((spool, opened)) => {
                    if opened.bad_bytes > 0 || opened.new_epoch == Some(NewEpoch::Corrupt) {
                        self.told_of_corruption = true;
                    }
                    self.spool = Some(spool);
                    break;
                }
                Err(_) => self.disk.crash(),
            }
        }
        self.note_drops();
        self.check();
    }

    fn note_drops(&mut self) {
        for drop in self.spool().take_drops() {
            if drop.why == DropReason::Corrupt {
                self.told_of_corruption = true;
                assert!(
                    self.flipped || self.loose_or_unknown(&drop),
                    "nothing safe is lost without a flipped bit: {drop:?}"
                );
            }
            for seq in drop.first..=drop.last {
                self.safe
                    .remove(&(drop.epoch, format::index(drop.stream), seq));
            }
        }
    }

    fn loose_or_unknown(&self, drop: &Dropped) -> bool {
        (drop.first..=drop.last).all(|seq| {
            !self
                .safe
                .contains_key(&(drop.epoch, format::index(drop.stream), seq))
        })
    }

    /// Everything readable is what was written, and everything safe is readable.
    fn check(&mut self) {
        let mut readable = BTreeMap::new();
        let epochs: Vec<Epoch> = self.spool().epochs().collect();
        for epoch in epochs {
            for stream in Stream::ALL {
                let mut seq = 0;
                while let Some(record) = self
                    .spool()
                    .get(epoch, stream, seq)
                    .expect("the disk works")
                {
                    let key = (epoch, format::index(stream), record.seq);
                    seq = record.seq + 1;
                    readable.insert(key, record.payload);
                }
            }
        }
        self.note_drops();
        for (key, payload) in &readable {
            let written = self.written.get(key);
            assert!(
                written.is_some_and(|all| all.contains(payload)),
                "invented {key:?}"
            );
            let seen = self.seen.entry(*key).or_insert_with(|| payload.clone());
            assert_eq!(seen, payload, "{key:?} was read with other content before");
        }
        for (key, payload) in &self.safe {
            match readable.get(key) {
                Some(read) => assert_eq!(read, payload, "{key:?}"),
                None => assert!(self.flipped && self.told_of_corruption, "lost {key:?}"),
            }
        }
    }

    fn step(&mut self) {
        self.second += 1;
        match self.random.below(20) {
            0..=9 => self.append(),
            10..=14 => self.sync(),
            15 => self.trim(),
            16 => {
                self.epochs += 1;
                let (epoch, now) = (epoch(self.epochs), at(self.second));
                if self.random.one_in(3) && self.spool().start_epoch(epoch, now).is_ok() {
                    // A new epoch syncs the old one.
                    self.promise();
                }
                self.note_drops();
            }
            17 => {
                let used = self.disk.used();
                let room = self.random.below(3_000);
                let full = self.random.one_in(2);
                self.disk
                    .set_capacity(if full { used + room } else { u64::MAX });
            }
            18 => match self.random.below(4) {
                0 => self.disk.fail_syncs(1),
                1 => self.disk.crash_after(self.random.below(12)),
                2 => {
                    self.disk.kill();
                    self.disk.set_capacity(u64::MAX);
                    self.reopen();
                }
                _ => {
                    self.disk.crash();
                    self.disk.set_capacity(u64::MAX);
                    self.reopen();
                }
            },
            _ => {
                if self.random.one_in(8) && self.disk.flip_bit() {
                    self.flipped = true;
                    self.disk.kill();
                    self.disk.set_capacity(u64::MAX);
                    self.reopen();
                    // What the flip has broken is known now; from here on promises count again.
                    self.forgive();
                }
            }
        }
    }

    fn append(&mut self) {
        let length = usize::try_from(self.random.below(700)).expect("small");
        let fill = u8::try_from(self.random.below(256)).expect("a byte");
        let mut payload = vec![fill; length];
        payload.extend_from_slice(&self.random.next().to_le_bytes());
        let stream = Stream::ALL[usize::from(self.random.one_in(3))];
        let now = at(self.second);
        let appended = self.spool().append(stream, &payload, now);
        self.note_drops();
        if let Ok(seq) = appended {
            let key = (self.spool().epoch(), format::index(stream), seq);
            self.written.entry(key).or_default().insert(payload.clone());
            self.loose.push((key, payload));
        } else {
            self.loose.retain(|(key, _)| self.written.contains_key(key));
        }
    }

    fn sync(&mut self) {
        if self.spool().sync().is_ok() {
            self.promise();
        } else {
            self.loose.clear();
        }
        self.note_drops();
    }

    fn promise(&mut self) {
        let spool = self.spool.as_ref().expect("it is open between steps");
        for (key, payload) in std::mem::take(&mut self.loose) {
            let (epoch, stream, seq) = key;
            // What a failed write or a full spool took in between was told as a drop.
            if spool
                .peek(epoch, Stream::ALL[stream], seq)
                .is_some_and(|(found, _)| found == seq)
            {
                self.safe.insert(key, payload);
            }
        }
    }

    fn trim(&mut self) {
        let Some(&(epoch, stream, seq)) = self.safe.keys().next() else {
            return;
        };
        let durable = seq + self.random.below(4);
        let trimmed = self.spool().trim(epoch, Stream::ALL[stream], durable);
        assert!(trimmed.is_ok() || self.disk.files("x").is_err());
        self.safe
            .retain(|key, _| (key.0, key.1) != (epoch, stream) || key.2 > durable);
    }

    fn forgive(&mut self) {
        let mut safe = std::mem::take(&mut self.safe);
        safe.retain(|(epoch, stream, seq), _| {
            self.spool()
                .peek(*epoch, Stream::ALL[*stream], *seq)
                .is_some_and(|(found, _)| found == *seq)
        });
        self.safe = safe;
        self.flipped = false;
        self.told_of_corruption = false;
    }
}

#[test]
fn a_thousand_seeds_of_crashes_full_disks_and_flipped_bits_lose_nothing_that_was_synced() {
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..120 {
                world.step();
            }
            world.disk.crash();
            world.disk.set_capacity(u64::MAX);
            world.reopen();
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
