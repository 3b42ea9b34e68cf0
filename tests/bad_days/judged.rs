//! What the demo can break, and the rank that throttles in it by itself, are one incident each: the right
//! place, cause and price, until it is over.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Incident, State};
use gpufleet_telemetry::time::NANOS_PER_SECOND;
use gpufleet_tests::simulation::judged::{Judged, attempt};
use gpufleet_tests::simulator::faults::Fault;
use gpufleet_tests::simulator::node::Plan;

pub(super) const SEED: u64 = 1;
const MINUTE_NS: i64 = 60 * NANOS_PER_SECOND;
/// The job's processes come up for two minutes, and its first steps are learnt.
pub(super) const UNTIL_IT_GOES: u64 = 5;
/// How long something is broken: a run stands for two minutes before it is said to.
pub(super) const BROKEN: u64 = 5;
/// How long after it was mended all must be over: what slows down is told over minutes.
pub(super) const MENDED: u64 = 5;
/// The same of a link, which comes and goes: five minutes without a sign.
const LINK_MENDED: u64 = 8;

/// The four nodes that train the large model.
pub(super) fn plan() -> Plan {
    Plan {
        seed: SEED,
        nodes: 4,
        ..Plan::demo()
    }
}

/// What must come of a fault.
struct Expected {
    fault: Fault,
    family: Family,
    cause: Cause,
    node: Option<&'static str>,
    is_one_gpu: bool,
    rank: Option<u32>,
    /// GPUs that it takes, at least.
    takes: f64,
}

const NODE: Option<&str> = Some("demo-node-2");

const fn broken_gpu(fault: Fault) -> Expected {
    Expected {
        fault,
        family: Family::GpuFault,
        cause: Cause::GpuFault,
        node: NODE,
        is_one_gpu: true,
        rank: None,
        takes: 1.0,
    }
}

const EXPECTED: [Expected; 9] = [
    broken_gpu(Fault::Xid79),
    broken_gpu(Fault::Lost),
    broken_gpu(Fault::Hang),
    Expected {
        fault: Fault::Stall,
        family: Family::Hang,
        cause: Cause::Unknown,
        node: None,
        is_one_gpu: false,
        rank: None,
        takes: 32.0,
    },
    Expected {
        fault: Fault::Thermal,
        family: Family::Heat,
        cause: Cause::Heat,
        node: NODE,
        is_one_gpu: false,
        rank: None,
        takes: 4.0,
    },
    Expected {
        fault: Fault::Slow,
        family: Family::Heat,
        cause: Cause::Heat,
        node: NODE,
        is_one_gpu: true,
        rank: Some(11),
        takes: 4.0,
    },
    Expected {
        fault: Fault::LowClock,
        family: Family::Straggler,
        cause: Cause::Clocks,
        node: NODE,
        is_one_gpu: true,
        rank: Some(11),
        takes: 4.0,
    },
    Expected {
        fault: Fault::SlowLink,
        family: Family::Link,
        cause: Cause::Network,
        node: NODE,
        is_one_gpu: false,
        rank: None,
        takes: 2.0,
    },
    Expected {
        fault: Fault::WrongNetwork,
        family: Family::Slower,
        cause: Cause::Network,
        node: None,
        is_one_gpu: false,
        rank: None,
        takes: 10.0,
    },
];

pub(super) fn shown(incidents: &[&Incident]) -> String {
    let one = |it: &&Incident| {
        let happened = it.log.iter().map(|line| format!("{:?}", line.happened));
        let happened: Vec<String> = happened.collect();
        let (family, state, cause) = (it.family, it.state, it.cause);
        let (what, place, lost) = (&it.what, &it.place, it.lost.gpu_seconds());
        format!("{family:?} {state:?} {what}, {cause:?} at {place:?}: {lost} s, {happened:?}")
    };
    incidents.iter().map(one).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn each_fault_of_the_demo_is_one_incident_with_place_cause_and_price_until_it_is_mended() {
    for expected in EXPECTED {
        let fault = expected.fault.name();
        let mut world = Judged::new(&plan(), attempt(SEED).began).await;
        world.minutes(UNTIL_IT_GOES).await;
        let before = world.incidents();
        assert!(before.is_empty(), "{fault}: before it {}", shown(&before));
        let said = world.inject(expected.fault);
        world.minutes(BROKEN).await;
        let open = world.incidents();
        let [one] = open.as_slice() else {
            panic!("{said}: {} incidents:\n{}", open.len(), shown(&open));
        };
        let all = shown(&open);
        assert_eq!(one.state, State::Open, "{all}");
        assert_eq!(
            (one.family, one.cause),
            (expected.family, expected.cause),
            "{all}"
        );
        let place = one.place_and_run();
        assert_eq!(place.node.as_deref(), expected.node, "{all}");
        assert_eq!(place.gpu.is_some(), expected.is_one_gpu, "{all}");
        assert!(
            place.gpu.is_none_or(|gpu| said.contains(&gpu)),
            "{said}: {all}"
        );
        assert_eq!(place.rank, expected.rank, "{all}");
        let takes = one.losing.milli_gpus as f64 / 1_000.0;
        assert!(takes >= expected.takes, "{fault} takes {takes} GPUs");
        assert!(one.losing.nano_usd_per_hour() > Some(0), "{all}");
        assert!(one.lost.nano_usd() > Some(0), "{all}");
        world.inject(Fault::Heal);
        world
            .minutes(match expected.family {
                Family::Link => LINK_MENDED,
                _ => MENDED,
            })
            .await;
        let over = world.incidents();
        assert_eq!(over.len(), 1, "{fault}, mended:\n{}", shown(&over));
        assert_eq!(over[0].state, State::Resolved, "{}", shown(&over));
    }
}

#[tokio::test]
async fn the_rank_of_the_demo_that_throttles_is_one_incident_each_time() {
    let began = attempt(SEED).began;
    let mut world = Judged::new(&plan(), began).await;
    // Two minutes to come up, and two cycles of 19 minutes, 20 slow ones and a checkpoint.
    world.minutes(2 + 2 * 40 + MENDED).await;
    let all = world.incidents();
    assert_eq!(all.len(), 2, "{}", shown(&all));
    for (place, incident) in (0..).zip(&all) {
        let slow_from = began.shifted((2 + place * 40 + 19) * MINUTE_NS);
        let fast_from = slow_from.shifted(20 * MINUTE_NS);
        let text = shown(&[incident]);
        let where_it_is = incident.place_and_run();
        assert_eq!(where_it_is.rank, Some(21), "{text}");
        assert_eq!(where_it_is.node.as_deref(), Some("demo-node-3"), "{text}");
        assert_eq!(
            (incident.family, incident.cause),
            (Family::Heat, Cause::Heat),
            "{text}"
        );
        let opened = incident.opened_at.expect("people were told of it");
        let late = opened.since(slow_from);
        // A step takes 1.4 s: a minute from its onset is the bound at a step a second.
        assert!(
            (0..=90 * NANOS_PER_SECOND).contains(&late),
            "{late} ns late: {text}"
        );
        let over = incident.resolved_at.expect("it is over");
        let late = over.since(fast_from);
        assert!(
            (0..=4 * MINUTE_NS).contains(&late),
            "over {late} ns late: {text}"
        );
        // Each step is a fifth longer for all 32: about 5 GPUs of 20 minutes.
        let lost = incident.lost.gpu_seconds() / 1_200.0;
        assert!((4.0..=7.0).contains(&lost), "{lost} GPUs: {text}");
    }
}

/// The whole demo, whose processes tell nothing: what is left is what its GPUs and their pods say.
fn without_hooks() -> Plan {
    Plan {
        seed: SEED,
        training: false,
        workloads: true,
        ..Plan::demo()
    }
}

const JOB: &str = "jobset:foundation/llama-70b-pretrain";
/// Two minutes to come up, and what is compared before anybody is judged.
const UNTIL_IT_IS_JUDGED: u64 = 8;

fn stragglers(world: &Judged) -> Vec<&Incident> {
    let all = world.incidents().into_iter();
    all.filter(|it| it.family == Family::Straggler).collect()
}

#[tokio::test]
async fn a_low_clock_in_a_job_that_tells_nothing_is_probably_why_it_waits_until_it_is_mended() {
    let began = attempt(SEED).began;
    let mut world = Judged::new(&without_hooks(), began).await;
    world.minutes(UNTIL_IT_IS_JUDGED).await;
    let early = stragglers(&world);
    assert!(early.is_empty(), "nobody is slow: {}", shown(&early));
    let said = world.inject(Fault::LowClock);
    world.minutes(BROKEN).await;
    let open = stragglers(&world);
    let all = shown(&open);
    let [one] = open.as_slice() else {
        panic!("{said}: {all}");
    };
    assert_eq!(
        (one.state, one.cause),
        (State::Open, Cause::Clocks),
        "{all}"
    );
    assert!(one.what.starts_with("probably"), "{all}");
    assert_eq!(one.place.run.as_deref(), Some(JOB), "{all}");
    let gpu = one.place.gpu.as_deref().expect("a GPU is named");
    assert!(said.contains(gpu), "{said}: {all}");
    let injected = began.shifted(UNTIL_IT_IS_JUDGED as i64 * MINUTE_NS);
    let opened = one.opened_at.expect("people were told of it");
    let late = opened.since(injected) / NANOS_PER_SECOND;
    assert!((60..=120).contains(&late), "{late} s: {all}");
    let takes = one.losing.milli_gpus as f64 / 1_000.0;
    assert!((4.0..=8.0).contains(&takes), "{takes} of 32 GPUs: {all}");
    assert!(one.lost.nano_usd() > Some(0), "{all}");
    world.inject(Fault::Heal);
    world.minutes(MENDED).await;
    let over = stragglers(&world);
    assert_eq!(over.len(), 1, "{}", shown(&over));
    assert_eq!(over[0].state, State::Resolved, "{}", shown(&over));
}

#[tokio::test]
async fn a_gpu_that_throttles_in_a_job_that_tells_nothing_is_the_heats_and_names_nobody_else() {
    let mut world = Judged::new(&without_hooks(), attempt(SEED).began).await;
    // Two minutes to come up, 19 at full speed, and some in which a GPU is hot.
    world.minutes(2 + 19 + 5).await;
    let slow = stragglers(&world);
    assert!(slow.is_empty(), "{}", shown(&slow));
    let all = world.incidents().into_iter();
    let heat: Vec<&Incident> = all.filter(|it| it.family == Family::Heat).collect();
    let text = shown(&heat);
    assert_eq!(heat.len(), 1, "{text}");
    let place = heat[0].place_and_run();
    assert_eq!(place.node.as_deref(), Some("demo-node-3"), "{text}");
    assert_eq!(
        place.run.as_deref(),
        Some(JOB),
        "its job waits for it: {text}"
    );
    let takes = heat[0].losing.milli_gpus;
    assert!(takes >= 4_000, "what all 32 GPUs lose: {takes}, {text}");
}
