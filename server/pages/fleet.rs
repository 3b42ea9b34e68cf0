//! The fleet: one line that says it in words, the blind spots, and every GPU a tile on its node.
//!
//! Limits: a page of 10,000 GPUs is about 1.5 MB of very regular HTML, under 200 KB on the wire.
//! It is rendered and packed at most once in [`FRESH_FOR`] for an address, beside the threads that answer. Nobody waits
//! for that while the last rendering is younger than [`STANDS_FOR`]; each says of which moment its picture is. Of what a
//! request says only what the page shows makes another one, and [`WAITING`] wait to be rendered at most.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use gpufleet_analysis::ledger;
use gpufleet_telemetry::identity::Origin;
use serde::Deserialize;

use super::asked::{Path, Query};
use super::frame::{Frame, Theme, html};
use super::{day, incidents, problem, tiles, today};
use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::threads::apart;
use crate::today::blind::{self, BlindSpot};
use crate::view::{Counts, FRESH_FOR, FleetView, GpuView, STANDS_FOR, forgotten};
use crate::web::Web;
use crate::web::signed::Signed;
use crate::words;
use crate::words::text::{self, Name, grouped};

mod packed;

use packed::{packed, takes_gzip};

/// Renderings that are kept, the newest: pages and fragments in three themes, packed and not, and a few filters.
const KEPT_RENDERINGS: usize = 16;

/// Renderings that are made at once: one that waits for its day keeps few others waiting.
const AT_ONCE: usize = 4;

/// Most that are being rendered or wait for it: of 10,000 GPUs some seconds of work, and more than all readers ask for.
const WAITING: usize = 64;

/// What the address may ask for.
#[derive(Debug, Clone, Default, Deserialize, PartialEq, Eq, Hash)]
pub struct Asked {
    /// Only nodes with a GPU in this state; the others' tiles are dimmed.
    #[serde(default)]
    pub state: Option<String>,
}

/// The newest renderings as they are sent, by who may see what and how it was asked for.
pub struct Renderings(Answers<Key, Bytes, NotRendered>);

impl Default for Renderings {
    fn default() -> Self {
        let refuses = (WAITING, NotRendered::TooMany);
        let (kept, at_once) = (KEPT_RENDERINGS, AT_ONCE);
        Self(Answers::refusing(FRESH_FOR, kept, at_once, refuses))
    }
}

/// Why there is no rendering.
#[derive(Clone)]
enum NotRendered {
    /// Too many wait for theirs.
    TooMany,
    Broken(Arc<askama::Error>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    state: Option<ledger::State>,
    theme: Theme,
    fragment: bool,
    here: String,
    cluster: Option<Arc<str>>,
    /// As whom its reader comes, which a whole page says.
    signed: Option<Signed>,
    host: String,
    is_packed: bool,
    /// Whether it says that the database takes nothing, and that nothing is judged: neither is said late.
    is_failing: bool,
    is_unjudged: bool,
}

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage<'a> {
    frame: &'a Frame,
    title: String,
    /// Whose all of it is, where nothing of it is live.
    stands: Option<Origin>,
    /// What the live GPUs do, in words.
    headline: String,
    /// What is in no live total.
    other: Option<String>,
    incidents: Option<incidents::Headline>,
    chips: Vec<Chip>,
    key: Vec<Letter>,
    blind: Vec<BlindSpot>,
    sections: Vec<Section>,
    /// Whether it is about one cluster.
    is_alone: bool,
    filter: Option<&'static str>,
    connect: Option<Connect>,
    /// Whether what reported is in no list any more.
    is_forgotten: bool,
}

/// A state with its count, and the address that shows only it.
struct Chip {
    class: char,
    letter: char,
    name: &'static str,
    count: String,
    address: String,
    is_current: bool,
}

/// What a letter on a tile means.
struct Letter {
    class: char,
    letter: char,
    name: &'static str,
    meaning: &'static str,
}

/// The clusters of one origin.
struct Section {
    origin: Origin,
    title: &'static str,
    word: Option<&'static str>,
    sentence: &'static str,
    clusters: Vec<tiles::Cluster>,
}

/// How to connect the first agent.
pub(super) struct Connect {
    pub(super) command: String,
    pub(super) only_local: bool,
}

/// `GET /fleet`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    mut frame: Frame,
) -> Response {
    let state = match asked.state.as_deref().filter(|it| !it.is_empty()) {
        None => None,
        Some(name) => match ledger::State::parse(name) {
            Some(state) => Some(state),
            None => {
                let names = ledger::State::ALL.map(ledger::State::name).join(", ");
                let said = text::harmless(name, text::SHOWN_CHARACTERS);
                return problem::not_found(
                    frame,
                    format!("There is no state “{said}”"),
                    vec![format!("A state is one of {names}.")],
                );
            }
        },
    };
    frame.here = address(state);
    // It is in what connects the first agent alone.
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    if !view.clusters.is_empty() {
        frame.host.clear();
    }
    let all = Grant::default();
    render(&web, all, frame, (state, takes_gzip(&headers))).await
}

/// `GET /clusters/{cluster}`: the same for one cluster.
pub async fn show_cluster(
    State(web): State<Arc<Web>>,
    Path(cluster): Path<String>,
    headers: HeaderMap,
    mut frame: Frame,
) -> Response {
    let one = Grant {
        cluster: Some(cluster.as_str().into()),
    };
    let view = web.views.get(&web.app).await;
    let view = view.seen_with(&frame.grant).seen_with(&one);
    if view.clusters.is_empty() {
        let said = text::harmless(&cluster, text::SHOWN_CHARACTERS);
        let may_see = frame.grant.may_see(&cluster);
        let was =
            may_see && forgotten::ever(&web.app, &FleetView::default(), &one).await == Some(true);
        let why = match was {
            true => {
                "Nothing has reported from it for longer than the fleet remembers (fleet.forget_after_s). Its hours are on the page Cost and in the reports."
            }
            false => "No agent has reported from a cluster with this name.",
        };
        let title = format!("No cluster “{said}”");
        return problem::not_found(frame, title, vec![why.to_owned()]);
    }
    frame.here = words::address::cluster(&cluster);
    frame.host.clear();
    render(&web, one, frame, (None, takes_gzip(&headers))).await
}

/// The page of one cluster, or of all, as it was last rendered or anew.
async fn render(
    web: &Arc<Web>,
    one: Grant,
    frame: Frame,
    (state, is_packed): (Option<ledger::State>, bool),
) -> Response {
    let key = Key {
        state,
        theme: frame.theme,
        fragment: frame.fragment,
        here: frame.here.clone(),
        cluster: frame.grant.cluster.clone(),
        signed: (!frame.fragment).then_some(frame.signed),
        host: frame.host.clone(),
        is_packed,
        is_failing: frame.store.is_failing,
        is_unjudged: frame.unjudged.is_some(),
    };
    let (own, asked) = (Arc::clone(web), frame.clone());
    let making = async move {
        let view = own.views.fresh(&own.app).await;
        let view = view.seen_with(&frame.grant).seen_with(&one);
        let days = day::of_clusters(&own, &view).await;
        let ever = forgotten::ever(&own.app, &view, &frame.grant).await;
        let making = move || rendered(&own.app, (&view, ever), frame, (state, is_packed), days);
        let made = apart(making).await;
        made.map_err(|error| NotRendered::Broken(Arc::new(error)))
    };
    let renderings = &web.renderings.0;
    let made = renderings.get_standing(key, &web.app.clock, STANDS_FOR, making);
    match made.await {
        Ok(body) => sent(Bytes::clone(&body), is_packed),
        Err(NotRendered::Broken(error)) => problem::broken(&error),
        Err(NotRendered::TooMany) => {
            let title = "Too many pictures of the fleet are asked for at once";
            let why =
                "Those that were asked for before are still being drawn. Try it again in a moment.";
            let back = asked.here.clone();
            let status = StatusCode::SERVICE_UNAVAILABLE;
            problem::refused(asked, status, title, why.to_owned(), &back)
        }
    }
}

/// The address of the whole fleet, or of those in a state, whatever else was asked for.
fn address(state: Option<ledger::State>) -> String {
    words::address::with_query("/fleet", [("state", state.map(ledger::State::name))])
}

/// The page as it is sent, with the last day of each of the first clusters; and whether, where there is none, there ever
/// was one.
fn rendered(
    app: &App,
    (view, ever): (&FleetView, Option<bool>),
    frame: Frame,
    (state, is_packed): (Option<ledger::State>, bool),
    days: Vec<day::Day>,
) -> askama::Result<Bytes> {
    let frame = Frame {
        at: view.at,
        ..frame
    };
    let mut open = app.incidents.open(&frame.grant);
    open.retain(|it| view.cluster(&it.place.cluster).next().is_some());
    let open = incidents::headline(&open, view, app.currency());
    let mut page = page(view, &frame, state, open);
    page.is_forgotten = ever == Some(true);
    if ever == Some(false) {
        page.connect = Some(connect(&app.config.ingest.grpc_listen, &frame.host));
    }
    // Sections have the clusters in the order of the view.
    let drawn = page.sections.iter_mut().flat_map(|it| &mut it.clusters);
    for (cluster, day) in drawn.zip(days) {
        cluster.day = Some(day);
    }
    let body = page.render()?;
    Ok(match is_packed {
        true => packed(body.as_bytes()),
        false => Bytes::from(body),
    })
}

/// A rendering as a response. What is packed is not packed again on its way out.
fn sent(body: Bytes, is_packed: bool) -> Response {
    let mut response = html(StatusCode::OK, body);
    if is_packed {
        let headers = response.headers_mut();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
    response
}

fn page<'a>(
    view: &FleetView,
    frame: &'a Frame,
    filter: Option<ledger::State>,
    incidents: Option<incidents::Headline>,
) -> FleetPage<'a> {
    let live = view.counts(Origin::Live);
    FleetPage {
        title: title(view, frame),
        stands: stands(view),
        headline: today::line_of_live(&live),
        other: other(view),
        incidents,
        chips: chips(&live, filter),
        key: key(view),
        blind: blind::spots(view),
        sections: [Origin::Live, Origin::Recorded, Origin::Simulated]
            .into_iter()
            .map(|origin| section(view, origin, filter))
            .filter(|section| !section.clusters.is_empty())
            .collect(),
        is_alone: view.clusters.len() == 1,
        filter: filter.map(|state| words::look(state).name),
        connect: None,
        is_forgotten: false,
        frame,
    }
}

/// The name of the one cluster that is asked for, marked as what it is; else that of the page.
fn title(view: &FleetView, frame: &Frame) -> String {
    let one = view.clusters.first();
    let one = one.filter(|_| frame.here.starts_with("/clusters/"));
    one.map_or_else(
        || "Fleet".to_owned(),
        |it| {
            let name = Name::new(&it.name).text;
            match words::watermark(it.origin) {
                Some(word) => format!("{name} · {word}"),
                None => name,
            }
        },
    )
}

/// The origin of all clusters, where it is one and not live.
fn stands(view: &FleetView) -> Option<Origin> {
    let first = view.clusters.first()?.origin;
    let is_all = view.clusters.iter().all(|it| it.origin == first);
    (is_all && first != Origin::Live).then_some(first)
}

fn other(view: &FleetView) -> Option<String> {
    let others: Vec<String> = [Origin::Recorded, Origin::Simulated]
        .into_iter()
        .filter_map(|origin| {
            let count = view.counts(origin).all;
            (count > 0).then(|| format!("{} {}", grouped(count as f64), origin.name()))
        })
        .collect();
    (!others.is_empty()).then(|| others.join(" and "))
}

/// One chip per look of a state; the three kinds of active share one.
fn chips(live: &Counts, filter: Option<ledger::State>) -> Vec<Chip> {
    let mut chips: Vec<Chip> = Vec::new();
    for state in words::ORDER.into_iter().filter(|state| live.of(*state) > 0) {
        let look = words::look(state);
        let count = live.of(state);
        let is_current = filter == Some(state);
        chips.push(Chip {
            class: look.class,
            letter: look.letter,
            name: look.name,
            count: grouped(count as f64),
            address: address((!is_current).then_some(state)),
            is_current,
        });
    }
    chips
}

/// The letters of all tiles that there are, live or not, in the order of their states.
fn key(view: &FleetView) -> Vec<Letter> {
    let mut key: Vec<Letter> = Vec::new();
    let is_there = |state: &ledger::State| view.clusters.iter().any(|it| it.counts.of(*state) > 0);
    for state in words::ORDER.into_iter().filter(is_there) {
        let look = words::look(state);
        if key.iter().any(|it| it.name == look.name) {
            continue;
        }
        key.push(Letter {
            class: look.class,
            letter: look.letter,
            name: look.name,
            meaning: words::meaning(state),
        });
        if state == ledger::State::Unhealthy && view.gpus().any(GpuView::is_lost) {
            key.push(Letter {
                letter: '×',
                class: look.class,
                name: "lost",
                meaning: "broken, and neither it nor its driver answers",
            });
        }
    }
    key
}

fn section(view: &FleetView, origin: Origin, filter: Option<ledger::State>) -> Section {
    Section {
        origin,
        title: words::origin(origin),
        word: words::watermark(origin),
        sentence: words::watermark_sentence(origin),
        clusters: view
            .of(origin)
            .map(|cluster| tiles::cluster(cluster, view.at, filter))
            .collect(),
    }
}

/// The exact command that connects an agent: how others reach this server, as far as it knows.
pub(super) fn connect(grpc_listen: &str, host: &str) -> Connect {
    let (address, port) = grpc_listen
        .rsplit_once(':')
        .unwrap_or((grpc_listen, "4317"));
    let only_local = address.starts_with("127.") || address == "[::1]" || address == "localhost";
    let host = if only_local || host.is_empty() {
        "127.0.0.1"
    } else {
        host
    };
    Connect {
        command: format!(
            "GPUFLEET_NODE__CLUSTER=my-cluster GPUFLEET_SHIP__ENDPOINT=http://{host}:{port} gpufleet-agent"
        ),
        only_local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_connects_an_agent_names_a_server_it_can_reach() {
        for (listen, host, address, only_local) in [
            (
                "127.0.0.1:4317",
                "fleet.example",
                "http://127.0.0.1:4317",
                true,
            ),
            (
                "0.0.0.0:14317",
                "fleet.example",
                "http://fleet.example:14317",
                false,
            ),
            ("[::]:4317", "", "http://127.0.0.1:4317", false),
        ] {
            let connect = connect(listen, host);
            assert!(connect.command.contains(address), "{}", connect.command);
            assert_eq!(connect.only_local, only_local, "{listen}");
        }
    }
}
