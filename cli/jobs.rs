//! `gpufleet jobs` and `gpufleet job ID`: training jobs, their attempts and ranks.

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::named;
use crate::table::Table;
use crate::words;

mod advice;

/// The metric with a rank's newest step.
const LAST_STEP: &str = "gpufleet_training_last_step";

/// Attempts before the one that is shown of which it is said how they ended.
const EARLIER: usize = 3;

/// Which jobs.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Only of this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// Only those in this state.
    #[arg(long)]
    state: Option<State>,
    /// What comes first; jobs of which that is not known come last, and so do those that are over for longer than a day.
    #[arg(long)]
    sort: Option<Sort>,
}

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// The last started.
    Started,
    /// The one whose attempt has cost most.
    Cost,
    /// The lowest MFU.
    Mfu,
    /// The one on the most GPUs.
    Gpus,
}

impl Sort {
    const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Cost => "cost",
            Self::Mfu => "mfu",
            Self::Gpus => "gpus",
        }
    }
}

impl Filter {
    /// As the API is asked.
    fn given(&self) -> Vec<(&str, &str)> {
        ask::given([
            ("cluster", self.cluster.as_deref()),
            ("state", self.state.map(State::name)),
            ("sort", self.sort.map(Sort::name)),
        ])
    }
}

/// How a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Running,
    /// Nothing was heard of it for a while, and nobody said that it ended.
    Silent,
    Ended,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Silent => "silent",
            Self::Ended => "ended",
        }
    }
}

/// Which job.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet job llama-70b-pretrain               its newest attempt, and how those before it ended
  gpufleet job llama-70b-pretrain --attempt 2   the same of an earlier one")]
pub(crate) struct Job {
    /// Its id as `gpufleet jobs` shows it, `namespace/name`, or its name: of several that were submitted under one name
    /// the last.
    id: String,
    /// Of this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// This attempt of it, counted from 0; without it the newest.
    #[arg(long)]
    attempt: Option<u32>,
}

/// All of them.
pub(crate) fn list(client: &Client, filter: &Filter) -> anyhow::Result<Answer> {
    let list = ask::all(client, "/jobs", &filter.given())?;
    let none = match filter.state {
        Some(_) => "no job is in this state",
        None => "no training job has told of itself; docs/hooks.md says how one does",
    };
    Ok(Answer {
        text: table(&list.items).text(none) + &list.note(),
        json: list.json(),
        is_good: true,
    })
}

/// One of them, with the ranks of an attempt: the newest, or the one that is asked for.
pub(crate) fn one(client: &Client, job: &Job) -> anyhow::Result<Answer> {
    let meant = named::job(client, &job.id, job.cluster.as_deref())?;
    let (cluster, id) = (&meant.cluster, &meant.id);
    let known = client.get(&path("jobs", cluster, id))?;
    let newest = known["attempts"][0]["attempt"].as_u64();
    let newest = newest.with_context(|| format!("job {id} in {cluster} has no attempt yet"))?;
    let number = job.attempt.map_or(newest, u64::from);
    let run = client.get(&format!("{}/{number}", path("runs", cluster, id)));
    let run = run.with_context(|| format!("attempt {number} of {id} in {cluster}"))?;
    let text = about(&known, &run);
    Ok(Answer {
        text,
        json: match job.attempt {
            None => json!({ "job": known, "newest": run }),
            Some(_) => json!({ "job": known, "attempt": run }),
        },
        is_good: true,
    })
}

fn path(kind: &str, cluster: &str, id: &str) -> String {
    format!("/{kind}/{}/{}", ask::encoded(cluster), ask::encoded(id))
}

fn table(jobs: &[Value]) -> Table {
    let mut table = Table::new(&[
        "CLUSTER",
        "JOB",
        "TEAM",
        "STATE",
        ">GPUS",
        ">MFU",
        ">AN HOUR",
        ">SO FAR",
        ">ATTEMPT",
        ">RANKS",
        "BEGAN (UTC)",
        "HOW IT STANDS",
    ]);
    for job in jobs {
        let money =
            |it: &Value| words::in_short(it, |value| words::amount(value, words::currency(job)));
        table.row(vec![
            words::text(&job["cluster"]) + &words::origin(&job["origin"]),
            words::text(&job["job"]),
            words::text(&job["owner"]),
            words::text(&job["state"]),
            words::text(&job["gpus"]),
            words::in_short(&job["mfu_ratio"], |it| format!("{:.1} %", it * 100.0)),
            money(&job["usd_per_hour"]),
            money(&job["cost_of_attempt_usd"]),
            words::text(&job["attempt"]),
            words::text(&job["world"]),
            words::moment(&job["started"]),
            words::text(&job["sentence"]),
        ]);
    }
    table
}

fn about(job: &Value, run: &Value) -> String {
    let mut text = format!(
        "{}, attempt {}, in {}{}\n{}\n\n",
        words::text(&job["job"]),
        words::text(&run["attempt"]),
        words::text(&job["cluster"]),
        words::origin(&run["origin"]),
        words::text(&run["sentence"])
    );
    let figures = [
        ("step", words::pace(&run["step_seconds"])),
        (
            "tokens/s",
            words::measured(&run["tokens_per_second"], 0, ""),
        ),
        ("MFU", words::percent(&run["mfu_ratio"])),
        ("HFU", hfu(run)),
        ("goodput", goodput(run)),
        ("done", words::moment(&run["finish_at"]) + &late(run)),
        ("cost", cost(run)),
        ("scaling", words::text(&run["scaling"])),
    ];
    for (what, figure) in figures {
        text.push_str(&format!("{what:<9} {figure}\n"));
    }
    if let Some(why) = run["not_judged"].as_str() {
        text.push_str(&format!(
            "{:<9} not judged: {}\n",
            "slow",
            words::plain(why)
        ));
    }
    if let Some(said) = run["unexplained_gaps"].as_str() {
        text.push_str(&format!("{:<9} {}\n", "gaps", words::plain(said)));
    }
    text.push_str(&advice::lines(run));
    let mut attempts = Table::new(&[">ATTEMPT", "STATE", "BEGAN (UTC)", "ENDED (UTC)", "WHY"]);
    for attempt in job["attempts"].as_array().into_iter().flatten() {
        attempts.row(vec![
            words::text(&attempt["attempt"]),
            words::text(&attempt["state"]),
            words::moment(&attempt["started"]),
            words::moment(&attempt["ended"]),
            words::text(&attempt["cause"]).replace('_', " "),
        ]);
    }
    text.push('\n');
    text.push_str(&attempts.text("no attempt is known"));
    if job["not_all_attempts"] == true {
        text.push_str("It may have earlier attempts than these.\n");
    }
    text.push_str(&earlier(job, run));
    text.push('\n');
    text.push_str(&ranks(run).text("no rank is known"));
    text
}

/// How the attempts before the one that is shown stand, the last of them first, and how more is learnt of them.
fn earlier(job: &Value, run: &Value) -> String {
    let Some(shown) = run["attempt"].as_u64() else {
        return String::new();
    };
    let all = job["attempts"].as_array().into_iter().flatten();
    let numbered = all.filter_map(|it| Some((it["attempt"].as_u64()?, it)));
    let mut before: Vec<_> = numbered.filter(|(number, _)| *number < shown).collect();
    if before.is_empty() {
        return String::new();
    }
    before.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    let said = before.iter().take(EARLIER);
    let said =
        said.map(|(number, it)| format!("attempt {number}: {}\n", words::text(&it["sentence"])));
    let more = match before.len().saturating_sub(EARLIER) {
        0 => String::new(),
        more => format!("and {more} before that; "),
    };
    let said: String = said.collect();
    format!("\n{said}{more}--attempt N shows all that is known of one\n")
}

/// How late it will be, where it has a deadline.
fn late(run: &Value) -> String {
    let Some(seconds) = words::number(&run["late_seconds"]) else {
        return String::new();
    };
    let side = if seconds > 0.0 { "after" } else { "before" };
    format!(", {} {side} its deadline", words::span(seconds.abs()))
}

/// What it has cost, and what it will have cost.
fn cost(run: &Value) -> String {
    let money = |it: &Value| words::money(it, run);
    let so_far = money(&run["cost_so_far_usd"]);
    let tokens = &run["usd_per_million_tokens"];
    let so_far = match words::number(tokens) {
        Some(_) => format!("{so_far} ({} a million tokens)", money(tokens)),
        None => so_far,
    };
    match words::number(&run["cost_at_finish_usd"]) {
        Some(_) => format!(
            "{so_far}, {} when it is done",
            money(&run["cost_at_finish_usd"])
        ),
        None => so_far,
    }
}

/// HFU, and what it is by where the run does not say it: an estimate says that it is one.
fn hfu(run: &Value) -> String {
    let ratio = words::percent(&run["hfu_ratio"]);
    match run["hfu_basis"].as_str() {
        Some(basis) if basis != "told" => format!("{ratio} ({})", words::plain(basis)),
        _ => ratio,
    }
}

/// The productive share, and of how much of the time that is.
fn goodput(run: &Value) -> String {
    let ratio = words::percent(&run["goodput_ratio"]);
    match words::number(&run["observed_ratio"]["value"]).filter(|it| *it < 0.9995) {
        Some(observed) => format!(
            "{ratio} of the {:.1} % of its time that was observed",
            observed * 100.0
        ),
        None => ratio,
    }
}

fn ranks(run: &Value) -> Table {
    let mut table = Table::new(&[
        ">RANK",
        "NODE",
        "GPU",
        "MESH",
        "ENDED",
        ">STEP",
        "LAST HEARD (UTC)",
        "SLOW",
    ]);
    let slow = |rank: &Value| {
        let all = run["slow_ranks"].as_array().into_iter().flatten();
        let found = all.into_iter().find(|it| it["rank"] == *rank)?;
        Some(format!("×{:.2} its peers", words::number(&found["ratio"])?))
    };
    for rank in run["ranks"].as_array().into_iter().flatten() {
        let step = &rank["readings"][LAST_STEP];
        let why = words::text(&rank["exception"]);
        let ended = match (rank["ended"].as_str(), why.as_str()) {
            (None, _) => "lives".to_owned(),
            (Some(how), words::NOTHING) => how.to_owned(),
            (Some(_), why) => why.to_owned(),
        };
        table.row(vec![
            words::text(&rank["rank"]),
            words::text(&rank["node"]),
            words::text(&rank["gpu"]),
            words::text(&rank["mesh"]),
            ended,
            words::measured(step, 0, ""),
            words::moment(&rank["heard"]),
            slow(&rank["rank"]).unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_whose_a_job_is_how_well_it_uses_its_gpus_and_what_they_cost() {
        let figure = |value: f64| json!({"value": value, "missing": null});
        let why = "not said: the run gives no FLOPs";
        let jobs = [
            json!({"cluster": "prod", "job": "team/llama/u1", "owner": "science", "gpus": 8,
                "mfu_ratio": figure(0.4321), "currency": "EUR", "usd_per_hour": figure(80.0),
                "cost_of_attempt_usd": figure(1_234.5)}),
            json!({"cluster": "prod", "job": "team/mute/u2", "owner": null, "gpus": null,
                "mfu_ratio": {"value": null, "missing": why}}),
        ];
        let text = table(&jobs).text("no job");
        let lines: Vec<String> = text
            .lines()
            .map(|it| it.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let dear = "prod team/llama/u1 science – 8 43.2 % 80.00 EUR 1 234.50 EUR";
        assert!(lines[1].starts_with(dear), "{text}");
        // A server of before says nothing of money.
        let mute = "prod team/mute/u2 – – – not said – –";
        assert!(lines[2].starts_with(mute), "{text}");
    }

    #[test]
    fn a_job_with_a_deadline_says_how_late_it_will_be() {
        let job = json!({"job": "team/llama/u1", "cluster": "prod"});
        for (late, expected) in [
            (
                json!(120.0),
                "2026-11-23 06:10:00, 2 min after its deadline\n",
            ),
            (
                json!(-9_000.0),
                "2026-11-23 06:10:00, 2 h 30 min before its deadline\n",
            ),
            (Value::Null, "2026-11-23 06:10:00\n"),
        ] {
            let run = json!({"finish_at": "2026-11-23T06:10:00.000Z", "late_seconds": late});
            let text = about(&job, &run);
            assert!(text.contains(&format!("done      {expected}")), "{text}");
        }
    }

    #[test]
    fn a_job_says_where_it_may_have_more_attempts_than_are_listed() {
        for (is_cut, says) in [
            (json!(true), true),
            (json!(false), false),
            (Value::Null, false),
        ] {
            let job =
                json!({"job": "team/llama/u1", "cluster": "prod", "not_all_attempts": is_cut});
            let text = about(&job, &json!({}));
            assert_eq!(text.contains("earlier attempts"), says, "{text}");
        }
    }

    #[test]
    fn gpus_that_stand_still_and_nobody_knows_why_are_told() {
        let job = json!({"job": "team/llama/u1", "cluster": "prod"});
        let said = "The GPUs stand still for 22 % of the time";
        let text = about(&job, &json!({"unexplained_gaps": said}));
        assert!(text.contains(&format!("gaps      {said}\n")), "{text}");
        assert!(!about(&job, &json!({})).contains("gaps"));
    }

    #[test]
    fn how_the_last_attempts_before_ended_is_said_and_how_to_learn_more() {
        let ended = |number: u64| {
            let sentence = format!("Ended at noon: The script failed, {number}.");
            json!({"attempt": number, "state": "ended", "cause": "exception", "sentence": sentence})
        };
        let attempts: Vec<Value> = (0..6).rev().map(ended).collect();
        let job = json!({"job": "team/llama/u1", "cluster": "prod", "attempts": attempts});
        let said = |number: u64| {
            format!("attempt {number}: Ended at noon: The script failed, {number}.\n")
        };
        let text = about(&job, &json!({"attempt": 5}));
        let expected = [said(4), said(3), said(2)].concat();
        let more = "and 2 before that; --attempt N shows all that is known of one\n";
        assert!(text.contains(&format!("\n\n{expected}{more}")), "{text}");
        assert!(
            text.starts_with("team/llama/u1, attempt 5, in prod\n"),
            "{text}"
        );
        let text = about(&job, &json!({"attempt": 1}));
        let expected = format!("{}--attempt N", said(0));
        assert!(
            text.contains(&expected) && !text.contains(&said(1)),
            "{text}"
        );
        let first = about(&job, &json!({"attempt": 0}));
        assert!(!first.contains("--attempt"), "{first}");
    }

    #[test]
    fn what_comes_first_is_asked_for_by_the_word_that_is_typed() {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Typed {
            #[command(flatten)]
            filter: Filter,
        }
        for word in ["started", "cost", "mfu", "gpus"] {
            let typed = Typed::try_parse_from(["jobs", "--state", "running", "--sort", word]);
            let typed = typed.expect("it is a word of these");
            let asked = [("state", "running"), ("sort", word)];
            assert_eq!(typed.filter.given(), asked);
        }
        let bare = Typed::try_parse_from(["jobs"]).expect("nothing is needed");
        let asked = bare.filter.given();
        assert!(asked.is_empty(), "as servers of before are asked");
        assert!(Typed::try_parse_from(["jobs", "--sort", "colour"]).is_err());
    }

    #[test]
    fn an_attempt_is_asked_for_by_its_number() {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Typed {
            #[command(flatten)]
            job: Job,
        }
        let typed = |line: &[&str]| Typed::try_parse_from(line).map(|it| it.job.attempt);
        assert_eq!(
            typed(&["job", "llama", "--attempt", "2"]).ok(),
            Some(Some(2))
        );
        assert_eq!(typed(&["job", "llama"]).ok(), Some(None));
        assert!(typed(&["job", "llama", "--attempt", "-1"]).is_err());
    }
}
