//! Recordings that were made: a fault in one is told, one that is too coarse says of which detectors, and what is
//! none is refused by name.

use std::path::PathBuf;

use gpufleet_agent::read::recorded::convert;
use gpufleet_agent::read::recorded::format::Writer;
use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::Family;
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::sample::Sample;

use super::*;

const TAKEN_AT: i64 = 1_795_000_000;
const CARD: &str = "NVIDIA H100 80GB HBM3";

/// Two GPUs that work, read each `every` seconds for so many seconds; from `hot` on the second is slowed down by heat
/// all the time.
struct Made {
    every: i64,
    seconds: i64,
    hot: Option<i64>,
    xid_at: Option<i64>,
}

impl Made {
    fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("node.jsonl");
        let header = format::Header {
            taken_at_seconds: Some(TAKEN_AT),
            ..convert::header()
        };
        let file = std::fs::File::create(&path).expect("a file for the test");
        let mut writer = Writer::new(file, &header).expect("it can be written");
        for second in (0..self.seconds).step_by(self.every as usize) {
            let readings = self.readings(second);
            writer.round("nvml", &readings).expect("it can be written");
        }
        path
    }

    fn readings(&self, second: i64) -> Readings {
        let at = Timestamp::from_seconds(TAKEN_AT + second);
        let resources = (0..2).map(|index| {
            let slowed = self.hot.filter(|_| index == 1);
            let slowed = slowed.map_or(0, |from| (second - from).max(0));
            let sample = |metric: Metric, value: f64| Sample {
                metric: metric.id,
                part: None,
                reading: Ok(value),
            };
            let resource = Resource::new(ResourceKind::Gpu, format!("GPU-{index}"));
            ResourceSamples {
                resource: Arc::new(resource.with(attribute::GPU_MODEL, CARD)),
                samples: vec![
                    sample(gpu::UTILIZATION, 0.97),
                    sample(gpu::PROCESSES, 1.0),
                    sample(gpu::TEMPERATURE, 60.0),
                    sample(gpu::POWER, 500.0),
                    sample(gpu::MEMORY_TOTAL, 85e9),
                    sample(gpu::MEMORY_USED, 70e9),
                    sample(gpu::SM_CLOCK, 1.98e9),
                    sample(gpu::THROTTLE_THERMAL, slowed as f64),
                    sample(gpu::ECC_UNCORRECTED_VOLATILE, 0.0),
                    sample(gpu::ECC_CORRECTED_VOLATILE, 0.0),
                ],
            }
        });
        let xid = self.xid_at.filter(|at| *at == second).map(|_| Event {
            at,
            kind: EventKind::Xid,
            severity: Severity::Error,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-0".into(),
            message: "XID 79".to_owned(),
            attributes: [
                ("xid".to_owned(), "79".to_owned()),
                ("action".to_owned(), "reboot_node".to_owned()),
            ]
            .into(),
        });
        Readings {
            at,
            resources: resources.collect(),
            events: xid.into_iter().collect(),
        }
    }
}

fn config() -> Config {
    let mut config = Config::for_tests();
    let price = (CARD.to_owned(), "36".to_owned());
    config.detect.gpu_hour_usd.extend([price]);
    config
}

fn replayed(made: &Made) -> Replayed {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let path = made.write(folder.path());
    replay(&path, &config(), &mut |_, _| {}).expect("it can be replayed")
}

fn unable<'a>(replayed: &'a Replayed, detector: &str) -> Option<&'a str> {
    let mut unable = replayed.unable.iter();
    unable
        .find(|it| it.detector == detector)
        .map(|it| it.why.as_str())
}

const WELL: Made = Made {
    every: 1,
    seconds: 600,
    hot: None,
    xid_at: None,
};

#[test]
fn a_recording_in_which_nothing_is_wrong_fires_nothing() {
    let replayed = replayed(&WELL);
    assert_eq!(replayed.incidents, []);
    assert_eq!((replayed.most.gpus, replayed.most.nodes), (2, 1));
    assert_eq!(replayed.ticks, (60, 10));
    assert_eq!(unable(&replayed, "slowed down by heat"), None);
    assert_eq!(
        unable(&replayed, "a rank that makes the others wait"),
        Some("a recording has no steps of ranks")
    );
}

#[test]
fn heat_and_an_xid_in_a_recording_are_told_with_place_time_cause_and_price() {
    let replayed = replayed(&Made {
        hot: Some(200),
        xid_at: Some(400),
        ..WELL
    });
    let found: Vec<(Family, Option<&str>, Cause)> = replayed
        .incidents
        .iter()
        .map(|it| (it.family, it.place.gpu.as_deref(), it.cause))
        .collect();
    assert_eq!(
        found,
        [
            (Family::Heat, Some("GPU-1"), Cause::Heat),
            (Family::GpuFault, Some("GPU-0"), Cause::GpuFault),
        ]
    );
    let xid = &replayed.incidents[1];
    assert_eq!(
        (xid.what.as_str(), xid.action.as_str()),
        ("XID 79", "Drain the node and reboot it.")
    );
    assert_eq!(xid.since, Timestamp::from_seconds(TAKEN_AT + 400));
    // It works on, so that it is over: what it lost until then has its price.
    assert!(xid.lost.nano_usd() > Some(0) && xid.lost.is_priced());
    let heat = &replayed.incidents[0];
    let opened = heat.opened_at.expect("it opened").since(replayed.from);
    let seconds = opened / NANOS_PER_SECOND;
    assert!((200..300).contains(&seconds), "{seconds} s after the start");
    assert_eq!(heat.resolved_at, None, "it was hot to the end");
    let text = crate::replay::told::text(&replayed);
    for words in [
        "2 incidents would have opened",
        "heat, warning: slowed down by heat",
        "until  it was not over at the end",
        "Could not run on this data:",
    ] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
}

#[test]
fn a_recording_that_is_too_coarse_accuses_nobody_and_names_the_detectors() {
    let replayed = replayed(&Made {
        every: 300,
        seconds: 3_600,
        hot: Some(600),
        ..WELL
    });
    assert_eq!(
        replayed.incidents,
        [],
        "nothing is known of the time between"
    );
    assert_eq!(replayed.ticks.1, 60);
    let why = unable(&replayed, "slowed down by heat").unwrap_or_default();
    assert!(why.contains("every 300 s"), "{why}");
    assert!(
        replayed
            .notes
            .iter()
            .any(|it| it.contains("a tick is 60 s"))
    );
}

#[test]
fn readings_each_half_minute_are_ticks_of_half_a_minute() {
    let replayed = replayed(&Made {
        every: 30,
        seconds: 1_800,
        hot: Some(600),
        ..WELL
    });
    assert_eq!(replayed.ticks.1, 30);
    let families: Vec<Family> = replayed.incidents.iter().map(|it| it.family).collect();
    assert_eq!(families, [Family::Heat]);
}

#[test]
fn what_is_no_recording_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let refused = |text: &str| {
        let path = folder.path().join("it.jsonl");
        std::fs::write(&path, text).expect("it can be written");
        let replayed = replay(&path, &config(), &mut |_, _| {});
        replayed.expect_err("it is none").to_string()
    };
    let newer = refused("{\"gpufleet_recording\":9,\"agent_version\":\"9\",\"node\":\"n\"}\n");
    assert!(newer.contains("version 9"), "{newer}");
    let nothing = refused("hello\n");
    assert!(nothing.contains("it.jsonl"), "{nothing}");
    let header = serde_json::to_string(&convert::header()).expect("it is JSON");
    let ages = refused(&format!(
        "{header}\n{{\"at_ns\":0,\"reader\":\"nvml\",\"samples\":[]}}\n{{\"at_ns\":9000000000000000000,\"reader\":\"nvml\",\"samples\":[]}}\n"
    ));
    assert!(ages.contains("days after its first"), "{ages}");
}
