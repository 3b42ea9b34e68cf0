//! Pointers that are null or were never ours, ranks that cannot be.

use crate::alone::{Agent, alone};
use crate::nccl::{ALL, Call, Nccl, Pointer, VERSIONS};

/// Numbers that look like handles, contexts, addresses and nothing.
const NUMBERS: [usize; 12] = [
    0,
    1,
    64,
    0x100,
    0x1ff,
    0x200,
    0x300,
    0xdead_beef,
    0x67_7066_6c3f,
    0x67_7066_6c40,
    usize::MAX,
    1 << 63,
];

#[test]
fn null_and_garbage_do_nothing_and_succeed() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            // Before any communicator is made.
            nccl.stop(Pointer::number(0x1_0100));
            nccl.record(Pointer::number(0x1_0200), 22, Some(1));
            nccl.finalize(Pointer::NULL);
            assert_eq!(
                nccl.collective(Pointer::NULL, Call::ALL_REDUCE),
                Pointer::NULL
            );
            nccl.init_with_nothing();
            let context = nccl.eight();
            nccl.start_nothing(Pointer::NULL);
            for number in NUMBERS {
                let pointer = Pointer::number(number);
                nccl.stop(pointer);
                for state in [0, 22, 23, u32::MAX] {
                    nccl.record(pointer, state, None);
                    nccl.record(pointer, state, Some(u64::MAX));
                }
                assert_eq!(nccl.kernel(context, pointer, 3, 1), Pointer::NULL);
                if number != 0x67_7066_6c3f {
                    assert_eq!(nccl.collective(pointer, Call::ALL_REDUCE), Pointer::NULL);
                }
            }
            nccl.finalize(context);
            nccl.finalize(context);
            assert_eq!(nccl.collective(context, Call::ALL_REDUCE), Pointer::NULL);
        }
        let together = agent.together();
        assert!(together.recent.is_empty(), "{:?}", together.recent);
    });
}

#[test]
fn names_that_are_null_or_long_are_other_names() {
    alone(&[("GPUFLEET_NCCL_MASK", "6")], || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            let context = nccl.eight();
            let call = Call {
                function: None,
                data_type: None,
                count: usize::MAX,
                ..Call::ALL_REDUCE
            };
            nccl.enqueue(context, call);
            nccl.enqueue(
                context,
                Call {
                    function: Some(c"AFunctionWhoseNameIsLongerThanAnyOther"),
                    data_type: Some(c"ncclFloatWithManyMoreBits"),
                    ..call
                },
            );
            nccl.enqueue(
                context,
                Call {
                    data_type: Some(c"ncclFloat64"),
                    function: Some(c"AllGather"),
                    ..call
                },
            );
            let bytes: Vec<_> = agent.together().recent.iter().map(|it| it.bytes).collect();
            assert_eq!(bytes, [0, 0, u64::MAX]);
            nccl.finalize(context);
        }
    });
}

#[test]
fn a_rank_that_cannot_be_is_not_counted_and_init_succeeds() {
    alone(&ALL, || {
        let mut agent = Agent::listen();
        for version in VERSIONS {
            let nccl = Nccl::load(version);
            for (ranks, rank) in [(8, 8), (8, -1), (0, 0), (-1, -2), (i32::MIN, i32::MAX)] {
                let (context, mask) = nccl.init(1, ranks, rank);
                assert_eq!((context, mask), (Pointer::NULL, 0x46));
            }
        }
        assert!(agent.together().communicators.is_empty());
    });
}
