//! `gpufleet incidents`: what is wrong, why, since when, what it costs; one of them with all that is known;
//! saying that somebody works on it, and writing a note to it.

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::table::Table;
use crate::tell;
use crate::words;

/// Which incidents; or one, and what to say to it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet incidents                                  what is wrong now, the last begun first
  gpufleet incidents --state all --family gpu_fault   also what is over, of one kind
  gpufleet incidents 0199c0de-…                       all that is known of one
  gpufleet incidents 0199c0de-… --acknowledge --who ada   somebody works on it (role operate)
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
    /// Whether they are over.
    #[arg(long, default_value = "open", conflicts_with = "incident")]
    state: State,
    /// Says that somebody works on it. Needs a token of role operate.
    #[arg(long, requires = "incident")]
    acknowledge: bool,
    /// Writes this into its log. Needs a token of role operate.
    #[arg(long, requires = "incident", value_parser = NonEmptyStringValueParser::new())]
    note: Option<String>,
    /// Who says so.
    #[arg(long, env = "USER", default_value = "somebody at a prompt")]
    who: String,
}

/// How bad they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
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
    let state = match asked.state {
        State::Open => Some("open"),
        State::Resolved => Some("resolved"),
        State::All => None,
    };
    let given = ask::given([
        ("cluster", asked.cluster.as_deref()),
        ("family", asked.family.as_deref()),
        ("state", state),
    ]);
    let mut list = ask::all(client, "/incidents", &given)?;
    if let Some(least) = asked.severity {
        list.items.retain(|it| is_at_least(it, least));
    }
    let none = match asked.state {
        State::Open => {
            "nothing is wrong that is known; `gpufleet doctor` says what is not looked at"
        }
        State::Resolved | State::All => "there is no such incident",
    };
    Ok(Answer {
        text: table(&list.items).text(none) + &list.note(),
        json: list.json(),
        is_good: true,
    })
}

fn is_at_least(incident: &Value, least: Severity) -> bool {
    let severity = incident["severity"].as_str().unwrap_or_default();
    Severity::from_str(severity, true).is_ok_and(|it| it >= least)
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
            place(&it["place"]),
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

/// Where it is, from the cluster down.
fn place(place: &Value) -> String {
    let of = |name: &str| place[name].as_str().map(words::plain);
    let rank = place["rank"].as_u64().map(|it| format!("rank {it}"));
    let parts = [of("cluster"), of("run"), rank, of("node"), of("gpu")];
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
    match (
        it["acknowledged_by"].as_str(),
        it["silenced_until"].as_str(),
    ) {
        (Some(who), _) => format!("{} works on it", words::plain(who)),
        (None, Some(_)) => format!("silent until {}", words::moment(&it["silenced_until"])),
        (None, None) => words::text(&it["state"]),
    }
}

fn one(client: &Client, id: &str, asked: &Asked) -> anyhow::Result<Answer> {
    let segment = tell::segment(id);
    let acknowledged = match asked.acknowledge {
        false => None,
        true => {
            let said = json!({"what": "acknowledge", "who": asked.who});
            Some(client.post(&format!("/incidents/{segment}/say"), &said)?)
        }
    };
    let json = match (&asked.note, acknowledged) {
        (Some(note), None) => tell::note(client, id, &asked.who, note)?,
        (Some(note), Some(_)) => tell::note(client, id, &asked.who, note)
            .context("it is acknowledged, but the note was not taken")?,
        (None, Some(acknowledged)) => acknowledged,
        (None, None) => client.get(&format!("/incidents/{segment}"))?,
    };
    Ok(Answer {
        text: about(&json),
        json,
        is_good: true,
    })
}

fn about(it: &Value) -> String {
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
    line("where", place(&it["place"]));
    line("since", words::moment(&it["since"]));
    line("state", state(it));
    line("cause", words::text(&it["cause"]).replace('_', " "));
    line("sure", words::text(&it["confidence"]));
    line("to do", words::text(&it["action"]));
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
            place(&evidence["place"]),
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
mod tests {
    use super::*;

    fn incident() -> Value {
        json!({"id": "0199c0de", "state": "open", "family": "gpu_fault", "severity": "error",
            "what": "GPU lost", "action": "Drain the node.", "cause": "gpu_fault", "confidence": null,
            "place": {"cluster": "prod", "node": "n-1", "gpu": "GPU-1", "run": null, "rank": null},
            "since": "2026-11-21T18:06:20Z", "lost_nano_usd": 36_000_000_000_i64,
            "losing_nano_usd_per_hour": null, "acknowledged_by": null, "silenced_until": null,
            "evidence": [{"at": "2026-11-21T18:06:20Z", "place": {"cluster": "prod"}, "what": "too hot",
                "readings": [{"name": "temperature", "value": 91.0, "usual": 60.0, "unit": "celsius"}]}],
            "log": [{"at": "2026-11-21T18:06:20Z", "who": null, "what": "opened", "detail": null},
                {"at": "2026-11-21T18:10:00Z", "who": "ada", "what": "note", "detail": "seen"}]})
    }

    #[test]
    fn a_row_says_where_and_what_it_costs_and_what_is_not_known_is_a_dash() {
        let text = table(&[incident()]).text("");
        assert!(text.contains("  SINCE (UTC)  "), "{text}");
        let row = text.lines().nth(1).unwrap_or_default();
        let cells = row.split("  ").map(str::trim).filter(|it| !it.is_empty());
        assert_eq!(
            cells.collect::<Vec<_>>(),
            [
                "error",
                "2026-11-21 18:06:20",
                "prod n-1 GPU-1",
                "GPU lost",
                words::NOTHING,
                words::NOTHING,
                "$36.00",
                "open",
                "0199c0de"
            ]
        );
    }

    #[test]
    fn how_sure_it_is_stands_in_the_table_and_with_one() {
        let mut sure = incident();
        sure["confidence"] = json!("medium");
        let table = table(&[sure.clone()]).text("");
        assert!(
            table.contains("SURE") && table.contains(" medium "),
            "{table}"
        );
        assert!(about(&sure).contains("  sure     medium\n"));
        assert!(!about(&incident()).contains("  sure"), "it has no grades");
    }

    #[test]
    fn one_is_told_with_its_evidence_and_what_people_said() {
        let text = about(&incident());
        for line in [
            "ERROR: GPU lost",
            "  to do    Drain the node.",
            "prod: too hot (temperature 91.0 celsius, usual 60)",
            "the server: opened",
            "ada: note: seen",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("costs/h"), "it has no price: {text}");
        let mut over = incident();
        over["resolved_at"] = json!("2026-11-21T19:00:00Z");
        assert_eq!(state(&over), "over 2026-11-21 19:00:00");
    }

    #[test]
    fn what_others_write_forges_no_line_of_the_log_and_commands_no_terminal() {
        let mut it = incident();
        let note = "seen\n2026-11-21 18:11:00  ada: acknowledged\u{1b}]0;owned\u{7}";
        it["log"][1]["detail"] = json!(note);
        it["log"][1]["who"] = json!("mallory\n\u{202e}");
        it["acknowledged_by"] = json!("mallory\nfor ada");
        it["place"]["run"] = json!("team/llama\n\u{1b}[2J/u1");
        it["evidence"][0]["readings"][0]["unit"] = json!("celsius\n");
        let text = about(&it);
        assert_eq!(
            text.lines().count(),
            about(&incident()).lines().count(),
            "{text}"
        );
        let last = text.lines().last().unwrap_or_default();
        let expected = "2026-11-21 18:10:00  mallory \u{fffd}: note: seen 2026-11-21 18:11:00  ada: acknowledged ]0;owned ";
        assert_eq!(last, expected);
        for shown in [text, table(&[it]).text("")] {
            let controls = |it: char| it.is_control() && it != '\n';
            assert!(!shown.contains(controls), "{shown:?}");
            assert!(shown.contains("mallory for ada works on it"), "{shown}");
            assert!(shown.contains("team/llama  [2J/u1"), "{shown}");
        }
    }

    #[test]
    fn severity_is_a_least_one() {
        for (severity, least, expected) in [
            ("error", Severity::Warning, true),
            ("warning", Severity::Warning, true),
            ("info", Severity::Warning, false),
            ("strange", Severity::Info, false),
        ] {
            let it = json!({"severity": severity});
            assert_eq!(is_at_least(&it, least), expected, "{severity}");
        }
    }
}
