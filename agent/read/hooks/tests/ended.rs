//! When a process began and ended: as the kernel says, and at the moment that its connection was seen to be over, not at
//! that of the round.

use gpufleet_hooks_shm::server::Leaving;
use gpufleet_hooks_tell::events::{Exit, Told, happened};

use super::super::listen::Gone;
use super::*;

const MILLISECOND: i64 = 1_000_000;

/// A reader of processes that are these ranks.
fn training(ranks: std::ops::Range<i32>) -> (tempfile::TempDir, Hooks) {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    for number in ranks {
        joins(&mut hooks, number, "/a").identity(&identity(number.into()));
    }
    round(&mut hooks);
    (folder, hooks)
}

/// What the listening thread says of the connection of this rank, this long ago.
fn leaves(hooks: &mut Hooks, number: i32, reason: Leaving, milliseconds_ago: i64) -> Timestamp {
    let at = Timestamp(unix_ns() - milliseconds_ago * MILLISECOND);
    let found = hooks
        .clients
        .iter()
        .find(|(_, it)| it.pid == NOBODY + number);
    let (id, process) = found.map(|(id, it)| (*id, *it)).expect("it joined");
    hooks.clients.remove(&id);
    let gone = Gone { id, reason, at };
    let process = hooks.processes.get_mut(&process);
    process.expect("it is there").left(&gone);
    at
}

/// When each rank ended, by its number.
fn ends(events: &[Event]) -> BTreeMap<String, Timestamp> {
    let ended = events.iter().filter(|it| it.kind == EventKind::RunEnded);
    let rank = |it: &Event| it.resource_id.rsplit('/').next().map(str::to_owned);
    let ended = ended.map(|it| (rank(it).expect("a rank"), it.at));
    ended.collect()
}

#[test]
fn ranks_that_vanish_between_two_rounds_each_have_the_moment_at_which_they_did() {
    let (_folder, mut hooks) = training(0..4);
    let killed = leaves(&mut hooks, 3, Leaving::Ended, 700);
    let [first, second] = [0, 1].map(|it| leaves(&mut hooks, it, Leaving::Ended, 650));
    // Its socket is closed before the kernel calls it ended, which the next round sees.
    let dying = leaves(&mut hooks, 2, Leaving::Closed, 600);
    let expected = [("3", killed), ("0", first), ("1", second), ("2", dying)];
    let expected = expected.map(|(rank, at)| (rank.to_owned(), at));
    assert_eq!(ends(&round(&mut hooks).events), expected.into());
}

#[test]
fn of_several_connections_of_one_process_the_first_that_is_over_tells_when_it_ended() {
    let (_folder, mut hooks) = training(0..1);
    let nccl = Writer::create(WriterKind::Nccl).expect("a region");
    joins_with(&mut hooks, 0, "/a", nccl);
    let first = leaves(&mut hooks, 0, Leaving::Closed, 4_000);
    leaves(&mut hooks, 0, Leaving::Ended, 1_000);
    let ended = ends(&round(&mut hooks).events);
    assert_eq!(ended, [("0".to_owned(), first)].into());
}

#[test]
fn one_that_closed_its_connection_and_lived_on_ended_when_it_was_found_gone() {
    let (_folder, mut hooks) = training(0..1);
    leaves(&mut hooks, 0, Leaving::Closed, 3_600_000);
    let before = Timestamp(unix_ns());
    let ended = ends(&round(&mut hooks).events);
    assert!(ended["0"] >= before, "{ended:?}");
}

#[test]
fn with_the_end_of_a_rank_is_told_how_many_the_kernel_killed_for_want_of_memory() {
    let writer = Writer::create(WriterKind::Python).expect("a region");
    writer.identity(&identity(0));
    let mut reader = Reader::new(writer.file().expect("a file")).expect("a region");
    let snapshot = reader.snapshot(unix_ns()).expect("it is whole");
    let rank = Resource::new(ResourceKind::Rank, "team/llama/u1/0/0");
    let now = Timestamp(unix_ns());
    for (oom_kills, expected) in [(Some(2), Some("2")), (Some(0), None), (None, None)] {
        let exit = Exit {
            signal: Some(9),
            oom_kills,
            ..Exit::default()
        };
        let told = &mut Told::default();
        let events = happened(&rank, &snapshot, now, Some(exit), now, told);
        let ended = events.last().expect("its end");
        let said = |name: &str| ended.attributes.get(name).map(String::as_str);
        assert_eq!(said(about::SIGNAL), Some("9"));
        assert_eq!(said(about::OOM_KILLS), expected);
    }
}

#[test]
fn what_a_process_returned_is_the_kernels_to_say_and_who_called_itself_finished_may_have_failed() {
    let writer = Writer::create(WriterKind::Python).expect("a region");
    writer.identity(&identity(0));
    let mut reader = Reader::new(writer.file().expect("a file")).expect("a region");
    let rank = Resource::new(ResourceKind::Rank, "team/llama/u1/0/0");
    for (kind, said, kernel, ended, status) in [
        (EndKind::Finished, -1, Some(3), "stopped", Some("3")),
        (EndKind::Finished, -1, Some(0), "finished", Some("0")),
        (EndKind::Finished, -1, None, "finished", None),
        // It called itself finished before it was to end.
        (EndKind::Finished, 0, Some(3), "finished", Some("3")),
        (EndKind::Stopped, 7, None, "stopped", Some("7")),
        (EndKind::Stopped, 7, Some(0), "stopped", Some("0")),
        (EndKind::Exception, 1, Some(1), "exception", Some("1")),
    ] {
        let at = unix_ns();
        writer.end(End {
            kind,
            at,
            exit_status: said,
            step: 44,
        });
        let snapshot = reader.snapshot(at).expect("it is whole");
        let now = Timestamp(at + MILLISECOND);
        let told = &mut Told::default();
        let events = happened(&rank, &snapshot, now, None, now, told);
        let is_told = events.iter().any(|it| it.kind == EventKind::RunEnded);
        assert!(!is_told, "while it lives nobody knows");
        let exit = Exit {
            status: kernel,
            ..Exit::default()
        };
        let events = happened(&rank, &snapshot, now, Some(exit), now, told);
        let event = events.last().expect("its end");
        let of = |name: &str| event.attributes.get(name).map(String::as_str);
        let found = (of(about::ENDED), of(about::EXIT_STATUS));
        assert_eq!(found, (Some(ended), status), "{kind:?} {said} {kernel:?}");
        assert_eq!(event.at, Timestamp(at));
    }
}

#[test]
fn a_rank_that_comes_up_says_when_its_process_began_as_the_kernel_knows_it() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let writer = Writer::create(WriterKind::Python).expect("a region");
    writer.identity(&identity(0));
    writer.fingerprint(&[("torch", "2.9.1")]);
    let ours = gpufleet_hooks_shm::process::start_ticks("self").expect("we live");
    let peer = Peer {
        pid: NOBODY,
        uid: 1,
        gid: 1,
        start_ticks: ours,
        group: "/a".to_owned(),
    };
    let reader = Reader::new(writer.file().expect("a file")).expect("a region");
    let id = ClientId(0);
    hooks.join(Client { id, peer, reader });
    let events = round(&mut hooks).events;
    let began: i64 = events[0].attributes[about::BEGAN].parse().expect("a time");
    let before = events[0].at.0 - began;
    // This test's process makes regions within some seconds, on a busy machine minutes.
    assert!((0..900_000_000_000).contains(&before), "{before} ns before");
}

#[test]
fn a_process_that_never_says_which_rank_it_is_is_counted_and_on_nobodys_page() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let nameless = Identity {
        rank: -1,
        world: -1,
        ..identity(0)
    };
    joins(&mut hooks, 0, "/a").identity(&nameless);
    // NCCL's plugin without the package: what its process computes is nobody's.
    let nccl = Writer::create(WriterKind::Nccl).expect("a region");
    joins_with(&mut hooks, 1, "/b", nccl);
    let seen = |hooks: &mut Hooks, minutes: i64| {
        let at = Timestamp(unix_ns() + minutes * 60_000 * MILLISECOND);
        let readings = round_at(hooks, at);
        assert_eq!(value(&readings, "0", &training::STEPS), None);
        let node = readings.resources.last().expect("the agent's own numbers");
        let unknown = node
            .samples
            .iter()
            .find(|it| it.metric == own::HOOKS_RANK_UNKNOWN.id);
        unknown.expect("it is told").reading
    };
    assert_eq!(seen(&mut hooks, 0), Ok(0.0), "it may still load its model");
    assert_eq!(seen(&mut hooks, 6), Ok(2.0));
}
