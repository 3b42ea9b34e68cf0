//! The same numbers in every form.

use super::*;
use crate::chargeback::fixture::{
    FIRST_HOUR, HOUR, RATES, book, fleet, october, owners, part, period,
};
use crate::chargeback::spot::{Preempted, TakenBack};
use crate::chargeback::{MILLIS_PER_DAY, Part, Seller, Tariff};
use crate::money;
use crate::price_book::Basis;
use crate::price_book::export::{BilledFor, Invoice};
use crate::taken::{self, Kind, Record, Standing};

mod checked;

mod page;

mod reasons;

mod reconciled;

mod told;

/// A month with every kind of line: commitments used and unused, Spot, on demand, shares, unowned,
/// free, unobserved and unpriced time, and names that need quoting.
fn month() -> (Fleet, Chargeback) {
    let mut fleet = fleet(4);
    fleet.nodes[2].basis = Basis::Spot;
    fleet.nodes[3].region = "nowhere".to_owned();
    fleet.nodes[2].seller = Some(seller("Elsewhere"));
    fleet.holders[1].job = "<b>\"rank\", & more".to_owned();
    let commitments =
        "c1,box-8g,here,1,commitment_3y,USD,32,2026-10-01,2026-10-02T01:00:00Z,money\n";
    let book = book(RATES, commitments);
    let third = HOUR / 3;
    let parts = [
        part(Some(0), State::ActiveUnrated, third),
        Part {
            lost_millis: third / 4,
            ..part(Some(1), State::ActiveInefficient, third)
        },
        part(Some(2), State::Parked, third / 2),
        part(None, State::Unallocated, third / 4),
    ];
    let mut periods: Vec<_> = (0..4).map(|node| period(node, 0, &parts)).collect();
    periods.push(period(0, 25, &parts));
    let share = |share| Part {
        share: Some(share),
        slices: 3,
        of: 7,
        ..parts[0]
    };
    periods[1].gpus[0].parts = vec![share(0), share(1)];
    let made = october(&fleet, &periods, &book);
    (fleet, made)
}

/// Its days, since the Unix epoch.
fn of_october() -> std::ops::Range<i64> {
    FIRST_HOUR / 24..FIRST_HOUR / 24 + 31
}

fn report<'a>(fleet: &'a Fleet, made: &'a Chargeback) -> Report<'a> {
    let invoice = Invoice {
        costs: BTreeMap::from([
            (BilledFor::Gpu, 200_000_000_000),
            (BilledFor::Tax, 1_000_000_000),
        ]),
        ..Invoice::default()
    };
    let budgets = BTreeMap::from([("science".to_owned(), 1_000_000_000)]);
    Report {
        title: "October 2026".to_owned(),
        chargeback: made,
        fleet,
        by: vec![By::Team, By::Job],
        borne: made.borne(&owners()),
        reconciled: Some(made.reconciled(&invoice)),
        variance: Some(made.variance(made)),
        change: Some(Ok(made.change(
            &of_october(),
            &Chargeback::default(),
            &(0..1),
        ))),
        compared: "All of October against all of September.".to_owned(),
        budgets: made.budgets(&budgets, (FIRST_HOUR + 48) * HOUR, made.until_ms),
        quotas: made.quotas(
            &BTreeMap::from([("science".to_owned(), 1)]),
            FIRST_HOUR * HOUR + 2 * HOUR,
            made.until_ms,
        ),
        spot: Spot::of(made, fleet, &taken_back(), None),
        runs: runs(),
        serving: serving(),
        demand: vec![efficiency::Demand {
            cluster: "c".to_owned(),
            seen_millis: HOUR,
            waiting_gpu_millis: 12 * HOUR,
        }],
        advised: advised(),
        passed_ms: 2 * HOUR,
        findings: vec!["rates line 7: <odd>".to_owned()],
    }
}

/// Two runs on the node at Spot that was taken back, and one of which nobody knows where it was.
fn taken_back() -> TakenBack {
    let runs = ["node-2", "node-2", ""].map(|node| Preempted {
        cluster: "c".to_owned(),
        nodes: vec![node.to_owned()],
        ended_ms: FIRST_HOUR * HOUR,
        lost_gpu_millis: Some(HOUR / 2),
        recovery_gpu_millis: None,
    });
    let time = FIRST_HOUR * HOUR..(FIRST_HOUR + 48) * HOUR;
    TakenBack::of(&time, &[], &[], runs.to_vec())
}

/// One of science that was taken and saved five dollars a day, one of money that is open, one that nobody need have read.
fn advised() -> efficiency::Advised {
    let first_ms = FIRST_HOUR * HOUR;
    let of = |payer: &str, standing: Standing, told_hours: i64| {
        let advice = taken::Advice {
            kind: Kind::RightSize,
            cluster: "c".to_owned(),
            origin: gpufleet_telemetry::identity::Origin::Live,
            about: "<b>train".to_owned(),
            payer: payer.to_owned(),
            what: "GPUs".to_owned(),
            today: "8".to_owned(),
            proposed: "4".to_owned(),
            worth: Some(7_000_000_000),
            before: taken::Before::default(),
        };
        Record {
            last_ms: first_ms + told_hours * HOUR,
            standing,
            ..Record::new(1, advice, first_ms)
        }
    };
    let mut done = of("science", Standing::Taken, 2);
    done.changed_ms = Some(first_ms + 3 * HOUR);
    let day = first_ms / MILLIS_PER_DAY;
    done.saved = (day..day + 60).map(|it| (it, 5_000_000_000)).collect();
    efficiency::Advised {
        records: vec![
            done,
            of("money", Standing::Told, 3),
            of("money", Standing::Told, 0),
        ],
        not_kept: None,
    }
}

/// Two runs of one team, of which one says no FLOPs, and one of a team that no line has.
fn runs() -> Vec<efficiency::RunTime> {
    let run =
        |payer: &str, hours: i64, goodput: Option<i64>, mfu: Option<i64>| efficiency::RunTime {
            payer: payer.to_owned(),
            gpu_millis: hours * HOUR,
            goodput,
            mfu,
        };
    vec![
        run("science", 2, Some(900_000), Some(400_000)),
        run("science", 1, Some(600_000), None),
        run("elsewhere", 5, None, None),
    ]
}

/// A job that serves, and a model server of which nobody knows whose it is.
fn serving() -> Vec<efficiency::Serving> {
    let chat = efficiency::Serving {
        cluster: "c".to_owned(),
        payer: "science".to_owned(),
        job: "deployment:ml/chat".to_owned(),
        models: vec!["llama".to_owned()],
        endpoints: 2,
        prompt_tokens: Some(30_000_000),
        generated_tokens: Some(10_000_000),
        gpu_millis: 4 * HOUR,
        held_millis: 5 * HOUR,
        cost: Some(40_000_000_000),
        why: String::new(),
    };
    let unknown = efficiency::Serving {
        cluster: "c".to_owned(),
        job: "node-1:8000/<b>".to_owned(),
        generated_tokens: Some(7),
        why: "several jobs held GPUs of its node".to_owned(),
        ..efficiency::Serving::default()
    };
    vec![chat, unknown]
}

fn account() -> focus::Account {
    focus::Account {
        billing_account_id: "01AB-23".to_owned(),
        billing_account_name: String::new(),
        seller: seller("Own machines"),
        commitments: BTreeMap::from([("c1".to_owned(), seller("Google Cloud"))]),
    }
}

fn seller(provider: &str) -> Seller {
    Seller {
        provider: provider.to_owned(),
        service: format!("GPUs of {provider}"),
    }
}

/// The sum of a column of money.
fn column(text: &str, name: &str) -> i128 {
    let header: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
    let at = header
        .iter()
        .position(|it| *it == name)
        .expect("the column is there");
    let rows = table::read(text, &header).expect("a table");
    // What is not told is empty, and in no sum.
    let of = |row: table::TableRow| match row.fields[at].as_str() {
        "" => 0,
        told => i128::from(money::parse(told).expect("money")),
    };
    rows.into_iter().map(of).sum()
}

#[test]
fn every_form_adds_up_to_the_same_total_to_the_nano_unit() {
    let (fleet, made) = month();
    let total = made.total();
    assert!(made.balance().is_exact() && total.cost > 0);
    let report = report(&fleet, &made);
    assert_eq!(column(&csv(&report), "cost"), total.cost);
    assert_eq!(
        column(&csv(&report), "gpu_seconds"),
        i128::from(total.gpu_millis) * 1_000_000
    );
    let focus = focus::csv(&report, &account(), focus::Version::V1_2);
    assert_eq!(column(&focus, "EffectiveCost"), total.cost);
    assert_eq!(column(&focus, "BilledCost"), total.cost);
    assert_eq!(column(&focus, "ListCost"), total.list);
    assert_eq!(column(&efficiency::csv(&report), "cost"), total.cost);
    let json: serde_json::Value = serde_json::from_str(&json(&report)).expect("JSON");
    let of = |value: &serde_json::Value| {
        i128::from(money::parse(value.as_str().expect("text")).expect("money"))
    };
    assert_eq!(of(&json["total"]["cost"]), total.cost);
    let groups = json["groups"].as_array().expect("groups");
    assert_eq!(
        groups.iter().map(|it| of(&it["sum"]["cost"])).sum::<i128>(),
        total.cost
    );
    let reasons_of = |value: &serde_json::Value| {
        let states = value["states"].as_object().expect("states");
        let reasons = states.values().map(|state| {
            let reasons = state["reasons"].as_object().expect("reasons");
            let sum = reasons.values().map(|it| of(&it["cost"])).sum::<i128>();
            assert_eq!(sum, of(&state["cost"]), "reasons add up to their state");
            sum
        });
        reasons.sum::<i128>()
    };
    assert_eq!(reasons_of(&json), total.cost);
    assert_eq!(groups.iter().map(reasons_of).sum::<i128>(), total.cost);
    let borne = json["borne"].as_array().expect("payers");
    assert_eq!(
        borne.iter().map(|it| of(&it["cost"])).sum::<i128>(),
        total.cost
    );
    // A twelfth of each hour nobody told: it is the platform's, whatever the policies, and says what it is.
    let apart: Vec<_> = borne.iter().filter(|it| !it["what"].is_null()).collect();
    assert_eq!(apart.len(), 1);
    assert_eq!(apart[0]["payer"], "platform");
    assert_eq!(apart[0]["what"], "not in use, not idle");
    assert_eq!(of(&apart[0]["cost"]), made.headline().unobserved.cost);
    let variance = &json["variance"];
    let parts = ["price", "volume", "mix", "efficiency"].map(|it| of(&variance[it]));
    assert_eq!(parts.iter().sum::<i128>(), of(&variance["change"]));
    let against = &json["against"];
    assert_eq!(of(&against["days"]["cost"]), total.cost, "all its days");
    assert_eq!(of(&against["change"]), total.cost, "after nothing");
    assert!(against["not_compared"].is_null() && against["moved_most"]["team"].is_string());
}

#[test]
fn what_cannot_be_compared_has_its_reason_in_place_of_figures() {
    let (fleet, made) = month();
    let report = Report {
        change: Some(Err("Not compared.".to_owned())),
        ..report(&fleet, &made)
    };
    let value: serde_json::Value = serde_json::from_str(&json(&report)).expect("JSON");
    let against = value["against"].as_object().expect("an object");
    assert_eq!(against["not_compared"], "Not compared.");
    assert_eq!(against.values().filter(|it| !it.is_null()).count(), 1);
}

#[test]
fn the_focus_file_has_a_right_row_for_every_kind_of_line() {
    let (fleet, made) = month();
    let text = focus::csv(&report(&fleet, &made), &account(), focus::Version::V1_2);
    assert_eq!(focus::check::check(&text, focus::Version::V1_2), [""; 0]);
    // For the specification's own validator: `make test-focus`.
    if let Some(path) = std::env::var_os("GPUFLEET_FOCUS_FILE") {
        std::fs::write(path, &text).expect("the file can be written");
    }
    assert_eq!(text.lines().count(), made.lines.len() + 1);
    for words in [
        ",Standard,",
        ",Dynamic,",
        ",Committed,",
        ",Other,",
        ",Used,",
        ",Unused,",
        "unpriced: ",
    ] {
        assert!(text.contains(words), "{words}");
    }
    checked::names_its_seller(&text, &made, &fleet);
    let is_unpriced = |it: &&Tariff| matches!(it, Tariff::Unpriced(_));
    assert!(made.tariffs.iter().any(|it| is_unpriced(&it)));
}

#[test]
fn the_page_escapes_names_says_whether_it_balances_and_fetches_nothing() {
    let (fleet, made) = month();
    let page = html(&report(&fleet, &made));
    assert!(
        page.contains("The lines add up to the node-hours&#39; price exactly."),
        "balance"
    );
    assert!(!page.contains("<b>\"rank\""));
    assert!(page.contains("&#60;b&#62;") && page.contains("&#60;odd&#62;"));
    for word in ["http:", "https:", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("(over)") && page.contains("more than 2 %"));
    // Both bars and days are drawn, and none is wider than its chart.
    let widths = page
        .split(" width=\"")
        .skip(1)
        .filter_map(|it| it.split('"').next()?.parse::<i64>().ok());
    let widths: Vec<i64> = widths.collect();
    assert!(widths.len() > 31 && widths.iter().all(|it| (0..=10_000).contains(it)));
}

#[test]
fn what_spot_and_commitments_came_to_stands_in_the_json_and_on_the_page() {
    let (fleet, made) = month();
    let report = report(&fleet, &made);
    let value: serde_json::Value = serde_json::from_str(&json(&report)).expect("JSON");
    let (spot, committed) = (&value["spot"], &value["commitments"]);
    // Eight GPUs for an hour at 40 instead of 80; one GPU-hour of them was lost.
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    assert_eq!(text(&spot["saved"]), "40.0");
    assert_eq!(
        (text(&spot["lost"]), text(&spot["net_saved"])),
        ("5.0".to_owned(), "35.0".to_owned())
    );
    assert_eq!(text(&spot["preemptions_per_1000_gpu_hours"]), "125.0");
    assert_eq!(
        (
            &spot["preempted_runs_of_unknown_loss"],
            &spot["preempted_runs"],
            &spot["preemptions"],
            &spot["preemptions_elsewhere"],
        ),
        (&2.into(), &2.into(), &1.into(), &1.into())
    );
    assert_eq!(text(&spot["places"][0]["zone"]), "here-a");
    // One of 25 hours of one node was used, and is one of three node-hours on demand.
    assert_eq!(text(&committed["utilisation"]), "0.04");
    assert_eq!(text(&committed["coverage"]), "0.333333");
    let page = html(&report);
    for words in [
        "<h2>Spot</h2>",
        "+35.00",
        "the net saving is at most that",
        "<h2>Commitments</h2>",
        "4.0 %",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let mut none = made.clone();
    none.spot.clear();
    let none = Report {
        spot: Spot::of(&none, &fleet, &TakenBack::default(), None),
        ..report
    };
    let value: serde_json::Value = serde_json::from_str(&json(&none)).expect("JSON");
    assert!(value["spot"].is_null() && !html(&none).contains("<h2>Spot</h2>"));
}

#[test]
fn a_quota_stands_beside_what_was_held() {
    let (fleet, made) = month();
    let report = report(&fleet, &made);
    let value: serde_json::Value = serde_json::from_str(&json(&report)).expect("JSON");
    let quota = &value["quotas"][0];
    assert_eq!(
        (&quota["team"], &quota["quota_gpus"]),
        (&"science".into(), &1.into())
    );
    assert_eq!(
        (&quota["is_over"], &quota["forecast_gpus"]),
        (&true.into(), &serde_json::Value::Null)
    );
    let page = html(&report);
    assert!(page.contains("<h2>Quotas in GPUs</h2>") && page.contains("<td>science (over)</td>"));
}

#[test]
fn a_page_that_does_not_balance_says_so() {
    let (fleet, mut made) = month();
    let line = made.lines.values_mut().next().expect("a line");
    line.cost += 1_000_000_000;
    let page = html(&report(&fleet, &made));
    assert!(
        page.contains("<p class=\"bad\">The lines do NOT add up") && page.contains("off by 1.00")
    );
}

#[test]
fn goodput_and_mfu_of_a_team_are_those_of_its_runs_and_say_how_much_is_behind_them() {
    let (fleet, made) = month();
    let report = report(&fleet, &made);
    let held = made.lines.iter().filter(|it| it.0.holder.is_some());
    let theirs = held.filter(|it| made.payers[it.0.payer].name() == "science");
    let theirs: i64 = theirs.map(|it| it.1.gpu_millis).sum();
    let value: serde_json::Value = serde_json::from_str(&efficiency::json(&report)).expect("JSON");
    let teams = value["teams"].as_array().expect("teams");
    let team = |name: &str| teams.iter().find(|it| it["team"] == name).expect("a team");
    let science = team("science");
    assert_eq!(
        (&science["goodput"], &science["mfu"]),
        (&"0.8".into(), &"0.4".into())
    );
    let covered = |hours: i64| {
        decimal(ratio(i128::from(hours * HOUR), 1_000_000, theirs.into()).expect("a share") * 1_000)
    };
    assert_eq!(science["goodput_covered_ratio"], covered(3));
    assert_eq!(science["mfu_covered_ratio"], covered(2));
    assert!(team("money")["mfu"].is_null());
    assert_eq!(science["training_runs"], 2);
    assert!(
        efficiency::csv(&report)
            .lines()
            .any(|it| it.starts_with("science,") && it.contains(",2,0.8,"))
    );
    assert!(html(&report).contains("80.0 % (known for "));
}

#[test]
fn demand_stands_beside_supply_and_a_queue_that_nobody_sees_is_not_known() {
    let (fleet, made) = month();
    let mut report = report(&fleet, &made);
    let balance = efficiency::balances(&report).remove(0);
    // Five node-hours of eight GPUs in two hours.
    assert_eq!((balance.cluster.as_str(), balance.gpus), ("c", 20_000));
    let of = |is_in: fn(&crate::chargeback::Key) -> bool| {
        let lines = made.lines.iter().filter(|it| is_in(it.0));
        i128::from(lines.map(|it| it.1.gpu_millis).sum::<i64>()) * 1_000 / i128::from(2 * HOUR)
    };
    let near = |one: i128, other: i128| (one - other).abs() <= 1;
    assert!(
        near(balance.held, of(|it| it.holder.is_some())),
        "{balance:?}"
    );
    let is_free = |it: &crate::chargeback::Key| it.node.is_some() && it.state == State::Unallocated;
    assert!(
        near(balance.free, of(is_free)) && balance.free > 0,
        "{balance:?}"
    );
    assert_eq!((balance.waited_for, balance.seen), (Some(12_000), 500_000));
    let value: serde_json::Value = serde_json::from_str(&efficiency::json(&report)).expect("JSON");
    assert_eq!(value["demand"][0]["waited_for_gpus"], "12.0");
    assert!(html(&report).contains("<td class=\"n\">12.0</td><td class=\"n\">50.0 %</td>"));
    report.demand.push(efficiency::Demand {
        cluster: "never-a-node".to_owned(),
        seen_millis: HOUR,
        waiting_gpu_millis: 64 * HOUR,
    });
    let bare = efficiency::balances(&report).remove(1);
    assert_eq!((bare.gpus, bare.waited_for), (0, Some(64_000)));
    report.demand.clear();
    let value: serde_json::Value = serde_json::from_str(&efficiency::json(&report)).expect("JSON");
    assert!(value["demand"][0]["waited_for_gpus"].is_null());
    assert!(html(&report).contains("not seen"));
}
