//! Who held what, days, tables, and a chargeback over what really stands in the store.

use gpufleet_analysis::chargeback::view::By;
use gpufleet_analysis::chargeback::{Chargeback, Detail, MILLIS_PER_DAY};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::{Holder, Owners};
use gpufleet_analysis::report::focus;
use gpufleet_telemetry::gpu_specs::Specs;

use super::hours::{at, hour};
use super::*;
use crate::ledger::days;
use crate::money::report::{Asked, Form, What, render};
use crate::money::terms::Sources;
use crate::money::{CostConfig, Money, Terms, month};

const HOUR_S: i64 = 3_600;

/// A name's holder, in a namespace of its own.
pub(super) fn holder(name: &str) -> KnownHolder {
    let holder = Holder {
        name: name.to_owned(),
        namespace: format!("of-{name}"),
        job: name.to_owned(),
        ..Holder::default()
    };
    KnownHolder {
        number: holder.number(),
        holder,
        met: START.start(),
    }
}

/// Minutes `first` to before `end` after [`START`] of a GPU in somebody's hands, or nobody's.
pub(super) fn held(
    gpu: &str,
    first: i64,
    end: i64,
    by: Option<&KnownHolder>,
    active: bool,
) -> Vec<MinuteDelta> {
    let minute = |minute| {
        let mut row = row(active);
        match by {
            Some(by) => row.hold(by.number, row.bitmaps.held),
            None => row.bitmaps.held = 0,
        }
        MinuteDelta {
            key: key(gpu),
            minute: Minute(START.0 + minute),
            row,
        }
    };
    (first..end).map(minute).collect()
}

/// Eight GPUs of one a3-highgpu-8g for two hours from [`START`] on: six train for `a`, of which one is
/// parked in the second hour, one is of somebody whom no rule knows, one is free.
pub(super) fn node_of_eight() -> Commit {
    let mut all = commit(1, 0, START);
    let (a, b) = (holder("a"), holder("b"));
    let node = ResourceKey {
        kind: ResourceKind::Node,
        id: "node-1".into(),
        ..key("")
    };
    let mut described = known(&node, Minute(START.0 + 119));
    described.resource = Arc::new(
        Resource::new(ResourceKind::Node, "node-1")
            .with(attribute::NODE, "node-1")
            .with("host.type", "a3-highgpu-8g")
            .with("cloud.region", "us-central1")
            .with("gpufleet.provisioning", "on_demand"),
    );
    all.resources.push(described);
    for gpu in 0..8 {
        let name = format!("GPU-{gpu}");
        let mut described = known(&key(&name), Minute(START.0 + 119));
        described.first_seen = START.start();
        all.resources.push(described);
        let of = [Some(&a), Some(&b), None];
        let by = of[usize::from(gpu == 6) + 2 * usize::from(gpu == 7)];
        let works = gpu < 7;
        all.minutes.extend(held(&name, 0, 60, by, works));
        all.minutes
            .extend(held(&name, 60, 120, by, works && gpu != 5));
    }
    all.holders = vec![a, b];
    all
}

pub(super) fn terms(stored: Vec<MoneyTable>) -> Terms {
    Terms::of(Sources {
        cost: CostConfig::default(),
        gpu_hour_usd: BTreeMap::new(),
        files: Vec::new(),
        stored,
    })
}

pub(super) fn table(name: &str, kind: &str, content: &str) -> MoneyTable {
    MoneyTable {
        name: name.to_owned(),
        kind: kind.to_owned(),
        content: content.to_owned(),
        imported: START.start(),
    }
}

/// The rate of April 2026 and the team of `a`; none of `b`.
pub(super) fn tables() -> Vec<MoneyTable> {
    let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
        a3-highgpu-8g,us-central1,on_demand,USD,80.000000001,,2026-01-01,,list,contract\n";
    let owners = "from,until,kind,key,value,team\n2026-01-01,,namespace,,of-a,science\n";
    vec![
        table("mine.csv", "rates", rates),
        table("owners.csv", "owner rules", owners),
    ]
}

/// The same with a row of an idle policy.
fn terms_with_policy(row: &str) -> Terms {
    let text = format!("from,until,pool,borne_by,team,gpus\n2026-01-01,,{row}\n");
    let mut all = tables();
    all.push(table("idle.csv", "idle policies", &text));
    terms(all)
}

impl Bench {
    /// The day of [`START`] as money.
    async fn charged(&self, terms: &Terms) -> (Chargeback, month::Month) {
        let day = hour() / 24;
        let days = month::read(&self.store, day..day + 2, Some("live"))
            .await
            .unwrap();
        let month = month::charge(&days, day..day + 2, terms, Detail::Gpus);
        (month.made.clone(), month)
    }

    /// Hours of the present state by (team, state) and their cost, in GPU-minutes.
    async fn by_team(&self, terms: &Terms) -> Vec<(String, State, i64)> {
        let (made, month) = self.charged(terms).await;
        let groups = made.grouped(&month.fleet, &[By::Team]).into_iter();
        let mut all: Vec<_> = groups
            .flat_map(|group| {
                let team = group.words.concat();
                let states = group.states.into_iter();
                states.map(move |(state, sum)| (team.clone(), state, sum.gpu_millis / 60_000))
            })
            .collect();
        all.sort();
        all
    }
}

both! {
    async fn a_rule_of_a_cluster_charges_what_was_held_in_that_cluster_alone(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        for (cluster, is_charged) in [("live", true), ("other", false)] {
            let owners = format!("from,until,kind,key,value,team,cluster\n2026-01-01,,namespace,,of-a,science,{cluster}\n");
            let terms = terms(vec![table("owners.csv", "owner rules", &owners)]);
            assert_eq!(terms.findings, [""; 0]);
            let found = bench.by_team(&terms).await;
            let has = found.iter().any(|it| it.0 == "science");
            assert_eq!(has, is_charged, "{found:?}");
        }
    }
}

both! {
    async fn a_node_is_charged_to_who_held_it_and_costs_what_its_hours_cost(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let terms = terms(tables());
        assert_eq!(terms.findings, [""; 0]);
        let expected = [
            ("nobody", State::Unallocated, 120),
            ("science", State::ActiveUnrated, 11 * 60),
            ("science", State::Parked, 60),
            ("unowned", State::ActiveUnrated, 120),
        ];
        let expected = expected.map(|(team, state, minutes)| (team.to_owned(), state, minutes));
        // Put together while it is read, and then from what was put together: the same.
        assert_eq!(bench.int("SELECT COUNT(*) FROM ledger_day").await, 0);
        assert_eq!(bench.by_team(&terms).await, expected);
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 8);
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 0);
        assert_eq!(bench.int("SELECT COUNT(*) FROM ledger_day").await, 8);
        assert_eq!(bench.by_team(&terms).await, expected);
        let (made, _) = bench.charged(&terms).await;
        assert_eq!(made.total().cost, 160_000_000_002);
        assert_eq!(made.nodes_cost(), 160_000_000_002);
        assert_eq!(made.notes, BTreeMap::new());
        // A policy changes who bears the two hours that nobody held, and no sum.
        let of = |owners: &Owners, who: &str| {
            let borne = made.borne(owners);
            assert_eq!(borne.values().sum::<i128>(), made.total().cost);
            let found = borne.iter().find(|it| it.0.name() == who);
            found.map_or(0, |it| *it.1)
        };
        let (science, free) = (of(&terms.owners, "science"), of(&terms.owners, "platform"));
        assert!((20_000_000_000..=20_000_000_001).contains(&free), "{free}");
        for (policy, who, bears) in [
            ("live,owner,robots,", "robots", free),
            ("*,quota,science,8", "science", science + free),
            ("other,owner,robots,", "platform", free),
        ] {
            let with = terms_with_policy(policy);
            assert_eq!(with.findings, [""; 0]);
            assert_eq!(of(&with.owners, who), bears, "{policy}");
        }
    }
}

both! {
    async fn days_of_a_gpu_share_what_it_says_of_itself_for_as_long_as_it_says_the_same(bench) {
        let all = node_of_eight();
        bench.commit(&all).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let day = hour() / 24;
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 8);
        for later in [1, 2] {
            let sql = format!(
                "INSERT INTO ledger_day (day, subject, lease, cluster, data, computed_ms)
                 SELECT day + {later}, subject, lease, cluster, data, computed_ms
                 FROM ledger_day WHERE day = {day}"
            );
            assert_eq!(bench.execute(&sql).await, 8);
        }
        // Of its first day it is known where it was only since.
        let mut more = commit(2, 0, START);
        more.resources = all.resources;
        let node = more.resources.iter_mut().find(|it| it.key.kind == ResourceKind::Node).unwrap();
        node.resource = Arc::new((*node.resource).clone().with(attribute::ZONE, "us-central1-a"));
        bench.commit(&more).await;
        bench.execute("INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
             SELECT MIN(day), subject, 1, 0 FROM ledger_day GROUP BY subject").await;
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 8);
        let days = month::read(&bench.store, day..day + 3, Some("live")).await.unwrap().days;
        assert_eq!(days.len(), 24);
        for days in days.chunks(3) {
            let zones: Vec<&str> = days.iter().map(|it| it.of.facts.zone.as_str()).collect();
            assert_eq!(zones, ["us-central1-a", "", ""]);
            assert!(Arc::ptr_eq(&days[1].of, &days[2].of) && days[0].of.id == days[1].of.id);
            assert_eq!((days[1].day, &days[0].times), (day + 1, &days[1].times));
        }
    }
}

both! {
    async fn a_day_that_is_over_keeps_the_machine_that_it_was_priced_by(bench) {
        let mut first = node_of_eight();
        let node = first.resources.iter_mut().find(|it| it.key.kind == ResourceKind::Node).unwrap();
        node.resource = Arc::new(Resource::clone(&node.resource).with(attribute::HOST_ID, "i-1"));
        let mut anew = node.clone();
        bench.commit(&first).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 8);
        // On the next day there is another machine of this name, on Spot.
        let resource = Resource::clone(&anew.resource).with(attribute::HOST_ID, "i-2");
        anew.resource = Arc::new(resource.with(attribute::PROVISIONING, "spot"));
        anew.last_seen = Minute(START.0 + 25 * 60).start();
        let mut later = commit(2, 0, START);
        later.resources = vec![anew];
        bench.commit(&later).await;
        // And then all of the day before is put together again, as when something of it came late.
        bench.execute("INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
             SELECT day, subject, 1, 0 FROM ledger_day").await;
        let terms = terms(tables());
        for round in [0, 8] {
            if round > 0 {
                assert_eq!(days::round(&bench.store, at(26 * HOUR_S)).await.unwrap(), round);
            }
            let (made, _) = bench.charged(&terms).await;
            assert_eq!(made.total().cost, 160_000_000_002);
            let day = hour() / 24;
            let days = month::read(&bench.store, day..day + 1, Some("live")).await.unwrap().days;
            let facts = days.iter().map(|it| (&*it.of.facts.instance, &*it.of.facts.provisioning));
            assert_eq!(facts.collect::<Vec<_>>(), [("i-1", "on_demand"); 8]);
        }
    }
}

both! {
    async fn what_has_no_price_is_unpriced_and_a_price_of_the_card_stands_in(bench) {
        let mut all = node_of_eight();
        all.resources.retain(|it| it.key.kind != ResourceKind::Node);
        for it in &mut all.resources {
            let gpu = (*it.resource).clone().with(attribute::GPU_MODEL, "NVIDIA B300");
            it.resource = Arc::new(gpu);
        }
        bench.commit(&all).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let (made, _) = bench.charged(&terms(Vec::new())).await;
        assert_eq!(made.total().unpriced_millis, 16 * HOUR_S * 1_000);
        assert_eq!(made.total().cost, 0);
        let own = Terms::of(Sources {
            gpu_hour_usd: BTreeMap::from([("live/NVIDIA B300".to_owned(), "7.5".to_owned())]),
            ..terms(Vec::new()).sources
        });
        let (made, _) = bench.charged(&own).await;
        assert_eq!(made.total().unpriced_millis, 0);
        assert_eq!(made.total().cost, 16 * 7_500_000_000);
    }
}

both! {
    async fn late_news_of_who_held_it_restates_the_hour_by_holder(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 1_300)).await;
        let (a, b) = (holder("a").number, holder("b").number);
        let mut more = commit(2, 0, START);
        // GPU-7 was not free in its first half hour, as an agent tells that was cut off.
        more.minutes = held("GPU-7", 0, 30, Some(&holder("b")), true);
        bench.commit(&more).await;
        bench.compute(at(3 * HOUR_S)).await;
        let corrections = bench.store.corrections(&key("GPU-7"), hour()..hour() + 1).await.unwrap();
        let told: Vec<_> = corrections.iter().map(|it| (it.holder, it.state, it.millis)).collect();
        let minutes = 30 * 60_000;
        let active = State::ActiveUnrated.code();
        assert_eq!(told, [(0, State::Unallocated.code(), -minutes), (b, active, minutes)]);
        assert_ne!(a, b);
        let found = bench.by_team(&terms(tables())).await;
        assert!(found.contains(&("unowned".to_owned(), State::ActiveUnrated, 150)), "{found:?}");
    }
}

both! {
    async fn who_is_in_a_day_that_is_kept_stays_known_however_long_ago_he_was_met(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let later = at(100 * 86_400);
        assert_eq!(days::round(&bench.store, later).await.unwrap(), 8);
        let numbers = [holder("a").number, 17].into();
        let found = bench.store.holders(&numbers).await.unwrap();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [holder("a").number], "no more than was asked for");
        let expiry = |days| Expiry {
            minutes: Minute(0),
            buckets: 0,
            steps: 0,
            days,
            hours: 0,
            events: Timestamp(0),
            senders: Timestamp(0),
            epochs: Timestamp(0),
            resources: Timestamp(0),
        };
        let day = later.millis() / MILLIS_PER_DAY;
        bench.store.retain(&expiry(day)).await.unwrap();
        assert_eq!(bench.int("SELECT COUNT(*) FROM holder").await, 2);
        bench.store.retain(&expiry(day + 1)).await.unwrap();
        assert_eq!(bench.int("SELECT COUNT(*) FROM holder").await, 0);
    }
}

both! {
    async fn a_day_that_runs_is_put_together_well_before_its_hour_is_computed_again(bench) {
        bench.commit(&node_of_eight()).await;
        let computed_s = 2 * HOUR_S + 90;
        bench.compute(at(computed_s)).await;
        assert_eq!(days::round(&bench.store, at(computed_s + 29)).await.unwrap(), 0);
        assert_eq!(days::round(&bench.store, at(computed_s + 30)).await.unwrap(), 8);
    }
}

both! {
    async fn the_newest_days_are_put_together_first(bench) {
        bench.commit(&node_of_eight()).await;
        for day in [100, 300, 200] {
            bench.execute(&format!(
                "INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
                 SELECT {day}, MIN(id), 1, 0 FROM subject"
            )).await;
        }
        let dirty = bench.store.dirty_days(START.start()).await.unwrap();
        let found: Vec<i64> = dirty.iter().map(|it| it.day).collect();
        assert_eq!(found, [300, 200, 100]);
    }
}

both! {
    async fn terms_are_made_anew_when_a_table_changes_and_only_then(bench) {
        let (money, config) = (Money::default(), crate::config::Config::for_tests());
        let first = money.refresh(&bench.store, &config).await.unwrap();
        let again = money.refresh(&bench.store, &config).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        for it in tables() {
            bench.store.keep_table(&it).await.unwrap();
        }
        let second = money.refresh(&bench.store, &config).await.unwrap();
        assert_eq!(second.sources.stored, tables());
        assert!(Arc::ptr_eq(&second, &money.terms()), "pages are given them");
        let mut changed = tables();
        changed[0].imported = at(1);
        changed[0].content.push('x');
        bench.store.keep_table(&changed[0]).await.unwrap();
        let third = money.refresh(&bench.store, &config).await.unwrap();
        assert_eq!(third.sources.stored, changed);
    }
}

#[test]
fn budgets_of_all_clusters_are_held_against_no_single_one() {
    let budgets = "from,until,team,amount,currency\n2026-01-01,,science,100,USD\n";
    let terms = terms(vec![table("budgets.csv", "budgets", budgets)]);
    let month: String = gpufleet_analysis::table::moment_text(at(0).millis())
        .chars()
        .take(7)
        .collect();
    let asked = |cluster: Option<&str>| {
        let cluster = cluster.map(str::to_owned);
        let asked = Asked::new(What::Chargeback, Form::Json, &month, "team", cluster, at(0));
        asked.expect("it can be answered")
    };
    assert_eq!(asked(None).budgets(&terms).len(), 1);
    let one = asked(Some("prod"));
    assert!(one.budgets(&terms).is_empty());
    let days = [month::Days::default(), month::Days::default()];
    let told = render(&one, &days, &terms, None, at(0)).text;
    assert!(
        told.contains("a report of one cluster shows those that name it"),
        "{told}"
    );
    let budgets = "from,until,cluster,team,amount,currency\n2026-01-01,,prod,science,100,USD\n";
    let terms = self::terms(vec![table("budgets.csv", "budgets", budgets)]);
    assert_eq!(one.budgets(&terms).len(), 1);
    let told = render(&one, &days, &terms, None, at(0)).text;
    assert!(!told.contains("those that name it"), "{told}");
}

both! {
    async fn tables_are_kept_as_they_came_and_go_by_their_name(bench) {
        let mut kept = tables();
        for it in &kept {
            bench.store.keep_table(it).await.unwrap();
        }
        assert_eq!(bench.store.money_tables().await.unwrap(), kept);
        kept[0].content.push_str("a3-highgpu-8g,us-central1,on_demand,EUR,1,,2026-02-01,,list,x\n");
        bench.store.keep_table(&kept[0]).await.unwrap();
        let terms = terms(bench.store.money_tables().await.unwrap());
        let found: Vec<&String> = terms.findings.iter().collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("mine.csv line 3: the price is in `EUR`"), "{found:?}");
        assert!(bench.store.remove_table("mine.csv").await.unwrap());
        assert!(!bench.store.remove_table("mine.csv").await.unwrap());
        assert_eq!(bench.store.money_tables().await.unwrap(), kept[1..]);
    }
}

both! {
    async fn every_form_of_the_report_comes_from_the_store(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let terms = terms(tables());
        let now = at(3 * HOUR_S);
        let month: String = gpufleet_analysis::table::moment_text(now.millis()).chars().take(7).collect();
        for (what, form, word) in [
            (What::Chargeback, Form::Csv, "science,active_unrated"),
            (What::Chargeback, Form::Json, "\"is_exact\": true"),
            (What::Chargeback, Form::Html, "add up to the node-hours"),
            (What::Chargeback, Form::Focus, "a3-highgpu-8g"),
            (What::Efficiency, Form::Csv, "cost_per_useful_gpu_hour"),
            (What::Efficiency, Form::Json, "\"state\": \"parked\""),
            (What::Reconcile, Form::Csv, "node-hours and unused commitments"),
            (What::Reconcile, Form::Json, "\"is_exact\": true"),
        ] {
            let asked = Asked::new(what, form, &month, "team", Some("live".to_owned()), now);
            let asked = asked.unwrap();
            assert!(asked.days.end * MILLIS_PER_DAY > now.millis());
            let days = crate::money::report::read(&bench.store, &Specs::default(), &asked).await.unwrap();
            let text = render(&asked, &days, &terms, None, now).text;
            assert!(text.contains(word), "{what:?} {form:?}: {text}");
            if form == Form::Focus {
                for version in focus::Version::ALL {
                    let asked = asked.clone().version(Some(version.name())).unwrap();
                    let text = render(&asked, &days, &terms, None, now).text;
                    assert_eq!(focus::check::check(&text, version), [""; 0]);
                }
            }
        }
        // Another cluster has nothing of it.
        let days = month::read(&bench.store, hour() / 24..hour() / 24 + 1, Some("else")).await;
        assert!(days.unwrap().days.is_empty());
    }
}
