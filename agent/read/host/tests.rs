//! The reader on made-up /proc and /sys folders, and once on the real ones.

use std::fs;
use std::path::Path;

use gpufleet_telemetry::catalog;

use super::super::NodeFacts;
use super::*;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("written");
}

/// A machine with one disk, one partition, one network card, one bridge and one RDMA device.
fn machine(root: &Path, round: u64) {
    let proc = |name: &str, text: &str| write(&root.join("proc"), name, text);
    let sys = |name: &str, text: &str| write(&root.join("sys"), name, text);
    let idle = 1000 + 50 * round;
    let busy = 50 * round;
    proc(
        "stat",
        &format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 0\ncpu1 0\n"),
    );
    proc("loadavg", "1.50 1.00 0.50 1/2 3\n");
    proc("meminfo", "MemTotal: 1024 kB\nMemAvailable: 512 kB\n");
    proc("vmstat", "oom_kill 2\n");
    proc("uptime", "3600.25 100.0\n");
    let waited = 250_000 * round;
    proc(
        "pressure/cpu",
        &format!("some avg10=0.00 total={waited}\nfull avg10=0.00 total=0\n"),
    );
    proc(
        "pressure/memory",
        &format!(
            "some avg10=0.00 total={}\nfull avg10=0.00 total={waited}\n",
            2 * waited
        ),
    );
    proc(
        "diskstats",
        "8 0 sda 1 0 2 0 1 0 4 0 0 500 0\n8 1 sda1 1 0 2 0 1 0 4 0 0 500 0\n7 0 loop0 1 0 2 0 1 0 4 0 0 500 0\n",
    );
    sys("block/sda/device/model", "x");
    sys("block/loop0/size", "1");
    sys("class/net/eth0/device/vendor", "x");
    for (name, value) in [
        ("rx_bytes", "10"),
        ("tx_bytes", "20"),
        ("rx_errors", "1"),
        ("tx_errors", "2"),
        ("rx_dropped", "3"),
        ("tx_dropped", "4"),
    ] {
        sys(&format!("class/net/eth0/statistics/{name}"), value);
        sys(&format!("class/net/docker0/statistics/{name}"), value);
    }
    sys("class/net/eth0/operstate", "up\n");
    sys("class/net/eth0/speed", "100000\n");
    let port = "class/infiniband/mlx5_0/ports/1";
    sys(&format!("{port}/counters/port_rcv_data"), "100\n");
    sys(&format!("{port}/counters/port_xmit_data"), "200\n");
    sys(&format!("{port}/counters/port_rcv_errors"), "5\n");
    sys(&format!("{port}/counters/symbol_error"), "6\n");
    sys(&format!("{port}/hw_counters/packet_seq_err"), "7\n");
    sys(&format!("{port}/hw_counters/local_ack_timeout_err"), "8\n");
    sys(&format!("{port}/state"), "4: ACTIVE\n");
    sys(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
}

fn reader(root: &Path) -> Host {
    let config = HostConfig {
        proc_folder: root.join("proc"),
        sys_folder: root.join("sys"),
        ..HostConfig::default()
    };
    let reader = Host::new(&config).expect("a right config");
    reader.expect("enabled")
}

async fn read(reader: &mut Host, second: u64) -> Vec<String> {
    let turn = Turn {
        at: Timestamp::from_seconds(second as i64),
        monotonic: Duration::from_secs(second),
        node: Arc::new(NodeFacts::for_tests()),
    };
    let readings = reader.read(turn).await.expect("readings");
    assert_eq!(readings.resources[0].resource.id.as_ref(), "node-1");
    let samples = readings.resources[0].samples.iter();
    samples
        .map(|sample| {
            let metric = catalog::by_id(sample.metric).expect("known");
            let name = metric.name.trim_start_matches("gpufleet_node_");
            let part = sample.part.as_ref().map_or("", |part| &part.id);
            match sample.reading {
                Ok(value) => format!("{part} {name} {value}"),
                Err(missing) => format!("{part} {name} {missing}"),
            }
        })
        .map(|line| line.trim().to_owned())
        .collect()
}

#[tokio::test]
async fn rates_need_two_rounds_and_every_value_is_in_base_units() {
    let root = tempfile::tempdir().expect("a folder");
    let mut reader = reader(root.path());
    machine(root.path(), 1);
    let first = read(&mut reader, 1).await;
    assert!(
        first.contains(&"cpu_busy_ratio not_ready".to_owned()),
        "{first:?}"
    );
    assert!(first.contains(&"pressure_cpu_some_ratio not_ready".to_owned()));
    machine(root.path(), 2);
    let expected = [
        "cpu_busy_ratio 0.5",
        "cpu_steal_ratio 0",
        "cpu_iowait_ratio 0",
        "cpus 2",
        "load_1m 1.5",
        "memory_total_bytes 1048576",
        "memory_available_bytes 524288",
        "oom_kills_total 2",
        "uptime_seconds 3600.25",
        "pressure_cpu_some_ratio 0.25",
        "pressure_memory_full_ratio 0.25",
        "pressure_io_full_ratio not_supported",
        "pressure_memory_some_ratio 0.5",
        "pressure_io_some_ratio not_supported",
        "sda disk_read_bytes_total 1024",
        "sda disk_written_bytes_total 2048",
        "sda disk_busy_seconds_total 0.5",
        "eth0 nic_received_bytes_total 10",
        "eth0 nic_sent_bytes_total 20",
        "eth0 nic_errors_total 3",
        "eth0 nic_drops_total 7",
        "eth0 nic_up_flag 1",
        "eth0 nic_speed_bytes_per_second 12500000000",
        "mlx5_0 nic_received_bytes_total 400",
        "mlx5_0 nic_sent_bytes_total 800",
        "mlx5_0 nic_errors_total 11",
        "mlx5_0 nic_drops_total not_supported",
        "mlx5_0 nic_rdma_retries_total 15",
        "mlx5_0 nic_up_flag 1",
        "mlx5_0 nic_speed_bytes_per_second 50000000000",
    ];
    assert_eq!(read(&mut reader, 2).await, expected);
}

#[tokio::test]
async fn a_machine_without_its_folders_has_reasons_not_an_error() {
    let root = tempfile::tempdir().expect("a folder");
    let lines = read(&mut reader(root.path()), 1).await;
    assert_eq!(lines.len(), 14);
    assert!(
        lines.iter().all(|line| line.ends_with(" unreachable")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_broken_file_costs_only_its_own_metrics() {
    let root = tempfile::tempdir().expect("a folder");
    machine(root.path(), 1);
    write(&root.path().join("proc"), "meminfo", "what\n");
    write(&root.path().join("proc"), "vmstat", "oom_kill many\n");
    let lines = read(&mut reader(root.path()), 1).await;
    for expected in [
        "memory_total_bytes not_supported",
        "oom_kills_total invalid",
        "load_1m 1.5",
    ] {
        assert!(
            lines.contains(&expected.to_owned()),
            "{expected} in {lines:?}"
        );
    }
}

#[tokio::test]
async fn a_port_that_is_down_or_says_nonsense_has_no_speed() {
    let root = tempfile::tempdir().expect("a folder");
    machine(root.path(), 1);
    let port = "class/infiniband/mlx5_0/ports/1";
    for (ethernet, state, rate, expected) in [
        ("-1", "1: DOWN", "10 Gb/sec (4X SDR)", ["not_supported"; 2]),
        ("0", "4: ACTIVE", "fast", ["not_supported", "invalid"]),
        ("what", "4: ACTIVE", "-4 Gb/sec (1X)", ["invalid"; 2]),
        (
            "1000",
            "4: ACTIVE",
            "100 Gb/sec (4X EDR)",
            ["125000000", "12500000000"],
        ),
    ] {
        let sys = root.path().join("sys");
        write(&sys, "class/net/eth0/speed", ethernet);
        write(&sys, &format!("{port}/state"), state);
        write(&sys, &format!("{port}/rate"), rate);
        let lines = read(&mut reader(root.path()), 1).await;
        for (name, expected) in std::iter::zip(["eth0", "mlx5_0"], expected) {
            let line = format!("{name} nic_speed_bytes_per_second {expected}");
            assert!(lines.contains(&line), "{line} in {lines:?}");
        }
    }
}

#[tokio::test]
async fn a_round_given_up_on_is_not_taken_for_the_next_and_its_reader_goes_on() {
    let root = tempfile::tempdir().expect("a folder");
    let mut reader = reader(root.path());
    machine(root.path(), 1);
    let turn = Turn {
        at: Timestamp::from_seconds(1),
        monotonic: Duration::from_secs(1),
        node: Arc::new(NodeFacts::for_tests()),
    };
    // Polled once and dropped, as the loop does at the deadline.
    let none = futures::future::poll_immediate(reader.read(turn)).await;
    assert!(none.is_none() || reader.running.is_none());
    machine(root.path(), 2);
    let lines = read(&mut reader, 2).await;
    assert!(lines.iter().any(|line| line.starts_with("cpu_busy_ratio")));
    assert!(reader.running.is_none());
}

#[tokio::test]
async fn this_machines_own_numbers_are_sane() {
    let config = HostConfig::default();
    let mut reader = Host::new(&config).expect("right").expect("enabled");
    let lines = read(&mut reader, 1).await;
    let value = |name: &str| -> f64 {
        let line = lines.iter().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} in {lines:?}"));
        let (_, value) = line.rsplit_once(' ').expect("a value");
        value.parse().unwrap_or_else(|_| panic!("{line}"))
    };
    assert!(value("cpus") >= 1.0);
    assert!(value("memory_total_bytes") > value("memory_available_bytes"));
    assert!(value("uptime_seconds") > 0.0);
}
