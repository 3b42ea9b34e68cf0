//! The checks on made-up machines, and the screen.

use std::fs;
use std::path::Path;

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("written");
}

/// What a check says of a machine with these files.
async fn verdicts(files: &[(&str, &str)], change: fn(&mut Config)) -> Vec<Finding> {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        write(root.path(), name, text);
    }
    let mut config = Config::for_tests();
    config.hooks.enabled = true;
    config.attribute.enabled = true;
    config.attribute.scontrol_path = root.path().join("scontrol");
    config.attribute.squeue_path = root.path().join("squeue");
    config.listen.address = "127.0.0.1:0".to_owned();
    config.ship.endpoint = String::new();
    change(&mut config);
    Box::pin(look(&config, root.path().to_owned())).await
}

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let found = findings.iter().find(|it| it.check == check);
    found.unwrap_or_else(|| panic!("{check} in {findings:?}"))
}

#[tokio::test]
async fn the_line_of_the_hooks_says_whether_an_agent_listens_there() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("run/gpufleet");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut config = Config::for_tests();
    let findings = look(&config, root.path().to_owned()).await;
    assert_eq!(of(&findings, "hooks folder").why, "hooks.enabled = false");
    config.hooks.enabled = true;
    let findings = look(&config, root.path().to_owned()).await;
    let why = &of(&findings, "hooks folder").why;
    assert!(why.contains("no agent listens"), "{why}");
    let limits = gpufleet_hooks_shm::server::Limits::default();
    let group = Box::new(gpufleet_hooks_shm::server::cgroup);
    let socket = folder.join("hooks.sock");
    let listener = gpufleet_hooks_shm::server::Listener::bind(&socket, limits, group);
    let _listener = listener.expect("the socket is free");
    let findings = look(&config, root.path().to_owned()).await;
    let why = &of(&findings, "hooks folder").why;
    assert!(why.starts_with("an agent listens"), "{why}");
}

#[tokio::test]
async fn the_line_of_ras_says_whether_pods_can_be_asked() {
    let asks: fn(&mut Config) = |config| config.hooks.ras_in_pods = true;
    let with = "Name:\tx\nCapEff:\t0000000000200000\n";
    let without = "Name:\tx\nCapEff:\t00000000000000ff\n";
    let cases = [
        (without, (|_| {}) as fn(&mut Config), Verdict::Skip),
        (without, asks, Verdict::No),
        ("", asks, Verdict::No),
        (with, asks, Verdict::Yes),
    ];
    for (status, change, expected) in cases {
        let findings = verdicts(&[("proc/self/status", status)], change).await;
        let found = of(&findings, "NCCL RAS");
        assert_eq!(found.verdict, expected, "{status} {found:?}");
    }
}

#[tokio::test]
async fn of_a_slurm_that_prints_no_json_it_is_said_what_to_do() {
    use std::os::unix::fs::PermissionsExt as _;
    for (version, without_prolog, with_prolog) in [
        ("20.11.9", "which is older than 21.08", "no account"),
        ("23.02.6", "is asked which GPUs jobs have", "names jobs"),
    ] {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "etc/slurm/slurm.conf", "");
        let mut config = Config::for_tests();
        config.attribute.enabled = true;
        config.attribute.scontrol_path = root.path().join("scontrol");
        config.attribute.squeue_path = root.path().join("squeue");
        for name in ["scontrol", "squeue"] {
            let says = format!("#!/bin/sh\n[ \"$*\" = --version ] && echo slurm {version}\n");
            write(root.path(), name, &says);
            let right = fs::Permissions::from_mode(0o755);
            fs::set_permissions(root.path().join(name), right).expect("its own file");
        }
        for expected in [without_prolog, with_prolog] {
            let findings = look(&config, root.path().to_owned()).await;
            let found = of(&findings, "Slurm");
            assert!(found.why.contains(expected), "{version}: {found:?}");
            let is_old = version == "20.11.9";
            assert_eq!(found.verdict == Verdict::No, is_old, "{found:?}");
            write(root.path(), "var/lib/gpufleet-jobs/0", "77\n");
        }
    }
}

const NVRM: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Jul\n";

#[tokio::test]
async fn each_machine_gets_its_verdicts_and_every_no_has_its_fix() {
    use Verdict::{No, Skip, Yes};
    type Case = (
        &'static [(&'static str, &'static str)],
        &'static str,
        Verdict,
        &'static str,
    );
    const CARD: (&str, &str) = ("sys/bus/pci/devices/0000:53:00.0/vendor", "0x10de\n");
    const OTHER: (&str, &str) = ("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
    const VERSION: (&str, &str) = ("proc/driver/nvidia/version", NVRM);
    const DEVICE: (&str, &str) = ("dev/nvidiactl", "");
    const SLURM: (&str, &str) = ("etc/slurm/slurm.conf", "");
    const PROLOG: (&str, &str) = ("var/lib/gpufleet-jobs/0", "77\n");
    let cases: &[Case] = &[
        (&[VERSION, DEVICE], "driver", Yes, "580.105.08"),
        (&[VERSION], "driver", No, "/dev/nvidiactl"),
        (&[CARD], "driver", No, "not loaded"),
        (&[OTHER], "driver", Skip, "no NVIDIA card"),
        (&[], "driver", Skip, "cannot be looked at"),
        (
            &[("proc/pressure/cpu", "some total=1")],
            "pressure (PSI)",
            Yes,
            "counts",
        ),
        (&[], "pressure (PSI)", No, "/proc/pressure/cpu"),
        (&[("proc/1/cgroup", "0::/")], "rights", Yes, "can be read"),
        (&[], "rights", No, "holders of GPUs stay unknown"),
        (
            &[("run/gpufleet/x", "")],
            "hooks folder",
            Yes,
            "can be written",
        ),
        (&[], "hooks folder", Skip, "only training hooks"),
        (
            &[("run/systemd/timesync/synchronized", "")],
            "clock",
            Yes,
            "timesyncd",
        ),
        (&[], "clock", Skip, "no time service"),
        (
            &[("var/lib/kubelet/config.yaml", "")],
            "kubelet",
            No,
            "socket is not there",
        ),
        (
            &[("var/lib/kubelet/pod-resources/kubelet.sock", "")],
            "kubelet",
            No,
            "its pod-resources socket",
        ),
        (&[], "kubelet", Skip, "not a Kubernetes node"),
        (&[], "Kubernetes API", Skip, "not in a pod"),
        (&[], "Slurm", Skip, "not a Slurm node"),
        (&[("etc/slurm/slurm.conf", "")], "Slurm", No, "no prolog"),
        (
            &[("run/slurm/conf/slurm.conf", ""), ("scontrol", "")],
            "Slurm",
            No,
            "no prolog",
        ),
        (
            &[SLURM, ("scontrol", ""), ("squeue", "")],
            "Slurm",
            Yes,
            "is asked which GPUs jobs have",
        ),
        (&[SLURM, PROLOG], "Slurm", No, "no account"),
        (
            &[SLURM, PROLOG, ("scontrol", "")],
            "Slurm",
            Yes,
            "names jobs",
        ),
        (&[], "NVML", Skip, "nvml.enabled = false"),
        (&[], "exporter", Skip, "none is configured"),
        (&[], "server", Skip, "ship.endpoint is empty"),
        (&[], "listen", Yes, "is free"),
    ];
    for (files, check, verdict, why) in cases {
        let findings = verdicts(files, |_| {}).await;
        let finding = of(&findings, check);
        assert_eq!(finding.verdict, *verdict, "{finding:?}");
        assert!(finding.why.contains(why), "{finding:?} for {why}");
        for finding in &findings {
            assert_eq!(
                finding.verdict == No,
                !finding.fix.is_empty(),
                "{finding:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_config_is_looked_at_too() {
    type Case = (fn(&mut Config), &'static str, &'static str);
    let cases: [Case; 6] = [
        (
            |it| it.ship.endpoint = "http://me:secret@127.0.0.1:1".to_owned(),
            "server",
            "names somebody before its host",
        ),
        (
            |it| it.ship.endpoint = "http://127.0.0.1:1".to_owned(),
            "server",
            "127.0.0.1:1",
        ),
        (
            |it| it.ship.endpoint = "nonsense//".to_owned(),
            "server",
            "is no address",
        ),
        (
            |it| it.listen.address = "0.0.0.0:9410".to_owned(),
            "listen",
            "allow_insecure",
        ),
        (
            |it| it.recorded.files = vec!["/nowhere".into()],
            "sources",
            "/nowhere",
        ),
        (
            |it| it.node.state_folder = "/proc/1/cgroup/x".into(),
            "state folder",
            "x: ",
        ),
    ];
    for (change, check, why) in cases {
        let findings = verdicts(&[("proc/1/cgroup", "0::/")], change).await;
        let finding = of(&findings, check);
        assert_eq!(finding.verdict, Verdict::No, "{finding:?}");
        assert!(
            finding.why.contains(why) && !finding.fix.is_empty(),
            "{finding:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_answers_and_an_exporter_that_answers_are_found() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = axum::Router::new().route(
        "/metrics",
        axum::routing::get(|| async { "DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-1\"} 1\n" }),
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    let root = tempfile::tempdir().expect("a folder");
    let mut config = Config::for_tests();
    config.ship.endpoint = format!("http://{address}");
    let url = format!("http://{address}/metrics");
    config.exporter.targets = vec![crate::read::exporter::Target::at(&url)];
    let findings = look(&config, root.path().to_owned()).await;
    assert_eq!(of(&findings, "server").verdict, Verdict::Yes);
    let exporter = of(&findings, "exporter");
    assert_eq!(exporter.verdict, Verdict::Yes);
    assert!(exporter.why.ends_with(": 1 GPUs or models"), "{exporter:?}");
}

#[tokio::test]
async fn where_the_kubelet_is_not_asked_the_line_of_an_exporter_says_whether_it_tells_of_holders() {
    let labels = "UUID=\"GPU-1\",pod=\"train-0\",namespace=\"ml\"";
    let cases = [
        (
            labels,
            true,
            "; labels say of 1 of these 2 whether a pod holds them, and which",
        ),
        (
            "UUID=\"GPU-1\"",
            true,
            "; no label says whether a pod holds one of these 2,",
        ),
        (labels, false, ": 2 GPUs or models"),
    ];
    for (labels, is_unasked, expected) in cases {
        let text = format!(
            "DCGM_FI_DEV_POWER_USAGE{{{labels}}} 1\nDCGM_FI_DEV_POWER_USAGE{{UUID=\"GPU-2\"}} 1\n"
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = axum::routing::get(move || async move { text.clone() });
        let router = axum::Router::new().route("/metrics", answer);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let root = tempfile::tempdir().expect("a folder");
        let mut config = Config::for_tests();
        config.attribute.enabled = true;
        if is_unasked {
            config.attribute.kubelet_socket = PathBuf::new();
        }
        let url = format!("http://{address}/metrics");
        config.exporter.targets = vec![crate::read::exporter::Target::at(&url)];
        let findings = look(&config, root.path().to_owned()).await;
        let exporter = of(&findings, "exporter");
        assert_eq!(exporter.verdict, Verdict::Yes);
        let after = exporter.why.find(expected).map(|it| &exporter.why[it..]);
        let after = after.unwrap_or_else(|| panic!("{exporter:?} for {expected}"));
        assert_eq!(is_unasked, after != ": 2 GPUs or models", "{exporter:?}");
        assert_eq!(of(&findings, "kubelet").verdict, Verdict::Skip);
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_hangs_costs_its_own_line_only() {
    let hanging = within("driver", "reboot", CHECK_DEADLINE, std::future::pending());
    let finding = hanging.await;
    assert_eq!(
        finding,
        Finding::no("driver", "no answer within 3 s", "reboot")
    );
}

#[test]
fn the_screen_has_one_line_a_check_and_one_a_fix() {
    let findings = [
        Finding::yes("driver", "loaded"),
        Finding::no("server", "refused", "start it"),
        Finding::skip("kubelet", "none"),
    ];
    let lines: Vec<String> = screen(&findings).lines().map(str::to_owned).collect();
    assert_eq!(
        lines[2..],
        [
            "yes  driver   loaded",
            "NO   server   refused",
            "              fix: start it",
            "-    kubelet  none",
            "",
            "1 thing to fix.",
        ]
    );
    let json = serde_json::to_value(&findings[1]).expect("JSON");
    assert_eq!(json["verdict"], "no");
    assert_eq!(json["fix"], "start it");
}
