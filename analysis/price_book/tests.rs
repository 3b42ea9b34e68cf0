//! Prices that hold, that change, that are missing, that contradict each other; and imports.
//!
//! Longer than 500 lines because every way in which a price can be wrong is one table of its own.

use super::catalog::import;
use super::export::{BilledFor, Invoice};
use super::*;

const MACHINES: &str = "machine_type,gpu_model,gpu_count,vcpus,memory_gib\n\
    box-8g,h100,8,208,1872\nhost-4,,0,4,15\nhost+t4,t4,1,,\n";

const HEADER: &str = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n";

/// A book of box-8g and of hosts with these rows of rates, and these discounts.
fn book(rates: &str, discounts: &str) -> Book {
    let discounts = format!("machine_type,region,basis,percent_off,from,until\n{discounts}");
    let tables = Tables {
        machines: vec![Text::new("machines", MACHINES)],
        rates: vec![Text::new("rates", &format!("{HEADER}{rates}"))],
        discounts: vec![Text::new("discounts", &discounts)],
        commitments: Vec::new(),
    };
    Book::load("USD", &tables)
}

fn day(text: &str) -> i64 {
    crate::table::moment(text).expect("a date")
}

fn ask(basis: Basis, from: &str, until: &str) -> Ask<'static> {
    Ask {
        machine_type: "box-8g",
        region: "here",
        gpu_model: "",
        gpus: 8,
        basis,
        from_ms: day(from),
        until_ms: day(until),
    }
}

/// (days, price in nano-units or the reason) of each stretch.
fn stretches(book: &Book, ask: &Ask<'_>) -> Vec<(i64, Result<i64, String>)> {
    let of = book.quote(ask).into_iter();
    of.map(|it| {
        let days = (it.until_ms - it.from_ms) / 86_400_000;
        let price = it.quote.map(|quote| quote.hour);
        (days, price.map_err(|why| why.to_string()))
    })
    .collect()
}

fn findings(book: &Book) -> Vec<String> {
    book.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_rate_holds_until_the_next_of_its_series_and_a_price_change_cuts_the_time() {
    let book = book(
        "box-8g,here,spot,USD,20,,2026-10-11,,list,a\nbox-8g,here,spot,USD,62.5,,2026-10-01,,list,a\n",
        "",
    );
    assert_eq!(findings(&book), [""; 0]);
    assert_eq!(
        stretches(&book, &ask(Basis::Spot, "2026-10-05", "2026-10-20")),
        [(6, Ok(62_500_000_000)), (9, Ok(20_000_000_000))]
    );
}

#[test]
fn gaps_overlaps_and_times_before_the_first_rate_have_no_price_and_say_why() {
    let book = book(
        "box-8g,here,on_demand,USD,80,,2026-10-03,2026-10-05,list,a\n\
         box-8g,here,on_demand,USD,81,,2026-10-07,2026-10-12,list,a\n\
         box-8g,here,on_demand,USD,82,,2026-10-10,,list,a\n",
        "",
    );
    assert_eq!(
        findings(&book),
        [
            "rates line 3: there is no rate from 2026-10-05T00:00:00Z until 2026-10-07T00:00:00Z",
            "rates line 4: it holds at the same time as rates line 3: that time has no price",
        ]
    );
    let series = "box-8g in here, on_demand";
    let no = |why: &str| Err(format!("{series} {why}"));
    assert_eq!(
        stretches(&book, &ask(Basis::OnDemand, "2026-10-01", "2026-10-15")),
        [
            (2, no("has no rate before 2026-10-03T00:00:00Z")),
            (2, Ok(80_000_000_000)),
            (2, no("has no rate at 2026-10-05T00:00:00Z")),
            (3, Ok(81_000_000_000)),
            (
                2,
                no("has two rates at once: rates line 3 and rates line 4")
            ),
            (3, Ok(82_000_000_000)),
        ]
    );
}

#[test]
fn rows_that_say_the_same_are_one_and_of_any_others_two_at_once_are_no_price() {
    let rate = "box-8g,here,on_demand,USD,80,8,2026-10-01,,list,a\n";
    let until = "box-8g,here,on_demand,USD,80,8,2026-10-01,2026-10-11,list,a\n";
    let discount = "*,*,,10,2026-10-01,\n";
    let october = ask(Basis::OnDemand, "2026-10-01", "2026-10-11");
    let same = book(&rate.repeat(3), &discount.repeat(2));
    assert_eq!(findings(&same), [""; 0]);
    assert_eq!(stretches(&same, &october), [(10, Ok(72_000_000_000))]);
    let (price, source) = (rate.replace("80", "81"), rate.replace(",a", ",b"));
    for other in [until, price.as_str(), source.as_str()] {
        let two = book(&format!("{rate}{other}"), "");
        assert_eq!(findings(&two).len(), 1, "{other}");
        let found = stretches(&two, &october);
        assert!(found[0].1.is_err(), "{other}: {found:?}");
    }
}

#[test]
fn spot_that_is_not_below_on_demand_is_refused_for_as_long_as_it_holds() {
    let book = book(
        "box-8g,here,on_demand,USD,80,,2026-10-01,,list,a\n\
         box-8g,here,spot,USD,79.999999999,,2026-10-01,,list,a\n\
         box-8g,here,spot,USD,80,,2026-10-02,,list,a\n",
        "",
    );
    assert_eq!(
        findings(&book),
        ["rates line 4: Spot 80.0 is not below the on-demand 80.0 of rates line 2"]
    );
    let spot = stretches(&book, &ask(Basis::Spot, "2026-10-01", "2026-10-03"));
    assert_eq!(spot[0], (1, Ok(79_999_999_999)));
    let why = "box-8g in here, spot at rates line 4 was refused: Spot is not below on-demand";
    assert_eq!(spot[1], (1, Err(why.to_owned())));
}

#[test]
fn spot_is_refused_from_the_day_on_which_on_demand_gets_cheaper_and_where_that_is_of_every_region()
{
    let spot = "box-8g,here,spot,USD,50,,2026-10-01,,list,a\n";
    for region in ["here", "*"] {
        let dropped = format!(
            "box-8g,{region},on_demand,USD,80,,2026-10-01,,list,a\n\
             box-8g,{region},on_demand,USD,40,,2026-10-05,2026-10-08,list,a\n\
             box-8g,{region},on_demand,USD,60,,2026-10-08,,list,a\n{spot}"
        );
        let book = book(&dropped, "");
        assert_eq!(
            findings(&book),
            ["rates line 5: Spot 50.0 is not below the on-demand 40.0 of rates line 3"]
        );
        let why = "box-8g in here, spot at rates line 5 was refused: Spot is not below on-demand";
        assert_eq!(
            stretches(&book, &ask(Basis::Spot, "2026-10-01", "2026-10-10")),
            [
                (4, Ok(50_000_000_000)),
                (3, Err(why.to_owned())),
                (2, Ok(50_000_000_000))
            ],
            "{region}"
        );
    }
    // The region's own on-demand goes before that of every region.
    let own = format!(
        "box-8g,*,on_demand,USD,40,,2026-10-01,,list,a\nbox-8g,here,on_demand,USD,80,,2026-10-01,,list,a\n{spot}"
    );
    assert_eq!(findings(&book(&own, "")), [""; 0]);
}

#[test]
fn rows_that_cannot_be_used_are_named_with_the_reason_and_price_nothing() {
    for (row, problem) in [
        (
            "box-8g,here,own,EUR,80,,2026-10-01,,list,a",
            "the price is in `EUR`, the book is in `USD`: nothing is converted",
        ),
        (
            "car,here,own,USD,80,,2026-10-01,,list,a",
            "machine type `car` is not known: add it to the table of machine types",
        ),
        (
            "box-8g,here,own,USD,-1,,2026-10-01,,list,a",
            "the price `-1` is negative",
        ),
        (
            "box-8g,here,spot,USD,0,,2026-10-01,,list,a",
            "`hour` is 0, which only an `own` rate may be: without the row that time has no price",
        ),
        (
            "box-8g,here,on_demand,USD,80,0.0,2026-10-01,,list,a",
            "`gpu_hour` is 0, which only an `own` rate may be: without the row that time has no price",
        ),
        (
            "box-8g,here,own,USD,1e3,,2026-10-01,,list,a",
            "`hour` is `1e3`: is not a decimal number",
        ),
        (
            "box-8g,here,own,USD,,,2026-10-01,,list,a",
            "`hour` is empty",
        ),
        (
            "box-8g,here,own,USD,1,,yesterday,,list,a",
            "`from` is `yesterday`: a date such as 2026-10-01",
        ),
        (
            "box-8g,here,own,USD,1,,2026-10-02,2026-10-02,list,a",
            "it ends at 2026-10-02, not after 2026-10-02",
        ),
        (
            "box-8g,here,rent,USD,1,,2026-10-02,,list,a",
            "`basis` is `rent`: on_demand, spot, flex_start, commitment_1y, commitment_3y, own",
        ),
        ("box-8g,,own,USD,1,,2026-10-02,,list,a", "`region` is empty"),
        (
            "box-8g,here,own,USD,1,,2026-10-02,,good,a",
            "`quality` is `good`: list, inferred or suspect",
        ),
    ] {
        let book = book(row, "");
        assert_eq!(
            findings(&book),
            [format!("rates line 2: {problem}")],
            "{row}"
        );
        let own = stretches(&book, &ask(Basis::Own, "2026-10-02", "2026-10-03"));
        assert_eq!(
            own,
            [(1, Err("box-8g in here, own has no rate".to_owned()))]
        );
    }
    let bought = book("box-8g,here,own,USD,0,,2026-10-01,,list,a\n", "");
    assert_eq!(findings(&bought), [""; 0]);
    let free = stretches(&bought, &ask(Basis::Own, "2026-10-02", "2026-10-03"));
    assert_eq!(
        free,
        [(1, Ok(0))],
        "a machine that is bought may cost nothing"
    );
    let unknown = Ask {
        machine_type: "car",
        ..ask(Basis::Own, "2026-10-02", "2026-10-03")
    };
    let why = "machine type `car` is not known: add it to the table of machine types";
    assert_eq!(
        stretches(&book("", ""), &unknown),
        [(1, Err(why.to_owned()))]
    );
}

#[test]
fn a_gpu_that_costs_more_than_its_node_has_no_part_of_its_own_but_the_node_has_its_price() {
    let book = book("box-8g,here,own,USD,80,11,2026-10-01,,list,a\n", "");
    let all =
        "rates line 2: its GPUs cost 88.0, more than the node's 80.0: the GPU's part is left out";
    assert_eq!(findings(&book), [all]);
    let quote = book
        .quote(&ask(Basis::Own, "2026-10-01", "2026-10-02"))
        .remove(0)
        .quote;
    let quote = quote.expect("priced");
    assert_eq!((quote.hour, quote.gpu_part_hour), (80_000_000_000, None));
}

#[test]
fn a_host_costs_its_own_rate_and_that_of_each_gpu_added_to_it() {
    let book = book(
        "host-4,*,on_demand,USD,0.19,,2026-10-01,,list,a\nhost+t4,here,on_demand,USD,0.35,0.35,2026-10-01,,inferred,b\n",
        "",
    );
    let hosts = |gpu_model, gpus| {
        let ask = ask(Basis::OnDemand, "2026-10-01", "2026-10-02");
        let ask = Ask {
            machine_type: "host-4",
            gpu_model,
            gpus,
            ..ask
        };
        book.quote(&ask).remove(0).quote
    };
    let quote = hosts("t4", 2).expect("priced");
    assert_eq!(
        (quote.hour, quote.gpu_part_hour),
        (890_000_000, Some(700_000_000))
    );
    assert_eq!(
        (quote.quality, quote.source.as_str()),
        (Quality::Inferred, "a and b")
    );
    let why = hosts("p4", 1).expect_err("no rate of a P4");
    assert_eq!(why.to_string(), "host+p4 in here, on_demand has no rate");
}

#[test]
fn a_gpu_second_is_the_nodes_hour_over_its_gpus_and_has_no_price_where_the_node_has_none() {
    let book = Book::shipped();
    let of = |region, from| {
        let ask = ask(Basis::OnDemand, from, "2027-01-01");
        book.gpu_second(&Ask {
            machine_type: "a3-highgpu-8g",
            region,
            ..ask
        })
    };
    // 88.49 / 8 / 3,600 = 0.003072569444…
    assert_eq!(of("us-central1", "2026-10-01"), Ok(3_072_569));
    assert!(matches!(
        of("us-central1", "2026-01-01"),
        Err(Unpriced::Before { .. })
    ));
    assert!(matches!(of("mars", "2026-10-01"), Err(Unpriced::NoRate(_))));
}

#[test]
fn a_part_of_a_gpu_is_counted_as_one_and_costs_what_its_node_does() {
    let tables = Tables {
        machines: vec![Text::new(
            "machines",
            "machine_type,gpu_model,gpu_count,vcpus,memory_gib\nslice-1,rtx,0.125,6,22\nbox-8g,rtx,8,,\n",
        )],
        rates: vec![Text::new(
            "rates",
            &format!("{HEADER}slice-1,here,on_demand,USD,3.6,,2026-10-01,,list,a\n"),
        )],
        ..Tables::default()
    };
    let book = Book::load("USD", &tables);
    let gpus = |name: &str| book.machine(name).map(Machine::gpus);
    assert_eq!((gpus("slice-1"), gpus("box-8g")), (Some(1), Some(8)));
    let ask = Ask {
        machine_type: "slice-1",
        gpus: 1,
        ..ask(Basis::OnDemand, "2026-10-01", "2026-10-02")
    };
    assert_eq!(book.gpu_second(&ask), Ok(1_000_000), "3.6 an hour");
}

#[test]
fn a_machine_with_more_gpus_than_any_has_is_named_with_its_line_and_column() {
    let rows = "machine_type,gpu_model,gpu_count,vcpus,memory_gib\n\
        rack-32g,h100,32,,\nbox-8g,h100,81559,208,1872\nrack-33g,h100,32.125,,\n";
    let tables = Tables {
        machines: vec![Text::new("machines", rows)],
        ..Tables::default()
    };
    let book = Book::load("USD", &tables);
    let gpus = |name: &str| book.machine(name).map(Machine::gpus);
    assert_eq!(gpus("rack-32g"), Some(32));
    assert_eq!((gpus("box-8g"), gpus("rack-33g")), (None, None));
    let said: Vec<String> = book.findings.iter().map(ToString::to_string).collect();
    let why = "so many GPUs are in no node, at most 32";
    assert_eq!(
        said,
        [
            format!("machines line 3: `gpu_count` is `81559`: {why}"),
            format!("machines line 4: `gpu_count` is `32.125`: {why}"),
        ]
    );
}

#[test]
fn a_discount_is_taken_off_the_list_rate_once_and_two_are_no_price() {
    let rates = "box-8g,here,own,USD,80.000000001,8,2026-10-01,,list,a\n";
    let one = book(rates, "*,*,,12.5,2026-10-01,2026-10-03\n");
    assert_eq!(
        stretches(&one, &ask(Basis::Own, "2026-10-01", "2026-10-04")),
        [(2, Ok(70_000_000_001)), (1, Ok(80_000_000_001))]
    );
    let quote = one
        .quote(&ask(Basis::Own, "2026-10-01", "2026-10-02"))
        .remove(0)
        .quote;
    let quote = quote.expect("priced");
    assert_eq!(quote.list_hour, 80_000_000_001);
    assert_eq!(quote.gpu_part_hour, Some(56_000_000_000));
    let two = book(
        rates,
        "*,*,,10,2026-10-01,\nbox-8g,here,own,5,2026-10-01,\n",
    );
    let why =
        "box-8g in here, own has two discounts at once: discounts line 2 and discounts line 3";
    let stretch = stretches(&two, &ask(Basis::Own, "2026-10-01", "2026-10-02"));
    assert_eq!(stretch, [(1, Err(why.to_owned()))]);
    let bad = book(rates, "*,*,,101,2026-10-01,\n");
    assert_eq!(bad.findings.len(), 1);
}

#[test]
fn a_commitment_must_end_and_be_of_a_commitments_basis() {
    let header = "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n";
    let read = |row: &str| {
        let tables = Tables {
            machines: vec![Text::new("machines", MACHINES)],
            commitments: vec![Text::new("commitments", &format!("{header}{row}"))],
            ..Tables::default()
        };
        Book::load("USD", &tables)
    };
    let good = read("c1,box-8g,here,2,commitment_3y,USD,38.86,2026-01-01,2029-01-01,\n");
    assert_eq!(good.commitments()[0].nodes, 2);
    for row in [
        "c1,box-8g,here,2,commitment_3y,USD,38.86,2026-01-01,,\n",
        "c1,box-8g,here,2,spot,USD,38.86,2026-01-01,2029-01-01,\n",
        "c1,box-8g,here,2.5,commitment_3y,USD,38.86,2026-01-01,2029-01-01,\n",
        "c1,box-8g,here,2,commitment_3y,USD,0,2026-01-01,2029-01-01,\n",
        "c1,host-4,here,2,commitment_3y,USD,0.1,2026-01-01,2029-01-01,\n",
        "c1,host+t4,here,2,commitment_3y,USD,0.1,2026-01-01,2029-01-01,\n",
    ] {
        let bad = read(row);
        assert_eq!(
            (bad.commitments().len(), bad.findings.len()),
            (0, 1),
            "{row}"
        );
    }
}

#[test]
fn a_commitment_that_stands_in_two_tables_counts_once_and_one_that_is_renewed_counts_on() {
    let header = "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n";
    let row = |id: &str, from: &str, until: &str| {
        format!("{header}{id},box-8g,here,2,commitment_1y,USD,50,{from},{until},\n")
    };
    let table = |name: &str, text: &str| Text::new(name, text);
    let tables = Tables {
        machines: vec![Text::new("machines", MACHINES)],
        commitments: vec![
            table("file", &row("c1", "2026-01-01", "2027-01-01")),
            table("import", &row("c1", "2026-12-31", "2027-12-31")),
            table("renewed", &row("c1", "2027-01-01", "2028-01-01")),
            table("other", &row("c2", "2026-01-01", "2027-01-01")),
        ],
        ..Tables::default()
    };
    let book = Book::load("USD", &tables);
    assert_eq!(
        findings(&book),
        [
            "import line 2: commitment `c1` is there already at that time, in file line 2: it counts once"
        ]
    );
    let kept = book.commitments().iter().map(|it| it.place.table.as_str());
    assert_eq!(kept.collect::<Vec<_>>(), ["file", "renewed", "other"]);
    // Two clusters have a part of it each; one that names no cluster is of both.
    let of_clusters = |clusters: &[&str]| {
        let header = header.replace("owner", "owner,cluster");
        let row = "c1,box-8g,here,2,commitment_1y,USD,50,2026-01-01,2027-01-01,,";
        let rows = clusters.iter().map(|it| format!("{row}{it}\n"));
        let text = format!("{header}{}", rows.collect::<String>());
        let tables = Tables {
            machines: vec![Text::new("machines", MACHINES)],
            commitments: vec![Text::new("parts", &text)],
            ..Tables::default()
        };
        let book = Book::load("USD", &tables);
        let kept = book.commitments().iter().map(|it| it.cluster.clone());
        (kept.collect::<Vec<_>>(), book.findings.len())
    };
    assert_eq!(
        of_clusters(&["a", "b"]),
        (vec!["a".to_owned(), "b".to_owned()], 0)
    );
    assert_eq!(of_clusters(&["a", "a", ""]), (vec!["a".to_owned()], 2));
}

#[test]
fn the_shipped_prices_have_no_finding_and_say_what_the_sources_said() {
    let book = Book::shipped();
    assert_eq!(findings(&book), [""; 0]);
    let of = |machine_type, basis| {
        let ask = Ask {
            machine_type,
            region: "us-central1",
            basis,
            ..ask(basis, "2026-10-01", "2026-10-02")
        };
        book.quote(&ask).remove(0).quote
    };
    for (machine_type, basis, hour) in [
        ("a3-highgpu-8g", Basis::OnDemand, 88_490_000_000),
        ("a3-highgpu-8g", Basis::Spot, 50_609_541_000),
        ("a3-highgpu-8g", Basis::Commitment3Years, 38_864_381_000),
    ] {
        let quote = of(machine_type, basis).expect("priced");
        assert_eq!(quote.hour, hour, "{machine_type} {}", basis.name());
    }
    assert_eq!(
        of("a4-highgpu-8g", Basis::OnDemand)
            .expect("priced")
            .quality,
        Quality::Suspect
    );
    assert!(matches!(
        of("a4x-highgpu-4g", Basis::OnDemand),
        Err(Unpriced::NoRate(_))
    ));
}

/// A SKU of the catalog in one region.
fn sku(id: &str, description: &str, usage: &str, unit: &str, nanos: i64) -> String {
    format!(
        r#"{{"skuId":"{id}","description":"{description}","category":{{"usageType":"{usage}"}},
        "serviceRegions":["us-central1"],"pricingInfo":[{{"effectiveTime":"2026-10-01T00:00:00Z",
        "pricingExpression":{{"usageUnit":"{unit}","tieredRates":[{{"startUsageAmount":0,
        "unitPrice":{{"currencyCode":"USD","units":"1","nanos":{nanos}}}}}]}}}}]}}"#
    )
}

#[test]
fn a_catalog_gives_rates_with_the_gpus_part_and_goes_through_the_same_loader() {
    let skus = [
        sku(
            "C1",
            "A3 Instance Core running in Americas",
            "OnDemand",
            "h",
            0,
        ),
        sku(
            "R1",
            "A3 Instance Ram running in Americas",
            "OnDemand",
            "GiBy.h",
            500_000_000,
        ),
        sku(
            "G1",
            "Nvidia H100 80GB GPU running in Americas",
            "OnDemand",
            "h",
            250_000_000,
        ),
        sku(
            "C2",
            "Spot Preemptible A3 Instance Core running in Americas",
            "Preemptible",
            "h",
            0,
        ),
        sku(
            "G2",
            "Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Americas",
            "Preemptible",
            "h",
            0,
        ),
        sku(
            "X",
            "Nvidia Z900 GPU running in Americas",
            "OnDemand",
            "h",
            0,
        ),
        sku("Y", "Licensing Fee for Ubuntu", "OnDemand", "h", 0),
    ];
    let json = format!(r#"{{"skus":[{}],"nextPageToken":""}}"#, skus.join(","));
    let machines = "machine_type,gpu_model,gpu_count,vcpus,memory_gib\na3-highgpu-8g,nvidia-h100-80gb,8,208,1872\n";
    let mut tables = Tables {
        machines: vec![Text::new("machines", machines)],
        ..Tables::default()
    };
    let imported = import(&[&json], &Book::load("USD", &tables)).expect("a catalog");
    assert_eq!(
        imported.notes,
        [
            "SKU X `Nvidia Z900 GPU running in Americas` is left out: this GPU is not known",
            "a3-highgpu-8g in us-central1, spot: there is no price of A3 memory",
        ]
    );
    tables.rates = vec![Text::new("catalog", &imported.table)];
    let book = Book::load("USD", &tables);
    assert_eq!(findings(&book), [""; 0]);
    let of = Ask {
        machine_type: "a3-highgpu-8g",
        region: "us-central1",
        ..ask(Basis::OnDemand, "2026-10-02", "2026-10-03")
    };
    let quote = book.quote(&of).remove(0).quote.expect("priced");
    // 208 cores at 1, 1,872 GiB at 1.5, 8 GPUs at 1.25.
    assert_eq!(quote.hour, (208 + 2_808 + 10) * 1_000_000_000);
    assert_eq!(quote.gpu_part_hour, Some(10_000_000_000));
}

#[test]
fn the_pages_of_a_catalog_are_read_together_and_one_that_goes_on_is_told() {
    let page = |skus: &[String], token: &str| {
        format!(
            r#"{{"skus":[{}],"nextPageToken":"{token}"}}"#,
            skus.join(",")
        )
    };
    let of = |id: &str, what: &str, unit: &str| {
        let description = format!("{what} running in Americas");
        sku(id, &description, "OnDemand", unit, 0)
    };
    let first = [
        of("C1", "A3 Instance Core", "h"),
        of("G1", "Nvidia H100 80GB GPU", "h"),
    ];
    let first = page(&first, "more");
    let last = page(&[of("R1", "A3 Instance Ram", "GiBy.h")], "");
    let together = format!("{first}\n{last}");
    let complete: [&[&str]; 4] = [
        &[&first, &last],
        &[&last, &first],
        &[&together],
        &[&first, &first, &last],
    ];
    for texts in complete {
        let imported = import(texts, &Book::shipped()).expect("a catalog");
        let has = |it: &str| {
            imported
                .table
                .contains(&format!("{it},us-central1,on_demand"))
        };
        assert!(has("a3-highgpu-8g"), "{:?}", imported.notes);
        assert_eq!(imported.notes, [""; 0]);
    }
    let imported = import(&[&first], &Book::shipped()).expect("a catalog");
    assert!(
        imported.notes[0].starts_with("the answer goes on"),
        "{:?}",
        imported.notes
    );
}

/// The same SKU with a price from each of these moments on, of so many units.
fn priced_from(sku: &str, prices: &[(&str, i64)]) -> String {
    let mut sku: serde_json::Value = serde_json::from_str(sku).expect("written by us");
    let first = sku["pricingInfo"][0].clone();
    let price = |(from, units): &(&str, i64)| {
        let mut price = first.clone();
        price["effectiveTime"] = (*from).into();
        price["pricingExpression"]["tieredRates"][0]["unitPrice"]["units"] =
            units.to_string().into();
        price
    };
    sku["pricingInfo"] = prices.iter().map(price).collect();
    sku.to_string()
}

#[test]
fn a_catalog_of_a_month_has_a_rate_from_each_moment_on_at_which_a_part_got_another_price() {
    let of = |id: &str, what: &str, unit: &str, prices: &[(&str, i64)]| {
        let description = format!("{what} running in Americas");
        priced_from(&sku(id, &description, "OnDemand", unit, 0), prices)
    };
    let skus = |gpu: &[(&str, i64)]| {
        let skus = [
            of("C", "A3 Instance Core", "h", &[("2026-10-01T07:00:00Z", 1)]),
            of(
                "R",
                "A3 Instance Ram",
                "GiBy.h",
                &[("2026-10-02T07:00:00Z", 1)],
            ),
            of("G", "Nvidia H100 80GB GPU", "h", gpu),
        ];
        format!(r#"{{"skus":[{}]}}"#, skus.join(","))
    };
    let machines = "machine_type,gpu_model,gpu_count,vcpus,memory_gib\na3-highgpu-8g,nvidia-h100-80gb,8,208,1872\n";
    let tables = Tables {
        machines: vec![Text::new("machines", machines)],
        ..Tables::default()
    };
    let book = Book::load("USD", &tables);
    // The later one first: they are put in the order of time.
    let gpu = [("2026-10-20T00:00:00Z", 5), ("2026-10-01T07:00:00Z", 3)];
    let imported = import(&[&skus(&gpu)], &book).expect("a catalog");
    assert_eq!(imported.notes, [""; 0]);
    let rows = imported.table.lines().skip(1);
    let rows: Vec<String> = rows
        .map(|it| it.split(',').take(7).collect::<Vec<_>>().join(","))
        .collect();
    // 208 cores and 1,872 GiB at 1, 8 GPUs at 3, then at 5; not before the memory has a price.
    assert_eq!(
        rows,
        [
            "a3-highgpu-8g,us-central1,on_demand,USD,2104.0,3.0,2026-10-02T07:00:00Z",
            "a3-highgpu-8g,us-central1,on_demand,USD,2120.0,5.0,2026-10-20T00:00:00Z",
        ]
    );
    let twice = [("2026-10-01T07:00:00Z", 3), ("2026-10-01T07:00:00Z", 5)];
    let imported = import(&[&skus(&twice)], &book).expect("a catalog");
    assert_eq!(
        imported.notes,
        [
            "a3-highgpu-8g in us-central1, on_demand: nvidia-h100-80gb has two prices from 2026-10-01T07:00:00Z on"
        ]
    );
    let none = import(&[&skus(&[])], &book).expect("a catalog");
    assert!(
        none.notes[0].ends_with("is left out: it has no price"),
        "{:?}",
        none.notes
    );
}

#[test]
fn rates_that_join_kept_ones_leave_those_of_other_times_and_series_and_stand_for_those_of_theirs() {
    let row = |machine: &str, hour: i64, from: &str| {
        format!("{machine},here,on_demand,USD,{hour},,{from},,list,\"a, b\"\n")
    };
    let (october, november) = ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z");
    let box_8g = |hour, from| row("box-8g", hour, from);
    let kept = [
        box_8g(80, october),
        row("host-4", 1, october),
        box_8g(81, november),
    ];
    let new = [box_8g(82, november), box_8g(83, "2026-12-01T00:00:00Z")];
    let table = |rows: &[String]| format!("{HEADER}{}", rows.concat());
    let joined = catalog::joined(&table(&kept), &table(&new)).expect("two tables");
    let expected = [
        box_8g(80, october),
        new[0].clone(),
        new[1].clone(),
        kept[1].clone(),
    ];
    assert_eq!(joined, table(&expected));
    assert!(catalog::joined("a,b\n", &table(&new)).is_err());
}

#[test]
fn a_part_with_two_prices_or_in_another_currency_or_unit_gives_no_rate() {
    let check = |skus: &[String], note: &str| {
        let json = format!(r#"{{"skus":[{}]}}"#, skus.join(","));
        let imported = import(&[&json], &Book::shipped()).expect("a catalog");
        assert_eq!(imported.table.lines().count(), 1, "{}", imported.table);
        assert!(
            imported.notes.iter().any(|it| it == note),
            "{:?}",
            imported.notes
        );
    };
    let t4 = |id, unit| {
        sku(
            id,
            "Nvidia Tesla T4 GPU running in Americas",
            "OnDemand",
            unit,
            0,
        )
    };
    check(
        &[t4("A", "h"), t4("B", "h")],
        "n1+nvidia-tesla-t4 in us-central1, on_demand: nvidia-tesla-t4 has 2 prices: A, B",
    );
    let left = "SKU A `Nvidia Tesla T4 GPU running in Americas` is left out: ";
    check(
        &[t4("A", "mo")],
        &format!("{left}its unit is `mo`, not `h`"),
    );
    let euros = t4("A", "h").replace("USD", "EUR");
    check(&[euros], &format!("{left}its currency is `EUR`, not `USD`"));
    let none = t4("A", "h").replace(r#","units":"1","nanos":0"#, "");
    check(&[none], &format!("{left}its price is 0.0, which is none"));
    assert!(import(&["{}"], &Book::shipped()).is_err());
}

#[test]
fn an_export_is_summed_by_what_was_billed_and_says_what_it_left_out() {
    let row = |service: &str, sku: &str, cost: &str, more: &str| {
        format!(
            r#"{{"service":{{"description":"{service}"}},"sku":{{"description":"{sku}"}},"cost":{cost},"currency":"USD","invoice":{{"month":"202610"}}{more}}}"#
        )
    };
    let gce = "Compute Engine";
    let rows = [
        row(gce, "Nvidia H100 80GB GPU running in Americas", "10.25", ""),
        row(
            gce,
            "A3 Instance Ram running in Americas",
            "\"0.000000001\"",
            r#","credits":[{"amount":-1.5,"type":"PROMOTION"},{"amount":-0.5,"type":null}]"#,
        ),
        row(gce, "Commitment v1: A3 Cpu in Americas for 1 Year", "3", ""),
        row(gce, "N2 Instance Core running in Americas", "4", ""),
        row(gce, "Balanced PD Capacity", "1", ""),
        row("Networking", "Network Internet Data Transfer", "0.5", ""),
        row("Kubernetes Engine", "Zonal Kubernetes Clusters", "0.1", ""),
        row("Invoice", "Tax", "2", r#","cost_type":"tax""#),
        row("BigQuery", "Analysis", "0.0000000014", ""),
        row(gce, "Nvidia L4 GPU", "5", "").replace("USD", "EUR"),
        row(gce, "Nvidia L4 GPU", "5", "").replace("202610", "202609"),
        "{\"cost\":1}".to_owned(),
    ];
    let invoice = Invoice::read(&rows.join("\n"), "2026-10", "USD");
    assert_eq!(
        (invoice.rows, invoice.left_out.values().sum::<usize>()),
        (9, 3)
    );
    assert_eq!(invoice.left_out.get("in EUR, not in USD"), Some(&1));
    let nanos = BilledFor::ALL.map(|it| invoice.costs[&it]);
    let whole = 1_000_000_000;
    assert_eq!(
        nanos,
        [
            10_250_000_000,
            1,
            3 * whole,
            4 * whole,
            whole,
            whole / 2,
            whole / 10,
            2 * whole,
            1
        ]
    );
    assert_eq!(invoice.credits, -2 * whole);
    assert_eq!(invoice.total(), 18_850_000_002);
    let array = format!("[{}]", rows.join(","));
    // As they come, and behind the mark of a text in UTF-8.
    for mark in ["", "\u{feff}"] {
        for bill in [rows.join("\n"), array.clone()] {
            let read = Invoice::read(&format!("{mark}{bill}"), "2026-10", "USD");
            let is_same = (read.rows, read.total()) == (invoice.rows, invoice.total());
            assert!(is_same, "{mark:?}: {read:?}");
        }
    }
}

#[test]
fn rows_that_are_wrong_each_in_its_way_are_counted_under_a_few_short_reasons() {
    let row = |currency: &str| format!(r#"{{"cost":1,"currency":"{currency}"}}"#);
    let rows = (0..100).map(|it| row(&format!("{it:03}").repeat(999)));
    let rows: Vec<String> = rows.collect();
    let invoice = Invoice::read(&rows.join("\n"), "2026-10", "USD");
    assert_eq!(invoice.left_out.values().sum::<usize>(), 100);
    assert_eq!(invoice.left_out.len(), export::MAX_REASONS + 1);
    assert_eq!(invoice.left_out["for other reasons"], 80);
    let longest = invoice.left_out.keys().map(|it| it.chars().count()).max();
    assert_eq!(longest, Some(export::REASON_CHARACTERS));
}

#[test]
fn of_an_array_each_row_is_read_by_itself_and_what_it_has_beside_is_passed_over() {
    let row = |more: &str| {
        format!(r#"{{"cost":1,"currency":"USD","invoice":{{"month":"202610"}}{more}}}"#)
    };
    // Deeper than JSON values may be, which the whole bill was refused for.
    let deep = format!(r#","labels":{}{}"#, "[".repeat(500), "]".repeat(500));
    let amount = |it: &str| row("").replace(r#""cost":1"#, &format!(r#""cost":{it}"#));
    let rows = [
        row(&deep),
        amount(r#""0.5""#),
        amount("null"),
        amount(&format!("[{}1]", "1,".repeat(9_999))),
        r#"{"cost":1}"#.to_owned(),
        r#"{"cost": 100}"#.to_owned(),
        "7".to_owned(),
    ];
    let array = format!("[{}]", rows.join(","));
    let invoice = Invoice::read(&array, "2026-10", "USD");
    assert_eq!((invoice.rows, invoice.total()), (2, 1_500_000_000));
    let long = format!("`[{}", "1,".repeat(99));
    let expected = [
        (long.as_str(), 1),
        ("`null` is no amount", 1),
        (
            "not a row of an export: invalid type: integer `7`, expected struct Row",
            1,
        ),
        ("not a row of an export: missing field `currency`", 2),
    ];
    let left_out = invoice.left_out.iter();
    let left_out: Vec<_> = left_out.map(|(why, rows)| (why.as_str(), *rows)).collect();
    assert_eq!(left_out, expected);
    // One that breaks off, or goes on behind its end, is none of its rows.
    for (broken, says) in [
        (&array[..array.len() - 1], "EOF while parsing a list"),
        (format!("{array}]").as_str(), "trailing characters"),
    ] {
        let invoice = Invoice::read(broken, "2026-10", "USD");
        assert_eq!((invoice.rows, invoice.total()), (0, 0));
        let left_out: Vec<_> = invoice.left_out.keys().collect();
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        let why = format!("not a row of an export: {says}");
        assert!(left_out[0].starts_with(&why), "{left_out:?}");
    }
}

#[test]
fn a_discount_is_taken_off_what_its_row_was_for_and_a_promotion_off_the_bill() {
    let row = |sku: &str, cost: i64, credits: &[(&str, i64)]| {
        let credits = credits
            .iter()
            .map(|(kind, amount)| format!(r#"{{"amount":{amount},"name":"n","type":"{kind}"}}"#));
        let credits = credits.collect::<Vec<_>>().join(",");
        format!(
            r#"{{"service":{{"description":"Compute Engine"}},"sku":{{"description":"{sku}"}},"cost":{cost},"currency":"USD","invoice":{{"month":"202610"}},"credits":[{credits}]}}"#
        )
    };
    let gpu = "Nvidia H100 80GB GPU running in Americas";
    // An hour of a committed machine as it is exported: usage on demand, taken off again, and the fee of the commitment.
    let rows = [
        row(gpu, 80, &[("COMMITTED_USAGE_DISCOUNT", -80)]),
        row(
            "Commitment v1: Nvidia H100 80GB GPU in Americas for 3 Years",
            35,
            &[],
        ),
        row(
            "A3 Instance Core running in Americas",
            40,
            &[
                ("SUSTAINED_USAGE_DISCOUNT", -4),
                ("DISCOUNT", -3),
                ("RESELLER_MARGIN", -2),
                ("PROMOTION", -10),
                ("FREE_TIER", -1),
            ],
        ),
        // A commitment to an amount stands beside, and so does what it takes off.
        row(gpu, 8, &[("COMMITTED_USAGE_DISCOUNT_DOLLAR_BASE", -8)]),
        row(
            "Commitment - dollar based v1: GCE for 3 years",
            6,
            &[("FEE_UTILIZATION_OFFSET", -1)],
        ),
    ];
    let invoice = Invoice::read(&rows.join("\n"), "2026-10", "USD");
    let dollars = invoice
        .costs
        .iter()
        .map(|(kind, it)| (*kind, it / 1_000_000_000));
    assert_eq!(
        dollars.collect::<Vec<_>>(),
        [
            (BilledFor::Gpu, 8),
            (BilledFor::Machine, 31),
            (BilledFor::Commitment, 35),
            (BilledFor::OtherMachine, -3),
        ]
    );
    assert_eq!(invoice.credits, -11_000_000_000);
    assert_eq!(invoice.total(), 60_000_000_000, "cost and credits");
}

#[test]
fn of_a_mixed_bill_only_machines_with_gpus_are_held_against_the_estimate() {
    let row = |(sku, machine): (&str, &str)| {
        let resource = match machine {
            "" => String::new(),
            name => format!(r#","resource":{{"name":"{name}"}}"#),
        };
        format!(
            r#"{{"service":{{"description":"Compute Engine"}},"sku":{{"description":"{sku}"}},"cost":1,"currency":"USD","invoice":{{"month":"202610"}}{resource}}}"#
        )
    };
    let check = |rows: &[(&str, &str)], ours: i128, others: i128, of_no_machine: usize| {
        let rows: Vec<String> = rows.iter().copied().map(row).collect();
        let invoice = Invoice::read(&rows.join("\n"), "2026-10", "USD");
        let dollars = |kinds: &[BilledFor]| {
            let all = kinds.iter().filter_map(|it| invoice.costs.get(it));
            all.sum::<i128>() / 1_000_000_000
        };
        let found = [
            dollars(&[BilledFor::Gpu, BilledFor::Machine, BilledFor::Commitment]),
            dollars(&[BilledFor::OtherMachine]),
        ];
        assert_eq!(found, [ours, others], "{rows:?}");
        assert_eq!(invoice.of_no_machine, of_no_machine, "{rows:?}");
    };
    let ours = [
        ("Nvidia H100 80GB GPU running in Americas", ""),
        ("A3 Instance Core running in Americas", ""),
        (
            "Spot Preemptible A3Plus Instance Ram running in Americas",
            "",
        ),
        ("A2 Instance Core running in Americas", ""),
        ("A4X Instance Core running in Americas", ""),
        ("G2 Custom Instance Core running in Americas", ""),
        ("G4 Instance Ram running in Americas", ""),
        ("Commitment v1: A3 Cpu in Americas for 1 Year", ""),
        (
            "Commitment v1: Nvidia H100 80GB GPU running in Americas for 3 Year",
            "",
        ),
    ];
    let others = [
        ("N2 Instance Core running in Americas", ""),
        ("E2 Instance Ram running in Americas", ""),
        (
            "Spot Preemptible N2D AMD Instance Core running in Americas",
            "",
        ),
        ("C4A Arm Instance Core running in Americas", ""),
        ("Commitment v1: N2 Cpu in Americas for 1 Year", ""),
        ("Commitment - dollar based v1: GCE for 3 years", ""),
        ("N1 Predefined Instance Core running in Americas", ""),
        ("Custom Instance Ram running in Americas", ""),
    ];
    check(&[&ours[..], &others[..]].concat(), 9, 8, 0);
    let core = "N1 Predefined Instance Core running in Americas";
    let (ssd, t4) = (
        "SSD backed Local Storage",
        "Nvidia Tesla T4 GPU running in Americas",
    );
    check(
        &[
            (core, "vm"),
            (ssd, "vm"),
            (t4, "vm"),
            (core, "web"),
            (ssd, "web"),
        ],
        3,
        2,
        0,
    );
    check(&[(core, ""), (t4, ""), (ssd, "local-ssd-0")], 3, 0, 2);
    check(&[(core, ""), (ssd, "")], 0, 2, 0);
}
