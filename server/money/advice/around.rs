//! Other advice about the same thing: what was saved is counted once, whoever advised it.

use std::cmp::Reverse;
use std::collections::HashSet;

use gpufleet_analysis::taken::{Advice, Kind, Record, Sight, Standing};

use super::given::is_in_window;

/// What else is advised of what an advice is about.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// All knobs that are advised of the job.
    pub(super) knobs: Vec<String>,
    /// Nodes that other advice of this time proposes to be off, of longer windows: these count first.
    pub(super) off: u32,
    /// Whether this is a time at which nodes of it could be off.
    pub(super) is_off_time: bool,
    /// Whether its nodes have more than one price.
    pub(super) has_prices: bool,
}

impl Around {
    /// What is around each of these, in their order.
    pub(super) fn of_all(all: &[&Record], now_ms: i64) -> Vec<Self> {
        all.iter().map(|it| Self::of(it, all, now_ms)).collect()
    }

    fn of(it: &Record, all: &[&Record], now_ms: i64) -> Self {
        let (mut around, own) = (Self::default(), &it.advice);
        if !matches!(own.kind, Kind::Knob | Kind::Shutdown) {
            return around;
        }
        let is_same =
            |of: &Advice| of.kind == own.kind && of.cluster == own.cluster && of.about == own.about;
        let first = |it: &Record| (Reverse(it.advice.before.hours), it.number);
        let open = all.iter().filter(|it| !it.standing.is_over());
        for other in open.filter(|it| is_same(&it.advice)) {
            if own.kind == Kind::Knob {
                around.knobs.push(other.advice.what.clone());
                continue;
            }
            let before = &other.advice.before;
            around.has_prices |= differ(before.day_cost, own.before.day_cost);
            if is_in_window(before, now_ms) {
                around.is_off_time = true;
                let is_first = first(other) < first(it);
                around.off += if is_first { before.nodes } else { 0 };
            }
        }
        around
    }
}

/// Whether two prices are not the same: by more than what is rounded.
fn differ(one: Option<i64>, other: Option<i64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) > one.unsigned_abs() / 1_000,
        (one, other) => one != other,
    }
}

/// Of advice with equal keys the dearest: it is one advice. The dearest of all stands first.
pub(super) fn distinct(mut given: Vec<Advice>) -> Vec<Advice> {
    given.sort_by_key(|it| Reverse(it.worth));
    let mut known = HashSet::new();
    given.retain(|it| {
        let (kind, cluster, about, what) = it.key();
        known.insert((kind, cluster.to_owned(), about.to_owned(), what.to_owned()))
    });
    given
}

/// Counts what was saved of one job once: of knobs it is measured of all of them together, and GPUs that were idle are
/// of those that it could do without. It is counted with what has been advised of the earliest run, or of all of its GPUs.
pub(super) fn once(all: &[&Record], sights: &mut [Sight]) {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|place| {
        let it = all[*place];
        let before = &it.advice.before;
        (
            it.advice.kind,
            before.started_ms,
            Reverse(it.advice.worth),
            it.number,
        )
    });
    let mut counted = HashSet::new();
    for place in order {
        let (it, sight) = (all[place], &mut sights[place]);
        let Sight::Changed { less_a_day } = sight else {
            continue;
        };
        let is_adding = matches!(it.standing, Standing::Changing | Standing::Taken);
        if it.advice.kind == Kind::Shutdown || !is_adding || less_a_day.is_err() {
            continue;
        }
        let is_run = it.advice.kind == Kind::Knob;
        let job = (is_run, it.advice.cluster.as_str(), it.advice.about.as_str());
        if !counted.insert(job) {
            *less_a_day = Err("counted with other advice of this job: it is of all of it together");
        }
    }
}
