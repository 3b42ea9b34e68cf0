//! What stands around a GPU in an hour, from what the store has of it.
//!
//! - Who held it: the minutes' own evidence.
//! - Its node was ready and is not (`unhealthy`, node not ready), or is cordoned (`draining` while nobody holds
//!   it): the phases of the inventory, from when each was seen until the next.
//!
//! Limits: before a node was first ready nothing is said here; what nobody accounted of that time is
//! `starting_node` in reports. A phase that was not seen, because nobody watched, is none.

use gpufleet_analysis::inventory::Phase;
use gpufleet_analysis::states::{Around, LOOKAHEAD_MINUTES, NotReady, Span};

use super::HOUR_S;
use crate::store::model::LedgerInput;

/// What is known around the hour of this input.
pub(super) fn around(input: &LedgerInput) -> Around {
    let mut around = Around::told_by(&input.minutes);
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
    around
}
