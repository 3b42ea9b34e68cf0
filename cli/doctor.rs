//! `gpufleet doctor`: what keeps gpufleet itself from telling the truth, the worst first, with the line
//! that mends it, and what could not be checked.

use clap::Args;
use serde_json::Value;

use crate::Answer;
use crate::client::Client;
use crate::words;

/// How much is said.
#[derive(Debug, Args)]
pub(crate) struct Asked {
    /// Every check, also those that are fine.
    #[arg(long)]
    all: bool,
}

/// The answer; bad news when something is blind or loses data, or nothing could be checked.
pub(crate) fn answer(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    let json = client.get("/doctor")?;
    let is_bad = |it: &Value| it["severity"] == "error";
    let was_made = items(&json["checks"]).any(|it| it["outcome"] != "not_checked");
    let is_good = was_made && !items(&json["findings"]).any(is_bad);
    Ok(Answer {
        text: text(&json, asked.all),
        json,
        is_good,
    })
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(doctor: &Value, all: bool) -> String {
    let mut text = String::new();
    for it in items(&doctor["findings"]) {
        text.push_str(&finding(it));
    }
    let more = doctor["more_findings"].as_u64().unwrap_or(0);
    if more > 0 {
        text.push_str(&format!("… and {more} findings more\n\n"));
    }
    let made = |it: &&Value| it["outcome"] != "not_checked";
    let checks = || items(&doctor["checks"]);
    let fine = checks().filter(|it| it["outcome"] == "fine").count();
    let count = checks().filter(made).count();
    let at = words::moment(&doctor["at"]);
    text.push_str(&match (fine == count, count) {
        (_, 0) => format!("nothing could be checked at {at}\n"),
        (true, _) => format!("everything that is checked is fine: {count} checks at {at}\n"),
        (false, _) => format!("{fine} of {count} checks are fine at {at}\n"),
    });
    for it in checks().filter(|it| all || it["outcome"] == "not_checked") {
        let looks_at = words::text(&it["looks_at"]);
        let outcome = match it["outcome"].as_str() {
            Some("not_checked") => format!("not checked: {}", words::text(&it["why_not"])),
            Some("found") => format!("{} findings", words::text(&it["findings"])),
            _ => format!("fine ({})", words::text(&it["scope"])),
        };
        text.push_str(&format!("  {looks_at}: {outcome}\n"));
    }
    text
}

fn finding(it: &Value) -> String {
    let mut text = format!(
        "{}: {}\n",
        words::text(&it["severity"]).to_uppercase(),
        words::text(&it["what"])
    );
    let names: Vec<String> = items(&it["places"])
        .map(|place| words::text(&place["name"]))
        .collect();
    if !names.is_empty() {
        let more = match it["more_places"].as_u64() {
            None | Some(0) => String::new(),
            Some(more) => format!(" and {more} more"),
        };
        text.push_str(&format!("  where:   {}{more}\n", names.join(", ")));
    }
    if it["since"].is_string() {
        text.push_str(&format!("  since:   {}\n", words::moment(&it["since"])));
    }
    text.push_str(&format!("  missing: {}\n", words::text(&it["missing"])));
    text.push_str(&format!("  to do:   {}\n", words::text(&it["fix"])));
    for line in it["line"].as_str().into_iter().flat_map(str::lines) {
        text.push_str(&format!("    {}\n", words::plain(line)));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_finding_has_its_lines_and_what_was_not_checked_is_not_fine() {
        let check = |outcome: &str, why: Value| {
            json!({"id": "x", "looks_at": "it is so", "outcome": outcome, "scope": "2 nodes",
                "findings": 1, "why_not": why})
        };
        let doctor = json!({"at": "2026-11-21T18:06:20Z", "more_findings": 3,
            "findings": [{"severity": "error", "what": "2 nodes are silent", "since": "2026-11-21T17:00:00Z",
                "places": [{"name": "n-1"}, {"name": "n-2"}], "more_places": 4, "missing": "What they do",
                "fix": "Look at them.", "line": "first\nsecond"}],
            "checks": [check("found", Value::Null), check("fine", Value::Null),
                check("not_checked", json!("nobody is there"))]});
        let said = text(&doctor, false);
        let expected = "ERROR: 2 nodes are silent\n  where:   n-1, n-2 and 4 more\n  \
             since:   2026-11-21 17:00:00\n  missing: What they do\n  to do:   Look at them.\n    \
             first\n    second\n\n… and 3 findings more\n\n1 of 2 checks are fine at 2026-11-21 18:06:20\n  \
             it is so: not checked: nobody is there\n";
        assert_eq!(said, expected);
        assert!(text(&doctor, true).contains("it is so: fine (2 nodes)"));
        let nothing = json!({"at": "2026-11-21T18:06:20Z",
            "checks": [check("not_checked", json!("nobody is there"))]});
        assert!(text(&nothing, false).contains("nothing could be checked"));
    }
}
