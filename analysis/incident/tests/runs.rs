//! Runs that stand: whom they wait for, and what their GPUs do meanwhile.

use super::*;

fn node(node: usize) -> Place {
    Place::node("prod", &format!("node-{node}"))
}

#[test]
fn gpus_without_work_of_a_run_that_stands_are_in_its_incident_on_whatever_node_and_are_lost_once() {
    let hang = of_run(Family::Hang, Some(59), Some(gpu(7, 3)));
    let causes = [
        None,
        Some(signal(Family::GpuFault, gpu(7, 3))),
        Some(signal(Family::Blind, node(7))),
        Some(signal(Family::Link, gpu(7, 3))),
    ];
    for (family, place) in [
        (Family::Stalled, None),
        (Family::Stalled, Some(node(6))),
        (Family::Idle, Some(gpu(6, 0))),
    ] {
        let waits = Signal {
            price: Price::of(Basis::HeldUnused, Losing::gpus(63, Some(3_000_000_000))),
            ..of_run(family, None, place)
        };
        for cause in &causes {
            let mut world = World::new();
            world.tick(std::slice::from_ref(&hang));
            let id = world.open()[0].id;
            let mut all = vec![hang.clone(), waits.clone()];
            all.extend(cause.clone());
            world.ticks(8, &all);
            let [one] = world.open()[..] else {
                panic!("{waits:?} {cause:?}: {:?}", world.open());
            };
            assert_eq!((one.id, one.losing.milli_gpus), (id, 64_000), "{cause:?}");
            // It moves again, which GPUs tell a tick later.
            assert_eq!(world.tick(std::slice::from_ref(&waits)), [], "{cause:?}");
        }
        // Those of another run wait for something else.
        let mut other = waits;
        other.place.run = Some("other".to_owned());
        let mut world = World::new();
        world.tick(&[hang.clone(), other]);
        assert_eq!(world.open().len(), 2, "{family:?}");
    }
}

#[test]
fn gpus_without_work_of_a_run_that_stood_for_what_is_open_still_are_explained_while_it_stands() {
    let hang = of_run(Family::Hang, Some(59), Some(gpu(7, 3)));
    let waits = of_run(Family::Stalled, None, None);
    let fault = signal(Family::GpuFault, gpu(7, 3));
    let stands = [hang, waits.clone(), fault.clone()];
    let moved = [waits, fault];
    let families = |world: &World| -> Vec<Family> {
        let open = world.open().into_iter();
        open.map(|it| it.family).collect()
    };
    let mut world = World::new();
    world.ticks(3, &stands);
    world.ticks(5, &moved);
    assert_eq!(families(&world), [Family::GpuFault], "a moment ago");
    world.silent.insert("train".to_owned());
    world.ticks(60, &moved);
    assert_eq!(families(&world), [Family::GpuFault], "it is not heard");
    world.silent.clear();
    world.ticks(60, &moved);
    let both = [Family::GpuFault, Family::Stalled];
    assert_eq!(families(&world), both, "it waits for something else");
    world.tick(&stands);
    assert_eq!(families(&world), [Family::GpuFault], "it stands again");
    let stored = world.open().into_iter().cloned().collect();
    world.book = Book::restored(stored, world.now);
    world.ticks(5, &moved);
    assert_eq!(families(&world), [Family::GpuFault], "after a restart");
    world.tick(&moved);
    assert_eq!(families(&world), both);
}

#[test]
fn gpus_without_work_before_their_run_is_told_to_stand_are_its_incident_then() {
    let waits = of_run(Family::Stalled, None, Some(node(6)));
    let mut world = World::new();
    world.ticks(3, std::slice::from_ref(&waits));
    let id = world.open()[0].id;
    let hang = of_run(Family::Hang, Some(59), Some(gpu(7, 3)));
    assert_eq!(world.ticks(3, &[waits, hang]), [Change::Updated(id)]);
    let [one] = world.open()[..] else {
        panic!("{:?}", world.open());
    };
    assert_eq!((one.id, one.family), (id, Family::Hang));
}

#[test]
fn gpus_without_work_on_many_nodes_whose_runs_stand_are_no_incident_of_the_cluster() {
    let of = |family: Family| {
        let of = move |run: usize| {
            let mut signal = of_run(family, None, Some(node(run)));
            signal.place.run = Some(format!("run-{run}"));
            signal
        };
        (0..20).map(of)
    };
    let all: Vec<Signal> = of(Family::Hang).chain(of(Family::Stalled)).collect();
    let mut world = World::new();
    world.runs.insert("prod".to_owned(), 20);
    world.ticks(3, &all);
    let [one] = world.open()[..] else {
        panic!("{:?}", world.open());
    };
    assert_eq!((one.family, one.places), (Family::Hang, 20));
    assert_eq!(one.losing.milli_gpus, 20 * 64_000);
}

#[test]
fn a_run_that_stands_is_one_incident_that_goes_to_whom_it_is_thought_to_wait_for() {
    let waits = |rank: u32| Signal {
        what: "stands and waits for this rank".to_owned(),
        ..of_run(Family::Hang, Some(rank), Some(gpu(rank as usize / 8, 0)))
    };
    let nobody = of_run(Family::Hang, None, None);
    let mut world = World::new();
    world.tick(std::slice::from_ref(&nobody));
    let id = world.open()[0].id;
    for now in [waits(59), waits(3), nobody.clone(), waits(59)] {
        let changes = world.ticks(3, std::slice::from_ref(&now));
        assert_eq!(changes, [Change::Updated(id)], "{now:?}");
        let [one] = world.open()[..] else {
            panic!("{:?}", world.open());
        };
        assert_eq!((&one.place, &one.what), (&now.place, &now.what));
    }
    let happened: Vec<&Happened> = world.open()[0].log.iter().map(|it| &it.happened).collect();
    let note = |text: &str| Happened::Note(text.to_owned());
    let [first, second] =
        ["rank 59 on node-7", "rank 3 on node-0"].map(|it| note(&format!("it is about {it}")));
    let widened = Happened::Widened("prod".to_owned());
    assert_eq!(
        happened,
        [&Happened::Opened, &first, &second, &widened, &first]
    );
    // While its words are those of a rank whose cause is known, that is where it is.
    let mut known = waits(3);
    known.cause = Cause::Network;
    world.ticks(3, std::slice::from_ref(&known));
    assert_eq!(world.ticks(3, &[nobody]), [], "nobody is named for a while");
    assert_eq!(world.open()[0].place, known.place);
    // Why rank 3 would stand says nothing of rank 59.
    for (now, cause) in [(waits(59), Cause::Unknown), (known.clone(), Cause::Network)] {
        world.ticks(3, std::slice::from_ref(&now));
        let [one] = world.open()[..] else {
            panic!("{:?}", world.open());
        };
        assert_eq!((one.id, &one.place, one.cause), (id, &now.place, cause));
    }
    // Two runs are two.
    let mut other = waits(59);
    other.place.run = Some("other".to_owned());
    world.tick(&[known, other]);
    assert_eq!(world.open().len(), 2);
}
