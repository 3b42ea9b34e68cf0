//! The page and the API of a job that tells everything: each figure and each card with its values.

use gpufleet_telemetry::identity::{Part, PartKind};

use super::*;
use crate::words::text;

/// Steps that it has done, of a second each, and that it plans.
const DONE: f64 = 120.0;
const PLANNED: f64 = 720.0;

/// Bytes.
const GIB: f64 = 1_073_741_824.0;

/// What one of its two ranks tells.
fn whole(job: &str, number: u32, deadline: Timestamp) -> Live {
    let peak = 989.4e12;
    let is_first = number == 0;
    let told = [
        (training::STEPS, DONE),
        (training::LAST_STEP, DONE),
        (training::STEP_WALL, DONE),
        (training::PLANNED_STEPS, PLANNED),
        (training::DEADLINE_AT, deadline.seconds() as f64),
        (training::MODEL_FLOPS, DONE * 0.2 * peak),
        (training::HARDWARE_FLOPS, DONE * 0.25 * peak),
        (training::PHASE_FORWARD, if is_first { 30.0 } else { 60.0 }),
        (training::PHASE_BACKWARD, 60.0),
        (training::PHASE_OPTIMIZER, 0.0),
        (training::LOSS, 2.5),
        (
            training::MEMORY_PEAK_RESERVED,
            if is_first { 40.0 } else { 72.0 } * GIB,
        ),
        (training::MEMORY_LIMIT, 80.0 * GIB),
    ];
    let mut live = rank(job, number, &told);
    let resource = Resource::clone(&live.resource)
        .with(named::WORLD, "2")
        .with(named::MESH, format!("dp={number}/2"))
        .with(named::MESH_SOURCE, "device_mesh")
        .with(named::GPU_ID, format!("GPU-prod-h100-00-{number:04}"));
    live.resource = Arc::new(resource);
    let (reduce, gather) = ("00000000000000a1/AllReduce", "00000000000000a1/AllGather");
    let scatter = "00000000000000b2/ReduceScatter";
    let of_functions = [
        (training::COLLECTIVE_CALLS, reduce, 100.0),
        (training::COLLECTIVE_TRAFFIC, reduce, GIB),
        (
            training::COLLECTIVE_BUS_BANDWIDTH,
            reduce,
            if is_first { 200e9 } else { 300e9 },
        ),
        (
            training::COLLECTIVE_WAIT,
            reduce,
            if is_first { 1.5 } else { 0.5 },
        ),
        // As our plugin tells them: who waited is not in it, and has to be worked out.
        (training::COLLECTIVE_CALLS, gather, 100.0),
        // Of 30 of them the first rank's time was not measured: 70 × (7 s / 70 − 3 s / 100).
        (
            training::COLLECTIVE_TIMED,
            gather,
            if is_first { 70.0 } else { 100.0 },
        ),
        (
            training::COLLECTIVE_DURATION,
            gather,
            if is_first { 7.0 } else { 3.0 },
        ),
        (training::COLLECTIVE_CALLS, scatter, 100.0),
        (training::COLLECTIVE_DURATION, scatter, 2.0),
        // As NCCL's RAS service tells them: counts alone.
        (
            training::COLLECTIVE_CALLS,
            "00000000000000a1/Broadcast",
            1.0,
        ),
    ];
    live.values
        .extend(of_functions.map(|(metric, part, value)| LiveValue {
            metric: metric.id,
            part: Some(Arc::new(Part::new(PartKind::Collective, part))),
            reading: Ok(value),
            max: None,
            at: live.last_point,
        }));
    live.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
    live
}

/// A job of two ranks that has run for two minutes and has to be done then.
async fn put_whole(server: &Fixture, job: &str, deadline: Timestamp) {
    let runs = server.fleet.runs();
    let cluster: Arc<str> = "prod".into();
    began(runs, &cluster, job);
    let mut watch = Watch::default();
    for first in (0..120).step_by(10) {
        for number in 0..2 {
            let key = RunKey::of(&cluster, &rank_id(job, number));
            let block = block(first, 600);
            runs.steps(&key, number, &block, heard(first + 10)).unwrap();
            let live = whole(job, number, deadline);
            runs.rank(&live, heard(first + 10)).unwrap();
        }
        watch.round(runs, &server.store, at(first + 10)).await;
    }
    for number in 0..2 {
        server.fleet.put_for_tests(whole(job, number, deadline));
    }
    make_durable(&server.fleet, &server.store).await;
}

/// A figure of the page with its value and what stands below it.
fn figure(name: &str, value: &str, small: &str) -> String {
    let small = match small {
        "" => String::new(),
        small => format!("<small>{small}</small>"),
    };
    format!(">{name}</dt><dd>{value}{small}</dd>")
}

/// A bar of the page.
fn bar(name: &str, width: &str, words: &str) -> String {
    format!(
        "<span>{name}</span><svg class=\"meter\" viewBox=\"0 0 100 5\" preserveAspectRatio=\"none\" \
         aria-hidden=\"true\"><rect width=\"{width}\" height=\"5\"/></svg><span class=\"number\">{words}</span>"
    )
}

/// The collectives of a function, as the page's table has them: what is not known leads to its line of Health.
fn collectives(name: &str, cells: [&str; 4]) -> String {
    let cell = |it: &str| match ["not told", "not measured", "not known"].contains(&it) {
        true => format!("<a class=\"missing\" href=\"/health#collectives\">{it}</a>"),
        false => it.to_owned(),
    };
    let cells = cells.map(|it| format!("<td class=\"number\">{}</td>", cell(it)));
    format!(
        "<tr><td class=\"fit\">{name}</td>\n{}</tr>",
        cells.join("\n")
    )
}

#[tokio::test]
async fn a_job_that_tells_everything_has_a_value_in_each_figure_and_card() {
    let server = super::super::today::priced(fixture::fleet()).await;
    let job = "team/whole/u5";
    let deadline = fixture::NOW.shifted(480 * 1_000_000_000);
    put_whole(&server, job, deadline).await;
    let (status, page) = server.get(&address(job)).await;
    assert_eq!(status, StatusCode::OK);
    let done_at = fixture::NOW.shifted(600 * 1_000_000_000);
    let done_at = format!("{} UTC", text::moment(done_at));
    let against = "of NVIDIA H100 80GB HBM3 bf16 dense";
    for said in [
        figure("Step", "1.00 s", ""),
        figure("Tokens a second", "8\u{202f}192", ""),
        figure("MFU", "20.0 %", &format!("198 TFLOP/s a GPU, {against}")),
        figure(
            "HFU",
            "25.0 %",
            &format!(
                "247 TFLOP/s a GPU, {against}; FLOPs with recomputation as the run gives them"
            ),
        ),
        figure("Goodput", "55.4 %", ""),
        figure(
            "Memory at its peak",
            "72 GiB of 80 GiB",
            "of rank 1, the one with the least left",
        ),
        figure("Loss", "2.5000", ""),
        figure("Done at", &done_at, "16.7 % done, 2 min after its deadline"),
        // Two GPUs at ten dollars an hour: for 130 s, and for ten minutes more.
        figure("Cost so far", "$0.72", "$4.06 when it is done"),
        figure("Interruptions", "0", ""),
        bar("forward", "75", "45 s"),
        bar("backward", "100", "1 min"),
        collectives(
            "AllReduce",
            ["200", "2.0 GiB", "200 GB/s to 300 GB/s", "2.00 s"],
        ),
        collectives("Broadcast", ["2", "not told", "not measured", "not known"]),
        collectives(
            "AllGather",
            ["200", "not told", "not measured", "at least 4.90 s"],
        ),
        collectives(
            "ReduceScatter",
            ["200", "not told", "not measured", "none that shows"],
        ),
        "<td class=\"number\">40 GiB of 80 GiB</td>".to_owned(),
        "<td>dp=1/2 (DeviceMesh)</td>".to_owned(),
    ] {
        assert!(page.contains(&said), "{said}: {page}");
    }
    for missing in ["optimizer</span>", "no rank tells its phases", "NaN"] {
        assert!(!page.contains(missing), "{missing}: {page}");
    }
    let words = format!("{}, 55.4 %", text::span(72_000));
    assert!(page.contains(&words), "goodput as a bar, {words}: {page}");
}

#[tokio::test]
async fn how_late_a_job_will_be_stands_on_its_page_and_in_the_api() {
    let server = server().await;
    for (job, seconds, late, words) in [
        ("team/late/u6", 480, 120.0, "2 min after its deadline"),
        ("team/early/u7", 900, -300.0, "5 min before its deadline"),
    ] {
        let deadline = fixture::NOW.shifted(seconds * 1_000_000_000);
        put_whole(&server, job, deadline).await;
        let found = server
            .json(&format!("/api/v1/runs/prod/{}/0", segment(job)))
            .await;
        assert_eq!(found["late_seconds"], late, "{found}");
        assert_eq!(found["deadline"], text::rfc3339(deadline).as_str());
        assert_eq!(found["ranks"][1]["mesh_source"], "device_mesh");
        let (_, page) = server.get(&address(job)).await;
        assert!(page.contains(words), "{words}: {page}");
    }
    // Who has no deadline is neither.
    let found = server
        .json(&format!("/api/v1/runs/prod/{}/0", segment(JOB)))
        .await;
    assert_eq!(found["late_seconds"], Value::Null);
    let (_, page) = server.get(&address(JOB)).await;
    assert!(!page.contains("its deadline"), "{page}");
}

#[tokio::test]
async fn what_a_run_lost_since_its_last_checkpoint_has_a_price() {
    let server = super::super::today::priced(fixture::fleet()).await;
    let job = "team/lost/u9";
    put_one(&server, job, GPU, true).await;
    let found = server
        .json(&format!("/api/v1/runs/prod/{}/0", segment(job)))
        .await;
    // Sixty steps of a second on a GPU at ten dollars an hour.
    assert_eq!(found["ending"]["steps_lost"], 60, "{found}");
    let usd = found["ending"]["lost_usd"]["value"].as_f64().unwrap();
    assert!((usd - 1.0 / 6.0).abs() < 1e-6, "{usd}");
    let (_, page) = server.get(&address(job)).await;
    assert!(page.contains("60 steps, worth $0.1667"), "{page}");
}
