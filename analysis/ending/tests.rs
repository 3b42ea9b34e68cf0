//! Each cause by the evidence that names it, and the first failing rank among many echoes.

use super::*;

mod said;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(1_700_000_000 + seconds)
}

/// A rank on a node of its own that is in the middle of training.
fn rank(number: u32) -> RankEnd {
    RankEnd {
        rank: number,
        place: Place {
            node: format!("node-{number}"),
            gpu_id: format!("GPU-{number}"),
            pod: format!("pod-{number}"),
        },
        at: Some(at(100)),
        ..RankEnd::default()
    }
}

fn raised(number: u32, seconds: i64, kind: &str, message: &str) -> RankEnd {
    RankEnd {
        at: Some(at(seconds)),
        ended: Some(Ended::Exception),
        exception: Some((kind.to_owned(), message.to_owned())),
        ..rank(number)
    }
}

fn timed_out(number: u32, seconds: i64) -> RankEnd {
    let message = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)";
    raised(
        number,
        seconds,
        "torch.distributed.DistBackendError",
        message,
    )
}

fn node_lost(number: u32, seconds: i64, is_spot: bool) -> NodeLost {
    NodeLost {
        name: format!("node-{number}"),
        at: at(seconds),
        is_spot,
    }
}

/// Steps 100 to 180, the last checkpoint at 150, two seconds each, 16 GPUs at 3.60 USD.
fn attempt(ranks: Vec<RankEnd>) -> Attempt {
    Attempt {
        ended_at: Some(at(1_000)),
        ranks,
        hooks_were_read: true,
        cluster_was_watched: true,
        gpus_were_read: true,
        first_step: Some(100),
        last_step: Some(180),
        checkpoint_step: Some(150),
        step_ns: Some(2_000_000_000),
        gpus: 16,
        nano_usd_per_gpu_hour: Some(3_600_000_000),
        ..Attempt::default()
    }
}

fn pod(number: u32, reason: &str, exit_code: i32) -> Pod {
    Pod {
        name: format!("pod-{number}"),
        reason: reason.to_owned(),
        exit_code: Some(exit_code),
        at: Some(at(110)),
    }
}

fn vanished(number: u32, seconds: i64) -> RankEnd {
    RankEnd {
        at: Some(at(seconds)),
        ended: Some(Ended::Vanished),
        ..rank(number)
    }
}

#[test]
fn an_exception_names_its_rank_its_type_and_what_it_cost() {
    let found = ending(&attempt(vec![
        timed_out(0, 700),
        raised(3, 95, "ValueError", "loss is nan"),
        timed_out(1, 90),
    ]));
    assert_eq!((found.cause, found.first_rank), (Cause::Exception, Some(3)));
    assert_eq!(found.at, Some(at(95)));
    assert_eq!(found.steps_lost, Some(30));
    // 30 steps of 2 s on 16 GPUs are 0.2667 GPU-hours.
    assert_eq!(found.nano_usd_lost, Some(960_000_000));
    assert_eq!(
        found.sentence,
        "The script failed, first at rank 3 on node-3: ValueError: loss is nan; \
         30 steps since the last checkpoint are lost."
    );
}

#[test]
fn the_thousands_of_many_lost_steps_are_set_apart() {
    let mut long = attempt(vec![raised(3, 95, "ValueError", "loss is nan")]);
    (long.last_step, long.checkpoint_step) = (Some(5_496), Some(4_000));
    let found = ending(&long);
    assert_eq!(found.steps_lost, Some(1_496));
    let said = "; 1\u{202f}496 steps since the last checkpoint are lost.";
    assert!(found.sentence.ends_with(said), "{}", found.sentence);
}

#[test]
fn what_lies_deeper_wins_over_its_echoes() {
    let mut lost = attempt(vec![timed_out(0, 700), timed_out(1, 700), vanished(2, 99)]);
    lost.nodes_lost = vec![node_lost(2, 140, false)];
    lost.pods = vec![pod(0, "Error", 1)];
    let found = ending(&lost);
    assert_eq!((found.cause, found.first_rank), (Cause::NodeLost, Some(2)));
    assert!(
        found.sentence.contains("node node-2 was lost"),
        "{}",
        found.sentence
    );

    let mut fault = attempt(vec![timed_out(0, 700), timed_out(5, 701)]);
    fault.gpu_faults = vec![
        GpuFault {
            gpu_id: "GPU-0".to_owned(),
            xid: 31,
            at: at(50),
        },
        GpuFault {
            gpu_id: "GPU-5".to_owned(),
            xid: 79,
            at: at(98),
        },
    ];
    let found = ending(&fault);
    assert_eq!((found.cause, found.first_rank), (Cause::GpuFault, Some(5)));
    assert_eq!(found.at, Some(at(98)));
    assert_eq!(found.evidence[0], "XID 79 on GPU-5");
}

#[test]
fn a_node_at_spot_that_is_gone_was_taken_back_and_one_that_was_left_was_not_lost() {
    let of = |ranks: Vec<RankEnd>, is_spot| {
        let mut attempt = attempt(ranks);
        attempt.nodes_lost = vec![node_lost(2, 140, is_spot)];
        (attempt.cluster_was_watched, attempt.nodes_were_watched) = (false, true);
        ending(&attempt)
    };
    let silent = || vec![timed_out(0, 700), rank(2)];
    let found = of(silent(), true);
    assert_eq!((found.cause, found.first_rank), (Cause::Preempted, Some(2)));
    assert_eq!(
        found.sentence,
        "The run was preempted, first at rank 2 on node-2: node node-2, paid at Spot, was taken back; \
         30 steps since the last checkpoint are lost."
    );
    assert!(found.looked_at.contains(&"nodes"), "{:?}", found.looked_at);
    assert_eq!(of(silent(), false).cause, Cause::NodeLost);
    // The kubelet tells its processes to stop before the machine goes, and so does who has seen enough.
    let stopped = |number| RankEnd {
        at: Some(at(100)),
        ended: Some(Ended::Stopped),
        ..rank(number)
    };
    assert_eq!(of(vec![stopped(2)], true).cause, Cause::Preempted);
    assert_eq!(of(vec![stopped(2)], false).cause, Cause::StoppedByUser);
    assert_eq!(
        of(vec![stopped(2), vanished(2, 100)], false).cause,
        Cause::NodeLost
    );
    // What failed of itself did so before its machine went, and not because of it.
    for (message, cause) in [
        ("CUDA out of memory", Cause::CudaOutOfMemory),
        ("the loss is not finite", Cause::Exception),
    ] {
        let failed = |seconds| raised(2, seconds, "RuntimeError", message);
        assert_eq!(of(vec![failed(100)], true).cause, cause);
        assert_eq!(of(vec![failed(100)], false).cause, cause);
        assert_eq!(of(vec![failed(141)], false).cause, Cause::NodeLost);
    }
    let short = RankEnd {
        oom_kills: 1,
        ..vanished(2, 100)
    };
    assert_eq!(of(vec![short], false).cause, Cause::HostOutOfMemory);
    // One that went later than a cause may be told did not end it.
    let mut later = attempt(vec![stopped(2)]);
    later.nodes_lost = vec![node_lost(2, 401, true)];
    assert_eq!(ending(&later).cause, Cause::StoppedByUser);
}

#[test]
fn a_fault_long_before_the_first_failing_rank_did_not_end_the_run() {
    let mut old = attempt(vec![raised(0, 5_000, "ValueError", "bad shape")]);
    old.gpu_faults = vec![GpuFault {
        gpu_id: "GPU-0".to_owned(),
        xid: 79,
        at: at(0),
    }];
    old.nodes_lost = vec![node_lost(9, 6_000, false)];
    assert_eq!(ending(&old).cause, Cause::Exception);
}

#[test]
fn every_cause_has_evidence_that_names_it() {
    let with_pod = |reason: &str, code| {
        let mut it = attempt(vec![vanished(1, 100)]);
        it.pods = vec![pod(1, reason, code)];
        it
    };
    let mut asked = attempt(vec![raised(0, 99, "KeyboardInterrupt", "")]);
    asked.stop_asked = Some(("ada".to_owned(), at(98)));
    let finished = |number| RankEnd {
        ended: Some(Ended::Finished),
        ..rank(number)
    };
    let stuck = RankEnd {
        stuck: Some(("AllReduce".to_owned(), 1_800)),
        ..rank(4)
    };
    let stopped = RankEnd {
        ended: Some(Ended::Stopped),
        signal: Some(15),
        ..rank(2)
    };
    let message = "CUDA out of memory. Tried to allocate 2.00 GiB.";
    let cases = [
        (with_pod("OOMKilled", 137), Cause::HostOutOfMemory, Some(1)),
        (with_pod("Preempted", 143), Cause::Preempted, Some(1)),
        (with_pod("Evicted", 143), Cause::Evicted, Some(1)),
        (with_pod("NodeShutdown", 137), Cause::NodeLost, Some(1)),
        (asked, Cause::StoppedByUser, None),
        (attempt(vec![stopped]), Cause::StoppedByUser, None),
        (
            attempt(vec![
                timed_out(0, 50),
                raised(6, 60, "torch.OutOfMemoryError", message),
            ]),
            Cause::CudaOutOfMemory,
            Some(6),
        ),
        (
            attempt(vec![raised(0, 9, "MemoryError", "")]),
            Cause::HostOutOfMemory,
            Some(0),
        ),
        (attempt(vec![stuck]), Cause::CollectiveTimeout, Some(4)),
        (
            attempt(vec![timed_out(8, 20), timed_out(7, 30)]),
            Cause::CollectiveTimeout,
            Some(8),
        ),
        (
            attempt(vec![finished(0), finished(1)]),
            Cause::Finished,
            None,
        ),
        (attempt(vec![vanished(3, 100)]), Cause::Unknown, Some(3)),
        (Attempt::default(), Cause::Unknown, None),
    ];
    for (attempt, cause, first) in cases {
        let found = ending(&attempt);
        assert_eq!(
            (found.cause, found.first_rank),
            (cause, first),
            "{}",
            found.sentence
        );
    }
    let seen: Vec<&str> = Cause::ALL.iter().map(|it| it.name()).collect();
    assert_eq!(seen.len(), Cause::Unknown as usize + 1);
}

#[test]
fn what_is_not_known_is_said_with_what_was_looked_at() {
    let mut silent = attempt(vec![vanished(3, 100)]);
    silent.gpus_were_read = false;
    silent.checkpoint_step = None;
    silent.nano_usd_per_gpu_hour = None;
    let found = ending(&silent);
    assert_eq!(
        found.sentence,
        "It is not known why the run ended, first at rank 3 on node-3: looked at what the processes \
         left behind, pods and nodes; 81 steps are lost, because no checkpoint was saved."
    );
    assert_eq!((found.steps_lost, found.nano_usd_lost), (Some(81), None));
    let nothing = ending(&Attempt::default());
    assert_eq!(nothing.steps_lost, None);
    assert!(
        nothing.sentence.contains("neither hooks"),
        "{}",
        nothing.sentence
    );
}

#[test]
fn a_process_that_a_signal_ended_is_said_to_be_though_not_why() {
    let killed = RankEnd {
        signal: Some(9),
        ..vanished(3, 100)
    };
    let echo = raised(1, 90, "RuntimeError", "Connection reset by peer");
    let ending = ending(&attempt(vec![echo, killed]));
    assert_eq!((ending.cause, ending.first_rank), (Cause::Unknown, Some(3)));
    assert!(ending.sentence.contains("signal 9 (SIGKILL)"), "{ending:?}");
}

#[test]
fn a_process_that_went_where_the_kernel_killed_for_want_of_memory_ran_out_of_it() {
    let of = |signal, oom_kills| RankEnd {
        signal,
        oom_kills,
        ..vanished(3, 100)
    };
    let echo = || raised(1, 90, "RuntimeError", "Connection reset by peer");
    for (signal, oom_kills, because) in [
        (
            Some(9),
            1,
            "signal 9 (SIGKILL) ended its process, and the kernel killed 1 process there for want of memory",
        ),
        (
            Some(9),
            8,
            "signal 9 (SIGKILL) ended its process, and the kernel killed 8 processes there for want of memory",
        ),
        (
            None,
            1,
            "its process was gone without a word, and the kernel killed 1 process there for want of memory",
        ),
    ] {
        let found = ending(&attempt(vec![echo(), of(signal, oom_kills)]));
        let expected = (Cause::HostOutOfMemory, Some(3));
        assert_eq!((found.cause, found.first_rank), expected);
        assert_eq!(found.evidence, [because]);
        let begins = "The host ran out of memory, first at rank 3 on node-3: ";
        let sentence = found.sentence.strip_prefix(begins);
        assert!(
            sentence.is_some_and(|it| it.starts_with(because)),
            "{found:?}"
        );
    }
    // Another signal is no kill by the kernel, a status is a word of its own, and an exception says more.
    let returned = RankEnd {
        exit_status: Some(1),
        ..of(None, 1)
    };
    let said = RankEnd {
        oom_kills: 1,
        ..raised(3, 100, "ValueError", "loss is nan")
    };
    for (end, cause) in [
        (of(Some(11), 1), Cause::Unknown),
        (of(Some(9), 0), Cause::Unknown),
        (returned, Cause::Unknown),
        (said, Cause::Exception),
    ] {
        let found = ending(&attempt(vec![end]));
        assert_eq!(found.cause, cause, "{}", found.sentence);
    }
    // Its launcher tore it down after another's end.
    let torn_down = RankEnd {
        oom_kills: 1,
        signal: Some(15),
        ..vanished(0, 99)
    };
    let found = ending(&attempt(vec![torn_down, of(Some(9), 1)]));
    assert_eq!(found.first_rank, Some(3));
}

#[test]
fn the_first_of_ranks_that_a_launcher_tore_down_is_named_and_of_one_moment_none() {
    let killed = |number, milliseconds: i64| {
        let at = at(100).shifted(milliseconds * 1_000_000);
        RankEnd {
            at: Some(at),
            signal: Some(9),
            ..vanished(number, 100)
        }
    };
    let found = ending(&attempt(vec![killed(0, 7), killed(1, 5), killed(2, 6)]));
    assert_eq!((found.cause, found.first_rank), (Cause::Unknown, Some(1)));
    assert!(found.sentence.contains("first at rank 1 on node-1"));

    let found = ending(&attempt(vec![killed(2, 5), killed(0, 5), killed(1, 6)]));
    assert_eq!((found.cause, found.first_rank), (Cause::Unknown, None));
    assert_eq!(
        found.sentence,
        "It is not known why the run ended; ranks 0 and 2 failed in one moment, and which was first is not \
         known: signal 9 (SIGKILL) ended its process, and nothing says why; 30 steps since the last \
         checkpoint are lost."
    );
    assert_eq!(found.evidence.len(), 1, "{:?}", found.evidence);

    let many = (0..64).map(|it| killed(it, 5)).collect();
    let found = ending(&attempt(many));
    let together = "ranks 0, 1, 2, 3 and 60 more failed in one moment";
    assert!(found.sentence.contains(together), "{}", found.sentence);

    // What the cluster says of one of them names it.
    let mut told = attempt(vec![killed(0, 5), killed(1, 5)]);
    told.pods = vec![pod(1, "OOMKilled", 137)];
    let found = ending(&told);
    assert_eq!(found.first_rank, Some(1));
    assert!(!found.sentence.contains("in one moment"), "{found:?}");
    // A run that somebody stopped has no first that failed.
    let interrupted = |number| raised(number, 90, "KeyboardInterrupt", "");
    let found = ending(&attempt(vec![interrupted(0), interrupted(1)]));
    assert_eq!(found.cause, Cause::StoppedByUser);
    assert!(!found.sentence.contains("in one moment"), "{found:?}");
}

#[test]
fn a_run_that_finished_lost_nothing_whatever_happened_beside_it() {
    let mut done = attempt(vec![RankEnd {
        ended: Some(Ended::Finished),
        ..rank(0)
    }]);
    done.nodes_lost = vec![node_lost(0, 101, true)];
    let found = ending(&done);
    assert_eq!((found.cause, found.steps_lost), (Cause::Finished, Some(0)));
    assert_eq!(
        found.sentence,
        "The run finished: its rank said that it finished."
    );
}
