//! A region in which anything may lie.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use gpufleet_hooks_shm::layout::{COMMUNICATORS, IN_FLIGHT, READINGS, SIZE_BYTES, STEPS};
use proptest::prelude::*;

use super::*;

/// A region's file full of the given words, its header good or not.
fn garbage(words: &[u64], places: &[usize], has_header: bool) -> OwnedFd {
    let file = gpufleet_hooks_shm::create().expect("a memory file");
    let file = File::from(file);
    let all: Vec<u8> = words
        .iter()
        .cycle()
        .take(SIZE_BYTES / 8)
        .flat_map(|it| it.to_le_bytes())
        .collect();
    file.write_all_at(&all, 0).expect("it takes them");
    for place in places {
        file.write_all_at(&u64::MAX.to_le_bytes(), (*place * 8) as u64)
            .expect("it takes it");
    }
    if has_header {
        put(&file, "header.magic", gpufleet_hooks_shm::layout::MAGIC);
        put(&file, "header.version", 1);
        put(&file, "header.size", SIZE_BYTES as u64);
        put(&file, "totals.started", words[0] % 5000);
        put(&file, "collectives.started", words[0] % 3000);
        put(&file, "losses.started", words[0] % 300);
        put(&file, "gradient_norms.started", words[0] % 200);
    }
    file.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever lies in a region, reading it ends, and what comes out keeps its bounds.
    #[test]
    fn garbage_is_read_without_harm(
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0..200_u64, Just(u64::MAX)], 1..400),
        places in prop::collection::vec(0..SIZE_BYTES / 8, 0..40),
        has_header in prop::bool::weighted(0.8),
    ) {
        let mut reader = Reader::new(garbage(&words, &places, has_header)).expect("it is sealed");
        let now = unix_ns();
        let Ok(snapshot) = reader.snapshot(now) else { return Ok(()) };
        prop_assert!(snapshot.steps.len() <= STEPS);
        for readings in [&snapshot.losses, &snapshot.gradient_norms] {
            prop_assert!(readings.len() <= READINGS);
            prop_assert!(readings.iter().all(|it| it.at > 0));
        }
        prop_assert!(snapshot.together.in_flight.len() <= IN_FLIGHT);
        prop_assert!(snapshot.together.communicators.len() <= COMMUNICATORS);
        for step in &snapshot.steps {
            prop_assert!(step.ended_at > 0 && step.busy_ns <= step.wall_ns);
        }
        for pairs in [&snapshot.fingerprint, &snapshot.tags].into_iter().flatten() {
            prop_assert!(pairs.pairs.iter().all(|(key, value)| key.len().max(value.len()) <= 64));
        }
        if let Some(identity) = &snapshot.identity {
            prop_assert!(!identity.cluster.contains(char::is_control));
            prop_assert!(identity.cluster.len() <= 3 * 64);
        }
    }
}
