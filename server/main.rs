//! gpufleet-server: reads its configuration, opens what it needs, and serves until it is told to
//! stop.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gpufleet_program::clock::SystemClock;
use gpufleet_program::config::{ConfigFlags, ProgramConfig as _, Sources};
use gpufleet_program::listen::{self, Listener};
use gpufleet_program::log;
use gpufleet_server::App;
use gpufleet_server::auth::{Access, Role};
use gpufleet_server::commit::{self, Leased, Replaced};
use gpufleet_server::config::Config;
use gpufleet_server::detect::thresholds::Thresholds;
use gpufleet_server::export::cloud_monitoring::{self, CloudMonitoring};
use gpufleet_server::export::late::Watched;
use gpufleet_server::export::remote_write::{self, RemoteWrite};
use gpufleet_server::fleet::FOREIGN_AGENT;
use gpufleet_server::ingest::foreign::{Foreign, Kept};
use gpufleet_server::ingest::{self, Ingest};
use gpufleet_server::notify::lane::Outcome;
use gpufleet_server::notify::{self, Channels};
use gpufleet_server::refusals::{Door, Reason};
use gpufleet_server::store::Store;
use gpufleet_server::{
    detect, files, handoff, health, inventory, lead, ledger, money, retention, runs,
};
use gpufleet_spool::disk::RealDisk;
use gpufleet_telemetry::time::Clock;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod commands;

/// Decoding a request makes and frees thousands of small texts: with the C library's allocator that
/// was 40 % of the server's CPU time, with this one a third of all is saved. Figures are in
/// docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long open connections may go on after the server was asked to stop.
const CONNECTIONS_END: Duration = Duration::from_secs(3);

/// Threads that answer on the web port and do nothing else: the data of a tick keeps as many threads as there are cores
/// busy for a second, and a request would wait behind it at every step. What takes long has others
/// (`gpufleet_server::threads`).
const WEB_THREADS: usize = 2;

/// Takes what the agents of a GPU fleet send, keeps it, says what it means, and shows it.
#[derive(Parser)]
#[command(name = "gpufleet-server", version)]
struct Arguments {
    #[command(flatten)]
    config: ConfigFlags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// About the ways to people.
    #[command(subcommand)]
    Notify(Ask),
    #[command(flatten)]
    Money(commands::Command),
}

#[derive(Subcommand)]
enum Ask {
    /// Sends a message that says that it is a test, and says what became of it.
    Test {
        /// Its name in notify.channels.
        channel: String,
    },
}

fn main() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("no other provider is installed before the first line of main");
    let arguments = Arguments::parse();
    let Some((sources, config)) = arguments.config.load(Vec::new())? else {
        return Ok(());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match arguments.command {
        None => {
            // It ends first: what it still does rests on the other.
            let web = web_threads()?;
            runtime.block_on(run(sources, config, web.handle()))
        }
        Some(Command::Notify(Ask::Test { channel })) => {
            runtime.block_on(test_channel(&config, &channel))
        }
        Some(Command::Money(command)) => {
            let now = SystemClock::start().now();
            runtime.block_on(commands::run(command, &config, now))
        }
    }
}

/// The runtime of the web port.
fn web_threads() -> anyhow::Result<Runtime> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    threads.worker_threads(WEB_THREADS).thread_name("web");
    let threads = threads.enable_all().build();
    threads.context("cannot start the threads of the web port")
}

/// Sends a test to each receiver of a channel; an error when one of them does not have it.
async fn test_channel(config: &Config, channel: &str) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let channels = Channels::new(&config.notify, &clock).map_err(anyhow::Error::msg)?;
    let outcomes = channels
        .test(channel, &config.cost.currency, clock.now())
        .await;
    let mut failed = 0;
    for (way, outcome) in outcomes.map_err(anyhow::Error::msg)? {
        let said = match outcome {
            Outcome::Delivered => "it has the test".to_owned(),
            Outcome::Later { why, .. } => format!("not now: {why}"),
            Outcome::Refused { why, .. } => format!("refused: {why}"),
        };
        failed += usize::from(said != "it has the test");
        let mut out = std::io::stdout();
        writeln!(out, "{way}: {said}").context("cannot print")?;
    }
    anyhow::ensure!(
        failed == 0,
        "{failed} receivers of {channel} do not have the test"
    );
    Ok(())
}

async fn run(sources: Sources, config: Config, web: &Handle) -> anyhow::Result<()> {
    let traces = log::start("gpufleet-server", &config.trace)?;
    files::raise();
    // Before a database is opened, which may change its schema.
    config.rehearse().map_err(anyhow::Error::from_boxed)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let channels = Channels::new(&config.notify, &clock).map_err(anyhow::Error::msg)?;
    let channels = Arc::new(channels);
    let origins = sources.origins::<Config>()?;
    let thresholds = Thresholds::of(sources).map_err(anyhow::Error::from_boxed)?;
    let pushing = RemoteWrite::new(&config.remote_write, &clock).map_err(anyhow::Error::msg)?;
    let to_cloud = CloudMonitoring::new(&config.cloud_monitoring, &config.store.lease);
    let to_cloud = to_cloud.map_err(anyhow::Error::msg)?;
    let store = Store::open(&config.store).await?;
    let access = Access::load(&config.auth)?;
    let app = App {
        origins: Some(Arc::new(origins)),
        ..App::new(config, store, access, clock)
    };
    app.incidents.tells(Arc::clone(channels.settings()));
    let stop = app.stop.clone();
    stop_when_told(stop.clone());
    // The folder's lock comes before the lease: a second server started by mistake with the same
    // configuration ends here, and does not take the lease from the one that runs.
    let folder = Foreign::lock_folder(&app.config.ingest.spool_dir)?;
    let holder = lead::holder(folder.root())
        .context("cannot keep this server's name in ingest.spool_dir")?;
    let spool = Foreign::open(folder, app.clock.as_ref())?;
    let durable = match app.store.is_behind() {
        // Which of them are durable is not to be read yet: all of them may have to be folded.
        true => Vec::new(),
        false => app.store.cursors_of(&[FOREIGN_AGENT]).await?,
    };
    app.lead.keeps(spool.requests(&durable));
    let ingest = Ingest::new(app.clone());
    let mut tasks = begin_tasks(&app, channels, thresholds, &stop);
    let pushing = remote_write::run(app.clone(), pushing, stop.clone());
    tasks.spawn(named("remote write", pushing));
    let pushing = cloud_monitoring::run(app.clone(), to_cloud, stop.clone());
    tasks.spawn(named("Cloud Monitoring", pushing));
    open_doors(&app, &ingest, (&stop, web), &mut tasks).await?;
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
    if let Some(leased) = leased {
        lead::release(&app, leased.token).await;
    }
    app.store.close().await;
    traces.finish().await;
    worked?;
    match gone {
        Some(what) => anyhow::bail!("{what} ended by itself; the log before this says why"),
        None => Ok(()),
    }
}

/// Starts what goes on beside the doors; it begins its work when this server leads.
fn begin_tasks(
    app: &App,
    channels: Arc<Channels>,
    thresholds: Option<Thresholds>,
    stop: &CancellationToken,
) -> JoinSet<&'static str> {
    let mut tasks = JoinSet::new();
    let beating = health::beat(app.clone(), stop.clone());
    tasks.spawn(named("the sign of life", beating));
    tasks.spawn(named("prices", money::run(app.clone(), stop.clone())));
    let advising = money::advice::run(app.clone(), stop.clone());
    tasks.spawn(named("advice", advising));
    tasks.spawn(named("the ledger", ledger::run(app.clone(), stop.clone())));
    let daily = money::daily::run(app.clone(), stop.clone());
    tasks.spawn(named("money by day", daily));
    let retention = retention::run(app.clone(), stop.clone());
    tasks.spawn(named("retention", retention));
    let watch = runs::watch::run(app.clone(), stop.clone());
    tasks.spawn(named("the judgement of runs", watch));
    let seeing = inventory::run(app.clone(), stop.clone());
    tasks.spawn(named("the inventory", seeing));
    let judging = detect::run(app.clone(), thresholds, stop.clone());
    tasks.spawn(named("the detectors", judging));
    let handing = handoff::run(app.clone(), stop.clone());
    tasks.spawn(named("the hand-off", handing));
    let telling = notify::run(app.clone(), channels, stop.clone());
    tasks.spawn(named("the notifications", telling));
    let digesting = notify::digest::run(app.clone(), stop.clone());
    tasks.spawn(named("the weekly digest", digesting));
    let beating = notify::heartbeat::run(app.clone(), stop.clone());
    tasks.spawn(named("the heartbeat", beating));
    tasks
}

/// Waits for the right to write, and then takes what agents and others send until told to stop.
async fn lead_and_write(
    app: &App,
    ingest: &Ingest,
    (spool, holder): (Kept<RealDisk>, &str),
    leased: &mut Option<Leased>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(right) = lead::take(app, holder, stop).await? else {
        return Ok(());
    };
    let right = &*leased.insert(right);
    let work = async {
        if !lead::restore(app, stop).await? {
            return Ok(());
        }
        // Its requests are folded over what the store knows, so not before.
        let fleet = Arc::clone(&app.fleet);
        let cluster = &app.config.ingest.default_cluster;
        ingest.begin(spool.start(fleet, Arc::clone(&app.clock), cluster)?);
        app.incidents.leads(right.token);
        app.inventory.leads(right.token);
        app.money.leads(right.token);
        app.begins_to_lead();
        Ok(commit_all(app, right, stop).await?)
    };
    Box::pin(lead::hold(app, right.token, stop, work)).await
}

/// Opens every door and serves it until told to stop, that of the web on its own threads.
async fn open_doors(
    app: &App,
    ingest: &Ingest,
    (stop, web): (&CancellationToken, &Handle),
    tasks: &mut JoinSet<&'static str>,
) -> anyhow::Result<()> {
    let (settings, own) = (&app.config.ingest, &Handle::current());
    let shared = gpufleet_server::web::shared(app.clone());
    let ahead = gpufleet_server::web::ahead(Arc::clone(&shared), stop.clone());
    tasks.spawn(named("months ahead", on(web.clone(), ahead)));
    for ((what, door), address, role, router, threads) in [
        (
            ("OTLP over gRPC", Door::Grpc),
            &settings.grpc_listen,
            Role::Ingest,
            ingest::grpc_router(ingest),
            own,
        ),
        (
            ("OTLP over HTTP", Door::Http),
            &settings.http_listen,
            Role::Ingest,
            ingest::http_router(ingest),
            own,
        ),
        (
            ("pages and API", Door::Web),
            &app.config.web.listen,
            Role::Read,
            gpufleet_server::web::router_of(shared).merge(health::router(app.clone())),
            web,
        ),
    ] {
        let listening = listen((what, door), address.clone(), app.clone(), role);
        let listener = threads.spawn(listening).await.context(what)??;
        let serving = serve(what, listener, router, stop.clone());
        tasks.spawn(named(what, on(threads.clone(), serving)));
    }
    Ok(())
}

/// A task on the threads of a runtime, for as long as it goes on; its panic is told as if it were here.
async fn on(threads: Handle, task: impl Future<Output = ()> + Send + 'static) {
    if let Err(error) = threads.spawn(task).await
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
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

/// Commits until told to stop or replaced. The last commit comes after the token is cancelled, when
/// listeners take nothing new.
async fn commit_all(app: &App, leased: &Leased, stop: &CancellationToken) -> Result<(), Replaced> {
    let settings = &app.config.fleet;
    let pace = (
        Duration::from_secs(settings.commit_interval_s),
        settings.commit_bytes,
    );
    let clock = app.clock.as_ref();
    let to = Watched {
        to: leased,
        ways: [&app.pushed, &app.cloud_monitoring.pushed],
    };
    commit::run(&app.fleet, &to, clock, pace, &app.commits, stop.clone()).await
}

/// Binds a listener, unless others could reach it unprotected.
async fn listen(
    (what, door): (&'static str, Door),
    address: String,
    app: App,
    role: Role,
) -> anyhow::Result<Listener> {
    let addresses: Vec<_> = tokio::net::lookup_host(&address)
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
    let tls = app.access.tls();
    let is_tls = tls.is_some();
    let refused = move |peer: std::net::SocketAddr| {
        let now = app.clock.now();
        app.refusals.note(door, Reason::Tls, Some(peer.ip()), now);
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
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

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

    async fn panics() {
        panic!("as told");
    }

    #[test]
    fn a_task_on_other_threads_is_named_when_it_ends_and_its_panic_is_told() {
        let (own, web) = (Runtime::new().unwrap(), web_threads().unwrap());
        let ended = |task: BoxFuture<'static, ()>| {
            own.block_on(async {
                let stop = CancellationToken::new();
                let mut tasks = JoinSet::new();
                tasks.spawn(named("pages", on(web.handle().clone(), task)));
                let gone = stop_when_one_ends(&mut tasks, &stop).await;
                gone.expect("it ended by itself")
            })
        };
        let (tell, told) = std::sync::mpsc::channel();
        let task = async move {
            let thread = std::thread::current();
            tell.send(thread.name().map(str::to_owned)).unwrap();
        };
        assert_eq!(ended(task.boxed()), "pages");
        assert_eq!(told.recv().unwrap().as_deref(), Some("web"));
        let panicked = ended(panics().boxed());
        assert!(panicked.contains("as told"), "{panicked}");
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
