//! The rings of losses and gradient norms.

use gpufleet_hooks_shm::layout::READINGS;

use super::*;

#[test]
fn every_loss_and_gradient_norm_is_read_once_as_far_as_the_ring_has_them() {
    let (writer, mut reader, file) = region();
    let now = unix_ns();
    let reading = |step: u64| Reading {
        value: step as f64 / 8.0,
        step,
        at: now,
    };
    (1..=30).for_each(|it| writer.loss(reading(it)));
    writer.gradient_norm(reading(7));
    let first = reader.snapshot(now).expect("a region");
    assert_eq!(first.losses, (1..=30).map(reading).collect::<Vec<_>>());
    assert_eq!(first.gradient_norms, [reading(7)]);
    assert_eq!(first.learning.loss, Some(reading(30)));
    let second = reader.snapshot(now).expect("a region");
    assert_eq!((second.losses, second.gradient_norms), (vec![], vec![]));

    let ring = READINGS as u64;
    (31..=33 + ring).for_each(|it| writer.loss(reading(it)));
    let third = reader.snapshot(now).expect("a region");
    let last = (34..=33 + ring).map(reading).collect::<Vec<_>>();
    assert_eq!(third.losses, last, "three are gone");

    // Record 128 lies in the first place, and its time cannot be.
    let mut other = Reader::new(&file).expect("a region");
    put(&file, "losses.recent[0].at", 1);
    let fourth = other.snapshot(now).expect("the rest is good");
    assert_eq!(fourth.losses.len(), READINGS - 1);
    assert_eq!(fourth.refused.get(&("learning", Reason::Time)), Some(&1));
    // One that is begun and not ended is read with the next snapshot, and those after it.
    put(&file, "losses.recent[0].state", 2 * ring + 1);
    let mut other = Reader::new(&file).expect("a region");
    let fifth = other.snapshot(now).expect("the rest is good");
    assert_eq!(fifth.losses, (34..ring).map(reading).collect::<Vec<_>>());
    assert_eq!(fifth.refused, Default::default());
}
