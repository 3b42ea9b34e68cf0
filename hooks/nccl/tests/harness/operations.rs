//! Which operations count as what.

use gpufleet_hooks_shm::layout::COMMUNICATORS;
use gpufleet_hooks_shm::words::{Collecting, Function, WriterKind};

use crate::alone::{Agent, alone};
use crate::nccl::{ALL, Call, Nccl, Pointer, VERSIONS};

#[test]
fn events_that_nobody_asked_for_get_no_handle() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            let context = nccl.eight();
            // In version 4 a type is one byte.
            let most = if version == 4 { 8 } else { 64 };
            for kind in (0..most).map(|bit| 1_u64 << bit).chain([0, 3, 255]) {
                if ![2, 4, 64].contains(&kind) {
                    assert_eq!(nccl.other(context, kind), Pointer::NULL, "type {kind}");
                }
            }
            nccl.finalize(context);
        }
        let together = agent.together();
        assert!(together.recent.is_empty() && together.in_flight.is_empty());
    });
}

#[test]
fn sends_and_receives_count_with_their_peer() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            let context = nccl.eight();
            let group = nccl.other(context, 1);
            let send = nccl.point_to_point(context, c"Send", 5, 1000);
            let receive = nccl.point_to_point(context, c"Recv", 6, 500);
            nccl.stop(send);
            nccl.stop(receive);
            nccl.stop(group);
            let flying = agent.together().in_flight;
            assert_eq!(
                (flying.len(), flying[0].peer, flying[0].bytes),
                (1, 5, 4000)
            );
            nccl.channel(context, send, 3, 100, 200);
            let flying = agent.together().in_flight;
            assert_eq!(
                (flying.len(), flying[0].peer, flying[0].bytes),
                (1, 6, 2000)
            );
            nccl.channel(context, receive, 4, 100, 250);
            let together = agent.together();
            let total = together.communicators.last().expect("one").functions[0];
            assert_eq!(total.function, Function::PointToPoint);
            assert_eq!(
                (total.count, total.bytes, total.duration_ns),
                (2, 6000, 250)
            );
            nccl.finalize(context);
        }
    });
}

#[test]
fn bytes_are_those_of_the_whole_message_and_a_root_is_the_peer() {
    alone(&[("GPUFLEET_NCCL_MASK", "6")], || {
        let mut agent = Agent::listen();
        let nccl = Nccl::load(6);
        let context = nccl.eight();
        let mut run = |function, data_type, bytes, expected| {
            let call = Call {
                function: Some(function),
                data_type: Some(data_type),
                root: 7,
                ..Call::ALL_REDUCE
            };
            nccl.enqueue(context, call);
            let recent = agent.together().recent;
            let found: Vec<_> = recent.iter().map(|it| (it.function, it.bytes)).collect();
            assert_eq!(found, [(expected, bytes)]);
        };
        run(c"AllGather", c"ncclInt8", 8000, Function::AllGather);
        run(
            c"ReduceScatter",
            c"ncclFloat32",
            32000,
            Function::ReduceScatter,
        );
        run(c"AlltoAll", c"ncclFloat16", 16000, Function::AllToAll);
        run(c"Broadcast", c"ncclInt8", 1000, Function::Broadcast);
        run(c"Reduce", c"ncclFloat64", 8000, Function::Reduce);
        run(c"ReduceButNewer", c"ncclFloat64", 8000, Function::Other);
        run(c"AllReduce", c"ncclFloat4", 0, Function::AllReduce);
    });
}

#[test]
fn without_the_kernels_times_an_operation_counts_when_it_is_enqueued() {
    // The default of version 7; of the others when the user says so.
    for (version, asked) in [(7, "none"), (6, "0x6"), (4, "6")] {
        alone(
            &[
                ("GPUFLEET_NCCL_MASK", asked),
                ("VERSION", &version.to_string()),
            ],
            || {
                let version = std::env::var("VERSION").expect("given");
                let mut agent = Agent::listen();
                let nccl = Nccl::load(version.parse().expect("a number"));
                let (context, mask) = nccl.init(1, 8, 3);
                assert_eq!(mask, 6);
                let handle = nccl.collective(context, Call::ALL_REDUCE);
                assert_eq!(agent.together().in_flight.len(), 1, "being enqueued");
                nccl.stop(handle);
                nccl.stop(handle);
                let together = agent.together();
                assert_eq!(together.collecting, Some(Collecting::Untimed));
                assert_eq!(together.profiler_interface, u64::from(nccl.version));
                assert!(together.in_flight.is_empty());
                let total = together.communicators[0].functions[0];
                assert_eq!((total.count, total.timed, total.bytes), (1, 0, 2000));
            },
        );
    }
}

#[test]
fn the_user_can_switch_it_off_and_init_still_succeeds() {
    alone(&[("GPUFLEET_NCCL_MASK", "0")], || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            let (context, mask) = nccl.init(1, 8, 3);
            assert_eq!((context, mask), (Pointer::NULL, 0));
            assert_eq!(nccl.collective(context, Call::ALL_REDUCE), Pointer::NULL);
            nccl.finalize(context);
        }
        let snapshot = agent.snapshot();
        assert_eq!(snapshot.header.writer, Some(WriterKind::Nccl));
        assert_eq!(snapshot.together.collecting, Some(Collecting::SwitchedOff));
        assert!(snapshot.together.communicators.is_empty());
    });
}

#[test]
fn a_communicator_of_one_rank_is_the_reason_why_there_is_nothing() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        let nccl = Nccl::load(5);
        let (context, mask) = nccl.init(1, 1, 0);
        // The mask is the process': another communicator may have more ranks.
        assert_eq!(mask, 0x46);
        assert_eq!(agent.together().collecting, Some(Collecting::OneRank));
        nccl.finalize(context);
        let _eight = nccl.eight();
        assert_eq!(agent.together().collecting, Some(Collecting::Timed));
        let _one = nccl.init(1, 1, 0);
        assert_eq!(agent.together().collecting, Some(Collecting::Timed));
    });
}

#[test]
fn communicators_past_the_table_are_left_out_and_counted() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        let nccl = Nccl::load(6);
        for hash in 0..COMMUNICATORS as u64 + 5 {
            let (context, mask) = nccl.init(hash, 8, 3);
            assert_eq!(mask, 0x46, "those that are counted go on");
            let handle = nccl.enqueue(context, Call::ALL_REDUCE);
            let is_counted = hash < COMMUNICATORS as u64;
            assert_eq!(handle != Pointer::NULL, is_counted);
            nccl.channel(context, handle, 0, 1, 2);
            nccl.channel(context, handle, 1, 1, 2);
        }
        let together = agent.together();
        assert_eq!(together.communicators_left_out, 5);
        assert_eq!(together.recent.len(), COMMUNICATORS);
        assert_eq!(together.in_flight_left_out, 0);
    });
}
