//! Model servers joined with who held the GPUs of their node.

use std::sync::Arc;

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
use gpufleet_analysis::ledger::{Energy, Reason, State};
use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::time::Timestamp;

use super::super::fixture::day_of_card;
use super::super::{Terms, charge};
use super::*;
use crate::money::CostConfig;
use crate::money::terms::Sources;
use crate::store::model::{DayFacts, DayTime, KnownResource, LedgerDay, ResourceKey};

const DAY: i64 = 20_000;
const HOUR: i64 = 3_600_000;
const CARD: &str = "NVIDIA L40S";

/// Two dollars an hour for each card.
fn terms() -> Terms {
    Terms::of(Sources {
        cost: CostConfig::default(),
        gpu_hour_usd: BTreeMap::from([(CARD.to_owned(), "2".to_owned())]),
        files: Vec::new(),
        stored: Vec::new(),
    })
}

/// A card of a node that was there all day, and for how many hours these jobs held it.
fn card(name: &str, node: &str, model: &str, jobs: &[(i64, i64)]) -> LedgerDay {
    let time = |holder, state, hours: i64| DayTime {
        holder,
        state,
        reason: Reason::Unknown,
        millis: hours * HOUR,
        energy: Energy::default(),
        lost_millis: 0,
    };
    let held: i64 = jobs.iter().map(|it| it.1).sum();
    let mut times = vec![time(0, State::Unallocated, 24 - held)];
    times.extend(jobs.iter().map(|it| time(it.0, State::ActiveUnrated, it.1)));
    let facts = DayFacts {
        node: node.to_owned(),
        gpu_model: model.to_owned(),
        ..DayFacts::default()
    };
    let all_day = (DAY * MILLIS_PER_DAY, (DAY + 1) * MILLIS_PER_DAY);
    day_of_card(name, facts, (DAY, all_day), times)
}

/// A model server of a node that told so many million tokens, half of them of prompts, for so many hours.
fn server(port: u32, node: &str, job: &str, told: Option<(i64, i64)>) -> ServedDays {
    let id = format!("{node}:{port}/llama");
    let resource = Resource::new(ResourceKind::Endpoint, id.as_str())
        .with(attribute::NODE, node)
        .with(attribute::MODEL_NAME, "llama")
        .with(attribute::WORKLOAD, job);
    let served = |(millions, hours): (i64, i64)| Served {
        prompt_tokens: Some(millions * 500_000),
        generated_tokens: millions * 500_000,
        told_millis: hours * HOUR,
    };
    ServedDays {
        resource: KnownResource {
            key: ResourceKey {
                cluster: "lab".into(),
                kind: ResourceKind::Endpoint,
                id: id.into(),
            },
            resource: Arc::new(resource),
            agent: None,
            first_seen: Timestamp(0),
            last_seen: Timestamp(0),
        },
        days: told.map(|it| (DAY, served(it))).into_iter().collect(),
    }
}

fn found(days: Vec<LedgerDay>, served: Vec<ServedDays>) -> Vec<Serving> {
    let holder = |name: &str| Holder {
        job: name.to_owned(),
        ..Holder::default()
    };
    let days = Days {
        days,
        served,
        holders: [(1, holder("chat")), (2, holder("train"))].into(),
        ..Days::default()
    };
    charge(&days, DAY..DAY + 1, &terms(), Detail::Nodes).serving
}

#[test]
fn a_model_server_costs_what_the_only_job_on_its_node_cost_while_it_told_its_tokens() {
    // Two cards held for 20 hours each; two servers on them, of which one told for half of that.
    let days = || {
        vec![
            card("GPU-1", "a", CARD, &[(1, 20)]),
            card("GPU-2", "a", CARD, &[(1, 20)]),
        ]
    };
    let servers = vec![
        server(1, "a", "", Some((10, 20))),
        server(2, "a", "", Some((2, 10))),
    ];
    let [chat] = found(days(), servers).try_into().expect("one job");
    assert_eq!(
        (chat.job.as_str(), chat.endpoints, chat.models.len()),
        ("chat", 2, 1)
    );
    assert_eq!((chat.gpu_millis, chat.held_millis), (30 * HOUR, 40 * HOUR));
    assert_eq!(chat.cost, Some(60_000_000_000));
    assert_eq!(chat.per_million(), Some(5_000_000_000));
    assert_eq!(chat.per_million_generated(), Some(10_000_000_000));
    assert_eq!((chat.payer.as_str(), chat.why_not()), ("unowned", None));
    // Where one of them tells no prompts, nobody knows how many the job had.
    let mut servers = vec![
        server(1, "a", "", Some((10, 20))),
        server(2, "a", "", Some((2, 10))),
    ];
    for told in servers[1].days.values_mut() {
        told.prompt_tokens = None;
    }
    let [chat] = found(days(), servers).try_into().expect("one job");
    assert_eq!((chat.prompt_tokens, chat.per_million()), (None, None));
    assert_eq!(chat.per_million_generated(), Some(10_000_000_000));
}

#[test]
fn of_several_jobs_on_a_node_the_one_that_is_named_serves_and_of_no_named_one_nobody_knows() {
    let days = || {
        vec![
            card("GPU-1", "a", CARD, &[(1, 24)]),
            card("GPU-2", "a", CARD, &[(2, 24)]),
        ]
    };
    let [chat] = found(days(), vec![server(1, "a", "chat", Some((2, 24)))])
        .try_into()
        .expect("one");
    assert_eq!(
        (chat.job.as_str(), chat.cost),
        ("chat", Some(48_000_000_000))
    );
    let why = |days: Vec<LedgerDay>, job: &str, told| {
        let [one] = found(days, vec![server(1, "a", job, told)])
            .try_into()
            .expect("one");
        assert_eq!((one.job.as_str(), one.cost), ("a:1/llama", None));
        assert_eq!(one.per_million_generated(), None);
        one.why_not().expect("a reason").to_owned()
    };
    let told = Some((2, 24));
    assert!(why(days(), "", told).starts_with("several jobs held GPUs of a"));
    assert_eq!(
        why(days(), "other", told),
        "other, which is to serve it, held no GPU of a"
    );
    let free = vec![card("GPU-1", "a", CARD, &[])];
    assert!(why(free, "", told).starts_with("nobody held a GPU of a"));
    let unknown = vec![card("GPU-1", "a", CARD, &[(9, 24)])];
    assert_eq!(
        why(unknown, "", told),
        "who held the GPUs of a is not known"
    );
    assert_eq!(why(days(), "", None), "it tells no generated tokens");
}

#[test]
fn time_without_a_price_gives_no_price_of_tokens() {
    let days = vec![card("GPU-1", "a", "Unknown Card", &[(1, 24)])];
    let [chat] = found(days, vec![server(1, "a", "", Some((2, 24)))])
        .try_into()
        .expect("one");
    assert_eq!((chat.job.as_str(), chat.cost), ("chat", None));
    assert_eq!(chat.why_not(), Some("not all of its time has a price"));
    assert_eq!(chat.generated_tokens, Some(1_000_000));
}

#[test]
fn a_model_server_that_told_nothing_leaves_its_part_of_the_time_and_other_nodes_of_the_job_uncovered()
 {
    let days = || {
        vec![
            card("GPU-1", "a", CARD, &[(1, 24)]),
            card("GPU-2", "a", CARD, &[(1, 24)]),
            card("GPU-3", "b", CARD, &[(1, 24)]),
        ]
    };
    let seen = |mut it: ServedDays, hours: std::ops::Range<i64>| {
        let at = |hour: i64| Timestamp::from_millis(DAY * MILLIS_PER_DAY + hour * HOUR);
        (it.resource.first_seen, it.resource.last_seen) = (at(hours.start), at(hours.end));
        it
    };
    let servers = vec![
        seen(server(1, "a", "", Some((2, 24))), 0..24),
        seen(server(2, "a", "", None), -48..24),
    ];
    let [chat] = found(days(), servers).try_into().expect("one job");
    assert_eq!((chat.job.as_str(), chat.endpoints), ("chat", 2));
    // One of two servers, on two of three cards.
    assert_eq!((chat.gpu_millis, chat.held_millis), (24 * HOUR, 72 * HOUR));
    assert_eq!(chat.cost, Some(48_000_000_000));
    // One that took over from another was there beside nobody.
    let servers = vec![
        seen(server(1, "a", "", Some((1, 12))), -48..12),
        seen(server(2, "a", "", Some((1, 12))), 12..24),
    ];
    let [chat] = found(days(), servers).try_into().expect("one job");
    assert_eq!(chat.gpu_millis, 48 * HOUR);
    // Nothing is told: that is the reason, and no other.
    let servers = vec![seen(server(2, "a", "", None), -48..24)];
    let [chat] = found(days(), servers).try_into().expect("one job");
    assert_eq!(
        (chat.job.as_str(), chat.cost, chat.gpu_millis),
        ("chat", None, 0)
    );
    assert_eq!(chat.why_not(), Some("it tells no generated tokens"));
}
