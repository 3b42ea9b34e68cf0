//! What is fuzzed: everything that reads bytes of others. A target takes bytes and panics where it takes
//! something for what it is not; that it refuses is right.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::time::Duration;

use gpufleet_agent::attribute::{bytes, kubelet};
use gpufleet_agent::read::exporter::{map, table, text};
use gpufleet_agent::read::recorded::format::Decoder;
use gpufleet_agent::sample::Round;
use gpufleet_hooks_shm::reader::Reader;
use gpufleet_hooks_shm::records::Step;
use gpufleet_hooks_shm::words::WriterKind;
use gpufleet_hooks_shm::writer::Writer;
use gpufleet_spool::disk::Disk as _;
use gpufleet_spool::sim::SimDisk;
use gpufleet_spool::{Limits as SpoolLimits, Spool};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Epoch, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{ALL_SECONDS, Aggregate, MinuteRow};
use gpufleet_telemetry::otlp::{self, Encoding, Limits};
use gpufleet_telemetry::sample::{Readings, ResourceSamples, Sample};
use gpufleet_telemetry::steps;
use gpufleet_telemetry::tick::{Point, PointValue, ResourceTick};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message as _;
use uuid::Uuid;

/// One reader of bytes.
pub(crate) struct Target {
    /// The folder of its corpus.
    pub(crate) name: &'static str,
    /// Gives it bytes; whether it understood them.
    pub(crate) take: fn(&[u8]) -> bool,
    /// What it must understand: the first inputs of its corpus, by name.
    pub(crate) seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
}

/// Every one of them.
pub(crate) const TARGETS: [Target; 18] = [
    Target {
        name: "otlp_protobuf",
        take: otlp_protobuf,
        seeds: || vec![("a_tick", tick().encode_to_vec())],
    },
    Target {
        name: "otlp_json",
        take: otlp_json,
        seeds: || {
            let text = serde_json::to_vec(&tick()).expect("OTLP is JSON");
            vec![("a_tick", text)]
        },
    },
    Target {
        name: "otlp_logs",
        take: otlp_logs,
        seeds: || {
            let node = Resource::new(ResourceKind::Node, "node-1");
            let blocks = steps::decode(&packed_steps()).expect("packed here");
            let ranks = [("ns/job/1/0/0", blocks.as_slice())];
            let request = otlp::encode_steps(ranks, &node);
            vec![("steps", request.encode_to_vec())]
        },
    },
    Target {
        name: "exposition",
        take: exposition,
        seeds: || {
            let text = "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n\
                DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-1\",modelName=\"NVIDIA \\\"H\\\" 200\"} 3e2 17\n\
                vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} NaN\n";
            vec![("dcgm_and_vllm", text.into())]
        },
    },
    Target {
        name: "spool",
        take: spool,
        seeds: || vec![("three_records", segment())],
    },
    Target {
        name: "recording",
        take: recording,
        seeds: || {
            let text = "{\"gpufleet_recording\":1,\"taken_at_seconds\":1700000000,\"agent_version\":\"0.1.0\",\"node\":\"n\"}\n\
                {\"at_ns\":1700000000000000000,\"reader\":\"nvml\",\"define\":[{\"number\":0,\"kind\":\"gpu\",\"id\":\"GPU-1\",\"attributes\":{}}],\"samples\":[{\"of\":0,\"metric\":20,\"value\":1.5}]}\n";
            vec![("a_round", text.into())]
        },
    },
    Target {
        name: "minute_and_steps",
        take: minute_and_steps,
        seeds: || vec![("row", packed_row()), ("steps", packed_steps())],
    },
    Target {
        name: "shm_region",
        take: shm_region,
        seeds: || vec![("a_patch", [40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0].into())],
    },
    Target {
        name: "scontrol",
        take: bytes::scontrol,
        seeds: || {
            let text = "{\"jobs\":[{\"account\":\"ml\",\"name\":\"train\",\"user_name\":\"ada\"}],\"errors\":[]}";
            vec![("a_job", text.into())]
        },
    },
    Target {
        name: "scontrol_squeue",
        take: bytes::scontrol_squeue,
        seeds: || {
            let node = "{\"nodes\":[{\"name\":\"n1\",\"gres\":\"gpu:h100:4(S:0-1)\",\
                \"gres_used\":\"gpu:h100:3(IDX:0-1,3),shard:0\"}]}";
            let job = "{\"jobs\":[{\"job_id\":77,\"job_state\":[\"RUNNING\"],\"nodes\":\"n[1-2,04],x1\",\
                \"gres_detail\":[\"gpu:h100:2(IDX:0-1)\",\"gpu:2(IDX:3,5)\",null,\"\"]}]}";
            vec![("a_node", node.into()), ("a_job", job.into())]
        },
    },
    Target {
        name: "watch_line",
        take: bytes::watch_line,
        seeds: || {
            let text = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"b\",\"uid\":\"c\",\
                \"resourceVersion\":\"7\",\"labels\":{\"team\":\"nlp\"},\"ownerReferences\":[{\"kind\":\"Job\",\
                \"name\":\"j\",\"controller\":true}]},\"status\":{\"phase\":\"Running\"}}}";
            vec![("a_pod", text.into())]
        },
    },
    Target {
        name: "cluster_line",
        take: gpufleet_server::inventory::kubernetes::understands,
        seeds: || {
            let pod = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"b\",\"uid\":\"c\"},\
                \"spec\":{\"containers\":[{\"resources\":{\"limits\":{\"nvidia.com/gpu\":\"8\"}}}]},\
                \"status\":{\"conditions\":[{\"type\":\"PodScheduled\",\"status\":\"False\",\"message\":\"0/3\"}]}}}";
            let node = "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"n\"},\"spec\":{\"taints\":[{\"key\":\"k\",\
                \"effect\":\"NoSchedule\"}]},\"status\":{\"capacity\":{\"nvidia.com/gpu\":\"8\"},\"conditions\":[]}}}";
            vec![("a_pod", pod.into()), ("a_node", node.into())]
        },
    },
    Target {
        name: "sinfo_squeue",
        take: gpufleet_server::inventory::slurm::understands,
        seeds: || {
            let nodes = "{\"sinfo\":[{\"node\":{\"state\":[\"IDLE\",\"DRAIN\"]},\"nodes\":{\"nodes\":[\"n1\"]},\
                \"gres\":{\"total\":\"gpu:l40s:4(S:0,1)\",\"used\":\"gpu:l40s:1(IDX:0)\"}}]}";
            let jobs = "{\"jobs\":[{\"job_id\":7,\"job_state\":[\"PENDING\"],\"tres_req_str\":\"cpu=2,gres/gpu=4\",\
                \"submit_time\":{\"set\":true,\"number\":1755290346}}]}";
            vec![("a_node", nodes.into()), ("a_job", jobs.into())]
        },
    },
    Target {
        name: "kubelet_list",
        take: bytes::kubelet_list,
        seeds: || {
            vec![
                ("a_gpu", kubelet_list()),
                ("replicas", kubelet_allocatable()),
            ]
        },
    },
    Target {
        name: "process_files",
        take: bytes::process_files,
        seeds: || {
            let stat = format!("77 (a) b) S {}500 0", "0 ".repeat(18));
            let cgroup = "0::/system.slice/slurmstepd.scope/job_77/step_0";
            let text = format!("{stat}\n/usr/bin/python3\0--token=x\n{cgroup}\n");
            vec![("of_a_job", text.into())]
        },
    },
    Target {
        name: "prolog_file",
        take: bytes::prolog_file,
        seeds: || vec![("two_jobs", "77\n78\n".into())],
    },
    Target {
        name: "proc_net_tcp",
        take: gpufleet_agent::read::hooks::nccl_ras::understands_list,
        seeds: || {
            let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1\n";
            vec![("one_listens", text.into())]
        },
    },
    Target {
        name: "under_way",
        take: gpufleet_agent::under_way::understands,
        seeds: || vec![("a_round", under_way())],
    },
];

fn limits() -> Limits {
    Limits::default()
}

fn otlp_protobuf(bytes: &[u8]) -> bool {
    let request = otlp::parse::<ExportMetricsServiceRequest>(Encoding::Protobuf, bytes);
    request.is_ok_and(has_points)
}

fn otlp_json(bytes: &[u8]) -> bool {
    let request = otlp::parse::<ExportMetricsServiceRequest>(Encoding::Json, bytes);
    request.is_ok_and(has_points)
}

fn has_points(request: ExportMetricsServiceRequest) -> bool {
    let decoded = otlp::decode_metrics(request, &limits());
    decoded.resources.iter().any(|it| !it.points.is_empty())
}

fn otlp_logs(bytes: &[u8]) -> bool {
    let parsed = [Encoding::Protobuf, Encoding::Json]
        .map(|encoding| otlp::parse::<ExportLogsServiceRequest>(encoding, bytes));
    let decoded = parsed.map(|it| it.map(|it| otlp::decode_events(it, &limits())));
    let tells = |it: &otlp::DecodedEvents| !it.events.is_empty() || !it.steps.is_empty();
    decoded.iter().flatten().any(tells)
}

fn exposition(bytes: &[u8]) -> bool {
    let body = String::from_utf8_lossy(bytes);
    let parsed = text::parse(&body);
    let mut mapper = map::Mapper::new(table::shipped().into(), "node", "target");
    let mapped = mapper.map(&parsed.series);
    mapped.resources.iter().any(|it| !it.samples.is_empty())
}

fn recording(bytes: &[u8]) -> bool {
    let body = String::from_utf8_lossy(bytes);
    let mut lines = body.lines();
    let mut decoder = Decoder::default();
    let has_header = Decoder::header(lines.next().unwrap_or_default()).is_ok();
    let mut has_samples = false;
    for line in lines {
        let round = decoder.round(line);
        has_samples |= round.is_ok_and(|it| it.resources.iter().any(|it| !it.samples.is_empty()));
    }
    has_header && has_samples
}

/// What is understood is understood again when it is written anew.
fn minute_and_steps(bytes: &[u8]) -> bool {
    let row = MinuteRow::unpack(bytes);
    if let Ok(row) = &row {
        let again = MinuteRow::unpack(&row.pack());
        assert!(
            again.is_ok(),
            "a row that was read cannot be written: {again:?}"
        );
    }
    let blocks = steps::decode(bytes);
    if let Ok(blocks) = &blocks {
        let again = steps::decode(&steps::encode(blocks)).expect("what was read can be written");
        let numbers = |blocks: &[steps::StepBlock]| -> Vec<u64> {
            blocks.iter().map(|it| it.first_step).collect()
        };
        assert_eq!(numbers(&again), numbers(blocks), "other steps come back");
    }
    row.is_ok() || blocks.is_ok()
}

const NOW: Timestamp = Timestamp::from_seconds(1_700_000_000);

fn open(disk: &SimDisk) -> Option<Spool<SimDisk>> {
    let epoch = Epoch(Uuid::from_u128(7));
    let opened = Spool::open(disk.clone(), SpoolLimits::default(), epoch, NOW);
    opened.ok().map(|(spool, _)| spool)
}

/// The folder and name of a spool's segment, and what is in it.
fn segment_of(disk: &SimDisk) -> (String, String, Vec<u8>) {
    let mut spool = open(disk).expect("an empty disk");
    for number in 0..3_u8 {
        let payload = vec![number; 20];
        spool.append(Stream::Metrics, &payload, NOW).expect("room");
    }
    spool.sync().expect("a disk that works");
    drop(spool);
    let folders = disk.folders().expect("it works");
    let folder = folders.into_iter().next().expect("an epoch has one");
    let files = disk.files(&folder).expect("it works");
    let file = files.into_iter().next().expect("it has a segment");
    let bytes = disk.read(&folder, &file, 0, 1 << 20).expect("it works");
    (folder, file, bytes)
}

fn segment() -> Vec<u8> {
    segment_of(&SimDisk::new(1)).2
}

fn spool(bytes: &[u8]) -> bool {
    let disk = SimDisk::new(1);
    let (folder, file, _) = segment_of(&disk);
    disk.remove(&folder, &file).expect("it works");
    let mut written = disk.create(&folder, &file).expect("it works");
    disk.append(&mut written, bytes).expect("there is room");
    disk.sync(&mut written).expect("it works");
    drop(written);
    let Some(mut spool) = open(&disk) else {
        return false;
    };
    let mut records = 0;
    for epoch in spool.epochs().collect::<Vec<_>>() {
        let mut seq = 1;
        while let Ok(Some(record)) = spool.get(epoch, Stream::Metrics, seq) {
            assert!(record.seq >= seq, "a record of before comes again");
            seq = record.seq + 1;
            records += 1;
        }
    }
    let appended = spool.append(Stream::Metrics, b"after", NOW);
    assert!(
        appended.is_ok(),
        "nothing can be spooled any more: {appended:?}"
    );
    records == 3
}

/// A region that a writer made, and what was in it then. There is one: a process maps its regions for good.
static REGION: Mutex<Option<(File, Vec<u8>)>> = Mutex::new(None);

/// Pieces of 12 bytes: where, and which 8 bytes a hostile client writes there.
fn shm_region(bytes: &[u8]) -> bool {
    let mut region = REGION.lock().unwrap_or_else(|error| error.into_inner());
    let (file, whole) = region.get_or_insert_with(|| {
        let writer = Writer::create(WriterKind::Python).expect("a memory file");
        writer.step(&Step::default());
        let file = File::from(writer.file().expect("it has a region"));
        let mut whole = vec![0; file.metadata().expect("a file").len() as usize];
        file.read_exact_at(&mut whole, 0).expect("it is whole");
        (file, whole)
    });
    file.write_all_at(whole, 0).expect("it may be written");
    for piece in bytes.chunks_exact(12) {
        let (place, value) = piece.split_at(4);
        let place = u32::from_le_bytes(place.try_into().expect("4 bytes")) as usize;
        let place = place % (whole.len() - value.len());
        file.write_all_at(value, place as u64)
            .expect("it may be written");
    }
    let mut reader = Reader::new(&*file).expect("it is sealed and of the right size");
    let twice = [(); 2].map(|()| reader.snapshot(NOW.0));
    twice.iter().all(Result::is_ok)
}

/// Two replicas of a GPU, as the kubelet can give them out.
fn kubelet_allocatable() -> Vec<u8> {
    let devices = kubelet::ContainerDevices {
        resource_name: "nvidia.com/gpu".to_owned(),
        device_ids: vec!["GPU-1::0".to_owned(), "GPU-1::1".to_owned()],
    };
    let answer = kubelet::AllocatableResponse {
        devices: vec![devices],
    };
    answer.encode_to_vec()
}

/// A pod with a GPU, as the kubelet lists it.
fn kubelet_list() -> Vec<u8> {
    let devices = kubelet::ContainerDevices {
        resource_name: "nvidia.com/gpu".to_owned(),
        device_ids: vec!["GPU-1".to_owned()],
    };
    let container = kubelet::ContainerResources {
        name: "main".to_owned(),
        devices: vec![devices],
        ..Default::default()
    };
    let pod = kubelet::PodResources {
        name: "a".to_owned(),
        namespace: "b".to_owned(),
        containers: vec![container],
    };
    let list = kubelet::ListResponse {
        pod_resources: vec![pod],
    };
    list.encode_to_vec()
}

/// A round of a reader, as it is kept until its tick is spooled.
fn under_way() -> Vec<u8> {
    let second = Duration::from_secs(1);
    let resource = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::NODE, "node-1");
    let sample = Sample {
        metric: gpu::POWER.id,
        part: None,
        reading: Ok(300.0),
    };
    let round = Round {
        reader: 0,
        at: NOW,
        result: Ok(Readings {
            at: NOW,
            resources: vec![ResourceSamples {
                resource: resource.into(),
                samples: vec![sample],
            }],
            events: Vec::new(),
        }),
        duration: second,
    };
    gpufleet_agent::under_way::record("node-1", "nvml", second, second * 10, &round)
        .expect("it worked")
}

/// A tick of one GPU as an agent sends it.
fn tick() -> ExportMetricsServiceRequest {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::NODE, "node-1");
    let point = |metric, value| Point {
        metric,
        part: None,
        value,
    };
    let tick = ResourceTick {
        resource: resource.into(),
        start: NOW,
        end: NOW.shifted(10_000_000_000),
        points: vec![
            point(
                gpu::POWER.id,
                PointValue::Gauge {
                    value: 300.0,
                    max: Some(310.0),
                },
            ),
            point(
                gpu::ENERGY.id,
                PointValue::Counter {
                    value: 9e6,
                    since: NOW,
                },
            ),
            point(gpu::OBSERVED.id, PointValue::SecondBits(0x3ff)),
        ],
    };
    otlp::encode_metrics(&[tick])
}

fn packed_row() -> Vec<u8> {
    let mut row = MinuteRow::default();
    row.bitmaps.set(gpu::OBSERVED.id, ALL_SECONDS);
    row.add(
        gpu::POWER.id,
        Aggregate::of_gauge(300.0, None).expect("finite"),
    );
    row.pack()
}

fn packed_steps() -> Vec<u8> {
    let mut packer = steps::Packer::default();
    for step in 1..=5 {
        let record = steps::StepRecord {
            step,
            ended_at: NOW.shifted(step.cast_signed() * 1_000_000_000),
            times: steps::StepTimes {
                wall_ns: 1_000_000_000,
                busy_ns: 900_000_000 + step * 1_000_000,
                ..steps::StepTimes::default()
            },
            ..steps::StepRecord::default()
        };
        assert!(packer.push(record), "five wait");
    }
    steps::encode(&packer.take(true))
}
