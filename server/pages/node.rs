//! One node: the machine, its readers' health, its GPUs as a table, what happened.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures::FutureExt as _;
use gpufleet_analysis::incident::Place;
use gpufleet_telemetry::catalog::{self, Metric, Unit, node, own};
use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::asked::Path;
use super::day::{self, Day};
use super::events::{self, Entry};
use super::frame::{self, Frame};
use super::incidents::Beside;
use super::meanings::Meanings;
use super::problem;
use super::reading::{self, Cell, Line};
use crate::fleet::live::Live;
use crate::store::model::ResourceKey;
use crate::view::forgotten::{self, WithNode};
use crate::view::{ClusterView, GpuView, NodeView, past};
use crate::web::Web;
use crate::words::text::{self, Name};
use crate::words::{self, Look, address};

#[derive(Template)]
#[template(path = "node.html")]
struct NodePage {
    frame: Frame,
    origin: Origin,
    watermark: Option<&'static str>,
    watermark_sentence: &'static str,
    cluster: Name,
    cluster_address: String,
    node: Name,
    silent: Option<String>,
    /// Whether the cluster says that it went.
    is_gone: bool,
    /// Whether only the store knows it: then nothing of it has a reading.
    is_forgotten: bool,
    summary: String,
    /// What is wrong with it, with its GPUs, or with what it lies in.
    incidents: Beside,
    has_agent: bool,
    facts: Vec<(&'static str, Name)>,
    figures: Vec<(&'static str, Cell)>,
    gpus: Vec<Row>,
    day: Day,
    readers: Vec<Reader>,
    streams: Vec<SpoolLine>,
    told: Vec<Line>,
    meanings: Meanings,
    events: Vec<Entry>,
    past_failed: bool,
}

/// A GPU, or a share under it, as a table row.
struct Row {
    address: String,
    /// By its index, and by its id where that is not told.
    called: String,
    is_share: bool,
    id: Name,
    model: Name,
    look: Look,
    is_lost: bool,
    is_stale: bool,
    state_title: String,
    utilization: Cell,
    tensor: Cell,
    memory: Cell,
    power: Cell,
    temperature: Cell,
    holder: Option<Name>,
    holder_known: bool,
    /// What its holder is in its workload, and which: `workers 3/0`.
    role: Option<Name>,
    /// The job that computes on it: address, name, rank.
    job: Option<(String, Name, u32)>,
    last: String,
}

/// A reader of the agent.
struct Reader {
    name: String,
    is_failing: bool,
    /// Whether its first round is over.
    has_begun: bool,
    last_success: String,
    duration: Cell,
    failures: Cell,
    /// The error of its newest event, while it fails.
    why: Option<String>,
}

/// A stream of the agent's spool.
struct SpoolLine {
    name: String,
    age: Cell,
    bytes: Cell,
    dropped: Cell,
}

/// `GET /clusters/{cluster}/nodes/{node}`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Path((cluster, node)): Path<(String, String)>,
    frame: Frame,
) -> Response {
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    let names = (cluster.as_str(), node.as_str());
    let with_node = match forgotten::with_node(&web.app, view, &frame.grant, names).await {
        Ok(with_node) => with_node,
        Err(error) => return problem::store_failed(frame, &error),
    };
    let WithNode {
        view,
        live,
        is_forgotten,
    } = with_node;
    let Some((part, found)) = view.node(&cluster, &node) else {
        let said = |raw: &str| text::harmless(raw, text::SHOWN_CHARACTERS);
        return problem::not_found(
            frame,
            format!("No node “{}” in cluster “{}”", said(&node), said(&cluster)),
            vec![
                "No agent has reported a node with this name there.".to_owned(),
                "A node is named by its agent: the host's name, or node.name in its configuration."
                    .to_owned(),
            ],
        );
    };
    let key = ResourceKey {
        cluster: Arc::clone(&part.name),
        kind: ResourceKind::Node,
        id: Arc::clone(&found.name),
    };
    let (past, day) = tokio::join!(
        past::of_node(&web.app, &key, &found.gpus, events::SHOWN).boxed(),
        day::of_node(&web.app, &view, (part, found), frame.at).boxed(),
    );
    let place = Place::node(&part.name, &found.name);
    let incidents = Beside::of_place(&web, &frame, &view, &place);
    let mut page = page(frame, part, found, live.as_ref(), &past);
    page.incidents = incidents;
    page.is_forgotten = is_forgotten;
    page.day = day;
    let gpus = || found.gpus.iter().flat_map(GpuView::with_shares);
    let ids = gpus().map(|it| &*it.key.id).collect();
    let mut jobs = web.app.fleet.runs().on_gpus(&key.cluster, &ids);
    for (row, gpu) in page.gpus.iter_mut().zip(gpus()) {
        let job = jobs.remove(&*gpu.key.id);
        row.job = job.map(|(key, rank)| (address::run(&key), Name::new(&key.run.job.name), rank));
        row.role = web.app.fleet.look(&gpu.key, role).flatten();
    }
    frame::page(StatusCode::OK, &page)
}

fn page(
    frame: Frame,
    part: &ClusterView,
    found: &NodeView,
    live: Option<&Live>,
    past: &past::Past,
) -> NodePage {
    let at = frame.at;
    let [cluster, node] = [&part.name, &found.name].map(|it| Name::new(it));
    let facts = facts(found, live);
    let gpus: Vec<Row> = found.gpus.iter().flat_map(|gpu| rows(gpu, at)).collect();
    let told = live.map(|live| reading::lines(live, catalog::node::ALL).0);
    let told = told.unwrap_or_default();
    // What a GPU is called here, and its id.
    let called = gpus
        .iter()
        .map(|it| (it.called.as_str(), it.id.text.as_str()));
    let called = called.filter(|it| !it.0.ends_with(it.1));
    let helps = told.iter().map(|it| (it.name.as_str(), it.help));
    let names = [&cluster, &node]
        .into_iter()
        .chain(facts.iter().map(|it| &it.1));
    let held = gpus
        .iter()
        .flat_map(|it| [Some(&it.id), it.holder.as_ref()]);
    let meanings = Meanings::of(called.chain(helps), names.chain(held.flatten()));
    NodePage {
        origin: part.origin,
        watermark: words::watermark(part.origin),
        watermark_sentence: words::watermark_sentence(part.origin),
        cluster,
        cluster_address: address::cluster(&part.name),
        node,
        silent: found.silent_since.map(|since| {
            format!(
                "Silent since {} UTC, {}.",
                text::moment(since),
                text::ago(at, since)
            )
        }),
        is_gone: part.has_gone(found),
        is_forgotten: false,
        summary: summary(found, at),
        incidents: Beside::default(),
        has_agent: found.agent.is_some(),
        facts,
        figures: live.map(figures).unwrap_or_default(),
        gpus,
        day: Day::default(),
        readers: live.map(|live| readers(live, past, at)).unwrap_or_default(),
        streams: live.map(streams).unwrap_or_default(),
        told,
        meanings,
        events: events::entries(&past.events, (ResourceKind::Node, &found.name)),
        past_failed: past.failed,
        frame,
    }
}

fn summary(found: &NodeView, at: Timestamp) -> String {
    let mut states: Vec<(Look, usize)> = Vec::new();
    for gpu in &found.gpus {
        let look = words::look(gpu.state);
        match states.iter_mut().find(|it| it.0 == look) {
            Some(same) => same.1 += 1,
            None => states.push((look, 1)),
        }
    }
    let parts: Vec<String> = states
        .into_iter()
        .map(|(look, count)| format!("{count} {}", look.name))
        .collect();
    let gpus = text::counted(found.gpus.len(), "GPU", "GPUs");
    let last = text::ago(at, found.last_point);
    if parts.is_empty() {
        format!("No GPU reported. Last sample {last}.")
    } else {
        format!("{gpus}: {}. Last sample {last}.", parts.join(", "))
    }
}

fn facts(found: &NodeView, live: Option<&Live>) -> Vec<(&'static str, Name)> {
    const NAMED: [(&str, &str); 11] = [
        ("Machine type", attribute::MACHINE_TYPE),
        ("Region", attribute::REGION),
        ("Zone", attribute::ZONE),
        ("Paid for as", attribute::PROVISIONING),
        ("Boot id", attribute::BOOT_ID),
        ("Agent version", attribute::AGENT_VERSION),
        ("Driver", attribute::DRIVER_VERSION),
        ("NVML", attribute::NVML_VERSION),
        ("CUDA up to", attribute::CUDA_VERSION),
        ("Source", attribute::SOURCE),
        ("Recorded from", "gpufleet.recorded.from"),
    ];
    let mut facts: Vec<(&'static str, Name)> = NAMED
        .into_iter()
        .filter_map(|(label, name)| Some((label, Name::new(live?.resource.attribute(name)?))))
        .collect();
    if let Some(agent) = found.agent {
        facts.push(("Agent id", Name::new(&agent.to_string())));
    }
    facts
}

fn figures(live: &Live) -> Vec<(&'static str, Cell)> {
    const SHOWN: [(&str, Metric); 6] = [
        ("CPU busy", node::CPU_BUSY),
        ("CPUs", node::CPU_COUNT),
        ("Memory available", node::MEMORY_AVAILABLE),
        ("Memory installed", node::MEMORY_TOTAL),
        ("Waiting for I/O (PSI)", node::PSI_IO),
        ("Up for", node::UPTIME),
    ];
    SHOWN
        .into_iter()
        .map(|(name, metric)| {
            let told = live.value(metric.id).map(|it| it.reading);
            (name, Cell::of_metric(&metric, told))
        })
        .collect()
}

fn rows(gpu: &GpuView, at: Timestamp) -> Vec<Row> {
    std::iter::once((gpu, false))
        .chain(gpu.shares.iter().map(|share| (share, true)))
        .map(|(gpu, is_share)| row(gpu, is_share, at))
        .collect()
}

fn row(gpu: &GpuView, is_share: bool, at: Timestamp) -> Row {
    let readings = &gpu.readings;
    let memory = match (readings.memory_used, readings.memory_total) {
        (Some(Ok(used)), Some(Ok(total))) if total > 0.0 => Cell {
            text: format!(
                "{} of {}",
                text::quantity(Unit::Bytes, used),
                text::quantity(Unit::Bytes, total)
            ),
            missing: None,
        },
        (told, _) => Cell::of(Unit::Bytes, told),
    };
    let look = words::look(gpu.state);
    let id = Name::new(&gpu.key.id);
    Row {
        address: address::gpu(&gpu.key.cluster, &gpu.key.id),
        called: match gpu.index.filter(|_| !is_share) {
            Some(index) => format!("GPU {index}"),
            None if is_share => format!("MIG {}", id.text),
            None => id.text.clone(),
        },
        is_share,
        id,
        model: Name::new(&gpu.model),
        is_lost: gpu.is_lost(),
        is_stale: gpu.is_silent,
        state_title: match words::reason(gpu.reason) {
            Some(why) => format!("{} {}", why.sentence, why.fix),
            None => gpu.state.help().to_owned(),
        },
        look,
        utilization: Cell::of(Unit::Ratio, readings.utilization),
        tensor: Cell::of(Unit::Ratio, readings.tensor_active),
        memory,
        power: Cell::of(Unit::Watts, readings.power),
        temperature: Cell::of(Unit::Celsius, readings.temperature),
        holder: gpu.holder.as_deref().map(Name::new),
        holder_known: gpu.holder_known,
        role: None,
        job: None,
        last: text::ago(at, gpu.last_point),
    }
}

/// What the holder of a GPU or share is in its workload, as far as it says so.
fn role(live: &Live) -> Option<Name> {
    let told = [attribute::WORKLOAD_ROLE, attribute::WORKLOAD_INDEX];
    let told = told
        .into_iter()
        .filter_map(|it| live.resource.attribute(it));
    let told: Vec<&str> = told.collect();
    (!told.is_empty()).then(|| Name::new(&told.join(" ")))
}

fn readers(live: &Live, past: &past::Past, at: Timestamp) -> Vec<Reader> {
    live.parts(own::READER_SUCCESS.id)
        .filter_map(|success| {
            let part = success.part.as_ref()?;
            let told = |metric: Metric| {
                let same = live.parts(metric.id).find(|it| it.part == success.part);
                same.map(|it| it.reading)
            };
            // Before its first round it is neither: the agent has only just started.
            let is_failing = success.reading == Ok(0.0);
            let last = told(own::READER_LAST_SUCCESS).and_then(Result::ok);
            Some(Reader {
                name: text::harmless(&part.id, text::SHOWN_CHARACTERS),
                is_failing,
                has_begun: success.reading.is_ok(),
                last_success: last.filter(|it| *it > 0.0).map_or_else(
                    || "never".to_owned(),
                    |seconds| text::ago(at, Timestamp::from_millis((seconds * 1e3) as i64)),
                ),
                duration: Cell::of(Unit::Seconds, told(own::READER_DURATION)),
                failures: Cell::of(Unit::Count, told(own::READER_FAILURES)),
                why: is_failing.then(|| past.reader_error(&part.id)).flatten(),
            })
        })
        .collect()
}

fn streams(live: &Live) -> Vec<SpoolLine> {
    live.parts(own::SPOOL_AGE.id)
        .filter_map(|age| {
            let part = age.part.as_ref()?;
            let told = |metric: Metric| {
                let same = live.parts(metric.id).find(|it| it.part == age.part);
                same.map(|it| it.reading)
            };
            Some(SpoolLine {
                name: text::harmless(&part.id, text::SHOWN_CHARACTERS),
                age: Cell::of(Unit::Seconds, Some(age.reading)),
                bytes: Cell::of(Unit::Bytes, told(own::SPOOL_BYTES)),
                dropped: Cell::of(Unit::Count, told(own::SPOOL_DROPPED)),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::sample::Missing;

    use super::*;
    use crate::view::fixture;

    #[test]
    fn a_reader_before_its_first_round_neither_fails_nor_works() {
        let mut live = fixture::machine("prod", "n", Origin::Live);
        let of_nvml = |it: &&mut crate::fleet::LiveValue| {
            it.metric == own::READER_SUCCESS.id
                && it
                    .part
                    .as_ref()
                    .is_some_and(|it: &Arc<_>| &*it.id == "nvml")
        };
        let value = live.values.iter_mut().find(of_nvml).expect("the fixture's");
        value.reading = Err(Missing::NotReady);
        let readers = readers(&live, &past::Past::default(), fixture::NOW);
        let told = readers
            .iter()
            .map(|it| (it.name.as_str(), it.is_failing, it.has_begun));
        let told: Vec<_> = told.collect();
        assert_eq!(
            told,
            [("exporter:dcgm", true, true), ("nvml", false, false)]
        );
    }
}
