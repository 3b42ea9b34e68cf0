//! gpufleet-server: reads its configuration, opens what it needs, and serves until it is told to
//! stop.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use gpufleet_program::clock::SystemClock;
use gpufleet_program::config::{ConfigFlags, ProgramConfig as _};
use gpufleet_program::listen::{self, Listener};
use gpufleet_program::log;
use gpufleet_server::App;
use gpufleet_server::auth::{Access, Role};
use gpufleet_server::commit::{self, Leased, Replaced};
use gpufleet_server::config::Config;
use gpufleet_server::fleet::{FOREIGN_AGENT, Fleet};
use gpufleet_server::ingest::foreign::{Foreign, Kept};
use gpufleet_server::ingest::{self, Ingest};
use gpufleet_server::refusals::{Door, Reason};
use gpufleet_server::store::Store;
use gpufleet_server::{detect, files, health, lead, ledger, retention, runs};
use gpufleet_spool::disk::RealDisk;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Decoding a request makes and frees thousands of small texts: with the C library's allocator that
/// was 40 % of the server's CPU time, with this one a third of all is saved. Figures are in
/// docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long open connections may go on after the server was asked to stop.
const CONNECTIONS_END: Duration = Duration::from_secs(3);

/// Takes what the agents of a GPU fleet send, keeps it, says what it means, and shows it.
#[derive(Parser)]
#[command(name = "gpufleet-server", version)]
struct Arguments {
    #[command(flatten)]
    config: ConfigFlags,
}

fn main() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("no other provider is installed before the first line of main");
    let Some((_, config)) = Arguments::parse().config.load(Vec::new())? else {
        return Ok(());
    };
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(run(config))
}

async fn run(config: Config) -> anyhow::Result<()> {
    let traces = log::start("gpufleet-server", &config.trace)?;
    files::raise();
    // Before a database is opened, which may change its schema.
    config.rehearse().map_err(anyhow::Error::from_boxed)?;
    let app = App {
        store: Store::open(&config.store).await?,
        fleet: Arc::new(Fleet::new(config.fleet.clone())),
        access: Arc::new(Access::load(&config.auth)?),
        commits: Arc::default(),
        jobs: Arc::default(),
        refusals: Arc::default(),
        lead: Arc::default(),
        incidents: Arc::default(),
        rejections: Arc::default(),
        clock: Arc::new(SystemClock::start()),
        config: Arc::new(config),
    };
    let stop = CancellationToken::new();
    stop_when_told(stop.clone());
    // The folder's lock comes before the lease: a second server started by mistake with the same
    // configuration ends here, and does not take the lease from the one that runs.
    let folder = Foreign::lock_folder(&app.config.ingest.spool_dir)?;
    let holder = lead::holder(folder.root())
        .context("cannot keep this server's name in ingest.spool_dir")?;
    let spool = Foreign::open(folder, app.clock.as_ref())?;
    app.lead
        .keeps(spool.requests(&app.store.cursors_of(&[FOREIGN_AGENT]).await?));
    let ingest = Ingest::new(app.clone());
    let mut tasks = JoinSet::new();
    // They begin when this server leads.
    tasks.spawn(named("the ledger", ledger::run(app.clone(), stop.clone())));
    let retention = retention::run(app.clone(), stop.clone());
    tasks.spawn(named("retention", retention));
    let watch = runs::watch::run(app.clone(), stop.clone());
    tasks.spawn(named("the judgement of runs", watch));
    let judging = detect::run(app.clone(), stop.clone());
    tasks.spawn(named("the detectors", judging));
    open_doors(&app, &ingest, &stop, &mut tasks).await?;
    let mut leased = None;
    let working = async {
        let work = lead_and_write(&app, &ingest, (spool, &holder), &mut leased, &stop);
        let worked = Box::pin(work).await;
        stop.cancel();
        worked
    };
    let (worked, gone) = tokio::join!(working, stop_when_one_ends(&mut tasks, &stop));
    // Agents keep their connections open: those that do not end in time are cut.
    let ended = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(CONNECTIONS_END, ended).await.is_err() {
        tracing::info!("connections were still open and are cut");
    }
    // The reason of the end comes first: a database that is gone says nothing new here.
    if let Some(leased) = leased
        && let Err(error) = app.store.release_lease(leased.token).await
    {
        tracing::warn!(%error, "cannot release the lease; a standby waits until it runs out");
    }
    app.store.close().await;
    traces.finish();
    worked?;
    match gone {
        Some(what) => anyhow::bail!("{what} ended by itself; the log before this says why"),
        None => Ok(()),
    }
}

/// Waits for the right to write, and then takes what agents and others send until told to stop.
async fn lead_and_write(
    app: &App,
    ingest: &Ingest,
    (spool, holder): (Kept<RealDisk>, &str),
    leased: &mut Option<Leased>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(right) = lead::begin(app, holder, stop).await? else {
        return Ok(());
    };
    let right = leased.insert(right);
    // Its requests are folded over what the store knows, so not before `begin` has restored that.
    let fleet = Arc::clone(&app.fleet);
    let cluster = &app.config.ingest.default_cluster;
    ingest.begin(spool.start(fleet, Arc::clone(&app.clock), cluster)?);
    app.incidents.leads(right.token);
    app.lead.begin();
    Ok(Box::pin(write(app, right, stop)).await?)
}

/// Opens every door and serves it until told to stop.
async fn open_doors(
    app: &App,
    ingest: &Ingest,
    stop: &CancellationToken,
    tasks: &mut JoinSet<&'static str>,
) -> anyhow::Result<()> {
    let settings = &app.config.ingest;
    for ((what, door), address, role, router) in [
        (
            ("OTLP over gRPC", Door::Grpc),
            &settings.grpc_listen,
            Role::Ingest,
            ingest::grpc_router(ingest),
        ),
        (
            ("OTLP over HTTP", Door::Http),
            &settings.http_listen,
            Role::Ingest,
            ingest::http_router(ingest),
        ),
        (
            ("pages and API", Door::Web),
            &app.config.web.listen,
            Role::Read,
            gpufleet_server::web::router(app.clone()).merge(health::router(app.clone())),
        ),
    ] {
        let listener = listen((what, door), address, app, role).await?;
        tasks.spawn(named(what, serve(what, listener, router, stop.clone())));
    }
    Ok(())
}

/// A task that says which one it was when it ends.
async fn named(what: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    what
}

/// Stops the server when a task ends that nobody told to: without its ledger or a listener it would
/// go on looking well. Returns which one, or nothing when the server was told to stop.
async fn stop_when_one_ends(
    tasks: &mut JoinSet<&'static str>,
    stop: &CancellationToken,
) -> Option<String> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        ended = tasks.join_next() => {
            stop.cancel();
            Some(match ended? {
                Ok(what) => what.to_owned(),
                Err(panicked) => panicked.to_string(),
            })
        }
    }
}

/// Commits and keeps the lease, until told to stop or replaced. The last commit comes after the
/// token is cancelled, when listeners take nothing new.
async fn write(app: &App, leased: &Leased, stop: &CancellationToken) -> Result<(), Replaced> {
    let settings = &app.config.fleet;
    let pace = (
        Duration::from_secs(settings.commit_interval_s),
        settings.commit_bytes,
    );
    let clock = app.clock.as_ref();
    let commits = commit::run(&app.fleet, leased, clock, pace, &app.commits, stop.clone());
    let renewals = lead::renew(app, leased.token, stop.clone());
    tokio::try_join!(commits, renewals).map(|_| ())
}

/// Binds a listener, unless others could reach it unprotected.
async fn listen(
    (what, door): (&'static str, Door),
    address: &str,
    app: &App,
    role: Role,
) -> anyhow::Result<Listener> {
    let addresses: Vec<_> = tokio::net::lookup_host(address)
        .await
        .with_context(|| format!("{what}: {address} is not an address and port"))?
        .collect();
    for address in &addresses {
        app.access.permit(&app.config.auth, what, *address, role)?;
    }
    let socket = tokio::net::TcpListener::bind(&addresses[..])
        .await
        .with_context(|| {
            format!("{what}: cannot listen on {address}; is another server running?")
        })?;
    let tls = app.config.auth.tls().reloaded("the server's TLS");
    let tls = tls.map_err(anyhow::Error::from_boxed)?;
    let is_tls = tls.is_some();
    let told = app.clone();
    let refused = move |peer: std::net::SocketAddr| {
        let now = told.clock.now();
        told.refusals.note(door, Reason::Tls, Some(peer.ip()), now);
    };
    let listener = Listener::telling(socket, tls, ingest::MAX_CONNECTIONS, Arc::new(refused))?;
    let address = axum::serve::Listener::local_addr(&listener)?;
    tracing::info!(%address, tls = is_tls, "{what}");
    Ok(listener)
}

async fn serve(
    what: &'static str,
    listener: Listener,
    router: axum::Router,
    stop: CancellationToken,
) {
    let serving = listen::serve(listener, router, stop.cancelled_owned());
    if let Err(error) = serving.await {
        tracing::error!(%error, "{what} ended");
    }
}

/// Cancels the token when the process is asked to stop.
fn stop_when_told(stop: CancellationToken) {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .expect("the runtime was built with signals");
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("asked to stop");
        stop.cancel();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_by_itself_stops_the_server_and_is_named() {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(named("retention", std::future::pending()));
        tasks.spawn(named("the ledger", async {}));
        let gone = stop_when_one_ends(&mut tasks, &stop).await;
        assert_eq!(gone.as_deref(), Some("the ledger"));
        assert!(stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_server_that_is_told_to_stop_misses_nobody() {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(named("retention", std::future::pending()));
        stop.cancel();
        assert_eq!(stop_when_one_ends(&mut tasks, &stop).await, None);
    }
}
