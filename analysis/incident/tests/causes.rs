//! Trouble of one family at one place: one incident, or two where two causes are known.

use super::*;

const NETWORK: (&str, Cause) = ("a network device is down", Cause::Network);
const PCIE: (&str, Cause) = ("a PCIe error made its link unreliable", Cause::Pcie);

fn told(family: Family, place: Place, (what, cause): (&str, Cause)) -> Signal {
    Signal {
        what: what.to_owned(),
        cause,
        ..signal(family, place)
    }
}

fn node(node: usize) -> Place {
    Place::node("prod", &format!("node-{node}"))
}

fn of_job(place: Place) -> Place {
    Place {
        run: Some("pod:team/train".to_owned()),
        ..place
    }
}

/// What is open, in the order of its words.
fn open(world: &World) -> Vec<(&str, Cause, &Place)> {
    let open = world.book.open_ones();
    let mut open: Vec<_> = open.map(|it| (&*it.what, it.cause, &it.place)).collect();
    open.sort_unstable();
    open
}

#[test]
fn two_known_causes_at_one_place_are_two_incidents_whichever_comes_first_and_end_each_by_itself() {
    let leak = ("device memory grows until it is used up", Cause::Program);
    let short = ("nearly out of memory", Cause::HostMemory);
    let steal = ("the hypervisor takes its CPU time", Cause::HostCpu);
    let waits = ("it waits for its storage", Cause::Storage);
    for (family, (one, first), (other, second)) in [
        (Family::Link, (node(7), NETWORK), (gpu(7, 3), PCIE)),
        (Family::Leak, (of_job(gpu(7, 3)), leak), (node(7), short)),
        (Family::Slower, (node(7), steal), (node(7), waits)),
    ] {
        let first = told(family, one, first);
        let second = told(family, other, second);
        let both = [first.clone(), second.clone()];
        let mut expected = [&first, &second].map(|it| (&*it.what, it.cause, &it.place));
        expected.sort_unstable();
        for before in [&both[..0], &both[..1], &both[1..]] {
            let mut world = World::new();
            world.ticks(6, before);
            world.ticks(12, &both);
            assert_eq!(open(&world), expected, "{family:?} after {before:?}");
            world.ticks(40, &both[1..]);
            let left = (&*second.what, second.cause, &second.place);
            assert_eq!(open(&world), [left], "the other one is over");
        }
    }
}

#[test]
fn a_cause_that_is_found_later_is_the_same_incidents() {
    let mut world = World::new();
    let slow = "draws less power than like GPUs";
    let unknown = told(Family::Power, gpu(7, 3), (slow, Cause::Unknown));
    world.ticks(3, std::slice::from_ref(&unknown));
    let id = world.open()[0].id;
    let brake = ("slowed down by the power brake", Cause::PowerBrake);
    let brake = told(Family::Power, gpu(7, 3), brake);
    world.ticks(3, &[unknown.clone(), brake.clone()]);
    let [one] = world.open()[..] else {
        panic!("{:?}", open(&world));
    };
    assert_eq!((one.id, one.cause), (id, Cause::PowerBrake));
    // Another known one is another, and what may be of both does not make them one.
    let cap = ("slowed down by its power cap", Cause::PowerCap);
    let cap = told(Family::Power, gpu(7, 3), cap);
    world.ticks(3, &[unknown.clone(), brake, cap]);
    assert_eq!(world.open().len(), 2);
    world.ticks(3, &[unknown]);
    assert_eq!(world.open().len(), 2, "{:?}", open(&world));
}

#[test]
fn two_causes_that_are_found_at_once_are_two_and_the_first_has_the_id_that_people_know() {
    let mut world = World::new();
    let unknown = ("its links within the node are slower", Cause::Unknown);
    world.ticks(5, &[told(Family::Link, gpu(7, 3), unknown)]);
    let id = world.open()[0].id;
    let both = [NETWORK, PCIE].map(|it| told(Family::Link, gpu(7, 3), it));
    world.ticks(12, &both);
    let causes: Vec<_> = world.open().iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::Pcie, Cause::Network]);
    assert_eq!(world.open()[0].id, id);
}

#[test]
fn a_signal_of_which_another_cause_is_thought_is_no_other_incident() {
    let slow = "its links within the node are slower than their like";
    let slow = |cause| told(Family::Link, gpu(7, 3), (slow, cause));
    let mut world = World::new();
    world.ticks(5, &[slow(Cause::Nvlink)]);
    let id = world.open()[0].id;
    for cause in [Cause::Pcie, Cause::Nvlink, Cause::Unknown] {
        world.ticks(12, &[slow(cause)]);
        let ids: Vec<Uuid> = world.open().iter().map(|it| it.id).collect();
        assert_eq!(ids, [id], "{cause:?}");
    }
    assert_eq!(world.open()[0].cause, Cause::Nvlink);
    // At another GPU it is another.
    world.ticks(
        12,
        &[slow(Cause::Nvlink), told(Family::Link, gpu(7, 4), PCIE)],
    );
    assert_eq!(world.open().len(), 2);
}

#[test]
fn an_incident_takes_the_cause_that_is_told_once_its_own_is_told_no_more() {
    let slow = |rank, cause| Signal {
        what: "makes the other ranks wait".to_owned(),
        action: format!("mend {cause:?}"),
        cause,
        ..of_run(Family::Straggler, Some(rank), Some(gpu(7, 3)))
    };
    let mut world = World::new();
    world.tick(&[slow(3, Cause::Heat)]);
    let id = world.open()[0].id;
    let said = |world: &World| {
        let it = world.open()[0];
        (it.id, it.cause, it.action.clone())
    };
    let of = |cause: Cause| (id, cause, format!("mend {cause:?}"));
    assert_eq!(world.ticks(3, &[slow(3, Cause::Unknown)]), []);
    assert_eq!(said(&world), of(Cause::Heat), "that none is found is none");
    assert_eq!(
        world.ticks(3, &[slow(3, Cause::PowerCap)]),
        [Change::Updated(id)]
    );
    assert_eq!(said(&world), of(Cause::PowerCap));
    let incident = world.open()[0];
    let causes: Vec<Cause> = incident.evidence.iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::Heat, Cause::PowerCap], "the first is kept");
    let happened: Vec<&Happened> = incident.log.iter().map(|it| &it.happened).collect();
    let note = "because of the power cap, no longer of heat".to_owned();
    assert_eq!(happened, [&Happened::Opened, &Happened::Note(note)]);
    // While one signal says it, it stands.
    let node = Signal {
        place: of_run(Family::Straggler, None, Some(node(7))).place,
        ..slow(3, Cause::Heat)
    };
    world.ticks(3, &[slow(3, Cause::PowerCap), node.clone()]);
    assert_eq!(said(&world), of(Cause::PowerCap));
    world.ticks(3, &[node]);
    assert_eq!(said(&world), of(Cause::Heat));
}

#[test]
fn a_run_waits_once_whatever_is_thought_to_be_why() {
    for family in Family::ALL.into_iter().filter(|it| it.is_of_run()) {
        let mut world = World::new();
        let of = |what, cause, rank| Signal {
            what: format!("{what} {cause:?}"),
            cause,
            ..of_run(family, rank, Some(gpu(7, 3)))
        };
        world.tick(&[of("slow", Cause::Heat, Some(3))]);
        let now = [
            of("slow", Cause::PowerCap, Some(3)),
            of("waits", Cause::Storage, None),
        ];
        world.ticks(3, &now);
        assert_eq!(world.open().len(), 1, "{family:?}");
    }
}

#[test]
fn half_of_a_nodes_gpus_are_the_nodes_only_where_they_have_one_cause() {
    let of = |gpus: std::ops::Range<usize>, cause| -> Vec<Signal> {
        let of = |it| told(Family::Link, gpu(7, it), ("its link is slow", cause));
        gpus.map(of).collect()
    };
    let open_at = |signals: &[Signal]| {
        let mut world = World::new();
        world.ticks(5, signals);
        let nodes = world.open().iter().filter(|it| it.place == node(7)).count();
        (world.open().len(), nodes)
    };
    let two = [of(0..2, Cause::Pcie), of(2..4, Cause::Nvlink)].concat();
    assert_eq!(open_at(&two), (4, 0));
    let one = [of(0..1, Cause::Pcie), of(1..4, Cause::Unknown)].concat();
    assert_eq!(open_at(&one), (1, 1), "of three the cause is not known");
}

#[test]
fn a_broken_node_explains_what_its_ranks_do_for_any_cause() {
    let mut world = World::new();
    let slow = Signal {
        cause: Cause::Pcie,
        ..of_run(Family::Straggler, Some(59), Some(gpu(7, 3)))
    };
    world.tick(std::slice::from_ref(&slow));
    let id = world.open()[0].id;
    let fault = told(Family::GpuFault, node(7), ("XID 79", Cause::GpuFault));
    world.ticks(3, &[slow, fault]);
    let [one] = world.open()[..] else {
        panic!("{:?}", open(&world));
    };
    assert_eq!((one.id, one.family), (id, Family::GpuFault));
}

#[test]
fn of_what_is_wrong_with_one_gpu_an_incident_has_the_words_of_what_asks_for_most_and_is_told_still()
{
    let of = |what: &str, action: &str, remedy: Remedy| Signal {
        severity: Severity::Error,
        action: action.to_owned(),
        remedy,
        ..told(Family::GpuFault, gpu(7, 3), (what, Cause::GpuFault))
    };
    let repeated = of(
        "XID 31 in several jobs",
        "Run a diagnosis.",
        Remedy::Diagnose,
    );
    let fell = of("XID 79", "Drain the node and reboot it.", Remedy::Reboot);
    let row = of(
        "a memory row could not be remapped",
        "Have the card replaced.",
        Remedy::Replace,
    );
    let mut world = World::new();
    world.ticks(3, std::slice::from_ref(&repeated));
    let id = world.open()[0].id;
    let said = |world: &World| {
        let it = world.open()[0];
        (it.id, it.what.clone(), it.action.clone())
    };
    let as_of = |it: &Signal| (id, it.what.clone(), it.action.clone());
    assert_eq!(said(&world), as_of(&repeated));
    let all = [row.clone(), repeated.clone(), fell.clone()];
    assert_eq!(world.ticks(3, &all), [Change::Updated(id)]);
    assert_eq!(said(&world), as_of(&fell));
    let left = [repeated.clone(), row.clone()];
    assert_eq!(world.ticks(3, &left), [Change::Updated(id)], "it is mended");
    assert_eq!(said(&world), as_of(&row));
    let notes = world.open()[0].log.iter();
    let notes = notes.filter(|it| matches!(it.happened, Happened::Note(_)));
    assert_eq!(notes.count(), 2, "the log says both");
    // What asks for as much takes no words away, whichever is told first.
    let action = "Drain its jobs and reset the GPU.";
    let reset = of("XID 48", action, Remedy::Reset);
    let ecc = of("memory errors", action, Remedy::Reset);
    let mut world = World::new();
    world.tick(std::slice::from_ref(&reset));
    world.ticks(3, &[ecc.clone(), reset]);
    assert_eq!(world.open()[0].what, "XID 48");
    world.ticks(3, &[ecc]);
    assert_eq!(world.open()[0].what, "memory errors");
}

#[test]
fn a_slow_link_somewhere_in_a_run_is_why_that_is_slower_and_not_why_one_of_its_ranks_is() {
    let link = of_run(Family::Link, None, None);
    let straggler = of_run(Family::Straggler, Some(59), Some(gpu(7, 3)));
    let slower = |at: &Signal| Signal {
        place: at.place.clone(),
        ..of_run(Family::Slower, None, None)
    };
    let all = [
        link.clone(),
        straggler.clone(),
        slower(&link),
        slower(&straggler),
    ];
    // Whichever is told first.
    for before in [&all[..0], &all[..1], &all[1..2]] {
        let mut world = World::new();
        world.ticks(6, before);
        world.ticks(6, &all);
        let mut open = world.open();
        open.sort_by_key(|it| it.family);
        let families: Vec<Family> = open.iter().map(|it| it.family).collect();
        assert_eq!(families, [Family::Link, Family::Straggler]);
        for (incident, place) in std::iter::zip(open, [&link.place, &straggler.place]) {
            assert!(incident.places().all(|it| it == place), "{incident:#?}");
            let said = incident.evidence.iter().map(|it| &*it.what);
            assert!(said.eq([incident.family.name(), "slower"]), "{incident:#?}");
        }
    }
}

/// What an action asks for is its value: its words may name what is not asked for.
#[test]
fn words_that_name_a_reboot_without_asking_for_one_take_no_words_away() {
    let of = |what: &str, action: &str, remedy: Remedy| Signal {
        severity: Severity::Error,
        action: action.to_owned(),
        remedy,
        ..told(Family::GpuFault, gpu(7, 3), (what, Cause::GpuFault))
    };
    let reset = of("XID 48", "Drain it and reset the GPU.", Remedy::Reset);
    let look = of("odd", "See whether a reboot mended it.", Remedy::Look);
    let mut world = World::new();
    world.tick(std::slice::from_ref(&reset));
    world.ticks(3, &[look.clone(), reset]);
    assert_eq!(world.open()[0].what, "XID 48");
    world.ticks(3, &[look]);
    assert_eq!(world.open()[0].remedy, Some(Remedy::Look));
}

#[test]
fn what_an_older_version_wrote_asks_for_what_it_is_told_with_now_and_is_no_news_for_it() {
    let of = |what: &str, remedy: Remedy| Signal {
        severity: Severity::Error,
        remedy,
        ..told(Family::GpuFault, gpu(7, 3), (what, Cause::GpuFault))
    };
    let (fell, failed) = (of("XID 79", Remedy::Reboot), of("row", Remedy::Replace));
    let mut world = World::new();
    world.tick(std::slice::from_ref(&fell));
    let stored = serde_json::to_string(&world.open()).expect("it is JSON");
    let older = stored.replace(r#""remedy":"reboot","#, "");
    assert_ne!(older, stored);
    let read: Vec<Incident> = serde_json::from_str(&older).expect("it is read");
    assert_eq!(read[0].remedy, None);
    world.book = Book::restored(read, world.now);
    // What is told before its own words are does not take them away.
    world.ticks(2, std::slice::from_ref(&failed));
    assert_eq!(world.open()[0].what, "XID 79");
    assert_eq!(world.ticks(2, &[fell, failed]), []);
    let now = world.open()[0];
    assert_eq!((&*now.what, now.remedy), ("XID 79", Some(Remedy::Reboot)));
}

#[test]
fn what_goes_on_while_why_it_does_is_not_sure_yet_is_not_over_and_becomes_that() {
    // A cause opens after 5 ticks in a row, or after as many as are configured; a hang is over after 15 s without a word.
    for (family, enough) in [
        (Family::Hang, Family::Link.ticks()),
        (Family::Hang, 12),
        (Family::Straggler, 12),
        (Family::Slower, 12),
    ] {
        let mut world = World::new();
        world
            .book
            .open_after(BTreeMap::from([(Family::Link, enough)]));
        let does = of_run(family, Some(59), Some(gpu(7, 3)));
        let id = Uuid::from_u128(1);
        let opened = world.ticks(3, std::slice::from_ref(&does));
        assert_eq!(opened, [Change::Opened(id)], "{family:?}");
        let now = world.now;
        let said = world.book.acknowledge(id, "ada", now);
        said.expect("it is open");
        let both = [does, signal(Family::Link, gpu(7, 3))];
        let changes = world.ticks(enough as usize + 1, &both);
        assert_eq!(changes, [Change::Updated(id)], "{family:?}");
        let [one] = world.open()[..] else {
            panic!("{family:?}: {:?}", open(&world));
        };
        assert_eq!((one.id, one.family), (id, Family::Link));
        assert_eq!(one.acknowledged_by.as_deref(), Some("ada"));
        let lost = 64.0 * 10.0 * f64::from(enough + 3);
        assert_eq!(one.lost.gpu_seconds(), lost, "{family:?}: all the while");
    }
}

#[test]
fn what_goes_on_after_what_may_have_been_why_is_gone_is_the_same_incident_and_ends_with_its_own() {
    let hang = of_run(Family::Hang, Some(59), Some(gpu(7, 3)));
    let mut world = World::new();
    world.tick(std::slice::from_ref(&hang));
    let id = world.open()[0].id;
    let both = [hang.clone(), signal(Family::Link, gpu(7, 3))];
    assert_eq!(world.ticks(4, &both), [], "it is not sure");
    assert_eq!(world.ticks(4, std::slice::from_ref(&hang)), []);
    let now = world.open()[0];
    assert_eq!((now.id, now.family), (id, Family::Hang));
    assert_eq!(now.lost.gpu_seconds(), 64.0 * 80.0);
    assert_eq!(world.ticks(4, &both), []);
    assert_eq!(world.ticks(2, &[]), [Change::Resolved(id)], "both are gone");
}
