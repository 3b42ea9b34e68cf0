//! Two agents that report one GPU: one of them is taken, and which one is told.

use super::*;

/// Energy and power of GPU-1, as both agents read it from the same driver.
fn reads(agent: u128, seq: u64, end: i64) -> Sent {
    let mut tick = sent(seq, end);
    tick.agent = agent;
    tick.resource = gpu_resource().with(attribute::NODE, format!("n{agent}"));
    let joules = (end - T) as f64;
    tick.points.push((gpu::ENERGY, None, total(joules)));
    tick
}

fn twice(outcome: Outcome) -> u64 {
    folded(outcome).count(Drop::ReportedTwice)
}

/// Commits; the count of power points and the growth of energy over all minutes, and the events.
fn stored(fleet: &Fleet) -> (u32, f64, Vec<(EventKind, String)>) {
    let commit = fleet.take_commit(Timestamp::from_seconds(T)).expect("much");
    fleet.committed(commit.number);
    let mut meter = gpufleet_telemetry::minute::Meter::default();
    let rows = || commit.minutes.iter().map(|it| &it.row);
    let count = rows().map(|it| it.metrics[&gpu::POWER.id].count).sum();
    let energy = rows().map(|it| meter.read(gpu::ENERGY.id, &it.counters[&gpu::ENERGY.id]));
    let events = commit
        .events
        .iter()
        .map(|it| (it.event.kind, it.event.message.clone()));
    (count, energy.sum(), events.collect())
}

#[test]
fn of_two_agents_on_one_gpu_the_first_is_taken_and_the_other_is_told_once() {
    let fleet = fleet();
    for tick in 1..=12_u64 {
        let end = T + 10 * tick as i64;
        assert_eq!(twice(reads(1, tick, end).offer(&fleet)), 0);
        assert_eq!(twice(reads(2, tick, end).offer(&fleet)), 2);
    }
    let (count, energy, events) = stored(&fleet);
    assert_eq!((count, energy), (12, 110.0));
    let [(EventKind::GpuReportedTwice, message)] = &*events else {
        panic!("{events:?}");
    };
    let ids = [1, 2].map(|it| Uuid::from_u128(it).to_string());
    for part in ["GPU-1", "n1", "n2", &ids[0], &ids[1]] {
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let second = fleet.second(&key()).expect("it is known");
    assert_eq!(
        (second.agent, &*second.node),
        (AgentId(Uuid::from_u128(2)), "n2")
    );
    let live = fleet.get(&key()).expect("live");
    assert_eq!(live.agent, Some(AgentId(Uuid::from_u128(1))));
}

#[test]
fn when_the_owner_is_silent_for_two_ticks_the_other_takes_over_and_keeps_it() {
    let fleet = fleet();
    folded(reads(1, 1, T + 10).offer(&fleet));
    assert_eq!(twice(reads(2, 1, T + 30).offer(&fleet)), 2, "two ticks");
    assert_eq!(twice(reads(2, 2, T + 31).offer(&fleet)), 0);
    assert_eq!(twice(reads(1, 2, T + 40).offer(&fleet)), 2, "it comes back");
    let live = fleet.get(&key()).expect("live");
    assert_eq!(live.agent, Some(AgentId(Uuid::from_u128(2))));
}

#[test]
fn the_driver_itself_is_taken_before_an_exporter() {
    let fleet = fleet();
    let from = |agent, seq, end, source| {
        let mut tick = reads(agent, seq, end);
        tick.resource = tick.resource.with(attribute::SOURCE, source);
        twice(tick.offer(&fleet))
    };
    assert_eq!(from(1, 1, T + 10, "exporter:dcgm"), 0);
    assert_eq!(from(2, 1, T + 20, "nvml,gpm"), 0);
    assert_eq!(from(1, 2, T + 21, "exporter:dcgm"), 2);
}

#[test]
fn old_data_belongs_to_the_agent_that_had_the_gpu_then() {
    let fleet = fleet();
    let old = |agent, seq, end| {
        let mut tick = reads(agent, seq, end);
        (tick.lane, tick.behind) = (Lane::Backfill, 0);
        twice(tick.offer(&fleet))
    };
    // Agent 1 has it until second 60, agent 2 from second 120 on.
    for tick in 1..=6 {
        folded(reads(1, tick, T + 10 * tick as i64).offer(&fleet));
    }
    for tick in 12..=14 {
        folded(reads(2, tick - 11, T + 10 * tick as i64).offer(&fleet));
    }
    assert_eq!(old(2, 4, T + 50), 2, "it was agent 1's");
    assert_eq!(old(1, 7, T + 70), 0, "it drains its spool");
    assert_eq!(old(1, 8, T + 80), 0);
    assert_eq!(old(2, 5, T + 75), 2, "now that is agent 1's too");
    assert_eq!(old(2, 6, T + 110), 0, "and this was nobody's");
    assert_eq!(old(1, 9, T + 130), 2, "it was agent 2's");
    let (count, energy, _) = stored(&fleet);
    assert_eq!((count, energy), (12, 130.0));
}

#[test]
fn a_gpu_that_moves_to_another_agent_is_shown_once_and_strangers_do_not_overrule_agents() {
    for mover in 2..40 {
        let fleet = fleet();
        let mut foreign = sent(1, T + 10);
        foreign.agent = FOREIGN_AGENT.0.as_u128();
        folded(foreign.offer(&fleet));
        assert_eq!(fleet.get(&key()).expect("live").agent, None);
        folded(sent(1, T + 20).offer(&fleet));
        let mut moved = sent(1, T + 41);
        moved.agent = mover;
        folded(moved.offer(&fleet));
        let mut seen = Vec::new();
        fleet.visit(|live| seen.push(live.agent));
        assert_eq!(seen, [Some(AgentId(Uuid::from_u128(mover)))]);
        let mut foreign = sent(2, T + 50);
        foreign.agent = FOREIGN_AGENT.0.as_u128();
        assert_eq!(
            folded(foreign.offer(&fleet)).count(Drop::ReportedByAgent),
            1
        );
        assert_eq!(fleet.agents().len(), 2, "the foreign agent is none");
    }
}
