//! Commands beside serving: a report over the store, tables of prices and owners into it, and what would have
//! fired ([`replay`]).
//!
//! They read the same configuration and open the same database as the server that runs; they make none,
//! and refuse one that no server of this version has used yet.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use gpufleet_analysis::price_book::catalog;
use gpufleet_analysis::price_book::export::Invoice;
use gpufleet_analysis::report::focus;
use gpufleet_server::config::Config;
use gpufleet_server::money::report::{self, Asked, Form, What, bill};
use gpufleet_server::money::tables::{self, Kind};
use gpufleet_server::money::terms::Sources;
use gpufleet_server::money::{Money, import};
use gpufleet_server::store::model::{AuditEntry, MoneyTable};
use gpufleet_server::store::{Store, StoreError};
use gpufleet_server::words::text;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::time::Timestamp;

mod digest;

mod replay;

#[cfg(test)]
mod tests;

/// Changes that are looked through for those of tables, the newest.
const LOGGED: usize = 1_000;

/// How the action of a change ends that was refused after it was written down.
const REFUSED: &str = " refused";

/// What to do instead of serving.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What would have fired on a stored day or a recording, with this configuration (--config). Writes
    /// nothing and tells nobody.
    Replay(replay::Flags),
    /// A month of the ledger as money, from the configured database to standard output.
    Report(ReportFlags),
    /// A week of each team: what it held, what that cost, what was for nothing. To standard output, or once more to
    /// the channels of notify.digests.
    Digest(digest::Flags),
    /// Tables of prices, machine types, discounts, commitments, owner rules, idle policies and budgets.
    Prices {
        /// What to do with them.
        #[command(subcommand)]
        what: Prices,
    },
}

/// Which report.
#[derive(Debug, Args)]
pub(crate) struct ReportFlags {
    /// Who owes what, what time was worth, or whether it adds up.
    what: What,
    /// The month, `2026-10`; without it the one that runs.
    #[arg(long)]
    month: Option<String>,
    /// What lines are grouped by, with commas between: team, cluster, namespace, job, model, project, pool, gpu.
    #[arg(long, default_value = "team")]
    by: String,
    /// Of one cluster, also of one that is simulated; without it of all live ones.
    #[arg(long)]
    cluster: Option<String>,
    /// In which form.
    #[arg(long, default_value = "csv")]
    format: Form,
    /// In which version of FOCUS, of --format focus alone; without it in 1.2.
    #[arg(long, value_parser = focus::Version::ALL.map(focus::Version::name))]
    focus_version: Option<String>,
    /// At which price a GPU counts: its part of its machine's, or its own (of the chargeback, not as focus).
    #[arg(long, default_value = "fully-loaded")]
    basis: report::Basis,
    /// Rows of the provider's billing export (JSON), to reconcile with: invoice and residual.
    #[arg(long)]
    invoice: Option<PathBuf>,
}

/// What to do with tables.
#[derive(Debug, Subcommand)]
pub(crate) enum Prices {
    /// Keeps CSV tables in place of those of the same file names; and all pages of an answer of the Cloud Billing Catalog
    /// (JSON) as one table with the name of the first, beside the rates of other times that are kept under that name. What
    /// their columns are, docs/cost.md says.
    Import {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Every table that is kept, and what is wrong with them.
    List,
    /// Who kept or removed which table, the newest first.
    Log,
    /// Removes a table.
    Remove {
        /// Its name, as the list has it.
        name: String,
    },
}

/// Does what was asked.
pub(crate) async fn run(command: Command, config: &Config, now: Timestamp) -> anyhow::Result<()> {
    let command = match command {
        Command::Replay(flags) => return Box::pin(replay::run(flags, config)).await,
        other => other,
    };
    let store = Store::open_used(&config.store).await?;
    if store.is_behind() {
        bail!(
            "the schema of {} is older than this program, and only a server that leads changes it: start one first",
            config.store.url.split('@').next_back().unwrap_or_default()
        );
    }
    let text = match command {
        Command::Report(flags) => {
            let printed = report(&store, config, flags, now).await;
            store.close().await;
            return printed;
        }
        Command::Digest(flags) => Box::pin(digest::run(&store, config, flags, now)).await,
        Command::Prices { what } => prices(&store, config, what, now).await,
        Command::Replay(_) => unreachable!("it was done before the store was opened"),
    };
    store.close().await;
    print(&text?)
}

/// Prints an answer.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout();
    delivered(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of an answer. That whoever reads it has gone, `gpufleet-server report … | head`, is no error; a full disk is
/// one, because what lies on it is a part that looks whole.
fn delivered(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("the answer cannot be written"),
    }
}

/// Prints a report as it is made, with the store closed: a FOCUS file is large, and whoever reads it may be slow.
async fn report(
    store: &Store,
    config: &Config,
    flags: ReportFlags,
    now: Timestamp,
) -> anyhow::Result<()> {
    let month = flags.month.unwrap_or_else(|| report::month_of(now));
    let asked = Asked::new(
        flags.what,
        flags.format,
        &month,
        &flags.by,
        flags.cluster,
        now,
    )?;
    if flags.invoice.is_some() && flags.basis == report::Basis::GpuOnly {
        return Err(report::NotAsked::NoBasis.into());
    }
    let asked = asked.at(flags.basis)?;
    let asked = asked.version(flags.focus_version.as_deref())?;
    let terms = Money::default().refresh(store, config).await?;
    let currency = terms.book.currency.as_str();
    let invoice = flags.invoice.as_deref();
    let invoice = invoice.map(|it| invoice_of(it, &month, currency));
    let invoice = invoice.transpose()?;
    let specs = Specs::with(&config.gpu.peaks)?;
    let days = report::read(store, &specs, &asked).await?;
    store.close().await;
    let mut out = io::stdout().lock();
    let mut written: io::Result<()> = Ok(());
    // Behind what could not be written nothing is.
    let mut take = |part: &str| {
        if written.is_ok() {
            written = out.write_all(part.as_bytes());
        }
    };
    let told = report::write(&asked, &days, &terms, invoice.as_ref(), now, &mut take);
    let written = written.and_then(|()| out.flush());
    // Beside the file that the rows go into; who closed it does not want it.
    let _ = io::stderr().write_all(report::told::lines(&told).as_bytes());
    delivered(written)
}

/// The rows of a billing export that are of a month's invoice. A file without any is refused.
fn invoice_of(path: &Path, month: &str, currency: &str) -> anyhow::Result<Invoice> {
    let invoice = bill::invoice_of(&read(path)?, month, currency);
    invoice.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

async fn prices(
    store: &Store,
    config: &Config,
    what: Prices,
    now: Timestamp,
) -> anyhow::Result<String> {
    let said = match what {
        Prices::Import { files } => {
            let mut said = String::new();
            let stored = store.money_tables().await?;
            let sources = Sources {
                stored,
                ..Sources::of(config)
            };
            let sources = sources.read();
            let tables = tables_of(&files, &sources, now)?;
            for told in import::shortened(&sources.stored, &tables) {
                said.push_str(&format!("  {told}\n"));
            }
            import::check(&import::with(sources, &tables), &tables)?;
            for table in tables {
                said.push_str(&format!("kept {}, {}\n", table.name, table.kind));
                let (target, detail) = (&table.name, rows(&table));
                let keeping = store.keep_table(&table);
                noted(store, ("prices import", target, &detail), now, keeping).await?;
            }
            said
        }
        Prices::Remove { name } => {
            let tables = store.money_table_names().await?;
            if !tables.iter().any(|it| it.0 == name) {
                bail!("no table is called {name}: `gpufleet-server prices list` has their names");
            }
            let removing = store.remove_table(&name);
            noted(store, ("prices remove", &name, ""), now, removing).await?;
            format!("removed {name}\n")
        }
        Prices::List => {
            let tables = store.money_tables().await?;
            let line = |it: &MoneyTable| format!("{}  {}\n", it.name, rows(it));
            tables.iter().map(line).collect()
        }
        Prices::Log => return log(store).await,
    };
    let terms = Money::default().refresh(store, config).await?;
    let findings = terms.findings.iter().map(|it| format!("  {it}\n"));
    Ok(said + &findings.collect::<String>())
}

fn rows(table: &MoneyTable) -> String {
    let rows = table.content.lines().count().saturating_sub(1);
    format!("{}, {rows} rows", table.kind)
}

/// Changes a table, and writes down who does, before it is changed: a month that is issued again has its reason here.
/// What was refused is written down behind it, so that nobody takes it for done.
async fn noted<T>(
    store: &Store,
    change: (&str, &str, &str),
    now: Timestamp,
    making: impl Future<Output = Result<T, StoreError>>,
) -> anyhow::Result<T> {
    note(store, change, now).await?;
    let made = making.await;
    if let Err(error) = &made {
        let (action, table, _) = change;
        let refused = (format!("{action}{REFUSED}"), error.to_string());
        if let Err(why) = note(store, (&refused.0, table, &refused.1), now).await {
            tracing::error!(%why, "the audit says that {table} was changed, and it was not");
        }
    }
    Ok(made?)
}

async fn note(
    store: &Store,
    (action, table, detail): (&str, &str, &str),
    now: Timestamp,
) -> anyhow::Result<()> {
    let user = ["SUDO_USER", "USER", "LOGNAME"];
    let user = user.iter().find_map(|it| std::env::var(it).ok());
    let who = user.unwrap_or_else(|| "somebody at a prompt".to_owned());
    let entry = AuditEntry::here(now, &who, (action, table), detail);
    Ok(store.audit(&entry).await?)
}

/// Who changed which table, of all that was written down lately.
async fn log(store: &Store) -> anyhow::Result<String> {
    let all = store.audited(LOGGED).await?;
    Ok(told(&all))
}

/// Changes of tables in lines; of one that was refused one line, with why.
fn told(all: &[AuditEntry]) -> String {
    let is_of = |refusal: &AuditEntry, it: &AuditEntry| {
        let action = refusal.action.strip_suffix(REFUSED);
        action == Some(&it.action) && (refusal.at, &refusal.target) == (it.at, &it.target)
    };
    let line = |it: &AuditEntry| {
        let at = text::rfc3339(it.at);
        let detail = match it.detail.is_empty() {
            true => String::new(),
            false => format!(" ({})", it.detail),
        };
        let refusal = all.iter().find(|refusal| is_of(refusal, it));
        let refused = refusal.map(|it| format!(", refused: {}", it.detail));
        let refused = refused.unwrap_or_default();
        format!(
            "{at}  {}  {} {}{detail}{refused}\n",
            it.who, it.action, it.target
        )
    };
    let is_change =
        |it: &&AuditEntry| it.action.starts_with("prices ") && !it.action.ends_with(REFUSED);
    all.iter().filter(is_change).map(line).collect()
}

/// Tables from files: each CSV is one, and the pages of the catalog's JSON are one of rates together, in the currency of what
/// is there already and of the machine types that are known with it. It has what is kept under its name of other times too,
/// because an answer is of today alone. Two tables of one name are refused.
fn tables_of(
    files: &[PathBuf],
    sources: &Sources,
    now: Timestamp,
) -> anyhow::Result<Vec<MoneyTable>> {
    let (mut found, mut pages, mut named) = (Vec::new(), Vec::new(), String::new());
    for file in files {
        let (name, text) = (file_name(file), read(file)?);
        if !text.trim_start().starts_with('{') {
            found.push(table(name, text, now)?);
            continue;
        }
        if pages.is_empty() {
            named = name;
        }
        pages.push(text);
    }
    if !pages.is_empty() {
        let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
        let book = import::with(sources.clone(), &found).book;
        let imported = catalog::import(&pages, &book)?;
        for note in &imported.notes {
            tracing::warn!("{named}: {note}");
        }
        let mut rates = imported.table;
        let is_of_name = |it: &&MoneyTable| it.name == named && it.kind == Kind::Rates.name();
        let kept = sources.stored.iter().find(is_of_name);
        // One without any rate is refused, so it joins nothing.
        if let Some(kept) = kept.filter(|_| rates.lines().count() > 1) {
            rates = catalog::joined(&kept.content, &rates).with_context(|| named.clone())?;
        }
        if rates.len() as u64 > tables::MAX_BYTES {
            bail!(
                "{named} and what is kept under its name are longer than {} bytes together: import it under another name",
                tables::MAX_BYTES
            );
        }
        found.push(table(named, rates, now)?);
    }
    let mut names = HashSet::new();
    if let Some(twice) = found.iter().find(|it| !names.insert(it.name.as_str())) {
        bail!(
            "two of these files are called {}, and a table is kept under the name of its file, so that one would take the \
             place of the other: rename one of them. Nothing was kept",
            twice.name
        );
    }
    Ok(found)
}

fn table(name: String, content: String, now: Timestamp) -> anyhow::Result<MoneyTable> {
    let kind = Kind::of(&content).with_context(|| name.clone())?;
    Ok(MoneyTable {
        name,
        kind: kind.name().to_owned(),
        content,
        imported: now,
    })
}

fn file_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn read(file: &Path) -> anyhow::Result<String> {
    let path = file.to_string_lossy();
    tables::read(&path).with_context(|| path.into_owned())
}
