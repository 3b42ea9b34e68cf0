//! FOCUS files: whom their rows name, and that the checker finds what is wrong.

use super::*;

/// Each row names who sold its machine, else its commitment, else whom the account says.
pub(super) fn names_its_seller(text: &str, made: &Chargeback, fleet: &Fleet) {
    let sellers: Vec<String> = made
        .lines
        .keys()
        .map(|key| {
            let of_node = key.node.and_then(|it| fleet.nodes[it].seller.clone());
            let is_committed = matches!(
                made.tariffs[key.tariff],
                Tariff::Committed { .. } | Tariff::Unused { .. }
            );
            let otherwise = if is_committed {
                "Google Cloud"
            } else {
                "Own machines"
            };
            of_node.map_or_else(|| otherwise.to_owned(), |it| it.provider)
        })
        .collect();
    for name in ["Elsewhere", "Google Cloud", "Own machines"] {
        assert!(sellers.iter().any(|it| it == name), "{name}");
    }
    for (row, seller) in text.lines().skip(1).zip(&sellers) {
        // Invoice issuer, provider and publisher.
        let named = row.split(',').filter(|it| it == seller).count();
        assert_eq!(named, 3, "{row}");
        assert!(row.contains(&format!(",GPUs of {seller},")), "{row}");
    }
}

#[test]
fn the_checker_finds_what_is_wrong_in_a_focus_file() {
    let (fleet, made) = month();
    let right = focus::csv(&report(&fleet, &made), &account(), focus::Version::V1_2);
    let check = |from: &str, to: &str, expected: &str| {
        assert!(right.contains(from), "{from}");
        let wrong = focus::check::check(&right.replacen(from, to, 1), focus::Version::V1_2);
        assert!(
            wrong.iter().any(|it| it.contains(expected)),
            "{from}: {wrong:?}"
        );
    };
    check("BilledCost,", "", "column BilledCost is missing");
    check(
        "x_Team",
        "Team",
        "column Team stands behind columns of our own",
    );
    check(
        "AvailabilityZone,",
        "AvailabilityZone,AvailabilityZone,",
        "is there twice",
    );
    check("Usage,,GPU", "Use,,GPU", "ChargeCategory is `Use`");
    check(
        "2026-11-01T00:00:00Z",
        "2026-11-01",
        "BillingPeriodEnd is `2026-11-01`",
    );
    check(
        "2026-11-01T00:00:00Z",
        "2026-09-01T00:00:00Z",
        "BillingPeriodEnd is not after BillingPeriodStart",
    );
    check(",01AB-23,", ",,", "BillingAccountId is empty");
    check(",USD,", ",usd,", "BillingCurrency is `usd`");
    check(",Used,", ",,", "CommitmentDiscountStatus is of usage");
    check(",GPU-Hours,", ",,", "go together");
    check("\"{\"\"gpufleet", "\"[\"\"gpufleet", "Tags is `");
    assert!(!focus::check::check("", focus::Version::V1_2).is_empty());
}

#[test]
fn a_file_of_1_3_tells_each_line_s_part_of_its_machine_s_charge_and_by_what_contract() {
    let (fleet, made) = month();
    let version = focus::Version::V1_3;
    let text = focus::csv(&report(&fleet, &made), &account(), version);
    assert_eq!(focus::check::check(&text, version), [""; 0]);
    let header: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
    let rows = table::read(&text, &header).expect("a table");
    let of = |row: &table::TableRow, name: &str| {
        let at = header.iter().position(|it| *it == name);
        row.fields[at.expect("it is a column")].clone()
    };
    let (mut held, mut free, mut unused) = (0, 0, 0);
    for ((key, sum), row) in made.lines.iter().zip(&rows) {
        let of = |name: &str| of(row, name);
        let is_committed = !of("CommitmentDiscountId").is_empty();
        assert_eq!(!of("ContractApplied").is_empty(), is_committed, "{row:?}");
        assert_eq!(of("HostProviderName"), of("ProviderName"));
        assert_eq!(of("ServiceProviderName"), of("ProviderName"));
        let is_split = of("AllocatedMethodId") == focus::allocated::METHOD;
        assert_eq!(is_split, key.node.is_some(), "{row:?}");
        assert_eq!(of("AllocatedResourceId").is_empty(), key.holder.is_none());
        assert_eq!(
            of("AllocatedTags").contains("gpufleet/job"),
            key.holder.is_some()
        );
        let tags: serde_json::Value = serde_json::from_str(&of("Tags")).expect("JSON");
        assert_eq!(
            tags.as_object().map(serde_json::Map::len),
            Some(1),
            "{tags}"
        );
        assert_eq!(tags["gpufleet/team"], of("x_Team").as_str());
        if is_split {
            let text = of("AllocatedMethodDetails");
            let details: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let used = details["Elements"][0]["UsageQuantity"].as_f64();
            let hours = of("PricingQuantity").parse::<f64>().ok();
            assert_eq!(used, hours, "{text}");
        }
        held += usize::from(key.holder.is_some());
        free += usize::from(is_split && key.holder.is_none());
        unused += usize::from(!is_split && sum.cost > 0);
    }
    assert!(held > 5 && free > 0 && unused > 0, "{held} {free} {unused}");
}

#[test]
fn the_parts_of_a_machine_s_charge_are_those_of_its_cost() {
    let (fleet, made) = month();
    let text = focus::csv(&report(&fleet, &made), &account(), focus::Version::V1_3);
    let header: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
    let at = |name: &str| header.iter().position(|it| *it == name).expect("a column");
    let rows = table::read(&text, &header).expect("a table");
    let names = [
        "x_Cluster",
        "ResourceId",
        "x_PriceBasis",
        "CommitmentDiscountId",
    ]
    .map(at);
    let origin = |row: &table::TableRow| names.map(|it| row.fields[it].clone());
    let cost = |row: &table::TableRow| row.fields[at("EffectiveCost")].parse::<f64>();
    let mut charges: BTreeMap<[String; 4], f64> = BTreeMap::new();
    for row in &rows {
        *charges.entry(origin(row)).or_default() += cost(row).expect("a cost");
    }
    let mut compared = 0;
    for row in &rows {
        let details = &row.fields[at("AllocatedMethodDetails")];
        let charge = charges[&origin(row)];
        if details.is_empty() || charge == 0.0 {
            continue;
        }
        let details: serde_json::Value = serde_json::from_str(details).expect("JSON");
        let ratio = details["Elements"][0]["AllocatedRatio"].as_f64();
        let part = cost(row).expect("a cost") / charge;
        assert!((ratio.expect("a number") - part).abs() < 2e-9, "{details}");
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn the_checker_finds_what_is_wrong_with_what_1_3_has_more() {
    let (fleet, made) = month();
    let version = focus::Version::V1_3;
    let right = focus::csv(&report(&fleet, &made), &account(), version);
    let check = |from: &str, to: &str, expected: &str| {
        assert!(right.contains(from), "{from}");
        let wrong = focus::check::check(&right.replacen(from, to, 1), version);
        assert!(
            wrong.iter().any(|it| it.contains(expected)),
            "{from}: {wrong:?}"
        );
    };
    let ratio = "{\"\"AllocatedRatio\"\":0.";
    check(
        "HostProviderName,",
        "",
        "column HostProviderName is missing",
    );
    check(ratio, "{\"\"AllocatedRatio\"\":1.", "AllocatedRatio is 1.");
    check(ratio, "{\"\"AllocatedRatio\"\":0.0", "add up to");
    check(ratio, "{\"\"Ratio\"\":0.", "AllocatedMethodDetails is `");
    check(
        "\"\"UsageUnit\"\":\"\"GPU-Hours\"\",",
        "",
        "AllocatedMethodDetails is `",
    );
    check("gpufleet-gpu-time,", ",", "needs an AllocatedMethodId");
    check(
        "{\"\"gpufleet/job\"\"",
        "{\"\"gpufleet/team\"\":\"\"\"\",\"\"gpufleet/job\"\"",
        "is in Tags and in AllocatedTags",
    );
    check("\"\"ContractId\"\":\"\"c1\"\",", "", "ContractApplied is `");
    check(
        "\"\"ContractCommitmentAppliedUnit\"\"",
        "\"\"x_Unit\"\"",
        "ContractApplied is `",
    );
    let own = right.replacen(ratio, "{\"\"x_Own\"\":1,\"\"AllocatedRatio\"\":0.", 1);
    assert_eq!(focus::check::check(&own, version), [""; 0]);
    let older = focus::check::check(&right, focus::Version::V1_2);
    assert!(
        older.iter().any(|it| it.contains("not one of FOCUS 1.2")),
        "{older:?}"
    );
}

#[test]
fn the_bill_of_a_month_that_runs_is_of_all_of_it() {
    let (fleet, mut made) = month();
    made.until_ms = table::moment("2026-10-27").expect("a moment");
    let text = focus::csv(&report(&fleet, &made), &account(), focus::Version::V1_2);
    assert_eq!(focus::check::check(&text, focus::Version::V1_2), [""; 0]);
    let header: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
    let at = |name: &str| header.iter().position(|it| *it == name).expect("a column");
    for row in table::read(&text, &header).expect("a table") {
        assert_eq!(row.fields[at("BillingPeriodEnd")], "2026-11-01T00:00:00Z");
        assert_eq!(row.fields[at("ChargePeriodEnd")], "2026-10-27T00:00:00Z");
    }
}

#[test]
fn a_node_that_no_commitment_covers_is_at_the_own_rate_of_its_cards_not_on_demand() {
    let mut fleet = fleet(2);
    fleet.nodes[0].card = Some("box-8g".to_owned());
    fleet.nodes[0].machine_type = "box-of-cards".to_owned();
    // The same machine from the day on from which its type has a rate.
    fleet.nodes[1].name = fleet.nodes[0].name.clone();
    fleet.nodes[1].resource = fleet.nodes[0].resource.clone();
    let header = RATES.split_inclusive('\n').next().expect("a header");
    let rates = format!(
        "{header}box-8g,here,own,USD,8,,2026-10-01,,list,a\n\
         box-8g,here,on_demand,USD,80,9,2026-10-02,,list,a\n"
    );
    let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
    let periods = [period(0, 0, &parts), period(1, 25, &parts)];
    let made = october(&fleet, &periods, &book(&rates, ""));
    // Eight cards at 8, and then the whole machine at 80.
    assert_eq!(made.total().cost, (64 + 80) * 1_000_000_000);
    for version in focus::Version::ALL {
        let text = focus::csv(&report(&fleet, &made), &account(), version);
        assert_eq!(focus::check::check(&text, version), [""; 0]);
        let header: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
        let at = |name: &str| header.iter().position(|it| *it == name);
        let names = ["x_PriceBasis", "PricingCategory", "SkuId"];
        let names = names.map(|it| at(it).expect("a column"));
        let rows = table::read(&text, &header).expect("a table");
        let mut told: Vec<[&str; 3]> = rows
            .iter()
            .map(|row| names.map(|it| row.fields[it].as_str()))
            .collect();
        told.sort_unstable();
        told.dedup();
        assert_eq!(
            told,
            [
                ["on_demand", "Standard", "gpu-time/box-8g/here/on_demand"],
                ["own", "Other", "gpu-time/box-of-cards/here/own"],
            ]
        );
    }
}
