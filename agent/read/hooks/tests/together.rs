//! Collectives that are stuck, and where what is known of them comes from.

use gpufleet_hooks_shm::records::CommunicatorIndex;
use gpufleet_hooks_shm::words::{Collecting, DataType};
use gpufleet_telemetry::training::CollectivesFrom;

use super::*;

const SECOND: i64 = 1_000_000_000;

/// A rank on one communicator of three, with the plugin.
fn rank(hooks: &mut Hooks, number: i32) -> (Writer, CommunicatorIndex) {
    joins(hooks, number, "/a").identity(&identity(number.into()));
    let nccl = Writer::create(WriterKind::Nccl).expect("a region");
    nccl.collecting(Collecting::Timed);
    joins_with(hooks, number, "/a", nccl);
    let communicator = Communicator {
        hash: 0xab,
        ranks: 3,
        rank: number.unsigned_abs().into(),
        ..Communicator::default()
    };
    let index = nccl.communicator(&communicator).expect("a place");
    (nccl, index)
}

fn all_reduce(communicator: CommunicatorIndex, number: u64, seconds_ago: i64) -> Collective {
    Collective {
        communicator,
        number,
        function: Function::AllReduce,
        data_type: DataType::Bfloat16,
        channels: 16,
        bytes: 1_000,
        started_at: unix_ns() - seconds_ago * SECOND,
        peer: -1,
        duration_ns: 0,
        wait_ns: 0,
    }
}

fn stuck(hooks: &mut Hooks) -> Vec<Event> {
    let events = round(hooks).events.into_iter();
    events
        .filter(|it| it.kind == EventKind::CollectiveStuck)
        .collect()
}

#[test]
fn a_collective_that_is_stuck_is_told_once_with_who_is_in_it_and_who_is_not() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let (first, index) = rank(&mut hooks, 0);
    let (second, its_index) = rank(&mut hooks, 1);
    first.collective_begun(&all_reduce(index, 9, 90));
    second.collective_begun(&all_reduce(its_index, 8, 5));
    let events = stuck(&mut hooks);
    assert_eq!(events.len(), 1, "{events:?}");
    let about = &events[0].attributes;
    let expected = [
        (about::COMMUNICATOR, "00000000000000ab"),
        (about::FUNCTION, "AllReduce"),
        (about::SEQUENCE, "9"),
        (about::SIZE, "3"),
        (about::RANKS_IN, "0"),
        (about::RANKS_NOT_IN, "1"),
    ];
    for (name, value) in expected {
        assert_eq!(about.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(&*events[0].resource_id, "/llama//0/0");
    assert_eq!(stuck(&mut hooks), [], "it is told once");
}

#[test]
fn a_collective_is_not_stuck_where_others_took_as_long() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let (writer, index) = rank(&mut hooks, 0);
    writer.collective_ended(&Collective {
        duration_ns: 40 * SECOND.unsigned_abs(),
        ..all_reduce(index, 1, 200)
    });
    writer.collective_begun(&all_reduce(index, 2, 110));
    assert_eq!(stuck(&mut hooks), [], "three times 40 s are not over");
    writer.collective_begun(&all_reduce(index, 3, 130));
    assert_eq!(stuck(&mut hooks).len(), 1);
}

#[test]
fn where_nothing_is_known_of_collectives_the_reason_is_a_reading() {
    type Make = fn(&mut Hooks);
    let cases: [(CollectivesFrom, Make); 7] = [
        (CollectivesFrom::Plugin, |hooks| {
            rank(hooks, 0);
        }),
        (CollectivesFrom::SwitchedOff, |hooks| {
            rank(hooks, 0).0.collecting(Collecting::SwitchedOff);
        }),
        (CollectivesFrom::NotAsked, |hooks| {
            joins(hooks, 0, "/a").identity(&identity(0));
        }),
        (CollectivesFrom::OneRank, |hooks| {
            joins(hooks, 0, "/a").identity(&Identity {
                world: 1,
                ..identity(0)
            });
        }),
        (CollectivesFrom::OtherPlugin, |hooks| {
            let writer = joins(hooks, 0, "/a");
            writer.identity(&identity(0));
            writer.fingerprint(&[("NCCL_PROFILER_PLUGIN", "/opt/libother.so")]);
        }),
        (CollectivesFrom::NotLoaded, |hooks| {
            let writer = joins(hooks, 0, "/a");
            writer.identity(&identity(0));
            writer.fingerprint(&[("NCCL_PROFILER_PLUGIN", "/opt/libgpufleet-x.so")]);
        }),
        (CollectivesFrom::OtherNamespace, |hooks| {
            hooks.asks.period = Some(Duration::from_secs(3_600));
            joins(hooks, 0, "/a").identity(&identity(0));
            // Asked for at the end of a round, known at the next.
            round(hooks);
        }),
    ];
    for (expected, make) in cases {
        let folder = folder();
        let mut hooks = hooks(folder.path());
        hooks.asks.period = None;
        make(&mut hooks);
        let found = value(&round(&mut hooks), "0", &training::COLLECTIVES_FROM);
        let found = found.and_then(|it| CollectivesFrom::from_number(it as u64));
        assert_eq!(found, Some(expected));
    }
}
