//! What is idle now: a row for each job and state with how many GPUs, on how many nodes; the GPUs behind it.
//!
//! Limits: [`MAX_ROWS`] rows and [`MAX_GPUS`] GPUs a row; how many more there are is said.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::ledger::State;
use gpufleet_analysis::lost::WHOLE_GPU;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use super::MAX_ROWS;
use crate::money::now::{Idle, milli_gpus};
use crate::words::text::{self, Name, amount, counted};
use crate::words::{self, address};

/// Most GPUs that a row names: as many as eight nodes have.
const MAX_GPUS: usize = 64;

/// GPUs that one job holds, or that nobody does, and that are idle in the same way.
pub(super) struct Row {
    /// Who holds them.
    pub(super) holder: Name,
    /// How they are idle.
    pub(super) state: &'static str,
    /// `8 GPUs on 1 node of prod`.
    pub(super) gpus: String,
    /// Which they are, those that have been idle longest first.
    pub(super) named: Vec<Gpu>,
    /// How many are not named.
    pub(super) more: usize,
    /// Since when the one that has been idle longest is.
    pub(super) since: String,
    /// Whose they are.
    pub(super) owner: Name,
    /// What they cost a day, and what of them has no price.
    pub(super) cost: String,
}

/// One of them.
pub(super) struct Gpu {
    pub(super) address: String,
    pub(super) place: Name,
    pub(super) since: String,
}

/// All of these in one line: how many, and what they cost a day.
pub(super) fn sum(idle: &[&Idle], currency: &str) -> String {
    let all = milli_gpus(idle.iter().copied());
    let verb = if all == WHOLE_GPU { "is" } else { "are" };
    let gpus = text::gpus(all);
    match idle {
        [] => format!("{gpus} {verb} idle"),
        _ => format!("{gpus} {verb} idle, {}", cost(idle, currency)),
    }
}

/// The rows, the dearest first, and how many more there are.
pub(super) fn rows(idle: &[&Idle], currency: &str, at: Timestamp) -> (Vec<Row>, usize) {
    let mut groups: BTreeMap<(&str, &str, State, &str), Vec<&Idle>> = BTreeMap::new();
    for it in idle {
        let group = (&*it.key.cluster, &*it.job, it.state, it.payer.name());
        groups.entry(group).or_default().push(it);
    }
    let mut groups: Vec<Vec<&Idle>> = groups.into_values().collect();
    // Stable: groups that cost the same stay in the order of their names.
    groups.sort_by_key(|it| std::cmp::Reverse((priced(it).sum::<i128>(), it.len())));
    let more = groups.len().saturating_sub(MAX_ROWS);
    let shown = groups.iter_mut().take(MAX_ROWS);
    (shown.map(|it| row(it, currency, at)).collect(), more)
}

fn row(gpus: &mut [&Idle], currency: &str, at: Timestamp) -> Row {
    let age = |it: &Idle| it.since.unwrap_or(Timestamp(i64::MAX));
    gpus.sort_by(|one, other| (age(one), &one.key).cmp(&(age(other), &other.key)));
    let first = gpus[0];
    let nodes: BTreeSet<&str> = gpus.iter().map(|it| &*it.node).collect();
    Row {
        holder: match (first.state, first.job.as_str()) {
            (State::Unallocated, _) => Name::new("nobody"),
            (_, "") => Name::new("a holder without a name"),
            (_, job) => Name::new(job),
        },
        state: words::look(first.state).name,
        gpus: format!(
            "{} on {} of {}",
            text::gpus(milli_gpus(gpus.iter().copied())),
            counted(nodes.len(), "node", "nodes"),
            Name::new(&first.key.cluster).text
        ),
        named: gpus.iter().take(MAX_GPUS).map(|it| named(it, at)).collect(),
        more: gpus.len().saturating_sub(MAX_GPUS),
        since: since(first, at),
        owner: Name::new(first.payer.name()),
        cost: cost(gpus, currency),
    }
}

fn named(it: &Idle, at: Timestamp) -> Gpu {
    let place = match it.index.as_str() {
        "" => format!("{} on {}", it.key.id, it.node),
        index => format!("GPU {index} of {}", it.node),
    };
    let place = match (it.key.kind, it.part.0 < it.part.1) {
        (ResourceKind::Gpu, true) => format!("the rest of {place}"),
        _ => place,
    };
    Gpu {
        address: address::gpu(&it.key.cluster, &it.key.id),
        place: Name::new(&place),
        since: since(it, at),
    }
}

fn since(it: &Idle, at: Timestamp) -> String {
    it.since
        .map_or("not known".to_owned(), |since| text::ago(at, since))
}

/// What those cost that have a price.
fn priced<'a>(gpus: &'a [&Idle]) -> impl Iterator<Item = i128> + 'a {
    gpus.iter().filter_map(|it| it.day_cost)
}

/// What these cost a day; what has no price is in no sum, and said.
fn cost(gpus: &[&Idle], currency: &str) -> String {
    let unpriced: Vec<&Idle> = gpus
        .iter()
        .copied()
        .filter(|it| it.day_cost.is_none())
        .collect();
    let sum = || format!("{} a day", amount(currency, priced(gpus).sum()));
    match unpriced.len() {
        0 => sum(),
        all if all == gpus.len() => "without a price".to_owned(),
        _ => {
            let some = text::gpu_count(milli_gpus(unpriced));
            format!("{}, {some} of them without a price", sum())
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::owner::Payer;
    use gpufleet_telemetry::identity::Origin;

    use super::*;
    use crate::store::model::ResourceKey;

    const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

    /// A GPU that costs so many dollars a day, idle for so many minutes.
    fn idle(node: &str, index: u32, job: &str, dollars: Option<i128>, minutes: i64) -> Idle {
        Idle {
            key: ResourceKey {
                cluster: "prod".into(),
                kind: ResourceKind::Gpu,
                id: format!("GPU-{node}-{index}").into(),
            },
            origin: Origin::Live,
            node: node.into(),
            index: index.to_string(),
            state: match job {
                "" => State::Unallocated,
                _ => State::Parked,
            },
            since: Some(NOW.shifted(-minutes * 60_000_000_000)),
            job: job.to_owned(),
            payer: Payer::Nobody,
            part: (1, 1),
            day_cost: dollars.map(|it| it * 1_000_000_000),
        }
    }

    fn told(all: &[Idle]) -> Vec<String> {
        let all: Vec<&Idle> = all.iter().collect();
        let (rows, more) = rows(&all, "USD", NOW);
        assert_eq!(more, 0);
        let told = |it: &Row| {
            let (holder, first) = (&it.holder.text, &it.named[0].place.text);
            let (state, gpus, since, cost) = (it.state, &it.gpus, &it.since, &it.cost);
            format!("{holder}: {state}, {gpus}, {since}, {cost}; {first}")
        };
        rows.iter().map(told).collect()
    }

    #[test]
    fn gpus_of_one_job_and_state_are_a_row_with_its_nodes_its_price_and_its_longest() {
        let all = [
            idle("node-1", 0, "job:a/llm", Some(240), 10),
            idle("node-1", 1, "job:a/llm", Some(240), 90),
            idle("node-2", 0, "job:a/llm", None, 5),
            idle("node-3", 0, "", Some(500), 1),
            idle("node-4", 0, "job:b/x", None, 1),
        ];
        let expected = [
            "nobody: free, 1 GPU on 1 node of prod, 1 min ago, $500.00 a day; GPU 0 of node-3",
            "job:a/llm: parked, 3 GPUs on 2 nodes of prod, 1 h 30 min ago, $480.00 a day, 1 of them without a price; GPU 1 of node-1",
            "job:b/x: parked, 1 GPU on 1 node of prod, 1 min ago, without a price; GPU 0 of node-4",
        ];
        assert_eq!(told(&all), expected);
        let all: Vec<&Idle> = all.iter().collect();
        let line = "5 GPUs are idle, $980.00 a day, 2 of them without a price";
        assert_eq!(sum(&all, "USD"), line);
        assert_eq!(sum(&all[4..], "USD"), "1 GPU is idle, without a price");
        assert_eq!(sum(&[], "USD"), "0 GPUs are idle");
    }

    #[test]
    fn shares_are_parts_of_a_gpu_and_what_they_leave_is_called_the_rest_of_it() {
        let share = |slices: u32, kind| {
            let mut it = idle("node-1", 0, "", Some(7), 1);
            (it.part, it.key.kind) = ((slices, 7), kind);
            it
        };
        let one = share(1, ResourceKind::Share);
        let rest = share(6, ResourceKind::Gpu);
        let first = |all: &[Idle]| told(all)[0].clone();
        let whole = first(&[rest.clone(), one.clone()]);
        assert!(whole.contains("1 GPU on 1 node"), "{whole}");
        let told = first(&[rest]);
        assert!(told.contains("0.9 GPUs on 1 node"), "{told}");
        assert!(told.contains("; the rest of GPU 0 of node-1"), "{told}");
        assert_eq!(sum(&[&one], "USD"), "0.1 GPUs are idle, $7.00 a day");
        let replicas = vec![share(1, ResourceKind::Share); 7];
        let replicas: Vec<&Idle> = replicas.iter().collect();
        assert_eq!(sum(&replicas, "USD"), "1 GPU is idle, $49.00 a day");
    }

    #[test]
    fn what_is_beyond_the_table_is_counted() {
        let job = |number: usize| idle("node", 0, &format!("job:{number}"), Some(1), 1);
        let many: Vec<Idle> = (0..MAX_ROWS + 3).map(job).collect();
        let many: Vec<&Idle> = many.iter().collect();
        let (rows_shown, more) = rows(&many, "USD", NOW);
        assert_eq!((rows_shown.len(), more), (MAX_ROWS, 3));
        let gpus: Vec<Idle> = (0..70).map(|it| idle("node", it, "", Some(1), 1)).collect();
        let gpus: Vec<&Idle> = gpus.iter().collect();
        let (one, _) = rows(&gpus, "USD", NOW);
        assert_eq!(
            (one.len(), one[0].named.len(), one[0].more),
            (1, MAX_GPUS, 6)
        );
    }
}
