//! Every billed millisecond and nano-unit is in a line, whatever went wrong.
//!
//! Longer than 500 lines because one fixture serves every mishap and the properties over all of them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixture::*;
use super::view::By;
use super::*;
use crate::owner::{IdlePolicy, IdleTo};
use crate::price_book::export::{BilledFor, Invoice};

const USD: i128 = 1_000_000_000;

/// (team, state, GPU-milliseconds, cost) of each line.
fn lines(made: &Chargeback) -> Vec<(String, State, i64, i128)> {
    let all = made.lines.iter();
    let mut lines: Vec<_> = all
        .map(|(key, sum)| {
            (
                made.payers[key.payer].name().to_owned(),
                key.state,
                sum.gpu_millis,
                sum.cost,
            )
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn a_team_that_is_called_nobody_is_not_summed_with_what_nobody_held() {
    let mut fleet = fleet(1);
    "nobody".clone_into(&mut fleet.holders[0].user);
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR / 4),
        part(None, State::Unallocated, HOUR / 4 * 3),
    ];
    let (book, periods) = (book(RATES, ""), [period(0, 0, &parts)]);
    let rules = "from,until,kind,key,value,team\n2026-01-01,,user,,*,\n";
    let made = chargeback(&Asked {
        detail: Detail::Nodes,
        from_ms: FIRST_HOUR * HOUR,
        until_ms: (FIRST_HOUR + 744) * HOUR,
        now_ms: i64::MAX,
        fleet: &fleet,
        periods: &periods,
        book: &book,
        commitments: book.commitments(),
        owners: &Owners::read(rules).expect("a table"),
    });
    let grouped = made.grouped(&fleet, &[By::Team]);
    let costs = grouped.iter().map(|it| (it.words[0].as_str(), it.sum.cost));
    let expected = [("nobody", 60 * USD), ("team:nobody", 20 * USD)];
    assert_eq!(costs.collect::<Vec<_>>(), expected);
}

#[test]
fn a_whole_hour_at_one_rate_costs_that_rate_and_each_line_its_part_of_it() {
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR / 2),
        part(Some(1), State::Parked, HOUR / 4),
        part(None, State::Unallocated, HOUR / 4),
    ];
    let made = october(&fleet(1), &[period(0, 0, &parts)], &book(RATES, ""));
    assert_eq!(made.total().cost, 80 * USD);
    assert_eq!(made.total().gpu_cost, 72 * USD);
    assert_eq!(
        lines(&made),
        [
            ("money".to_owned(), State::Parked, HOUR / 4, 5 * USD / 2),
            (
                "nobody".to_owned(),
                State::Unallocated,
                HOUR / 4,
                5 * USD / 2
            ),
            (
                "science".to_owned(),
                State::ActiveUnrated,
                HOUR / 2,
                5 * USD
            ),
        ]
    );
    let headline = made.headline();
    assert_eq!(headline.idle.cost, 40 * USD);
    assert_eq!(headline.parked.cost, 20 * USD);
    assert_eq!(headline.active.gpu_millis, 4 * HOUR);
}

#[test]
fn time_that_nobody_accounted_is_unobserved_and_a_gpu_never_seen_is_paid_for_too() {
    let mut period = period(0, 0, &[part(Some(2), State::ActiveUnrated, HOUR - 1_000)]);
    period.gpus.truncate(7);
    let made = october(&fleet(1), &[period], &book(RATES, ""));
    let headline = made.headline();
    assert_eq!(headline.unobserved.gpu_millis, HOUR + 7 * 1_000);
    assert_eq!(headline.unowned.gpu_millis, 7 * (HOUR - 1_000));
    assert_eq!(headline.idle, Sum::default());
    assert_eq!(made.total().cost, 80 * USD);
    let gpus = made.lines.keys().filter(|it| it.gpu.is_none()).count();
    assert_eq!(gpus, 1);
}

#[test]
fn time_before_the_node_was_ready_is_its_start_and_no_more_of_it_than_nobody_accounted() {
    let mut period = period(0, 0, &[part(Some(0), State::ActiveUnrated, HOUR / 2)]);
    period.gpus.truncate(6);
    period.gpus[0].parts = vec![part(Some(0), State::ActiveUnrated, HOUR)];
    period.starting_millis = HOUR / 4;
    let made = october(&fleet(1), &[period], &book(RATES, ""));
    let millis = |state: State| {
        let of_state = made.lines.iter().filter(|it| it.0.state == state);
        of_state.map(|it| it.1.gpu_millis).sum::<i64>()
    };
    // Five that came after half an hour, and two that were never seen.
    assert_eq!(millis(State::StartingNode), 7 * HOUR / 4);
    assert_eq!(millis(State::Unobserved), 5 * HOUR / 4 + 2 * HOUR * 3 / 4);
    assert_eq!(made.headline().idle, Sum::default(), "a start is not idle");
    assert_eq!(made.total().cost, 80 * USD);
}

#[test]
fn more_time_than_was_billed_is_scaled_to_it_and_noted() {
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR),
        part(None, State::Unallocated, HOUR),
    ];
    let made = october(&fleet(1), &[period(0, 0, &parts)], &book(RATES, ""));
    assert_eq!(made.headline().idle.gpu_millis, 4 * HOUR);
    assert_eq!(made.total().gpu_millis, 8 * HOUR);
    let note = "node-0: more time was accounted than billed: scaled to what was billed";
    assert_eq!(made.notes, BTreeMap::from([(note.to_owned(), 8)]));
}

#[test]
fn a_gpu_exchanged_within_the_hour_costs_no_more_than_the_node() {
    let mut period = period(0, 0, &[part(Some(0), State::ActiveUnrated, HOUR)]);
    period.gpus[7].parts = vec![part(Some(0), State::Unhealthy, HOUR / 3)];
    let mut new = period.gpus[7].clone();
    (new.gpu, new.parts) = (8, vec![part(Some(0), State::ActiveUnrated, HOUR / 2)]);
    period.gpus.push(new);
    let made = october(&fleet(1), &[period], &book(RATES, ""));
    assert_eq!(
        (made.total().gpu_millis, made.total().cost),
        (8 * HOUR, 80 * USD)
    );
    assert_eq!(made.headline().unobserved.gpu_millis, HOUR / 6);
}

#[test]
fn the_rest_of_a_card_with_shares_is_stranded_where_another_card_was_exchanged_too() {
    let share = |share| Part {
        share: Some(share),
        slices: 3,
        of: 7,
        ..part(Some(0), State::ActiveUnrated, HOUR)
    };
    let mut period = period(0, 0, &[part(Some(0), State::ActiveUnrated, HOUR)]);
    period.gpus[0].parts = vec![share(0), share(1)];
    let half = &mut period.gpus[7];
    half.parts[0].millis = HOUR / 2;
    half.present_millis = HOUR / 2;
    let new = GpuPeriod {
        gpu: 8,
        ..half.clone()
    };
    period.gpus.push(new);
    let made = october(&fleet(1), &[period], &book(RATES, ""));
    let stranded = made
        .lines
        .iter()
        .filter(|it| it.0.reason == Reason::Stranded);
    let stranded: Vec<_> = stranded.map(|it| (it.0.gpu, it.1.gpu_millis)).collect();
    assert_eq!(stranded, [(Some(0), HOUR / 7 + 1)]);
    assert_eq!(made.headline().unobserved, Sum::default());
    assert_eq!(
        (made.total().gpu_millis, made.total().cost),
        (8 * HOUR, 80 * USD)
    );
}

#[test]
fn shares_count_by_their_part_and_what_they_do_not_fill_is_stranded() {
    let share = |share, slices, of| Part {
        share: Some(share),
        slices,
        of,
        ..part(Some(share % 2), State::ActiveUnrated, HOUR)
    };
    let mut period = period(0, 0, &[]);
    let mig = vec![share(0, 3, 7), share(1, 3, 7)];
    let replicas = vec![share(0, 1, 3), share(1, 1, 3), share(2, 1, 3)];
    for (gpu, parts) in period.gpus.iter_mut().zip([mig, replicas]) {
        gpu.parts = parts;
    }
    period.gpus[0].present_millis = HOUR - 7_000;
    let made = october(&fleet(1), &[period], &book(RATES, ""));
    let of_gpu = |gpu| {
        let lines = made.lines.iter().filter(move |it| it.0.gpu == Some(gpu));
        lines
            .map(|(key, sum)| (key.state, key.reason, sum.gpu_millis))
            .collect::<Vec<_>>()
    };
    // A seventh of the card without the 7 s in which the card itself was not seen.
    let stranded = (State::Unallocated, Reason::Stranded, HOUR / 7 - 7_000 + 1);
    assert!(
        of_gpu(0)
            .iter()
            .any(|it| it.0 == stranded.0 && it.1 == stranded.1 && (it.2 - stranded.2).abs() <= 1),
        "{:?}",
        of_gpu(0)
    );
    assert!(of_gpu(0).contains(&(State::Unobserved, Reason::NoSample, 7_000)));
    let thirds: Vec<i64> = of_gpu(1).iter().map(|it| it.2).collect();
    assert_eq!(thirds, [HOUR / 3; 3]);
    assert_eq!(made.total().cost, 80 * USD);
}

#[test]
fn shares_of_any_size_leave_the_time_and_the_money_of_their_node_where_they_are() {
    // The largest primes of 32 bits: no number of milliseconds' parts that fits is a multiple of both.
    let share = |share, of: u32| Part {
        share: Some(share),
        slices: of / 2,
        of,
        ..part(Some(share), State::ActiveUnrated, HOUR)
    };
    let mut period = period(0, 0, &[part(Some(2), State::Parked, HOUR)]);
    period.gpus[0].parts = vec![share(0, 4_294_967_291), share(1, 4_294_967_279)];
    let made = october(&fleet(1), std::slice::from_ref(&period), &book(RATES, ""));
    assert_eq!(
        (made.total().gpu_millis, made.total().cost),
        (8 * HOUR, 80 * USD)
    );
    assert_eq!(made.headline().active.gpu_millis, HOUR, "half of it each");
    assert_eq!(made.headline().unobserved, Sum::default());
    // Nor does one that says that it is more than its card.
    period.gpus[0].parts = vec![Part {
        slices: u32::MAX,
        ..share(0, 1)
    }];
    let made = october(&fleet(1), &[period], &book(RATES, ""));
    assert_eq!(made.headline().active.gpu_millis, HOUR);
    assert_eq!(made.notes, BTreeMap::new());
}

#[test]
fn a_price_that_changes_within_the_hour_is_paid_for_as_long_as_it_held() {
    let rates = format!("{RATES}box-8g,here,on_demand,USD,100,,2026-10-01T00:15:00Z,,list,b\n");
    let made = october(&fleet(1), &[period(0, 0, &[])], &book(&rates, ""));
    assert_eq!(made.total().cost, 95 * USD);
    assert_eq!(made.total().gpu_unpriced_millis, 8 * HOUR);
}

#[test]
fn time_without_a_price_is_unpriced_and_says_why_and_is_not_free() {
    let rates = RATES.replace("2026-10-01,,list", "2026-10-01T00:45:00Z,,list");
    let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
    let made = october(&fleet(1), &[period(0, 0, &parts)], &book(&rates, ""));
    let unpriced = made.headline().unpriced;
    assert_eq!(
        (unpriced.gpu_millis, unpriced.unpriced_millis, unpriced.cost),
        (6 * HOUR, 6 * HOUR, 0)
    );
    assert_eq!(made.total().cost, 20 * USD);
    let why = "box-8g in here, on_demand has no rate before 2026-10-01T00:45:00Z";
    assert!(
        made.tariffs.contains(&Tariff::Unpriced(why.to_owned())),
        "{:?}",
        made.tariffs
    );
}

#[test]
fn a_commitment_covers_what_it_has_and_what_nobody_used_of_it_is_a_line() {
    let hour = "2026-10-01,2026-10-01T01:00:00Z";
    let commitments = format!("c1,box-8g,here,2,commitment_3y,USD,32,{hour},money\n");
    let book = book(RATES, &commitments);
    let mut fleet = fleet(4);
    fleet.nodes[3].basis = Basis::Spot;
    let active = [part(Some(0), State::ActiveUnrated, HOUR)];
    let hours: Vec<_> = (0..4).map(|node| period(node, 0, &active)).collect();
    let made = october(&fleet, &hours, &book);
    // Three nodes want two: two at 32, one at 80, and the Spot node at 40.
    assert_eq!(made.total().cost, (2 * 32 + 80 + 40) * USD);
    assert_eq!(made.total().list, (3 * 80 + 40) * USD);
    assert_eq!(made.headline().unused, Sum::default());
    let made = october(&fleet, &hours[..1], &book);
    assert_eq!(made.total().cost, (32 + 32) * USD);
    assert_eq!(made.headline().unused.cost, 32 * USD);
    assert_eq!(made.headline().unused.gpu_millis, 8 * HOUR);
    assert!(made.balance().is_exact());
}

#[test]
fn a_commitment_of_a_host_makes_the_gpus_that_are_added_to_it_neither_free_nor_priced() {
    let host = format!("{RATES}host-4,here,on_demand,USD,0.76,,2026-10-01,,list,a\n");
    let with_gpus = format!("{host}host+t4,here,on_demand,USD,0.35,,2026-10-01,,list,a\n");
    let hour = "2026-10-01,2026-10-01T01:00:00Z";
    let commitment = format!("c1,host-4,here,1,commitment_1y,USD,0.47878,{hour},\n");
    let mut fleet = fleet(1);
    let node = &mut fleet.nodes[0];
    (node.machine_type, node.gpu_model) = ("host-4".to_owned(), "t4".to_owned());
    let hours = [period(0, 0, &[part(Some(0), State::ActiveUnrated, HOUR)])];
    let made = |rates: &str| {
        let book = book(rates, &commitment);
        assert_eq!(book.findings.len(), 1, "{:?}", book.findings);
        october(&fleet, &hours, &book)
    };
    // The host and eight GPUs, as without the commitment; nothing of it is unused.
    let priced = made(&with_gpus);
    assert_eq!(priced.total().cost, 3_560_000_000);
    assert_eq!(priced.headline().unused, Sum::default());
    assert!(priced.balance().is_exact());
    let unpriced = made(&host).total();
    assert_eq!((unpriced.cost, unpriced.unpriced_millis), (0, 8 * HOUR));
}

#[test]
fn a_commitment_is_paid_for_in_hours_without_any_node_too() {
    let days = "2026-09-15,2026-10-03";
    let commitments = format!("c1,box-8g,here,1,commitment_1y,USD,50,{days},\n");
    let active = [part(Some(0), State::ActiveUnrated, HOUR)];
    let hours = [period(0, 3, &active), period(0, 30, &active)];
    let made = october(&fleet(1), &hours, &book(RATES, &commitments));
    assert_eq!(made.total().cost, 48 * 50 * USD);
    assert_eq!(made.headline().unused.gpu_millis, 46 * 8 * HOUR);
    let days: Vec<i128> = made.days.values().map(|it| it.cost).collect();
    assert_eq!(days.iter().sum::<i128>(), 48 * 50 * USD);
    assert!(made.balance().is_exact());
}

#[test]
fn groups_add_up_to_all_lines_and_the_dearest_comes_first() {
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR / 3),
        part(Some(1), State::Stalled, HOUR / 2),
    ];
    let fleet = fleet(2);
    let made = october(
        &fleet,
        &[period(0, 0, &parts), period(1, 5, &parts)],
        &book(RATES, ""),
    );
    for by in By::ALL {
        let groups = made.grouped(&fleet, &[by]);
        assert_eq!(
            groups.iter().map(|it| it.sum.cost).sum::<i128>(),
            160 * USD,
            "{}",
            by.name()
        );
    }
    let teams = made.grouped(&fleet, &[By::Team, By::Job]);
    let words: Vec<_> = teams.iter().map(|it| it.words.join("/")).collect();
    assert_eq!(words, ["money/rank", "science/train", "nobody/"]);
    assert_eq!(teams[0].states[&State::Stalled].gpu_millis, 8 * HOUR);
    assert_eq!(made.grouped(&fleet, &[By::Gpu]).len(), 16);
}

#[test]
fn a_namespace_of_two_clusters_is_two_teams_and_a_job_of_one_name_in_both_is_two_jobs() {
    let mut fleet = fleet(2);
    for (node, cluster) in fleet.nodes.iter_mut().zip(["prod-eu", "prod-us"]) {
        node.cluster = cluster.to_owned();
    }
    let owners = "from,until,kind,key,value,team,cluster\n\
        2026-01-01,,namespace,,research,vision,prod-eu\n\
        2026-01-01,,namespace,,research,robots,prod-us\n\
        2026-01-01,,namespace,,ads,money,\n";
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR / 2),
        part(Some(1), State::Parked, HOUR / 2),
    ];
    let hours = [(0, 0), (1, 0), (0, 1)].map(|(node, hour)| period(node, hour, &parts));
    let book = book(RATES, "");
    let made = chargeback(&Asked {
        detail: Detail::Nodes,
        from_ms: FIRST_HOUR * HOUR,
        until_ms: (FIRST_HOUR + 744) * HOUR,
        now_ms: i64::MAX,
        fleet: &fleet,
        periods: &hours,
        book: &book,
        commitments: book.commitments(),
        owners: &Owners::read(owners).expect("a table"),
    });
    let check = |by: &[By], expected: &[(&str, i128)]| {
        let groups = made.grouped(&fleet, by).into_iter();
        let found: Vec<_> = groups.map(|it| (it.words.join("/"), it.sum.cost)).collect();
        let expected = expected.iter().map(|it| (it.0.to_owned(), it.1 * USD));
        assert_eq!(found, expected.collect::<Vec<_>>());
    };
    check(
        &[By::Team],
        &[("money", 120), ("vision", 80), ("robots", 40)],
    );
    check(&[By::Cluster], &[("prod-eu", 160), ("prod-us", 80)]);
    check(&[By::Namespace], &[("ads", 120), ("research", 120)]);
    check(
        &[By::Team, By::Job],
        &[
            ("money/rank in prod-eu", 80),
            ("vision/train in prod-eu", 80),
            ("money/rank in prod-us", 40),
            ("robots/train in prod-us", 40),
        ],
    );
    check(
        &[By::Job, By::Cluster],
        &[
            ("rank/prod-eu", 80),
            ("train/prod-eu", 80),
            ("rank/prod-us", 40),
            ("train/prod-us", 40),
        ],
    );
    let waste = crate::report::efficiency::waste(&made, &fleet).into_iter();
    let waste: Vec<_> = waste.map(|it| (it.job, it.sum.cost)).collect();
    let expected = [("rank in prod-eu", 80), ("rank in prod-us", 40)];
    assert_eq!(
        waste,
        expected.map(|(job, cost)| (job.to_owned(), cost * USD))
    );
    assert!(made.balance().is_exact());
}

#[test]
fn what_was_free_is_borne_as_the_policy_says_and_nothing_is_lost_by_it() {
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR / 2),
        part(Some(1), State::ActiveUnrated, HOUR / 4),
    ];
    let mut parts = parts.to_vec();
    parts.push(part(None, State::Unallocated, HOUR / 4));
    let (fleet, book) = (fleet(1), book(RATES, ""));
    let made = october(&fleet, &[period(0, 0, &parts)], &book);
    let check = |to: IdleTo, expected: &[(&str, i128)]| {
        let mut owners = owners();
        let (from_ms, until_ms, pool) = (0, None, "pool".to_owned());
        owners.idle = vec![IdlePolicy {
            from_ms,
            until_ms,
            pool,
            to,
        }];
        let borne = made.borne(&owners);
        let found: Vec<_> = borne
            .iter()
            .map(|(who, cost)| (who.name(), *cost))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(borne.values().sum::<i128>(), made.total().cost);
    };
    check(
        IdleTo::Platform,
        &[
            ("money", 20 * USD),
            ("platform", 20 * USD),
            ("science", 40 * USD),
        ],
    );
    check(
        IdleTo::Owner("money".to_owned()),
        &[("money", 40 * USD), ("science", 40 * USD)],
    );
    // Two thirds and one third of 20, the rest of the division to the larger remainder.
    check(
        IdleTo::Use,
        &[("money", 26_666_666_667), ("science", 53_333_333_333)],
    );
    let quotas = BTreeMap::from([("science".to_owned(), 3), ("vision".to_owned(), 1)]);
    check(
        IdleTo::Quota(quotas),
        &[
            ("money", 20 * USD),
            ("science", 55 * USD),
            ("vision", 5 * USD),
        ],
    );
    check(
        IdleTo::Quota(BTreeMap::new()),
        &[
            ("money", 20 * USD),
            ("platform", 20 * USD),
            ("science", 40 * USD),
        ],
    );
}

#[test]
fn what_nobody_saw_and_what_was_broken_is_divided_among_no_teams() {
    let parts = [
        part(Some(0), State::ActiveUnrated, HOUR / 4),
        part(None, State::Unallocated, HOUR / 8),
        part(None, State::Unhealthy, HOUR / 4),
        part(None, State::Draining, HOUR / 8),
    ];
    // Of the last quarter of the hour nobody told: an eighth of it is the node's start.
    let mut hour = period(0, 0, &parts);
    hour.starting_millis = HOUR / 8;
    let made = october(&fleet(1), &[hour], &book(RATES, ""));
    let quota = BTreeMap::from([("science".to_owned(), 1)]);
    for (to, science, platform) in [
        (IdleTo::Platform, 20, Some(10 * USD)),
        (IdleTo::Use, 30, None),
        (IdleTo::Quota(quota), 30, None),
        (IdleTo::Owner("science".to_owned()), 30, None),
    ] {
        let mut owners = owners();
        owners.idle = vec![IdlePolicy {
            from_ms: 0,
            until_ms: None,
            pool: "*".to_owned(),
            to,
        }];
        let borne = made.borne(&owners);
        let team = |name: &str| borne.get(&Payer::Team(name.to_owned())).copied();
        assert_eq!(team("science"), Some(science * USD), "{:?}", owners.idle);
        assert_eq!(team("platform"), platform, "{:?}", owners.idle);
        assert_eq!(borne.get(&Payer::Nobody), Some(&(50 * USD)));
        assert_eq!(borne.values().sum::<i128>(), made.total().cost);
    }
}

#[test]
fn idle_is_divided_pool_by_pool_and_over_a_cluster_where_a_policy_names_that() {
    let of = |holder, held: i64| {
        [
            part(Some(holder), State::ActiveUnrated, held),
            part(None, State::Unallocated, HOUR - held),
        ]
    };
    let mut fleet = fleet(2);
    for (node, pool) in fleet.nodes.iter_mut().zip(["c/a", "c/b"]) {
        node.pool = pool.to_owned();
    }
    let periods = [
        period(0, 0, &of(0, HOUR / 2)),
        period(1, 0, &of(1, HOUR / 4)),
    ];
    let made = october(&fleet, &periods, &book(RATES, ""));
    // What nobody held is told by pool as well.
    let groups = made.grouped(&fleet, &[By::Pool]).into_iter();
    let free = groups.map(|it| (it.words.concat(), it.states[&State::Unallocated].cost));
    let expected = [("c/a", 40 * USD), ("c/b", 60 * USD)];
    let expected = expected.map(|(pool, cost)| (pool.to_owned(), cost));
    assert_eq!(free.collect::<BTreeMap<_, _>>(), BTreeMap::from(expected));
    let borne = |pool: &str| {
        let mut owners = owners();
        owners.idle = vec![IdlePolicy {
            from_ms: 0,
            until_ms: None,
            pool: pool.to_owned(),
            to: IdleTo::Use,
        }];
        let borne = made.borne(&owners);
        assert_eq!(borne.values().sum::<i128>(), made.total().cost);
        let team = |name: &str| borne.get(&Payer::Team(name.to_owned())).copied();
        [team("science"), team("money"), team("platform")]
    };
    assert_eq!(borne("*"), [Some(80 * USD), Some(80 * USD), None]);
    // Of 100 that nobody held, by four GPU-hours and two.
    assert_eq!(
        borne("c"),
        [Some(106_666_666_667), Some(53_333_333_333), None]
    );
    assert_eq!(
        borne("c/b"),
        [Some(40 * USD), Some(80 * USD), Some(40 * USD)]
    );
}

#[test]
fn an_invoice_leaves_a_residual_that_is_told_above_two_percent() {
    let made = october(&fleet(1), &[period(0, 0, &[])], &book(RATES, ""));
    let mut invoice = Invoice {
        costs: BTreeMap::from([
            (BilledFor::Gpu, 70 * USD),
            (BilledFor::Machine, 12 * USD),
            (BilledFor::Disk, 20 * USD),
        ]),
        credits: -2 * USD,
        ..Invoice::default()
    };
    let found = made.reconciled(&invoice);
    assert_eq!(
        (found.billed, found.residual, found.total),
        (82 * USD, 2 * USD, 100 * USD)
    );
    assert_eq!(
        (found.residual_millionths, found.is_off()),
        (Some(20_000), false)
    );
    invoice
        .costs
        .insert(BilledFor::Machine, 12 * USD + 1_000_000);
    assert!(made.reconciled(&invoice).is_off());
    assert!(Invoice::default().total() == 0 && made.reconciled(&Invoice::default()).is_off());
}

#[test]
fn the_change_of_a_month_is_split_without_a_rest() {
    let (fleet, before) = (fleet(2), book(RATES, ""));
    let now = book(&RATES.replace("USD,80", "USD,88"), "");
    let busy = |share: i64| [part(Some(0), State::ActiveUnrated, HOUR / share)];
    let old = october(
        &fleet,
        &[period(0, 0, &busy(1)), period(0, 1, &busy(1))],
        &before,
    );
    let same = [period(0, 0, &busy(1)), period(0, 1, &busy(1))];
    let found = october(&fleet, &same, &now).variance(&old);
    assert_eq!(
        (
            found.change,
            found.price,
            found.volume,
            found.efficiency,
            found.mix
        ),
        (16 * USD, 16 * USD, 0, 0, 0)
    );
    let more = [
        period(0, 0, &busy(1)),
        period(0, 1, &busy(1)),
        period(1, 0, &busy(1)),
    ];
    let found = october(&fleet, &more, &before).variance(&old);
    assert_eq!(
        (found.change, found.volume, found.efficiency),
        (80 * USD, 80 * USD, 0)
    );
    let worse = [period(0, 0, &busy(2)), period(0, 1, &busy(2))];
    let found = october(&fleet, &worse, &before).variance(&old);
    assert_eq!(
        (found.change, found.volume, found.efficiency),
        (0, -80 * USD, 80 * USD)
    );
}

#[test]
fn a_budget_is_forecast_by_the_last_week_and_says_on_which_day_it_is_gone() {
    let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
    let days: Vec<_> = (0..10).map(|day| period(0, day * 24, &parts)).collect();
    let made = october(&fleet(1), &days, &book(RATES, ""));
    let first = FIRST_HOUR / 24;
    let at = |day: i64, budget: i128| {
        let budgets = BTreeMap::from([("science".to_owned(), budget)]);
        made.budgets(&budgets, (first + day) * MILLIS_PER_DAY, made.until_ms)
            .remove(0)
    };
    let standing = at(10, 1_600 * USD);
    assert_eq!(
        (standing.spent, standing.forecast),
        (800 * USD, Some(31 * 80 * USD))
    );
    // The 21st day's 80 are the first above 1,600.
    assert_eq!(
        (standing.gone_on_day, standing.is_over()),
        (Some(first + 20), true)
    );
    assert_eq!(at(10, 100 * USD).gone_on_day, Some(first + 1));
    let enough = at(10, 31 * 80 * USD);
    assert_eq!((enough.gone_on_day, enough.is_over()), (None, false));
    assert_eq!(at(0, 1_600 * USD).forecast, None);
}

#[test]
fn a_budget_that_is_gone_by_what_today_has_cost_so_far_is_gone_today() {
    let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
    let mut days: Vec<_> = (0..10).map(|day| period(0, day * 24, &parts)).collect();
    days.extend((0..5).map(|hour| period(0, 240 + hour, &parts)));
    let made = october(&fleet(1), &days, &book(RATES, ""));
    let first = FIRST_HOUR / 24;
    let budgets = BTreeMap::from([("science".to_owned(), 1_000 * USD)]);
    let at = |day: i64| {
        let now_ms = (first + day) * MILLIS_PER_DAY;
        made.budgets(&budgets, now_ms, made.until_ms).remove(0)
    };
    let standing = at(10);
    assert_eq!((standing.spent, standing.is_over()), (1_200 * USD, true));
    assert_eq!(standing.gone_on_day, Some(first + 10));
    let before_a_whole_day = at(0);
    assert_eq!(before_a_whole_day.forecast, None);
    assert_eq!(before_a_whole_day.gone_on_day, Some(first));
}

#[test]
fn the_day_in_which_the_record_begins_is_no_measure_of_the_days_to_come() {
    let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
    // An hour in the evening of the fifth day, two on the sixth, one on the seventh, at 80 each.
    let hours = [4 * 24 + 23, 5 * 24, 5 * 24 + 1, 6 * 24];
    let periods: Vec<_> = hours.map(|hour| period(0, hour, &parts)).into();
    let made = october(&fleet(1), &periods, &book(RATES, ""));
    let first = FIRST_HOUR / 24;
    let forecast = |day: i64| made.forecast((first + day) * MILLIS_PER_DAY, made.until_ms);
    assert_eq!(forecast(5), None);
    // 25 days to come as the sixth was; then 24 as the sixth and the seventh were in the middle.
    assert_eq!(forecast(6), Some((240 + 25 * 160) * USD));
    assert_eq!(forecast(7), Some((320 + 24 * 120) * USD));
    let budgets = BTreeMap::from([("science".to_owned(), 10_000 * USD)]);
    let now_ms = (first + 7) * MILLIS_PER_DAY;
    let team = made.budgets(&budgets, now_ms, made.until_ms).remove(0);
    assert_eq!(team.forecast, forecast(7), "everything is this team's");
}

/// The hour, the node, edges of its billed time, and its GPUs with how long each was present.
type Drawn = (i64, usize, Vec<i64>, Vec<(usize, i64, Vec<Part>)>);

/// An hour of a node with everything that can go wrong in it.
fn hours() -> impl Strategy<Value = Vec<NodePeriod>> {
    let state = prop::sample::select(&State::ALL[..]);
    let holder = prop::option::of(0_usize..3);
    let cut = prop::sample::select(
        &[
            (1_u32, 1_u32),
            (1, 7),
            (2, 7),
            (3, 7),
            (4, 7),
            (1, 2),
            (1, 3),
            (1, 4_294_967_291),
            (4_294_967_278, 4_294_967_279),
        ][..],
    );
    let part = (state, holder, cut, 0..=HOUR, 0_usize..14).prop_map(
        |(state, holder, (slices, of), millis, share)| Part {
            share: (of > 1).then_some(share),
            slices,
            of,
            ..part(holder, state, millis)
        },
    );
    let gpu = (0_usize..18, 0..=HOUR, prop::collection::vec(part, 0..5));
    let gpus = prop::collection::vec(gpu, 0..10);
    let billed = prop::collection::vec(0..=HOUR, 2..=4);
    let node = (0_i64..30, 0_usize..2, billed, gpus);
    prop::collection::vec(node, 1..12).prop_map(|all| {
        let of = |(hour, node, mut edges, gpus): Drawn| {
            edges.sort_unstable();
            let mut made = period(node, hour, &[]);
            let spans = edges.chunks_exact(2).filter(|it| it[0] < it[1]);
            made.billed = spans
                .map(|it| (made.from_ms + it[0], made.from_ms + it[1]))
                .collect();
            let gpus = gpus.into_iter();
            made.gpus = gpus
                .map(|(gpu, present_millis, parts)| GpuPeriod {
                    gpu,
                    present_millis,
                    parts,
                })
                .collect();
            made.starting_millis = edges[0];
            ((hour, node), made)
        };
        let unique: BTreeMap<_, _> = all.into_iter().map(of).collect();
        unique.into_values().collect()
    })
}

/// Rates that begin, change, end and overlap within the first day.
fn rates() -> impl Strategy<Value = String> {
    let row = (
        1_i64..200_000_000_000,
        0_i64..86_400,
        prop::option::of(1_i64..40_000),
    );
    prop::collection::vec(row, 1..4).prop_map(|rows| {
        let mut text = RATES.lines().next().unwrap_or_default().to_owned() + "\n";
        for (nanos, from, length) in rows {
            let begin = FIRST_HOUR * HOUR;
            let at = |seconds: i64| crate::table::moment_text(begin + seconds * 1_000);
            let until = length.map(|it| at(from + it)).unwrap_or_default();
            let hour = crate::money::decimal(nanos.into());
            text += &format!(
                "box-8g,here,on_demand,USD,{hour},,{},{until},list,a\n",
                at(from)
            );
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn lines_add_up_to_the_node_hours_in_time_and_money_whatever_happens(
        hours in hours(), rates in rates(), committed in 0_u32..3,
    ) {
        let commitments = format!("c,box-8g,here,{committed},commitment_1y,USD,31.234567891,2026-10-01,2027-10-01,\n");
        let book = book(&rates, &commitments);
        let (mut fleet, mut late) = (fleet(2), hours.clone());
        fleet.nodes[1].gpus = 0;
        fleet.nodes[1].cluster = "d".to_owned();
        let made = october(&fleet, &hours, &book);
        prop_assert!(made.balance().is_exact(), "{:?}", made.balance());
        // Time: each node's GPUs times what it was billed, and what was committed and not used.
        let billed = |it: &NodePeriod| it.billed.iter().map(|(from, until)| until - from).sum::<i64>();
        let gpus = |it: &NodePeriod| if it.node == 0 { 8 } else { (it.gpus.len() as i64).max(1) };
        let paid: i64 = hours.iter().map(|it| billed(it) * gpus(it)).sum();
        let of = |made: &Chargeback| made.total().gpu_millis - made.headline().unused.gpu_millis;
        prop_assert_eq!(of(&made), paid);
        // Money: within half a nano-unit a slice of rate × time, worked out by another way.
        let mut expected = 0_i128;
        let nodes: i64 = made.nodes.values().map(|it| it.node_millis).sum();
        for sum in made.lines.values() {
            prop_assert!(sum.gpu_millis >= 0 && sum.cost >= 0);
            prop_assert!(sum.unpriced_millis <= sum.gpu_millis);
            expected += sum.cost;
        }
        prop_assert_eq!(expected, made.nodes_cost());
        let unused: i64 = made.nodes.iter().filter(|it| matches!(made.tariffs[it.0.2], Tariff::Unused { .. })).map(|it| it.1.node_millis).sum();
        prop_assert_eq!(nodes - unused, hours.iter().map(billed).sum::<i64>());
        prop_assert_eq!(made.borne(&owners()).values().sum::<i128>(), made.total().cost);
        let days: i128 = made.days.values().map(|it| it.cost).sum();
        prop_assert_eq!(days, made.total().cost);
        // Data that comes late, in another order, changes nothing.
        late.reverse();
        let again = october(&fleet, &late, &book);
        prop_assert_eq!(again.total(), made.total());
        prop_assert_eq!(again.headline(), made.headline());
        // Nor does it whether lines are told apart by GPU.
        let by_node = october_in(Detail::Nodes, &fleet, &hours, &book);
        let by = [By::Team, By::Namespace, By::Job, By::Model, By::Project];
        prop_assert_eq!(By::detail(&by), Detail::Nodes);
        prop_assert_eq!(by_node.grouped(&fleet, &by), made.grouped(&fleet, &by));
        prop_assert_eq!(&by_node.days, &made.days);
        // Jobs of one name in two clusters are two, whether their cluster is told beside them or with their name.
        let jobs = |by: &[By]| {
            let groups = made.grouped(&fleet, by).into_iter();
            let of_jobs = groups.filter(|it| it.words.last().is_some_and(|it| !it.is_empty()));
            let mut sums: Vec<_> = of_jobs.map(|it| (it.sum.cost, it.sum.gpu_millis)).collect();
            sums.sort_unstable();
            sums
        };
        prop_assert_eq!(jobs(&[By::Job]), jobs(&[By::Cluster, By::Job]));
        prop_assert!(by_node.lines.keys().all(|it| it.gpu.is_none() && it.share.is_none()));
    }

    #[test]
    fn a_node_hour_costs_what_rate_times_time_says_to_the_nano_unit(
        rates in rates(), from in 0..HOUR / 2, until in HOUR / 2..=HOUR, hour in 0_i64..30,
    ) {
        let book = book(&rates, "");
        prop_assume!(book.findings.is_empty());
        let fleet = fleet(1);
        let mut one = period(0, hour, &[part(Some(0), State::ActiveUnrated, HOUR)]);
        one.billed = vec![(one.from_ms + from, one.from_ms + until)];
        let made = october(&fleet, std::slice::from_ref(&one), &book);
        let mut exact = 0_i128;
        let rows: Vec<(i64, i64, i64)> = {
            let mut rows: Vec<_> = rates.lines().skip(1).map(|row| {
                let fields: Vec<_> = row.split(',').collect();
                let price = crate::money::parse(fields[4]).expect("written by us");
                let from = crate::table::moment(fields[6]).expect("written by us");
                (from, crate::table::moment(fields[7]).unwrap_or(i64::MAX), price)
            }).collect();
            rows.sort_unstable();
            let begins: Vec<i64> = rows.iter().map(|it| it.0).chain([i64::MAX]).collect();
            let of = |(row, next): (&(i64, i64, i64), &i64)| (row.0, row.1.min(*next), row.2);
            rows.iter().zip(&begins[1..]).map(of).collect()
        };
        for (begin, end, price) in rows {
            let time = end.min(one.billed[0].1) - begin.max(one.billed[0].0);
            exact += i128::from(price) * i128::from(time.max(0));
        }
        let off = made.total().cost * 3_600_000 - exact;
        prop_assert!(off.abs() * 2 <= 3_600_000, "{off}");
    }
}
