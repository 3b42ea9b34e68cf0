//! NCCL's thread reports kernels while the program's threads enqueue.

use std::sync::mpsc::sync_channel;
use std::thread;

use crate::alone::{Agent, alone};
use crate::nccl::{ALL, Call, Nccl, Pointer, VERSIONS};

/// Operations of each program thread: a thousandth of an hour of training. Fewer under a sanitizer,
/// by GPUFLEET_TEST_OPERATIONS.
const OPERATIONS: u64 = 20_000;

/// How far the program may be ahead of the GPU.
const QUEUE: usize = 1000;

fn operations() -> u64 {
    let given = std::env::var("GPUFLEET_TEST_OPERATIONS").ok();
    given.and_then(|it| it.parse().ok()).unwrap_or(OPERATIONS)
}

/// Enqueues operations from one thread and reports them from another, with reports that are lost,
/// late and doubled. Channels of a few operations are reported by both.
fn run(nccl: Nccl, context: Pointer) {
    let (queue, reports) = sync_channel::<(Pointer, u64)>(QUEUE);
    thread::scope(|scope| {
        scope.spawn(move || {
            for sequence in 1..=operations() {
                let call = Call {
                    sequence,
                    channels: 4,
                    ..Call::ALL_REDUCE
                };
                let handle = nccl.enqueue(context, call);
                if sequence % 7 == 0 {
                    nccl.channel(context, handle, 0, 100, 300);
                }
                queue.send((handle, sequence)).expect("the other reads");
            }
        });
        scope.spawn(move || {
            let mut before = Pointer::NULL;
            for (handle, sequence) in reports {
                for channel in 0..4 {
                    nccl.channel(context, handle, channel, 100, 300);
                }
                if sequence % 5 == 0 {
                    nccl.channel(context, before, 1, 50, 900);
                    nccl.stop(before);
                }
                before = handle;
            }
        });
    });
}

#[test]
fn nothing_is_lost_between_two_threads() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            let context = nccl.eight();
            run(nccl, context);
            let together = agent.together();
            assert!(together.in_flight.is_empty(), "{:?}", together.in_flight);
            let total = together.communicators.last().expect("one").functions[0];
            assert_eq!((total.count, total.timed), (operations(), operations()));
            assert_eq!(total.bytes, operations() * 2000);
            assert_eq!(total.duration_ns, operations() * 200);
            assert_eq!((together.given_up, together.durations_refused), (0, 0));
            nccl.finalize(context);
        }
    });
}

#[test]
fn communicators_on_threads_of_their_own_do_not_mix() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        let nccl = Nccl::load(6);
        // Made at once, as a program with a thread per GPU does.
        thread::scope(|scope| {
            for hash in 1..=4 {
                scope.spawn(move || {
                    let (context, _mask) = nccl.init(hash, 8, 3);
                    run(nccl, context);
                });
            }
        });
        let together = agent.together();
        assert_eq!(together.communicators.len(), 4);
        for made in together.communicators {
            let total = made.functions[0];
            assert_eq!(
                (total.count, total.duration_ns),
                (operations(), operations() * 200)
            );
        }
        assert!(together.in_flight.is_empty());
    });
}

#[test]
fn a_communicator_that_is_finalized_under_its_reports_harms_nothing() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        let nccl = Nccl::load(6);
        for hash in 0..20 {
            let (context, _mask) = nccl.init(hash, 8, 3);
            let handles: Vec<_> = (0..200)
                .map(|_| nccl.enqueue(context, Call::ALL_REDUCE))
                .collect();
            thread::scope(|scope| {
                scope.spawn(move || {
                    for handle in handles {
                        nccl.channel(context, handle, 0, 100, 300);
                        nccl.channel(context, handle, 1, 100, 300);
                    }
                });
                scope.spawn(move || nccl.finalize(context));
            });
        }
        let together = agent.together();
        assert!(together.in_flight.is_empty(), "{:?}", together.in_flight);
        for made in together.communicators {
            assert_eq!(made.functions[0].count, 200, "ended or given up, once");
        }
    });
}
