//! What training processes find with the probe inside them.

use gpufleet_hooks_shm::records::Probe;
use gpufleet_hooks_shm::words::ProbeVerdict;

use super::*;
use crate::probe::ptx::Work;
use crate::probe::verdict::Verdict;
use crate::probe::wrong::{Reach, Works};

#[test]
fn what_a_process_found_with_the_probe_is_handed_on_once_and_only_of_a_gpu_that_it_is_on() {
    let folder = folder();
    let (users, probed) = (Arc::<Users>::default(), Arc::<Inside>::default());
    let config = HooksConfig {
        socket_path: folder.path().join("hooks.sock"),
        ..HooksConfig::default()
    };
    let period = Duration::from_secs(1);
    let hooks = Hooks::new(&config, period, Arc::clone(&users), None);
    let hooks = hooks.expect("it is enabled");
    let mut hooks = hooks.with_probes(true, Arc::clone(&probed));
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&Identity {
        gpu_uuid: "GPU-b".to_owned(),
        ..identity(0)
    });
    let found = |at, verdict| Probe {
        at,
        verdict,
        step: 7,
        sm: Some(4),
        sms: 6,
        covered: 6,
        checked_bytes: u64::MAX,
        gpu_ns: 2_000_000,
        runs: 1,
        right: 0b000_0011,
        wrong: 0b000_1000,
        reason: "3 wrong results of bf16 on SM 4".to_owned(),
    };
    let at = unix_ns();
    writer.probe(&found(at, ProbeVerdict::Failed));
    round(&mut hooks);
    assert!(probed.take().is_empty(), "it only says that it is there");
    users.note(&[ResourceSamples {
        resource: Arc::new(Resource::new(ResourceKind::Gpu, "GPU-a")),
        samples: vec![Sample {
            metric: catalog::gpu::PROCESS_MEMORY.id,
            part: Some(Part::new(PartKind::Process, NOBODY.to_string())),
            reading: Ok(1.0),
        }],
    }]);
    round(&mut hooks);
    let taken = probed.take();
    assert_eq!(taken.keys().map(|it| &**it).collect::<Vec<_>>(), ["GPU-a"]);
    let of_gpu = &taken["GPU-a"];
    assert_eq!(of_gpu.at, Timestamp(at));
    assert_eq!(of_gpu.judgement.verdict, Verdict::Fail);
    assert_eq!(of_gpu.judgement.sm, Some(4));
    assert!(of_gpu.rank.ends_with("/0"), "{}", of_gpu.rank);
    assert_eq!(of_gpu.measured.gpu_seconds, 0.002);
    let reach = Reach {
        right: Works::of([Work::Arithmetic, Work::Fp16]),
        wrong: Works::of([Work::Bf16]),
        checked_bytes: gpufleet_probe::inside::MOST_LENT as u64,
        ..Reach::default()
    };
    assert_eq!(of_gpu.reach, reach);
    round(&mut hooks);
    assert!(probed.take().is_empty(), "it was handed on");
    writer.probe(&found(at + 1, ProbeVerdict::Passed));
    round(&mut hooks);
    assert_eq!(probed.take().len(), 1, "that is another one");
}
