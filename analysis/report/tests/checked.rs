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
    let right = focus::csv(&report(&fleet, &made), &account());
    let check = |from: &str, to: &str, expected: &str| {
        assert!(right.contains(from), "{from}");
        let wrong = focus::check::check(&right.replacen(from, to, 1));
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
    assert!(!focus::check::check("").is_empty());
}
