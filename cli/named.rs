//! Jobs and runs as people name them: a job by its id or its name, a run as the API names it or as a job's newest; and
//! whether there is a cluster or node of a name.

use std::io::Write as _;

use anyhow::Context as _;
use serde_json::Value;

use crate::ask;
use crate::client::Client;

/// Cluster, namespace, name, uid and attempt.
const PARTS_OF_A_RUN: usize = 5;

/// The job that was meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meant {
    pub(crate) cluster: String,
    pub(crate) id: String,
    newest: Option<u64>,
    /// How many jobs of this cluster, namespace and name there are.
    of: usize,
}

impl Meant {
    /// Which of several of one name was taken; none where there is one.
    fn note(&self) -> Option<String> {
        let Self { id, of, .. } = self;
        let note = format!("{id} is the last of {of} of this name; name its id for another");
        (*of > 1).then_some(note)
    }
}

/// Looks up the cluster and the node of which a list has nothing: of one that there is not, that is no answer.
///
/// # Errors
/// When there is no such cluster, or no such node in it, and what lists those that there are.
pub(crate) fn known_place(
    client: &Client,
    cluster: Option<&str>,
    node: Option<&str>,
) -> anyhow::Result<()> {
    let is_there = |path, filter: &[(&str, &str)], name: &str| {
        let list = ask::all(client, path, filter)?;
        anyhow::Ok(list.items.iter().any(|it| it["name"] == name))
    };
    if let Some(cluster) = cluster {
        anyhow::ensure!(
            is_there("/clusters", &[], cluster)?,
            "no cluster “{cluster}”; `gpufleet fleet` lists those that there are"
        );
    }
    if let Some(node) = node {
        let filter = ask::given([("cluster", cluster)]);
        anyhow::ensure!(
            is_there("/nodes", &filter, node)?,
            "no node “{node}”; `gpufleet fleet --by node` lists those that there are"
        );
    }
    Ok(())
}

/// The job with this id, `namespace/name` or name. Whoever submits a job again gives it another id, so that of several
/// of one name the one that started last is meant, and it is said which.
pub(crate) fn job(client: &Client, asked: &str, cluster: Option<&str>) -> anyhow::Result<Meant> {
    let given = ask::given([("cluster", cluster), ("name", Some(asked))]);
    let meant = meant(&ask::all(client, "/jobs", &given)?.items, asked)?;
    if let Some(note) = meant.note() {
        client.waiting().is_over();
        // Not in the answer, which a program may read.
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    Ok(meant)
}

/// The run that was meant, `cluster/namespace/name/uid/attempt`, its cluster encoded: as it is, or the newest of a job
/// that was named.
pub(crate) fn run(client: &Client, asked: &str) -> anyhow::Result<String> {
    run_of(asked, |name| job(client, name, None))
}

fn run_of(asked: &str, job: impl FnOnce(&str) -> anyhow::Result<Meant>) -> anyhow::Result<String> {
    let asked = asked.trim();
    anyhow::ensure!(
        !asked.is_empty(),
        "the name of a run is empty; several are written with one comma between two: a,b,c"
    );
    if asked.split('/').count() == PARTS_OF_A_RUN
        && let Some((cluster, rest)) = asked.split_once('/')
    {
        return Ok(format!("{}/{rest}", ask::encoded(cluster)));
    }
    let Meant {
        cluster,
        id,
        newest,
        ..
    } = job(asked)?;
    let newest = newest.with_context(|| format!("job {id} in {cluster} has no attempt yet"))?;
    Ok(format!("{}/{id}/{newest}", ask::encoded(&cluster)))
}

/// The one of these jobs that was meant; they are called so, the last started first.
fn meant(jobs: &[Value], asked: &str) -> anyhow::Result<Meant> {
    let mut names = jobs.iter().collect::<Vec<_>>();
    names.sort_by_key(|&it| name(it));
    names.dedup_by_key(|it| name(it));
    match names.as_slice() {
        [] => anyhow::bail!("no job is called “{asked}”; `gpufleet jobs` lists them"),
        [last] => {
            let (cluster, id) = place(last);
            Ok(Meant {
                cluster: cluster.to_owned(),
                id: id.to_owned(),
                newest: last["attempt"].as_u64(),
                of: jobs.len(),
            })
        }
        several => {
            let names = several.iter().map(|it| place(it));
            let names = names.map(|(cluster, id)| format!("  {id} in {cluster}\n"));
            let names: String = names.collect();
            anyhow::bail!(
                "“{asked}” may be one of several jobs; give the id, and --cluster:\n{}",
                names.trim_end()
            )
        }
    }
}

/// Cluster and id.
fn place(job: &Value) -> (&str, &str) {
    let [cluster, id] = ["cluster", "job"].map(|it| job[it].as_str().unwrap_or_default());
    (cluster, id)
}

/// Cluster and id without what tells it from others of its name.
fn name(job: &Value) -> (&str, &str) {
    let (cluster, id) = place(job);
    (cluster, id.rsplit_once('/').map_or(id, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(cluster: &str, id: &str) -> Value {
        json!({"cluster": cluster, "job": id, "attempt": 2})
    }

    #[test]
    fn of_several_of_one_name_the_last_is_meant_and_it_is_said_that_there_are_others() {
        let again = [
            known("prod", "team/llama/u2"),
            known("prod", "team/llama/u1"),
        ];
        let last = meant(&again, "llama").expect("one name");
        assert_eq!((&*last.cluster, &*last.id), ("prod", "team/llama/u2"));
        let note = last.note().expect("there is another");
        assert!(
            note.starts_with("team/llama/u2 is the last of 2 "),
            "{note}"
        );
        let one = meant(&again[1..], "team/llama/u1").expect("one job");
        assert_eq!((&*one.id, one.note()), ("team/llama/u1", None));
    }

    #[test]
    fn what_differs_in_more_than_its_uid_is_refused_with_the_last_of_each_name() {
        let jobs = [
            known("prod", "team/llama/u3"),
            known("lab", "team/llama/u2"),
            known("prod", "team/llama/u1"),
            known("prod", "other/llama/u0"),
        ];
        let why = meant(&jobs, "llama").expect_err("three names").to_string();
        let listed: Vec<&str> = why.lines().skip(1).collect();
        let expected = [
            "  team/llama/u2 in lab",
            "  other/llama/u0 in prod",
            "  team/llama/u3 in prod",
        ];
        assert_eq!(listed, expected, "{why}");
        let nobody = meant(&[], "bert").expect_err("nobody's").to_string();
        assert!(nobody.contains("“bert”"), "{nobody}");
    }

    #[test]
    fn a_run_is_asked_for_where_a_job_is_named_and_spaces_around_a_name_are_borne() {
        let whole = "prod/team/x/u1/0";
        let run = run_of(whole, |name| panic!("{name} is no job's name"));
        assert_eq!(run.expect("a run"), whole);
        let newest = run_of(" llama ", |name| {
            meant(&[known("a/b", "team/llama/u1")], name)
        });
        assert_eq!(newest.expect("a job"), "a%2Fb/team/llama/u1/2");
        for empty in ["", " "] {
            let why = run_of(empty, |name| panic!("{name} is empty"));
            let why = why.expect_err("nobody's").to_string();
            assert!(why.contains("empty"), "{why}");
        }
        let none = json!({"cluster": "prod", "job": "team/llama/u1"});
        let why = run_of("llama", |name| meant(&[none], name));
        let why = why.expect_err("it has not begun").to_string();
        assert!(why.contains("no attempt yet"), "{why}");
    }
}
