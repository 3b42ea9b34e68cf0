//! gpufleet-server: reads its configuration, opens what it needs, and serves until it is told to
//! stop.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use gpufleet_server::App;
use gpufleet_server::auth::{Access, Role};
use gpufleet_server::clock::SystemClock;
use gpufleet_server::config::Config;
use gpufleet_server::fleet::Fleet;

/// Where the configuration is looked for when no flag names it.
const DEFAULT_CONFIG: &str = "/etc/gpufleet/server.toml";

/// Takes what the agents of a GPU fleet send, keeps it, says what it means, and shows it.
#[derive(Parser)]
#[command(name = "gpufleet-server", version)]
struct Arguments {
    /// The configuration file [default: /etc/gpufleet/server.toml where it exists].
    #[arg(long, env = "GPUFLEET_CONFIG")]
    config: Option<PathBuf>,
    /// Sets one key, over file and environment: --set web.listen=127.0.0.1:8081.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Checks the configuration and exits.
    #[arg(long)]
    check_config: bool,
    /// Prints every key with its documentation and default and exits.
    #[arg(long)]
    print_default_config: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.print_default_config {
        #[expect(clippy::print_stdout, reason = "printing is what was asked for")]
        {
            print!("{}", Config::default_file());
        }
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .init();
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("no other provider is installed before the first line of main");
    let file = arguments.config.or_else(|| {
        let default = PathBuf::from(DEFAULT_CONFIG);
        default.exists().then_some(default)
    });
    let config = Config::load(file.as_deref(), std::env::vars(), &arguments.set)?;
    let access = Access::load(&config.auth)?;
    if arguments.check_config {
        tracing::info!("the configuration is good");
        return Ok(());
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(run(config, access))
}

async fn run(config: Config, access: Access) -> anyhow::Result<()> {
    let app = App {
        fleet: Arc::new(Fleet::new(config.fleet.clone())),
        access: Arc::new(access),
        clock: Arc::new(SystemClock::start()),
        config: Arc::new(config),
    };
    let web = listen("pages and API", &app.config.web.listen, &app, Role::Read).await?;
    let pages = gpufleet_server::web::router(app.clone());
    tracing::info!(address = %web.local_addr()?, "pages and API");
    axum::serve(web, pages)
        .with_graceful_shutdown(stopped())
        .await
        .context("pages and API")
}

/// Binds a listener, unless others could reach it unprotected.
async fn listen(
    what: &'static str,
    address: &str,
    app: &App,
    role: Role,
) -> anyhow::Result<tokio::net::TcpListener> {
    let addresses: Vec<_> = tokio::net::lookup_host(address)
        .await
        .with_context(|| format!("{what}: {address} is not an address and port"))?
        .collect();
    for address in &addresses {
        app.access.permit(&app.config.auth, what, *address, role)?;
    }
    tokio::net::TcpListener::bind(&addresses[..])
        .await
        .with_context(|| format!("{what}: cannot listen on {address}; is another server running?"))
}

/// Returns when the process is asked to stop.
async fn stopped() {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .expect("the runtime was built with signals");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("asked to stop");
}
