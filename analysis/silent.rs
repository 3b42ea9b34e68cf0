//! Whether nothing is heard from a node.
//!
//! Method: an agent sends once a tick, so two ticks without a word, and what a request takes on its way, are silence.
//! One late request is none: networks and disks make some.
//!
//! Measured (docs/detection.md): silent nodes are told within three ticks and the slack; none of those whose
//! requests come late by a few seconds, or of which one is lost.
//!
//! Limits: a sender that has not said how long its tick is, and of which nothing came since the server started that says
//! it, has the agents' [`DEFAULT_TICK`]; why it is silent (machine, agent or network) nobody knows from here.

use std::time::Duration;

use gpufleet_telemetry::time::Timestamp;

/// The tick of a sender that has not said how long its tick is: the agents' default.
pub const DEFAULT_TICK: Duration = Duration::from_secs(10);
/// A node is silent after this many ticks without a point …
pub const SILENT_AFTER_TICKS: u32 = 2;
/// … and this much on top, for the way and the aligned start of a tick.
pub const SLACK: Duration = Duration::from_secs(5);

/// Whether a node with this longest tick, of which something last arrived at `heard`, is silent.
pub fn is_silent(tick: Duration, heard: Timestamp, now: Timestamp) -> bool {
    let tick = if tick.is_zero() { DEFAULT_TICK } else { tick };
    let patience = tick * SILENT_AFTER_TICKS + SLACK;
    Duration::from_nanos(now.since(heard).max(0).unsigned_abs()) > patience
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;

    #[test]
    fn a_node_is_silent_after_two_of_its_own_ticks_and_the_slack_and_a_clock_set_back_makes_none() {
        let heard = Timestamp::from_seconds(1_790_000_000);
        for (tick_s, after_s, expected) in [
            (10, 25, false),
            (10, 26, true),
            (60, 125, false),
            (60, 126, true),
            (0, 25, false),
            (0, 26, true),
            (10, -3_600, false),
        ] {
            let now = heard.shifted(after_s * NANOS_PER_SECOND);
            let told = is_silent(Duration::from_secs(tick_s), heard, now);
            assert_eq!(told, expected, "{after_s} s after a tick of {tick_s} s");
        }
    }
}
