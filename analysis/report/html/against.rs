//! The page's sections on another month and on the invoice.

use super::super::Report;
use super::super::reconcile::{self, Figure};
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

/// The estimate against the invoice, where there is one.
pub(super) fn invoice(report: &Report<'_>) -> Vec<(&'static str, String)> {
    let figures = report.reconciled.iter().flat_map(reconcile::invoice);
    let row = |it: Figure| {
        let amount = match it.is_signed {
            true => signed(it.amount),
            false => money(it.amount),
        };
        (it.what, amount)
    };
    figures.map(row).collect()
}
