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
