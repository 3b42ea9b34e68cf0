//! `gpufleet report chargeback|efficiency|reconcile`: a month as money, in the form that was asked for, as the
//! server makes it and as it comes. Whether it adds up is a table of its figures, in the server's words.
//!
//! Limit: [`MAX_BILL_BYTES`] of a bill that is sent.

use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::table::Table;
use crate::words;

/// As much of a bill as the server takes.
const MAX_BILL_BYTES: usize = 16 << 20;

/// Which report.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet report chargeback --month 2026-10 --by team,job > october.csv
  gpufleet report efficiency --format html > october.html
  gpufleet report reconcile --month 2026-10                       do the lines add up to the nodes' price?
  gpufleet report reconcile --month 2026-10 --invoice rows.json   and to the invoice? What is left is the residual
In the terminal, by team or job: gpufleet cost.")]
pub(crate) struct Report {
    /// Who owes what, what time was worth, or whether it adds up.
    what: What,
    /// The month, `2026-10`; without it the one that runs.
    #[arg(long)]
    month: Option<String>,
    /// What lines are grouped by, with commas between: team, cluster, namespace, job, model, project, pool, gpu; without
    /// it by team. Not of reconcile.
    #[arg(long)]
    by: Option<String>,
    /// Of one cluster, also of one that is simulated; without it of all live ones.
    #[arg(long)]
    cluster: Option<String>,
    /// In which form; without it as csv, and reconcile as a table.
    #[arg(long)]
    format: Option<Form>,
    /// In which version of FOCUS that the server writes, 1.2 or later, of --format focus alone; without it in 1.2.
    #[arg(long)]
    focus_version: Option<String>,
    /// At which price a GPU counts: its part of its machine's, or its own (of the chargeback, not as focus).
    #[arg(long, default_value = "fully-loaded")]
    basis: Basis,
    /// Rows of the provider's billing export (JSON, an array or one a line), to reconcile with: the invoice and its
    /// residual. They are sent to the server, which does not keep them.
    #[arg(long)]
    invoice: Option<PathBuf>,
}

/// At which price a GPU counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Basis {
    /// Its part of its machine's price.
    FullyLoaded,
    /// Its own price, without the machine around it.
    GpuOnly,
}

impl Basis {
    /// What the server is asked; nothing where it is what it answers by itself, which older ones know as well.
    pub(crate) fn asked(self) -> Option<&'static str> {
        match self {
            Self::FullyLoaded => None,
            Self::GpuOnly => Some("gpu-only"),
        }
    }
}

/// What is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Who owes what.
    Chargeback,
    /// What time was worth.
    Efficiency,
    /// Whether it adds up: against the nodes' price and an invoice.
    Reconcile,
}

/// In which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A page for people.
    Html,
    /// One row for each group and state.
    Csv,
    /// Everything, for programs.
    Json,
    /// FOCUS 1.2 or 1.3, for tools that read bills of any cloud.
    Focus,
}

/// Writes the report as it comes, or says whether the month adds up; and what is missing in it to `beside`, where it is
/// rows alone. `--json` is the same as `--format json`.
pub(crate) fn answer(
    client: &Client,
    report: &Report,
    json: bool,
    (out, beside): (&mut dyn Write, &mut dyn Write),
) -> anyhow::Result<Option<Answer>> {
    let format = match json {
        true => Some(Form::Json),
        false => report.format,
    };
    if report.what == What::Reconcile {
        return reconcile(client, report, format, beside).map(Some);
    }
    anyhow::ensure!(
        report.invoice.is_none(),
        "--invoice is of `gpufleet report reconcile`, which says what is left of it"
    );
    let what = name(report.what);
    let format = name(format.unwrap_or(Form::Csv));
    let query = ask::given([
        ("by", Some(report.by.as_deref().unwrap_or("team"))),
        ("format", Some(format.as_str())),
        ("month", report.month.as_deref()),
        ("cluster", report.cluster.as_deref()),
        ("basis", report.basis.asked()),
        ("focus_version", report.focus_version.as_deref()),
    ]);
    let told = client.copy(&ask::with_query(&format!("/reports/{what}"), &query), out)?;
    tell(told.as_deref(), beside);
    Ok(None)
}

/// Says what the server says beside a report. That nobody reads it is no error.
fn tell(told: Option<&str>, beside: &mut dyn Write) {
    let lines = told.map(findings).unwrap_or_default();
    let _ = beside.write_all(lines.as_bytes());
}

/// The header of a report that is rows alone, in lines.
fn findings(header: &str) -> String {
    let told: Value = serde_json::from_str(header).unwrap_or(Value::Null);
    let said = told["said"].as_array().map_or(&[][..], Vec::as_slice);
    let count = told["count"].as_u64();
    let more = count.map(|it| it.saturating_sub(said.len() as u64));
    let more = match more {
        Some(0) => None,
        Some(more) => Some(format!(
            "and {more} findings more: --format json has them all"
        )),
        None => Some(
            "what the server says is missing in it cannot be read here: --format json has it"
                .to_owned(),
        ),
    };
    let said = said.iter().map(words::text).chain(more);
    said.map(|it| format!("gpufleet: {it}\n")).collect()
}

/// Whether the month adds up; it is bad news where it does not, as far as the answer is one that is read here.
fn reconcile(
    client: &Client,
    report: &Report,
    format: Option<Form>,
    beside: &mut dyn Write,
) -> anyhow::Result<Answer> {
    anyhow::ensure!(
        report.by.is_none() && report.focus_version.is_none() && report.basis == Basis::FullyLoaded,
        "reconcile is of all that whole machines cost: it takes --month, --cluster, --format and --invoice, not --by, --basis or --focus-version"
    );
    let asked = name(format.unwrap_or(Form::Json));
    let query = ask::given([
        ("format", Some(asked.as_str())),
        ("month", report.month.as_deref()),
        ("cluster", report.cluster.as_deref()),
    ]);
    let bill = report.invoice.as_deref().map(bill).transpose()?;
    let has_bill = bill.is_some();
    let (text, told) = client.text(&ask::with_query("/reports/reconcile", &query), bill)?;
    tell(told.as_deref(), beside);
    let json: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    let is_read = !json.is_null();
    Ok(Answer {
        is_good: !is_read || adds_up(&json),
        text: match format {
            None => table(&json, has_bill),
            Some(_) => text,
        },
        json,
    })
}

fn bill(file: &Path) -> anyhow::Result<Bytes> {
    let what = || format!("the billing export {} cannot be read", file.display());
    let mut rows = Vec::new();
    let opened = std::fs::File::open(file).with_context(what)?;
    // One byte more than is taken says that there is more.
    let mut part = opened.take(MAX_BILL_BYTES as u64 + 1);
    part.read_to_end(&mut rows).with_context(what)?;
    anyhow::ensure!(
        rows.len() <= MAX_BILL_BYTES,
        "the billing export {} is longer than {} MiB: export the columns and the month that are read alone, or sums of them (docs/cost.md)",
        file.display(),
        MAX_BILL_BYTES >> 20
    );
    Ok(rows.into())
}

/// Whether the lines are those of the nodes and, where there is an invoice, what is left of it is no more than usual.
fn adds_up(answer: &Value) -> bool {
    answer["balance"]["is_exact"] == true && answer["invoice"]["is_off"] != true
}

/// What there is to say, the figures, and what is left out of them.
fn table(answer: &Value, has_bill: bool) -> String {
    let list = |name: &str| answer[name].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = words::text(&answer["title"]) + "\n";
    for sentence in list("told") {
        text.push_str(&format!("{}\n", words::text(sentence)));
    }
    text.push('\n');
    let mut table = Table::new(&["WHAT", ">AMOUNT"]);
    for figure in list("figures") {
        let amount = figure["amount"].as_str().and_then(|it| it.parse().ok());
        let amount = amount.map(|it: f64| {
            let plus = match figure["is_signed"] == true && it > 0.0 {
                true => "+",
                false => "",
            };
            format!("{plus}{}", words::amount(it, words::currency(answer)))
        });
        table.row(vec![
            words::text(&figure["what"]).replace('_', " "),
            amount.unwrap_or_else(|| words::NOTHING.to_owned()),
        ]);
    }
    text.push_str(&table.text("there are no figures"));
    for finding in list("findings") {
        text.push_str(&format!("- {}\n", words::text(finding)));
    }
    if !has_bill {
        text.push_str(
            "Against the invoice: --invoice FILE, rows of the provider's billing export\n",
        );
    }
    text
}

fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(is_exact: bool, is_off: bool) -> Value {
        json!({"title": "October 2026", "currency": "USD", "balance": {"is_exact": is_exact},
            "invoice": {"is_off": is_off}, "told": ["The lines add up.", "The residual is large."],
            "figures": [{"what": "lines", "amount": "1234.5", "is_signed": false},
                {"what": "residual", "amount": "2.0", "is_signed": true},
                {"what": "credits", "amount": "-3.25", "is_signed": true},
                {"what": "machine_without_gpus", "amount": "0.0", "is_signed": false}],
            "findings": ["2 rows\nwere left out"]})
    }

    #[test]
    fn what_adds_up_is_a_table_in_the_words_of_the_server() {
        let told = table(&answer(true, true), true);
        let expected = "October 2026\nThe lines add up.\nThe residual is large.\n\n\
            WHAT                     AMOUNT\n\
            lines                 $1\u{202f}234.50\n\
            residual                 +$2.00\n\
            credits                  -$3.25\n\
            machine without gpus      $0.00\n\
            - 2 rows were left out\n";
        assert_eq!(told, expected);
        let without = table(&answer(true, false), false);
        assert!(without.contains("--invoice FILE"), "{without}");
    }

    #[test]
    fn what_is_missing_in_rows_is_told_in_lines_beside_them() {
        let told = |header: &str| {
            let mut beside: Vec<u8> = Vec::new();
            tell(Some(header), &mut beside);
            String::from_utf8(beside).expect("a text")
        };
        assert_eq!(
            told(r#"{"count":3,"said":["prod: a day\u001b is missing","b"]}"#),
            "gpufleet: prod: a day  is missing\ngpufleet: b\n\
             gpufleet: and 1 findings more: --format json has them all\n"
        );
        assert_eq!(told(r#"{"count":1,"said":["b"]}"#), "gpufleet: b\n");
        assert!(told("3 findings").contains("cannot be read here"));
        let mut beside: Vec<u8> = Vec::new();
        tell(None, &mut beside);
        assert_eq!(beside, b"");
    }

    #[test]
    fn lines_that_are_off_and_a_residual_that_is_told_are_bad_news() {
        assert!(adds_up(&answer(true, false)));
        assert!(!adds_up(&answer(true, true)));
        assert!(!adds_up(&answer(false, false)));
        let mut without = answer(true, false);
        without["invoice"] = Value::Null;
        assert!(adds_up(&without));
        assert!(!adds_up(&Value::Null), "what does not say so does not");
    }

    #[test]
    fn a_bill_that_the_server_would_not_take_is_not_sent() {
        let name = format!("gpufleet-bill-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, vec![b' '; MAX_BILL_BYTES + 1]).expect("there is room");
        let refused = bill(&file).expect_err("it is too long").to_string();
        assert!(refused.contains("16 MiB"), "{refused}");
        std::fs::remove_file(&file).expect("it is there");
        let refused = bill(&file).expect_err("it is gone").to_string();
        assert!(refused.contains("cannot be read"), "{refused}");
    }
}
