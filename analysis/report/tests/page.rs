//! What the page says beside its figures.

use super::*;

#[test]
fn a_page_names_the_first_of_what_did_not_fit_together_and_counts_the_rest() {
    let (fleet, mut made) = month();
    let notes = |count: usize| (0..count).map(|it| (format!("note-{it:04}."), 3)).collect();
    let page = |made: &Chargeback, findings: usize| {
        html(&Report {
            findings: (0..findings)
                .map(|it| format!("finding-{it:04}."))
                .collect(),
            ..report(&fleet, made)
        })
    };
    made.notes = notes(200);
    let all = page(&made, 200);
    assert!(all.contains("<li>note-0199. (3 times)</li>") && all.contains("finding-0199."));
    assert!(!all.contains("more</li>"));
    made.notes = notes(10_000);
    let cut = page(&made, 203);
    assert!(cut.contains("note-0199.") && !cut.contains("note-0200."));
    assert!(cut.contains("<li>and 9800 more</li>") && cut.contains("<li>and 3 more</li>"));
}

#[test]
fn what_is_compared_with_the_month_before_is_said_and_so_is_that_nothing_is_yet() {
    let (fleet, made) = month();
    let page = |compared: &str, is_told: bool| {
        html(&Report {
            compared: compared.to_owned(),
            variance: is_told.then(|| made.variance(&Chargeback::default())),
            ..report(&fleet, &made)
        })
    };
    let change = r#"<td>change</td><td class="n">–</td>"#;
    let told = page("Nine days against nine.", true);
    assert!(told.contains("Nine days against nine.") && !told.contains(change));
    let not_yet = page("No day is over yet.", false);
    assert!(not_yet.contains("No day is over yet.") && not_yet.contains(change));
    assert!(!page("", false).contains("Against the month before"));
}

/// The rows of a table of the page by its label, each with its cells as texts.
fn rows(page: &str, label: &str) -> Vec<Vec<String>> {
    let table = page
        .split_once(&format!("aria-label=\"{label}\""))
        .unwrap()
        .1;
    let body = table.split_once("<tbody>").unwrap().1;
    let body = body.split_once("</tbody>").unwrap().0;
    let cells = |row: &str| {
        let cells = row.split("</td>").filter_map(|it| it.split_once("<td"));
        let text = |it: (&str, &str)| it.1.split_once('>').unwrap().1.to_owned();
        cells.map(text).collect()
    };
    body.split("</tr>")
        .filter(|it| it.contains("<td"))
        .map(cells)
        .collect()
}

fn cents(text: &str) -> i64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn every_row_of_the_page_adds_up_to_its_cost_and_the_last_to_all() {
    let (fleet, made) = month();
    let page = html(&report(&fleet, &made));
    let words = report(&fleet, &made).by.len();
    for (label, parts) in [
        ("Cost by group", words + 1..words + 5),
        ("What each team owes", 1..3),
    ] {
        let rows = rows(&page, label);
        let (cost, places) = (parts.end, rows.len() as i64);
        for row in &rows {
            let sum: i64 = row[parts.clone()].iter().map(|it| cents(it)).sum();
            assert!((sum - cents(&row[cost])).abs() <= 2, "{label}: {row:?}");
        }
        let (all, rest) = rows.split_last().unwrap();
        assert_eq!(all[0], "all", "{label}");
        let sum: i64 = rest.iter().map(|it| cents(&it[cost])).sum();
        assert!(
            (sum - cents(&all[cost])).abs() <= places,
            "{label}: {all:?}"
        );
        let total = i64::try_from(made.headline().total.cost / 10_000_000).unwrap();
        assert!((total - cents(&all[cost])).abs() <= 1, "{label}: {all:?}");
    }
    assert!(!page.contains("00:00Z"));
}
