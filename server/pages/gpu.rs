//! One GPU, or a share of one: who it is, who holds it, what it does now, and its hours drawn.

use std::ops::Range;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use futures::FutureExt as _;
use gpufleet_analysis::incident::Place;
use gpufleet_analysis::ledger;
use gpufleet_telemetry::catalog::{self, Metric, gpu};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::{Origin, PartKind, ResourceKind, attribute};
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};
use serde::Deserialize;

use super::asked::{Path, Query};
use super::events::{self, Entry, XidLine};
use super::frame::{self, Frame};
use super::incidents::Beside;
use super::marks::{self, Marks};
use super::meanings::Meanings;
use super::reading::{self, Cell, Line};
use super::series::{self, Series};
use super::strip::{self, Strip, Until};
use super::{parts, peaks, problem};
use crate::fleet::live::Live;
use crate::inventory;
use crate::store::model::ResourceKey;
use crate::view::changed::{self, Of};
use crate::view::forgotten::{self, Found};
use crate::view::gather::is_one_sample;
use crate::view::judge::NodesNow;
use crate::view::{FleetView, judge, past};
use crate::web::Web;
use crate::words::text::{self, Name};
use crate::words::{self, Look, Why, address};

/// How far back the curves go, hours: a minute a column up to 8 h, 3 minutes a column for a day.
const RANGES: [i64; 3] = [1, 6, 24];

/// How far back the curves go unless asked otherwise, hours.
const DEFAULT_RANGE: i64 = 6;

/// A second agent that reports the same GPU is shown until it was quiet for so long, nanoseconds.
const SECOND_SHOWN: i64 = 600 * NANOS_PER_SECOND;

/// What the address may ask for.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Asked {
    /// How far back the curves go, hours: 1, 6 or 24.
    #[serde(default)]
    pub hours: Option<String>,
}

#[derive(Template)]
#[template(path = "gpu.html")]
struct GpuPage {
    frame: Frame,
    title: String,
    id: Name,
    origin: Origin,
    watermark: Option<&'static str>,
    watermark_sentence: &'static str,
    one_sample: bool,
    /// Whether the cluster says that its node went.
    is_gone: bool,
    /// Whether only the store knows it: then it has no readings.
    is_forgotten: bool,
    second: Option<String>,
    cluster: Name,
    node: Name,
    node_address: String,
    status: Status,
    facts: Vec<(&'static str, Name)>,
    holder: Holder,
    /// The address of the job whose rank computes on it, its name and the rank.
    job: Option<(String, Name, u32)>,
    /// What is wrong with it, or with what it lies in.
    incidents: Beside,
    figures: Vec<Figure>,
    meanings: Meanings,
    peaks: peaks::Peaks,
    strip: Strip,
    until: Until,
    ranges: Vec<(i64, String, bool)>,
    series: Vec<Series>,
    series_marks: Marks,
    series_from: String,
    series_middle: String,
    series_to: String,
    told: Vec<Line>,
    never_told: Vec<String>,
    parts: parts::Parts,
    shares: Vec<ShareLine>,
    cluster_address: String,
    xids: Vec<XidLine>,
    events: Vec<Entry>,
    past_failed: bool,
}

/// Which time is drawn.
struct Drawn {
    /// How far back the curves go, hours.
    hours: i64,
    /// The same in minutes.
    minutes: Range<Minute>,
    /// Where the day ends, and when that is.
    until: Until,
    end: Timestamp,
    /// What is said of nodes now.
    said: NodesNow,
}

/// What it does now.
struct Status {
    look: Look,
    is_lost: bool,
    is_stale: bool,
    sentence: &'static str,
    since: Option<String>,
    why: Option<Why>,
    last_point: String,
    last_point_ago: String,
}

/// A share of it: a MIG instance, a time slice.
struct ShareLine {
    address: String,
    name: Name,
    look: Look,
    holder: Option<Name>,
}

/// Who holds it.
struct Holder {
    name: Option<Name>,
    words: &'static str,
}

/// A key reading.
struct Figure {
    name: &'static str,
    help: &'static str,
    cell: Cell,
    /// What stands under it: of how much, the greatest.
    small: Option<String>,
    /// Share of the full scale, 0 to 100.
    meter: Option<u32>,
}

/// `GET /clusters/{cluster}/gpus/{id}`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Path((cluster, id)): Path<(String, String)>,
    Query(asked): Query<Asked>,
    frame: Frame,
) -> Response {
    let found = match forgotten::gpu(&web.app, &frame.grant, &cluster, &id).await {
        Ok(found) => found,
        Err(error) => return problem::store_failed(frame, &error),
    };
    let Some(Found { live, is_forgotten }) = found else {
        let shown = text::harmless(&id, text::SHOWN_CHARACTERS);
        let place = text::harmless(&cluster, text::SHOWN_CHARACTERS);
        return problem::not_found(
            frame,
            format!("No GPU “{shown}” in cluster “{place}”"),
            vec![
                "No agent has reported a GPU or MIG instance with this id there.".to_owned(),
                "An id is the NVML UUID, GPU-… or MIG-…, as nvidia-smi -L prints it; without one it is node and PCI address. The node's page lists what is on it.".to_owned(),
            ],
        );
    };
    let hours = asked
        .hours
        .and_then(|it| it.parse().ok())
        .filter(|it| RANGES.contains(it))
        .unwrap_or(DEFAULT_RANGE);
    let (until, end) = Until::of(live.origin, live.last_point, frame.at);
    let minutes = Minute(end.minute().0 + 1 - hours * 60)..Minute(end.minute().0 + 1);
    let drawn = Drawn {
        hours,
        minutes: minutes.clone(),
        until,
        end,
        said: NodesNow::of(&web.app.fleet, &web.app.inventory, inventory::now(&web.app)),
    };
    let view = web.views.get(&web.app).await;
    let shares = shares(&view, &live.key);
    let day = strip::span(end);
    let time = (
        day.0.min(minutes.start.start()),
        day.1.max(minutes.end.start()),
    );
    let of = Of {
        cluster: &live.key.cluster,
        ids: Some([&live.node, &live.key.id].map(Arc::clone).into()),
    };
    let range = strip::range(end);
    let (past, changed) = tokio::join!(
        past::of_gpu(&web.app, &live.key, minutes, range, events::SHOWN).boxed(),
        changed::changed(&web.app, &view, &of, time).boxed(),
    );
    let second = web.app.fleet.second(&live.key);
    let second = second.filter(|it| frame.at.since(it.last) < SECOND_SHOWN);
    let place = Place::gpu(&live.key.cluster, &live.node, &live.key.id);
    let incidents = Beside::of_place(&web, &frame, &view, &place);
    let mut page = page(frame, &web.specs, &live, shares, &past, &drawn);
    page.strip.marks = marks::marks(&changed, day, page.strip.width);
    page.series_marks = marks::of_curves(&changed, &drawn.minutes);
    let jobs = web.app.fleet.runs();
    let jobs = jobs.on_gpus(&live.key.cluster, &[&*live.key.id].into());
    let job = jobs.into_values().next();
    page.job = job.map(|(key, rank)| (address::run(&key), Name::new(&key.run.job.name), rank));
    page.incidents = incidents;
    page.is_forgotten = is_forgotten;
    let node = view.node(&live.key.cluster, &live.node);
    page.is_gone = node.is_some_and(|(part, node)| part.has_gone(node));
    page.second = second.map(|it| {
        let node = text::harmless(&it.node, text::SHOWN_CHARACTERS);
        format!("agent {} on node {node}", it.agent)
    });
    frame::page(StatusCode::OK, &page)
}

/// `GET /clusters/{cluster}/nodes/{node}/{index}`: the short address that tiles use.
pub async fn by_index(
    State(web): State<Arc<Web>>,
    Path((cluster, node, index)): Path<(String, String, String)>,
    frame: Frame,
) -> Response {
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    let found = view.node(&cluster, &node).and_then(|(_, node)| {
        let index: u32 = index.parse().ok()?;
        let with_index = node.gpus.iter().filter(|gpu| gpu.index == Some(index));
        with_index.max_by_key(|gpu| gpu.last_point)
    });
    match found {
        Some(gpu) => Redirect::temporary(&address::gpu(&cluster, &gpu.key.id)).into_response(),
        None => problem::not_found(
            frame,
            format!(
                "No GPU with index {} on this node",
                text::harmless(&index, 20)
            ),
            vec![format!(
                "Node “{}” of cluster “{}” does not report it now; its page lists what it reports.",
                text::harmless(&node, text::SHOWN_CHARACTERS),
                text::harmless(&cluster, text::SHOWN_CHARACTERS)
            )],
        ),
    }
}

fn page(
    frame: Frame,
    specs: &Specs,
    live: &Live,
    shares: Vec<ShareLine>,
    past: &past::Past,
    drawn: &Drawn,
) -> GpuPage {
    let Drawn {
        hours,
        minutes,
        until,
        end,
        said,
    } = drawn;
    let subject = (live.key.kind, &*live.key.id);
    let (mut told, never_told) = reading::lines(live, catalog::gpu::ALL);
    // A GPU that was never probed lacks nothing.
    told.extend(reading::lines(live, catalog::own::PROBE).0);
    let here = address::gpu(&live.key.cluster, &live.key.id);
    let (facts, figures) = (facts(live), figures(live));
    let series = series::series(Some(live), &past.minutes, minutes);
    let holder = holder(live, frame.at);
    let [id, cluster, node] = [&live.key.id, &live.key.cluster, &live.node].map(|it| Name::new(it));
    let names = [&id, &cluster, &node].into_iter().chain(&holder.name);
    let helps = figures.iter().map(|it| (it.name, it.help));
    let helps = helps.chain(series.iter().map(|it| (it.name.as_str(), it.help)));
    let meanings = Meanings::of(helps, names.chain(facts.iter().map(|it| &it.1)));
    GpuPage {
        title: title(live),
        id,
        origin: live.origin,
        watermark: words::watermark(live.origin),
        watermark_sentence: words::watermark_sentence(live.origin),
        one_sample: is_one_sample(live),
        is_forgotten: false,
        is_gone: false,
        second: None,
        job: None,
        incidents: Beside::default(),
        cluster,
        node,
        node_address: address::node(&live.key.cluster, &live.node),
        status: status(live, frame.at, said),
        facts,
        holder,
        figures,
        meanings,
        peaks: peaks::of(live, specs),
        strip: strip::strip(&past.hours, &[strip::since(live.first_seen)], *end),
        until: *until,
        ranges: RANGES
            .into_iter()
            .map(|it| (it, format!("{here}?hours={it}"), it == *hours))
            .collect(),
        series,
        series_marks: Marks::default(),
        series_from: text::clock_time(minutes.start.start()),
        series_middle: text::clock_time(Minute((minutes.start.0 + minutes.end.0) / 2).start()),
        series_to: text::clock_time(minutes.end.start()),
        told: told
            .into_iter()
            .filter(|line| catalog::by_name(line.metric).is_some_and(|it| it.part.is_none()))
            .collect(),
        never_told,
        parts: parts::of(live),
        shares,
        cluster_address: address::cluster(&live.key.cluster),
        xids: xids(live, past),
        events: events::entries(&past.events, subject),
        past_failed: past.failed,
        frame,
    }
}

fn shares(view: &FleetView, key: &ResourceKey) -> Vec<ShareLine> {
    let shares = view.gpu(key).map_or(&[][..], |gpu| &gpu.shares);
    shares
        .iter()
        .map(|share| ShareLine {
            address: address::gpu(&share.key.cluster, &share.key.id),
            name: Name::new(&share.key.id),
            look: words::look(share.state),
            holder: share.holder.as_deref().map(Name::new),
        })
        .collect()
}

/// `GPU 3 of node-7`, or what there is to call it by.
fn title(live: &Live) -> String {
    let node = Name::new(&live.node).text;
    match (live.key.kind, live.resource.attribute(attribute::GPU_INDEX)) {
        (ResourceKind::Share, index)
            if live.resource.attribute(attribute::REPLICA_OF).is_some() =>
        {
            let index = text::harmless(index.unwrap_or_default(), 12);
            format!("Time slice of GPU {index} of {node}")
        }
        (ResourceKind::Share, _) => {
            let profile = live
                .resource
                .attribute(attribute::MIG_PROFILE)
                .unwrap_or("share");
            format!("MIG {} on {node}", text::harmless(profile, 24))
        }
        (_, Some(index)) => format!("GPU {} of {node}", text::harmless(index, 12)),
        (_, None) => format!("GPU on {node}"),
    }
}

fn status(live: &Live, now: Timestamp, nodes: &NodesNow) -> Status {
    let judged = judge::judge_on(live, now, nodes);
    Status {
        look: words::look(judged.state),
        is_lost: matches!(
            judged.reason,
            ledger::Reason::DeviceLost | ledger::Reason::DriverHang
        ),
        is_stale: judged.is_silent,
        sentence: judged.state.help(),
        since: judged.since.map(|since| {
            format!(
                "since {} UTC, {}",
                text::moment(since),
                text::ago(now, since)
            )
        }),
        why: words::reason(judged.reason),
        last_point: text::moment(live.last_point),
        last_point_ago: text::ago(now, live.last_point),
    }
}

fn facts(live: &Live) -> Vec<(&'static str, Name)> {
    const NAMED: [(&str, &str); 20] = [
        ("Model", attribute::GPU_MODEL),
        ("Index", attribute::GPU_INDEX),
        ("PCI address", attribute::PCI_ADDRESS),
        ("Serial number", attribute::SERIAL),
        ("Compute capability", attribute::COMPUTE_CAPABILITY),
        ("Driver", attribute::DRIVER_VERSION),
        ("CUDA up to", attribute::CUDA_VERSION),
        ("VBIOS", attribute::VBIOS_VERSION),
        ("MIG profile", attribute::MIG_PROFILE),
        ("Part of", attribute::PARENT),
        ("Source", attribute::SOURCE),
        ("Why no holder is named", attribute::HOLDER_UNKNOWN),
        ("Workload", attribute::WORKLOAD),
        ("Role", attribute::WORKLOAD_ROLE),
        ("Number in its workload", attribute::WORKLOAD_INDEX),
        ("Queue", attribute::QUEUE),
        ("Slurm account", attribute::SLURM_ACCOUNT),
        ("Slurm user", attribute::SLURM_USER),
        ("Owner", attribute::OWNER),
        ("Job", attribute::JOB),
    ];
    NAMED
        .into_iter()
        .filter_map(|(label, name)| Some((label, Name::new(live.resource.attribute(name)?))))
        .collect()
}

fn holder(live: &Live, now: Timestamp) -> Holder {
    let name = live.resource.attribute(attribute::HOLDER).map(Name::new);
    let words = if name.is_some() {
        "holds it."
    } else if !judge::is_holder_known(live, judge::judge(live, now).reason) {
        "Who holds it is not known."
    } else if live.bits.held != 0 {
        "Someone holds it; the agent could not name who."
    } else {
        "Nobody holds it."
    };
    Holder { name, words }
}

fn figures(live: &Live) -> Vec<Figure> {
    let told = |metric: Metric| live.value(metric.id).map(|it| it.reading);
    let known = |metric: Metric| told(metric).and_then(Result::ok);
    let figure = |name, metric: Metric, full: Option<f64>, small: Option<String>| {
        let meter = known(metric).zip(full).map(|(value, full)| {
            (value / full.max(f64::MIN_POSITIVE) * 100.0)
                .clamp(0.0, 100.0)
                .round() as u32
        });
        Figure {
            name,
            help: metric.help,
            cell: Cell::of_metric(&metric, told(metric)),
            small,
            meter,
        }
    };
    let of =
        |metric: Metric| known(metric).map(|it| format!("of {}", text::quantity(metric.unit, it)));
    let throttle = Cell::of_metric(&gpu::THROTTLE_REASONS, told(gpu::THROTTLE_REASONS));
    let slowed = match (throttle.missing, throttle.text.as_str()) {
        (Some(_), _) => None,
        (None, "none") => Some("not slowed down".to_owned()),
        (None, why) => Some(format!("slowed by: {why}")),
    };
    vec![
        figure("Utilisation", gpu::UTILIZATION, Some(1.0), None),
        figure("Tensor cores active", gpu::TENSOR_ACTIVE, Some(1.0), None),
        figure(
            "Memory used",
            gpu::MEMORY_USED,
            known(gpu::MEMORY_TOTAL),
            of(gpu::MEMORY_TOTAL),
        ),
        figure(
            "Power",
            gpu::POWER,
            known(gpu::POWER_LIMIT),
            of(gpu::POWER_LIMIT),
        ),
        figure("Temperature", gpu::TEMPERATURE, None, None),
        figure("SM clock", gpu::SM_CLOCK, known(gpu::SM_CLOCK_MAX), slowed),
    ]
}

fn xids(live: &Live, past: &past::Past) -> Vec<XidLine> {
    live.parts(gpu::XID.id)
        .filter_map(|value| {
            let part = value.part.as_ref().filter(|it| it.kind == PartKind::Xid)?;
            let count = value.reading.ok().filter(|it| *it > 0.0)?;
            Some(XidLine {
                code: text::harmless(&part.id, 12),
                count: text::grouped(count),
                last: events::last_xid(&past.events, &part.id),
            })
        })
        .collect()
}
