//! What is at stake where a run may fail: what its GPUs did since its last checkpoint, or since it began where it
//! has told of none.

use gpufleet_analysis::incident::{Place, Signal};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::time::Timestamp;

use super::detector::TickSnapshot;
use super::runs::{self, RunSnapshot};
use crate::runs::{Run, RunKey, State};

/// A run that goes on, and since when its work is in no checkpoint.
struct AtStake {
    run: RunSnapshot,
    basis: Basis,
    since: Timestamp,
}

/// Prices these signals by the runs that go on at their places; of one without such a run what it says stands.
pub(super) fn price<'a>(signals: impl Iterator<Item = &'a mut Signal>, tick: &TickSnapshot<'_>) {
    let mut signals = signals.peekable();
    if signals.peek().is_none() {
        return;
    }
    let all: Vec<AtStake> = tick
        .runs()
        .keys()
        .iter()
        .filter_map(|it| of(it, tick))
        .collect();
    for signal in signals {
        let own = all.iter().filter(|it| it.is_at(&signal.place, tick));
        if let Some(price) = own.map(|it| it.price(tick)).reduce(Price::and) {
            signal.price = price;
        }
    }
}

fn of(key: &RunKey, tick: &TickSnapshot<'_>) -> Option<AtStake> {
    let look = |run: &Run| {
        let goes_on = run.state(tick.now) == State::Running && runs::is_judged(run);
        let saved = run
            .facts
            .checkpoint
            .map(|it| (Basis::SinceCheckpoint, it.at));
        let began = run.facts.started.map(|at| (Basis::SinceStart, at));
        let (basis, since) = saved.or(began).filter(|_| goes_on)?;
        let run = runs::seen((key, run), &[], tick);
        Some(AtStake { run, basis, since })
    };
    tick.runs().look(key, look).flatten()
}

impl AtStake {
    /// Whether it runs there: it is the run that is named, or it is on that node or GPU, or on GPUs of the job that is
    /// named.
    fn is_at(&self, place: &Place, tick: &TickSnapshot<'_>) -> bool {
        if place.cluster != self.run.cluster {
            return false;
        }
        let is_on = |it: &runs::RankSnapshot| {
            let is_node = place.node.as_ref().is_none_or(|node| **node == *it.node);
            // A share, or the card that it is of.
            let is_gpu = |gpu: &String| **gpu == *it.gpu || **gpu == **it.card();
            let is_gpu = place.gpu.as_ref().is_none_or(is_gpu);
            // Looked up of what is there alone: a run has many ranks.
            let is_job = || {
                let seen = tick.gpus.get(&(place.cluster.as_str(), &*it.gpu));
                place.run.is_none()
                    || seen.and_then(|it| it.alike.job.as_deref()) == place.run.as_deref()
            };
            is_node && is_gpu && is_job()
        };
        let is_named = place.run.as_deref() == Some(&*self.run.name);
        is_named || self.run.ranks.iter().any(is_on)
    }

    fn price(&self, tick: &TickSnapshot<'_>) -> Price {
        let gpus = runs::all_of(&self.run, tick.gpus);
        Price::at_stake(self.basis, gpus, self.since, tick.now)
    }
}
