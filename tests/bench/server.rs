//! The server under 10,000 simulated GPUs at 10 s, on SQLite, with the simulator beside it; then
//! Prometheus and VictoriaMetrics with the same samples.

use std::process::Command;
use std::time::Duration;

use gpufleet_telemetry::catalog;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, free_port, http, later, server, usage, wait};
use gpufleet_tests::simulator::fleet::SimulatedFleet;
use gpufleet_tests::simulator::node::Plan;

use crate::around::{self, Around};
use crate::exposition::{sum, values};
use crate::figures::{Spread, line, told};
use crate::{pages, remote_write};

const MIB: f64 = 1_048_576.0;
const NODES: usize = 1_250;
const METRICS: usize = 60;
/// What the server must stay within.
const MAX_AGE_SECONDS: f64 = 30.0;
const MAX_CPU_SECONDS_PER_MILLION: f64 = 2.5;
const MAX_RSS_MIB: f64 = 512.0;

pub(crate) fn run(short: bool) -> bool {
    let minutes = if short { 2 } else { 10 };
    told(&format!(
        "server on SQLite, {} GPUs, {METRICS} metrics, 10 s, {minutes} minutes, simulator beside it",
        NODES * 8
    ));
    let ours = ours(minutes);
    let ticks = if short { 2 } else { 6 };
    for (name, command, ready) in [
        (
            "Prometheus",
            prometheus as fn(&World, u16) -> Command,
            "/-/ready",
        ),
        ("VictoriaMetrics", victoria, "/health"),
    ] {
        other(name, command, ready, ticks);
    }
    ours
}

fn ours(minutes: u64) -> bool {
    let world = World::new();
    let cluster = Around::start(&world);
    let place = cluster.told_to(server::Place::sqlite(&world));
    pages::store_jobs(&place.database);
    let server = place.start();
    let endpoint = format!("http://{}", server.place.grpc);
    let (nodes, metrics) = (NODES.to_string(), METRICS.to_string());
    let mut simulator = Simulator::start(
        &world,
        &endpoint,
        &[
            "--cluster",
            "bench-simulated",
            "--nodes",
            &nodes,
            "--metrics",
            &metrics,
            "--seed",
            &steady_seed(),
            "--in-memory",
        ],
    );
    let _live = around::live_agent(&world, &endpoint);
    // One minute to connect and to fill the live view.
    wait::pause(Duration::from_secs(60));
    let began = (usage::of_group(server.id()), points(&server), wait::now());
    let mut rss = Spread::default();
    let (mut cpu, mut last) = (Spread::default(), (began.0.cpu_seconds, began.1));
    let mut age = f64::INFINITY;
    for minute in 0..minutes {
        if minute + 1 == minutes {
            age = greatest_age_of_a_minute(&server);
        } else {
            wait::pause(Duration::from_secs(60));
        }
        simulator.must_run();
        let usage = usage::of_group(server.id());
        rss.add(usage.rss_bytes / MIB);
        let now = points(&server);
        cpu.add((usage.cpu_seconds - last.0) / ((now - last.1) / 1e6));
        last = (usage.cpu_seconds, now);
    }
    let seconds = (wait::now() - began.2).as_secs_f64();
    let rate = (last.1 - began.1) / seconds;
    told(&format!(
        "{rate:.0} samples a second folded over {seconds:.0} s"
    ));
    let broken = around::broken(&server, &simulator);
    let pages = pages::measure(&world, &server, &broken);
    let simulator_cpu = usage::of_group(simulator.id()).cpu_seconds;
    told(&format!("simulator: {simulator_cpu:.1} CPU seconds in all"));
    simulator.stop();
    server.stop();
    let wanted = (NODES * 8 * METRICS) as f64 / 10.0;
    let results = [
        line(
            "p99 sample age at commit, last minute, s",
            &format!("{age:.1}"),
            age,
            MAX_AGE_SECONDS,
        ),
        line(
            "CPU seconds per million samples",
            &cpu.told(),
            cpu.mean(),
            MAX_CPU_SECONDS_PER_MILLION,
        ),
        line("RSS, MiB", &rss.told(), rss.max(), MAX_RSS_MIB),
        line(
            "samples a second missing of those made, %",
            &format!("{:.2}", (1.0 - rate / wanted).max(0.0) * 100.0),
            (1.0 - rate / wanted).max(0.0) * 100.0,
            2.0,
        ),
    ];
    results.iter().all(|it| *it) && pages
}

/// The server's own count of folded points.
fn points(server: &server::Server) -> f64 {
    sum(&server.get("/metrics").text(), catalog::server::POINTS.name)
}

/// The greatest of what the server says at each commit (the 99th percentile of the samples' age),
/// over a minute: it commits every 20 s, so looking every 5 s misses none.
fn greatest_age_of_a_minute(server: &server::Server) -> f64 {
    let name = catalog::server::SAMPLE_AGE_AT_COMMIT.name;
    let mut greatest: Option<f64> = None;
    for _ in 0..12 {
        wait::pause(Duration::from_secs(5));
        let text = server.get("/metrics").text();
        let told = values(&text, name).next();
        greatest = greatest.into_iter().chain(told).reduce(f64::max);
    }
    // A server that never said how old its samples were has not met the limit.
    greatest.unwrap_or(f64::INFINITY)
}

fn prometheus(world: &World, port: u16) -> Command {
    let config = world.file("prometheus.yml", "global: {}\n");
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            world.path("data").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--web.enable-remote-write-receiver");
    command
}

fn victoria(world: &World, port: u16) -> Command {
    let mut command =
        Command::new(later("victoria-metrics").expect("scripts/setup.sh test fetches it"));
    command
        .arg(format!("-storageDataPath={}", world.path("data").display()))
        .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
        .arg("-retentionPeriod=100y");
    command
}

/// The same fleet's samples to another store, as fast as it takes them, one connection.
fn other(name: &str, command: fn(&World, u16) -> Command, ready: &str, ticks: i64) {
    let world = World::new();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let mut process = Process::start(name, command(&world, port), &world.path("log"));
    wait::until(name, Duration::from_secs(30), || {
        process.must_run();
        http::get(&address, ready)
            .ok()
            .filter(|it| it.status == 200)
    });
    let plan = Plan {
        nodes: NODES,
        metrics: METRICS,
        training: false,
        ..Plan::demo()
    };
    let mut fleet = SimulatedFleet::new(&plan);
    let start = Timestamp::from_seconds(wait::unix_seconds() / 10 * 10 - ticks * 10);
    // The first tick makes the series, which costs more than adding to them: not counted.
    let (mut cpu, mut samples) = (Spread::default(), 0);
    for tick in 0..=ticks {
        let at = start.shifted(tick * 10_000_000_000);
        let before = usage::of_group(process.id());
        let mut sent = 0;
        for node in &mut fleet.nodes {
            let made = node.tick(at, 10, &fleet.faults);
            sent += remote_write::send(&address, &made[1..]);
        }
        let used = usage::of_group(process.id()).cpu_seconds - before.cpu_seconds;
        if tick > 0 {
            cpu.add(used / (sent as f64 / 1e6));
            samples += sent;
        }
    }
    let rss = usage::of_group(process.id()).rss_bytes / MIB;
    told(&format!(
        "{name}: {} CPU seconds per million samples over {samples} samples, RSS {rss:.0} MiB",
        cpu.told()
    ));
    process.stop();
}
