//! The page's sections on another month and on the invoice.

use super::super::Report;
use super::{money, signed};

pub(super) fn variance(report: &Report<'_>) -> Vec<(&'static str, String)> {
    let Some(it) = report.variance else {
        return Vec::new();
    };
    vec![
        ("price: other rates for the same time", signed(it.price)),
        ("volume: more or less useful time", signed(it.volume)),
        ("mix: other machines, regions, terms", signed(it.mix)),
        (
            "efficiency: time paid for the same useful time",
            signed(it.efficiency),
        ),
        ("change", signed(it.change)),
    ]
}

pub(super) fn invoice(report: &Report<'_>) -> Vec<(&'static str, String)> {
    let Some(it) = &report.reconciled else {
        return Vec::new();
    };
    let mut rows = vec![
        ("estimate", money(it.estimate)),
        ("residual", signed(it.residual)),
    ];
    rows.push((
        "GPUs, machines with GPUs and their commitments on the invoice",
        money(it.billed),
    ));
    rows.extend(
        it.besides
            .iter()
            .map(|(kind, cost)| (kind.name(), money(*cost))),
    );
    rows.push(("credits", signed(it.credits)));
    rows.push(("invoice", money(it.total)));
    rows
}
