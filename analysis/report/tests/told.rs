//! What is shown beside the money: energy, and what a token cost; and that what is not told reads so.

use super::*;

#[test]
fn energy_is_what_was_told_of_each_and_not_told_is_not_none() {
    let fleet = fleet(2);
    let drawn = |millijoules, metered_millis| Energy {
        millijoules,
        metered_millis,
    };
    let quarter = HOUR / 4;
    let parts = [
        // 700 W at work, told of all of it; 80 W parked, told of half of it; free, and not told.
        Part {
            energy: drawn(quarter * 700, quarter),
            ..part(Some(0), State::ActiveUnrated, quarter)
        },
        Part {
            energy: drawn(quarter * 40, quarter / 2),
            ..part(Some(0), State::Parked, quarter)
        },
        part(None, State::Unallocated, 2 * quarter),
    ];
    // A commitment covers half of the first node's hour, so that its pieces are cut.
    let commitments =
        "c1,box-8g,here,1,commitment_3y,USD,32,2026-10-01,2026-10-01T00:30:00Z,money\n";
    let periods = [period(0, 0, &parts), period(1, 0, &parts)];
    let made = october(&fleet, &periods, &book(RATES, commitments));
    let all = made.total().energy;
    assert_eq!(all, drawn(16 * quarter * 740, 16 * (quarter + quarter / 2)));
    let by_day = made.days.values().map(|it| it.energy.millijoules);
    assert_eq!(by_day.sum::<i64>(), all.millijoules);

    let report = report(&fleet, &made);
    let text = csv(&report);
    let row = |words: &str| {
        let row = text.lines().find(|it| it.starts_with(words));
        let fields: Vec<&str> = row.expect(words).split(',').collect();
        // Behind them stands the currency.
        (fields[fields.len() - 3], fields[fields.len() - 2])
    };
    assert_eq!(row("science,train,active_unrated"), ("2.8", "14400.0"));
    assert_eq!(row("science,train,parked"), ("0.16", "7200.0"));
    assert_eq!(row("nobody,,unallocated"), ("", "0.0"), "not told is empty");
    let json: serde_json::Value = serde_json::from_str(&json(&report)).expect("JSON");
    assert_eq!(json["total"]["energy_kwh"], "2.96");
    assert_eq!(json["active"]["energy_kwh"], "2.8");
    assert!(json["unobserved"]["energy_kwh"].is_null());
    let focus = focus::csv(&report, &account(), focus::Version::V1_2);
    assert_eq!(column(&focus, "x_EnergyKwh"), 2_960_000_000);
    assert_eq!(column(&focus, "x_EnergyMeteredGpuHours"), 6_000_000_000);
    assert_eq!(focus::check::check(&focus, focus::Version::V1_2), [""; 0]);
    let page = html(&report);
    for words in [
        "<td class=\"n\">3.0 (known for 75.0 % of the time)</td>",
        "<td class=\"n\">not told</td>",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_million_tokens_cost_what_the_gpus_cost_that_served_them_or_it_is_said_why_not() {
    let (fleet, made) = month();
    let report = report(&fleet, &made);
    let value: serde_json::Value = serde_json::from_str(&efficiency::json(&report)).expect("JSON");
    let [chat, unknown] = [&value["serving"][0], &value["serving"][1]];
    assert_eq!(chat["cost_per_million_tokens"], "1.0");
    assert_eq!(chat["cost_per_million_generated_tokens"], "4.0");
    assert_eq!(chat["covered_ratio"], "0.8");
    assert!(chat["not_known"].is_null());
    assert!(unknown["cost"].is_null() && unknown["cost_per_million_generated_tokens"].is_null());
    assert_eq!(unknown["not_known"], "several jobs held GPUs of its node");
    let page = html(&report);
    for words in [
        "<h2>Serving</h2>",
        "<td class=\"n\">4.00</td>",
        "several jobs held GPUs of its node",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<b>node-1"));
    // Nothing generated is no price, and says so.
    let idle = efficiency::Serving {
        generated_tokens: Some(0),
        ..serving().swap_remove(0)
    };
    let why = Some("no token was generated in the time that is told");
    assert_eq!((idle.per_million_generated(), idle.why_not()), (None, why));
}

#[test]
fn every_field_of_a_focus_file_is_that_of_its_own_line() {
    let (mut fleet, made) = month();
    fleet.nodes[1].project = "another".to_owned();
    let report = report(&fleet, &made);
    assert!(made.lines.len() > 20);
    for version in focus::Version::ALL {
        let text = focus::csv(&report, &account(), version);
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
        assert_eq!(lines.clone().count(), made.lines.len());
        for (at, found) in lines.enumerate() {
            let account = account();
            let mut expected = String::new();
            let fields = focus::fields(&report, &account, (version, at), &header);
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            table::write_shown(&mut expected, &fields);
            assert_eq!(found, expected.trim_end(), "line {at}");
        }
    }
}

#[test]
fn advice_that_was_taken_stands_with_what_it_saved_in_that_time_and_what_is_not_kept_is_not_none() {
    let (fleet, made) = month();
    let mut report = report(&fleet, &made);
    let value: serde_json::Value = serde_json::from_str(&efficiency::json(&report)).expect("JSON");
    let advice = &value["advice"];
    let kind = &advice["by_kind"][0];
    assert_eq!((&kind["given"], &kind["taken"]), (&2.into(), &1.into()));
    assert_eq!(kind["worth_per_day"], "14.0");
    // Of sixty days at five dollars those of October.
    assert_eq!(
        (&kind["saved"], &advice["taken"][0]["saved"]),
        (&"155.0".into(), &"155.0".into())
    );
    assert_eq!(advice["taken"][0]["taken_on"], "2026-10-01");
    assert!(advice["not_kept"].is_null());
    let text = efficiency::csv(&report);
    let ends = |team: &str, end: &str| {
        let row = text.lines().find(|it| it.starts_with(team)).expect("a row");
        assert!(row.ends_with(end), "{row}");
    };
    ends("science,", ",1,7.0,1,155.0");
    ends("money,", ",1,7.0,0,0.0");
    let page = html(&report);
    for words in [
        "<h2>Advice, taken and saved</h2>",
        "GPUs: 8 → 4",
        "<td class=\"n\">155.00</td>",
        "&#60;b&#62;train",
    ] {
        assert!(page.contains(words), "{words}");
    }
    report.advised = efficiency::Advised {
        records: Vec::new(),
        not_kept: Some("advice is kept since 2026-11-23".to_owned()),
    };
    let text = efficiency::csv(&report);
    let science = text.lines().find(|it| it.starts_with("science,"));
    assert!(science.is_some_and(|it| it.ends_with(",,,,")), "{text}");
    assert!(html(&report).contains("advice is kept since 2026-11-23"));
}

#[test]
fn use_and_waste_are_ranked_by_money_and_inefficiency_is_apart() {
    let (fleet, made) = month();
    let report = report(&fleet, &made);
    let uses = efficiency::uses(&report);
    let money = |of: &[efficiency::Use]| of.iter().find(|it| it.payer == "money").cloned();
    let some_unpriced = money(&uses).expect("a team");
    assert_eq!(some_unpriced.inefficiency, None, "not known is not 0");
    let mut all_priced = made.clone();
    for sum in all_priced.lines.values_mut() {
        sum.unpriced_millis = 0;
    }
    let money = money(&efficiency::uses(&super::report(&fleet, &all_priced)));
    let money = money.expect("a team");
    let inefficiency = money
        .inefficiency
        .expect("its time was held against a target");
    assert!(inefficiency > 0 && money.active.gpu_millis > 0);
    let low = made.grouped(&fleet, &[By::Team]);
    let low = low
        .iter()
        .find(|it| it.words[0] == "money")
        .expect("a team");
    let low = low.states[&State::ActiveInefficient];
    assert!((inefficiency - low.cost / 4).abs() <= low.cost / 1_000);
    assert!(money.cost_per_useful_hour.is_some());
    assert_eq!(some_unpriced.cost_per_useful_hour, None);
    let waste = efficiency::waste(&made, &fleet);
    assert!(waste.windows(2).all(|it| it[0].sum.cost >= it[1].sum.cost));
    let all: i128 = waste.iter().map(|it| it.sum.cost).sum();
    assert_eq!(all, made.headline().waste.cost);
}
