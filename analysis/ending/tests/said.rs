//! What a script, torch and the kernel say of one end, where one word alone would mislead.

use super::*;

#[test]
fn a_script_that_returns_an_error_has_failed_unless_it_returns_that_a_signal_stopped_it() {
    let returned = |number, status| RankEnd {
        ended: Some(Ended::Stopped),
        exit_status: Some(status),
        ..rank(number)
    };
    for (status, cause) in [
        (1, Cause::Exception),
        (255, Cause::Exception),
        (0, Cause::StoppedByUser),
        (130, Cause::StoppedByUser),
        (143, Cause::StoppedByUser),
    ] {
        let found = ending(&attempt(vec![returned(2, status)]));
        assert_eq!(found.cause, cause, "{}", found.sentence);
    }
    let found = ending(&attempt(vec![returned(2, 1)]));
    assert_eq!(
        found.sentence,
        "The script failed, first at rank 2 on node-2: its process ended with status 1; \
         30 steps since the last checkpoint are lost."
    );
    // Its machine went because nobody needed it, or at Spot told it before that it would.
    let of = |is_spot| {
        let mut attempt = attempt(vec![returned(2, 1)]);
        attempt.nodes_lost = vec![node_lost(2, 140, is_spot)];
        ending(&attempt).cause
    };
    assert_eq!((of(false), of(true)), (Cause::Exception, Cause::Preempted));
    // Somebody asked for it.
    let mut asked = attempt(vec![returned(2, 1)]);
    asked.stop_asked = Some(("ada".to_owned(), at(98)));
    assert_eq!(ending(&asked).cause, Cause::StoppedByUser);
}

#[test]
fn a_connection_that_ends_is_a_collectives_only_where_torch_says_it() {
    let reset = "[Errno 104] Connection reset by peer";
    for (kind, cause) in [
        ("ConnectionResetError", Cause::Exception),
        ("botocore.exceptions.HTTPClientError", Cause::Exception),
        ("RuntimeError", Cause::CollectiveTimeout),
        (
            "torch.distributed.DistNetworkError",
            Cause::CollectiveTimeout,
        ),
    ] {
        let found = ending(&attempt(vec![raised(3, 95, kind, reset), timed_out(0, 90)]));
        let first = if cause == Cause::Exception { 3 } else { 0 };
        let expected = (cause, Some(first));
        assert_eq!((found.cause, found.first_rank), expected, "{kind}");
    }
}

#[test]
fn a_loader_that_the_kernel_killed_for_want_of_memory_is_no_fault_of_the_script() {
    let killed = "DataLoader worker (pid 4711) is killed by signal: Killed. ";
    let gone = "DataLoader worker (pid(s) 4711) exited unexpectedly";
    let bus = "DataLoader worker (pid 4711) is killed by signal: Bus error. ";
    for (message, oom_kills, cause) in [
        (killed, 1, Cause::HostOutOfMemory),
        (gone, 2, Cause::HostOutOfMemory),
        (killed, 0, Cause::Exception),
        (bus, 1, Cause::Exception),
    ] {
        let found = ending(&attempt(vec![RankEnd {
            oom_kills,
            ..raised(3, 95, "RuntimeError", message)
        }]));
        assert_eq!(found.cause, cause, "{}", found.sentence);
        let is_told = found.sentence.contains("for want of memory");
        assert_eq!(is_told, cause == Cause::HostOutOfMemory, "{found:?}");
    }
}
