//! GPUs that are broken and not known any more.

use super::*;

fn broken(number: usize) -> Signal {
    Signal {
        cause: Cause::GpuFault,
        ..signal(Family::GpuFault, gpu(7, number))
    }
}

fn open(world: &World) -> Vec<Place> {
    world.open().iter().map(|it| it.place.clone()).collect()
}

/// These GPUs of node 7 are forgotten, and so many others came after they broke.
fn forgotten(world: &mut World, gpus: std::ops::Range<usize>, others: usize) {
    world.gone = gpus.map(|it| (format!("GPU-7-{it}"), others)).collect();
}

#[test]
fn a_broken_gpu_that_is_forgotten_stays_an_incident_until_another_is_in_its_place() {
    let mut world = World::new();
    world.ticks(3, &[broken(3)]);
    let id = Uuid::from_u128(1);
    forgotten(&mut world, 3..4, 0);
    assert_eq!(world.ticks(100, &[]), [Change::Updated(id)]);
    let since = START.shifted(40_000_000_000);
    assert_eq!(world.open()[0].unheard_since, Some(since));
    // Also for a server that begins anew.
    let kept = world.open().into_iter().cloned().collect();
    world.book = Book::restored(kept, world.now);
    assert_eq!(world.ticks(100, &[]), []);
    forgotten(&mut world, 3..4, 1);
    assert_eq!(world.ticks(3, &[]), [Change::Resolved(id)]);
}

#[test]
fn a_broken_gpu_that_is_known_again_is_judged_as_any_other() {
    for again in [&[broken(3)][..], &[]] {
        let mut world = World::new();
        world.ticks(3, &[broken(3)]);
        forgotten(&mut world, 3..4, 0);
        world.ticks(100, &[]);
        world.gone.clear();
        world.ticks(3, again);
        assert_eq!(world.open().len(), again.len());
        assert!(world.open().iter().all(|it| it.unheard_since.is_none()));
    }
}

#[test]
fn of_two_missing_gpus_none_is_over_before_there_are_two_others() {
    let mut world = World::new();
    world.ticks(3, &[broken(3), broken(4)]);
    forgotten(&mut world, 3..5, 1);
    world.ticks(100, &[]);
    assert_eq!(open(&world), [gpu(7, 3), gpu(7, 4)]);
    forgotten(&mut world, 3..5, 2);
    world.ticks(3, &[]);
    assert_eq!(open(&world), []);
}

#[test]
fn what_ends_because_its_node_is_forgotten_says_so() {
    for (node, is_said) in [(99, true), (7, false)] {
        let mut world = World::new();
        let id = Uuid::from_u128(1);
        world.ticks(3, &[signal(Family::GpuFault, gpu(node, 0))]);
        let kept = world.open()[0].log.len();
        assert_eq!(world.ticks(3, &[]), [Change::Resolved(id)]);
        let over = world.book.get(id).expect("it was lately");
        let said: Vec<&Happened> = over.log[kept..].iter().map(|it| &it.happened).collect();
        let note =
            Happened::Note("nothing tells of it any more: it was not seen to be over".to_owned());
        let expected = [&note, &Happened::Resolved];
        assert_eq!(said, expected[usize::from(!is_said)..], "node {node}");
    }
}

#[test]
fn the_missing_gpus_of_a_node_or_a_cluster_are_missed_too() {
    let of_node: Vec<Signal> = (0..5).map(broken).collect();
    let mut of_cluster: Vec<Signal> = (10..21)
        .map(|it| signal(Family::GpuFault, gpu(it, 0)))
        .collect();
    for fault in &mut of_cluster {
        fault.cause = Cause::GpuFault;
    }
    of_cluster.insert(0, broken(0));
    for all in [of_node, of_cluster] {
        let mut world = World::new();
        world.ticks(3, &all);
        assert!(world.open()[0].place.gpu.is_none());
        forgotten(&mut world, 0..1, 0);
        world.ticks(100, &[]);
        assert_eq!(world.open().len(), 1, "{:?}", all[1].place);
        forgotten(&mut world, 0..1, 1);
        world.ticks(3, &[]);
        assert_eq!(world.open().len(), 0);
    }
}
