//! The agent against the stand-in driver, shipping to a real server.
//!
//! CPU and memory are of the agent and all its children, as the kernel counts them. The driver's
//! calls spin for their 30 µs, as a driver's do, so they are in the CPU figure.

use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::scenario::CallCost;
use gpufleet_tests::harness::{World, agent, server, usage, wait};

use crate::figures::{Spread, line, told};

const MIB: f64 = 1_048_576.0;
const KIB: f64 = 1_024.0;
/// What the agent must stay within.
const MAX_CPU_PERCENT: f64 = 1.0;
const MAX_PSS_MIB: f64 = 24.0;
const MAX_GROWTH_KIB: f64 = 256.0;
const MAX_SCRAPE_MS: f64 = 5.0;
/// Period of back-to-back ticks, milliseconds: the shortest the agent takes. 10,000 take 17 minutes.
const BACK_TO_BACK_MS: u64 = 100;

pub(crate) fn run(short: bool) -> bool {
    told("agent, 8 GPUs (stand-in, 30 µs a call, spinning), 1 s sampling, 10 s shipping");
    let (windows, ticks) = if short { (2, 2_000) } else { (8, 10_000) };
    let steady = steady(windows);
    let flat = flatness(ticks);
    steady && flat
}

fn scenario() -> Scenario {
    Scenario {
        time_s: None,
        call_cost: CallCost::Spin,
        call_cost_us: 30,
        ..Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training)
    }
}

fn start(world: &World, more: &str) -> (server::Server, agent::Agent) {
    let server = server::Place::sqlite(world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(world, "bench", &endpoint, more);
    place.show(&scenario());
    let agent = place.start();
    wait::until(
        "the agent serves eight GPUs",
        Duration::from_secs(30),
        || {
            let text = agent.get("/metrics")?.text();
            let gpus = text.matches("\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{").count();
            (gpus == 8).then_some(())
        },
    );
    (server, agent)
}

/// CPU and memory over windows of 20 s, after 20 s of warming up; then 1,000 scrapes.
fn steady(windows: usize) -> bool {
    const WINDOW: Duration = Duration::from_secs(20);
    let world = World::new();
    let (server, agent) = start(&world, "");
    wait::pause(WINDOW);
    let (mut cpu, mut pss) = (Spread::default(), Spread::default());
    for _ in 0..windows {
        let (before, began) = (usage::of_group(agent.id()), wait::now());
        wait::pause(WINDOW);
        let (after, ended) = (usage::of_group(agent.id()), wait::now());
        let seconds = (ended - began).as_secs_f64();
        cpu.add((after.cpu_seconds - before.cpu_seconds) / seconds * 100.0);
        pss.add(after.pss_bytes / MIB);
    }
    let mut scrapes = Spread::default();
    let mut bytes = 0;
    for _ in 0..1_000 {
        let began = wait::now();
        let answer = agent.get("/metrics").expect("the agent answers");
        scrapes.add((wait::now() - began).as_secs_f64() * 1_000.0);
        bytes = answer.body.len();
    }
    let (p99, median) = (scrapes.quantile(0.99), scrapes.quantile(0.5));
    agent.stop();
    server.stop();
    let results = [
        line(
            "CPU, parent and children, % of a core",
            &cpu.told(),
            cpu.mean(),
            MAX_CPU_PERCENT,
        ),
        line(
            "PSS, parent and children, MiB",
            &pss.told(),
            pss.max(),
            MAX_PSS_MIB,
        ),
        line(
            "/metrics p99, ms",
            &format!("{p99:.2} (median {median:.2}, {bytes} bytes, n=1000)"),
            p99,
            MAX_SCRAPE_MS,
        ),
    ];
    results.iter().all(|it| *it)
}

/// Whether memory is flat: the mean of the last thousand ticks against the second thousand. Of the whole
/// the share of libc's pages moves with how many other programs of the machine use them; what no file is
/// behind does not.
fn flatness(ticks: u64) -> bool {
    let world = World::new();
    let (server, agent) = start(
        &world,
        &format!("[sample]\nperiod_ms = {BACK_TO_BACK_MS}\n"),
    );
    let thousand = Duration::from_millis(1_000 * BACK_TO_BACK_MS);
    let count = u32::try_from(ticks / 1_000).unwrap_or(1).max(2);
    let (mut whole, mut anonymous) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let began = wait::now();
        let (mut pss, mut own) = (Spread::default(), Spread::default());
        while wait::now() - began < thousand {
            let used = usage::of_group(agent.id());
            pss.add(used.pss_bytes / KIB);
            own.add(used.anonymous_bytes / KIB);
            wait::pause(thousand / 20);
        }
        whole.push(pss.mean());
        anonymous.push(own.mean());
    }
    agent.stop();
    server.stop();
    let results = [("PSS", whole), ("of it without a file", anonymous)].map(|(name, means)| {
        let growth = means[means.len() - 1] - means[1];
        let told: Vec<_> = means.iter().map(|it| format!("{it:.0}")).collect();
        line(
            &format!("{name}, growth over {ticks} ticks back to back, KiB"),
            &format!("{growth:.0} (per thousand ticks: {})", told.join(" ")),
            growth,
            MAX_GROWTH_KIB,
        )
    });
    results.iter().all(|it| *it)
}
