//! The money of a day of 64 simulated GPUs: who held them, what they did, what they cost.
//!
//! The truth is made here from the roles that the simulator's jobs play, second by second as it looks at
//! them, and from the published prices of three machine types, of one on Spot too; not from anything that was sent.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_analysis::report::focus;
use gpufleet_server::money::report::month_of;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, server, wait};
use gpufleet_tests::simulator::fleet::SimulatedFleet;
use gpufleet_tests::simulator::journal;
use gpufleet_tests::simulator::node::Plan;
use gpufleet_tests::simulator::noise::Noise;
use gpufleet_tests::simulator::role::{Role, job};
use serde_json::Value;

/// A day of history is shipped, folded and accounted: 1,536 hours of GPUs on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);
/// A tick of history, and so many looks in it.
const TICK_S: i64 = 60;
const LOOK_S: i64 = 6;
/// Inactive for so long is idle; stalled for so long is a stall.
const LONG_S: i64 = 300;
/// How far the ledger may be behind, seconds: an hour that runs is computed every 300 s, with what is 90 s old, and a
/// minute is whole when it is over.
const BEHIND_S: i64 = 300 + 90 + 60;
/// What may be rounded off: half a nano-dollar of each of the eight nodes on each of at most three days, and one of each here.
const ROUNDED: i128 = 24;
/// More of 80 GB than 512 MiB.
const EMPTY_RATIO: f64 = 0.006;
/// What an hour of a node's eight costs in us-central1, nano-USD: of one on Spot, of two of other machine types on
/// demand, and of each of the others.
const MACHINES: [(usize, i128); 4] = [
    (5, 50_609_541_000),
    (6, 86_759_920_000),
    (7, 40_550_383_000),
    (0, 88_490_000_000),
];

/// What a GPU shows in one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Free,
    Active,
    Stalled,
    Idle { is_empty: bool },
}

/// Milliseconds in each state.
type States = BTreeMap<String, i64>;

fn shown(node: usize, gpu: usize, second: i64) -> Shown {
    let seed = Plan::demo().seed;
    let noise = Noise::new(seed, 2, (node * 64 + gpu) as u64);
    let role = job(node, gpu).role;
    let load = role.load(Noise::new(seed, 0, 0), noise, second);
    match role {
        Role::Free => Shown::Free,
        // A job that died holds nothing until it is started again.
        _ if load.memory == 0.0 => Shown::Free,
        Role::Stalled => Shown::Stalled,
        _ if load.engine >= 0.05 => Shown::Active,
        _ => Shown::Idle {
            is_empty: load.memory < EMPTY_RATIO,
        },
    }
}

/// What a GPU did from one moment until another, and how often that changed.
fn truth(node: usize, gpu: usize, from_s: i64, until_s: i64) -> (States, i64) {
    let looks: Vec<Shown> = (from_s..until_s)
        .step_by(LOOK_S as usize)
        .map(|second| shown(node, gpu, second))
        .collect();
    let (mut states, mut changes) = (States::new(), 0);
    let is_idle = |it: &Shown| matches!(it, Shown::Idle { .. });
    for run in looks.chunk_by(|a, b| a == b || is_idle(a) && is_idle(b)) {
        changes += 1;
        let seconds = run.len() as i64 * LOOK_S;
        let mut add = |state: &str, seconds: i64| {
            *states.entry(state.to_owned()).or_default() += seconds * 1_000
        };
        match run[0] {
            Shown::Free => add("unallocated", seconds),
            Shown::Active => add("active_unrated", seconds),
            Shown::Stalled => {
                add("active_unrated", seconds.min(LONG_S));
                add("stalled", (seconds - LONG_S).max(0));
            }
            Shown::Idle { .. } if seconds < LONG_S => add("gap", seconds),
            Shown::Idle { .. } => {
                for look in run {
                    let is_empty = matches!(look, Shown::Idle { is_empty: true });
                    add(if is_empty { "held_empty" } else { "parked" }, LOOK_S);
                }
            }
        }
    }
    (states, changes)
}

/// The months that a stretch of time lies in.
fn months(from: Timestamp, until: Timestamp) -> Vec<String> {
    let mut months = vec![month_of(from), month_of(until)];
    months.dedup();
    months
}

/// Reports of the months in question, grouped by GPU.
fn reports(server: &server::Server, months: &[String]) -> Vec<Value> {
    let ask = |month: &String| {
        let path = format!("/api/v1/reports/chargeback?cluster=demo&by=team,gpu&month={month}");
        server.get(&path).json()
    };
    months.iter().map(ask).collect()
}

/// Milliseconds by GPU and state, and teams by GPU, of all reports.
fn told(reports: &[Value]) -> (BTreeMap<String, States>, BTreeMap<String, Vec<String>>) {
    let (mut states, mut teams) = (BTreeMap::new(), BTreeMap::new());
    for group in reports
        .iter()
        .filter_map(|it| it["groups"].as_array())
        .flatten()
    {
        let word = |by: &str| group["by"][by].as_str().unwrap_or_default().to_owned();
        let of_gpu: &mut States = states.entry(word("gpu")).or_default();
        teams
            .entry(word("gpu"))
            .or_insert_with(Vec::new)
            .push(word("team"));
        for (state, sum) in group["states"].as_object().into_iter().flatten() {
            let millis = sum["gpu_millis"].as_i64().unwrap_or(0);
            *of_gpu.entry(state.clone()).or_default() += millis;
        }
    }
    (states, teams)
}

/// What differs from the truth by more than a tick a change, of what the ledger has of each GPU; and where that ends
/// more than a tick before what it must have, or after what there was.
fn differences(
    found: &BTreeMap<String, States>,
    ids: &[Vec<String>],
    (from, must, until): (i64, i64, i64),
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (node, ids) in ids.iter().enumerate() {
        for (gpu, id) in ids.iter().enumerate() {
            let nothing = States::new();
            let found = found.get(id).unwrap_or(&nothing);
            let of = |it: &States, state: &str| it.get(state).copied().unwrap_or(0);
            // Whoever falls silent at the end is unobserved for a while, and before that nobody is.
            let unobserved = of(found, "unobserved");
            let seen = found.values().sum::<i64>() - unobserved;
            let ends = from + seen / 1_000;
            let least = if unobserved == 0 { must } else { until };
            if ends < least - TICK_S || ends > until + TICK_S {
                wrong.push(format!(
                    "GPU {gpu} of node {node}: seen {seen} ms, to {ends}, and {unobserved} ms not; must be from {from} \
                     to {least}-{until}"
                ));
            }
            let (expected, changes) = truth(node, gpu, from, ends.min(until));
            for state in ["unallocated", "parked", "held_empty", "stalled"] {
                let allowed = (changes + 1) * TICK_S * 1_000;
                let (is, must) = (of(found, state), of(&expected, state));
                if (is - must).abs() > allowed {
                    wrong.push(format!(
                        "GPU {gpu} of node {node}: {state} {is} ms, must be {must} ms ± {allowed} ms"
                    ));
                }
            }
        }
    }
    wrong
}

// On one database: it computes for two minutes, and what PostgreSQL has a part in of it `ledger_dashboard` sums up.
#[test]
fn a_day_of_64_gpus_costs_what_its_nodes_cost_and_is_idle_when_its_gpus_were() {
    let world = World::new();
    let server = server::Place::new(&world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let began = wait::unix_seconds();
    let simulator = Simulator::start(
        &world,
        &endpoint,
        &["--history-hours", "24", "--no-training"],
    );
    wait::until("the API lists 64 GPUs", LIMIT, || {
        let gpus = server.get("/api/v1/gpus?cluster=demo").json();
        (gpus["items"].as_array()?.len() == 64).then_some(())
    });
    let ids: Vec<Vec<String>> = SimulatedFleet::new(&Plan::demo()).gpu_ids();
    wait::until("the day of every node is there", LIMIT, || {
        let from = Timestamp::from_seconds(began - 24 * 3_600 + 120);
        let from = gpufleet_analysis::table::moment_text(from.millis());
        let is_whole = |ids: &Vec<String>| {
            let path = format!("/api/v1/gpus/demo/{}/minutes?from={from}", ids[0]);
            server.get(&path).json()["unknown_minutes"]
                .as_i64()
                .is_some_and(|it| it < 5)
        };
        ids.iter().all(is_whole).then_some(())
    });
    simulator.stop();
    let journal = std::fs::read_to_string(world.path("simulator/journal")).unwrap_or_default();
    let until = journal::goes_on_at(&journal).map_or(began, |it| it.seconds());
    let from = journal::whole_minutes(&journal).start.start().seconds();
    let at = Timestamp::from_seconds;
    let months = months(at(from), at(until));
    let (found, must) = wait::until("the ledger has the day", LIMIT, || {
        let must = until.min(wait::unix_seconds() - BEHIND_S);
        let reports = reports(&server, &months);
        let wrong = differences(&told(&reports).0, &ids, (from, must, until));
        std::fs::write(world.path("differences"), wrong.join("\n")).ok()?;
        wrong.is_empty().then_some((reports, must))
    });
    let (states, teams) = told(&found);
    // What the nodes cost by the published prices: for the time that is told, to the rounding; and for as long as there
    // were ticks, which is not told by anybody here.
    let (mut expected, mut least, mut truth, mut tick) = (0, 0, 0, 0);
    for (node, ids) in ids.iter().enumerate() {
        let machine = MACHINES.iter().find(|it| it.0 == node);
        let rate = machine.unwrap_or(&MACHINES[3]).1;
        let millis: i64 = ids.iter().flat_map(|id| states[id].values()).sum();
        expected += rate * i128::from(millis) / 8 / 3_600_000;
        least += rate * i128::from(must - from) / 3_600;
        truth += rate * i128::from(until - from) / 3_600;
        tick += rate * i128::from(TICK_S) / 3_600;
    }
    let amount = |value: &Value| {
        let text = value.as_str().expect("money is text");
        i128::from(gpufleet_analysis::money::parse(text).expect("an amount"))
    };
    let (mut cost, mut unseen) = (0, 0);
    for report in &found {
        assert_eq!(report["balance"]["is_exact"], true, "{}", report["balance"]);
        assert_eq!(
            report["unpriced"]["gpu_millis"], 0,
            "{}",
            report["findings"]
        );
        cost += amount(&report["total"]["cost"]);
        unseen += amount(&report["unobserved"]["cost"]);
    }
    assert!(
        (cost - expected).abs() <= ROUNDED,
        "{cost} is not {expected}"
    );
    let seen = cost - unseen;
    assert!(
        (least - tick..=truth + tick).contains(&seen),
        "{seen} is not {least} to {truth} ± {tick}"
    );
    assert!(
        teams[&ids[0][0]].contains(&"foundation-models".to_owned()),
        "{teams:?}"
    );

    // The same from the client, from the server's own command and on the page.
    let month = month_of(at((from + until) / 2));
    let report = ["report", "chargeback", "--cluster", "demo"];
    let report = report
        .into_iter()
        .chain(["--by", "team,gpu", "--month", &month]);
    let client = typed(&server.place.web, report).well();
    let client = client.expect("the report is made");
    assert!(client.contains("foundation-models,"), "{client}");
    let adds_up = [
        "report",
        "reconcile",
        "--cluster",
        "demo",
        "--month",
        &month,
    ];
    let client = typed(&server.place.web, adds_up).well();
    let client = client.expect("it adds up");
    let words = "The lines add up to the node-hours' price exactly.\n";
    assert!(client.contains(words), "{client}");
    let mut own = server.place.command();
    let own = own.args(adds_up).output().expect("the server is built");
    let own = String::from_utf8_lossy(&own.stdout).into_owned();
    assert!(own.starts_with("what,amount,currency\nlines,"), "{own}");
    let page = server.get("/cost").text();
    assert!(page.contains("SIMULATED"), "{page}");
    // It is of the month that runs, in which on its first morning there is less than half of the day.
    let is_in_it = month == month_of(at(until));
    assert!(!is_in_it || page.contains("foundation-models"), "{page}");
    for version in focus::Version::ALL {
        let asked = [
            "report",
            "chargeback",
            "--cluster",
            "demo",
            "--format",
            "focus",
        ];
        let asked = asked
            .into_iter()
            .chain(["--month", &month, "--focus-version", version.name()]);
        let mut own = server.place.command();
        let own = own
            .args(asked.clone())
            .output()
            .expect("the server is built");
        assert!(own.status.success(), "{own:?}");
        let own = String::from_utf8_lossy(&own.stdout).into_owned();
        let client = typed(&server.place.web, asked).well();
        for text in [own, client.expect("the file is made")] {
            let wrong = focus::check::check(&text, version);
            assert!(wrong.is_empty() && text.lines().count() > 10, "{wrong:?}");
        }
    }
    let unknown = [
        "report",
        "chargeback",
        "--format",
        "focus",
        "--focus-version",
        "1.1",
    ];
    let mut own = server.place.command();
    let own = own.args(unknown).output().expect("the server is built");
    let said = String::from_utf8_lossy(&own.stderr).into_owned();
    assert!(!own.status.success() && said.contains("1.2, 1.3"), "{said}");
    server.stop();
}
