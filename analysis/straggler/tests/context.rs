//! Context parallelism: a part of each sequence with more work, and a slow rank among parts.

use super::*;

/// What is said after 60 steps of ranks on machines of 8, `parts` of a sequence each, of which the last takes `more`
/// longer; `slower` says what else makes a rank slow.
fn said(
    (ranks, parts, is_told): (u32, u32, bool),
    more: f64,
    slower: impl Fn(u64, u32) -> f64,
) -> Verdict {
    let mut run = Run::new(Source::Hooks);
    for step in 0..60 {
        let reading = |rank: u32| {
            let part = rank % parts;
            let longer = if part + 1 == parts { more } else { 0.0 };
            Reading {
                rank,
                seat: Seat {
                    stage: Some(0),
                    column: Some(rank),
                    host: Some(rank / 8),
                    replica: Some(rank / parts),
                    context: is_told.then_some(part),
                },
                busy_ns: ((BUSY_NS + jitter(step, rank)) as f64
                    * (1.0 + longer)
                    * (1.0 + slower(step, rank))) as u64,
            }
        };
        let readings: Vec<Reading> = (0..ranks).map(reading).collect();
        run.observe(&Step {
            step,
            wall_ns: 200_000_000,
            readings: &readings,
        });
    }
    run.judge()
}

#[test]
fn a_part_of_each_sequence_with_more_work_blames_none_of_the_ranks_that_hold_it() {
    // Who does not know of the parts takes them for slow ranks.
    assert_eq!(names(&said((64, 8, false), 0.2, only(99, 0.0))).len(), 8);
    for parts in [2, 4, 8] {
        let verdict = said((64, parts, true), 0.2, only(99, 0.0));
        assert_eq!(names(&verdict), [0_u32; 0], "{parts}");
    }
    let verdict = said((64, 8, true), 0.2, only(99, 0.0));
    let [parted] = verdict.parted[..] else {
        panic!("{verdict:?}");
    };
    assert_eq!((parted.slow, parted.of), (8, 64));
    assert_eq!(parted.unnamed, Unnamed::SamePart);
    assert!((parted.ratio - 1.2).abs() < 0.01, "{parted:?}");
}

#[test]
fn a_slow_rank_among_parts_of_sequences_is_named() {
    for more in [0.0, 0.1] {
        let verdict = said((64, 8, true), more, only(17, 0.4));
        assert_eq!(names(&verdict), [17], "{more}");
        assert_eq!(verdict.stragglers[0].confidence, Confidence::High);
    }
}

#[test]
fn a_rank_that_holds_its_part_alone_is_named_with_low_confidence() {
    let verdict = said((8, 8, true), 0.0, only(3, 0.3));
    assert_eq!(names(&verdict), [3]);
    assert_eq!(verdict.stragglers[0].confidence, Confidence::Low);
    let verdict = said((8, 8, false), 0.0, only(3, 0.3));
    assert_eq!(verdict.stragglers[0].confidence, Confidence::High);
}
