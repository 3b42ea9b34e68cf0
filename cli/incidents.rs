//! `gpufleet incidents`: what is wrong, why, since when, what it costs; one of them with all that is known;
//! saying that somebody works on it or no more, and writing a note to it.

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::Answer;
use crate::ask::{self, List};
use crate::client::Client;
use crate::table::Table;
use crate::tell;
use crate::words;

/// Which incidents; or one, and what to say to it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet incidents                                  what is wrong now, the last begun first
  gpufleet incidents --state all --family gpu_fault   also what is over, of one kind
  gpufleet incidents --node node-7 --from 2026-11-21T07:00:00Z   all of a node since then, over or not
  gpufleet incidents --run team/llama --severity warning   what is wrong with a job, by its name or id
  gpufleet incidents 0199c0de-…                       all that is known of one
  gpufleet incidents 0199c0de-… --acknowledge --who ada   somebody works on it (role operate)
  gpufleet incidents 0199c0de-… --release --who ada       nobody works on it any more (role operate)
  gpufleet incidents 0199c0de-… --note 'fan ordered'      a note in its log (role operate)")]
pub(crate) struct Asked {
    /// The id of one.
    incident: Option<String>,
    /// Only of this cluster.
    #[arg(long, conflicts_with = "incident")]
    cluster: Option<String>,
    /// Only of this kind: `gpu_fault`, `heat`, `blind` and so on.
    #[arg(long, conflicts_with = "incident")]
    family: Option<String>,
    /// Only those at least so bad.
    #[arg(long, conflicts_with = "incident")]
    severity: Option<Severity>,
    /// Only those at this node.
    #[arg(long, conflicts_with = "incident")]
    node: Option<String>,
    /// Only those at this GPU, by its id.
    #[arg(long, conflicts_with = "incident")]
    gpu: Option<String>,
    /// Only those of this run or job: its id, or the job's `namespace/name` or name.
    #[arg(long, conflicts_with = "incident")]
    run: Option<String>,
    /// Only those that were not over before this moment, RFC 3339.
    #[arg(long, conflicts_with = "incident")]
    from: Option<String>,
    /// Only those that began before this moment, RFC 3339.
    #[arg(long, conflicts_with = "incident")]
    to: Option<String>,
    /// Whether they are over. Without it those that are open; all of a time that is asked for.
    #[arg(long, conflicts_with = "incident")]
    state: Option<State>,
    /// Says that somebody works on it. Needs a token of role operate.
    #[arg(long, requires = "incident")]
    acknowledge: bool,
    /// Says that nobody works on it any more. Needs a token of role operate.
    #[arg(long, requires = "incident", conflicts_with = "acknowledge")]
    release: bool,
    /// Writes this into its log. Needs a token of role operate.
    #[arg(long, requires = "incident", value_parser = NonEmptyStringValueParser::new())]
    note: Option<String>,
    /// Who says so.
    #[arg(long, env = "USER", default_value = "somebody at a prompt")]
    who: String,
}

/// How bad they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Severity {
    Info,
    Warning,
    Error,
}

/// Whether they are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Open,
    Resolved,
    All,
}

/// The answer.
pub(crate) fn answer(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    match &asked.incident {
        Some(id) => one(client, id, asked),
        None => list(client, asked),
    }
}

fn list(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    let list = ask::all(client, "/incidents", &asked.given())?;
    Ok(listed(&list, asked))
}

/// It is bad news where the detectors stand: a list without an incident is then not that nothing is wrong.
fn listed(list: &List, asked: &Asked) -> Answer {
    let stand = list.stand_since.as_ref().and_then(words::stand);
    let is_good = stand.is_none();
    let text = table(&list.items).text(asked.none(is_good));
    Answer {
        text: stand.unwrap_or_default() + &text + &list.note(),
        json: list.json(),
        is_good,
    }
}

impl Asked {
    fn state(&self) -> State {
        let is_of_time = self.from.is_some() || self.to.is_some();
        self.state.unwrap_or(match is_of_time {
            true => State::All,
            false => State::Open,
        })
    }

    /// What the server is asked.
    fn given(&self) -> Vec<(&str, &str)> {
        let state = match self.state() {
            State::Open => Some("open"),
            State::Resolved => Some("resolved"),
            State::All => None,
        };
        let severity = self.severity.map(|it| match it {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        });
        ask::given([
            ("state", state),
            ("cluster", self.cluster.as_deref()),
            ("family", self.family.as_deref()),
            ("severity", severity),
            ("node", self.node.as_deref()),
            ("gpu", self.gpu.as_deref()),
            ("run", self.run.as_deref()),
            ("from", self.from.as_deref()),
            ("to", self.to.as_deref()),
        ])
    }

    /// What is said where there is none, and whether the detectors judge.
    fn none(&self, is_judged: bool) -> &'static str {
        let is_all = matches!((self.state(), self.given().len()), (State::Open, 1));
        match (is_all, is_judged) {
            (true, true) => {
                "nothing is wrong that is known; `gpufleet doctor` says what is not looked at"
            }
            (true, false) => "whether something is wrong is not known",
            (false, true) => "there is no such incident",
            (false, false) => "there is no such incident that is known",
        }
    }
}

fn table(incidents: &[Value]) -> Table {
    let mut table = Table::new(&[
        "SEVERITY",
        "SINCE (UTC)",
        "WHERE",
        "WHAT",
        "SURE",
        ">COSTS/H",
        ">LOST",
        "STATE",
        "ID",
    ]);
    for it in incidents {
        table.row(vec![
            words::text(&it["severity"]),
            words::moment(&it["since"]),
            place(&it["place"], &it["origin"]),
            words::text(&it["what"]),
            words::text(&it["confidence"]),
            words::nano_money(&it["losing_nano_usd_per_hour"], it),
            words::nano_money(&it["lost_nano_usd"], it),
            state(it),
            words::text(&it["id"]),
        ]);
    }
    table
}

/// Where it is, from the cluster down, which says whether it is live.
fn place(place: &Value, origin: &Value) -> String {
    let of = |name: &str| place[name].as_str().map(words::plain);
    let cluster = of("cluster").map(|it| it + &words::origin(origin));
    let rank = place["rank"].as_u64().map(|it| format!("rank {it}"));
    let parts = [cluster, of("run"), rank, of("node"), of("gpu")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => words::NOTHING.to_owned(),
        false => parts.join(" "),
    }
}

/// How it stands: over, heard of no more, silenced, in somebody's hands, or open.
fn state(it: &Value) -> String {
    if it["resolved_at"].is_string() {
        return format!("over {}", words::moment(&it["resolved_at"]));
    }
    if it["unheard_since"].is_string() {
        return format!("not heard since {}", words::moment(&it["unheard_since"]));
    }
    let by = it["acknowledged_by"].as_str();
    let by = by.map(|who| format!("{} works on it", words::plain(who)));
    let until = &it["silenced_until"];
    let silent = until
        .is_string()
        .then(|| format!("silent until {}", words::moment(until)));
    match (by, silent) {
        (Some(by), Some(silent)) => format!("{by}, {silent}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => words::text(&it["state"]),
    }
}

fn one(client: &Client, id: &str, asked: &Asked) -> anyhow::Result<Answer> {
    let what = match (asked.acknowledge, asked.release) {
        (true, _) => Some("acknowledge"),
        (false, true) => Some("release"),
        (false, false) => None,
    };
    let said = what.map(|what| tell::say(client, id, what, &asked.who));
    let json = match (&asked.note, said.transpose()?) {
        (Some(note), None) => tell::note(client, id, &asked.who, note)?,
        (Some(note), Some(_)) => tell::note(client, id, &asked.who, note)
            .context("the incident is as you say, but the note was not taken")?,
        (None, Some(said)) => said,
        (None, None) => client.get(&format!("/incidents/{}", tell::segment(id)))?,
    };
    Ok(Answer {
        text: about(&json, &client.server()),
        json,
        is_good: true,
    })
}

fn about(it: &Value, server: &str) -> String {
    let mut text = format!(
        "{}: {}\n",
        words::text(&it["severity"]).to_uppercase(),
        words::text(&it["what"])
    );
    let mut line = |name: &str, value: String| {
        if value != words::NOTHING {
            text.push_str(&format!("  {name:<8} {value}\n"));
        }
    };
    line("where", place(&it["place"], &it["origin"]));
    line("since", words::moment(&it["since"]));
    line("state", state(it));
    line("cause", words::text(&it["cause"]).replace('_', " "));
    line("sure", words::text(&it["confidence"]));
    line("to do", words::text(&it["action"]));
    if let Some(page) = it["runbook"].as_str() {
        line("runbook", format!("{server}{}", words::plain(page)));
    }
    line("owner", words::text(&it["owner"]));
    line(
        "costs/h",
        words::nano_money(&it["losing_nano_usd_per_hour"], it),
    );
    line("lost", words::nano_money(&it["lost_nano_usd"], it));
    line("price", words::text(&it["price"]));
    let items = |name: &str| it[name].as_array().cloned().unwrap_or_default();
    for evidence in items("evidence") {
        let readings = evidence["readings"].as_array().into_iter().flatten();
        let readings: Vec<String> = readings.map(reading).collect();
        let readings = match readings.is_empty() {
            true => String::new(),
            false => format!(" ({})", readings.join(", ")),
        };
        text.push_str(&format!(
            "{}  {}: {}{readings}\n",
            words::moment(&evidence["at"]),
            place(&evidence["place"], &it["origin"]),
            words::text(&evidence["what"])
        ));
    }
    for entry in items("log") {
        let who = entry["who"]
            .as_str()
            .map_or("the server".to_owned(), words::plain);
        let detail = match entry["detail"].as_str() {
            Some(detail) => format!(": {}", words::plain(detail)),
            None => String::new(),
        };
        text.push_str(&format!(
            "{}  {who}: {}{detail}\n",
            words::moment(&entry["at"]),
            words::text(&entry["what"]).replace('_', " ")
        ));
    }
    text
}

fn reading(it: &Value) -> String {
    let unit = words::plain(it["unit"].as_str().unwrap_or_default());
    let usual = match it["usual"].as_f64() {
        Some(usual) => format!(", usual {usual}"),
        None => String::new(),
    };
    let value = words::text(&it["value"]);
    format!("{} {value} {unit}{usual}", words::text(&it["name"])).replace(" ,", ",")
}

#[cfg(test)]
mod tests;
