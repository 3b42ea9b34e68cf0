//! Whether a month adds up, by itself: what its lines come to against its nodes' price and, where there is one, against an
//! invoice. The page of a report says it in the same words.

use std::collections::BTreeMap;

use super::html::money;
use super::{Report, hours};
use crate::chargeback::Chargeback;
use crate::chargeback::reconcile::Reconciled;
use crate::money::decimal;
use crate::table;

/// What is said of an invoice whose residual is to be told.
pub(super) const OFF: &str = "The residual is more than 2 % of the invoice.";

/// A figure, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// In words.
    pub what: &'static str,
    /// Nano-units.
    pub amount: i128,
    /// Whether it is what two others differ by, or is taken off: above 0 it has a sign too.
    pub is_signed: bool,
}

impl Figure {
    const fn of(what: &'static str, amount: i128) -> Self {
        Self {
            what,
            amount,
            is_signed: false,
        }
    }

    const fn signed(what: &'static str, amount: i128) -> Self {
        Self {
            what,
            amount,
            is_signed: true,
        }
    }
}

/// The estimate against an invoice.
pub(super) fn invoice(it: &Reconciled) -> Vec<Figure> {
    let mut figures = vec![
        Figure::of("estimate", it.estimate),
        Figure::signed("residual", it.residual),
        Figure::of(
            "GPUs, machines with GPUs and their commitments on the invoice",
            it.billed,
        ),
    ];
    let besides = it.besides.iter();
    figures.extend(besides.map(|(kind, cost)| Figure::of(kind.name(), *cost)));
    figures.push(Figure::signed("credits", it.credits));
    figures.push(Figure::of("invoice", it.total));
    figures
}

/// Every figure: the lines, the nodes and, where there is an invoice, what is held against it.
pub fn figures(report: &Report<'_>) -> Vec<Figure> {
    let balance = report.chargeback.balance();
    let mut figures = vec![
        Figure::of("lines", balance.lines),
        Figure::of("node-hours and unused commitments", balance.nodes),
    ];
    figures.extend(report.reconciled.iter().flat_map(invoice));
    figures
}

/// Whether the lines add up to the nodes' price, in a sentence.
pub(super) fn balance(made: &Chargeback) -> String {
    let balance = made.balance();
    if balance.is_exact() {
        return "The lines add up to the node-hours' price exactly.".to_owned();
    }
    let off = money(balance.lines - balance.nodes);
    format!("The lines do NOT add up to the node-hours' price: they are off by {off}.")
}

/// What there is to say of the figures.
fn told(report: &Report<'_>) -> Vec<String> {
    let mut told = vec![balance(report.chargeback)];
    let unpriced = report.chargeback.headline().unpriced.gpu_millis;
    if unpriced > 0 {
        let hours = hours(unpriced);
        let besides = match report.reconciled {
            Some(_) => " and a part of the residual",
            None => "",
        };
        told.push(format!(
            "{hours} GPU-hours have no price: what they cost is in no line{besides}."
        ));
    }
    let is_off = report.reconciled.as_ref().is_some_and(Reconciled::is_off);
    told.extend(is_off.then(|| OFF.to_owned()));
    told
}

/// One row for each figure.
pub fn csv(report: &Report<'_>) -> String {
    let mut out = String::new();
    table::write(&mut out, &["what", "amount", "currency"]);
    for figure in figures(report) {
        let amount = decimal(figure.amount);
        let currency = report.chargeback.currency.as_str();
        table::write_shown(&mut out, &[figure.what, amount.as_str(), currency]);
    }
    out
}

/// Everything as JSON; money as decimal text, so that no reader rounds it.
pub fn json(report: &Report<'_>) -> String {
    let made = report.chargeback;
    let figures = figures(report);
    let figures = figures.iter().map(
        |it| serde_json::json!({ "what": it.what, "amount": decimal(it.amount), "is_signed": it.is_signed }),
    );
    let value = serde_json::json!({
        "title": report.title,
        "from": table::moment_text(made.from_ms),
        "until": table::moment_text(made.until_ms),
        "currency": made.currency,
        "balance": balance_json(made),
        "unpriced_gpu_millis": made.headline().unpriced.gpu_millis,
        "invoice": report.reconciled.as_ref().map(invoice_json),
        "figures": figures.collect::<Vec<_>>(),
        "told": told(report),
        "notes": made.notes,
        "findings": report.findings,
    });
    let mut text = serde_json::to_string_pretty(&value).expect("it is made of text and numbers");
    text.push('\n');
    text
}

/// The lines against the nodes.
pub(super) fn balance_json(made: &Chargeback) -> serde_json::Value {
    let balance = made.balance();
    serde_json::json!({
        "lines": decimal(balance.lines),
        "nodes": decimal(balance.nodes),
        "is_exact": balance.is_exact(),
    })
}

/// The estimate against an invoice.
pub(super) fn invoice_json(it: &Reconciled) -> serde_json::Value {
    let besides = it.besides.iter();
    let besides = besides.map(|(kind, cost)| (kind.name(), decimal(*cost)));
    serde_json::json!({
        "estimate": decimal(it.estimate),
        "billed": decimal(it.billed),
        "credits": decimal(it.credits),
        "total": decimal(it.total),
        "residual": decimal(it.residual),
        "is_off": it.is_off(),
        "besides": besides.collect::<BTreeMap<_, _>>(),
    })
}
