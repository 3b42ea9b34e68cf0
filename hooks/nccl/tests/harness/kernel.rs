//! How long collectives took on the GPU, and the ways in which NCCL reports it wrongly.

use gpufleet_hooks_shm::words::{Collecting, DataType, Function};

use crate::alone::{Agent, alone};
use crate::nccl::{ALL, Call, Nccl, Pointer, VERSIONS};

/// Runs a check on each version: each is a communicator of its own in one region.
fn each_version(check: impl Fn(Nccl, &mut Agent)) {
    let mut agent = Agent::listen();
    for version in VERSIONS {
        check(Nccl::load(version), &mut agent);
    }
}

#[test]
fn a_collective_is_in_flight_until_its_last_channel_stops() {
    alone(&ALL, || {
        each_version(|nccl, agent| {
            let context = nccl.eight();
            let call = Call {
                sequence: 41,
                channels: 16,
                ..Call::ALL_REDUCE
            };
            let handle = nccl.enqueue(context, call);
            let together = agent.together();
            let [flying] = together.in_flight[..] else {
                panic!("one in flight, not {:?}", together.in_flight);
            };
            assert_eq!((flying.number, flying.bytes), (41, 2000));
            assert_eq!(flying.function, Function::AllReduce);
            assert_eq!(
                (flying.data_type, flying.channels),
                (DataType::Bfloat16, 16)
            );
            assert_eq!(together.collecting, Some(Collecting::Timed));
            assert!(together.recent.is_empty(), "enqueued is not done");
            for channel in 0..16 {
                let from = 1_000_000 + u64::from(channel);
                nccl.channel(context, handle, channel, from, 1_500_000 + from);
            }
            let together = agent.together();
            assert!(together.in_flight.is_empty());
            let [ended] = together.recent[..] else {
                panic!("one ended, not {:?}", together.recent);
            };
            // From the first channel's start to the last one's end.
            assert_eq!((ended.number, ended.duration_ns), (41, 1_500_015));
            let made = together.communicators.last().expect("a communicator");
            let shape = &made.communicator;
            assert_eq!((shape.hash, shape.ranks, shape.rank), (0xabc, 8, 3));
            assert_eq!((shape.nodes, shape.name.as_str()), (2, "dp"));
            let total = made.functions[0];
            assert_eq!((total.count, total.timed, total.bytes), (1, 1, 2000));
            assert_eq!(total.duration_ns, 1_500_015);
            nccl.finalize(context);
        });
    });
}

#[test]
fn the_oldest_is_shown_and_the_next_one_when_it_ends() {
    alone(&ALL, || {
        each_version(|nccl, agent| {
            let context = nccl.eight();
            let handles: Vec<_> = (1..=100)
                .map(|sequence| {
                    let call = Call {
                        sequence,
                        channels: 1,
                        ..Call::ALL_REDUCE
                    };
                    nccl.enqueue(context, call)
                })
                .collect();
            let shown = |agent: &mut Agent| -> Vec<u64> {
                let flying = agent.together().in_flight;
                flying.iter().map(|it| it.number).collect()
            };
            assert_eq!(shown(agent), [1]);
            nccl.channel(context, handles[0], 0, 1, 2);
            assert_eq!(shown(agent), [2]);
            // The third ends before the second, as operations on different channels may.
            nccl.channel(context, handles[2], 0, 1, 2);
            assert_eq!(shown(agent), [2]);
            nccl.channel(context, handles[1], 0, 1, 2);
            assert_eq!(shown(agent), [4]);
            nccl.finalize(context);
            assert!(agent.together().in_flight.is_empty());
        });
    });
}

#[test]
fn a_report_after_the_collective_is_forgotten_harms_nothing_and_is_counted() {
    alone(&ALL, || {
        each_version(|nccl, agent| {
            let context = nccl.eight();
            let late_before = agent.together().reports_late;
            let handle = nccl.enqueue(context, Call::ALL_REDUCE);
            let channel = nccl.kernel(context, handle, 0, 10);
            nccl.record(channel, 22, Some(20));
            nccl.stop(channel);
            nccl.channel(context, handle, 1, 10, 30);
            // Ended. A start, a record and a stop that come after it:
            assert_eq!(nccl.kernel(context, handle, 0, 5), Pointer::NULL);
            nccl.record(channel, 22, Some(99));
            nccl.stop(channel);
            nccl.stop(handle);
            let together = agent.together();
            assert_eq!(together.reports_late - late_before, 2);
            let durations: Vec<_> = together.recent.iter().map(|it| it.duration_ns).collect();
            assert_eq!(durations, [20]);
            // Its place in the ring goes to another, whose it is from then on.
            for _ in 0..4096 {
                let one = Call {
                    channels: 1,
                    ..Call::ALL_REDUCE
                };
                let other = nccl.enqueue(context, one);
                nccl.record(channel, 22, Some(1 << 40));
                nccl.stop(channel);
                nccl.channel(context, other, 0, 10, 12);
            }
            let together = agent.together();
            let total = together.communicators.last().expect("one").functions[0];
            assert_eq!((total.count, total.timed), (4097, 4097));
            assert_eq!(total.duration_ns, 20 + 4096 * 2);
            nccl.finalize(context);
            // Late after the communicator is gone, too.
            assert_eq!(nccl.kernel(context, handle, 0, 5), Pointer::NULL);
            nccl.record(channel, 22, Some(1 << 40));
        });
    });
}

#[test]
fn a_channel_that_stops_before_it_starts_gives_no_duration() {
    alone(&ALL, || {
        each_version(|nccl, agent| {
            let context = nccl.eight();
            let refused_before = agent.together().durations_refused;
            let run = |channels: &[(u64, u64)]| {
                let handle = nccl.enqueue(context, Call::ALL_REDUCE);
                for (channel, (from, to)) in (0..).zip(channels) {
                    nccl.channel(context, handle, channel, *from, *to);
                }
            };
            run(&[(500, 100), (500, 200)]);
            // Longer than a minute.
            run(&[(1, 100_000_000_000), (1, 2)]);
            // One channel lost its end, the other has both.
            run(&[(100, 0), (150, 400)]);
            // No end, no start.
            run(&[(100, 0), (100, 0)]);
            run(&[(0, 100), (0, 100)]);
            let together = agent.together();
            let durations: Vec<_> = together.recent.iter().map(|it| it.duration_ns).collect();
            assert_eq!(durations, [0, 0, 300, 0, 0]);
            assert_eq!(together.durations_refused - refused_before, 2);
            let total = together.communicators.last().expect("one").functions[0];
            assert_eq!((total.count, total.timed), (5, 1));
            nccl.finalize(context);
        });
    });
}

#[test]
fn a_channel_that_is_never_reported_leaves_its_collective_open_until_its_turn_comes_round() {
    alone(&ALL, || {
        each_version(|nccl, agent| {
            let context = nccl.eight();
            let given_up_before = agent.together().given_up;
            let handle = nccl.enqueue(context, Call::ALL_REDUCE);
            nccl.channel(context, handle, 0, 100, 300);
            // The end of the other channel came before its start: NCCL reports neither.
            assert_eq!(agent.together().in_flight.len(), 1);
            for _ in 0..2048 {
                let one = Call {
                    channels: 1,
                    function: Some(c"AllGather"),
                    ..Call::ALL_REDUCE
                };
                let other = nccl.enqueue(context, one);
                nccl.channel(context, other, 0, 10, 12);
            }
            let together = agent.together();
            assert_eq!(together.given_up - given_up_before, 1);
            assert!(together.in_flight.is_empty());
            let functions = &together.communicators.last().expect("one").functions;
            assert_eq!((functions[0].count, functions[0].duration_ns), (1, 200));
            assert_eq!(
                (functions[1].count, functions[1].bytes),
                (2048, 2048 * 2000 * 8)
            );
            nccl.finalize(context);
        });
    });
}

#[test]
fn a_graph_that_is_played_again_counts_each_time() {
    alone(&ALL, || {
        each_version(|nccl, agent| {
            let context = nccl.eight();
            let first = nccl.enqueue(context, Call::ALL_REDUCE);
            for replay in 0..3_u64 {
                // The numbers are those of the capture.
                let handle = nccl.enqueue(context, Call::ALL_REDUCE);
                nccl.channel(context, handle, 0, 100, 200 + replay);
                nccl.channel(context, handle, 1, 100, 150);
            }
            let together = agent.together();
            // What was captured did not run.
            assert_eq!(together.in_flight.len(), 1);
            let durations: Vec<_> = together.recent.iter().map(|it| it.duration_ns).collect();
            assert_eq!(durations, [100, 101, 102]);
            // A replay whose channels still name the operation that was captured.
            nccl.channel(context, first, 0, 100, 200);
            nccl.channel(context, first, 1, 100, 200);
            nccl.channel(context, first, 0, 900, 990);
            assert!(agent.together().in_flight.is_empty());
            nccl.finalize(context);
        });
    });
}
