//! What doctor asks of the sources: the agent's own readers, a few rounds each.
//!
//! The readers are the ones that run: NVML is asked in its watched child, so a driver that hangs
//! costs this check its deadline and nothing else.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{AgentId, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Missing, Readings};
use gpufleet_telemetry::time::Clock;

use super::Finding;
use super::machine::Machine;
use crate::attribute::exported::Exported;
use crate::config::Config;
use crate::read::{NodeFacts, Read, ReadError, Turn, Wiring, readers};
use gpufleet_program::clock::SystemClock;

/// Longest all rounds of one source may take. A driver without persistence mode needs 1.5 s a GPU
/// to wake; a GPU that hangs is known as one, and the others read without it, after some 12 s.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// How many rounds may fail before the failure is the answer: the reader may still be starting.
const FAILED_ROUNDS: u32 = 3;

/// The lines of NVML, GPM and exporters.
pub(super) async fn look(config: &Config, machine: &Machine) -> Vec<Finding> {
    let node = Arc::new(NodeFacts {
        cluster: config.node.cluster.clone(),
        node: "doctor".to_owned(),
        boot_id: String::new(),
        agent_id: AgentId(uuid::Uuid::nil()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let wiring = Wiring::to_look(Arc::clone(&node));
    let exported = Arc::clone(&wiring.exported);
    let readers = match readers(config, wiring) {
        Ok(readers) => readers,
        Err(error) => {
            let fix = "correct the config; gpufleet-agent --check-config tells when it is right";
            return vec![Finding::no("sources", format!("{error:#}"), fix)];
        }
    };
    let clock = SystemClock::start();
    let asked = readers
        .into_iter()
        .filter(|it| it.name() == "nvml" || it.name().starts_with("exporter:"))
        .map(|reader| ask(reader, &node, &clock));
    let answers = futures::future::join_all(asked).await;
    let nvml = answers.iter().find(|(name, _)| name == "nvml");
    let nvml = nvml.map(|(_, answer)| answer);
    let mut findings = vec![nvml_finding(nvml, machine), gpm_finding(nvml)];
    let exporters: Vec<_> = answers.iter().filter(|(name, _)| name != "nvml").collect();
    if exporters.is_empty() {
        findings.push(Finding::skip("exporter", "none is configured"));
    }
    findings.extend(exporters.iter().map(|(name, answer)| {
        let holders = of_holders(config, &exported, name);
        exporter_finding(name, answer, &holders)
    }));
    findings
}

type Answer = Result<Readings, ReadError>;

/// Rounds until one has GPUs with their rates; the last answer otherwise.
async fn ask(
    mut reader: Box<dyn Read>,
    node: &Arc<NodeFacts>,
    clock: &SystemClock,
) -> (String, Answer) {
    let name = reader.name().to_owned();
    let deadline = reader.deadline();
    let mut answer: Answer = Err(ReadError::Timeout { after: deadline });
    let rounds = async {
        let mut failed = 0;
        loop {
            let turn = Turn {
                at: clock.now(),
                monotonic: clock.monotonic(),
                node: Arc::clone(node),
            };
            let read = tokio::time::timeout(deadline, reader.read(turn)).await;
            let mut read = read.unwrap_or(Err(ReadError::Timeout { after: deadline }));
            // What happened in an earlier round is still true.
            if let (Ok(earlier), Ok(newer)) = (&mut answer, &mut read) {
                newer.events.splice(0..0, earlier.events.drain(..));
            }
            answer = read;
            failed += u32::from(answer.is_err());
            let settled = answer.as_ref().is_ok_and(has_rates) || failed == FAILED_ROUNDS;
            if name != "nvml" || settled {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    // Out of time: the last answer stands.
    let _ = tokio::time::timeout(DEADLINE, rounds).await;
    (name, answer)
}

/// Whether GPUs are there and none of them waits for the second sample of its profiling counters.
fn has_rates(readings: &Readings) -> bool {
    let mut samples = readings.resources.iter().flat_map(|it| &it.samples);
    let waits =
        samples.any(|it| it.metric == gpu::SM_ACTIVE.id && it.reading == Err(Missing::NotReady));
    gpus(readings) > 0 && !waits
}

/// The first GPU that hangs or is lost, in the reader's words.
fn trouble(readings: &Readings) -> Option<String> {
    let mut events = readings.events.iter();
    let event = events.find(|it| matches!(it.kind, EventKind::DriverHang | EventKind::GpuLost));
    let by_event = event.map(|it| it.message.clone());
    by_event.or_else(|| {
        readings.resources.iter().find_map(|it| {
            let mut missing = it.samples.iter().filter_map(|it| it.reading.err());
            let found = missing.find(|it| matches!(it, Missing::DriverHang | Missing::GpuLost))?;
            Some(format!("{}: {found}", it.resource.id))
        })
    })
}

fn gpus(readings: &Readings) -> usize {
    let resources = readings.resources.iter();
    resources
        .filter(|it| it.resource.kind == ResourceKind::Gpu)
        .count()
}

fn nvml_finding(answer: Option<&Answer>, machine: &Machine) -> Finding {
    const CHECK: &str = "NVML";
    match answer {
        None => Finding::skip(CHECK, "switched off: nvml.enabled = false"),
        Some(Ok(readings)) if trouble(readings).is_some() => Finding::no(
            CHECK,
            format!(
                "{} GPUs are listed; {}",
                gpus(readings),
                trouble(readings).unwrap_or_default()
            ),
            "drain the node and reset the GPU (nvidia-smi --gpu-reset) or reboot",
        ),
        Some(Ok(readings)) if gpus(readings) > 0 => {
            let mut resources = readings.resources.iter();
            let model = resources.find_map(|it| it.resource.attribute(attribute::GPU_MODEL));
            let (count, model) = (gpus(readings), model.unwrap_or("model unknown"));
            Finding::yes(CHECK, format!("{count} GPUs, {model}"))
        }
        Some(_) if machine.has_nvidia_card() == Some(false) => {
            Finding::skip(CHECK, "no NVIDIA card in this machine")
        }
        Some(Ok(_)) => Finding::no(
            CHECK,
            "it answers, and lists no GPU",
            "give the container the devices (privileged, CDI or the device plugin)",
        ),
        Some(Err(error)) => Finding::no(
            CHECK,
            error.to_string(),
            "nvidia-smi should work first; if libnvidia-ml.so.1 is elsewhere set nvml.library_path",
        ),
    }
}

fn gpm_finding(answer: Option<&Answer>) -> Finding {
    const CHECK: &str = "GPM";
    let Some(Ok(readings)) = answer else {
        return Finding::skip(CHECK, "needs NVML");
    };
    let samples = readings.resources.iter().flat_map(|it| &it.samples);
    let mut readings = samples.filter(|it| it.metric == gpu::SM_ACTIVE.id);
    match readings.next().map(|it| it.reading) {
        Some(Ok(_)) => Finding::yes(CHECK, "profiling counters are read"),
        Some(Err(Missing::NotSupported | Missing::FunctionNotFound)) => Finding::skip(
            CHECK,
            "not on this card or driver (Hopper and newer have it); an exporter's PROF metrics are read where one runs",
        ),
        Some(Err(missing)) => Finding::no(
            CHECK,
            format!("no value: {missing}"),
            "another profiler may hold the counters; on a vGPU there are none",
        ),
        None => Finding::skip(CHECK, "no GPU that could have it"),
    }
}

/// What an exporter's labels say of holders; nothing where the kubelet is asked, whose word counts.
fn of_holders(config: &Config, exported: &Exported, name: &str) -> String {
    let own = &config.attribute;
    if !own.enabled || !own.kubelet_socket.as_os_str().is_empty() {
        return String::new();
    }
    match exported.count(name) {
        (_, 0) => String::new(),
        (0, of) => format!(
            "; no label says whether a pod holds one of these {of}, so that is unknown: none is held, or dcgm-exporter \
             runs without DCGM_EXPORTER_KUBERNETES=true"
        ),
        (told, of) => {
            format!("; labels say of {told} of these {of} whether a pod holds them, and which")
        }
    }
}

fn exporter_finding(name: &str, answer: &Answer, holders: &str) -> Finding {
    const CHECK: &str = "exporter";
    match answer {
        Ok(readings) if readings.resources.is_empty() => {
            Finding::skip(CHECK, format!("{name}: none found on this node"))
        }
        Ok(readings) => {
            // One of the resources is the reader's own word on itself.
            let count = readings.resources.len().saturating_sub(1);
            Finding::yes(CHECK, format!("{name}: {count} GPUs or models{holders}"))
        }
        Err(error) => Finding::no(
            CHECK,
            format!("{name}: {error}"),
            "correct the target in [exporter], or set exporter.auto = false",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufleet_telemetry::identity::Resource;
    use gpufleet_telemetry::sample::{Reading, ResourceSamples, Sample};

    use super::super::Verdict;

    fn readings(sm_active: Option<Reading>) -> Readings {
        let samples = sm_active.map(|reading| Sample {
            metric: gpu::SM_ACTIVE.id,
            part: None,
            reading,
        });
        let resource = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::GPU_MODEL, "L4");
        Readings {
            resources: vec![ResourceSamples {
                resource: Arc::new(resource),
                samples: samples.into_iter().collect(),
            }],
            ..Readings::default()
        }
    }

    fn failed() -> Answer {
        Err(ReadError::Unavailable {
            why: "no library".to_owned(),
        })
    }

    #[test]
    fn what_nvml_and_gpm_answer_becomes_a_verdict() {
        let machine = |card: bool| {
            let root = tempfile::tempdir().expect("a folder");
            let device = root.path().join("sys/bus/pci/devices/0000:00:01.0");
            std::fs::create_dir_all(&device).expect("a folder");
            let vendor = if card { "0x10de\n" } else { "0x8086\n" };
            std::fs::write(device.join("vendor"), vendor).expect("written");
            let machine = Machine::new(root.path().to_owned(), &Config::for_tests());
            (root, machine)
        };
        use Verdict::{No, Skip, Yes};
        let cases: [(Option<Answer>, bool, Verdict, Verdict); 9] = [
            (None, true, Skip, Skip),
            (Some(Ok(readings(Some(Ok(0.5))))), true, Yes, Yes),
            (
                Some(Ok(readings(Some(Err(Missing::NotSupported))))),
                true,
                Yes,
                Skip,
            ),
            (
                Some(Ok(readings(Some(Err(Missing::HeldByOther))))),
                true,
                Yes,
                No,
            ),
            (Some(Ok(readings(None))), true, Yes, Skip),
            (
                Some(Ok(readings(Some(Err(Missing::DriverHang))))),
                true,
                No,
                No,
            ),
            (Some(Ok(Readings::default())), true, No, Skip),
            (Some(failed()), true, No, Skip),
            (Some(failed()), false, Skip, Skip),
        ];
        for (number, (answer, card, nvml, gpm)) in cases.into_iter().enumerate() {
            let (_root, machine) = machine(card);
            let got = nvml_finding(answer.as_ref(), &machine);
            assert_eq!(got.verdict, nvml, "case {number}: {got:?}");
            assert_eq!(gpm_finding(answer.as_ref()).verdict, gpm, "case {number}");
        }
    }

    #[test]
    fn an_exporter_that_fails_is_a_no_and_one_that_is_not_there_is_not() {
        assert_eq!(exporter_finding("a", &failed(), "").verdict, Verdict::No);
        assert_eq!(
            exporter_finding("a", &Ok(Readings::default()), "").verdict,
            Verdict::Skip
        );
        assert_eq!(
            exporter_finding("a", &Ok(readings(None)), "").verdict,
            Verdict::Yes
        );
    }
}
