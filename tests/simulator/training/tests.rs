//! The ranks of the simulated jobs: what they say, do again, die of, and how faults change it.

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::{Metric, gpu, training};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::otlp::{Limits, decode_events};
use gpufleet_telemetry::steps::{RESOLUTION_NS, StepTimes};
use gpufleet_telemetry::tick::PointValue;
use gpufleet_telemetry::training::RankId;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;

use super::*;
use crate::simulator::faults::{Condition, Fault, Faults};
use crate::simulator::fleet::SimulatedFleet;
use crate::simulator::node::Plan;
use crate::simulator::schedule::Size;

const MINUTE: i64 = 60 * NANOS_PER_SECOND;
const TICK: i64 = 10 * NANOS_PER_SECOND;

/// What all nodes say in one tick, and tell.
fn tick(fleet: &mut SimulatedFleet, start: Timestamp) -> (Vec<ResourceTick>, Told) {
    let (mut ticks, mut told) = (Vec::new(), Told::default());
    for node in &mut fleet.nodes {
        ticks.extend(node.tick(start, 10, &fleet.faults));
        told.extend(node.take_told());
    }
    (ticks, told)
}

fn schedule() -> Schedule {
    Schedule::new(Size::Large, Noise::new(Plan::demo().seed, 0, 0))
}

/// An attempt that goes on from a checkpoint, and that ends by an XID or by a script.
fn attempt(by_xid: bool) -> Attempt {
    let mut minute = gpufleet_telemetry::time::Minute(30_000_000);
    loop {
        let attempt = schedule().ended(minute);
        if attempt.ends_by_xid() == by_xid && attempt.number > 0 {
            return attempt;
        }
        minute = attempt.began.minute();
    }
}

fn value(tick: &ResourceTick, metric: &Metric) -> f64 {
    let point = tick.points.iter().find(|it| it.metric == metric.id);
    match point.expect("the rank says it").value {
        PointValue::Gauge { value, .. } | PointValue::Counter { value, .. } => value,
        other => panic!("{} is {other:?}", metric.name),
    }
}

fn large(told: &Told) -> BTreeMap<u32, &Vec<StepRecord>> {
    let all = told.steps.iter().filter_map(|(id, records)| {
        let id = RankId::parse(id).expect("it is the id of a rank");
        (id.job.name == "llama-70b-pretrain").then_some((id.rank, records))
    });
    all.collect()
}

#[test]
fn thirty_two_ranks_do_the_same_steps_and_their_totals_are_those_of_their_steps() {
    let mut fleet = SimulatedFleet::new(&Plan::demo());
    let start = attempt(true).began.shifted(10 * MINUTE);
    let mut all = Told::default();
    let mut last = Vec::new();
    for turn in 0..6 {
        let (ticks, told) = tick(&mut fleet, start.shifted(turn * TICK));
        all.extend(told);
        last = ticks;
    }
    let ranks = large(&all);
    assert_eq!(
        ranks.keys().copied().collect::<Vec<_>>(),
        (0..32).collect::<Vec<_>>()
    );
    let numbers = |rank: u32| ranks[&rank].iter().map(|it| it.step).collect::<Vec<_>>();
    assert_eq!(numbers(31), numbers(0));
    assert_eq!(numbers(0).len(), 50);
    let is_rank_7 = |it: &&ResourceTick| {
        let id = RankId::parse(&it.resource.id).ok();
        it.resource.kind == ResourceKind::Rank
            && id.is_some_and(|it| it.rank == 7 && it.job.namespace == "foundation")
    };
    let said = last.iter().find(is_rank_7).expect("rank 7 says something");
    let busy: u64 = ranks[&7].iter().map(|it| it.times.busy_ns).sum();
    assert_eq!(value(said, &training::STEPS), 50.0);
    assert!((value(said, &training::STEP_BUSY) - busy as f64 / 1e9).abs() < 1e-6);
    let newest = numbers(7).last().map(|it| *it as f64);
    assert_eq!(Some(value(said, &training::LAST_STEP)), newest);
    let resource = &said.resource;
    assert_eq!(
        resource.attribute(attribute::MESH),
        Some("dp=1/4 pp=0/2 tp=3/4")
    );
    let gpu = resource.attribute(attribute::GPU_ID).unwrap_or_default();
    assert_eq!(gpu, fleet.nodes[0].gpu_ids()[7]);
}

#[test]
fn the_rank_whose_gpu_throttles_computes_a_fifth_longer_and_all_wait_for_it() {
    for (minutes, is_slow) in [(10, false), (30, true)] {
        let mut fleet = SimulatedFleet::new(&Plan::demo());
        let start = attempt(true).began.shifted(minutes * MINUTE);
        let (ticks, told) = tick(&mut fleet, start);
        let ranks = large(&told);
        let mean = |rank: u32, of: fn(&StepTimes) -> u64| {
            let records = ranks[&rank];
            let sum: u64 = records.iter().map(|it| of(&it.times)).sum();
            sum as f64 / records.len() as f64
        };
        // Rank 20 is its neighbour in the same stage.
        let ratio = mean(21, |it| it.busy_ns) / mean(20, |it| it.busy_ns);
        assert_eq!((1.15..1.25).contains(&ratio), is_slow, "{ratio}");
        assert_eq!(!(0.97..1.03).contains(&ratio), is_slow, "{ratio}");
        assert_eq!(mean(21, |it| it.wall_ns) > 1.35e9, is_slow);
        assert!((mean(21, |it| it.wall_ns) - mean(3, |it| it.wall_ns)).abs() < 1.0);
        let id = &fleet.nodes[2].gpu_ids()[5];
        let gpu = ticks.iter().find(|it| &*it.resource.id == id.as_str());
        let gpu = gpu.expect("its GPU is read");
        assert_eq!(value(gpu, &gpu::THROTTLE_REASONS) > 0.0, is_slow);
        assert_eq!(value(gpu, &gpu::SM_CLOCK) < 1.7e9, is_slow);
    }
}

#[test]
fn every_other_attempt_ends_by_an_xid_and_the_rest_wait_for_the_rank_that_had_it() {
    for (by_xid, first, exception) in [
        (true, 11, "torch.AcceleratorError"),
        (false, 6, "torch.OutOfMemoryError"),
    ] {
        let mut fleet = SimulatedFleet::new(&Plan::demo());
        let attempt = attempt(by_xid);
        let mut told = Told::default();
        for turn in -3..12 {
            let (_, now) = tick(&mut fleet, attempt.ends.shifted(turn * TICK));
            told.extend(now);
        }
        let of = |kind| told.events.iter().filter(move |it| it.kind == kind);
        assert_eq!(of(EventKind::RunEnded).count(), 32);
        let mut died: Vec<_> = of(EventKind::RankException).collect();
        died.sort_by_key(|it| it.at);
        let rank = RankId::parse(&died[0].resource_id).expect("a rank died");
        assert_eq!((rank.rank, rank.attempt), (first, attempt.number));
        assert_eq!(died[0].attributes["exception"], exception);
        let xids: Vec<_> = of(EventKind::Xid)
            .map(|it| it.resource_id.to_string())
            .collect();
        let gpu = fleet.nodes[1].gpu_ids()[3].clone();
        assert_eq!(xids, if by_xid { vec![gpu] } else { Vec::new() });
        let last = attempt.after_step + schedule().done(&attempt, attempt.ends);
        assert!(of(EventKind::RunEnded).all(|it| it.attributes["step"] == last.to_string()));
    }
}

#[test]
fn a_checkpoint_is_told_once_and_the_next_attempt_goes_on_from_the_last_one() {
    let mut fleet = SimulatedFleet::new(&Plan::demo());
    let attempt = attempt(true);
    let mut told = Told::default();
    for turn in 0..(43 * 6) {
        let (_, now) = tick(&mut fleet, attempt.began.shifted(turn * TICK));
        told.extend(now);
    }
    let steps = |kind| -> Vec<String> {
        let of = told.events.iter().filter(|it| it.kind == kind);
        of.map(|it| it.attributes["step"].clone()).collect()
    };
    let after = attempt.after_step;
    assert_eq!(steps(EventKind::CheckpointRestored), [after.to_string()]);
    assert_eq!(
        steps(EventKind::CheckpointSaved),
        [(after + 1_800).to_string()]
    );
    let first = large(&told)[&0].first().map(|it| it.step);
    assert_eq!(first, Some(after + 1));
    let started = told
        .events
        .iter()
        .filter(|it| it.kind == EventKind::RunStarted);
    assert!(started.count() >= 32);
}

#[test]
fn faults_stop_the_steps_slow_them_or_end_the_attempt_and_healing_begins_the_next() {
    let mut fleet = SimulatedFleet::new(&Plan::demo());
    let ids = fleet.gpu_ids();
    let attempt = attempt(true);
    let start = attempt.began.shifted(50 * MINUTE);
    let mut turns = 0;
    let mut go = |fleet: &mut SimulatedFleet| {
        turns += 1;
        tick(fleet, start.shifted(turns * TICK))
    };
    let (_, before) = go(&mut fleet);
    fleet.faults.inject(Fault::Stall, &ids, start);
    let (ticks, stuck) = go(&mut fleet);
    assert!(large(&stuck).values().all(|records| records.is_empty()));
    let of_large = |it: &&ResourceTick| it.resource.id.contains("llama-70b-pretrain");
    let rank = ticks.iter().find(of_large).expect("its processes live");
    assert_eq!(value(rank, &training::COLLECTIVES_IN_FLIGHT), 1.0);
    assert!(value(rank, &training::COLLECTIVE_OLDEST_AGE) > 9.0);
    fleet.faults.inject(Fault::Heal, &ids, start);
    fleet.faults.inject(Fault::Thermal, &ids, start);
    let (_, slow) = go(&mut fleet);
    let (before, slow) = (large(&before), large(&slow));
    let last = before[&0].last().expect("it stepped").step;
    assert_eq!(
        slow[&0].first().map(|it| it.step),
        Some(last + 1),
        "no step is lost"
    );
    assert!(slow[&9][0].times.busy_ns as f64 > 1.15 * slow[&4][0].times.busy_ns as f64);
    fleet.faults.inject(Fault::Heal, &ids, start);
    fleet.faults.inject(Fault::Xid79, &ids, start);
    let (ticks, broken) = go(&mut fleet);
    assert!(!ticks.iter().any(|it| of_large(&it)));
    assert!(large(&broken).is_empty());
    let ended = broken
        .events
        .iter()
        .filter(|it| it.kind == EventKind::RunEnded);
    assert_eq!(ended.count(), 32);
    assert_eq!(fleet.faults.condition(0, 0), Condition::Healthy);
    fleet.faults.inject(Fault::Heal, &ids, start);
    let (_, again) = go(&mut fleet);
    let (id, records) = &again.steps[0];
    let id = RankId::parse(id).expect("it is the id of a rank");
    assert_eq!(id.attempt, attempt.number + 1);
    let kept = attempt.after_step + 1_800;
    assert_eq!(records.first().map(|it| it.step), Some(kept + 1));
}

#[test]
fn what_is_told_travels_and_comes_out_as_it_was() {
    let mut fleet = SimulatedFleet::new(&Plan::demo());
    let start = attempt(true).began.shifted(20 * MINUTE);
    let node = &mut fleet.nodes[1];
    node.tick(start, 10, &Faults::default());
    let told = node.take_told();
    let requests = told.requests(node.resource());
    let decoded: Vec<_> = requests
        .iter()
        .map(|bytes| {
            let request = ExportLogsServiceRequest::decode(bytes.as_slice());
            decode_events(request.expect("it is a request"), &Limits::default())
        })
        .collect();
    let events: Vec<_> = decoded
        .iter()
        .flat_map(|it| &it.events)
        .map(|it| it.event.clone())
        .collect();
    assert_eq!(events, told.events);
    let found: Vec<_> = decoded.iter().flat_map(|it| &it.steps).collect();
    assert_eq!(found.len(), 8);
    for (steps, (id, records)) in found.iter().zip(&told.steps) {
        assert_eq!(steps.rank.to_string(), **id);
        let times = steps.blocks.iter().flat_map(|it| &it.times);
        for (found, record) in times.zip(records) {
            // Times travel in units of two microseconds, as the longest is above one second.
            let off = found.busy_ns.abs_diff(record.times.busy_ns);
            assert!(off <= 2 * RESOLUTION_NS, "{off}");
        }
        let tokens: u64 = steps.blocks.iter().map(|it| it.tokens).sum();
        assert_eq!(tokens, records.len() as u64 * 8_192);
    }
}
