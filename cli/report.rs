//! `gpufleet report chargeback|efficiency`: a month as money, in the form that was asked for, as the
//! server makes it, and as it comes.

use std::io::Write;

use clap::{Args, ValueEnum};

use crate::ask;
use crate::client::{Client, Refusal};

/// Which report.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Who owes what, or what time was worth.
    what: What,
    /// The month, `2026-10`; without it the one that runs.
    #[arg(long)]
    month: Option<String>,
    /// What lines are grouped by, with commas between: team, namespace, job, model, project, pool, gpu.
    #[arg(long, default_value = "team")]
    by: String,
    /// Of one cluster, also of one that is simulated; without it of all live ones.
    #[arg(long)]
    cluster: Option<String>,
    /// In which form.
    #[arg(long, default_value = "csv")]
    format: Form,
    /// In which version of FOCUS that the server writes, 1.2 or later, of --format focus alone; without it in 1.2.
    #[arg(long)]
    focus_version: Option<String>,
    /// At which price a GPU counts: its part of its machine's, or its own (of the chargeback, not as focus).
    #[arg(long, default_value = "fully-loaded")]
    basis: Basis,
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

/// Writes the report. `--json` is the same as `--format json`.
pub(crate) fn write(
    client: &Client,
    report: &Report,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Refusal> {
    let what = name(report.what);
    let format = if json { Form::Json } else { report.format };
    let format = name(format);
    let query = ask::given([
        ("by", Some(report.by.as_str())),
        ("format", Some(format.as_str())),
        ("month", report.month.as_deref()),
        ("cluster", report.cluster.as_deref()),
        ("basis", report.basis.asked()),
        ("focus_version", report.focus_version.as_deref()),
    ]);
    client.copy(&ask::with_query(&format!("/reports/{what}"), &query), out)
}

fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_owned()
}
