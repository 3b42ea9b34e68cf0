//! The reader as a whole, on machines that are folders.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::catalog::{Metric, gpu, own};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind};
use gpufleet_telemetry::sample::{ResourceSamples, Sample};
use gpufleet_telemetry::time::Clock as _;

use super::exported::Device;
use super::names::stand_in;
use super::*;
use crate::read::exporter::holder::{Pod, Said};

/// A config that asks nobody outside of `root`.
fn config(root: &Path) -> Config {
    let mut config = Config::for_tests();
    config.attribute.enabled = true;
    config.attribute.kubelet_socket = root.join("pod-resources/kubelet.sock");
    config.attribute.slurm_jobs_folder = root.join("jobs");
    config.attribute.scontrol_path = root.join("no-scontrol");
    config.attribute.squeue_path = root.join("no-squeue");
    config.node.metadata_server = String::new();
    config.host.proc_folder = root.join("proc");
    config
}

/// The reader on a machine whose files are under `root`; it is in no pod, wherever the test runs.
fn reader(root: &Path, config: &Config, users: Arc<Users>) -> Attribution {
    let mut reader = Attribution::new(config, users).expect("it is enabled");
    reader.root = root.to_owned();
    reader.getent = root.join("getent");
    reader.is_in_pod = false;
    reader
}

/// GPU 0 with these processes on it.
fn users(processes: &[&str]) -> Arc<Users> {
    let users: Arc<Users> = Arc::default();
    let resource = Resource::new(ResourceKind::Gpu, "GPU-0").with(attribute::GPU_INDEX, "0");
    let listed = processes.iter().map(|id| Sample {
        metric: gpu::PROCESS_MEMORY.id,
        part: Some(Part::new(PartKind::Process, *id)),
        reading: Ok(1.0),
    });
    let count = Sample {
        metric: gpu::PROCESSES.id,
        part: None,
        reading: Ok(processes.len() as f64),
    };
    users.note(&[ResourceSamples {
        resource: Arc::new(resource),
        samples: listed.chain([count]).collect(),
    }]);
    users
}

async fn read(reader: &mut Attribution) -> Readings {
    let clock = SystemClock::start();
    let turn = Turn {
        at: clock.now(),
        monotonic: clock.monotonic(),
        node: Arc::new(NodeFacts::for_tests()),
    };
    reader.read(turn).await.expect("it never fails as a whole")
}

fn resource(readings: &Readings, kind: ResourceKind) -> &Resource {
    let mut all = readings.resources.iter();
    &all.find(|it| it.resource.kind == kind)
        .expect("it is told of")
        .resource
}

/// Process 77, of this user.
fn process_of(root: &Path, uid: u32) {
    let folder = root.join("proc/77");
    fs::create_dir_all(&folder).expect("a folder");
    let stat = format!("77 (python3) S {}500 0", "0 ".repeat(18));
    let status = format!("Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
    let files = [
        ("stat", stat.as_str()),
        ("cgroup", "0::/user.slice\n"),
        ("cmdline", "python3\0train.py\0"),
        ("status", &status),
    ];
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("written");
    }
}

#[tokio::test]
async fn a_user_of_a_directory_is_a_number_until_it_says_his_name() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    process_of(root, 4_000_000_001);
    let mut reader = reader(root, &config(root), users(&["77"]));
    let number = "process:4000000001/python3";
    assert_eq!(said(&mut reader).await, number, "there is no getent");
    let getent = stand_in::getent(root, "echo 'ada:*:4000000001:1::/:/bin/sh'");
    let tasks = reader.tasks.as_mut().expect("a round began them");
    tasks.names = Some(Getent::within(&getent, stand_in::LONG));
    assert_eq!(said(&mut reader).await, number, "nobody waits for it");
    let tasks = reader.tasks.as_ref().expect("a round began them");
    let names = tasks.names.as_ref().expect("it is in no pod");
    while names.known().0.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(said(&mut reader).await, "process:ada/python3");
}

#[tokio::test]
async fn on_a_workstation_a_gpu_is_its_user_s_or_its_slurm_job_s() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    process_of(root, 0);
    let mut reader = reader(root, &config(root), users(&["77"]));
    let readings = read(&mut reader).await;
    let holder = |readings: &Readings| {
        let gpu = resource(readings, ResourceKind::Gpu);
        gpu.attribute(attribute::HOLDER).map(str::to_owned)
    };
    assert_eq!(holder(&readings).as_deref(), Some("process:root/python3"));
    fs::create_dir_all(root.join("jobs")).expect("a folder");
    fs::write(root.join("jobs/0"), "4711\n").expect("written");
    let readings = read(&mut reader).await;
    assert_eq!(holder(&readings).as_deref(), Some("slurm:4711"));
}

#[tokio::test]
async fn the_round_that_finds_a_new_job_says_whose_it_is_where_the_controller_answers_at_once() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let config = config(root);
    let log = root.join("asked");
    let answer =
        r#"{"jobs": [{"job_id": 77, "account": "ml", "user_name": "ada", "partition": "gpu"}]}"#;
    let script = format!("echo \"$3\" >>{}\necho '{answer}'", log.display());
    stand_in::program(&config.attribute.scontrol_path, &script);
    fs::create_dir_all(root.join("jobs")).expect("a folder");
    fs::write(root.join("jobs/0"), "77\n").expect("written");
    let mut reader = reader(root, &config, users(&[]));
    // A busy machine takes its time to start a program.
    reader.patience = stand_in::LONG;
    for _ in 0..3 {
        let readings = read(&mut reader).await;
        let gpu = resource(&readings, ResourceKind::Gpu);
        assert_eq!(gpu.attribute(attribute::HOLDER), Some("slurm:77"));
        assert_eq!(gpu.attribute(attribute::SLURM_ACCOUNT), Some("ml"));
    }
    let asked = fs::read_to_string(&log).expect("it was asked");
    assert_eq!(asked, "77\n", "for each job once");
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_does_not_answer_costs_a_new_job_its_owner_and_one_round_a_second() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let config = config(root);
    // It is ended with the reader.
    stand_in::program(&config.attribute.scontrol_path, "exec sleep 600");
    fs::create_dir_all(root.join("jobs")).expect("a folder");
    fs::write(root.join("jobs/0"), "77\n").expect("written");
    let mut reader = reader(root, &config, users(&[]));
    let began = Instant::now();
    assert_eq!(said(&mut reader).await, "slurm:77");
    assert!(began.elapsed() >= NEW_WITHIN);
    let began = Instant::now();
    assert_eq!(said(&mut reader).await, "slurm:77");
    assert!(began.elapsed() < NEW_WITHIN, "it was waited for once");
}

#[tokio::test]
async fn a_node_whose_kubelet_does_not_answer_has_gpus_of_nobody_knows_whom() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let config = config(root);
    fs::create_dir_all(root.join("pod-resources")).expect("a folder");
    let mut reader = reader(root, &config, users(&[]));
    let readings = read(&mut reader).await;
    let gpu = resource(&readings, ResourceKind::Gpu);
    let why = gpu.attribute(attribute::HOLDER_UNKNOWN).unwrap_or_default();
    assert!(why.starts_with("not_heard: the kubelet's socket"), "{why}");
    let failed = |it: &Readings| it.events.iter().map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(failed(&readings), [EventKind::ReaderFailed]);
    // It is told once, and stays so though the folder goes.
    fs::remove_dir(root.join("pod-resources")).expect("removed");
    let readings = read(&mut reader).await;
    assert_eq!(failed(&readings), []);
    let gpu = resource(&readings, ResourceKind::Gpu);
    assert!(gpu.attribute(attribute::HOLDER_UNKNOWN).is_some());
    let node = readings
        .resources
        .iter()
        .find(|it| it.resource.kind == ResourceKind::Node);
    let samples = &node.expect("the node").samples;
    let of = |metric: &Metric| {
        let found = samples.iter().find(|it| it.metric == metric.id)?;
        Some((found.part.as_ref()?.id.to_string(), found.reading))
    };
    let kubelet = ("kubelet".to_owned(), Ok(0.0));
    assert_eq!(of(&own::HOLDERS_ANSWER), Some(kubelet));
    assert_eq!(
        of(&own::HOLDERS_UNKNOWN),
        Some(("not_heard".to_owned(), Ok(1.0)))
    );
    assert_eq!(of(&own::HOLDERS_AGE), None, "it was never heard");
}

#[tokio::test]
async fn what_the_config_says_of_the_node_is_on_the_node() {
    let root = tempfile::tempdir().expect("a folder");
    let mut config = config(root.path());
    config.node.machine_type = "dgx-h100".to_owned();
    config.node.provisioning = "reserved".to_owned();
    let mut reader = reader(root.path(), &config, users(&[]));
    let readings = read(&mut reader).await;
    let node = resource(&readings, ResourceKind::Node);
    assert_eq!(node.attribute(attribute::MACHINE_TYPE), Some("dgx-h100"));
    assert_eq!(node.attribute(attribute::PROVISIONING), Some("reserved"));
    assert_eq!(node.attribute(attribute::REGION), None);
    let gpu = resource(&readings, ResourceKind::Gpu);
    assert!(gpu.attributes.is_empty(), "nobody holds it: {gpu:?}");
}

#[tokio::test]
async fn the_end_of_a_spot_machine_is_asked_for_though_only_its_node_says_that_it_is_one() {
    let root = tempfile::tempdir().expect("a folder");
    let (address, asked) = metadata::tests::of_gke().await;
    let mut config = config(root.path());
    config.node.metadata_server = address;
    config.node.provisioning = "spot".to_owned();
    let mut reader = reader(root.path(), &config, users(&[]));
    read(&mut reader).await;
    let within = tokio::time::timeout(Duration::from_secs(60), asked.notified());
    within.await.expect("it is asked");
}

#[test]
fn an_address_or_a_file_that_cannot_be_used_is_named_with_its_key() {
    let root = tempfile::tempdir().expect("a folder");
    let mut config = config(root.path());
    let refused = |config: &Config| {
        let own = &config.attribute;
        let tried = own.check().and_then(|()| own.rehearse());
        tried
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap_or_default()
    };
    for url in ["kubernetes.default", "http://kubernetes.default", "http://"] {
        config.attribute.kubernetes_url = url.to_owned();
        let error = refused(&config);
        assert!(error.contains("attribute.kubernetes_url"), "{url}: {error}");
    }
    config.attribute.kubernetes_url = "http://127.0.0.1:1".to_owned();
    config.attribute.kubernetes_token_file = root.path().join("none");
    let error = refused(&config);
    assert!(error.contains("attribute.kubernetes_token_file"), "{error}");
    config.attribute.kubernetes_url = String::new();
    assert_eq!(refused(&config), "", "a machine without a token is no pod");
}

#[test]
fn the_agent_s_own_pod_is_known_by_name_and_namespace_or_not_at_all() {
    let root = tempfile::tempdir().expect("a folder");
    let mut own = config(root.path()).attribute;
    assert_eq!(own.own_pod(), None);
    own.pod_name = "agent-1".to_owned();
    let error = own.check().expect_err("no namespace").to_string();
    assert!(error.contains("attribute.pod_namespace"), "{error}");
    own.pod_namespace = "gpufleet".to_owned();
    own.check().expect("both are there");
    assert_eq!(own.own_pod(), Some(("gpufleet", "agent-1")));
}

#[tokio::test]
async fn a_pod_whose_token_is_not_there_yet_starts_all_the_same_and_says_so() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let mut config = config(root);
    config.attribute.kubernetes_url = "http://127.0.0.1:1".to_owned();
    config.attribute.kubernetes_token_file = root.join("none");
    let mut reader = reader(root, &config, users(&[]));
    let mut errors = String::new();
    while errors.is_empty() {
        let readings = read(&mut reader).await;
        let told = readings.events.iter().map(|it| it.message.as_str());
        errors = told.collect();
        tokio::task::yield_now().await;
    }
    assert!(
        errors.contains("attribute.kubernetes_token_file"),
        "{errors}"
    );
}

/// What is said of the GPU's holder, or why it is not known.
async fn said(reader: &mut Attribution) -> String {
    let readings = read(reader).await;
    let gpu = resource(&readings, ResourceKind::Gpu);
    let told = [attribute::HOLDER, attribute::HOLDER_UNKNOWN];
    let told = told.into_iter().filter_map(|it| gpu.attribute(it));
    told.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_folder_of_the_kubelet_that_may_not_be_seen_or_is_not_mounted_is_not_no_kubernetes() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let mut config = config(root);
    let mut no_node = reader(root, &config, users(&[]));
    assert_eq!(said(&mut no_node).await, "", "nobody holds it");
    let mut in_pod = reader(root, &config, users(&[]));
    in_pod.is_in_pod = true;
    let told = said(&mut in_pod).await;
    assert!(told.contains("mount hostPath"), "{told}");
    // A file in its way fails otherwise than by not being there, as a right that lacks does.
    fs::write(root.join("file"), "").expect("written");
    config.attribute.kubelet_socket = root.join("file/pod-resources/kubelet.sock");
    let mut hidden = reader(root, &config, users(&[]));
    let told = said(&mut hidden).await;
    assert!(told.starts_with("not_heard: "), "{told}");
    config.attribute.kubelet_socket = PathBuf::new();
    let mut unasked = reader(root, &config, users(&[]));
    unasked.is_in_pod = true;
    let told = said(&mut unasked).await;
    assert!(told.contains("attribute.kubelet_socket is empty"), "{told}");
}

#[tokio::test]
async fn a_node_of_slurm_without_the_prolog_does_not_know_that_nobody_holds_a_gpu() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    fs::create_dir_all(root.join("etc/slurm")).expect("a folder");
    fs::write(root.join("etc/slurm/slurm.conf"), "").expect("written");
    let mut reader = reader(root, &config(root), users(&[]));
    let told = said(&mut reader).await;
    assert!(told.contains("prolog"), "{told}");
    fs::create_dir_all(root.join("jobs")).expect("a folder");
    assert_eq!(said(&mut reader).await, "", "it wrote nothing of this GPU");
}

#[tokio::test]
async fn a_job_of_slurm_that_computes_nothing_has_the_gpu_that_squeue_says_it_has() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let mut config = config(root);
    config.attribute.slurm_node = "n1".to_owned();
    let used =
        r#"{"nodes": [{"name": "n1", "gres": "gpu:h100:1", "gres_used": "gpu:h100:1(IDX:0)"}]}"#;
    let job = r#"{"jobs": [{"job_id": 77, "job_state": ["RUNNING"], "nodes": "n1", "gres_detail": ["gpu:h100:1(IDX:0)"]}]}"#;
    for (path, says, answer) in [
        (&config.attribute.scontrol_path, "*' node n1 '*", used),
        (&config.attribute.squeue_path, "*' -w n1 '*", job),
    ] {
        let script =
            format!("#!/bin/sh\ncase \"$*\" in {says}) echo '{answer}' ;; *) exit 1 ;; esac\n");
        fs::write(path, script).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its own file");
    }
    let told = |job: bool| match job {
        true => "slurm:77",
        false => "not_heard: Slurm's prolog",
    };
    // That it is a node of Slurm is not known, so nobody is asked.
    let mut reader = reader(root, &config, users(&[]));
    assert_eq!(said(&mut reader).await, "");
    fs::create_dir_all(root.join("run/slurm/conf")).expect("a folder");
    let first = said(&mut reader).await;
    assert!(first.starts_with(told(false)), "{first}");
    loop {
        let next = said(&mut reader).await;
        if next == told(true) {
            break;
        }
        assert!(next.starts_with(told(false)), "{next}");
        tokio::task::yield_now().await;
    }
    // Where there is a prolog it is believed, and what was said before does not count.
    fs::create_dir_all(root.join("jobs")).expect("a folder");
    assert_eq!(said(&mut reader).await, "");
}

#[tokio::test(start_paused = true)]
async fn what_the_kubelet_said_counts_for_three_ticks_and_then_nobody_knows() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    fs::create_dir_all(root.join("pod-resources")).expect("a folder");
    let mut reader = reader(root, &config(root), users(&[]));
    reader.list.held = vec![kubelet::Held {
        namespace: "a".to_owned(),
        pod: "b".to_owned(),
        container: "c".to_owned(),
        device: "GPU-0".to_owned(),
        claim: None,
    }];
    reader.kubelet.heard();
    let told = |readings: &Readings| {
        let gpu = resource(readings, ResourceKind::Gpu);
        let unknown = gpu.attribute(attribute::HOLDER_UNKNOWN).is_some();
        (gpu.attribute(attribute::HOLDER).map(str::to_owned), unknown)
    };
    tokio::time::advance(KEEP_FOR - Duration::from_secs(1)).await;
    let held = (Some("pod:a/b".to_owned()), false);
    assert_eq!(told(&read(&mut reader).await), held);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(told(&read(&mut reader).await), (None, true));
}

/// What is said of each GPU and share: its holder, or why it is not known, or nothing.
async fn said_of_all(reader: &mut Attribution) -> BTreeMap<String, String> {
    let readings = read(reader).await;
    let resources = readings.resources.iter().map(|it| &it.resource);
    let cards = resources.filter(|it| it.kind != ResourceKind::Node);
    let told = cards.map(|it| {
        let names = [attribute::HOLDER, attribute::HOLDER_UNKNOWN];
        let told = names.iter().find_map(|name| it.attribute(name));
        (it.id.to_string(), told.unwrap_or_default().to_owned())
    });
    told.collect()
}

#[tokio::test(start_paused = true)]
async fn where_the_kubelet_is_not_asked_an_exporter_says_who_holds_gpus_and_where_it_answers_it_does()
 {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let mut config = config(root);
    config.attribute.kubelet_socket = PathBuf::new();
    let mut reader = reader(root, &config, Arc::default());
    let pod = Pod {
        namespace: "a".to_owned(),
        name: "b".to_owned(),
        container: "c".to_owned(),
        replica: None,
    };
    let share = Resource::new(ResourceKind::Share, "GPU-d/gi7")
        .with(attribute::PARENT, "GPU-d")
        .with(attribute::MIG_GPU_INSTANCE, "7");
    let gpu = |id: &str| Resource::new(ResourceKind::Gpu, id);
    let note = |reader: &Attribution| {
        let held = || Said::Pods(BTreeSet::from([pod.clone()]));
        let devices = [
            (gpu("GPU-a"), held()),
            (gpu("GPU-b"), Said::Nobody),
            (gpu("GPU-c"), Said::Nothing),
            (gpu("GPU-d"), Said::Nothing),
            (share.clone(), held()),
        ];
        let devices = devices.map(|(resource, said)| Device {
            resource: Arc::new(resource),
            said,
        });
        let period = Duration::from_secs(10);
        reader.exported.note("exporter:x", period, devices.into());
    };
    let of = |told: [&str; 5]| -> BTreeMap<String, String> {
        let ids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-d/gi7"];
        let pairs = ids.into_iter().zip(told);
        pairs
            .map(|(id, it)| (id.to_owned(), it.to_owned()))
            .collect()
    };
    note(&reader);
    let none = said_of_all(&mut reader).await;
    assert_eq!(none, BTreeMap::new(), "this is no node of Kubernetes");
    reader.is_in_pod = true;
    let unasked = "not_heard: the kubelet is not asked: attribute.kubelet_socket is empty, and ";
    let silent = format!("{unasked}no series of its exporter says which pod holds it");
    let expected = of(["pod:a/b", "", &silent, "", "pod:a/b"]);
    assert_eq!(said_of_all(&mut reader).await, expected);
    // What the kubelet says counts, and of what it does not give away nobody knows without the driver.
    reader.list.held = vec![kubelet::Held {
        namespace: "x".to_owned(),
        pod: "y".to_owned(),
        container: "z".to_owned(),
        device: "GPU-b".to_owned(),
        claim: None,
    }];
    reader.kubelet.heard();
    let undriven = "not_heard: the driver does not say which processes are on it";
    let expected = of([undriven, "pod:x/y", undriven, "", undriven]);
    assert_eq!(said_of_all(&mut reader).await, expected);
    tokio::time::advance(KEEP_FOR + Duration::from_secs(1)).await;
    let old = format!("{unasked}its exporter was not heard for too long");
    let expected = of([&old, &old, &old, "", &old]);
    assert_eq!(said_of_all(&mut reader).await, expected);
    note(&reader);
    let expected = of(["pod:a/b", "", &silent, "", "pod:a/b"]);
    assert_eq!(said_of_all(&mut reader).await, expected);
}
