//! A book that is full: what is worse has room, what is over makes some, what is beyond is counted.

use super::*;

/// So many clusters, each with this trouble: no circuit breaker makes one of them.
fn of_clusters(family: Family, severity: Severity, numbers: std::ops::Range<usize>) -> Vec<Signal> {
    let one = |number| {
        let cluster = format!("{}-{number}", family.name());
        let place = Place::gpu(&cluster, "node-1", "GPU-1");
        Signal {
            severity,
            ..signal(family, place)
        }
    };
    numbers.map(one).collect()
}

#[test]
fn a_book_that_is_full_has_room_for_what_is_worse_counts_the_rest_once_and_takes_it_later() {
    let mut world = World::new();
    let idle = of_clusters(Family::Idle, Severity::Info, 0..1_000);
    for _ in 0..3 {
        world.tick(&idle);
    }
    let counted = |world: &World| {
        (
            world.open().len(),
            world.book.beyond(),
            world.book.left_out(),
        )
    };
    assert_eq!(
        counted(&world),
        (600, 400, 400),
        "counted once, not at each tick"
    );
    let stalled = of_clusters(Family::Stalled, Severity::Warning, 0..300);
    let faults = of_clusters(Family::GpuFault, Severity::Error, 0..300);
    let silent = of_clusters(Family::Blind, Severity::Error, 0..100);
    let all = [idle, stalled, faults.clone(), silent].concat();
    world.ticks(3, &all);
    let of = |world: &World, family| {
        let open = world.book.open_ones();
        open.filter(|it| it.family == family).count()
    };
    let kinds = [
        Family::Idle,
        Family::Stalled,
        Family::GpuFault,
        Family::Blind,
    ];
    assert_eq!(kinds.map(|it| of(&world, it)), [600, 0, 250, 100]);
    // What is over makes room at once, although it might come back.
    let more = of_clusters(Family::GpuFault, Severity::Error, 300..900);
    let broken = [faults, more].concat();
    world.ticks(4, &broken);
    assert_eq!(
        (of(&world, Family::GpuFault), world.book.beyond()),
        (900, 0)
    );
}

#[test]
fn what_comes_back_keeps_its_place_in_a_book_that_is_full() {
    let mut world = World::new();
    let first = of_clusters(Family::GpuFault, Severity::Error, 0..500);
    world.tick(&first);
    let known: BTreeSet<Uuid> = world.open().iter().map(|it| it.id).collect();
    world.ticks(4, &[]);
    assert_eq!(world.open().len(), 0);
    let all = of_clusters(Family::GpuFault, Severity::Error, 0..950);
    world.tick(&all);
    let open: BTreeSet<Uuid> = world.open().iter().map(|it| it.id).collect();
    assert_eq!((open.len(), world.book.beyond()), (950, 0));
    assert!(known.is_subset(&open), "under the ids that people know");
}
