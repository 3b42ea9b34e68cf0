//! What is said of tables and invoices, what is kept of them, and what is refused.

use gpufleet_server::money::{CoveredNow, Machine, Terms};
use gpufleet_server::store::StoreConfig;

use super::*;

/// A store of its own in a folder, with its configuration and a moment.
async fn opened(folder: &Path) -> (Config, Store, Timestamp) {
    let config = Config {
        store: StoreConfig::for_tests(folder),
        ..Config::default()
    };
    let store = Store::open(&config.store).await.expect("a store");
    (config, store, Timestamp::from_seconds(1_790_000_000))
}

#[tokio::test]
async fn the_log_of_prices_tells_what_was_changed_and_what_was_refused_as_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, store, at) = opened(folder.path()).await;
    let remove = |name: &str| Prices::Remove {
        name: name.to_owned(),
    };
    let error = prices(&store, &config, remove("rates.csv"), at).await;
    assert!(error.is_err_and(|it| it.to_string().contains("no table is called rates.csv")));
    assert_eq!(log(&store).await.expect("a log"), "", "nothing was changed");

    let budgets = folder.path().join("budgets.csv");
    std::fs::write(
        &budgets,
        "from,until,team,amount,currency\n2026-10-01,,a,5,USD\n",
    )
    .expect("a file");
    let import = Prices::Import {
        files: vec![budgets],
    };
    prices(&store, &config, import, at)
        .await
        .expect("it is kept");
    // What was exported in another currency takes no place of it, and is no change.
    let euros = "from,until,team,amount,currency\n2026-10-01,,a,5,EUR\n";
    std::fs::write(folder.path().join("budgets.csv"), euros).expect("a file");
    let import = Prices::Import {
        files: vec![folder.path().join("budgets.csv")],
    };
    let error = prices(&store, &config, import, at).await;
    assert!(error.is_err_and(|it| it.to_string().contains("no row of budgets.csv")));
    let kept = store.money_tables().await.expect("tables");
    let kept: Vec<&str> = kept.iter().map(|it| it.content.as_str()).collect();
    assert_eq!(kept, [euros.replace("EUR", "USD")]);
    let refused = async { Err::<(), _>(StoreError::ReadsOnly) };
    let change = ("prices import", "owners.csv", "owner rules, 3 rows");
    let later = Timestamp::from_seconds(1_790_000_060);
    assert!(noted(&store, change, later, refused).await.is_err());
    let told = log(&store).await.expect("a log");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    let why = StoreError::ReadsOnly.to_string();
    let words = format!("prices import owners.csv (owner rules, 3 rows), refused: {why}");
    assert!(lines[0].ends_with(&words), "{told}");
    assert!(
        lines[1].ends_with("prices import budgets.csv (budgets, 1 rows)"),
        "{told}"
    );
    store.close().await;
}

#[test]
fn a_file_without_a_row_of_the_month_s_invoice_is_refused_with_what_is_wrong_with_its_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.json");
    let row = r#"{"cost":1.5,"currency":"USD","invoice":{"month":"202610"},"service":{"description":"Compute Engine"},"sku":{"description":"Nvidia H100"}}"#;
    for (rows, says) in [
        ("[{\"cost\":", "EOF"),
        ("{}", "missing field"),
        ("", "no row of the invoice of 2026-10"),
        (&*row.replace("202610", "202609"), "`202609`"),
        (&*row.replace("USD", "EUR"), "in EUR, not in USD"),
    ] {
        std::fs::write(&path, rows).expect("a file");
        let error = invoice_of(&path, "2026-10", "USD").expect_err(says);
        let error = error.to_string();
        assert!(
            error.contains("rows.json") && error.contains(says),
            "{error}"
        );
    }
    std::fs::write(&path, row).expect("a file");
    let invoice = invoice_of(&path, "2026-10", "USD").expect("it has a row");
    assert_eq!(invoice.total(), 1_500_000_000);
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn the_pages_of_a_catalog_become_one_table_beside_each_csv() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| written(&folder, name, text);
    let page = |token: &str| format!(r#"{{"skus":[],"nextPageToken":"{token}"}}"#);
    let files = [
        file("page-1.json", &page("more")),
        file("quotas.csv", "from,until,cluster,team,gpus\n"),
        file("page-2.json", &page("")),
    ];
    let now = Timestamp::from_seconds(1_790_000_000);
    let tables = tables_of(&files, &Sources::default(), now).expect("tables");
    let tables = tables.iter().map(|it| (it.name.as_str(), it.kind.as_str()));
    let expected = [("quotas.csv", "quotas"), ("page-1.json", "rates")];
    assert_eq!(tables.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn two_files_of_one_name_are_refused_and_a_table_that_is_kept_twice_counts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, store, at) = opened(folder.path()).await;
    let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
        a3-highgpu-8g,here,on_demand,USD,28.8,,2026-01-01,,list,a\n";
    let files = ["eu/rates.csv", "us/rates.csv", "us/rates (1).csv"].map(|it| {
        let path = folder.path().join(it);
        let parent = path.parent().expect("it has one");
        std::fs::create_dir_all(parent).expect("a folder");
        std::fs::write(&path, rates).expect("a file");
        path
    });
    let import = |files: &[PathBuf]| Prices::Import {
        files: files.to_vec(),
    };
    let refused = prices(&store, &config, import(&files[..2]), at).await;
    let refused = refused.expect_err("only one of them would be kept");
    let said = refused.to_string();
    assert!(said.contains("files are called rates.csv"), "{said}");
    assert!(store.money_tables().await.expect("tables").is_empty());
    let said = prices(&store, &config, import(&files[1..]), at).await;
    assert_eq!(
        said.expect("both are kept"),
        "kept rates.csv, rates\nkept rates (1).csv, rates\n",
        "and nothing is wrong with them"
    );
    let terms = Money::default().refresh(&store, &config).await;
    let machine = Machine {
        cluster: "prod",
        machine_type: "a3-highgpu-8g",
        region: "here",
        provisioning: "",
        gpu_model: "",
        gpus: 8,
    };
    let second = terms
        .expect("terms")
        .gpu_second(&machine, &CoveredNow::default(), at.millis());
    assert_eq!(second.map(|it| it.mean), Ok(1_000_000));
    store.close().await;
}

#[test]
fn a_catalog_is_read_in_the_configured_currency_and_prices_machine_types_of_ones_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| written(&folder, name, text);
    let sku = |what: &str, unit: &str, units: i64| {
        format!(
            r#"{{"skuId":"S-{units}","description":"{what} running in Belgium","category":{{"usageType":"OnDemand"}},
            "serviceRegions":["europe-west1"],"pricingInfo":[{{"effectiveTime":"2026-10-01T00:00:00Z","pricingExpression":{{
            "usageUnit":"{unit}","tieredRates":[{{"unitPrice":{{"currencyCode":"EUR","units":"{units}"}}}}]}}}}]}}"#
        )
    };
    let skus = [
        sku("A9 Instance Core", "h", 2),
        sku("A9 Instance Ram", "GiBy.h", 1),
        sku("Nvidia B200 GPU", "h", 5),
    ];
    let page = format!(r#"{{"skus":[{}]}}"#, skus.join(","));
    let files = [
        file("page.json", &page),
        file(
            "own.csv",
            "machine_type,gpu_model,gpu_count,vcpus,memory_gib\na9-big-4g,nvidia-b200,4,10,100\n",
        ),
    ];
    let now = Timestamp::from_seconds(1_790_000_000);
    let mut sources = Sources::default();
    "EUR".clone_into(&mut sources.cost.currency);
    let tables = tables_of(&files, &sources, now).expect("tables");
    let terms = import::with(sources, &tables);
    assert_eq!(terms.findings, [""; 0]);
    let machine = Machine {
        cluster: "prod",
        machine_type: "a9-big-4g",
        region: "europe-west1",
        provisioning: "",
        gpu_model: "",
        gpus: 4,
    };
    // 10 cores, 100 GiB and 4 GPUs: 140 an hour, a quarter of it a GPU.
    let second = |terms: &Terms, at_ms: i64| {
        let second = terms.gpu_second(&machine, &CoveredNow::default(), at_ms);
        second.map(|it| it.mean)
    };
    let in_a_month = now.millis() + 30 * 86_400_000;
    assert_eq!(second(&terms, in_a_month), Ok(35_000_000_000 / 3_600));
    // The same file of a month later prices that month, and takes nothing from the one before.
    let november = page
        .replace("2026-10-01", "2026-11-01")
        .replace(r#""units":"5""#, r#""units":"9""#);
    std::fs::write(&files[0], november).expect("a file");
    let mut later = Sources {
        stored: tables.clone(),
        ..Sources::default()
    };
    "EUR".clone_into(&mut later.cost.currency);
    let again = tables_of(&files[..1], &later, now).expect("tables");
    assert_eq!(import::shortened(&tables, &again), [""; 0]);
    let terms = import::with(later, &again);
    assert_eq!(terms.findings, [""; 0]);
    let at = |text: &str| gpufleet_analysis::table::moment(text).expect("a date");
    let hours = [("2026-10-20", 140), ("2026-11-20", 156)];
    for (day, hour) in hours {
        let second = second(&terms, at(day));
        assert_eq!(second, Ok(hour * 1_000_000_000 / 4 / 3_600), "{day}");
    }
    // In dollars none of it is a price, and nothing takes the place of what is there.
    let dollars = Sources::default();
    let tables = tables_of(&files[..1], &dollars, now).expect("tables");
    let refused = import::check(&import::with(dollars, &tables), &tables);
    assert!(refused.is_err_and(|it| it.to_string().contains("no row of page.json")));
}
