//! What is listed, told of one, and said where nothing is wrong or that is not known.

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
    assert!(typed(&[]).none(true).starts_with("nothing is wrong"));
    for words in [
        ["--node", "n-1"],
        ["--cluster", "prod"],
        ["--severity", "error"],
        ["--state", "all"],
        ["--state", "resolved"],
    ] {
        let said = typed(&words).none(true);
        assert_eq!(said, "there is no such incident", "{words:?}");
    }
}

#[test]
fn where_the_detectors_stand_no_list_says_that_nothing_is_wrong_and_it_is_bad_news() {
    let of = |items: &[Value], since: Option<Value>, words: &[&str]| {
        let list = List {
            items: items.to_vec(),
            is_whole: true,
            stand_since: since,
        };
        listed(&list, &typed(words))
    };
    let since = Some(json!("2026-11-21T18:06:20.000Z"));
    let first = "the detectors have judged nothing since 2026-11-21 18:06:20 UTC: what broke since";
    for (items, words, says) in [
        (
            vec![],
            vec![],
            "\nwhether something is wrong is not known\n",
        ),
        (
            vec![],
            vec!["--node", "n-1"],
            "\nthere is no such incident that is known\n",
        ),
        (vec![incident()], vec![], "prod n-1 GPU-1"),
    ] {
        let said = of(&items, since.clone(), &words);
        assert!(said.text.starts_with(first), "{}", said.text);
        assert!(said.text.contains(says), "{}", said.text);
        assert!(!said.is_good, "{}", said.text);
        assert_eq!(said.json["detectors_stand_since"], since.clone().unwrap());
    }
    // Null is what a server says whose detectors judge.
    for since in [Some(Value::Null), None] {
        let said = of(&[], since.clone(), &[]);
        assert!(said.is_good && said.text.starts_with("nothing is wrong"));
        assert_eq!(said.json.get("detectors_stand_since"), since.as_ref());
    }
}
