//! Runs, ranks and their steps, on either side.

use gpufleet_telemetry::steps::{StepBlock, StepTimes};
use gpufleet_telemetry::training::{JobId, RunId};

use super::*;
use crate::runs::{KnownRun, RankFacts, RunFacts, RunKey, StepDelta};

fn at(seconds: i64) -> Timestamp {
    START.start().shifted(seconds * 1_000_000_000)
}

fn run_key(attempt: u32) -> RunKey {
    let job = JobId::parse("team/llama/u1").expect("an id");
    RunKey {
        cluster: "live".into(),
        run: RunId { job, attempt },
    }
}

fn told(attempt: u32, started: i64, heard: i64) -> KnownRun {
    KnownRun {
        key: run_key(attempt),
        facts: RunFacts {
            started: Some(at(started)),
            heard: at(heard),
            world: 1,
            ..RunFacts::default()
        },
        ranks: vec![(0, RankFacts::default())],
        is_part: false,
    }
}

/// Ten steps of a second each, from this second on.
fn block(first: i64) -> StepBlock {
    let times = StepTimes {
        wall_ns: 1_000_000_000,
        ..StepTimes::default()
    };
    StepBlock {
        first_step: first.unsigned_abs(),
        steps_log2: 0,
        started_at: at(first),
        ended_at: at(first + 10),
        tokens: 0,
        samples: 0,
        times: vec![times; 10],
    }
}

fn steps(number: u64, first: i64) -> Commit {
    let delta = StepDelta {
        key: run_key(0),
        rank: 0,
        bucket: START.0.div_euclid(10) + first.div_euclid(600),
        blocks: vec![block(first)],
    };
    Commit {
        number,
        runs: vec![told(0, 0, first + 10)],
        steps: vec![delta],
        ..Commit::default()
    }
}

/// Nothing is too old but what is said.
fn keep(steps: i64, events: Timestamp) -> Expiry {
    Expiry {
        steps,
        events,
        ..keep_all()
    }
}

both! {
    async fn steps_of_several_commits_are_one_row_in_order_and_what_comes_twice_is_kept_once(bench) {
        // The second comes before the first, and the first again under another number.
        for (number, first) in [(1, 10), (2, 0), (3, 10), (4, 20)] {
            bench.commit(&steps(number, first)).await;
        }
        let bucket = START.0.div_euclid(10);
        let found = bench.store.steps(&run_key(0), None, bucket..bucket + 1).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].blocks.len(), 1, "they follow each other");
        assert_eq!((found[0].blocks[0].first_step, found[0].blocks[0].times.len()), (0, 30));
        let same = bench.store.steps(&run_key(0), Some(&[0]), bucket..bucket + 1).await.unwrap();
        assert_eq!(same, found);
        let other = bench.store.steps(&run_key(0), Some(&[1]), bucket..bucket + 1).await.unwrap();
        assert_eq!(other, []);
    }
}

both! {
    async fn runs_are_read_last_started_first_page_by_page_and_by_job(bench) {
        let mut first = Commit { number: 1, ..Commit::default() };
        first.runs = (0..5).map(|it| told(it, i64::from(it) * 60, 600)).collect();
        bench.commit(&first).await;
        let filter = RunFilter { job: Some(run_key(0).run.job), ..RunFilter::default() };
        let (page, next) = bench.store.runs(&filter, None, 3).await.unwrap();
        let attempts = |runs: &[KnownRun]| runs.iter().map(|it| it.key.run.attempt).collect::<Vec<_>>();
        assert_eq!(attempts(&page), [4, 3, 2]);
        let (page, _) = bench.store.runs(&filter, next, 3).await.unwrap();
        assert_eq!(attempts(&page), [1, 0]);
        let other = RunFilter { cluster: Some("other".into()), ..RunFilter::default() };
        assert_eq!(bench.store.runs(&other, None, 3).await.unwrap().0, []);
        assert_eq!(bench.store.run(&run_key(3)).await.unwrap(), Some(told(3, 180, 600)));
    }
}

both! {
    async fn of_runs_that_are_named_the_last_attempts_are_told_in_the_order_of_their_names(bench) {
        let of = |name: &str, attempt| {
            let job = JobId::parse(name).expect("an id");
            let key = RunKey { run: RunId { job, attempt }, ..run_key(0) };
            KnownRun { key, ..told(attempt, 0, 600) }
        };
        let runs = [of("team/a/u", 0), of("team/a/u", 1), of("team/b/u", 0), of("team/c/u", 3)];
        let commit = Commit { number: 1, runs: runs.to_vec(), ..Commit::default() };
        bench.commit(&commit).await;
        let [earlier, a, b, c] = runs.map(|it| it.key);
        let none = of("team/c/u", 4).key;
        let asked = [c.clone(), earlier, none, b.clone(), a.clone()];
        let found = bench.store.last_attempts(&asked).await.unwrap();
        let found: Vec<RunKey> = found.into_iter().map(|it| it.key).collect();
        assert_eq!(found, [c, b, a]);
        assert_eq!(bench.store.last_attempts(&[]).await.unwrap(), []);
    }
}

both! {
    async fn names_of_runs_are_read_without_their_facts_and_it_is_said_whether_they_are_all(bench) {
        let mut commit = Commit { number: 1, ..Commit::default() };
        commit.runs = (0..3).map(|it| told(it, i64::from(it) * 60, 600)).collect();
        bench.commit(&commit).await;
        bench.execute("UPDATE run SET facts = 'no JSON'").await;
        let names = async |filter: &RunFilter, most| {
            let (keys, are_all) = bench.store.run_names(filter, most).await.unwrap();
            let attempts = keys.iter().map(|it| it.run.attempt);
            (attempts.collect::<Vec<_>>(), are_all)
        };
        let all = RunFilter::default();
        assert_eq!(names(&all, 2).await, (vec![2, 1], false));
        assert_eq!(names(&all, 3).await, (vec![2, 1, 0], true));
        let last = RunFilter { only_last: true, ..RunFilter::default() };
        assert_eq!(names(&last, 3).await, (vec![2], true));
        let other = RunFilter { cluster: Some("other".into()), ..RunFilter::default() };
        assert_eq!(names(&other, 3).await, (vec![], true));
        for (attempt, cause) in [(2, "finished"), (1, "node_lost"), (0, "of_a_newer_version")] {
            bench.execute(&format!("UPDATE run SET cause = '{cause}' WHERE attempt = {attempt}")).await;
        }
        let broke_off = RunFilter { only_interrupted: true, ..RunFilter::default() };
        assert_eq!(names(&broke_off, 1).await, (vec![1], false), "what went well takes no room");
        assert_eq!(names(&broke_off, 2).await, (vec![1, 0], true));
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, 0, "facts were not looked at");
    }
}

both! {
    async fn old_steps_go_before_their_run_and_a_run_with_its_ranks(bench) {
        bench.commit(&steps(1, 0)).await;
        bench.commit(&steps(2, 600)).await;
        let bucket = START.0.div_euclid(10);
        let gone = bench.store.retain(&keep(bucket + 1, Timestamp(0))).await.unwrap();
        assert_eq!(gone.runs, 1, "the first ten minutes");
        let left = bench.store.steps(&run_key(0), None, bucket..bucket + 2).await.unwrap();
        assert_eq!(left.iter().map(|it| it.bucket).collect::<Vec<_>>(), [bucket + 1]);
        assert_eq!(bench.store.retain(&keep(0, at(610))).await.unwrap().runs, 0, "heard then");
        assert_eq!(bench.store.runs_kept_since().await.unwrap(), None, "all are kept");
        assert_eq!(bench.store.retain(&keep(0, at(611))).await.unwrap().runs, 2);
        assert_eq!(bench.store.runs_kept_since().await.unwrap(), Some(at(611)));
        assert_eq!(bench.store.run(&run_key(0)).await.unwrap(), None);
        assert_eq!(bench.int("SELECT COUNT(*) FROM rank").await, 0);
    }
}

both! {
    async fn a_spoilt_row_of_steps_is_set_aside_and_begun_anew(bench) {
        bench.commit(&steps(1, 0)).await;
        bench.execute("UPDATE step_block SET data = substr(data, 1, 9)").await;
        assert_eq!(bench.commit(&steps(2, 10)).await.corrupt, 1);
        let bucket = START.0.div_euclid(10);
        let found = bench.store.steps(&run_key(0), None, bucket..bucket + 1).await.unwrap();
        assert_eq!(found[0].blocks[0].first_step, 10);
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, 1);
    }
}

both! {
    async fn a_part_of_a_run_is_put_over_what_is_stored_of_it_and_a_whole_in_its_place(bench) {
        let mut first = told(0, 0, 600);
        first.facts.world = 8;
        first.ranks.push((1, RankFacts { gpu: "GPU-1".into(), ..RankFacts::default() }));
        bench.commit(&Commit { number: 1, runs: vec![first.clone()], ..Commit::default() }).await;
        let mut part = told(0, 0, 90_000);
        (part.facts.started, part.facts.world, part.is_part) = (None, 0, true);
        part.ranks = vec![(1, RankFacts { heard: at(90_000), ..RankFacts::default() })];
        let new = KnownRun { is_part: true, ..told(1, 700, 90_000) };
        let runs = vec![part, new.clone()];
        bench.commit(&Commit { number: 2, runs, ..Commit::default() }).await;
        let found = bench.store.run(&run_key(0)).await.unwrap().unwrap();
        assert_eq!((found.facts.started, found.facts.world), (Some(at(0)), 8));
        assert_eq!(found.facts.heard, at(90_000));
        assert_eq!((found.ranks.len(), &*found.ranks[1].1.gpu), (2, "GPU-1"));
        assert_eq!(found.ranks[1].1.heard, at(90_000));
        let found = bench.store.run(&run_key(1)).await.unwrap();
        assert_eq!(found, Some(KnownRun { is_part: false, ..new }), "nothing was stored of it");
    }
}

both! {
    async fn steps_of_a_run_that_only_the_store_knows_are_kept_and_of_one_that_nobody_does_counted(bench) {
        bench.commit(&steps(1, 0)).await;
        let stored = Commit { runs: Vec::new(), ..steps(2, 10) };
        bench.commit(&stored).await;
        let mut unknown = steps(3, 20);
        unknown.runs.clear();
        unknown.steps[0].key = run_key(5);
        assert_eq!(bench.commit(&unknown).await.steps_of_nobody, 10);
        let bucket = START.0.div_euclid(10);
        let found = bench.store.steps(&run_key(0), None, bucket..bucket + 1).await.unwrap();
        assert_eq!(found[0].blocks[0].times.len(), 20);
    }
}

/// Those of one name are found among many by the index of names, whatever order of words the database has.
async fn runs_of_one_name(bench: &Bench) {
    let mut first = told(0, 60, 600);
    let mut commit = |name: &str, number| {
        first.key.run.job = JobId::parse(name).expect("an id");
        Commit {
            number,
            runs: vec![first.clone()],
            ..Commit::default()
        }
    };
    bench.commit(&commit("team/other/u1", 1)).await;
    bench
        .execute(
            "INSERT INTO run (lease, cluster, job, attempt, started_ms, heard_ms, facts)
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             SELECT r.lease, r.cluster, 'team/other-' || n.i || '/u1', 0, n.i, n.i, r.facts
             FROM run r CROSS JOIN n",
        )
        .await;
    let names = [
        "team/llama/u2",
        "team/llama-2/u1",
        "team/llama/z0",
        "team/llama0/u1",
        "team/LLAMA/u1",
        "other/llama/",
        "team/a%20b/u1",
    ];
    for (name, number) in names.into_iter().zip(2..) {
        bench.commit(&commit(name, number)).await;
    }
    // Of runs SQLite has no statistics in life either.
    if bench.store.kind() != "sqlite" {
        bench.execute("ANALYZE run").await;
    }
    let filter = RunFilter {
        cluster: Some("live".into()),
        name_of: Some(JobId::parse("team/llama/u1").expect("an id")),
        ..RunFilter::default()
    };
    let (found, _) = bench.store.runs(&filter, None, 10).await.unwrap();
    let found: Vec<String> = found.iter().map(|it| it.key.run.job.to_string()).collect();
    assert_eq!(found, ["team/llama/z0", "team/llama/u2"]);
    let called = |cluster: Option<&str>, name: &str| RunFilter {
        cluster: cluster.map(Arc::from),
        called: Some(name.to_owned()),
        ..RunFilter::default()
    };
    for (name, expected) in [
        (
            "llama",
            &["other/llama/", "team/llama/z0", "team/llama/u2"][..],
        ),
        ("team", &[]),
        ("u1", &[]),
        ("lla", &[]),
        ("a b", &["team/a%20b/u1"]),
    ] {
        let (found, _) = bench
            .store
            .runs(&called(None, name), None, 10)
            .await
            .unwrap();
        let found: Vec<String> = found.iter().map(|it| it.key.run.job.to_string()).collect();
        assert_eq!(found, expected, "{name}");
    }
    for cluster in [None, Some("live")] {
        let plan = bench.plan_of_runs(&called(cluster, "llama")).await;
        let by_names = bench.store.kind() != "sqlite" || plan.contains("(lease=? AND cluster");
        assert!(by_names, "{plan}");
    }
    let plan = bench.plan_of_runs(&filter).await;
    let by_name = match bench.store.kind() {
        "sqlite" => "(lease=? AND cluster=? AND job>? AND job<?)",
        _ => "(job >= 'team/llama/'::text) AND (job < 'team/llama0'::text)",
    };
    assert!(plan.contains("run") && plan.contains(by_name), "{plan}");
    let filter = RunFilter {
        job: filter.name_of,
        name_of: None,
        ..filter
    };
    let plan = bench.plan_of_runs(&filter).await;
    let by_job = match bench.store.kind() {
        "sqlite" => "(lease=? AND cluster=? AND job=?)",
        _ => "AND (cluster = 'live'::text) AND (job = 'team/llama/u1'::text",
    };
    assert!(plan.contains(by_job), "{plan}");
}

#[tokio::test]
async fn runs_of_one_name_are_a_range_of_the_index_of_names_on_sqlite() {
    runs_of_one_name(&Bench::sqlite().await).await;
}

#[tokio::test]
async fn runs_of_one_name_are_a_range_of_the_index_of_names_on_a_postgres_that_sorts_by_words() {
    let bench = Bench::postgres_by_words().await;
    runs_of_one_name(&bench).await;
    bench.drop_database().await;
}
