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

fn small() -> Limits {
    Limits {
        bytes: 1 << 20,
        segment_bytes: 2_000,
        ..Limits::default()
    }
}

fn epoch(number: u128) -> Epoch {
    Epoch(Uuid::from_u128(number))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_seconds(second)
}

fn open(disk: &SimDisk, limits: Limits, number: u128) -> (Spool<SimDisk>, Opened) {
    Spool::open(disk.clone(), limits, epoch(number), at(0)).expect("the disk works")
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

fn payload(seq: u64) -> Vec<u8> {
    seq.to_le_bytes().repeat(10)
}

fn fill(spool: &mut Spool<SimDisk>, count: i64) {
    for second in 0..count {
        let seq = spool.next_seq(spool.epoch(), Stream::Metrics);
        let appended = spool.append(Stream::Metrics, &payload(seq), at(second));
        assert_eq!(appended.expect("room"), seq);
    }
    spool.sync().expect("the disk works");
}

#[test]
fn a_killed_agent_goes_on_in_its_epoch_and_a_new_folder_begins_one() {
    let disk = SimDisk::new(1);
    let (mut spool, opened) = open(&disk, small(), 1);
    assert_eq!(opened.new_epoch, Some(NewEpoch::NoSpool));
    fill(&mut spool, 100);
    drop(spool);
    let (spool, opened) = open(&disk, small(), 2);
    assert_eq!(opened.new_epoch, None);
    assert_eq!((spool.epoch(), opened.records), (epoch(1), 100));
    assert_eq!(spool.next_seq(epoch(1), Stream::Metrics), 101);
}

#[test]
fn a_record_is_read_only_after_it_is_synced() {
    let (mut spool, _) = open(&SimDisk::new(1), small(), 1);
    spool
        .append(Stream::Logs, b"event", at(3))
        .expect("there is room");
    assert_eq!(
        spool.get(epoch(1), Stream::Logs, 1).expect("readable"),
        None
    );
    spool.sync().expect("the disk works");
    let record = spool.get(epoch(1), Stream::Logs, 1).expect("readable");
    let expected = Record {
        seq: 1,
        at: at(3),
        payload: b"event".to_vec(),
    };
    assert_eq!(record, Some(expected));
}

#[test]
fn a_full_spool_drops_its_oldest_and_says_which() {
    let limits = Limits {
        bytes: 6_000,
        segment_bytes: 1_000,
        ..Limits::default()
    };
    let disk = SimDisk::new(1);
    let (mut spool, _) = open(&disk, limits, 1);
    fill(&mut spool, 200);
    let drops = spool.take_drops();
    let [drop] = drops[..] else {
        panic!("neighbours are joined: {drops:?}");
    };
    assert_eq!(
        (drop.epoch, drop.stream, drop.first, drop.why),
        (epoch(1), Stream::Metrics, 1, DropReason::Full)
    );
    let oldest = spool.peek(epoch(1), Stream::Metrics, 1).expect("some");
    assert_eq!(oldest.0, drop.last + 1);
    assert_eq!(spool.waiting(Stream::Metrics).dropped, drop.last);
    assert!(disk.used() <= limits.bytes, "{} bytes", disk.used());
}

#[test]
fn a_spool_that_may_not_drop_refuses_until_it_is_drained() {
    let limits = Limits {
        bytes: 3_000,
        segment_bytes: 500,
        when_full: WhenFull::Refuse,
        ..Limits::default()
    };
    let (mut spool, _) = open(&SimDisk::new(1), limits, 1);
    let mut last = 0;
    while let Ok(seq) = spool.append(Stream::Metrics, &payload(1), at(0)) {
        last = seq;
    }
    spool.sync().expect("the disk works");
    assert!(last > 10, "{last}");
    assert_eq!(spool.take_drops(), []);
    spool
        .trim(epoch(1), Stream::Metrics, last - 2)
        .expect("the disk works");
    assert_eq!(
        spool
            .append(Stream::Metrics, &payload(1), at(0))
            .expect("room"),
        last + 1
    );
}

#[test]
fn what_is_older_than_the_limit_is_dropped_and_told() {
    let limits = Limits {
        age: Duration::from_secs(3_600),
        segment_age: Duration::from_secs(600),
        ..small()
    };
    let (mut spool, _) = open(&SimDisk::new(1), limits, 1);
    fill(&mut spool, 8_000);
    let oldest = spool.waiting(Stream::Metrics).oldest.expect("some");
    let age = at(8_000).since(oldest) / 1_000_000_000;
    assert!((3_600..=4_300).contains(&age), "{age} s");
    assert!(
        spool
            .take_drops()
            .iter()
            .all(|drop| drop.why == DropReason::Age)
    );
}

#[test]
fn old_epochs_wait_beside_the_live_one_newest_first_and_go_when_they_are_drained() {
    let disk = SimDisk::new(1);
    let (mut spool, _) = open(&disk, small(), 1);
    for number in 2..5 {
        fill(&mut spool, 3);
        spool
            .start_epoch(epoch(number), at(0))
            .expect("the disk works");
    }
    let epochs: Vec<Epoch> = spool.epochs().collect();
    assert_eq!(epochs, [4, 3, 2, 1].map(epoch));
    spool
        .trim(epoch(2), Stream::Metrics, 3)
        .expect("the disk works");
    let epochs: Vec<Epoch> = spool.epochs().collect();
    assert_eq!(epochs, [4, 3, 1].map(epoch));
    assert_eq!(disk.folders().expect("the disk works").len(), 3);
}

#[test]
fn a_flipped_bit_is_found_when_read_given_up_and_passed_over() {
    let disk = SimDisk::new(3);
    let limits = Limits::default();
    let (mut spool, _) = open(&disk, limits, 1);
    fill(&mut spool, 50);
    assert!(disk.flip_bit());
    let mut read = 0;
    let mut seq = 1;
    while let Some(record) = spool
        .get(epoch(1), Stream::Metrics, seq)
        .expect("the disk works")
    {
        assert_eq!(record.payload, payload(record.seq));
        seq = record.seq + 1;
        read += 1;
    }
    let drops = spool.take_drops();
    assert_eq!((read, drops.len()), (49, 1), "{drops:?}");
    drop(spool);
    let (spool, opened) = open(&disk, limits, 2);
    assert_eq!(
        opened.new_epoch,
        Some(NewEpoch::Corrupt),
        "no seq is used twice"
    );
    assert_eq!(spool.epoch(), epoch(2));
    assert_eq!(opened.records, 49, "the good ones wait to be drained");
}

#[test]
fn a_spool_of_a_newer_program_is_refused_by_name() {
    let disk = SimDisk::new(1);
    let (spool, _) = open(&disk, small(), 1);
    let folder = spool.live().folder.clone();
    drop(spool);
    let mut header = disk
        .read(&folder, "00000001", 0, 64)
        .expect("the disk works");
    header[8] = 2;
    let crc = crc32fast::hash(&header[..56]);
    header[56..60].copy_from_slice(&crc.to_le_bytes());
    let mut file = disk.create(&folder, "00000002").expect("the disk works");
    disk.append(&mut file, &header).expect("the disk works");
    let error = Spool::open(disk, small(), epoch(2), at(0)).expect_err("newer");
    let message = error.to_string();
    assert!(message.contains("00000002"), "{message}");
    assert!(message.contains("version 2"), "{message}");
}

#[test]
fn restarts_without_a_record_leave_no_files_behind() {
    let disk = SimDisk::new(1);
    for number in 1..40 {
        let (mut spool, _) = open(&disk, small(), number);
        if number == 5 {
            fill(&mut spool, 1);
        }
    }
    let folder = disk.folders().expect("the disk works").remove(0);
    let files = disk.files(&folder).expect("the disk works");
    assert!(files.len() <= 2, "{files:?}");
}

#[test]
fn the_index_of_a_day_costs_a_few_hundred_kibibytes() {
    let (mut spool, _) = open(&SimDisk::new(1), Limits::default(), 1);
    fill(&mut spool, 8_640);
    let entries: usize = spool
        .live()
        .segments
        .iter()
        .map(segment::Segment::index_bytes)
        .sum();
    assert!(entries <= 300 << 10, "{entries} bytes");
}

#[test]
fn the_real_disk_keeps_what_the_simulated_one_keeps() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let real = || disk::RealDisk::open(folder.path()).expect("a disk");
    let (mut spool, _) = Spool::open(real(), small(), epoch(1), at(0)).expect("a spool");
    for seq in 1..=60 {
        spool
            .append(Stream::Metrics, &payload(seq), at(1))
            .expect("room");
    }
    spool.sync().expect("the disk works");
    spool.trim(epoch(1), Stream::Metrics, 40).expect("trimmed");
    drop(spool);
    let (mut spool, opened) = Spool::open(real(), small(), epoch(2), at(0)).expect("a spool");
    assert_eq!(opened.new_epoch, None);
    let record = spool.get(epoch(1), Stream::Metrics, 41).expect("readable");
    assert_eq!(record.map(|it| it.payload), Some(payload(41)));
    let first = spool.peek(epoch(1), Stream::Metrics, 0).expect("some").0;
    assert!(first > 1, "whole segments below 41 are gone: {first}");
}

proptest::proptest! {
    #[test]
    fn any_payload_comes_back_as_it_was(
        payloads in proptest::collection::vec(proptest::collection::vec(0_u8.., 0..2_000), 1..40),
        trimmed in 0_u64..40,
    ) {
        let disk = SimDisk::new(7);
        let (mut spool, _) = open(&disk, small(), 1);
        for payload in &payloads {
            spool.append(Stream::Metrics, payload, at(0)).expect("room");
        }
        spool.sync().expect("the disk works");
        spool.trim(epoch(1), Stream::Metrics, trimmed).expect("the disk works");
        for (payload, seq) in payloads.iter().zip(1..).filter(|(_, seq)| *seq > trimmed) {
            let record = spool.get(epoch(1), Stream::Metrics, seq).expect("readable");
            proptest::prop_assert_eq!(&record.expect("kept").payload, payload);
        }
        let left = payloads.iter().zip(1..).filter(|(_, seq)| *seq > trimmed);
        let bytes: usize = left.map(|(payload, _)| payload.len()).sum();
        proptest::prop_assert_eq!(spool.waiting(Stream::Metrics).bytes, bytes as u64);
    }

    #[test]
    fn no_bytes_in_the_folder_break_the_opening(garbage in proptest::collection::vec(0_u8.., 0..300)) {
        let disk = SimDisk::new(7);
        let (mut spool, _) = open(&disk, small(), 1);
        fill(&mut spool, 3);
        let folder = spool.live().folder.clone();
        drop(spool);
        let mut file = disk.create(&folder, "00000002").expect("the disk works");
        disk.append(&mut file, &garbage).expect("the disk works");
        let (mut spool, opened) = open(&disk, small(), 2);
        proptest::prop_assert_eq!(opened.records, 3);
        let record = spool.get(epoch(1), Stream::Metrics, 3).expect("readable");
        proptest::prop_assert_eq!(record.expect("kept").payload, payload(3));
    }
}
