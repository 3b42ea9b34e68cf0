//! Packed steps: back as they were to the unit, small, and total to unpack; no step is lost.

use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp::from_seconds(1_700_000_000);

/// Records of `count` steps from `first` on, each `wall` long, nothing between them.
fn records(first: u64, count: u64, wall: impl Fn(u64) -> u64) -> Vec<StepRecord> {
    let mut at = START;
    (0..count)
        .map(|number| {
            let wall_ns = wall(number);
            at = at.shifted(wall_ns.cast_signed());
            let times = StepTimes {
                wall_ns,
                busy_ns: wall_ns / 2,
                data_wait_ns: wall_ns / 8,
                comm_wait_ns: wall_ns / 4,
            };
            StepRecord {
                step: first + number,
                ended_at: at,
                times,
                tokens: 4_096,
                samples: 2,
            }
        })
        .collect()
}

fn packed(records: &[StepRecord], has_ended: bool) -> (Packer, Vec<StepBlock>) {
    let mut packer = Packer::default();
    for record in records {
        packer.push(*record);
    }
    let blocks = packer.take(has_ended);
    (packer, blocks)
}

fn any_block() -> impl Strategy<Value = StepBlock> {
    let time = || prop_oneof![0_u64..2_000_000_000, any::<u64>().prop_map(|it| it >> 5)];
    let times = proptest::collection::vec([time(), time(), time(), time()], 0..40);
    let span = 0_i64..1 << 40;
    let steps = (0_u64..1 << 40, 0..=MAX_STEPS_LOG2);
    (steps, any::<i32>(), span, any::<[u32; 2]>(), times).prop_map(
        |((first_step, steps_log2), start, span, [tokens, samples], times)| StepBlock {
            first_step,
            steps_log2,
            started_at: Timestamp::from_seconds(i64::from(start)),
            ended_at: Timestamp::from_seconds(i64::from(start)).shifted(span),
            tokens: u64::from(tokens),
            samples: u64::from(samples),
            times: times.into_iter().map(StepTimes::of).collect(),
        },
    )
}

proptest! {
    #[test]
    fn steps_come_back_to_the_unit_and_once_unpacked_stay_as_they_are(
        blocks in proptest::collection::vec(any_block(), 0..4),
    ) {
        let bytes = encode(&blocks);
        prop_assert!(bytes.len() <= MAX_BYTES);
        let found = decode(&bytes).expect("what we pack unpacks");
        for (found, block) in found.iter().zip(&blocks) {
            let longest = block.times.iter().flat_map(StepTimes::all).max().unwrap_or(0);
            let most = (RESOLUTION_NS / 2).max(longest / 1_000_000);
            for (found, sent) in found.times.iter().zip(&block.times) {
                for (found, sent) in found.all().into_iter().zip(sent.all()) {
                    prop_assert!(found.abs_diff(sent) <= most, "{found} {sent} {longest}");
                }
            }
            prop_assert_eq!(found.times.len(), block.times.len());
            let (mut found, mut block) = (found.clone(), block.clone());
            (found.times, block.times) = (Vec::new(), Vec::new());
            prop_assert_eq!(found, block);
        }
        prop_assert_eq!(found.len(), blocks.len());
        prop_assert_eq!(decode(&encode(&found)), Ok(found));
    }

    #[test]
    fn any_bytes_are_steps_or_an_error(mut bytes: Vec<u8>, with_head: bool) {
        if with_head {
            bytes.splice(0..0, [MAGIC[0], MAGIC[1], VERSION, 1]);
        }
        if let Ok(blocks) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&blocks)), Ok(blocks));
        }
    }

    #[test]
    fn cut_steps_are_an_error(block in any_block(), cut in 1_usize..40) {
        let bytes = encode(&[block]);
        let kept = bytes.len().saturating_sub(cut);
        prop_assert!(decode(&bytes[..kept]).is_err());
    }

    #[test]
    fn no_step_and_no_time_is_lost_however_often_it_is_shipped(
        walls in proptest::collection::vec(1_000_000_u64..400_000_000, 1..300),
        first in 0_u64..1_000,
        cuts in proptest::collection::vec(0_usize..300, 0..4),
    ) {
        let records = records(first, walls.len() as u64, |number| walls[number as usize]);
        let mut packer = Packer::default();
        let mut blocks = Vec::new();
        for (place, record) in records.iter().enumerate() {
            packer.push(*record);
            if cuts.contains(&place) {
                blocks.extend(packer.take(false));
            }
        }
        blocks.extend(packer.take(true));
        let mut next = first;
        for block in &blocks {
            prop_assert_eq!(block.first_step, next);
            prop_assert!(block.first_step.is_multiple_of(block.steps_per_entry()));
            next = block.next_step();
        }
        prop_assert_eq!(next, first + walls.len() as u64);
        let wall: u64 = blocks.iter().flat_map(|it| &it.times).map(|it| it.wall_ns).sum();
        prop_assert_eq!(wall, walls.iter().sum::<u64>());
        let tokens: u64 = blocks.iter().map(|it| it.tokens).sum();
        prop_assert_eq!(tokens, 4_096 * walls.len() as u64);
    }
}

/// A number between -1 and 1 that looks random, nearer to 0 than to the ends.
fn noise(number: u64) -> f64 {
    let mixed = |salt: u64| {
        let mut it = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((it ^ (it >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    (mixed(1) + mixed(2) + mixed(3) + mixed(4)) / 2.0 - 1.0
}

#[test]
fn a_step_takes_at_most_three_bytes_an_array_whatever_its_noise() {
    for (step, share, most) in [
        (0.1, 0.01, 2.01),
        (1.0, 0.002, 2.01),
        (1.0, 0.05, 2.9),
        (0.4, 0.3, 3.0),
        (20.0, 0.05, 2.9),
    ] {
        // Ten minutes; one step in fifty waits for a checkpoint three times as long.
        let wall = |number: u64| {
            let slow = if number % 50 == 49 { 3.0 } else { 1.0 };
            (step * slow * (1.0 + share * noise(number)) * 1e9) as u64
        };
        let (_, blocks) = packed(&records(1, (600.0 / step) as u64, wall), true);
        let entries: usize = blocks.iter().map(|it| it.times.len()).sum();
        let bytes = encode(&blocks).len() as f64 - 50.0;
        let each = bytes / entries as f64 / 4.0;
        assert!(each <= most, "{step} s ± {share}: {each} bytes");
    }
}

#[test]
fn fast_steps_are_summed_in_aligned_blocks_and_the_rest_waits_or_goes_out_alone() {
    // 100 steps a second: 16 to an entry, 6.25 entries a second.
    let (mut packer, blocks) = packed(&records(5, 100, |_| 10_000_000), false);
    let shape = |it: &StepBlock| (it.first_step, it.steps_log2, it.times.len());
    let shapes: Vec<_> = blocks.iter().map(shape).collect();
    assert_eq!(shapes, [(5, 0, 11), (16, 4, 5)]);
    assert_eq!(blocks[1].times[0].wall_ns, 160_000_000);
    assert_eq!(blocks[1].ended_at, START.shifted(910_000_000));
    let rest: Vec<_> = packer.take(true).iter().map(shape).collect();
    assert_eq!(rest, [(96, 0, 9)]);
    let (_, slow) = packed(&records(5, 4, |_| 100_000_000), false);
    assert_eq!(shape(&slow[0]), (5, 0, 4));
}

#[test]
fn a_gap_a_repeated_step_and_a_long_pause_begin_a_new_block() {
    let mut all = records(10, 9, |_| 1_000_000_000);
    all.remove(2);
    all[5].step = 11;
    for (place, record) in all[6..].iter_mut().enumerate() {
        record.step = 12 + place as u64;
        record.ended_at = record.ended_at.shifted(1_500_000_000);
    }
    all.push(all[7]);
    let (_, blocks) = packed(&all, true);
    let shapes: Vec<_> = blocks
        .iter()
        .map(|it| (it.first_step, it.times.len()))
        .collect();
    assert_eq!(shapes, [(10, 2), (13, 3), (11, 1), (12, 2)]);
}

#[test]
fn blocks_that_follow_are_joined_and_the_times_of_their_steps_are_known() {
    let (_, first) = packed(&records(0, 3, |_| 2_000_000_000), true);
    let mut later = records(3, 2, |_| 2_000_000_000);
    later
        .iter_mut()
        .for_each(|it| it.ended_at = it.ended_at.shifted(6_400_000_000));
    let (_, second) = packed(&later, true);
    let blocks = joined(first.into_iter().chain(second.clone()));
    assert_eq!(blocks.len(), 1);
    assert_eq!((blocks[0].next_step(), blocks[0].tokens), (5, 5 * 4_096));
    let ends: Vec<_> = blocks[0].ends().map(|it| it.since(START)).collect();
    assert_eq!(ends[4], 10_400_000_000);
    assert_eq!(ends[0], 2_080_000_000);
    let twice = joined(second.iter().cloned().chain(second.clone()));
    assert_eq!(twice.len(), 2);
}

#[test]
fn more_records_than_may_wait_cost_the_oldest_and_are_counted() {
    let (packer, blocks) = packed(&records(0, MAX_PENDING as u64 + 3, |_| 1_000_000), true);
    assert_eq!(packer.dropped(), 3);
    assert_eq!(blocks[0].first_step, 3);
}

#[test]
fn what_is_wrong_is_named() {
    use StepsError::{Magic, OutOfRange, Trailing, Truncated, Version};
    let check = |bytes: &[u8], expected: StepsError| {
        let bytes = [MAGIC.as_slice(), bytes].concat();
        assert_eq!(decode(&bytes), Err(expected), "{bytes:?}");
    };
    assert_eq!(decode(b"XS"), Err(Magic));
    check(&[], Truncated { what: "version" });
    check(&[2], Version { found: 2 });
    let what = "number of blocks";
    check(&[1, 0x81, 0x08], OutOfRange { what });
    check(&[1, 0, 7], Trailing { left: 1 });
    let what = "steps of an entry";
    check(&[1, 1, 0, 17], OutOfRange { what });
    let what = "number of entries";
    check(
        &[1, 1, 0, 0, 0, 0, 0, 0, 0x81, 0x80, 1],
        OutOfRange { what },
    );
    check(
        &[1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 1, 1, 1],
        Truncated { what: "times" },
    );
    let what = "time";
    // Below zero by a difference of -2.
    check(
        &[1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 1, 3, 0, 0, 0, 0, 0, 0],
        OutOfRange { what },
    );
    let last = [0xff; 9].iter().copied().chain([1]).collect::<Vec<u8>>();
    let head = [[1, 1].as_slice(), &last, &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]].concat();
    check(&head, OutOfRange { what: "first step" });
}
