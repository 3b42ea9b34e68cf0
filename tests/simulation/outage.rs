//! A long outage in an otherwise good day: the server is away for two hours, agents go on reading,
//! and when it comes back their old data is drained beside the live one, within the bounds.

use gpufleet_server::fleet::FleetConfig;
use gpufleet_spool::sim::Random;

use super::day::{Day, Trouble};
use super::sender::POINTS;
use super::wire::Weather;
use crate::simulator::node::Plan;

const AGENTS: usize = 20;
/// The server is away from the beginning until then, seconds.
const OUTAGE_SECONDS: u64 = 7_200;
/// Within this time after it is back all that was made in the outage must be durable, seconds.
const DRAIN_SECONDS: u64 = 7_200;
/// Old data that may wait for its commit: less than the agents send between two commits, so that the
/// bound is met again and again.
const BACKFILL_BYTES: usize = 56 << 10;
/// What one request may add to it: a minute of a node and its GPU, at most.
const REQUEST_BYTES: usize = 4 << 10;
/// A failing agent waits at most 30 s, and a live tick takes 10 s: then all are live again.
const LIVE_AGAIN_SECONDS: u64 = 60;
/// How old the newest live point of any GPU may be from then on.
const MAX_LIVE_AGE_SECONDS: i64 = 20;

/// What an outage came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Seconds from the server's start until all that was made in the outage was durable.
    pub seconds: u64,
    /// Requests that were told to come again, because the bound on old data was met.
    pub full: u64,
    /// Most bytes of old data that waited for a commit.
    pub most_bytes: usize,
}

/// Lives through it.
///
/// # Errors
/// Everything that is wrong, one line each.
pub fn run(seed: u64) -> Result<Drained, Vec<String>> {
    let plan = Plan {
        seed,
        nodes: AGENTS,
        gpus_per_node: 1,
        metrics: POINTS,
        training: false,
        ..Plan::demo()
    };
    let config = FleetConfig {
        backfill_bytes: BACKFILL_BYTES,
        ..FleetConfig::default()
    };
    let random = Random::new(seed);
    let mut day = Day::of(&plan, config, Weather::FAIR, Trouble::default(), random);
    day.server_restart_at = OUTAGE_SECONDS;
    while day.second < OUTAGE_SECONDS {
        day.step(true, false);
    }
    let (mut drained, mut wrong) = (Drained::default(), Vec::new());
    while !day.is_drained_until(OUTAGE_SECONDS) {
        day.step(true, false);
        let since = day.second - OUTAGE_SECONDS;
        look(&day, since, &mut drained, &mut wrong);
        if since >= DRAIN_SECONDS || !wrong.is_empty() {
            wrong.push(format!(
                "{since} s after the outage it is not drained: {drained:?}"
            ));
            return Err(wrong);
        }
        drained.seconds = since;
    }
    while !day.is_drained() {
        day.step(false, false);
    }
    let wrong = day.differences();
    if wrong.is_empty() {
        Ok(drained)
    } else {
        Err(wrong)
    }
}

/// One look at the server.
fn look(day: &Day, since: u64, drained: &mut Drained, wrong: &mut Vec<String>) {
    let Some(fleet) = day.server.fleet() else {
        return;
    };
    let health = fleet.health();
    let of_full = health.outcomes.iter().filter(|(name, _)| *name == "full");
    drained.full = of_full.map(|(_, count)| count).sum();
    drained.most_bytes = drained.most_bytes.max(health.backfill_bytes);
    if health.backfill_bytes > BACKFILL_BYTES + REQUEST_BYTES {
        wrong.push(format!("{} bytes of old data wait", health.backfill_bytes));
    }
    if since < LIVE_AGAIN_SECONDS {
        return;
    }
    let mut seen = 0;
    fleet.visit(|live| {
        seen += 1;
        let age = day.now().since(live.last_point) / 1_000_000_000;
        if age > MAX_LIVE_AGE_SECONDS {
            wrong.push(format!("{} is {age} s old in the live view", live.key.id));
        }
    });
    if seen != AGENTS * 2 {
        wrong.push(format!("{seen} nodes and GPUs are live of {}", AGENTS * 2));
    }
}
