//! The spool by example, and by any payload or garbage.

use std::time::Duration;

use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use uuid::Uuid;

use super::sim::SimDisk;
use super::*;

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

#[test]
fn a_torn_last_record_is_cut_off_counted_and_its_seq_is_never_given_again() {
    let disk = SimDisk::new(1);
    let (mut spool, _) = open(&disk, Limits::default(), 1);
    fill(&mut spool, 5);
    let folder = spool.live().folder.clone();
    drop(spool);
    let length = disk.length(&folder, "00000001").expect("the disk works");
    disk.truncate(&folder, "00000001", length - 7)
        .expect("the disk works");
    let (mut spool, opened) = open(&disk, Limits::default(), 2);
    assert_eq!(opened.records, 4);
    assert!(opened.bad_bytes > 0, "{opened:?}");
    let told: Vec<u64> = spool.take_drops().iter().map(|drop| drop.first).collect();
    assert_eq!(told, [5]);
    // The server may have record 5: only a flipped bit or a torn write could tell, and neither can.
    assert_eq!(opened.new_epoch, Some(NewEpoch::Corrupt));
    assert_eq!(spool.epoch(), epoch(2));
}

#[test]
fn a_file_that_is_gone_from_the_middle_is_told_by_its_seqs() {
    let disk = SimDisk::new(1);
    let limits = Limits {
        segment_bytes: 500,
        ..Limits::default()
    };
    let (mut spool, _) = open(&disk, limits, 1);
    fill(&mut spool, 20);
    let folder = spool.live().folder.clone();
    drop(spool);
    disk.remove(&folder, "00000002").expect("the disk works");
    let (mut spool, opened) = open(&disk, limits, 2);
    assert_eq!(opened.new_epoch, Some(NewEpoch::Corrupt));
    let drops = spool.take_drops();
    let [drop] = drops[..] else {
        panic!("one hole: {drops:?}")
    };
    assert_eq!((drop.epoch, drop.why), (epoch(1), DropReason::Corrupt));
    let gone = usize::try_from(drop.last - drop.first + 1).expect("small");
    assert_eq!(opened.records + gone, 20);
}
