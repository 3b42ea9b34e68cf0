//! Demand against supply: GPUs that were waited for beside those that there were, by cluster, on average.
//!
//! Method. Supply is the ledger's: all GPU-time of a cluster, what somebody held of it and what nobody did, over
//! the time of the report that has passed. Demand is the queue's: GPUs that were waited for, over the time in
//! which that was seen, which is told as a share. Both are means, so they stand beside each other though a
//! queue was not always seen. GPUs that are free while some are waited for are of the wrong kind, in the wrong place
//! or too scattered: page Queue says which.
//!
//! Numbers. Thousandths of GPUs, millionths of time.
//!
//! Limits. A cluster whose queue nobody sees has no demand, which is not none: it reads as not known.

use std::collections::BTreeMap;

use crate::ledger::State;
use crate::money::ratio;
use crate::report::Report;

/// Thousandths.
const MILLI: i128 = 1_000;

/// What was waited for in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// The cluster.
    pub cluster: String,
    /// For how long it was seen who waits, milliseconds.
    pub seen_millis: i64,
    /// GPUs that were waited for × that time.
    pub waiting_gpu_millis: i64,
}

/// Demand and supply of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    /// The cluster.
    pub cluster: String,
    /// GPUs that there were on average, thousandths.
    pub gpus: i128,
    /// Of them held.
    pub held: i128,
    /// Of them free.
    pub free: i128,
    /// GPUs that were waited for on average; none where nobody saw who waits.
    pub waited_for: Option<i128>,
    /// The share of the time in which that was seen, millionths.
    pub seen: i128,
}

/// Demand and supply by cluster, in the order of names.
pub fn balances(report: &Report<'_>) -> Vec<Balance> {
    let mut times: BTreeMap<&str, [i64; 3]> = BTreeMap::new();
    for (key, sum) in &report.chargeback.lines {
        let Some(node) = key.node else { continue };
        let node = &report.fleet.nodes[node];
        let [all, held, free] = times.entry(&node.cluster).or_default();
        *all += sum.gpu_millis;
        if key.holder.is_some() {
            *held += sum.gpu_millis;
        }
        if key.state == State::Unallocated {
            *free += sum.gpu_millis;
        }
    }
    // A cluster that never had a node is the one in which waiting matters most.
    for demand in &report.demand {
        times.entry(&demand.cluster).or_default();
    }
    let mean = |gpu_millis: i64, millis: i64| ratio(gpu_millis.into(), MILLI, millis.into());
    let of = |(cluster, [all, held, free]): (&str, [i64; 3])| {
        let passed = report.passed_ms;
        let demand = report.demand.iter().find(|it| it.cluster == cluster);
        let seen = demand.map_or(0, |it| it.seen_millis);
        Balance {
            cluster: cluster.to_owned(),
            gpus: mean(all, passed).unwrap_or(0),
            held: mean(held, passed).unwrap_or(0),
            free: mean(free, passed).unwrap_or(0),
            waited_for: demand.and_then(|it| mean(it.waiting_gpu_millis, it.seen_millis)),
            seen: ratio(seen.into(), 1_000_000, passed.into()).unwrap_or(0),
        }
    };
    times.into_iter().map(of).collect()
}
