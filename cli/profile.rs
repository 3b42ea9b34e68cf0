//! `gpufleet profile RUN`: has one rank of a run record its next steps, waits for it, and says where the trace lies.
//!
//! Limits: [`LONGEST_SECONDS`].

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::named;
use crate::tell::seconds;
use crate::words;

/// Cluster, namespace, name, uid, attempt and rank.
const PARTS_OF_A_RANK: usize = 6;
/// Longest from a profile's beginning to its result here, seconds: the agent gives a process ten minutes, and
/// then what it says has to be on its way and in the store.
const LONGEST_SECONDS: u64 = 660;
/// How often is looked for the result.
const EACH: Duration = Duration::from_secs(1);
/// So often in a row may the server not answer, while it begins anew or another takes over.
const MOST_FAILURES: u32 = 120;

/// Which rank, and how much of it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet profile llama-70b-pretrain              three steps of rank 0 of the newest attempt
  gpufleet profile llama-70b-pretrain --rank 17 --steps 1
  gpufleet profile prod/team/llama/u1/0/17         the same of one attempt")]
pub(crate) struct Asked {
    /// The run, `cluster/namespace/name/uid/attempt`, or a job's name or id for its newest; a run with `/rank`
    /// behind it is one rank of it.
    run: String,
    /// Which of its ranks; 0 unless said.
    #[arg(long)]
    rank: Option<u32>,
    /// How many steps are recorded.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u8).range(1..=10))]
    steps: u8,
    /// How long a step under way may take to end: 30s, 5m, 1h at most. After that it is not begun.
    #[arg(long, value_parser = seconds, default_value = "5m")]
    within: i64,
}

/// A rank that can be asked.
#[derive(Debug, PartialEq, Eq)]
struct Rank {
    cluster: String,
    node: String,
    /// `<job>/<attempt>/<rank>`.
    id: String,
}

/// The answer; bad news when there is no profile.
pub(crate) fn answer(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    let (run, number) = parts(&asked.run, asked.rank)?;
    let place = named::run(client, &run)?;
    let rank = rank(&client.get(&run_path(&place)?)?, number)?;
    let agents = ask::all(client, "/agents", &[])?;
    let agent = agent(&agents.items, &rank)?;
    let said = json!({
        "action": "capture_profile",
        "arguments": {"rank": rank.id, "steps": asked.steps.to_string()},
        "expires_in_seconds": asked.within,
    });
    let queued = client.post(&format!("/agents/{}/commands", ask::encoded(&agent)), &said)?;
    let command = words::text(&queued["id"]);
    client.waiting().is_over();
    let _ = writeln!(
        std::io::stderr(),
        "rank {number} on {} is asked for {} steps; waiting",
        words::plain(&rank.node),
        asked.steps
    );
    let result = wait(client, &rank.cluster, &command, asked.within.unsigned_abs())?;
    Ok(said_of(result, &rank.node))
}

/// The run and the rank of it that are meant.
fn parts(text: &str, rank: Option<u32>) -> anyhow::Result<(String, u32)> {
    match text.rsplit_once('/') {
        Some((run, last)) if text.split('/').count() == PARTS_OF_A_RANK => {
            let of_text = last.parse().ok();
            let of_text =
                of_text.with_context(|| format!("{text}: “{last}” is no rank's number"))?;
            anyhow::ensure!(
                rank.is_none_or(|it| it == of_text),
                "{text} and --rank name two ranks"
            );
            Ok((run.to_owned(), of_text))
        }
        _ => Ok((text.to_owned(), rank.unwrap_or(0))),
    }
}

/// Where the API has a run, `cluster/namespace/name/uid/attempt`.
fn run_path(run: &str) -> anyhow::Result<String> {
    let parts = run.split_once('/').and_then(|(cluster, rest)| {
        let (job, attempt) = rest.rsplit_once('/')?;
        Some((cluster, job, attempt))
    });
    let (cluster, job, attempt) = parts.with_context(|| format!("{run} is no run"))?;
    // The cluster's name is encoded already.
    Ok(format!("/runs/{cluster}/{}/{attempt}", ask::encoded(job)))
}

/// The rank of this number, where somebody can ask it.
fn rank(run: &Value, number: u32) -> anyhow::Result<Rank> {
    let [job, attempt] = ["job", "attempt"].map(|it| words::text(&run[it]));
    let cluster = run["cluster"].as_str().unwrap_or_default().to_owned();
    let of_run = format!("attempt {attempt} of {job} in {cluster}");
    let ranks = run["ranks"].as_array().map_or(&[][..], Vec::as_slice);
    let found = ranks.iter().find(|it| it["rank"] == number);
    let found = found.with_context(|| {
        format!(
            "{of_run} has no rank {number}; it has told of {} ranks",
            ranks.len()
        )
    })?;
    if let Some(how) = found["ended"].as_str() {
        anyhow::bail!("rank {number} of {of_run} is over ({how})");
    }
    let node = found["node"].as_str();
    let node = node.with_context(|| {
        format!("rank {number} of {of_run} was seen by no agent, so none can ask it")
    })?;
    Ok(Rank {
        cluster,
        node: node.to_owned(),
        id: format!("{job}/{attempt}/{number}"),
    })
}

/// The agent of the rank's node, the one that was heard last.
fn agent(agents: &[Value], rank: &Rank) -> anyhow::Result<String> {
    let of_node = agents
        .iter()
        .filter(|it| it["cluster"] == rank.cluster.as_str() && it["node"] == rank.node.as_str());
    let newest = of_node.max_by_key(|it| it["heard"].as_str());
    let newest = newest.and_then(|it| it["id"].as_str());
    let missing = || {
        format!(
            "the agent of {} in {} has sent nothing since the server started",
            rank.node, rank.cluster
        )
    };
    newest.map(str::to_owned).with_context(missing)
}

/// Waits for the result of a command that is good for so many seconds.
fn wait(client: &Client, cluster: &str, command: &str, good_for: u64) -> anyhow::Result<Value> {
    let query = [
        ("cluster", cluster),
        ("kind", "command_result"),
        ("limit", "200"),
    ];
    let path = ask::with_query("/events", &query);
    let longest = good_for + LONGEST_SECONDS;
    let mut failures = 0;
    for _ in 0..longest / EACH.as_secs() {
        let mut events = match client.get(&path) {
            Ok(events) => events,
            // A server that begins anew is no reason not to hear what became of it.
            Err(_) if failures < MOST_FAILURES => {
                failures += 1;
                client.wait(EACH);
                continue;
            }
            Err(refusal) => return Err(refusal.into()),
        };
        failures = 0;
        let events = events["items"].as_array_mut().map(std::mem::take);
        let mut events = events.unwrap_or_default().into_iter();
        if let Some(found) = events.find(|it| it["attributes"]["command"] == command) {
            return Ok(found);
        }
        client.wait(EACH);
    }
    anyhow::bail!(
        "nothing was said of command {command} within {longest} s: is the agent still there? \
         An event of kind command_result has it, should it come"
    )
}

/// What came of it.
fn said_of(result: Value, node: &str) -> Answer {
    let about = &result["attributes"];
    let reason = words::text(&about["reason"]);
    let node = words::plain(node);
    let is_good = about["verdict"] == "done";
    let text = match about["verdict"].as_str() {
        Some("done") => format!(
            "{reason}\nthe path is as the process sees it, on {node}; ui.perfetto.dev and chrome://tracing open it\n"
        ),
        Some("unknown" | "not_built_in") => {
            format!("there is no profile: the agent on {node} is older ({reason})\n")
        }
        _ => format!("there is no profile: {reason}\n"),
    };
    Answer {
        text,
        json: result,
        is_good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_named_behind_its_run_or_beside_it() {
        let check = |text: &str, rank, expected: Option<(&str, u32)>| {
            let found = parts(text, rank).ok();
            let found = found.as_ref().map(|(run, rank)| (run.as_str(), *rank));
            assert_eq!(found, expected, "{text} {rank:?}");
        };
        check("llama", None, Some(("llama", 0)));
        check("team/llama/7f-1", Some(3), Some(("team/llama/7f-1", 3)));
        check(
            "prod/team/llama/u1/0",
            Some(3),
            Some(("prod/team/llama/u1/0", 3)),
        );
        check(
            "prod/team/llama/u1/0/17",
            None,
            Some(("prod/team/llama/u1/0", 17)),
        );
        check(
            "prod/team/llama/u1/0/17",
            Some(17),
            Some(("prod/team/llama/u1/0", 17)),
        );
        check("prod/team/llama/u1/0/17", Some(3), None);
        check("prod/team/llama/u1/0/last", None, None);
        let path = run_path("prod%20a/team/llama/u1/0").expect("it is a run");
        assert_eq!(path, "/runs/prod%20a/team%2Fllama%2Fu1/0");
    }

    fn run() -> Value {
        json!({"cluster": "prod", "job": "team/llama/u1", "attempt": 2, "ranks": [
            {"rank": 0, "node": "node-1", "ended": null},
            {"rank": 1, "node": "node-1", "ended": "vanished"},
            {"rank": 2, "node": null, "ended": null},
        ]})
    }

    #[test]
    fn only_a_rank_that_lives_under_an_agent_is_asked_and_the_others_say_why_not() {
        let found = rank(&run(), 0).expect("it lives");
        let expected = Rank {
            cluster: "prod".to_owned(),
            node: "node-1".to_owned(),
            id: "team/llama/u1/2/0".to_owned(),
        };
        assert_eq!(found, expected);
        for (number, why) in [
            (1, "is over (vanished)"),
            (2, "seen by no agent"),
            (3, "has no rank 3; it has told of 3 ranks"),
        ] {
            let error = rank(&run(), number).expect_err("it cannot be asked");
            assert!(error.to_string().contains(why), "{number}: {error}");
        }
    }

    #[test]
    fn the_agent_is_the_one_of_the_node_that_was_heard_last() {
        let one = |id: &str, cluster: &str, node: &str, heard: &str| json!({"id": id, "cluster": cluster, "node": node, "heard": heard});
        let agents = [
            one("other-cluster", "lab", "node-1", "2026-11-23T09:00:00Z"),
            one("old", "prod", "node-1", "2026-11-22T09:00:00Z"),
            one("newest", "prod", "node-1", "2026-11-23T08:00:00Z"),
            one("other-node", "prod", "node-2", "2026-11-23T09:00:00Z"),
        ];
        let rank = rank(&run(), 0).expect("it lives");
        assert_eq!(agent(&agents, &rank).expect("there is one"), "newest");
        let error = agent(&agents[..1], &rank).expect_err("it is another cluster's");
        assert!(error.to_string().contains("node-1 in prod"), "{error}");
    }

    #[test]
    fn a_profile_is_good_news_with_its_place_and_every_other_end_is_bad_news_with_its_reason() {
        for (verdict, is_good, words) in [
            ("done", true, "a profile: /scratch/a"),
            (
                "failed",
                false,
                "there is no profile: a profile: /scratch/a",
            ),
            ("expired", false, "there is no profile: "),
            ("not_built_in", false, "the agent on node-1 is older"),
        ] {
            let result =
                json!({"attributes": {"verdict": verdict, "reason": "a profile: /scratch/a"}});
            let answer = said_of(result, "node-1");
            assert_eq!(answer.is_good, is_good, "{verdict}");
            assert!(
                answer.text.starts_with("there is no") != is_good,
                "{}",
                answer.text
            );
            assert!(answer.text.contains(words), "{}", answer.text);
        }
    }
}
