//! A profile that an agent asks for: the word on its way to the process, and what became of it on its way back.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use gpufleet_hooks_shm::client::{Client, Options};
use gpufleet_hooks_shm::layout::fields;
use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::reader::{Reader, Reason};
use gpufleet_hooks_shm::records::{Gaps, Profile};
use gpufleet_hooks_shm::server::{self, Event, Limits, Listener};
use gpufleet_hooks_shm::wire::Ask;
use gpufleet_hooks_shm::words::{ProfileState, Untold, WriterKind};
use gpufleet_hooks_shm::writer::Writer;

/// How long anything here may take before it has failed.
const LONGEST_NS: u64 = 60_000_000_000;

fn done(at: i64) -> Profile {
    Profile {
        number: 7,
        state: ProfileState::Done,
        at,
        step: 11,
        steps: 3,
        bytes: 90_000,
        gaps: Some(Gaps::of([
            1_000_000, 100_000, 200_000, 50_000, 12, 4_300, 3_000, 90_000,
        ])),
        untold: None,
        text: "/scratch/gpufleet-profiles/rank0.json.gz".to_owned(),
    }
}

#[test]
fn what_became_of_one_comes_back_as_it_was_written_and_before_the_first_there_is_none() {
    let writer = Writer::create(WriterKind::Rust).expect("a region");
    let mut reader = Reader::new(writer.file().expect("its file")).expect("a region");
    let now = unix_ns();
    let first = reader.snapshot(now).expect("a region");
    assert_eq!(first.profile, None);
    assert!(!first.header.takes_profile, "nobody said so");
    writer.takes_profile(true);
    writer.profile(&done(now));
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.profile, Some(done(now)));
    assert!(snapshot.header.takes_profile && snapshot.refused.is_empty());
    let failed = Profile {
        state: ProfileState::Failed,
        gaps: None,
        untold: Some(Untold::TooMany),
        text: "ö".repeat(300),
        ..done(now)
    };
    writer.profile(&failed);
    let cut = Profile {
        text: "ö".repeat(256),
        ..failed
    };
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.profile, Some(cut), "the text has 512 bytes");
}

#[test]
fn one_that_cannot_be_is_refused_by_reason() {
    for (path, value, reason) in [
        ("profile.state", 0, Reason::Word),
        ("profile.state", 4, Reason::Word),
        ("profile.at", 1, Reason::Time),
        ("profile.steps", 11, Reason::Number),
        ("profile.step", u64::MAX, Reason::Number),
        ("profile.sequence", 3, Reason::Torn),
    ] {
        let writer = Writer::create(WriterKind::Rust).expect("a region");
        let file = File::from(writer.file().expect("its file"));
        let mut reader = Reader::new(&file).expect("a region");
        let now = unix_ns();
        writer.profile(&done(now));
        let field = fields().into_iter().find(|it| it.path == path);
        let offset = field.expect("a field").offset as u64;
        file.write_all_at(&u64::to_le_bytes(value), offset)
            .expect("the file takes it");
        let snapshot = reader.snapshot(now).expect("the rest is good");
        assert_eq!(snapshot.profile, None, "{path}");
        let refused = snapshot.refused.get(&("profile", reason));
        assert_eq!(refused, Some(&1), "{path}");
    }
}

#[test]
fn gaps_that_cannot_be_are_not_told_and_the_profile_is() {
    let part = |synchronisation| Gaps::of([1_000, 0, synchronisation, 0, 1, 1, 10, 0]);
    let window = |window| Gaps::of([window, 0, 0, 0, 1, 1, 10, 0]);
    for (gaps, reason) in [
        (part(1_001), Some(Reason::Parts)),
        (
            Gaps::of([1_000, u64::MAX, 1, 0, 1, 1, 10, 0]),
            Some(Reason::Parts),
        ),
        (
            Gaps::of([1_000, 300, 300, 300, 1, 1, 10, 101]),
            Some(Reason::Parts),
        ),
        (
            Gaps::of([1_000, 0, 0, 0, 1, 1, 1_001, 0]),
            Some(Reason::Parts),
        ),
        (
            Gaps::of([1_000, 0, 0, 0, 1, u64::MAX, 10, 0]),
            Some(Reason::Parts),
        ),
        (window(30 * 86_400 * 1_000_000_000), Some(Reason::Duration)),
        // Older clients, and those that did not measure them.
        (window(0), None),
    ] {
        let writer = Writer::create(WriterKind::Rust).expect("a region");
        let mut reader = Reader::new(writer.file().expect("its file")).expect("a region");
        let now = unix_ns();
        let told = |gaps| Profile { gaps, ..done(now) };
        writer.profile(&told(Some(gaps)));
        let snapshot = reader.snapshot(now).expect("the rest is good");
        assert_eq!(snapshot.profile, Some(told(None)), "{gaps:?}");
        let refused: Vec<_> = snapshot.refused.keys().copied().collect();
        let expected: Vec<_> = reason.into_iter().map(|it| ("profile", it)).collect();
        assert_eq!(refused, expected, "{gaps:?}");
    }
}

/// Waits until it is so; the listener turns meanwhile.
fn until(listener: &mut Listener, what: &str, is_so: impl Fn() -> bool) {
    let end = monotonic_ns() + LONGEST_NS;
    while !is_so() {
        assert!(monotonic_ns() < end, "{what}");
        listener.turn(Duration::from_millis(5)).expect("a turn");
    }
}

fn joined(listener: &mut Listener) -> Box<server::Client> {
    let end = monotonic_ns() + LONGEST_NS;
    while monotonic_ns() < end {
        for event in listener.turn(Duration::from_millis(50)).expect("a turn") {
            if let Event::Joined(client) = event {
                return client;
            }
        }
    }
    panic!("the client did not come");
}

#[test]
fn a_request_reaches_the_process_is_begun_once_and_is_forgotten_with_an_agent_that_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("hooks.sock");
    let limits = Limits::default();
    let bind = || Listener::bind(&socket, limits, Box::new(server::cgroup)).expect("it is free");
    let mut listener = bind();
    let client = Client::start(Options {
        socket: socket.clone(),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(10),
        ..Options::new(WriterKind::Rust)
    });
    let asked = client.asked();
    let id = joined(&mut listener).id;
    assert!(!asked.is_any());
    let first = Ask {
        number: 5,
        steps: 3,
    };
    // A message that nobody may send changes nothing: the one after it comes through.
    listener.ask(id, Ask { steps: 99, ..first });
    listener.ask(id, first);
    until(&mut listener, "it is asked for", || asked.is_any());
    assert_eq!(asked.begin(), Some(first));
    asked.end();
    let second = Ask {
        number: 6,
        steps: 1,
    };
    listener.ask(id, first);
    listener.ask(id, second);
    until(&mut listener, "the next is asked for", || asked.is_any());
    listener.ask(id, Ask { steps: 0, ..second });
    until(&mut listener, "it is withdrawn", || !asked.is_any());
    listener.ask(id, second);
    until(&mut listener, "it is asked for again", || asked.is_any());
    drop(listener);
    let mut listener = bind();
    joined(&mut listener);
    until(&mut listener, "it went with its agent", || !asked.is_any());
}
