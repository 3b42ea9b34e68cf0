//! Copies between a GPU and others of its node.

use gpufleet_agent::probe::verdict::Verdict;
use gpufleet_standin_cuda::Fault;
use gpufleet_standin_nvml::Process;

use crate::bench::Bench;
use crate::runs::near;

/// A machine with other GPUs, of these names.
fn with_peers(peers: &[&str]) -> Bench {
    let mut bench = Bench::new();
    bench.order.peers = peers.iter().map(|it| (*it).to_owned()).collect();
    bench
}

#[tokio::test]
async fn copies_go_both_ways_to_three_others_at_most_once_the_way_is_open() {
    let bench = with_peers(&["GPU-b", "GPU-c", "GPU-d", "GPU-e"]);
    let measured = bench.measured().await;
    let named: Vec<&str> = measured.peers.iter().map(|it| it.gpu.as_str()).collect();
    assert_eq!(named, ["GPU-b", "GPU-c", "GPU-d"]);
    for peer in &measured.peers {
        near(Some(peer.to), 370e9);
        near(Some(peer.from), 370e9);
    }
    assert_eq!(measured.left_out, [""; 0]);
    assert_eq!(measured.checks.len(), 7, "the rest is what it was");
}

#[tokio::test]
async fn what_keeps_two_gpus_apart_is_a_reason_and_no_verdict() {
    let mut none = with_peers(&["GPU-b"]);
    none.cuda.peer_access = false;
    let mut gone = with_peers(&["GPU-b"]);
    gone.cuda.gpus = vec![gone.order.gpu.clone()];
    let mut refused = with_peers(&["GPU-b"]);
    refused.cuda.faults = vec![Fault::Error("cuCtxEnablePeerAccess".to_owned(), 217)];
    let mut busy = with_peers(&["GPU-5eed0001-0000-4000-8000-000000000001"]);
    busy.nvml.gpus.push(busy.nvml.gpus[0].clone());
    busy.nvml.gpus[1].processes = vec![Process {
        pid: 77,
        memory_mib: 4,
        sm_percent: 0,
        mig: None,
    }];
    for (bench, words) in [
        (busy, "busy: 1 processes"),
        (none, "copies with GPU-b: there is no peer access"),
        (gone, "copies with GPU-b: CUDA does not show it"),
        (refused, "217"),
    ] {
        let measured = bench.measured().await;
        assert!(measured.peers.is_empty(), "{:?}", measured.peers);
        let [left_out] = &measured.left_out[..] else {
            panic!("one reason: {:?}", measured.left_out);
        };
        assert!(left_out.contains(words), "{left_out}");
        assert_eq!(bench.judged().await.verdict, Verdict::Pass);
    }
}

#[tokio::test]
async fn a_slow_pair_is_degraded_and_one_that_breaks_the_link_fails_and_both_name_the_other() {
    let mut slow = with_peers(&["GPU-b", "GPU-c", "GPU-d"]);
    slow.cuda.faults = vec![Fault::SlowPeer("GPU-c".to_owned(), 2.0)];
    let mut broken = with_peers(&["GPU-c"]);
    broken.cuda.faults = vec![Fault::Error("cuMemcpyPeerAsync".to_owned(), 220)];
    for (bench, verdict) in [(slow, Verdict::Degraded), (broken, Verdict::Fail)] {
        let judgement = bench.judged().await;
        assert_eq!(judgement.verdict, verdict, "{}", judgement.reason);
        assert!(judgement.reason.contains("GPU-c"), "{}", judgement.reason);
    }
}
