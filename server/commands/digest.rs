//! `gpufleet-server digest`: a week of each team, printed, or sent once more by a person's word.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::digest::{Summary, Week};
use gpufleet_program::clock::SystemClock;
use gpufleet_server::config::Config;
use gpufleet_server::money::{Money, digest};
use gpufleet_server::notify::Channels;
use gpufleet_server::notify::digest::{notices, page};
use gpufleet_server::notify::lane::Outcome;
use gpufleet_server::store::Store;
use gpufleet_server::words::digest::say;
use gpufleet_server::words::text::rfc3339;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::time::{Clock, Timestamp};
use serde_json::Value;

/// Which week, of whom.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// The week, `2026-W47`; without it the last one that is over.
    #[arg(long)]
    week: Option<String>,
    /// Of one team by the name that it pays under; without it of each.
    #[arg(long)]
    team: Option<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Sends it to the channels of notify.digests, whether it was sent before or not.
    #[arg(long)]
    send: bool,
}

/// Does what was asked.
pub(crate) async fn run(
    store: &Store,
    config: &Config,
    flags: Flags,
    now: Timestamp,
) -> anyhow::Result<String> {
    let running = Week::at(now.millis());
    let week = match &flags.week {
        None => running.before(),
        Some(text) => Week::parse(text)
            .with_context(|| format!("`{text}` is no week: {} is one", running.before()))?,
    };
    if week >= running {
        let end = Timestamp::from_millis(week.days().end * MILLIS_PER_DAY);
        bail!("{week} is not over before {}", rfc3339(end));
    }
    let terms = Money::default().refresh(store, config).await?;
    let specs = Specs::with(&config.gpu.peaks)?;
    let days = digest::read(store, &specs, week).await?;
    let mut made = digest::summaries(&days, week, &terms);
    if let Some(team) = &flags.team {
        made.retain(|it| it.payer == *team);
        if made.is_empty() {
            bail!("{team:?} held nothing in {week} and the week before");
        }
    }
    if flags.send {
        return send(config, &made, now).await;
    }
    let page = page(&config.notify);
    if flags.json {
        let all: Vec<Value> = made.iter().map(|it| say(it, &page).figures).collect();
        let mut text = serde_json::to_string_pretty(&all).expect("texts and numbers are JSON");
        text.push('\n');
        return Ok(text);
    }
    let mut out = String::new();
    for it in &made {
        let said = say(it, &page);
        let _ = writeln!(out, "{}\n{}", said.title, said.text);
    }
    if made.is_empty() {
        let _ = writeln!(out, "Nobody held anything in {week} and the week before.");
    }
    Ok(out)
}

/// Sends it at once, and says what became of each message; an error when one did not get through.
async fn send(config: &Config, made: &[Summary], now: Timestamp) -> anyhow::Result<String> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let channels = Channels::new(&config.notify, &clock).map_err(anyhow::Error::msg)?;
    let settings = channels.settings();
    let all = notices(made, settings, &page(&config.notify), now);
    if all.is_empty() {
        bail!("notify.digests sends that to nobody");
    }
    let (mut out, mut failed) = (String::new(), 0);
    for group in &all {
        let outcome = channels.say(group, clock.now()).await;
        let outcome = outcome.map_err(anyhow::Error::msg)?;
        failed += usize::from(!matches!(outcome, Outcome::Delivered));
        let became = match outcome {
            Outcome::Delivered => "it has it".to_owned(),
            Outcome::Later { why, .. } => format!("not now: {why}"),
            Outcome::Refused { why, .. } => format!("refused: {why}"),
        };
        let title = group.notice.as_ref().map_or("", |it| it.title.as_str());
        let _ = writeln!(out, "{}: {became}: {title}", group.way);
        if let Some(way) = settings.way(&group.way) {
            tokio::time::sleep(way.kind.spacing()).await;
        }
    }
    anyhow::ensure!(failed == 0, "{out}{failed} messages did not get through");
    Ok(out)
}
