//! `gpufleet compare A B`: what differs between two runs, or several of each, and which is faster. With
//! `--fail-if-slower` it is a check for a pipeline.

use clap::Args;
use serde_json::Value;

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::ladder::gain;
use crate::named;
use crate::table::Table;
use crate::words;

/// Which runs.
#[derive(Debug, Args)]
pub(crate) struct Runs {
    /// The run to compare with: `cluster/namespace/name/uid/attempt`, or a job's name or id for its
    /// newest. Several with commas between them: three of each tell what is more than runs of one way differ.
    a: String,
    /// The run that is judged, or several.
    b: String,
    /// Ends with 1 when B takes longer for the same work than A by more than this share, `2%` or `0.02`;
    /// also when that cannot be said, and where several runs of each do not tell a figure above it apart.
    #[arg(long, value_parser = share)]
    fail_if_slower: Option<f64>,
}

/// The answer.
pub(crate) fn answer(client: &Client, runs: &Runs) -> anyhow::Result<Answer> {
    // The runs of a side as the API names them.
    let side = |asked: &str| -> anyhow::Result<String> {
        let runs = asked.split(',').map(|it| named::run(client, it));
        Ok(runs.collect::<anyhow::Result<Vec<_>>>()?.join(","))
    };
    let (a, b) = (side(&runs.a)?, side(&runs.b)?);
    let query = [("a", a.as_str()), ("b", b.as_str())];
    let json = client.get(&ask::with_query("/runs/compare", &query))?;
    let verdict = runs.fail_if_slower.map(|limit| verdict(&json, limit));
    let mut text = text(&json);
    if let Some((_, words)) = &verdict {
        text.push_str(words);
    }
    Ok(Answer {
        text,
        json,
        is_good: verdict.is_none_or(|(is_good, _)| is_good),
    })
}

fn text(json: &Value) -> String {
    let mut text = String::new();
    for (name, side) in [("A", "a"), ("B", "b")] {
        let run = &json[side]["run"];
        let [cluster, job, attempt] = ["cluster", "job", "attempt"].map(|it| words::text(&run[it]));
        let origin = words::origin(&run["origin"]);
        let sentence = words::text(&run["sentence"]);
        text.push_str(&format!(
            "{name}  {job}, attempt {attempt}, in {cluster}{origin}\n   {sentence}\n"
        ));
        let repeats = json["repeats"][side]["runs"].as_array();
        let count = repeats.map_or(1, Vec::len);
        if count > 1 {
            text.push_str(&format!("   the middle one of {count} runs\n"));
        }
    }
    text.push('\n');
    let mut table = Table::new(&["MADE OF", "A", "B"]);
    for line in json["differences"].as_array().into_iter().flatten() {
        let [key, a, b] = ["key", "a", "b"].map(|it| words::text(&line[it]));
        table.row(vec![key, a, b]);
    }
    let none = json["differences_missing"].as_str().map(words::plain);
    let none = none.unwrap_or("both are made of the same".to_owned());
    text.push_str(&table.text(&none));
    text.push('\n');
    let mut table = Table::new(&["", ">A", ">B"]);
    let [a, b] = ["a", "b"].map(|it| words::pace(&json[it]["step_seconds"]));
    table.row(vec!["step".to_owned(), a, b]);
    for (what, field) in [
        ("steps compared", "steps"),
        ("tokens a step", "tokens_per_step"),
    ] {
        let [a, b] = ["a", "b"].map(|it| words::measured(&json[it][field], 0, ""));
        table.row(vec![what.to_owned(), a, b]);
    }
    let cost = |it: &str| words::measured(&json[it]["usd_per_million_tokens"], 4, "");
    let [a, b] = ["a", "b"].map(cost);
    let currency = words::plain(words::currency(json));
    table.row(vec![format!("a million tokens, {currency}"), a, b]);
    let [a, b] = ["a", "b"].map(|it| words::measured(&json["loss"][it], 4, ""));
    table.row(vec!["loss at equal tokens".to_owned(), a, b]);
    text.push_str(&table.text(""));
    for missing in ["speed_up_missing", "loss_missing"] {
        if let Some(why) = json[missing].as_str() {
            text.push_str(&format!(
                "{}: {}\n",
                missing.replace('_', " ").replace(" missing", ""),
                words::plain(why)
            ));
        }
    }
    if words::number(&json["speed_up"]).is_some() {
        let by = words::text(&json["speed_up_by"]);
        text.push_str(&format!(
            "B does the same work {} as fast as A, by {by}\n",
            gain(json)
        ));
    }
    if json["repeats"].is_object() {
        text.push_str(&repeated(&json["repeats"]));
    }
    text
}

/// What several runs of each say, below how long a step takes each of them.
fn repeated(repeats: &Value) -> String {
    let mut table = Table::new(&["SIDE", "RUN", ">STEP", ">STEPS"]);
    let mut differ = String::new();
    for (name, side) in [("A", &repeats["a"]), ("B", &repeats["b"])] {
        for it in side["runs"].as_array().into_iter().flatten() {
            let [job, attempt] = ["job", "attempt"].map(|part| words::text(&it["run"][part]));
            let (pace, steps) = (words::pace(&it["step_seconds"]), words::text(&it["steps"]));
            table.row(vec![
                name.to_owned(),
                format!("{job} {attempt}{}", words::origin(&it["run"]["origin"])),
                pace,
                steps,
            ]);
        }
        let keys: Vec<String> = side["differ_in"]
            .as_array()
            .into_iter()
            .flatten()
            .map(words::text)
            .collect();
        if !keys.is_empty() {
            let keys = keys.join(", ");
            differ.push_str(&format!(
                "runs of {name} differ from each other in {keys}\n"
            ));
        }
    }
    let sentence = words::text(&repeats["sentence"]);
    format!("\n{}{differ}{sentence}\n", table.text(""))
}

/// Whether B is fast enough, and that in words. What is not known is not fast enough.
fn verdict(json: &Value, limit: f64) -> (bool, String) {
    let speed_up = words::number(&json["speed_up"]).filter(|it| *it > 0.0);
    let Some(speed_up) = speed_up else {
        return (
            false,
            "FAILED: how much slower B is cannot be said\n".to_owned(),
        );
    };
    let slower = 1.0 / speed_up - 1.0;
    let is_alike = json["repeats"]["verdict"] == "alike";
    let is_good = slower <= limit;
    let word = if is_good { "passed" } else { "FAILED" };
    let about = match words::number(&json["speed_up_uncertainty"]) {
        _ if is_alike => Some(" (not told apart from A: more runs would tell)".to_owned()),
        Some(it) => Some(format!(" (± {:.1} within the runs)", it / speed_up * 100.0)),
        None => None,
    };
    let words = format!(
        "{word}: B takes {:+.1} %{} for the same work; {:.1} % are allowed\n",
        slower * 100.0,
        about.unwrap_or_default(),
        limit * 100.0
    );
    (is_good, words)
}

/// `2%` or `0.02`.
fn share(text: &str) -> Result<f64, String> {
    let (number, by) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.trim().parse::<f64>().ok().map(|it| it / by);
    let share = share.filter(|it| (0.0..=10.0).contains(it));
    share.ok_or_else(|| format!("`{text}` is no share: 2% and 0.02 are"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_ratio() {
        for (text, expected) in [
            ("2%", Some(0.02)),
            ("0.02", Some(0.02)),
            ("0", Some(0.0)),
            ("-1%", None),
            ("two", None),
            ("NaN", None),
        ] {
            assert_eq!(share(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_run_that_is_slower_than_allowed_fails_and_so_does_one_of_which_that_cannot_be_said() {
        let of = |speed_up: Value| verdict(&json!({ "speed_up": speed_up }), 0.02).0;
        assert!(of(json!(1.0 / 1.019)));
        assert!(of(json!(1.4)));
        assert!(!of(json!(1.0 / 1.021)));
        assert!(!of(json!(0.0)));
        assert!(!of(Value::Null));
    }

    #[test]
    fn what_is_slower_than_allowed_fails_also_where_several_runs_do_not_tell_it_apart() {
        let of = |verdict: &str| {
            let repeats = json!({ "verdict": verdict });
            super::verdict(&json!({ "speed_up": 0.95, "repeats": repeats }), 0.02)
        };
        assert!(!of("slower").0);
        assert!(!of("too_few_runs").0);
        let (is_good, words) = of("alike");
        assert!(
            !is_good && words.contains("+5.3 % (not told apart from A"),
            "{words}"
        );
    }

    #[test]
    fn several_runs_are_listed_with_what_they_say_and_what_they_differ_in() {
        let run = |attempt: u32| {
            let run = json!({"job": "team/llama/u1", "attempt": attempt});
            json!({"run": run, "step_seconds": 0.5, "steps": 200})
        };
        let side = |differ_in: &[&str]| json!({"runs": [run(0), run(2)], "differ_in": differ_in});
        let sentence = "B is slower: by more than 2.3 %";
        let repeats = json!({"sentence": sentence, "a": side(&[]), "b": side(&["nccl", "torch"])});
        let text = repeated(&repeats);
        assert_eq!(text.matches("team/llama/u1 2").count(), 2, "{text}");
        assert!(
            text.contains("0.500 s") && text.ends_with(&format!("{sentence}\n")),
            "{text}"
        );
        let differ = "runs of B differ from each other in nccl, torch\n";
        assert!(text.contains(differ), "{text}");
        assert!(!text.contains("runs of A differ from each other"), "{text}");
    }

    #[test]
    fn a_run_that_is_not_live_says_what_it_is() {
        let run = |origin: &str| {
            let run = json!({"job": "t/a/1", "attempt": 0, "cluster": "c", "origin": origin});
            json!({"run": run})
        };
        let several = json!({"a": {"runs": [run("live")]}, "b": {"runs": [run("recorded")]}});
        let text = text(&json!({"a": run("live"), "b": run("simulated"), "repeats": several}));
        for said in [
            "attempt 0, in c\n",
            "in c (simulated)\n",
            "t/a/1 0 (recorded)",
        ] {
            assert_eq!(text.matches(said).count(), 1, "{said}: {text}");
        }
    }
}
