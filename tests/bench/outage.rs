//! An outage of two hours of a thousand agents: their spools are full of it when the server starts,
//! and live data goes on. The agents are the simulator's, with the agent's own spool and shipping;
//! the spools are in memory, so that the machine's one disk is the server's.
//!
//! In the end every minute of every GPU must be complete, and those of some nodes are compared
//! with what was made, value by value.

use std::time::Duration;

use gpufleet_telemetry::catalog::server as metrics;
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, checker, server, usage, wait};
use gpufleet_tests::simulator::node::Plan;
use gpufleet_tests::simulator::{OUTAGE_DRAINED, OUTAGE_MADE, journal};

use crate::exposition::{labelled, sum, values};
use crate::figures::{Spread, at_least, line, told};

const MIB: f64 = 1_048_576.0;
const CLUSTER: &str = "outage-simulated";
/// The first so many of a GPU's metrics: five kinds of evidence, the electrical ones, memory.
const METRICS: usize = 24;
/// Nodes that are compared value by value.
const COMPARED: usize = 20;
/// How long the simulator may take to make the outage, and the server to take it in.
const MAKING_LIMIT: Duration = Duration::from_secs(1_800);
const DRAINING_LIMIT: Duration = Duration::from_secs(3_600);
/// A look at the server: its /metrics have five series for each GPU.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// What must be kept.
const MAX_LIVE_AGE_SECONDS: f64 = 20.0;
/// An agent waits at most 30 s after a failure, and a live tick is 10 s.
const MAX_SECONDS_UNTIL_LIVE: f64 = 60.0;
const MAX_RSS_MIB: f64 = 512.0;
/// The bound on backfill that waits, and what the requests under way may add to it.
const MAX_BACKFILL_MIB: f64 = 64.0 + 4.0;

/// What was seen while the server drained.
struct Seen {
    rss: f64,
    backfill: f64,
    full: f64,
    until_live: Option<f64>,
    ages: Spread,
}

pub(crate) fn run(short: bool, gpus: usize) -> bool {
    let (nodes, minutes) = if short { (100, 20) } else { (1_000, 120) };
    let plan = Plan {
        cluster: CLUSTER.to_owned(),
        nodes,
        gpus_per_node: gpus,
        metrics: METRICS,
        training: false,
        ..Plan::demo()
    };
    told(&format!(
        "{nodes} agents of {gpus} GPUs, {METRICS} metrics at 10 s, {minutes} minutes without a server (SQLite)"
    ));
    let world = World::new();
    let mut place = server::Place::sqlite(&world);
    if short {
        // So little data does not meet the bound of a server as it comes.
        place = place.with("fleet.backfill_bytes=2097152");
    }
    let mut simulator = start(&world, &place, &plan, minutes);
    let began = wait::now();
    wait::until("the outage is made", MAKING_LIMIT, || {
        simulator.must_run();
        simulator.output().contains(OUTAGE_MADE).then_some(())
    });
    told(&format!(
        "made in {:.0} s; the simulator has {:.0} MiB",
        (wait::now() - began).as_secs_f64(),
        usage::of_group(simulator.id()).rss_bytes / MIB
    ));
    let server = place.start();
    let began = wait::now();
    let seen = watch(&server, &mut simulator, began);
    let drained = (wait::now() - began).as_secs_f64();
    let used = usage::of_group(server.id()).cpu_seconds;
    let points = sum(&server.get("/metrics").text(), metrics::POINTS.name);
    told(&format!(
        "drained in {drained:.0} s: {points:.0} samples, {:.2} CPU seconds per million",
        used / (points / 1e6)
    ));
    simulator.ends(DRAINING_LIMIT);
    server.stop();
    let wrong = compare(&world, &place, &plan, minutes);
    for difference in wrong.iter().take(10) {
        told(difference);
    }
    results(&seen, wrong.len(), short)
}

fn start(world: &World, place: &server::Place, plan: &Plan, minutes: i64) -> Simulator {
    let text = |number: usize| number.to_string();
    Simulator::start(
        world,
        &format!("http://{}", place.grpc),
        &[
            "--in-memory",
            "--no-training",
            "--cluster",
            CLUSTER,
            "--nodes",
            &text(plan.nodes),
            "--gpus",
            &text(plan.gpus_per_node),
            "--metrics",
            &text(plan.metrics),
            "--outage-minutes",
            &minutes.to_string(),
        ],
    )
}

/// Looks at the server until the outage is on its disk.
fn watch(server: &server::Server, simulator: &mut Simulator, began: Duration) -> Seen {
    let mut seen = Seen {
        rss: 0.0,
        backfill: 0.0,
        full: 0.0,
        until_live: None,
        ages: Spread::default(),
    };
    loop {
        wait::pause(LOOK_EVERY);
        let since = wait::now() - began;
        assert!(since < DRAINING_LIMIT, "the outage is not drained");
        let is_drained = simulator.output().contains(OUTAGE_DRAINED);
        if is_drained {
            return seen;
        }
        simulator.must_run();
        let text = server.get("/metrics").text();
        seen.rss = seen.rss.max(usage::of_group(server.id()).rss_bytes / MIB);
        let waiting = labelled(&text, metrics::UNCOMMITTED_BYTES.name, "lane=\"backfill\"");
        seen.backfill = seen.backfill.max(waiting / MIB);
        seen.full = labelled(&text, metrics::REQUESTS.name, "outcome=\"full\"");
        let mut now = Spread::default();
        values(&text, metrics::GPU_LAST_SAMPLE_AGE.name).for_each(|age| now.add(age));
        // Without any GPU the quantile is no number, and nothing is live.
        if now.quantile(0.99) <= MAX_LIVE_AGE_SECONDS && seen.until_live.is_none() {
            seen.until_live = Some(since.as_secs_f64());
        }
        if seen.until_live.is_some() {
            seen.ages.join(&now);
        }
    }
}

/// Everything that is wrong in the database.
fn compare(world: &World, place: &server::Place, plan: &Plan, minutes: i64) -> Vec<String> {
    let text = std::fs::read_to_string(world.path("simulator/journal"))
        .expect("the simulator keeps a journal");
    let made = journal::whole_minutes(&text);
    told(&format!(
        "{} minutes to be complete",
        made.end.0 - made.start.0
    ));
    assert!(made.end.0 - made.start.0 >= minutes, "the journal is short");
    let mut wrong = checker::incomplete(&place.database, plan, made);
    let expected = journal::expected_of(plan, &text, |node| node < COMPARED);
    wrong.extend(checker::differences(&place.database, CLUSTER, &expected));
    wrong
}

fn results(seen: &Seen, wrong: usize, short: bool) -> bool {
    let age = seen.ages.quantile(0.99);
    let until_live = seen.until_live.unwrap_or(f64::INFINITY);
    [
        line(
            "seconds until the live view is live again",
            &format!("{until_live:.0}"),
            until_live,
            MAX_SECONDS_UNTIL_LIVE,
        ),
        line(
            "live sample age p99 from then on while draining, s",
            &format!(
                "{age:.1} (median {:.1}, n={})",
                seen.ages.quantile(0.5),
                seen.ages.count()
            ),
            age,
            MAX_LIVE_AGE_SECONDS,
        ),
        line(
            "RSS of the server, MiB",
            &format!("{:.0}", seen.rss),
            seen.rss,
            MAX_RSS_MIB,
        ),
        line(
            "backfill that waits for its commit, most, MiB",
            &format!("{:.1}", seen.backfill),
            seen.backfill,
            MAX_BACKFILL_MIB,
        ),
        at_least(
            "requests told to come again, the bound being met",
            &format!("{:.0}", seen.full),
            seen.full,
            // Whether a server as it comes meets it depends on how fast the machine is.
            f64::from(u8::from(short)),
        ),
        line(
            "minutes lost, doubled, incomplete or with a wrong value",
            &wrong.to_string(),
            wrong as f64,
            0.0,
        ),
    ]
    .iter()
    .all(|it| *it)
}
