//! The page's sections on another month and on the invoice.

use super::super::Report;
use super::{money, signed};
use crate::chargeback::variance::Variance;

/// A part of a change.
type Of = fn(Variance) -> i128;

/// What the change from the month before is made of; dashes while nothing is compared.
pub(super) fn variance(report: &Report<'_>) -> Vec<(&'static str, String)> {
    let parts: [(&'static str, Of); 5] = [
        ("price: other rates for the same time", |it| it.price),
        ("volume: more or less useful time", |it| it.volume),
        ("mix: other machines, regions, terms", |it| it.mix),
        ("efficiency: time paid for the same useful time", |it| {
            it.efficiency
        }),
        ("change", |it| it.change),
    ];
    let row = |(what, of): (&'static str, Of)| {
        let figure = report.variance.map(|it| signed(of(it)));
        (what, figure.unwrap_or_else(|| "–".to_owned()))
    };
    parts.map(row).into()
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
