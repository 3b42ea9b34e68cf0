//! What stands around a GPU in an hour, from what the store has of it.
//!
//! - Who held it: the minutes' own evidence; and that his container did not run (`starting_pod`), which makes a
//!   holder of its own of him as long as it is so.
//! - Its node was ready and is not (`unhealthy`, node not ready), or is cordoned (`draining` while nobody holds
//!   it): the phases of the inventory, from when each was seen until the next. Its provider said that it takes the machine
//!   back (`draining` as well): what the agent was told, for as long as the machine can be there.
//! - Why it was free (`unallocated`): nobody waited for a GPU in the whole of the hour, which is known once the hour is
//!   over and all of it was seen, but for [`UNSEEN_MS`]; and minute by minute, for GPUs with its type, taints and
//!   partitions, what the inventory saw of who waits (`analysis::inventory::unheld`).
//! - What its holder aims at, so that its active time is efficient or not: targets of its own that hold when the hour
//!   begins, then of a training job those that are shipped. MFU is not told by the minute: tensor activity counts, else
//!   that of SMs.
//! - That the run of its holder stood still (`stalled`), by the incidents that are kept of it, from when it was told.
//! - That its holder is idle by design (`warm_standby`), by the table as it is when the hour begins.
//!
//! Limits: of shares nothing is said of why they were free. What is written of it when an hour is final does not mark
//! the hour. Its node is taken to have had those that it has now, and targets are those of the table as it
//! is now, which docs/cost.md says. Before a node was first ready nothing is said here; what nobody accounted of that time
//! is `starting_node` in reports. A phase that was not seen, because nobody
//! watched, is none.

use gpufleet_analysis::inventory::Phase;
use gpufleet_analysis::ledger::MILLIS_PER_HOUR;
use gpufleet_analysis::states::{
    Around, Demand, Hold, LOOKAHEAD_MINUTES, NotReady, Span, TRAINING_TARGETS,
};
use gpufleet_telemetry::identity::{ResourceKind, attribute};

use super::{HOUR_S, Rules};
use crate::store::model::LedgerInput;

/// So much of an hour may not have been seen, milliseconds: looks are some seconds apart, and what stands for the
/// turn of the hour is of one of both hours.
const UNSEEN_MS: i64 = 60_000;

/// What is known around the hour of this input.
pub(super) fn around(input: &LedgerInput, rules: Rules<'_>) -> Around {
    let mut around = Around::told_by(&input.minutes);
    around.away.clone_from(&input.away);
    let replica_of = input.resource.resource.attribute(attribute::REPLICA_OF);
    around.is_activity_told = replica_of.is_some();
    let holders = &input.around.holders;
    for hold in around.holds.iter_mut().flatten() {
        if holders.get(&hold.holder).is_some_and(|it| it.is_starting) {
            hold.runs_from_s = None;
        }
    }
    let end_s = (input.dirty.hour + 1) * HOUR_S + LOOKAHEAD_MINUTES * 60;
    let mut phases = input.around.phases.iter().peekable();
    while let Some((from_ms, phase)) = phases.next() {
        let second = |ms: i64| ms.div_euclid(1_000);
        let span = Span {
            from_s: second(*from_ms),
            until_s: phases.peek().map_or(end_s, |it| second(it.0)),
        };
        match phase {
            Phase::NotReady => around.not_ready.push((span, NotReady::Lost)),
            Phase::Cordoned => around.draining.push(span),
            Phase::Starting | Phase::Ready | Phase::Gone => {}
        }
    }
    around.draining.extend(&input.around.taken_back);
    let (cluster, from_ms) = (
        &input.resource.key.cluster,
        input.dirty.hour * MILLIS_PER_HOUR,
    );
    for (number, holder) in holders {
        if rules.standby.has(cluster, holder, from_ms) {
            around.standby.insert(*number);
        }
        let mut its = rules.targets.of(cluster, holder, from_ms);
        if input.around.training.contains(number) {
            its.extend(TRAINING_TARGETS);
        }
        if !its.is_empty() {
            around.targets.insert(*number, its);
        }
    }
    around.standing = standing(input, around.holds.as_deref().unwrap_or_default());
    if input.resource.key.kind == ResourceKind::Gpu {
        around.demand = demand(input);
    }
    around
}

/// When the run of who held it stood still: for as long as he held it.
fn standing(input: &LedgerInput, holds: &[Hold]) -> Vec<Span> {
    let of = |hold: &Hold| {
        let stood = input.around.standing.get(&hold.holder);
        let held = hold.held;
        let spans = stood.into_iter().flatten().map(move |it| Span {
            from_s: it.from_s.max(held.from_s),
            until_s: it.until_s.min(held.until_s),
        });
        spans.filter(|it| it.from_s < it.until_s)
    };
    holds.iter().flat_map(of).collect()
}

/// Why it was free, by the hour and, where that is told, by the minute.
fn demand(input: &LedgerInput) -> Vec<(Span, Demand)> {
    let start_s = input.dirty.hour * HOUR_S;
    let mut found = Vec::new();
    if nobody_waited(input) {
        let until_s = start_s + HOUR_S;
        let hour = Span {
            from_s: start_s,
            until_s,
        };
        found.push((hour, Demand::None));
    }
    for why in [Demand::None, Demand::Fragmented, Demand::Reserved] {
        let minutes = (0..60).filter(|it| input.around.free[why as usize] >> it & 1 == 1);
        found.extend(minutes.map(|minute| {
            let from_s = start_s + minute * 60;
            let until_s = from_s + 60;
            (Span { from_s, until_s }, why)
        }));
    }
    found
}

/// Whether it was seen that nobody waited for a GPU in this hour.
fn nobody_waited(input: &LedgerInput) -> bool {
    let seen = input.around.waited_for;
    seen.is_some_and(|it| it.waiting_gpu_ms == 0 && it.seen_ms >= MILLIS_PER_HOUR - UNSEEN_MS)
}
