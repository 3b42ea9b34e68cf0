//! Whether a month adds up, by itself: the same as the page and the whole report say.

use super::*;

#[test]
fn the_reconciliation_has_the_figures_and_words_of_the_page_and_says_what_has_no_price() {
    let (fleet, made) = month();
    let report = report(&fleet, &made);
    let own: serde_json::Value =
        serde_json::from_str(&reconcile::json(&report)).expect("it is JSON");
    let whole: serde_json::Value = serde_json::from_str(&json(&report)).expect("it is JSON");
    for same in ["title", "from", "until", "currency", "balance", "invoice"] {
        assert_eq!(own[same], whole[same], "{same}");
        assert!(!own[same].is_null(), "{same}");
    }
    let told = own["told"].as_array().expect("a list");
    let told: Vec<&str> = told.iter().filter_map(|it| it.as_str()).collect();
    assert_eq!(
        told[0],
        "The lines add up to the node-hours' price exactly."
    );
    assert!(
        told[1].contains("GPU-hours have no price"),
        "a node is in a region without rates: {told:?}"
    );
    assert_eq!(told[2..], ["The residual is more than 2 % of the invoice."]);
    let page = html(&report);
    let text = reconcile::csv(&report);
    assert!(text.starts_with("what,amount,currency\nlines,"), "{text}");
    let rows = text.lines().skip(1);
    let rows: Vec<Vec<&str>> = rows.map(|it| it.rsplitn(3, ',').collect()).collect();
    let figures = own["figures"].as_array().expect("a list");
    assert_eq!(rows.len(), figures.len());
    for (row, figure) in rows.iter().zip(figures) {
        let what = figure["what"].as_str().expect("words");
        assert!(
            row[2].contains(what) && row[1] == figure["amount"],
            "{row:?}"
        );
    }
    for figure in &figures[2..] {
        let what = figure["what"].as_str().expect("words");
        assert!(page.contains(&format!("<td>{what}</td>")), "{what}");
    }
}

#[test]
fn a_month_without_an_invoice_says_nothing_of_one() {
    let (fleet, made) = month();
    let report = Report {
        reconciled: None,
        ..report(&fleet, &made)
    };
    let own: serde_json::Value =
        serde_json::from_str(&reconcile::json(&report)).expect("it is JSON");
    assert!(own["invoice"].is_null());
    assert_eq!(own["figures"].as_array().map(Vec::len), Some(2));
    let told = own["told"].to_string();
    assert!(told.contains("have no price"), "{told}");
    assert!(!told.contains("residual"), "{told}");
}
