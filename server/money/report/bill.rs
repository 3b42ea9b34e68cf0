//! A provider's billing export, against which a report is held.

use gpufleet_analysis::price_book::export::Invoice;

/// What of an invoice is never of the same hours as a report.
const PACIFIC: &str = "the month of an invoice begins and ends at midnight of US Pacific time, that of the report at midnight UTC, 7 or 8 hours before: where more ran at one of the two ends than at the other, a part of the residual is that";

/// An export without a row of the invoice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no row of the invoice of {month} in it{left_out}")]
pub struct NoRow {
    month: String,
    /// Each reason and how many rows it is of, behind one another; empty where there are no rows at all.
    left_out: String,
}

/// The rows of a billing export that are of a month's invoice, such as that of `2026-10`.
///
/// # Errors
/// Where there are none: against an invoice of nothing all of the estimate would be a residual.
pub fn invoice_of(text: &str, month: &str, currency: &str) -> Result<Invoice, NoRow> {
    let invoice = Invoice::read(text, month, currency);
    if invoice.rows > 0 {
        return Ok(invoice);
    }
    let left_out = invoice.left_out.iter();
    let left_out = left_out.map(|(why, rows)| format!("; {rows} rows were left out: {why}"));
    Err(NoRow {
        month: month.to_owned(),
        left_out: left_out.collect(),
    })
}

/// What of an invoice is not, or not surely, in what it is held against.
pub(super) fn findings(invoice: &Invoice) -> Vec<String> {
    let left_out = invoice.left_out.iter();
    let left_out =
        left_out.map(|(why, rows)| format!("{rows} rows of the invoice were left out: {why}"));
    let unsure = invoice.of_no_machine;
    let unsure = (unsure > 0).then(|| format!("{unsure} rows of the invoice, of N1 machines or local SSD, name no machine and count as of machines with GPUs: the detailed export names it"));
    let all = std::iter::once(PACIFIC.to_owned());
    all.chain(left_out).chain(unsure).collect()
}
