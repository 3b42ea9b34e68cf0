//! Why time is in its state, with its money.

use super::*;

#[test]
fn free_time_that_nobody_wanted_is_told_apart_from_what_did_not_fit_in_every_form() {
    let fleet = fleet(1);
    let free = |reason, hours: i64| Part {
        reason,
        ..part(None, State::Unallocated, hours * HOUR / 8)
    };
    let parts = [
        free(Reason::NoDemand, 5),
        free(Reason::Fragmented, 2),
        free(Reason::Unknown, 1),
    ];
    let made = october(&fleet, &[period(0, 0, &parts)], &book(RATES, ""));
    let report = Report {
        by: vec![By::Team],
        ..report(&fleet, &made)
    };
    // A node of 80 an hour.
    let value: serde_json::Value = serde_json::from_str(&json(&report)).expect("JSON");
    let csv = csv(&report);
    let page = html(&report);
    for (reason, cost, words) in [
        ("no_demand", "50.0", "<td>no demand</td>"),
        ("fragmented", "20.0", "<td>fragmented</td>"),
        ("unknown", "10.0", "<td>not known</td>"),
    ] {
        for states in [&value["states"], &value["groups"][0]["states"]] {
            assert_eq!(
                states["unallocated"]["reasons"][reason]["cost"], cost,
                "{reason}"
            );
        }
        assert!(
            csv.contains(&format!("nobody,unallocated,{reason},")),
            "{csv}"
        );
        let row = page.lines().find(|it| it.contains(words)).expect(words);
        assert!(
            row.contains(&format!("<td class=\"n\">{cost}0</td>")),
            "{row}"
        );
    }
}
