//! The life of incidents, tick by tick of ten seconds.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

mod breaker;

mod causes;

mod missing;

mod outage;

mod readers;

mod readings;

mod runs;

mod opens;

mod full;

mod priced;

mod people;

const START: Timestamp = Timestamp::from_seconds(1_790_000_000);

/// A book with a made clock and a cluster of 100 nodes of 8 GPUs.
struct World {
    book: Book,
    now: Timestamp,
    ids: u128,
    nodes: Nodes,
    runs: BTreeMap<String, usize>,
    silent: BTreeSet<String>,
    gone: BTreeMap<String, usize>,
    quiet: BTreeSet<(String, String)>,
}

impl World {
    fn new() -> Self {
        let node = |it| (("prod".to_owned(), format!("node-{it}")), 8);
        Self {
            book: Book::default(),
            now: START,
            ids: 0,
            nodes: (0..100).map(node).collect::<BTreeMap<_, _>>(),
            runs: BTreeMap::new(),
            silent: BTreeSet::new(),
            gone: BTreeMap::new(),
            quiet: BTreeSet::new(),
        }
    }

    fn tick(&mut self, signals: &[Signal]) -> Vec<Change> {
        self.now = self.now.shifted(10_000_000_000);
        let (silent, gone) = (&self.silent, &self.gone);
        let ids = &mut self.ids;
        let tick = Tick {
            now: self.now,
            signals: signals.to_vec(),
            is_heard: &|_, place| {
                let mut names = place.node.iter().chain(&place.run);
                names.all(|it| !silent.contains(it))
            },
            in_its_place: &|place, _| gone.get(place.gpu.as_ref()?).copied(),
            is_forgotten: &|_, place| place.node.as_deref() == Some("node-99"),
            quiet_runs: &self.quiet,
            nodes: &self.nodes,
            runs: &self.runs,
        };
        self.book.tick(tick, &mut || {
            *ids += 1;
            Uuid::from_u128(*ids)
        })
    }

    fn ticks(&mut self, count: usize, signals: &[Signal]) -> Vec<Change> {
        (0..count).flat_map(|_| self.tick(signals)).collect()
    }

    fn open(&self) -> Vec<&Incident> {
        self.book.open_ones().collect()
    }
}

fn signal(family: Family, place: Place) -> Signal {
    Signal {
        family,
        place,
        severity: Severity::Warning,
        what: family.name().to_owned(),
        action: String::new(),
        remedy: Remedy::Look,
        cause: Cause::Unknown,
        since: None,
        readings: Vec::new(),
        price: Price::of(Basis::BrokenGpu, Losing::gpus(1, Some(3_000_000_000))),
        confidence: None,
        booted_at: None,
    }
}

fn gpu(node: usize, gpu: usize) -> Place {
    Place::gpu(
        "prod",
        &format!("node-{node}"),
        &format!("GPU-{node}-{gpu}"),
    )
}

fn of_run(family: Family, rank: Option<u32>, suspect: Option<Place>) -> Signal {
    let place = Place {
        run: Some("train".to_owned()),
        rank,
        ..suspect.unwrap_or(Place {
            cluster: "prod".to_owned(),
            ..Place::default()
        })
    };
    Signal {
        price: Price::of(Basis::RunStands, Losing::gpus(64, Some(3_000_000_000))),
        ..signal(family, place)
    }
}

#[test]
fn a_broken_gpu_opens_one_incident_at_once_and_resolves_when_it_works_again() {
    let mut world = World::new();
    let mut xid = signal(Family::GpuFault, gpu(7, 3));
    (xid.what, xid.severity) = ("XID 79".to_owned(), Severity::Error);
    xid.cause = Cause::GpuFault;
    let mut lost = signal(Family::GpuFault, gpu(7, 3));
    lost.what = "lost".to_owned();
    let idle = signal(Family::Idle, gpu(7, 3));
    let id = Uuid::from_u128(1);
    assert_eq!(world.tick(&[lost, idle, xid.clone()]), [Change::Opened(id)]);
    let open = world.open();
    assert_eq!(open.len(), 1, "one cause, one incident");
    assert_eq!((&*open[0].what, open[0].cause), ("XID 79", Cause::GpuFault));
    assert_eq!(open[0].place, gpu(7, 3));
    assert_eq!(
        open[0].evidence.len(),
        3,
        "what it explains is its evidence"
    );
    assert_eq!(open[0].losing.milli_gpus, 1_000, "one GPU is lost once");
    assert_eq!(world.ticks(359, &[xid]), [], "nothing new is said");
    assert_eq!(world.open()[0].lost.gpu_seconds(), 3_590.0);
    assert_eq!(world.open()[0].lost.nano_usd(), Some(3_590 * 3_000_000_000));
    assert_eq!(world.tick(&[]), [], "one tick without is not the end");
    assert_eq!(world.tick(&[]), [Change::Resolved(id)]);
    let over = world.book.get(id).expect("people were told of it");
    assert_eq!(
        over.lost.gpu_seconds(),
        3_590.0,
        "nothing after its last signal"
    );
    let said: Vec<_> = over.log.iter().map(|it| &it.happened).collect();
    assert_eq!(said, [&Happened::Opened, &Happened::Resolved]);
}

#[test]
fn what_was_lost_before_it_opened_counts_from_when_it_began() {
    let mut world = World::new();
    let mut fault = signal(Family::GpuFault, gpu(7, 3));
    fault.since = Some(START.shifted(-50_000_000_000));
    world.tick(&[fault]);
    assert_eq!(world.open()[0].lost.gpu_seconds(), 60.0);
    assert_eq!(world.open()[0].since, START.shifted(-50_000_000_000));
}

#[test]
fn what_a_tick_shows_opens_only_after_its_number_of_ticks_in_a_row() {
    for family in Family::ALL {
        let mut world = World::new();
        let trouble = [signal(family, gpu(7, 3))];
        let before = family.ticks() as usize - 1;
        assert_eq!(world.ticks(before, &trouble), [], "{family:?}");
        if before > 0 {
            assert_eq!(world.tick(&[]), []);
            assert_eq!(world.ticks(before, &trouble), [], "{family:?}: in a row");
        }
        assert_eq!(world.tick(&trouble).len(), 1, "{family:?}");
    }
}

#[test]
fn heat_power_and_links_say_nothing_while_a_node_settles_after_a_boot() {
    for family in Family::ALL {
        let mut world = World::new();
        let mut trouble = signal(family, gpu(7, 3));
        trouble.booted_at = Some(START);
        world.ticks(30, &[trouble.clone()]);
        assert_eq!(
            world.open().is_empty(),
            family.is_quiet_after_boot(),
            "{family:?}"
        );
        world.ticks(60, &[trouble]);
        assert_eq!(world.open().len(), 1, "{family:?}");
    }
}

#[test]
fn half_of_a_nodes_gpus_with_the_same_trouble_are_the_nodes() {
    let mut world = World::new();
    let hot = |count: usize| -> Vec<Signal> {
        (0..count)
            .map(|it| signal(Family::Heat, gpu(1, it)))
            .collect()
    };
    world.ticks(3, &hot(1));
    assert_eq!(world.open()[0].place, gpu(1, 0));
    let changes = world.tick(&hot(8));
    assert_eq!(
        changes,
        [Change::Updated(Uuid::from_u128(1))],
        "the same incident"
    );
    let open = world.open();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].place, Place::node("prod", "node-1"));
    assert_eq!((open[0].places, open[0].losing.milli_gpus), (8, 8_000));
    world.ticks(2, &hot(1));
    assert_eq!(world.open().len(), 1, "it does not fall apart again");
    let mut world = World::new();
    world.ticks(3, &hot(3));
    assert_eq!(world.open().len(), 3, "three of eight are three");
}

#[test]
fn incidents_that_turn_out_to_be_one_become_one() {
    let mut world = World::new();
    let faults = |range: std::ops::Range<usize>| -> Vec<Signal> {
        range
            .map(|it| signal(Family::GpuFault, gpu(1, it)))
            .collect()
    };
    world.ticks(7, &faults(0..3));
    assert_eq!(world.open().len(), 3);
    world.tick(&faults(0..8));
    let open = world.open();
    assert_eq!(open.len(), 1);
    // One since it opened and two that it took in, each up to its own last tick.
    assert_eq!(open[0].lost.gpu_seconds(), 70.0 + 2.0 * 60.0);
    let other = world.book.get(Uuid::from_u128(2)).expect("it was open");
    assert_eq!(other.state, State::Resolved);
    assert!(
        other.lost.gpu_micros == 0,
        "what it lost is the other's now"
    );
}

#[test]
fn a_broken_gpu_explains_the_run_that_waits_for_it_and_costs_what_that_loses() {
    let mut world = World::new();
    let straggler = of_run(Family::Straggler, Some(59), Some(gpu(7, 3)));
    assert_eq!(
        world.tick(std::slice::from_ref(&straggler)),
        [Change::Opened(Uuid::from_u128(1))]
    );
    world.ticks(2, &[straggler.clone(), signal(Family::Heat, gpu(7, 3))]);
    assert_eq!(
        world.open().len(),
        1,
        "heat is only pending, and takes nothing away yet"
    );
    let (id, now) = (Uuid::from_u128(1), world.now);
    let said = world.book.acknowledge(id, "ada", now);
    said.expect("it is open");
    let hour = now.shifted(3_600_000_000_000);
    let said = world.book.silence(id, "ada", hour, now);
    said.expect("it is open");
    let both = [straggler.clone(), signal(Family::Heat, gpu(7, 3))];
    assert_eq!(world.tick(&both), [Change::Updated(id)], "no other one");
    let open = world.open();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].id, open[0].family), (id, Family::Heat));
    assert_eq!(open[0].acknowledged_by.as_deref(), Some("ada"));
    assert_eq!(open[0].silenced_alone_until, Some(hour));
    assert_eq!(open[0].losing.milli_gpus, 64_000);
    assert_eq!(
        open[0].lost.gpu_seconds(),
        64.0 * 30.0,
        "from its first sign"
    );
    let place = open[0].place_and_run();
    assert_eq!(
        (place.run.as_deref(), place.rank),
        (Some("train"), Some(59))
    );
    assert_eq!(open[0].place, gpu(7, 3));
    let other = of_run(Family::Straggler, Some(1), Some(gpu(8, 0)));
    world.tick(&[other]);
    assert_eq!(world.open().len(), 2, "a rank elsewhere has another cause");
}

fn train() -> (String, String) {
    ("prod".to_owned(), "train".to_owned())
}

#[test]
fn a_run_that_is_quiet_hides_nothing_of_the_one_of_the_same_name_in_another_cluster() {
    let mut world = World::new();
    world.quiet.insert(("other".to_owned(), "train".to_owned()));
    let hang = of_run(Family::Hang, None, None);
    assert_eq!(world.tick(std::slice::from_ref(&hang)).len(), 1);
    world.quiet.insert(train());
    assert_eq!(world.tick(&[hang]), [Change::Updated(Uuid::from_u128(1))]);
}

#[test]
fn a_clock_that_is_set_back_keeps_no_incident_open_and_brings_none_back_late() {
    let mut world = World::new();
    let fault = [signal(Family::GpuFault, gpu(7, 3))];
    let ahead = 3 * 3_600_000_000_000;
    world.now = START.shifted(ahead);
    assert_eq!(world.tick(&fault), [Change::Opened(Uuid::from_u128(1))]);
    world.now = START;
    world.ticks(6, &fault);
    let lost = world.open()[0].lost.gpu_seconds();
    assert!(lost > 0.0, "what it costs after that counts");
    let resolved = [Change::Resolved(Uuid::from_u128(1))];
    assert_eq!(world.ticks(60, &[]), resolved);
    assert_eq!(world.tick(&fault), [Change::Opened(Uuid::from_u128(1))]);
    world.now = START.shifted(ahead);
    world.tick(&fault);
    world.ticks(60, &[]);
    world.now = START;
    world.ticks(120, &[]);
    assert_eq!(world.book.get(Uuid::from_u128(1)), None, "it is history");
}

#[test]
fn what_was_explained_is_explained_until_its_cause_is_over() {
    let mut world = World::new();
    let straggler = of_run(Family::Straggler, Some(59), Some(gpu(7, 3)));
    let hot = signal(Family::Heat, gpu(7, 3));
    world.ticks(4, &[straggler.clone(), hot]);
    let id = world.open()[0].id;
    // The heat is gone at once, the rank is slow for some steps more.
    assert_eq!(world.ticks(5, std::slice::from_ref(&straggler)), []);
    assert_eq!(world.tick(&[]), [Change::Resolved(id)]);
    assert_eq!(
        world.tick(&[straggler]),
        [Change::Opened(Uuid::from_u128(2))]
    );
}

#[test]
fn a_run_that_starts_evaluates_or_saves_opens_nothing_and_ends_nothing() {
    let mut world = World::new();
    world.quiet.insert(train());
    assert_eq!(world.ticks(20, &[of_run(Family::Hang, None, None)]), []);
    world.quiet.clear();
    assert_eq!(world.tick(&[of_run(Family::Hang, None, None)]).len(), 1);
    world.quiet.insert(train());
    let id = Uuid::from_u128(1);
    assert_eq!(
        world.ticks(20, &[]),
        [Change::Updated(id)],
        "that nothing is known of it"
    );
    assert_eq!(world.open().len(), 1);
}

#[test]
fn missing_data_resolves_nothing_and_is_said() {
    let mut world = World::new();
    world.tick(&[signal(Family::GpuFault, gpu(7, 3))]);
    world.silent.insert("node-7".to_owned());
    let id = Uuid::from_u128(1);
    assert_eq!(world.ticks(100, &[]), [Change::Updated(id)]);
    assert_eq!(
        world.open()[0].unheard_since,
        Some(START.shifted(20_000_000_000))
    );
    assert_eq!(
        world.open()[0].lost.gpu_seconds(),
        0.0,
        "what it costs meanwhile is not known"
    );
    world.silent.clear();
    assert_eq!(
        world.tick(&[]),
        [],
        "it is heard again, and has to be for long enough"
    );
    assert_eq!(world.open()[0].unheard_since, None);
    assert_eq!(world.ticks(2, &[]), [Change::Resolved(id)]);
}

#[test]
fn the_same_trouble_soon_after_is_the_same_incident_and_later_another() {
    let mut world = World::new();
    let fault = [signal(Family::GpuFault, gpu(7, 3))];
    let id = Uuid::from_u128(1);
    world.tick(&fault);
    assert_eq!(world.ticks(2, &[]), [Change::Resolved(id)]);
    world.ticks(50, &[]);
    assert_eq!(world.tick(&fault), [Change::Opened(id)]);
    assert_eq!(world.open()[0].resolved_at, None);
    world.ticks(70, &[]);
    assert_eq!(world.book.get(id), None, "it is history");
    assert_eq!(world.tick(&fault), [Change::Opened(Uuid::from_u128(2))]);
}

#[test]
fn after_a_restart_incidents_go_on_and_none_resolves_before_detectors_can_speak() {
    let mut world = World::new();
    let hot = signal(Family::Heat, gpu(7, 3));
    world.ticks(3, std::slice::from_ref(&hot));
    let stored = serde_json::to_string(&world.open()).expect("it is JSON");
    let read: Vec<Incident> = serde_json::from_str(&stored).expect("as it was written");
    assert_eq!(read.iter().collect::<Vec<_>>(), world.open());
    let down = world.now.shifted(3_600_000_000_000);
    world.book = Book::restored(read, down);
    world.now = down;
    assert_eq!(world.ticks(12, &[]), [], "the window is not full");
    assert_eq!(world.tick(&[hot]), []);
    let lost = world.open()[0].lost.gpu_seconds();
    assert!(lost <= 160.0, "nobody knows what the hour cost: {lost}");
    assert_eq!(world.ticks(6, &[]), [Change::Resolved(Uuid::from_u128(1))]);
}

#[test]
fn people_acknowledge_silence_and_annotate_by_name() {
    let mut world = World::new();
    world.tick(&[signal(Family::GpuFault, gpu(7, 3))]);
    let (id, now) = (Uuid::from_u128(1), world.now);
    let book = &mut world.book;
    assert_eq!(book.acknowledge(id, "ada", now), Ok(()));
    assert_eq!(
        book.annotate(id, "ada", "  card is on its way ", now),
        Ok(())
    );
    assert_eq!(book.silence(id, "ada", now.shifted(1_000), now), Ok(()));
    let incident = book.get(id).expect("it is open");
    assert_eq!(incident.acknowledged_by.as_deref(), Some("ada"));
    assert!(!incident.is_loud(now) && incident.is_loud(now.shifted(1_000)));
    let note = Happened::Note("card is on its way".to_owned());
    assert_eq!(incident.log[2].happened, note);
    assert!(
        incident.log[1..]
            .iter()
            .all(|it| it.who.as_deref() == Some("ada"))
    );
    let long = "x".repeat(MAX_NOTE_BYTES + 1);
    for refused in [
        book.acknowledge(Uuid::from_u128(9), "ada", now),
        book.acknowledge(id, " ", now),
        book.acknowledge(id, "a\nb", now),
        book.silence(id, "ada", now, now),
        book.silence(id, "ada", now.shifted(i64::MAX), now),
        book.annotate(id, "ada", "", now),
        book.annotate(id, "ada", &long, now),
    ] {
        assert!(refused.is_err(), "{refused:?}");
    }
}

#[test]
fn what_has_no_end_has_a_limit_that_counts() {
    let mut world = World::new();
    let place = |it: usize| Place {
        run: Some(format!("run-{it}")),
        cluster: "prod".to_owned(),
        ..Place::default()
    };
    let all: Vec<Signal> = (0..MAX_INCIDENTS + 5)
        .map(|it| signal(Family::Hang, place(it)))
        .collect();
    world.tick(&all);
    // Warnings leave some room to what is worse.
    assert_eq!(world.open().len(), MAX_INCIDENTS - 200);
    assert_eq!(world.book.left_out(), 205);
    let id = world.open()[0].id;
    for it in 0..2 * MAX_LOG {
        world
            .book
            .annotate(id, "ada", &it.to_string(), START)
            .expect("it is open");
    }
    let incident = world.book.get(id).expect("it is open");
    assert_eq!(incident.log.len(), MAX_LOG);
    assert_eq!(incident.log[0].happened, Happened::Opened);
    let mut incident = incident.clone();
    for it in 0..MAX_EVIDENCE + 3 {
        let mut said = signal(Family::Hang, place(0));
        said.what = it.to_string();
        incident.keep_evidence(&said, START);
    }
    assert_eq!(
        (incident.evidence.len(), incident.more_evidence),
        (MAX_EVIDENCE, 4)
    );
}
