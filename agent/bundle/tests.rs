//! What goes into a bundle, and what does not.

use std::io::Read as _;

use flate2::read::GzDecoder;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::sample::Missing;

use super::*;

const AT: Timestamp = Timestamp::from_seconds(1_795_000_000);

fn gpu_resource(uuid: &str, serial: &str) -> Resource {
    Resource::new(ResourceKind::Gpu, uuid)
        .with(attribute::SERIAL, serial)
        .with(attribute::VBIOS_VERSION, "96.00.74.00.01")
        .with(attribute::DRIVER_VERSION, "580.95.05")
        .with(attribute::HOLDER, "pod:secret-team/llama-0")
        .with(attribute::NAMESPACE, "secret-team")
        .with(format!("{}owner", attribute::LABEL_PREFIX).as_str(), "ada")
        .with(attribute::CLUSTER, "secret-cluster")
}

fn readings() -> Readings {
    let sample = |metric: gpufleet_telemetry::catalog::MetricId, reading: Reading| Sample {
        metric,
        part: None,
        reading,
    };
    let card = |uuid: &str, serial: &str| ResourceSamples {
        resource: Arc::new(gpu_resource(uuid, serial)),
        samples: vec![
            sample(gpu::ECC_UNCORRECTED_AGGREGATE.id, Ok(3.0)),
            sample(gpu::REMAPPED_UNCORRECTABLE.id, Err(Missing::NotSupported)),
            Sample {
                part: Some(Part::new(PartKind::Process, "4711")),
                ..sample(gpu::POWER.id, Ok(1.0))
            },
        ],
    };
    let rank = Resource::new(ResourceKind::Rank, "secret-team/llama/u/0/3");
    Readings {
        at: AT,
        resources: vec![
            card("GPU-1", "1650001"),
            card("GPU-2", "1650002"),
            ResourceSamples {
                resource: Arc::new(rank),
                samples: Vec::new(),
            },
        ],
        events: vec![Event {
            at: AT,
            kind: EventKind::Xid,
            severity: Severity::Error,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-1".into(),
            message: "XID 79 in the process train-secret".to_owned(),
            attributes: [
                ("xid".to_owned(), "79".to_owned()),
                ("process".to_owned(), "train-secret".to_owned()),
            ]
            .into(),
        }],
    }
}

fn taken() -> Taken {
    Taken {
        rounds: vec![("nvml".to_owned(), without_people(&readings()))],
        failed: Vec::new(),
    }
}

#[test]
fn a_card_is_told_with_its_numbers_and_nothing_of_who_uses_it() {
    let taken = taken();
    let cards = Value::Array(cards(&taken.rounds));
    let first = &cards[0];
    assert_eq!(first["uuid"], "GPU-1");
    assert_eq!(first["serial_number"], "1650001");
    assert_eq!(first["vbios"], "96.00.74.00.01");
    let readings = &first["readings"];
    assert_eq!(readings[gpu::ECC_UNCORRECTED_AGGREGATE.name], 3.0);
    assert_eq!(
        readings[gpu::REMAPPED_UNCORRECTABLE.name]["missing"],
        "not_supported"
    );
    let recording = recording(&taken.rounds, AT).expect("it is in memory");
    let all = cards.to_string() + &String::from_utf8(recording).expect("it is text");
    for word in ["secret", "ada", "4711"] {
        assert!(!all.contains(word), "{word} is in {all}");
    }
    assert!(all.contains("\"xid\":\"79\""), "{all}");
}

#[test]
fn only_the_named_cards_go_in_and_one_that_is_not_there_is_refused() {
    let mut one = taken();
    one.keep_only(&["1650002".to_owned()]).expect("it is there");
    let cards = Value::Array(cards(&one.rounds));
    assert_eq!(cards.as_array().map(Vec::len), Some(1));
    assert_eq!(cards[0]["uuid"], "GPU-2");
    assert_eq!(one.rounds[0].1.events, [], "it is another's");
    let error = taken().keep_only(&["1650003".to_owned()]);
    let error = error.expect_err("there is none").to_string();
    assert!(error.contains("--gpu 1650003"), "{error}");
}

#[test]
fn a_recording_that_is_too_long_is_cut_at_a_line_and_that_is_said() {
    let mut readings = readings();
    readings.events[0].message = "x".repeat(1 << 20);
    let rounds = vec![("nvml".to_owned(), readings); MAX_FILE_BYTES / (1 << 20) + 1];
    let recording = recording(&rounds, AT).expect("it is in memory");
    let kept = shortened(&recording);
    assert!(kept.len() <= MAX_FILE_BYTES && kept.len() > MAX_FILE_BYTES / 2);
    assert_eq!(kept.last(), Some(&b'\n'));
    let whole = vec![b'\n'; MAX_FILE_BYTES];
    assert_eq!(shortened(&whole).len(), MAX_FILE_BYTES);
    let files = [("readings.jsonl", recording), ("doctor.txt", whole)];
    let said = String::from_utf8(about(&taken(), &files, AT)).expect("it is text");
    assert!(
        said.contains("Cut at 16777216 bytes: readings.jsonl\n"),
        "{said}"
    );
    assert!(!said.contains("bytes: doctor.txt"), "{said}");
}

/// The files of an archive, by name.
fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).expect("it was written");
    GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .expect("it is gzip");
    let (mut files, mut place) = (BTreeMap::new(), 0);
    while bytes[place] != 0 {
        let text = |from: usize, to: usize| {
            let field = &bytes[place + from..place + to];
            let field = String::from_utf8_lossy(field);
            field.trim_end_matches(['\0', ' ']).to_owned()
        };
        let size = usize::from_str_radix(&text(124, 136), 8).expect("it is octal");
        let name = text(0, 100);
        let body = &bytes[place + 512..place + 512 + size];
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        files.insert(name, String::from_utf8_lossy(body).into_owned());
        place += 512 + size.div_ceil(512) * 512;
    }
    files
}

#[tokio::test(start_paused = true)]
async fn a_bundle_of_a_machine_without_gpus_says_what_was_not_read_and_is_not_written_over() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(root.path().join("dev")).expect("a folder");
    let log = "4,1,5000000,-;NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.\n";
    std::fs::write(root.path().join("dev/kmsg"), log).expect("a file");
    let mut config = Config::for_tests();
    config.host.enabled = true;
    config.listen.address = "127.0.0.1:1".to_owned();
    let arguments = Arguments {
        output: root.path().join("node.tar.gz"),
        gpus: Vec::new(),
        seconds: 2,
    };
    let written = put_together(&config, &arguments, root.path()).await;
    written.expect("it can be written");
    let files = unpacked(&arguments.output);
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "README.txt",
            "agent.json",
            "doctor.txt",
            "gpus.json",
            "readings.jsonl",
            "xids.txt"
        ]
    );
    assert!(files["xids.txt"].contains("Xid (PCI:0000:53:00): 79"));
    assert!(
        files["agent.json"].contains("no agent answers"),
        "{}",
        files["agent.json"]
    );
    assert!(files["doctor.txt"].contains("what works here"));
    assert!(files["README.txt"].contains("no holders"));
    let again = put_together(&config, &arguments, root.path()).await;
    let error = format!("{:#}", again.expect_err("it is there"));
    assert!(error.contains("cannot create"), "{error}");
    let mode = std::fs::metadata(&arguments.output).expect("it is there");
    let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions());
    assert_eq!(mode & 0o777, 0o600);
}
