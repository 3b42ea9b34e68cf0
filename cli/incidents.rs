//! `gpufleet incidents`: what is wrong, why, since when, what it costs; one of them with all that is known;
//! saying that somebody works on it or no more, and writing a note to it.

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use serde_json::Value;

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
    Ok(Answer {
        text: table(&list.items).text(asked.none()) + &list.note(),
        json: list.json(),
        is_good: true,
    })
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

    /// What is said where there is none.
    fn none(&self) -> &'static str {
        match (self.state(), self.given().len()) {
            (State::Open, 1) => {
                "nothing is wrong that is known; `gpufleet doctor` says what is not looked at"
            }
            _ => "there is no such incident",
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
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    const SERVER: &str = "http://fleet:8080";

    /// A command line of this command alone.
    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        asked: Asked,
    }

    fn typed(words: &[&str]) -> Asked {
        let words = std::iter::once("incidents").chain(words.iter().copied());
        Typed::try_parse_from(words).expect("it can be typed").asked
    }

    fn incident() -> Value {
        json!({"id": "0199c0de", "state": "open", "family": "gpu_fault", "severity": "error",
            "what": "GPU lost", "action": "Drain the node.", "cause": "gpu_fault", "confidence": null,
            "place": {"cluster": "prod", "node": "n-1", "gpu": "GPU-1", "run": null, "rank": null},
            "origin": "live", "owner": "nlp", "runbook": "/runbooks/gpu-lost",
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
        assert!(about(&sure, SERVER).contains("  sure     medium\n"));
        assert!(
            !about(&incident(), SERVER).contains("  sure"),
            "it has no grades"
        );
    }

    #[test]
    fn one_is_told_with_its_evidence_and_what_people_said() {
        let text = about(&incident(), SERVER);
        for line in [
            "ERROR: GPU lost",
            "  to do    Drain the node.",
            "  runbook  http://fleet:8080/runbooks/gpu-lost",
            "  owner    nlp",
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
        let text = about(&it, SERVER);
        assert_eq!(
            text.lines().count(),
            about(&incident(), SERVER).lines().count(),
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
    fn who_works_on_it_hides_no_silence() {
        for (by, until, expected) in [
            (json!(null), json!(null), "open"),
            (json!("ada"), json!(null), "ada works on it"),
            (
                json!(null),
                json!("2026-11-22T03:00:00Z"),
                "silent until 2026-11-22 03:00:00",
            ),
            (
                json!("ada"),
                json!("2026-11-22T03:00:00Z"),
                "ada works on it, silent until 2026-11-22 03:00:00",
            ),
        ] {
            let mut it = incident();
            (it["acknowledged_by"], it["silenced_until"]) = (by, until);
            assert_eq!(state(&it), expected);
        }
    }

    #[test]
    fn one_of_a_demo_is_not_told_as_one_of_a_live_cluster() {
        let mut simulated = incident();
        simulated["place"]["cluster"] = json!("demo");
        simulated["origin"] = json!("simulated");
        let told = "demo (simulated) n-1 GPU-1";
        assert!(table(&[simulated.clone()]).text("").contains(told));
        assert!(about(&simulated, SERVER).contains(&format!("where    {told}\n")));
        let live = about(&incident(), SERVER);
        assert!(live.contains("where    prod n-1 GPU-1\n"), "{live}");
    }

    #[test]
    fn the_server_is_asked_for_what_was_typed_and_no_more() {
        let time = "2026-11-21T07:00:00Z";
        for (words, expected) in [
            (vec![], vec![("state", "open")]),
            (vec!["--state", "all"], vec![]),
            (
                vec!["--severity", "warning", "--node", "n-1", "--gpu", "GPU-1"],
                vec![
                    ("state", "open"),
                    ("severity", "warning"),
                    ("node", "n-1"),
                    ("gpu", "GPU-1"),
                ],
            ),
            (
                vec!["--run", "llama", "--from", time],
                vec![("run", "llama"), ("from", time)],
            ),
            (
                vec!["--to", time, "--state", "open"],
                vec![("state", "open"), ("to", time)],
            ),
        ] {
            assert_eq!(typed(&words).given(), expected, "{words:?}");
        }
    }

    #[test]
    fn that_nothing_is_wrong_is_said_only_where_everything_was_asked_for() {
        assert!(typed(&[]).none().starts_with("nothing is wrong"));
        for words in [
            ["--node", "n-1"],
            ["--cluster", "prod"],
            ["--severity", "error"],
            ["--state", "all"],
            ["--state", "resolved"],
        ] {
            let said = typed(&words).none();
            assert_eq!(said, "there is no such incident", "{words:?}");
        }
    }
}
