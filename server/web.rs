//! Everything on the web port: pages, API, /metrics and assets, with what guards all of them.
//!
//! A reader shows its token as `Authorization: Bearer …` or, in a browser, in the cookie that the
//! sign-in page sets; a header of another scheme is for a proxy before us and hides no cookie. A token of role
//! operate may also read. Assets, the sign-in page and the health check need none.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, COOKIE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, body::Body};
use gpufleet_program::token;
use gpufleet_telemetry::gpu_specs::Specs;
use http_body_util::Limited;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::{CompressionLayer, CompressionLevel};

use crate::api::parameters::Known;
use crate::auth::{AuthError, Grant, Role};
use crate::doctor::Doctors;
use crate::find::Names;
use crate::refusals::{self, Door};
use crate::runs::energy::Energies;
use crate::runs::worth::KeptWorths;
use crate::today::Todays;
use crate::view::Views;
use crate::{App, api, metrics, pages};

pub mod same_origin;

pub mod signed;

pub mod errors;

/// Longest body of a request but a bill ([`api::reports::MAX_BILL_BYTES`]): a command for an agent, or the sign-in form.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// How hard answers are packed, of 1 to 9: a page of 10,000 tiles to a twentieth, in milliseconds.
pub const GZIP_LEVEL: u32 = 4;

/// Longest time one answer may take; the slowest, an export of a whole fleet, takes tens of ms.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// The same of a report of a month: of a large fleet it reads for long, and others may come before it.
const REPORT_WITHIN: Duration = Duration::from_secs(120);

/// Reports at once: each holds two months of the fleet, which of 10,000 GPUs are hundreds of MB.
const REPORTS: usize = 1;

/// Views of runs' steps at once: each may hold 64 MiB of them, and works for as long as a core is given.
const STEP_VIEWS: usize = 2;

/// The cookie with the reader's token, of who signed in without TLS.
pub const TOKEN_COOKIE: &str = "gpufleet_token";

/// The same of who signed in over TLS. It has a name of its own because without TLS browsers let nobody put another one in
/// the place of a cookie that goes over TLS alone.
pub const SECURE_TOKEN_COOKIE: &str = "__Secure-gpufleet_token";

/// What every handler of the web port shares.
pub struct Web {
    /// The server.
    pub app: App,
    /// The newest picture of the fleet.
    pub views: Views,
    /// What the cards could do at best.
    pub specs: Arc<Specs>,
    /// What the web port counts.
    pub counted: metrics::own::Counted,
    /// The newest renderings of the fleet page.
    pub renderings: pages::fleet::Renderings,
    /// Who reads steps of many ranks waits for one of these.
    pub step_views: Arc<tokio::sync::Semaphore>,
    /// The newest maps of ranks and time of runs.
    pub maps: pages::run::Maps,
    /// The newest goodput of runs.
    pub goodputs: pages::run::Goodputs,
    /// Who makes a report waits for this.
    pub reports: Arc<tokio::sync::Semaphore>,
    /// Room for reports that are on their way to who asked for them.
    pub sent_reports: api::reports::Room,
    /// Room for bills that are on their way here.
    pub sent_bills: api::reports::Room,
    /// The ledgers of clusters on the fleet's page.
    pub days: pages::day::Days,
    /// The months of the cost page.
    pub months: pages::cost::Months,
    /// The names of jobs as they were last read.
    pub names: Names,
    /// What runs drew, as it was last added up.
    pub energies: Energies,
    /// Whose runs are, how well they use their GPUs and what they cost, as it was last looked at.
    pub worths: KeptWorths,
    /// The newest answers to what there is today.
    pub todays: Todays,
    /// The newest answers to what keeps this server from telling the truth.
    pub doctors: Doctors,
    /// Which open pages are told when something changes.
    pub streams: Arc<pages::live::Streams>,
}

/// The router of the web port.
pub fn router(app: App) -> Router {
    router_of(shared(app))
}

/// Makes what takes long before anybody asks for it, until told to stop.
pub async fn ahead(web: Arc<Web>, stop: CancellationToken) {
    pages::cost::warm::run(web, stop).await;
}

/// The same of what its handlers share.
pub fn router_of(web: Arc<Web>) -> Router {
    around(routes(&web), web)
}

/// What the handlers of a server share.
///
/// # Panics
/// Where a line of `gpu.peaks` describes no card: the configuration was looked at before.
pub fn shared(app: App) -> Arc<Web> {
    let specs = Specs::with(&app.config.gpu.peaks)
        .expect("Config::check refuses lines that do not describe a card");
    Arc::new(Web {
        app,
        specs: Arc::new(specs),
        step_views: Arc::new(tokio::sync::Semaphore::new(STEP_VIEWS)),
        maps: pages::run::Maps::default(),
        goodputs: pages::run::Goodputs::default(),
        reports: Arc::new(tokio::sync::Semaphore::new(REPORTS)),
        sent_reports: api::reports::Room::of_reports(),
        sent_bills: api::reports::Room::of_bills(),
        views: Views::default(),
        counted: metrics::own::Counted::default(),
        renderings: pages::fleet::Renderings::default(),
        days: pages::day::Days::default(),
        months: pages::cost::Months::default(),
        names: Names::default(),
        energies: Energies::default(),
        worths: KeptWorths::default(),
        todays: Todays::default(),
        doctors: Doctors::default(),
        streams: Arc::default(),
    })
}

/// Every address, with what guards it.
fn routes(web: &Arc<Web>) -> Router<Arc<Web>> {
    let guarded = Router::new()
        .merge(pages::guarded().layer(middleware::from_fn_with_state(Arc::clone(web), lead_page)))
        .merge(pages::always())
        .merge(metrics::router())
        .layer(middleware::from_fn_with_state(Arc::clone(web), guard_page));
    let known = Arc::new(Known::of(&api::document()));
    let known = middleware::from_fn_with_state(known, api::parameters::refuse_others);
    let lead = middleware::from_fn_with_state(Arc::clone(web), lead_api);
    let api = api::router()
        .layer(known.clone())
        .layer(lead.clone())
        .layer(middleware::from_fn_with_state(Arc::clone(web), guard_api));
    Router::new()
        .merge(guarded)
        .merge(api)
        .merge(api::changing().layer(known.clone()).layer(lead))
        .merge(pages::open())
        .merge(api::open().layer(known))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(web),
            metrics::own::count,
        ))
        .fallback(pages::not_found)
}

/// What stands around all routes, the outermost last: whatever goes wrong further in is given words, and whatever is
/// answered carries the same headers.
fn around(routes: Router<Arc<Web>>, web: Arc<Web>) -> Router {
    let watched = (web.app.clone(), Door::Web);
    routes
        .layer(CatchPanicLayer::custom(errors::on_panic))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn(of_length))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&web),
            errors::with_words,
        ))
        .layer(middleware::from_fn(harden))
        .layer(CompressionLayer::new().quality(CompressionLevel::Precise(GZIP_LEVEL.cast_signed())))
        .layer(middleware::from_fn_with_state(watched, refusals::watch))
        .with_state(web)
}

/// What a request may see, from its header or its cookie.
///
/// # Errors
/// When reading is guarded and neither holds a token that allows it.
pub fn may(web: &Web, headers: &HeaderMap, role: Role) -> Result<Grant, AuthError> {
    let shown = shown(headers);
    let shown = shown.as_deref();
    let access = &web.app.access;
    access.check(role, shown).or_else(|error| {
        // Who may give commands may look; but a closed operate role says nothing about reading.
        if role == Role::Read && access.guards(Role::Operate) {
            access.check(Role::Operate, shown).map_err(|_| error)
        } else {
            Err(error)
        }
    })
}

/// What a request shows to be let in: its header where that holds a bearer token, or else its cookie as it would be
/// written there.
pub fn shown(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    if let Some(header) = bearer(headers) {
        return Some(header.into());
    }
    // Over TLS a browser sends both, and only there the first.
    let token = cookie(headers, SECURE_TOKEN_COOKIE).or_else(|| cookie(headers, TOKEN_COOKIE))?;
    Some(format!("Bearer {token}").into_bytes().into())
}

/// The header that holds a bearer token. What a proxy before us asked for, such as `Basic …`, is passed on to us too.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let all = headers.get_all(AUTHORIZATION).iter();
    all.map(HeaderValue::as_bytes)
        .find(|it| token::shown(it).is_some())
}

/// The value of a cookie.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(found, value)| (found == name).then_some(value))
}

async fn guard_page(State(web): State<Arc<Web>>, mut request: Request, next: Next) -> Response {
    match may(&web, request.headers(), Role::Read) {
        Ok(grant) => {
            request.extensions_mut().insert(grant);
            next.run(request).await
        }
        Err(error) => pages::sign_in::needed(&web, &request, &error),
    }
}

async fn guard_api(State(web): State<Arc<Web>>, mut request: Request, next: Next) -> Response {
    match may(&web, request.headers(), Role::Read) {
        Ok(grant) => {
            request.extensions_mut().insert(grant);
            next.run(request).await
        }
        Err(error) => api::problem::refused(&error),
    }
}

/// A server that does not lead knows nothing of the fleet, and an empty page would say that there is
/// none.
async fn lead_page(State(web): State<Arc<Web>>, request: Request, next: Next) -> Response {
    match web.app.lead.waits() {
        Some(why) => pages::problem::does_not_lead(&web, &request, why),
        None => next.run(request).await,
    }
}

async fn lead_api(State(web): State<Arc<Web>>, request: Request, next: Next) -> Response {
    match web.app.lead.waits() {
        Some(why) => {
            api::problem::Problem::new(StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        None => next.run(request).await,
    }
}

/// Longest body that an address takes, bytes.
fn longest_body(method: &Method, path: &str) -> usize {
    match (method, path) {
        (&Method::POST, api::reports::RECONCILE) => api::reports::MAX_BILL_BYTES,
        _ => MAX_BODY_BYTES,
    }
}

/// Refuses a body that is longer than its address takes: before it comes where its length is told, else when it has.
async fn of_length(request: Request<Body>, next: Next) -> Response {
    let most = longest_body(request.method(), request.uri().path());
    let told = request.headers().get(CONTENT_LENGTH);
    let told = told.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|it| it > most as u64) {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let request = request.map(|body| Body::new(Limited::new(body, most)));
    next.run(request).await
}

/// Gives a request up that takes too long.
async fn in_time(request: Request<Body>, next: Next) -> Response {
    let within = match request.uri().path().starts_with("/api/v1/reports/") {
        true => REPORT_WITHIN,
        false => ANSWER_WITHIN,
    };
    let answered = tokio::time::timeout(within, next.run(request)).await;
    answered.unwrap_or_else(|_| {
        let mut late = StatusCode::SERVICE_UNAVAILABLE.into_response();
        late.extensions_mut().insert(errors::Why(format!(
            "no answer within {} s: ask for less, or again when the server is less busy",
            within.as_secs()
        )));
        late
    })
}

/// Headers that every answer carries: nothing from other hosts, no inline script or style but where an answer has a
/// policy of its own, no guessing of types, no framing.
async fn harden(request: Request<Body>, next: Next) -> Response {
    const HEADERS: [(HeaderName, &str); 4] = [
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
    ];
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        let headers = response.headers_mut();
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
