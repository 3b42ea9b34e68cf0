//! Answers of Slurm as its releases print them, shortened, and what becomes of them.

use std::path::Path;

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::inventory::place::Free;
use gpufleet_analysis::states::Demand;
use serde_json::json;

use super::super::known::{ClusterState, Moment};
use super::super::{Inventory, InventoryConfig, look};
use super::*;

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("it is JSON")
}

/// As 24.11 prints a node: once for each partition that it is in.
fn entry(name: &str, states: &[&str], used: &str, partition: &str) -> Value {
    json!({
        "node": {"state": states}, "nodes": {"allocated": 0, "total": 1, "nodes": [name]},
        "gres": {"total": "tmpsize:7T,gpu:l40s:4(S:0,1)", "used": used},
        "partition": {"name": partition, "nodes": {"total": 50}}, "reason": "fan",
    })
}

fn waiting(answer: &Value, closed: &Closed) -> Result<Jobs, String> {
    claims(&bytes(answer), closed)
}

/// The same with the state of the partition, as this release writes it.
fn entry_of(name: &str, partition: &str, state: &Value, is_nested: bool) -> Value {
    let mut entry = entry(name, &["IDLE"], "gpu:l40s:0(IDX:N/A)", partition);
    match is_nested {
        true => entry["partition"]["partition"] = json!({"state": state}),
        false => entry["partition"]["state"] = state.clone(),
    }
    entry
}

#[test]
fn a_node_takes_nothing_new_while_none_of_its_partitions_is_up() {
    // As 23.11 and newer write it, as 23.02 does, as text, and as a table's word.
    for (up, down, is_nested) in [
        (json!(["UP"]), json!(["DOWN"]), true),
        (json!("UP"), json!("DOWN"), true),
        (json!(["UP"]), json!(["DRAIN"]), true),
        (json!(["UP"]), json!(["INACTIVE"]), true),
        (json!("up"), json!("inactive"), false),
        (json!(["UP"]), json!(["DOWN"]), false),
    ] {
        let of = |all: &[(&str, &Value)]| {
            let all = all.iter();
            let all: Vec<Value> = all
                .map(|(partition, state)| entry_of("n", partition, state, is_nested))
                .collect();
            let told = nodes(&bytes(&json!({"sinfo": all}))).expect("it is an answer");
            let node = told.nodes[0].0.clone();
            (node.cordoned, node.partitions)
        };
        let names = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let context = format!("{down} {is_nested}");
        assert_eq!(of(&[("a", &up)]), (false, names(&["a"])), "{context}");
        assert_eq!(of(&[("a", &down)]), (true, names(&["a"])), "{context}");
        let both = [("a", &down), ("b", &down)];
        assert_eq!(of(&both), (true, names(&["a", "b"])), "{context}");
        let one = [("a", &down), ("b", &up)];
        assert_eq!(of(&one), (false, names(&["b"])), "{context}");
    }
    let unsaid = [Value::Null, json!([]), json!(["UNKNOWN"]), json!(7)];
    for state in unsaid {
        let answer = json!({"sinfo": [entry_of("n", "a", &state, true)]});
        let told = nodes(&bytes(&answer)).expect("it is an answer");
        assert!(!told.nodes[0].0.cordoned, "{state} says nothing");
        assert_eq!(told.nodes[0].0.partitions, ["a"], "{state}");
    }
}

#[test]
fn nothing_fits_where_no_partition_is_up_and_who_may_go_to_another_fits_there() {
    let (up, down) = (json!(["UP"]), json!(["DOWN"]));
    let answer = json!({"sinfo": [
        entry_of("n1", "shut", &down, true),
        entry_of("n2", "shut", &down, true),
        entry_of("n2", "open", &up, true),
    ]});
    let told = nodes(&bytes(&answer)).expect("it is an answer");
    let records: Vec<Record> = told
        .nodes
        .iter()
        .map(|it| Record::new(it.0.clone(), Timestamp::default()))
        .collect();
    let free = Free::of(records.iter(), &BTreeMap::new());
    let job = |partition: &str| {
        let job = json!({"jobs": [{"job_id": 1, "job_state": ["PENDING"], "state_reason": "Priority",
            "partition": partition, "tres_req_str": "gres/gpu=4"}]});
        let found = waiting(&job, &told.closed).expect("it is an answer");
        let claim = found[0].1.clone();
        (free.places(&claim), claim.reason, claim.words)
    };
    let held_back = |places: u64| (Some(places), Reason::HeldBack, "PartitionDown".to_owned());
    let waits = |places: u64| (Some(places), Reason::NoPlace, "Priority".to_owned());
    assert_eq!(job("shut"), held_back(0));
    assert_eq!(job("open"), waits(1));
    assert_eq!(job("shut,open"), waits(1));
    assert_eq!(job(""), waits(1), "wherever it may go");
}

#[test]
fn a_job_whose_partitions_begin_nothing_waits_for_them_and_says_so() {
    let of = |states: &[(&str, Value)], partition: &str, why: &str| {
        let entries = states.iter();
        let entries: Vec<Value> = entries
            .map(|(name, state)| entry_of("n", name, state, true))
            .collect();
        let told = nodes(&bytes(&json!({"sinfo": entries}))).expect("it is an answer");
        let job = json!({"jobs": [{"job_id": 1, "job_state": ["PENDING"], "state_reason": why,
            "partition": partition, "tres_req_str": "gres/gpu=1"}]});
        let found = waiting(&job, &told.closed).expect("it is an answer");
        (found[0].1.reason, found[0].1.words.clone())
    };
    let held = |words: &str| (Reason::HeldBack, words.to_owned());
    let states = [
        ("up", json!(["UP"])),
        ("down", json!(["DOWN"])),
        ("drain", json!(["DRAIN"])),
        ("inactive", json!(["INACTIVE"])),
    ];
    let check = |partition: &str, why: &str, expected: (Reason, String)| {
        assert_eq!(of(&states, partition, why), expected, "{partition} {why}");
    };
    check("down", "None", held("PartitionDown"));
    check("down", "Resources", held("PartitionDown"));
    check("inactive", "Priority", held("PartitionInactive"));
    check("down,inactive", "", held("PartitionInactive"));
    // Its owner holds it back, whatever becomes of the partition.
    let by_owner = (Reason::ByOwner, "JobHeldUser".to_owned());
    check("down", "JobHeldUser", by_owner);
    let resources = (Reason::NoPlace, "Resources".to_owned());
    check("up", "Resources", resources.clone());
    check("down,up", "Resources", resources.clone());
    check("unheard-of", "Resources", resources.clone());
    // What waits in one that is drained begins all the same.
    check("drain", "Resources", resources.clone());
    check("down,drain", "Resources", resources);
}

#[test]
fn a_node_is_there_once_with_its_gpus_and_what_of_them_is_used() {
    let answer = json!({"errors": [], "sinfo": [
        entry("gpu001", &["MIXED"], "gpu:l40s:1(IDX:0),tmpsize:9", "gpu"),
        entry("gpu001", &["MIXED"], "gpu:l40s:1(IDX:0),tmpsize:9", "long"),
        {"node": {"state": ["IDLE"]}, "nodes": {"nodes": ["cpu001"]}, "gres": {"total": "", "used": ""}},
    ]});
    let found = nodes(&bytes(&answer)).expect("it is an answer");
    let expected = Node {
        name: "gpu001".to_owned(),
        model: "l40s".to_owned(),
        pool: "gpu".to_owned(),
        partitions: vec!["gpu".to_owned(), "long".to_owned()],
        gpus: 4,
        allocatable: 4,
        ready: Ready::Yes,
        ..Node::default()
    };
    assert_eq!(found.nodes, [(expected, Some(1))]);
    // What is used is not told: that is not none.
    let silent = json!({"sinfo": [entry("gpu001", &["MIXED"], "", "gpu")]});
    let found = nodes(&bytes(&silent)).expect("it is an answer");
    assert_eq!(found.nodes[0].1, None);
    // As before 23.02, and as scontrol show nodes does.
    let old = json!({"nodes": [{"name": "n1", "state": "idle+drain", "gres": "gpu:8", "gres_used": "gpu:3",
        "partitions": ["a", "b"], "reason": ""}]});
    let found = nodes(&bytes(&old)).expect("it is an answer").nodes;
    assert_eq!(
        (found[0].0.gpus, found[0].1, found[0].0.cordoned),
        (8, Some(3), true)
    );
    assert_eq!(found[0].0.partitions, ["a", "b"]);
}

#[test]
fn tasks_of_an_array_wait_each_for_itself() {
    for (text, count) in [
        ("", 1),
        ("5", 1),
        ("0-999%10", 1_000),
        ("0-9:3,12%4", 5),
        ("1,3,7-8", 4),
        ("0-4294967295", u32::MAX),
        ("9-0,x,1-2:0", 1),
    ] {
        assert_eq!(tasks(text), count, "{text}");
    }
}

#[test]
fn what_an_array_may_not_run_at_once_is_its_owners_and_no_demand() {
    let entries = (0..8).map(|number| {
        let used = if number < 4 { 8 } else { 0 };
        let mut entry = entry(&format!("n{number}"), &["MIXED"], "", "gpu");
        entry["gres"] = json!({"total": "gpu:h100:8", "used": format!("gpu:h100:{used}(IDX:N/A)")});
        entry
    });
    let entries: Vec<Value> = entries.collect();
    let told = nodes(&bytes(&json!({"sinfo": entries}))).expect("it is an answer");
    let config = InventoryConfig {
        source: "slurm".to_owned(),
        ..InventoryConfig::default()
    };
    let inventory = Inventory::new(&config, "prod");
    let now = Moment {
        at: Timestamp::from_seconds(1_790_000_000),
        monotonic: Duration::ZERO,
    };
    let judged = |why: &str, tasks: &str, runs: usize| {
        let array = |id: i64| json!({"set": true, "infinite": false, "number": id});
        let task = |id: i64, of: i64, state: Value| {
            json!({"job_id": id, "array_job_id": array(of), "job_state": state, "state_reason": why,
                "array_task_string": "", "partition": "gpu", "node_count": 1, "tres_req_str": "gres/gpu=8"})
        };
        // So many of a thousand run; half of the nodes are used, by others as well.
        // Older releases name one state alone, newer ones all.
        let states = [
            json!(["RUNNING"]),
            json!(["RUNNING", "CONFIGURING"]),
            json!("CONFIGURING"),
            json!("SUSPENDED"),
        ];
        let states = (10..).zip(states.into_iter().cycle());
        let mut jobs: Vec<Value> = states
            .take(runs)
            .map(|(id, state)| task(id, 1, state))
            .collect();
        jobs.extend([
            task(20, 2, json!(["RUNNING"])),
            task(21, 0, json!(["RUNNING"])),
            task(22, 1, json!(["COMPLETING"])),
        ]);
        let mut waits = task(1, 1, json!(["PENDING"]));
        waits["array_task_string"] = json!(tasks);
        jobs.push(waits);
        let job = json!({"jobs": jobs});
        let mut pods = Pods::default();
        for (node, used) in &told.nodes {
            let (node, gpus) = (node.name.as_str(), used.expect("it is told"));
            let bound = Bound {
                node: node.into(),
                gpus,
            };
            pods.put(&format!("on {node}"), Pod::Bound(bound));
        }
        for (id, claim) in waiting(&job, &told.closed).expect("it is an answer") {
            pods.put(&id, Pod::Waits(Box::new(claim)));
        }
        let mut known = ClusterState::default();
        known.all_nodes(told.nodes.iter().map(|it| it.0.clone()).collect(), now);
        known.all_pods(pods, now);
        let shown = look::look(&inventory, &known, now);
        let sample = look::sample(&inventory, &known, now).expect("all of it is seen");
        let (demand, why) = sample.judged();
        assert_eq!(shown.gpus_waited_for, Some(demand));
        let held = (shown.held_by_owners, shown.gpus_held_by_owners);
        let why: Vec<Demand> = why.expect("nodes are seen").of.into_values().collect();
        (demand, held, why)
    };
    let full = || (0, (1, Some(996 * 8)), vec![Demand::None]);
    assert_eq!(judged("JobArrayTaskLimit", "4-999%4", 4), full());
    // As many run as may, whatever was its reason when they began.
    assert_eq!(judged("Priority", "4-999%4", 4), full());
    assert_eq!(judged("Priority", "4-999%3", 4), full());
    // It is waited for those that may begin beside those that run, and without a limit for all.
    for (tasks, runs, waited_for) in [("4-999%4", 0, 4), ("4-999%4", 3, 1), ("4-9", 4, 6)] {
        let (demand, held, _) = judged("Priority", tasks, runs);
        let expected = (waited_for * 8, (0, Some(0)));
        assert_eq!((demand, held), expected, "{tasks} {runs}");
    }
    assert_eq!(at_once("4-999"), u32::MAX);
}

#[test]
fn the_states_of_a_node_say_whether_it_runs_and_takes_anything() {
    for (states, ready, cordoned, kept) in [
        (&["IDLE"][..], Ready::Yes, false, 0),
        (&["ALLOCATED"], Ready::Yes, false, 0),
        (&["IDLE", "DRAIN"], Ready::Yes, true, 0),
        (&["DOWN", "NOT_RESPONDING"], Ready::No, false, 0),
        (&["IDLE", "POWERED_DOWN"], Ready::No, false, 0),
        (&["IDLE", "RESERVED"], Ready::Yes, false, 1),
        (&[], Ready::No, false, 0),
    ] {
        let answer = json!({"sinfo": [entry("n", states, "", "gpu")]});
        let found = nodes(&bytes(&answer)).expect("it is an answer").nodes;
        let node = &found[0].0;
        assert_eq!((node.ready, node.cordoned), (ready, cordoned), "{states:?}");
        assert_eq!(node.kept_for.len(), kept, "{states:?}");
        let is_told = node.trouble == format!("{}: fan", states.join("+"));
        assert_eq!(is_told, ready == Ready::No, "{states:?} {}", node.trouble);
    }
}

#[test]
fn a_machine_of_a_cloud_that_is_powered_down_is_not_there_and_one_of_ours_is() {
    for (states, count) in [
        (&["IDLE", "CLOUD", "POWERED_DOWN"][..], 0),
        (&["FUTURE"], 0),
        (&["IDLE", "CLOUD"], 1),
        (&["IDLE", "CLOUD", "POWERING_UP"], 1),
        (&["IDLE", "POWERED_DOWN"], 1),
    ] {
        let answer = json!({"sinfo": [entry("n", states, "", "gpu")]});
        let found = nodes(&bytes(&answer)).expect("it is an answer");
        assert_eq!(found.nodes.len(), count, "{states:?}");
    }
}

#[test]
fn gpus_are_counted_in_every_form_that_slurm_writes() {
    for (text, expected) in [
        ("gpu:8", (8, "")),
        ("gpu:a100:8", (8, "a100")),
        ("gpu:a100:2(S:0,1),gpu:h100:2", (4, "a100")),
        ("tmp:7T,gpu:l40s:4(IDX:0-1,3)", (4, "l40s")),
        ("shard:16", (0, "")),
        ("gpu:many", (0, "")),
        ("", (0, "")),
        (")))", (0, "")),
    ] {
        let (count, model) = gres(text);
        assert_eq!((count, model.as_str()), expected, "{text}");
    }
    for (text, expected) in [
        ("cpu=2,mem=20G,node=1,gres/gpu=4,gres/gpu:a40=4", (4, "a40")),
        ("gres/gpu:a40=4", (4, "a40")),
        ("cpu=2", (0, "")),
    ] {
        let (count, model) = asked(text);
        assert_eq!((count, model.as_str()), expected, "{text}");
    }
}

#[test]
fn a_job_that_waits_says_what_for_since_when_and_why() {
    let wrapped = |number: i64| json!({"set": true, "infinite": false, "number": number});
    let job = |state: Value, reason: &str, tres: &str| {
        json!({"job_id": 525, "job_state": state, "state_reason": reason, "account": "ml",
            "partition": "gpu", "tres_req_str": tres, "submit_time": wrapped(1_755_290_346),
            "node_count": wrapped(2)})
    };
    let tres = "cpu=8,node=2,gres/gpu=16,gres/gpu:h100=16";
    let answer = json!({"jobs": [
        job(json!(["PENDING"]), "Resources", tres),
        job(json!(["RUNNING"]), "None", tres),
        job(json!("PENDING"), "Priority", "cpu=8,node=2"),
    ]});
    let found = waiting(&answer, &Closed::default()).expect("it is an answer");
    let expected = Claim {
        namespace: "ml".to_owned(),
        workload: "slurm:525".to_owned(),
        queue: "gpu".to_owned(),
        model: "h100".to_owned(),
        places: 2,
        gpus_each: 8,
        together: Some(2),
        is_shares: false,
        since: Timestamp::from_seconds(1_755_290_346),
        reason: Reason::NoPlace,
        words: "Resources".to_owned(),
        tolerates: Vec::new(),
        partitions: vec!["gpu".to_owned()],
        scaler: None,
    };
    assert_eq!(found, [("job 525".to_owned(), expected)]);
    let mut of_several = job(json!("PENDING"), "Resources", tres);
    of_several["partition"] = json!("long,gpu,long");
    let found =
        waiting(&json!({"jobs": [of_several]}), &Closed::default()).expect("it is an answer");
    assert_eq!(found[0].1.partitions, ["gpu", "long"]);
    for (why, expected) in [
        ("None", Reason::NotTried),
        ("Dependency", Reason::ByOwner),
        ("BeginTime", Reason::ByOwner),
        ("JobHeldUser", Reason::ByOwner),
        ("JobHeldAdmin", Reason::HeldBack),
        ("QOSMaxGRESPerUser", Reason::NoPlace),
    ] {
        let answer = json!({"jobs": [job(json!(["PENDING"]), why, tres)]});
        let found = waiting(&answer, &Closed::default()).expect("it is an answer");
        assert_eq!(found[0].1.reason, expected, "{why}");
    }
    // Older releases write the number alone; a number that is not set is none.
    let mut old = job(json!(["PENDING"]), "Priority", "gres/gpu=3");
    old["submit_time"] = json!(1_701_982_989);
    old["node_count"] = json!({"set": false, "number": 0});
    let found = waiting(&json!({"jobs": [old]}), &Closed::default()).expect("it is an answer");
    let claim = &found[0].1;
    assert_eq!(claim.since, Timestamp::from_seconds(1_701_982_989));
    assert_eq!((claim.places, claim.gpus_each), (1, 3));
}

#[test]
fn what_is_no_answer_is_not_taken_for_an_empty_cluster() {
    for text in [
        "",
        "slurm_load_partitions error",
        "{}",
        "{\"sinfo\": []}",
        "[]",
    ] {
        assert!(nodes(text.as_bytes()).is_err(), "{text}");
    }
    assert!(claims(b"{}", &Closed::default()).is_err());
    let none = claims(b"{\"jobs\": []}", &Closed::default());
    assert_eq!(none, Ok(Vec::new()));
}

#[tokio::test]
async fn a_file_is_read_while_it_is_young_and_a_command_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("sinfo.json"), "{}").expect("written");
    let written = std::fs::metadata(folder.path().join("sinfo.json"));
    let written = written.and_then(|it| it.modified()).expect("it is there");
    let since = written
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let at = |seconds: i64| {
        let nanos = i64::try_from(since.as_nanos()).expect("before 2262");
        Timestamp(nanos).shifted(seconds * NANOS_PER_SECOND)
    };
    let asked = async |program, seconds| ask(folder.path(), (program, &[]), at(seconds)).await;
    assert_eq!(asked("sinfo", 299).await, Ok(b"{}".to_vec()));
    let old = asked("sinfo", 360).await.expect_err("it is old");
    assert!(old.contains("6 min ago") && old.contains("cron"), "{old}");
    let absent = asked("squeue", 0).await.expect_err("there is none");
    assert!(absent.contains("squeue.json"), "{absent}");
    let nothing = Path::new("");
    let absent = ask(nothing, ("no-such-sinfo", &[]), at(0)).await;
    let absent = absent.expect_err("there is none");
    assert!(absent.contains("inventory.slurm_folder"), "{absent}");
    let failed = ask(nothing, ("false", &[]), at(0)).await;
    assert!(failed.is_err_and(|it| it.contains("failed with")));
}
