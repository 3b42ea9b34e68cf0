//! What Slurm's commands say of this node's GPUs, by programs in their place.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// As slurm 23.11 prints them, shortened.
const NODE: &str = r#"{"nodes": [{"name": "n1", "gres": "gpu:h100:4(S:0-1),tmp:7T",
    "gres_used": "gpu:h100:3(IDX:0-1,3),tmp:0", "gres_drained": "N/A", "state": ["MIXED"]}], "errors": []}"#;
const JOBS: &str = r#"{"jobs": [{"job_id": 77, "job_state": ["RUNNING"], "nodes": "n1",
    "gres_detail": ["gpu:h100:2(IDX:0-1)"], "account": "ml"}], "errors": []}"#;

/// A program that prints this, or does what it says.
fn stand_in(folder: &Path, name: &str, script: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its own file");
    path
}

fn prints(text: &str) -> String {
    format!("cat <<'X'\n{text}\nX")
}

fn shared(scontrol: PathBuf, squeue: PathBuf) -> Shared {
    Shared {
        scontrol,
        squeue,
        node: "n1".to_owned(),
        state: Mutex::default(),
        wake: Notify::new(),
    }
}

/// What is learned where the commands do this.
async fn asked(scontrol: &str, squeue: &str) -> Result<Option<Given>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let scontrol = stand_in(folder.path(), "scontrol", scontrol);
    let squeue = stand_in(folder.path(), "squeue", squeue);
    shared(scontrol, squeue).ask().await
}

fn given(total: usize, used: &[u32], of: &[(u32, u64)]) -> Given {
    let of = of.iter().map(|(gpu, job)| (*gpu, BTreeSet::from([*job])));
    Given {
        total,
        used: used.iter().copied().collect(),
        of: of.collect(),
    }
}

#[tokio::test]
async fn both_commands_are_asked_of_this_node_and_tell_which_gpus_jobs_have() {
    let is_asked = |arguments: &str, answer: &str| {
        format!("[ \"$*\" = '{arguments}' ] || exit 3\n{}", prints(answer))
    };
    let scontrol = is_asked("show node n1 --json --all --details", NODE);
    let squeue = is_asked("--all -w n1 --json", JOBS);
    let expected = given(4, &[0, 1, 3], &[(0, 77), (1, 77)]);
    assert_eq!(asked(&scontrol, &squeue).await, Ok(Some(expected)));
}

#[tokio::test]
async fn whatever_is_wrong_with_an_answer_is_said() {
    let check = async |scontrol: &str, squeue: &str, expected: &str| {
        let error = asked(scontrol, squeue).await.expect_err("nothing");
        assert!(error.contains(expected), "{error}");
    };
    let (node, jobs) = (prints(NODE), prints(JOBS));
    let (node, jobs) = (node.as_str(), jobs.as_str());
    // A release without --json, or built without it.
    let old = "echo 'unrecognized option --json' >&2; exit 1";
    check(old, jobs, "scontrol failed with exit status: 1 for node n1").await;
    check(node, old, "squeue failed with exit status: 1 for node n1").await;
    check("echo 'NodeName=n1 Gres=gpu:4'", jobs, "said of node n1").await;
    check(node, "echo 'JOBID PARTITION'", "said of node n1").await;
    let other = prints(r#"{"nodes": [{"name": "n2"}]}"#);
    check(&other, jobs, "attribute.slurm_node").await;
    let none = PathBuf::from("/nowhere/at/all");
    let absent = shared(none.clone(), none).ask().await;
    let error = absent.expect_err("it is not there");
    assert!(error.contains("attribute.squeue_path"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_slow_is_waited_for_no_longer_than_ten_seconds() {
    let error = asked("exit 1", "exec sleep 60").await.expect_err("nothing");
    assert!(
        error.contains("squeue did not answer within 10 s"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_said_counts_for_a_minute_and_a_half_and_a_failure_does_not_undo_it() {
    let shared = shared(PathBuf::new(), PathBuf::new());
    assert_eq!(shared.known().0, None);
    let said = given(4, &[0], &[(0, 77)]);
    shared.note(Ok(Some(said.clone())));
    tokio::time::advance(Duration::from_secs(60)).await;
    shared.note(Err("it is slow".to_owned()));
    let (known, standing) = shared.known();
    assert_eq!(known.as_deref(), Some(&said));
    assert_eq!(standing.error(), Some("it is slow"));
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(shared.known().0, None, "too old");
    shared.note(Ok(None));
    assert_eq!(shared.known().0, None, "it does not say which");
}

#[test]
fn it_is_asked_only_while_it_is_of_use_and_early_where_jobs_come_and_go() {
    let shared = Arc::new(shared(PathBuf::new(), PathBuf::new()));
    assert!(!shared.begins());
    let want = |is_wanted, jobs: &[u64]| {
        shared.want(is_wanted, jobs.iter().copied().collect());
    };
    want(true, &[7]);
    assert!(shared.begins());
    want(true, &[7]);
    assert!(!shared.is_changed(), "the same jobs");
    want(true, &[7, 8]);
    assert!(shared.is_changed());
    assert!(shared.begins());
    assert!(!shared.is_changed(), "and it is asked of them");
    want(false, &[]);
    assert!(!shared.begins());
}

#[test]
fn which_gpus_are_used_is_known_only_where_it_is_said_of_each() {
    let check = |used: &str, expected: Option<&[u32]>| {
        let expected: Option<BTreeSet<u32>> = expected.map(|it| it.iter().copied().collect());
        assert_eq!(super::used(used), expected, "{used}");
    };
    check("gpu:h100:2(IDX:0-1)", Some(&[0, 1]));
    check("gpu:2(IDX:0,3)", Some(&[0, 3]));
    check("gpu:a:1(IDX:0),gpu:b:2(IDX:2-3),tmp:0", Some(&[0, 2, 3]));
    check("gpu:h100:0(IDX:N/A)", Some(&[]));
    check("gpu:0", Some(&[]));
    check("gpu:h100:0(IDX:N/A),shard:h100:0(0/8,0/8)", Some(&[]));
    for unknown in [
        "",
        "(null)",
        "gpu:2",
        "gpu:h100:2(CNT:2)",
        "gpu:h100:1(IDX:0-1)",
        "gpu:h100:2(IDX:x)",
        "gpu:h100:2(IDX:1-0)",
        "gpu:h100:2(IDX:0-4294967295)",
        "gpu:h100:0(IDX:N/A),shard:h100:3(2/8,1/8)",
        "gpu:h100:0(IDX:N/A),mps:100",
        "tmp:0",
    ] {
        check(unknown, None);
    }
    assert_eq!(total("tmp:7T,gpu:a:4(S:0,1),gpu:b:4(S:0)"), 8);
    assert_eq!(total("gpu:8"), 8);
    assert_eq!(total("(null)"), 0);
}

#[test]
fn a_job_has_what_stands_at_this_node_s_place_among_its_nodes_while_it_runs() {
    let check = |state: &str, nodes: &str, detail: &str, expected: &[u32]| {
        let answer = format!(
            r#"{{"jobs": [{{"job_id": 7, "job_state": {state}, "nodes": "{nodes}", "gres_detail": {detail}}}]}}"#
        );
        let of = jobs_of(answer.as_bytes(), "n2").expect("an answer");
        let gpus: Vec<u32> = of.into_keys().collect();
        assert_eq!(gpus, expected, "{answer}");
    };
    let runs = r#"["RUNNING"]"#;
    check(runs, "n2", r#"["gpu:h100:2(IDX:0-1)"]"#, &[0, 1]);
    let two = r#"["gpu:2(IDX:0-1)", "gpu:1(IDX:3)"]"#;
    check(runs, "n[1-2]", two, &[3]);
    check(runs, "n2,n3", two, &[0, 1]);
    check(runs, "n[3-4]", two, &[]);
    check(runs, "n[1-3]", two, &[]);
    check(runs, "n2", two, &[]);
    check(runs, "", "[]", &[]);
    check(
        runs,
        "n[1,2]",
        r#"[null, "gpu:a:1(IDX:2),gpu:b:1(IDX:5),tmp:1(IDX:0)"]"#,
        &[2, 5],
    );
    let one = r#"["gpu:1(IDX:0)"]"#;
    for holds in [
        r#"["RUNNING", "COMPLETING"]"#,
        r#""SUSPENDED""#,
        r#""RUNNING+COMPLETING""#,
    ] {
        check(holds, "n2", one, &[0]);
    }
    for has_not in [r#"["PENDING"]"#, r#""COMPLETED""#, "null"] {
        check(has_not, "n2", one, &[]);
    }
    let wrapped = r#"{"jobs": [{"job_id": {"set": true, "number": 9}, "job_state": "RUNNING", "nodes": "n2",
        "gres_detail": ["gpu:1(IDX:0)"]}, {"job_state": "RUNNING", "nodes": "n2"}]}"#;
    let of = jobs_of(wrapped.as_bytes(), "n2").expect("an answer");
    assert_eq!(of, BTreeMap::from([(0, BTreeSet::from([9]))]));
}

#[test]
fn a_group_of_nodes_is_its_names_in_order_and_one_of_too_many_is_none() {
    let check = |text: &str, expected: Option<&[&str]>| {
        let found = names(text, 4);
        let found = found.as_ref().map(|it| it.iter().map(String::as_str));
        let found: Option<Vec<&str>> = found.map(Iterator::collect);
        assert_eq!(found.as_deref(), expected, "{text}");
    };
    check("n1", Some(&["n1"]));
    check("gpu[01-03],x", Some(&["gpu01", "gpu02", "gpu03", "x"]));
    check("n[9-10,12]", Some(&["n9", "n10", "n12"]));
    check("r[1-2]n[3-4]", Some(&["r1n3", "r1n4", "r2n3", "r2n4"]));
    check("a[1-2]-gpu", Some(&["a1-gpu", "a2-gpu"]));
    for text in [
        "n[1-5]",
        "n[0-4294967295]",
        "n[0-4294967295][5-3]",
        "n[1",
        "n[]",
        "n[x-y]",
        "n[2-1]",
        "n[1][2][3][4][5][6]",
        "n[000000000000000000001-2]",
    ] {
        check(text, None);
    }
}
