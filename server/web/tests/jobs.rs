//! The pages and the API of training jobs.

use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Resource, attribute as named};
use gpufleet_telemetry::steps::{StepBlock, StepTimes};
use gpufleet_telemetry::training::{RankId, attribute};
use gpufleet_telemetry::wire::Lane;

use super::*;
use crate::fleet::LiveValue;
use crate::runs::watch::Watch;
use crate::runs::{Heard, RunKey, Runs};
use crate::words::text::segment;

mod advice;
mod blind;
mod ladder;
mod map;
mod names;
mod order;
mod repeats;
mod values;
mod worth;

/// A job of eight ranks that runs, of which rank 3 became slow a minute ago; its name tries to be
/// more than a name.
pub(super) const JOB: &str = "team/%3Cb%3Ellama/u1";

/// The same as the API's comparison names it.
pub(super) const RUN: &str = "prod/team/%253Cb%253Ellama/u1/0";

/// A job of one rank that died of an exception.
pub(super) const DEAD: &str = "team/dead/u2";

/// A job whose model's name sounds like what pages say of what is not known.
const SOUNDS_OPEN: &str = "team/sounds/u3";

/// Seconds before the picture at which both began.
const AGE: i64 = 130;

fn at(seconds: i64) -> Timestamp {
    fixture::NOW.shifted((seconds - AGE) * 1_000_000_000)
}

fn rank_id(job: &str, rank: u32) -> RankId {
    RankId::parse(&format!("{job}/0/{rank}")).unwrap()
}

/// A rank with what it says of itself.
fn rank(job: &str, rank: u32, values: &[(Metric, f64)]) -> Live {
    let id = rank_id(job, rank).to_string();
    let mut live = fixture::live("prod", "h100-00", ResourceKind::Rank, &id, Origin::Live);
    let resource = Resource::clone(&live.resource)
        .with(named::WORLD, if job == JOB { "8" } else { "1" })
        .with(named::MESH, format!("dp={rank}/8"))
        .with(
            named::GPU_ID,
            if job == JOB && rank == 0 { GPU } else { "" },
        )
        .with(named::DATA_TYPE, "bf16")
        .with("gpufleet.tag.ladder", "fp8 & more")
        .with(
            "gpufleet.tag.rung",
            if job == JOB { "<i>fused" } else { "none" },
        );
    live.resource = Arc::new(resource);
    live.values = values
        .iter()
        .map(|(metric, value)| LiveValue {
            metric: metric.id,
            part: None,
            reading: Ok(*value),
            max: None,
            at: live.last_point,
        })
        .collect();
    live
}

fn block(first: i64, busy_ms: u64) -> StepBlock {
    let times = StepTimes {
        wall_ns: 1_000_000_000,
        busy_ns: busy_ms * 1_000_000,
        data_wait_ns: 100_000_000,
        comm_wait_ns: 0,
    };
    StepBlock {
        first_step: first.unsigned_abs(),
        steps_log2: 0,
        started_at: at(first),
        ended_at: at(first + 10),
        tokens: 40_960,
        samples: 0,
        times: vec![times; 10],
    }
}

fn event(job: &str, number: u32, seconds: i64, kind: EventKind, about: &[(&str, &str)]) -> Event {
    let about = about
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Event {
        at: at(seconds),
        kind,
        severity: Severity::Info,
        resource_kind: ResourceKind::Rank,
        resource_id: rank_id(job, number).to_string().into(),
        message: String::new(),
        attributes: about.collect(),
    }
}

/// What an agent says so many seconds after both began.
fn heard(seconds: i64) -> Heard {
    Heard {
        agent: gpufleet_telemetry::identity::AgentId(uuid::Uuid::from_u128(1)),
        lane: Lane::Live,
        received: at(seconds),
    }
}

/// A job's first rank says that it began.
fn began(runs: &Runs, cluster: &Arc<str>, job: &str) {
    let made_of = match job {
        JOB | DEAD => "torch=2.9.1\n",
        SOUNDS_OPEN => "model=no price\ntorch=2.9.1\n",
        _ => "model=Llama\ntorch=2.9.1\n",
    };
    let about = [(attribute::FINGERPRINT, made_of)];
    let began = event(job, 0, 0, EventKind::RunStarted, &about);
    runs.event(cluster, &began, heard(0)).unwrap();
}

/// Puts both jobs into the fleet, judges them, and makes them durable.
pub(super) async fn put(fleet: &Fleet, store: &Store) {
    let runs = fleet.runs();
    let cluster: Arc<str> = "prod".into();
    let told = [(training::STEPS, 120.0), (training::LOSS, 2.5)];
    for job in [JOB, DEAD] {
        began(runs, &cluster, job);
    }
    let mut watch = Watch::default();
    for first in (0..120).step_by(10) {
        for number in 0..8 {
            let slow = number == 3 && first >= 60;
            let key = RunKey::of(&cluster, &rank_id(JOB, number));
            let block = block(first, if slow { 800 } else { 600 });
            runs.steps(&key, number, &block, heard(first + 10)).unwrap();
            runs.rank(&rank(JOB, number, &told), heard(first + 10))
                .unwrap();
        }
        watch.round(runs, store, at(first + 10)).await;
    }
    let text = [
        (attribute::EXCEPTION, "ValueError"),
        (attribute::EXCEPTION_MESSAGE, "<script>alert(1)</script>"),
    ];
    let ended = [(attribute::ENDED, "exception")];
    runs.rank(&rank(DEAD, 0, &told), heard(5)).unwrap();
    for (kind, about) in [
        (EventKind::RankException, &text[..]),
        (EventKind::RunEnded, &ended[..]),
    ] {
        let event = event(DEAD, 0, 20, kind, about);
        runs.event(&cluster, &event, heard(21)).unwrap();
    }
    watch.round(runs, store, fixture::NOW).await;
    make_durable(fleet, store).await;
}

/// All ranks of [`JOB`] are heard again, so many seconds after the picture, and have made no step since.
pub(super) fn stand(server: &Fixture, seconds: i64) {
    let told = [(training::STEPS, 120.0), (training::LOSS, 2.5)];
    for number in 0..8 {
        let live = rank(JOB, number, &told);
        let runs = server.fleet.runs();
        runs.rank(&live, heard(AGE + seconds)).unwrap();
    }
}

/// Commits what the fleet knows.
async fn make_durable(fleet: &Fleet, store: &Store) {
    let lease = store.acquire_lease("tests", fixture::NOW, Duration::from_secs(30));
    let lease = lease.await.unwrap();
    let commit = fleet.take_commit(fixture::NOW).unwrap();
    store.commit(&commit, lease.token).await.unwrap();
    fleet.committed(commit.number);
    store.release_lease(lease.token).await.unwrap();
}

/// A job of one rank on a GPU that takes a second a step, and computes at a fifth of the card's peak: it runs,
/// or it broke off 60 steps after its last checkpoint.
pub(super) async fn put_one(server: &Fixture, job: &str, gpu: &str, broke_off: bool) {
    let (fleet, store) = (&*server.fleet, &server.store);
    let runs = fleet.runs();
    let cluster: Arc<str> = "prod".into();
    began(runs, &cluster, job);
    let told = [
        (training::STEPS, 120.0),
        (training::STEP_WALL, 120.0),
        (training::MODEL_FLOPS, 120.0 * 0.2 * 989.4e12),
    ];
    let mut live = rank(job, 0, &told);
    live.resource = Arc::new(Resource::clone(&live.resource).with(named::GPU_ID, gpu));
    live.values.sort_by_key(|it| it.metric);
    let mut watch = Watch::default();
    for first in (0..120).step_by(10) {
        let key = RunKey::of(&cluster, &rank_id(job, 0));
        let block = block(first, 600);
        runs.steps(&key, 0, &block, heard(first + 10)).unwrap();
        runs.rank(&live, heard(first + 10)).unwrap();
        watch.round(runs, store, at(first + 10)).await;
    }
    let ended = [(attribute::ENDED, "exception"), (attribute::STEP, "120")];
    let saved = event(
        job,
        0,
        61,
        EventKind::CheckpointSaved,
        &[(attribute::STEP, "60")],
    );
    runs.event(&cluster, &saved, heard(62)).unwrap();
    if broke_off {
        let event = event(job, 0, 120, EventKind::RunEnded, &ended);
        runs.event(&cluster, &event, heard(121)).unwrap();
        watch.round(runs, store, fixture::NOW).await;
    }
    make_durable(fleet, store).await;
}

pub(super) fn address(job: &str) -> String {
    format!("/clusters/prod/jobs/{}/0", segment(job))
}

#[tokio::test]
async fn the_list_says_of_each_job_how_it_stands() {
    let server = server().await;
    let (status, page) = server.get("/jobs").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        page.contains(&format!("href=\"{}\"", address(JOB))),
        "{page}"
    );
    assert!(page.contains("Rank 3 on h100-00 takes 1.29 × as long as its peers"));
    assert!(page.contains("ValueError"));
    assert!(
        !page.contains("<script>alert"),
        "what a process says is a text"
    );
    let listed = server.json("/api/v1/jobs").await;
    let states: Vec<_> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["state"])
        .collect();
    assert_eq!(states.len(), 2);
    assert!(states.contains(&&"running".into()) && states.contains(&&"ended".into()));
}

#[tokio::test]
async fn the_job_page_names_the_slow_rank_first_and_says_why_a_figure_is_missing() {
    let server = server().await;
    let (status, page) = server.get(&address(JOB)).await;
    assert_eq!(status, StatusCode::OK);
    for said in [
        "Runs: 1.00 s a step",
        "Cost so far",
        "no price: `",
        "Not measured: this job has no run on fewer GPUs; one of the same name, some steps long, measures it.",
        "/clusters/prod/ladders/fp8%20%26%20more",
        "Rank 3 on h100-00 takes 1.29 × as long as its peers since",
        "not said: the run gives no FLOPs",
        "not said: the run plans neither steps nor tokens",
        "No rank of it is live, and collectives are not kept.",
        "no rank tells its phases",
        "role=\"img\"",
        "class=\"h-4\"",
        "rank 3</th><td>",
        "torch",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert!(
        !page.contains("NaN") && !page.contains("<b>llama"),
        "{page}"
    );
    let [slow, runs] = ["Rank 3 on", "Runs: 1.00 s"].map(|it| page.find(it));
    assert!(slow < runs, "what is wrong comes first: {page}");
    assert!(!page.contains("Why it ended"));
    let (_, gpu) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    assert!(
        gpu.contains(&format!("Rank 0 of the job <a href=\"{}\"", address(JOB))),
        "{gpu}"
    );
    let (_, node) = server.get("/clusters/prod/nodes/h100-00").await;
    assert!(
        node.contains(&format!("<a href=\"{}\"", address(JOB))),
        "{node}"
    );
    let request = Request::get(format!("/clusters/prod/jobs/{}", segment(JOB)));
    let last = server.ask(request.body(Body::empty()).unwrap()).await;
    assert_eq!(
        last.headers()[header::LOCATION].to_str().unwrap(),
        address(JOB)
    );
}

#[tokio::test]
async fn the_page_of_a_run_that_ended_says_why_and_with_which_rank() {
    let server = server().await;
    let (status, page) = server.get(&address(DEAD)).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        page.contains("Why it ended") && page.contains("ValueError"),
        "{page}"
    );
    assert!(!page.contains("<script>alert"));
    assert!(page.contains("it does not run"), "there is no finish of it");
    assert!(page.contains("not known: no step was told"), "nor goodput");
}

#[tokio::test]
async fn hfu_stands_beside_mfu_or_the_reason_why_there_is_none() {
    let server = server().await;
    let job = "team/slow/u4";
    put_one(&server, job, GPU, false).await;
    let found = server
        .json(&format!("/api/v1/runs/prod/{}/0", segment(job)))
        .await;
    let mfu = found["mfu_ratio"]["value"].as_f64().unwrap_or(f64::NAN);
    assert!((mfu - 0.2).abs() < 1e-6, "{found}");
    // Its GPU cannot tell how long its tensor cores are active.
    let why = "not known: no GPU of the run tells how long its tensor cores are active";
    assert_eq!(found["hfu_ratio"]["missing"], why);
    assert_eq!(found["hfu_basis"], Value::Null);
    let (_, page) = server.get(&address(job)).await;
    for said in ["20.0 %", "of NVIDIA H100 80GB HBM3 bf16 dense", why] {
        assert!(page.contains(said), "{said}: {page}");
    }
}

#[tokio::test]
async fn a_step_and_a_million_tokens_have_a_price() {
    let server = super::today::priced(fixture::fleet()).await;
    let found = server
        .json(&format!("/api/v1/runs/prod/{}/0", segment(JOB)))
        .await;
    // Eight GPUs at ten dollars an hour, a second a step.
    let second = 80.0 / 3_600.0;
    for (figure, expected) in [
        ("usd_per_step", second),
        ("usd_per_million_tokens", second / (8.0 * 4_096.0) * 1e6),
    ] {
        let usd = found[figure]["value"].as_f64().unwrap();
        assert!((usd / expected - 1.0).abs() < 1e-6, "{figure}: {usd}");
    }
    let (_, page) = server.get(&address(JOB)).await;
    for said in ["Cost of a step", "$0.0222", "$0.6782 a million tokens"] {
        assert!(page.contains(said), "{said}: {page}");
    }
}

#[tokio::test]
async fn the_api_has_the_run_its_steps_and_what_two_runs_differ_in() {
    let server = server().await;
    let run = format!("/api/v1/runs/prod/{}/0", segment(JOB));
    let found = server.json(&run).await;
    assert_eq!(found["slow_ranks"][0]["rank"], 3);
    assert_eq!(found["mfu_ratio"]["value"], Value::Null);
    assert_eq!(
        found["mfu_ratio"]["missing"],
        "not said: the run gives no FLOPs"
    );
    assert_eq!(found["step_seconds"]["value"], 1.0);
    assert_eq!(found["tokens_per_second"]["value"], 8.0 * 4_096.0);
    let goodput = &found["goodput_seconds"];
    assert_eq!(
        (
            goodput["data_loading"].as_f64(),
            goodput["productive"].as_f64()
        ),
        (Some(12.0), Some(72.0)),
        "of each step it stood still for 300 ms, and nobody says for what"
    );
    assert_eq!(found["goodput_ratio"]["value"], 72.0 / 130.0);
    assert_eq!(found["observed_ratio"]["value"], 1.0);
    let missing = found["cost_so_far_usd"]["missing"].as_str().unwrap();
    assert!(missing.starts_with("no price: `"), "{missing}");
    for figure in ["usd_per_step", "usd_per_million_tokens"] {
        assert_eq!(found[figure]["missing"], missing, "{figure}");
    }
    assert_eq!(found["scaling_ratio"]["value"], Value::Null);
    assert_eq!(found["energy_kwh"]["value"], Value::Null, "not 0");
    let missing = found["energy_kwh"]["missing"].as_str().unwrap();
    assert!(missing.starts_with("not "), "{missing}");
    assert_eq!(found["energy_metered_ratio"], Value::Null);
    let steps = server.json(&format!("{run}/steps?ranks=3")).await;
    assert_eq!(steps[0]["rank"], 3);
    let count: usize = steps
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["busy_seconds"].as_array().unwrap().len())
        .sum();
    assert_eq!(count, 120, "from the store and from memory each once");
    let same = server
        .json(&format!("/api/v1/runs/compare?a={RUN}&b={RUN}"))
        .await;
    assert_eq!(
        (&same["speed_up"], &same["speed_up_by"]),
        (&1.0.into(), &"tokens".into())
    );
    assert_eq!(same["differences"].as_array().unwrap().len(), 0);
    assert_eq!(same["loss"], Value::Null);
    assert!(same["loss_missing"].is_string());
}

#[tokio::test]
async fn the_api_of_a_job_lists_its_attempts() {
    let server = server().await;
    let job = server
        .json(&format!("/api/v1/jobs/prod/{}", segment(DEAD)))
        .await;
    assert_eq!(job["attempts"][0]["cause"], "exception");
    assert_eq!(job["attempts"][0]["state"], "ended");
}

#[tokio::test]
async fn two_runs_stand_side_by_side_with_a_reason_for_what_is_missing() {
    const DEAD_RUN: &str = "prod/team/dead/u2/0";
    let server = server().await;
    let newer = [
        (attribute::FINGERPRINT, "nccl=2.28\ntorch=2.10.0\n"),
        (attribute::STEP, "0"),
    ];
    let runs = server.fleet.runs();
    let event = event(DEAD, 0, 1, EventKind::RunStarted, &newer);
    runs.event(&"prod".into(), &event, heard(22)).unwrap();
    let (status, form) = server.get("/compare").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(form.matches(&format!("value=\"{DEAD_RUN}\"")).count(), 2);
    for said in [
        "attempt 0, running, in prod",
        "dead, attempt 0, ended, in prod",
    ] {
        assert_eq!(form.matches(said).count(), 2, "{said}: {form}");
    }
    assert!(
        !form.contains("How they do") && !form.contains("<b>llama"),
        "{form}"
    );
    let (status, page) = server.get(&format!("/compare?a={RUN}&b={DEAD_RUN}")).await;
    assert_eq!(status, StatusCode::OK);
    for said in [
        "not known: a run has fewer than 20 steps",
        "<td>1.00 s</td>",
        "<td>32\u{202f}768</td>",
        "not said: the run gives no tokens",
        "a run does not say loss and tokens",
        "no price: `",
        "<td class=\"mono\">2.9.1</td><td class=\"mono\">2.10.0</td>",
        "<td class=\"mono\"><a class=\"missing\" href=\"/health#hooks\">not said</a></td><td class=\"mono\">2.28</td>",
        "/api/v1/runs/compare?a=prod%2Fteam%2F%253Cb%253Ellama%2Fu1%2F0",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert!(
        !page.contains("NaN") && !page.contains("<b>llama"),
        "{page}"
    );
    let (_, page) = server.get(&format!("/compare?a={RUN}&b={RUN}")).await;
    assert!(page.contains(">×1.000"), "{page}");
    assert!(page.contains("the same in both: 1."), "{page}");
    for nobodys in ["nothing", "prod/team/none/u1/0", "other/team/dead/u2/0"] {
        let (status, page) = server.get(&format!("/compare?a={RUN}&b={nobodys}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{nobodys}");
        assert!(page.contains(nobodys), "{page}");
    }
    let (_, run) = server.get(&address(DEAD)).await;
    let to_here = "href=\"/compare?b=prod%2Fteam%2Fdead%2Fu2%2F0\"";
    assert!(run.contains(to_here), "{run}");
    let (_, ladder) = server.get("/clusters/prod/ladders/fp8%20%26%20more").await;
    assert_eq!(
        ladder.matches("href=\"/compare?a=prod").count(),
        1,
        "{ladder}"
    );
}
