//! Recordings written, cut, damaged and played.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use gpufleet_program::config::Sources;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::PartKind;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Timestamp;

use super::format::{Header, VERSION, Writer};
use super::*;
use crate::config::Config;

fn header() -> Header {
    Header {
        gpufleet_recording: VERSION,
        taken_at_seconds: Some(1_700_000_000),
        agent_version: "0.1.0".to_owned(),
        node: "recorded".to_owned(),
    }
}

/// A round a second: power = 100 + n, energy = 1000 + 10 n, and a part with a reason.
fn readings(second: i64) -> Readings {
    let gpu_resource = Resource::new(ResourceKind::Gpu, "GPU-1")
        .with(attribute::GPU_MODEL, "NVIDIA H200")
        .with(attribute::NODE, "secret");
    let sample = |metric: MetricId, reading: Reading| Sample {
        metric,
        part: None,
        reading,
    };
    let n = second as f64;
    Readings {
        at: Timestamp::from_seconds(1_700_000_000 + second),
        resources: vec![ResourceSamples {
            resource: Arc::new(gpu_resource),
            samples: vec![
                sample(gpu::POWER.id, Ok(100.0 + n)),
                sample(gpu::ENERGY.id, Ok(1000.0 + 10.0 * n)),
                Sample {
                    metric: gpu::NVLINK_UP.id,
                    part: Some(Part::new(PartKind::NvLink, "3")),
                    reading: Err(Missing::NotSupported),
                },
            ],
        }],
        events: Vec::new(),
    }
}

fn recording(seconds: i64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    for second in 0..seconds {
        writer.round("nvml", &readings(second)).expect("memory");
    }
    writer.into_inner()
}

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }
}

fn config(file: PathBuf) -> RecordedConfig {
    RecordedConfig {
        files: vec![file],
        node: "shown".to_owned(),
        ..RecordedConfig::default()
    }
}

fn one_reader(config: &RecordedConfig) -> Recorded {
    let mut readers = recordings(config, Path::new("")).expect("a reader");
    assert_eq!(readers.len(), 1);
    readers.remove(0)
}

fn at(second: u64) -> Turn {
    Turn {
        at: Timestamp::from_seconds(2_000_000_000 + second as i64),
        monotonic: Duration::from_secs(1000 + second),
        node: Arc::new(NodeFacts::for_tests()),
    }
}

/// The reading of a metric in a turn; none when the turn has nothing.
fn value(readings: &Readings, metric: &catalog::Metric) -> Option<f64> {
    let resource = readings.resources.first()?;
    let sample = resource.samples.iter().find(|it| it.metric == metric.id)?;
    sample.reading.ok()
}

#[test]
fn what_was_written_is_played_second_by_second_and_marked() {
    let files = Files::new();
    let mut reader = one_reader(&config(files.write("a.jsonl", &recording(3))));
    let powers: Vec<Option<f64>> = (0..5)
        .map(|second| value(&reader.round(&at(second)).expect("a round"), &gpu::POWER))
        .collect();
    assert_eq!(powers, [Some(100.0), Some(101.0), Some(102.0), None, None]);
    let mut reader = one_reader(&config(files.write("a.jsonl", &recording(3))));
    let readings = reader.round(&at(0)).expect("a round");
    assert_eq!(readings.at, at(0).at, "now, not when it was recorded");
    let resource = &readings.resources[0].resource;
    for (name, value) in [
        (attribute::ORIGIN, "recorded"),
        (attribute::CLUSTER, "recorded"),
        (attribute::NODE, "shown"),
        (attribute::SOURCE, "recorded"),
        (attribute::GPU_MODEL, "NVIDIA H200"),
        (attribute::RECORDING_SAMPLES, "3"),
        (attribute::RECORDING_READER, "nvml"),
        (attribute::RECORDING_TAKEN_AT, "1700000000"),
    ] {
        assert_eq!(resource.attribute(name), Some(value), "{name}");
    }
    assert_ne!(resource.id.as_ref(), "GPU-1");
    assert_eq!(readings.resources[0].samples.len(), 3);
}

#[test]
fn a_compressed_recording_plays_the_same() {
    let files = Files::new();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&recording(70)).expect("memory");
    let file = files.write("a.jsonl.gz", &encoder.finish().expect("memory"));
    let mut reader = one_reader(&config(file));
    assert_eq!(reader.source.samples, 70);
    let last = (0..70)
        .map(|second| reader.round(&at(second)).expect("a round"))
        .last();
    assert_eq!(value(&last.expect("one"), &gpu::POWER), Some(169.0));
}

#[test]
fn speed_skips_rounds_but_not_events_and_keeps_the_newest_reading() {
    let files = Files::new();
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    for second in 0..10 {
        let mut readings = readings(second);
        readings.events.push(Event {
            at: readings.at,
            kind: EventKind::Xid,
            severity: Severity::Error,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-1".into(),
            message: "XID 79 on GPU-1 of recorded".to_owned(),
            attributes: BTreeMap::from([
                ("xid".to_owned(), "79".to_owned()),
                ("user".to_owned(), "ada".to_owned()),
            ]),
        });
        writer.round("nvml", &readings).expect("memory");
    }
    let mut config = config(files.write("a.jsonl", &writer.into_inner()));
    config.speed = 4.0;
    let mut reader = one_reader(&config);
    reader.round(&at(0)).expect("a round");
    let readings = reader.round(&at(1)).expect("a round");
    assert_eq!(value(&readings, &gpu::POWER), Some(104.0));
    assert_eq!(readings.events.len(), 4);
    let event = &readings.events[0];
    assert_eq!(event.at, at(1).at);
    assert!(event.message.starts_with("XID 79 on GPU-") && event.message.ends_with(" of shown"));
    assert_eq!(event.attributes.keys().collect::<Vec<_>>(), ["xid"]);
}

#[test]
fn a_repeated_recording_begins_again_and_its_counters_go_on() {
    let files = Files::new();
    let mut config = config(files.write("a.jsonl", &recording(3)));
    config.repeat = true;
    let mut reader = one_reader(&config);
    let rounds = (0..9).map(|second| reader.round(&at(second)).expect("a round"));
    let rounds: Vec<Readings> = rounds.collect();
    let powers: Vec<_> = rounds.iter().map(|it| value(it, &gpu::POWER)).collect();
    let lap = [Some(100.0), Some(101.0), Some(102.0)];
    assert_eq!(powers, [lap, lap, lap].concat());
    let energies: Vec<_> = rounds
        .iter()
        .filter_map(|it| value(it, &gpu::ENERGY))
        .collect();
    assert!(energies.is_sorted(), "{energies:?}");
    assert_eq!(energies[8], 1060.0);
}

#[test]
fn two_playbacks_of_one_recording_never_share_an_id() {
    let files = Files::new();
    let file = files.write("a.jsonl", &recording(1));
    let mut both = config(file.clone());
    both.files.push(file.clone());
    let ids = |config: &RecordedConfig| -> Vec<String> {
        let readers = recordings(config, Path::new("")).expect("readers");
        let rounds = readers
            .into_iter()
            .map(|mut it| it.round(&at(0)).expect("a round"));
        rounds
            .map(|it| it.resources[0].resource.id.to_string())
            .collect()
    };
    let first = ids(&both);
    assert_ne!(first[0], first[1]);
    assert_eq!(first, ids(&both), "and the same after a restart");
    both.node = String::new();
    let by_file_name = ids(&both);
    assert_ne!(by_file_name[0], by_file_name[1]);
}

#[test]
fn a_cut_or_damaged_recording_plays_what_is_whole_and_tells_the_line() {
    let files = Files::new();
    let whole = recording(70);
    let text = String::from_utf8(whole.clone()).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let mut damaged = lines.clone();
    damaged[5] = "{\"at_ns\":";
    damaged[7] = "";
    let mut lost_definition = lines.clone();
    lost_definition[1] = "{}";
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&whole).expect("memory");
    let zipped = encoder.finish().expect("memory");
    // Samples that play, damaged lines, and what the first problem says.
    let cases: [(&str, Vec<u8>, usize, usize, &str); 4] = [
        (
            "cut",
            whole[..whole.len() - 20].to_vec(),
            69,
            1,
            "line 71: ",
        ),
        (
            "damaged",
            damaged.join("\n").into_bytes(),
            68,
            2,
            "line 6: ",
        ),
        (
            "undefined",
            lost_definition.join("\n").into_bytes(),
            10,
            60,
            "line 2: ",
        ),
        (
            "zip",
            zipped[..zipped.len() * 3 / 4].to_vec(),
            1,
            1,
            "the file breaks off here",
        ),
    ];
    for (name, bytes, samples, damaged, problem) in cases {
        let file = files.write(name, &bytes);
        let source = Source::open(&file, &[]).expect(name);
        if name == "zip" {
            assert!((1..70).contains(&source.samples), "{}", source.samples);
        } else {
            assert_eq!(source.samples, samples, "{name}: {:?}", source.problems);
        }
        assert_eq!(source.damaged, damaged, "{name}: {:?}", source.problems);
        assert!(
            source.problems[0].contains(problem),
            "{name}: {:?}",
            source.problems
        );
        assert_eq!(
            source.play().expect("there").count(),
            source.samples,
            "{name}"
        );
    }
}

#[test]
fn a_file_that_gives_nothing_is_refused_with_its_reason() {
    let files = Files::new();
    let newer = "{\"gpufleet_recording\":2,\"taken_at_seconds\":null,\"agent_version\":\"9\",\"node\":\"n\"}\n";
    let empty = newer.replace(":2,", ":1,");
    let cases = [
        (
            "newer.jsonl",
            newer.to_owned(),
            "version 2; this agent reads up to 1",
        ),
        ("empty.jsonl", empty, "has no round"),
        (
            "other.json",
            "{\"hello\":1}\n".to_owned(),
            "does not begin with the header",
        ),
        (
            "text.metrics",
            "up 1\n".to_owned(),
            "no table reads it: 1 series unknown",
        ),
        ("nothing", String::new(), "no table reads it"),
        (
            "bad.xml",
            "<?xml version=\"1.0\"?><a></a>".to_owned(),
            "nvidia_smi_log",
        ),
    ];
    for (name, text, why) in cases {
        let file = files.write(name, text.as_bytes());
        let error = Source::open(&file, &table::shipped())
            .expect_err(name)
            .to_string();
        assert!(
            error.contains(why) && error.contains(name),
            "{error} for {why}"
        );
    }
    let error = Source::open(Path::new("/nowhere"), &[]).expect_err("absent");
    assert!(error.to_string().contains("/nowhere: cannot be read"));
}

#[test]
fn a_capture_is_shown_as_one_sample_once_or_for_ever() {
    let files = Files::new();
    let text =
        "DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-0\",pci_bus_id=\"00000000:53:00.0\"} 70\n";
    let mut config = config(files.write("capture.metrics", text.as_bytes()));
    for (repeat, expected) in [(false, [Some(70.0), None, None]), (true, [Some(70.0); 3])] {
        config.repeat = repeat;
        let mut reader = one_reader(&config);
        let rounds: Vec<Readings> = (0..3)
            .map(|it| reader.round(&at(it)).expect("a round"))
            .collect();
        let powers: Vec<_> = rounds.iter().map(|it| value(it, &gpu::POWER)).collect();
        assert_eq!(powers, expected, "repeat = {repeat}");
        let resource = &rounds[0].resources[0].resource;
        assert_eq!(resource.attribute(attribute::RECORDING_SAMPLES), Some("1"));
        assert_eq!(
            resource.id.as_ref(),
            "shown/00000000:53:00.0",
            "the UUID was null"
        );
    }
}

#[test]
fn a_wrong_config_names_its_key() {
    let files = Files::new();
    let file = files.write("a.jsonl", &recording(1));
    let change = |change: fn(&mut RecordedConfig)| {
        let mut config = config(file.clone());
        change(&mut config);
        config
    };
    let cases = [
        (
            change(|it| it.cluster = "prod".to_owned()),
            "recorded.cluster",
        ),
        (change(|it| it.speed = 0.0), "recorded.speed"),
        (change(|it| it.speed = f64::NAN), "recorded.speed"),
        (change(|it| it.speed = 1e9), "recorded.speed"),
        (
            change(|it| it.files = vec![PathBuf::from("a"); MAX_FILES + 1]),
            "recorded.files",
        ),
    ];
    for (config, key) in cases {
        let error = recordings(&config, Path::new(""))
            .expect_err(key)
            .to_string();
        assert!(error.contains(key), "{error}");
    }
    let own = change(|it| it.cluster = "lab-recorded".to_owned());
    assert_eq!(recordings(&own, Path::new("")).expect("right").len(), 1);
    assert!(
        recordings(&RecordedConfig::default(), Path::new(""))
            .expect("none")
            .is_empty()
    );
}

#[test]
fn the_flags_are_a_config_that_plays_back_and_reads_nothing_else() {
    let flags = Flags {
        playback: Some("/a \"b\".jsonl".into()),
        node: Some("shown".to_owned()),
        speed: Some(4.0),
        repeat: true,
    };
    let sources = Sources {
        set: flags.settings(),
        ..Sources::default()
    };
    let config: Config = sources.load().expect("right settings");
    assert_eq!(config.recorded.files, [PathBuf::from("/a \"b\".jsonl")]);
    assert_eq!(
        (config.recorded.node.as_str(), config.recorded.speed),
        ("shown", 4.0)
    );
    assert!(config.recorded.repeat && !config.nvml.enabled && !config.host.enabled);
    assert!(!config.exporter.auto);
    assert!(Flags::default().settings().is_empty());
}
