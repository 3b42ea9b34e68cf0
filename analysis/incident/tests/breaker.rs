//! Many nodes, and many runs, with the same trouble.

use super::*;

#[test]
fn many_nodes_with_the_same_trouble_trip_the_circuit_breaker() {
    let mut world = World::new();
    let blind = |count: usize| -> Vec<Signal> {
        let node = |it| Place::node("prod", &format!("node-{it}"));
        (0..count)
            .map(|it| signal(Family::Blind, node(it)))
            .collect()
    };
    world.ticks(3, &blind(10));
    assert_eq!(
        world.open().len(),
        10,
        "a tenth of the cluster is no more than that"
    );
    world.tick(&blind(60));
    let open = world.open();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].place.node.as_ref(), open[0].places), (None, 60));
    let mut small = World::new();
    small.nodes.retain(|(_, node), _| node.len() == 6);
    assert_eq!(small.nodes.len(), 10);
    small.ticks(3, &blind(5));
    assert_eq!(small.open().len(), 5, "five nodes are few in any cluster");
}

/// Trouble of these runs, a rank of each, which costs 10 GPUs each.
fn of_runs(family: Family, runs: std::ops::Range<usize>) -> Vec<Signal> {
    let price = Price::of(Basis::RunStands, Losing::gpus(10, Some(3_000_000_000)));
    let of = |run: usize| {
        let mut place = gpu(run, 0);
        (place.run, place.rank) = (Some(format!("run-{run}")), Some(3));
        let action = "look at rank 3".to_owned();
        Signal {
            price,
            action,
            ..signal(family, place)
        }
    };
    runs.map(of).collect()
}

fn watching(runs: usize) -> World {
    let mut world = World::new();
    world.runs.insert("prod".to_owned(), runs);
    world
}

/// How many runs are in the incident of the cluster, and how many incidents of one run are open.
fn counted(world: &World) -> (usize, usize) {
    let of_runs = world.open().into_iter().filter(|it| it.family.is_of_run());
    let (one, wide): (Vec<&Incident>, Vec<&Incident>) =
        of_runs.partition(|it| it.place.run.is_some());
    assert!(wide.len() <= 1, "{wide:?}");
    (wide.first().map_or(0, |it| it.places), one.len())
}

#[test]
fn the_same_trouble_of_many_runs_is_one_incident_with_the_price_of_all_and_resolves_with_the_last()
{
    for family in Family::ALL.into_iter().filter(|it| it.is_of_run()) {
        let mut world = watching(1_000);
        let mut all = of_runs(family, 0..200);
        for signal in &mut all {
            signal.since = Some(world.now.shifted(-50_000_000_000));
        }
        // A second rank of a run makes it lose no more.
        let mut again = all[7].clone();
        again.place.rank = Some(4);
        all.push(again);
        all.iter_mut().for_each(|it| it.remedy = Remedy::Drain);
        let id = Uuid::from_u128(1);
        assert_eq!(world.tick(&all), [Change::Opened(id)], "{family:?}");
        let open = world.open()[0];
        assert_eq!((open.places, open.losing.milli_gpus), (200, 2_000_000));
        assert_eq!(open.lost.gpu_seconds(), 200.0 * 10.0 * 60.0);
        assert_eq!(open.evidence.len(), MAX_EVIDENCE, "some are named");
        assert!(open.evidence.iter().all(|it| it.place.run.is_some()));
        assert!(open.action.contains("share"), "{}", open.action);
        assert_eq!(open.remedy, Some(Remedy::Look), "of none of their nodes");
        // They are well again one by one: it goes on with the last ones, however few, and ends with them.
        world.ticks(60, &of_runs(family, 197..200));
        assert_eq!(counted(&world), (3, 0));
        assert_eq!(world.open()[0].losing.milli_gpus, 30_000);
        let last = world.ticks(30, &[]);
        assert_eq!(last, [Change::Resolved(id)], "{family:?}");
        assert_eq!(world.tick(&of_runs(family, 3..4)).len(), 1);
        assert_eq!(
            counted(&world),
            (0, 1),
            "it is over: a run has its own again"
        );
    }
}

#[test]
fn few_runs_and_a_small_part_of_many_have_each_their_own() {
    for (watched, runs) in [(3, 2), (5, 5), (10, 5), (60, 6), (1_000, 100)] {
        let mut world = watching(watched);
        world.ticks(3, &of_runs(Family::Hang, 0..runs));
        assert_eq!(counted(&world), (0, runs), "{runs} of {watched}");
    }
    for (watched, runs) in [(6, 6), (59, 6), (1_000, 101)] {
        let mut world = watching(watched);
        world.ticks(3, &of_runs(Family::Hang, 0..runs));
        assert_eq!(counted(&world), (runs, 0), "{runs} of {watched}");
    }
}

#[test]
fn runs_that_were_in_trouble_long_before_keep_their_own_and_those_of_minutes_are_taken_in() {
    let mut world = watching(20);
    world.ticks(40, &of_runs(Family::Hang, 0..2));
    world.ticks(20, &of_runs(Family::Hang, 0..5));
    assert_eq!(counted(&world), (0, 5));
    let before: f64 = world
        .open()
        .iter()
        .skip(2)
        .map(|it| it.lost.gpu_seconds())
        .sum();
    world.tick(&of_runs(Family::Hang, 0..12));
    assert_eq!(counted(&world), (10, 2), "two of 400 s, three of 200 s");
    let wide = world.open().into_iter().find(|it| it.place.run.is_none());
    assert_eq!(wide.map(|it| it.lost.gpu_seconds()), Some(before));
    // Further ones join while it goes on, with few left each has its own.
    world.tick(&of_runs(Family::Hang, 0..15));
    assert_eq!(counted(&world), (13, 2));
    let mut few = of_runs(Family::Hang, 14..17);
    few.extend(of_runs(Family::Hang, 0..2));
    world.ticks(3, &few);
    assert_eq!(counted(&world), (1, 4));
}

#[test]
fn runs_that_are_not_heard_end_nothing_and_what_their_trouble_explains_is_no_other() {
    let mut world = watching(20);
    world.tick(&of_runs(Family::Hang, 0..10));
    world.tick(&[of_runs(Family::Hang, 0..10), of_runs(Family::Slower, 0..10)].concat());
    assert_eq!(world.tick(&of_runs(Family::Slower, 0..10)), []);
    assert_eq!(counted(&world), (10, 0));
    world.silent.insert("run-4".to_owned());
    world.ticks(30, &[]);
    assert_eq!(world.open().len(), 1);
    assert!(world.open()[0].unheard_since.is_some());
    world.silent.clear();
    assert_eq!(world.ticks(3, &[]), [Change::Resolved(Uuid::from_u128(1))]);
}

#[test]
fn a_broken_gpu_explains_its_run_and_not_what_many_have() {
    let mut world = watching(20);
    world.tick(&of_runs(Family::Hang, 0..10));
    let mut all = of_runs(Family::Hang, 0..10);
    all.push(signal(Family::GpuFault, gpu(4, 0)));
    world.ticks(3, &all);
    let families: Vec<Family> = world.open().iter().map(|it| it.family).collect();
    assert_eq!(families, [Family::Hang, Family::GpuFault]);
    assert_eq!(counted(&world).0, 9);
    // With six runs of which the GPUs are broken there is no cause that they share.
    let mut world = watching(20);
    let mut all = of_runs(Family::Hang, 0..8);
    all.extend((0..3).map(|it| signal(Family::GpuFault, gpu(it, 0))));
    world.ticks(2, &all);
    assert_eq!(world.open().len(), 8, "three broken GPUs and five runs");
}

#[test]
fn after_a_restart_the_incident_of_many_runs_goes_on_with_those_that_are_left() {
    let mut world = watching(20);
    world.tick(&of_runs(Family::Hang, 0..10));
    let kept = world.open().into_iter().cloned().collect();
    world.book = Book::restored(kept, world.now);
    assert_eq!(world.ticks(20, &of_runs(Family::Hang, 0..3)), []);
    assert_eq!(counted(&world), (3, 0));
    assert_eq!(
        world.open()[0].lost.gpu_seconds(),
        100.0 * 10.0 + 30.0 * 190.0
    );
    assert_eq!(world.ticks(3, &[]), [Change::Resolved(Uuid::from_u128(1))]);
}

/// When each run stood, seconds since the start.
fn stood(world: &World, run: usize) -> Vec<(i64, Option<i64>)> {
    let all = world.open().into_iter().flat_map(Incident::stood);
    let its = all.filter(|(name, _)| *name == format!("run-{run}"));
    let second = |it: Timestamp| it.since(START) / 1_000_000_000;
    let spans = its.flat_map(|(_, spans)| spans);
    spans
        .map(|(from, until)| (second(from), until.map(second)))
        .collect()
}

#[test]
fn each_of_many_runs_that_stand_for_one_cause_says_from_when_until_when_it_did() {
    let mut world = watching(20);
    let standing = |runs: std::ops::Range<usize>| {
        let mut all = of_runs(Family::Hang, runs);
        for signal in &mut all {
            signal.since = Some(START.shifted(-200_000_000_000));
        }
        all
    };
    // Five minutes without a step are over after 100 seconds.
    world.ticks(20, &standing(0..10));
    assert_eq!(counted(&world), (10, 0));
    assert_eq!(stood(&world, 3), [(100, None)]);
    assert_eq!(stood(&world, 11), []);
    // Some go on, one comes later, one is not heard.
    world.silent.insert("run-9".to_owned());
    let mut few = standing(4..9);
    few.extend(standing(11..12));
    world.ticks(10, &few);
    assert_eq!(stood(&world, 3), [(100, Some(200))]);
    assert_eq!(
        stood(&world, 9),
        [(100, Some(200))],
        "nobody knows of after"
    );
    assert_eq!(stood(&world, 8), [(100, None)]);
    assert_eq!(stood(&world, 11), [(210, None)]);
    // What was not heard stands still, and what went on stands again.
    world.silent.clear();
    world.ticks(10, &standing(0..12));
    assert_eq!(stood(&world, 9), [(100, None)]);
    assert_eq!(stood(&world, 3), [(100, Some(200)), (310, None)]);
    // A server that begins anew goes on with them, and ends those that are gone.
    let kept = world.open().into_iter().cloned().collect();
    world.book = Book::restored(kept, world.now);
    world.ticks(20, &standing(0..5));
    assert_eq!(stood(&world, 3), [(100, Some(200)), (310, None)]);
    assert_eq!(stood(&world, 9), [(100, Some(400))]);
}

#[test]
fn other_trouble_of_many_runs_is_not_that_they_stand() {
    let mut world = watching(20);
    world.ticks(60, &of_runs(Family::Slower, 0..10));
    assert_eq!(counted(&world), (10, 0));
    assert_eq!(stood(&world, 3), []);
    assert!(world.open()[0].standing.is_empty());
}
