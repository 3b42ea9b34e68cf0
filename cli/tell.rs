//! `gpufleet silence`, `gpufleet unsilence`, `gpufleet routes explain`, `gpufleet channels` and `gpufleet notify test`: who is told
//! of incidents, who is not for a while, and whether a way to people works.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::Answer;
use crate::ask;
use crate::client::{Client, Refusal};
use crate::table::Table;
use crate::words;

/// Tells nobody of an incident, or of all that matches, for a while.
#[derive(Debug, Args)]
pub(crate) struct Silence {
    /// The incident's id, as messages and pages have it; or patterns that all have to match, of
    /// cluster, node, gpu, run, kind and team: node=gke-a3-* kind=heat.
    #[arg(required = true)]
    what: Vec<String>,
    /// Why, for whoever reads it.
    #[arg(long, default_value = "")]
    note: String,
    /// For how long: 30m, 2h, 7d at most.
    #[arg(long = "for", value_parser = seconds, default_value = "2h")]
    lasts: i64,
    /// Who says so.
    #[arg(long, env = "USER", default_value = "somebody at a prompt")]
    who: String,
}

/// Ends what somebody has silenced alone: people are told of it again.
#[derive(Debug, Args)]
pub(crate) struct Unsilence {
    /// The incident's id, as messages, pages and `gpufleet silences` have it.
    incident: String,
    /// Who says so.
    #[arg(long, env = "USER", default_value = "somebody at a prompt")]
    who: String,
}

/// Who is told of what.
#[derive(Debug, Subcommand)]
pub(crate) enum Routes {
    /// Each route with why it does or does not match an incident, and what was said to whom.
    Explain(One),
}

/// About one way to people.
#[derive(Debug, Subcommand)]
pub(crate) enum Notify {
    /// Sends a message that says that it is a test, and says what became of it. Needs a token of role operate.
    Test(Tested),
}

/// A channel that is tried.
#[derive(Debug, Args)]
pub(crate) struct Tested {
    /// Its name in notify.channels.
    channel: String,
    /// Who says so.
    #[arg(long, env = "USER", default_value = "somebody at a prompt")]
    who: String,
}

/// One incident.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The incident's id.
    incident: String,
}

/// `30m`, `2h`, `7d` or `90s` as seconds.
pub(crate) fn seconds(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text} is no time: 30m, 2h and 7d are");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let number = text.strip_suffix(unit).unwrap_or_default();
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let each = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(each)
        .filter(|it| *it > 0)
        .ok_or_else(wrong)
}

/// An id as a segment of a path: what is none is refused by the server, by name.
pub(crate) fn segment(id: &str) -> String {
    id.chars()
        .filter(|it| it.is_ascii_alphanumeric() || *it == '-')
        .collect()
}

/// The silences, by pattern and of one incident.
#[derive(Debug, Args)]
pub(crate) struct Silences {
    /// Ends the one by pattern with this id; `gpufleet unsilence` ends that of one incident.
    #[arg(long)]
    end: Option<String>,
    /// Who says so.
    #[arg(long, env = "USER", default_value = "somebody at a prompt")]
    who: String,
}

/// What patterns say, `node=gke-a3-*`, as the API wants them.
fn patterns(words: &[String]) -> anyhow::Result<Value> {
    let mut found = serde_json::Map::new();
    for word in words {
        let parts = word.split_once('=');
        let (name, pattern) = parts.ok_or_else(|| {
            anyhow::anyhow!("{word}: with more than one word each is a pattern, like node=gke-a3-*")
        })?;
        if found.insert(name.to_owned(), json!(pattern)).is_some() {
            anyhow::bail!("{name} stands twice");
        }
    }
    Ok(Value::Object(found))
}

/// `gpufleet silence`.
pub(crate) fn silence(client: &Client, silence: &Silence) -> anyhow::Result<Answer> {
    match silence.what.as_slice() {
        [incident] if !incident.contains('=') => one(client, incident, silence),
        words => matching(client, &patterns(words)?, silence),
    }
}

/// Tells nobody of what matches.
fn matching(client: &Client, matches: &Value, silence: &Silence) -> anyhow::Result<Answer> {
    let said = json!({
        "matches": matches, "who": silence.who, "note": silence.note, "for_s": silence.lasts,
    });
    let json = client.post("/silences", &said)?;
    let text = format!(
        "silent until {}, of {} open incidents now; end it with: gpufleet silences --end {}\n",
        words::moment(&json["until"]),
        words::text(&json["incidents"]),
        words::text(&json["id"])
    );
    Ok(Answer {
        text,
        json,
        is_good: true,
    })
}

/// `gpufleet silences`.
pub(crate) fn silences(client: &Client, asked: &Silences) -> anyhow::Result<Answer> {
    if let Some(id) = &asked.end {
        let path = format!("/silences/{}/end", segment(id));
        let json = client.post(&path, &json!({"who": asked.who}))?;
        let text = format!("{} may be told again\n", pattern(&json["matches"]));
        return Ok(Answer {
            text,
            json,
            is_good: true,
        });
    }
    let json = client.get("/silences")?;
    Ok(Answer {
        text: silent(list(&json)).text("Nothing is silent."),
        json,
        is_good: true,
    })
}

fn silent(silences: &[Value]) -> Table {
    let mut table = Table::new(&["OF", "UNTIL (UTC)", ">INCIDENTS", "WHO", "WHY", "ID"]);
    for it in silences {
        let of = match it["incident"].is_string() {
            true => format!("one incident: {}", words::text(&it["what"])),
            false => pattern(&it["matches"]),
        };
        table.row(vec![
            of,
            words::moment(&it["until"]),
            words::text(&it["incidents"]),
            words::text(&it["who"]),
            words::text(&it["note"]),
            words::text(&it["id"]),
        ]);
    }
    table
}

/// A pattern as it is typed.
fn pattern(matches: &Value) -> String {
    let parts = matches.as_object().into_iter().flatten();
    let parts = parts.map(|(name, it)| format!("{name}={}", words::text(it)));
    parts.collect::<Vec<_>>().join(" ")
}

/// Tells nobody of one incident.
fn one(client: &Client, incident: &str, silence: &Silence) -> anyhow::Result<Answer> {
    let path = format!("/incidents/{}/say", segment(incident));
    let said = json!({"what": "silence", "who": silence.who, "for_s": silence.lasts});
    let mut json = client.post(&path, &said)?;
    if !silence.note.trim().is_empty() {
        let noted = note(client, incident, &silence.who, &silence.note);
        json = noted.context("the incident is silent, but its note was not taken")?;
    }
    let text = format!(
        "{} is silent until {}\n",
        words::text(&json["what"]),
        words::moment(&json["silenced_until"])
    );
    Ok(Answer {
        text,
        json,
        is_good: true,
    })
}

/// `gpufleet unsilence`.
pub(crate) fn unsilence(client: &Client, asked: &Unsilence) -> anyhow::Result<Answer> {
    let json = say(client, &asked.incident, "unsilence", &asked.who)?;
    Ok(Answer {
        text: is_loud(&json),
        json,
        is_good: true,
    })
}

/// How an incident stands whose own silence has ended.
fn is_loud(incident: &Value) -> String {
    let (what, until) = (words::text(&incident["what"]), &incident["silenced_until"]);
    match until.is_string() {
        true => format!(
            "{what} is silent no more by itself, but until {} by a pattern: gpufleet silences lists it\n",
            words::moment(until)
        ),
        false => format!("{what} may be told again\n"),
    }
}

/// Says one word to an incident, and gives it as it is then.
pub(crate) fn say(
    client: &Client,
    incident: &str,
    what: &str,
    who: &str,
) -> Result<Value, Refusal> {
    let path = format!("/incidents/{}/say", segment(incident));
    client.post(&path, &json!({"what": what, "who": who}))
}

/// Writes a note to an incident, and gives it as it is then.
pub(crate) fn note(
    client: &Client,
    incident: &str,
    who: &str,
    note: &str,
) -> Result<Value, Refusal> {
    let path = format!("/incidents/{}/say", segment(incident));
    client.post(&path, &json!({"what": "note", "who": who, "note": note}))
}

/// `gpufleet routes explain`.
pub(crate) fn explain(client: &Client, one: &One) -> anyhow::Result<Answer> {
    let json = client.get(&format!("/incidents/{}/told", segment(&one.incident)))?;
    let mut routes = Table::new(&[">ROUTE", "TELLS", "CHANNELS", "WHY NOT"]);
    for route in list(&json["routes"]) {
        let number = match route["number"].as_i64() {
            Some(0) | None => "built in".to_owned(),
            Some(number) => number.to_string(),
        };
        let channels = list(&route["channels"]).iter().map(words::text);
        let channels: Vec<String> = channels.collect();
        routes.row(vec![
            number,
            words::text(&route["matches"]),
            channels.join(", "),
            words::text(&route["why_not"]),
        ]);
    }
    let doubts: String = list(&json["routes"])
        .iter()
        .flat_map(|it| list(&it["doubts"]))
        .map(|it| format!("Warning: {}.\n", words::text(it)))
        .collect();
    let mut told = Table::new(&[
        "CHANNEL",
        "STATE",
        "LAST SAID",
        "AT (UTC)",
        ">ATTEMPTS",
        "WHY",
    ]);
    for delivery in list(&json["deliveries"]) {
        told.row(vec![
            words::text(&delivery["channel"]),
            words::text(&delivery["state"]),
            words::text(&delivery["last_said"]),
            words::moment(&delivery["last_at"]),
            words::text(&delivery["attempts"]),
            words::text(&delivery["error"]),
        ]);
    }
    let silent = match json["silenced_until"].as_str() {
        Some(_) => format!(
            "Silent until {}.\n\n",
            words::moment(&json["silenced_until"])
        ),
        None => String::new(),
    };
    let text = format!(
        "Owner: {}.\n\n{silent}{}{doubts}\n{}",
        words::text(&json["owner"]),
        routes.text("No channel is configured (notify.channels)."),
        told.text("Nothing was said of it to anybody.")
    );
    Ok(Answer {
        text,
        json,
        is_good: true,
    })
}

/// `gpufleet notify test`.
pub(crate) fn test(client: &Client, tested: &Tested) -> anyhow::Result<Answer> {
    let path = format!("/channels/{}/test", ask::encoded(&tested.channel));
    let json = client.post(&path, &json!({"who": tested.who}))?;
    let is_there = |it: &Value| it["delivered"] == true;
    let lines = list(&json).iter().map(|it| {
        let said = match is_there(it) {
            true => "it has the test".to_owned(),
            false => format!("it has not: {}", words::text(&it["why"])),
        };
        format!("{}: {said}\n", words::text(&it["receiver"]))
    });
    Ok(Answer {
        text: lines.collect(),
        is_good: list(&json).iter().all(is_there),
        json,
    })
}

/// `gpufleet channels`.
pub(crate) fn channels(client: &Client) -> anyhow::Result<Answer> {
    let json = client.get("/channels")?;
    let mut table = Table::new(&[
        "CHANNEL",
        "KIND",
        "STATE",
        ">DELIVERED",
        ">WAITING",
        ">REFUSED",
        "LAST SUCCESS (UTC)",
        "FAILING SINCE (UTC)",
        "WHY",
    ]);
    let mut is_good = true;
    for channel in list(&json) {
        let refuses = channel["refused_now"].as_u64() > Some(0);
        let fails = !channel["failing_since"].is_null() || refuses;
        is_good &= !fails;
        let why = if fails {
            words::text(&channel["why"])
        } else {
            words::NOTHING.to_owned()
        };
        table.row(vec![
            words::text(&channel["name"]),
            words::text(&channel["kind"]),
            words::text(&channel["state"]),
            words::text(&channel["delivered"]),
            words::text(&channel["waiting"]),
            words::text(&channel["refused_now"]),
            words::moment(&channel["succeeded_at"]),
            words::moment(&channel["failing_since"]),
            why,
        ]);
    }
    let text = table.text("No channel is configured (notify.channels).");
    Ok(Answer {
        text,
        json,
        is_good,
    })
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_with_its_unit_and_nothing_else_is() {
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("2h"), Ok(7_200));
        assert_eq!(seconds("7d"), Ok(604_800));
        for wrong in [
            "",
            "h",
            "2",
            "-2h",
            "0h",
            "2 h",
            "2w",
            "9223372036854775807d",
            "2é",
        ] {
            assert!(
                seconds(wrong).is_err_and(|it| it.contains("30m")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn silences_are_listed_by_pattern_and_of_one_incident_each_with_what_ends_it() {
        let silences = [
            json!({"id": "01a", "matches": {"node": "gke-*"}, "incident": null, "what": null,
                "until": "2026-11-22T03:00:00Z", "who": "mira", "note": "cooling", "incidents": 2}),
            json!({"id": "01b", "matches": {}, "incident": "01b", "what": "GPU lost\n",
                "until": "2026-11-22T04:00:00Z", "who": "", "note": "", "incidents": 1}),
        ];
        let text = silent(&silences).text("");
        let cells = |line: &str| -> Vec<String> {
            let cells = line.split("  ").map(str::trim);
            cells
                .filter(|it| !it.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let rows: Vec<Vec<String>> = text.lines().skip(1).map(cells).collect();
        let pattern = [
            "node=gke-*",
            "2026-11-22 03:00:00",
            "2",
            "mira",
            "cooling",
            "01a",
        ];
        let alone = [
            "one incident: GPU lost",
            "2026-11-22 04:00:00",
            "1",
            words::NOTHING,
            words::NOTHING,
            "01b",
        ];
        assert_eq!(rows, [pattern, alone]);
    }

    #[test]
    fn the_end_of_a_silence_says_whether_a_pattern_holds_on() {
        let mut it = json!({"what": "GPU lost", "silenced_until": null});
        assert_eq!(is_loud(&it), "GPU lost may be told again\n");
        it["silenced_until"] = json!("2026-11-22T03:00:00Z");
        let held = is_loud(&it);
        assert!(
            held.contains("until 2026-11-22 03:00:00 by a pattern"),
            "{held}"
        );
    }
}
