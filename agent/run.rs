//! The running agent: everything put together, and taken apart again in order.
//!
//! Longer than 500 lines because what is started and what is ended must be read side by side.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use gpufleet_program::config::Sources;
use gpufleet_program::log;
use gpufleet_program::reloaded::words;
use gpufleet_spool::disk::RealDisk;
use gpufleet_spool::{NewEpoch, Opened};
use gpufleet_telemetry::command::{Command, REREAD_CONFIG};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Origin, ResourceKind};
use gpufleet_telemetry::time::Clock;
use gpufleet_telemetry::wire::Stream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::admin::Shown;
use crate::commands::{Commands, MAX_NVML_ORDERS, Orders, WAITING};
use crate::config::Config;
use crate::probe::reader::MAX_ORDERS;
use crate::read::hooks::profiles;
use crate::read::{self, NodeFacts, Wiring};
use crate::sample::own::{Own, ShipHealth};
use crate::sample::{LatestCell, Loop, OUTPUT_WAITING, Output};
use crate::ship::aside;
use crate::ship::identity::{self, Found};
use crate::ship::state::Shipper;
use crate::ship::{End, Ship};
use crate::spool::Filling;
use crate::steps::{Spooled, Way};
use crate::under_way::UnderWay;
use crate::{admin, config, spool};

/// How long a stop waits for the server to take what was spooled last; it is safe on disk anyway.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why the agent stopped.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// It must begin again: with another config, or another identity.
    Again(Box<Config>),
}

/// The spool on its way to the server, and how far steps are in it.
type Shipping = (Filling, Arc<Spooled>);

/// What a running agent is made of.
struct Agent {
    config: Config,
    node: Arc<NodeFacts>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    ship: Option<Ship<RealDisk>>,
    /// Cancelled when all that was sampled is in the spool.
    spooled: CancellationToken,
    /// A config that was read again and is to be used.
    reread: Arc<Mutex<Option<Config>>>,
    /// The state folder is this process's until the agent has ended.
    _state: Option<File>,
}

/// Runs until `stop` is cancelled.
///
/// # Errors
/// When the agent cannot start: each names the config key or the file, and the way out.
pub async fn run(
    config: &Config,
    sources: &Sources,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> anyhow::Result<Ended> {
    let state = match config.ship.endpoint.is_empty() {
        // Nothing is sent, so nothing is kept.
        true => None,
        false => Some(identity::lock(&config.node.state_folder)?),
    };
    let (node, found) = node_facts(config, clock.as_ref())?;
    let health = ShipHealth::default();
    let (shipping, opened) = open_ship(config, &node, &health, clock.as_ref())?;
    let (filling, spooled) = shipping.unzip();
    let ship = filling.as_ref().map(|it| it.ship.clone());
    let shipping = state.is_some().then(|| health.clone());
    let (output, outputs) = mpsc::channel(OUTPUT_WAITING);
    let (nvml, nvml_orders) = mpsc::channel(MAX_NVML_ORDERS);
    let (probe, probe_orders) = mpsc::channel(MAX_ORDERS);
    let (profile, profile_orders) = mpsc::channel(profiles::MAX_ORDERS);
    let wiring = Wiring {
        nvml_orders: Some(nvml_orders),
        probe_orders: Some(probe_orders),
        profile_orders: Some(profile_orders),
        steps: spooled.map(|spooled| Way {
            spooled,
            output: output.clone(),
            interval: config.sample.interval(),
        }),
        ..Wiring::to_look(Arc::clone(&node))
    };
    let readers = read::readers(config, wiring)?;
    let latest = Arc::new(LatestCell::default());
    let looping = Loop {
        config: config.sample.clone(),
        node: Arc::clone(&node),
        clock: Arc::clone(&clock),
        latest: Arc::clone(&latest),
        own: Own::new(health),
        output: output.clone(),
        keeps_rounds: filling.is_some(),
    };
    let started = started(&node, &opened, found, clock.as_ref());
    let mut events = vec![started];
    if state.is_some() {
        let folder = &config.node.state_folder;
        events.extend(aside::tell(folder, &config.spool, &node, clock.now())?);
    }
    let _ = output.try_send(Output::Events(events));
    let agent = Agent {
        config: config.clone(),
        node,
        clock,
        // A part that ends ends the others, without being taken for a stop from outside.
        stop: stop.child_token(),
        ship,
        spooled: CancellationToken::new(),
        reread: Arc::default(),
        _state: state,
    };
    let sampling = tokio::spawn(looping.run(readers, agent.stop.clone()));
    let filled = spool::fill(
        filling,
        outputs,
        Arc::clone(&agent.node),
        Arc::clone(&agent.clock),
    );
    let told = agent.spooled.clone().drop_guard();
    let spooling = tokio::spawn(async move {
        filled.await;
        drop(told);
    });
    let shown = Shown { latest, shipping };
    let orders = Orders {
        nvml,
        probe,
        profile,
    };
    let end = agent.serve_and_ship(shown, orders, output, sources).await;
    // In the order of the data: what is sampled is spooled, what is spooled is safe.
    agent.stop.cancel();
    sampling.await.context("the sample loop failed")?;
    spooling.await.context("the way into the spool failed")?;
    agent.ended(end?)
}

impl Agent {
    /// Answers scrapers, ships, and does what the server asks, until one of them ends.
    async fn serve_and_ship(
        &self,
        shown: Shown,
        orders: Orders,
        output: mpsc::Sender<Output>,
        sources: &Sources,
    ) -> anyhow::Result<End> {
        let (given, commands) = mpsc::channel(WAITING);
        let serving = admin::serve(
            &self.config,
            shown,
            Arc::clone(&self.clock),
            self.stop.clone(),
        );
        // Shipping goes on for a moment after the stop, so that the last tick gets its chance.
        let farewell = CancellationToken::new();
        let shipping = async {
            match &self.ship {
                Some(ship) => {
                    let clock = Arc::clone(&self.clock);
                    ship.run(&self.config.ship, clock, given, farewell.clone())
                        .await
                }
                None => {
                    farewell.cancelled().await;
                    Ok(End::Stopped)
                }
            }
        };
        let obeying = self.obey(commands, orders, output, sources);
        let stopping = async {
            self.stop.cancelled().await;
            tokio::time::sleep(FAREWELL).await;
            farewell.cancel();
        };
        tokio::pin!(shipping, stopping);
        tokio::select! {
            served = serving => {
                served?;
                // The listener ends first when the agent stops.
                tokio::select! {
                    end = &mut shipping => end,
                    () = self.settled() => Ok(End::Stopped),
                    () = &mut stopping => Ok(End::Stopped),
                }
            }
            end = &mut shipping => end,
            () = obeying => Ok(End::Stopped),
        }
    }

    /// Until the server has been sent everything that a stopping agent has spooled.
    async fn settled(&self) {
        let Some(ship) = &self.ship else { return };
        // The last tick is on its way into the spool when the listener ends, on a busy machine for long.
        self.spooled.cancelled().await;
        while ship.has_unsent(self.clock.now()).await {
            tokio::time::sleep(FAREWELL / 20).await;
        }
    }

    /// Does commands until the agent is to begin again.
    async fn obey(
        &self,
        mut given: mpsc::Receiver<Command>,
        orders: Orders,
        output: mpsc::Sender<Output>,
        sources: &Sources,
    ) {
        let mut commands = Commands::new(self.node.node.as_str(), orders);
        loop {
            let command = tokio::select! {
                command = given.recv() => command,
                event = commands.finished(|| self.clock.now()) => {
                    self.tell(event, &output).await;
                    continue;
                }
            };
            let Some(command) = command else { break };
            let mut read = None;
            let reread = || {
                let next: Config = sources.load().map_err(|error| words(&error))?;
                rehearse(&next, Some(&self.config)).map_err(|error| format!("{error:#}"))?;
                read = Some(next);
                Ok(())
            };
            let event = commands.obey(&command, self.clock.now(), reread).await;
            if let Some(event) = event {
                self.tell(event, &output).await;
            }
            if command.action == REREAD_CONFIG && read.as_ref().is_some_and(|it| *it != self.config)
            {
                *self.reread.lock().unwrap_or_else(PoisonError::into_inner) = read;
                return;
            }
        }
        // Without a server there are no commands: that ends nothing.
        std::future::pending::<()>().await;
    }

    /// What came of a command.
    async fn tell(&self, event: Event, output: &mpsc::Sender<Output>) {
        tracing::info!(result = event.message, "a command");
        let _ = output.send(Output::Events(vec![event])).await;
    }

    /// What the end of a part means for the whole.
    fn ended(self, end: End) -> anyhow::Result<Ended> {
        let reread = self
            .reread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(config) = reread {
            return Ok(Ended::Again(Box::new(config)));
        }
        if end == End::Stopped {
            return Ok(Ended::Stopped);
        }
        tracing::error!(
            agent = %self.node.agent_id,
            "another process sends under this agent's id: taking a new one, and a new spool"
        );
        drop(self.ship);
        let state = &self.config.node.state_folder;
        identity::renew(
            state,
            &config::machine_id(),
            &self.node.node,
            Uuid::new_v4(),
            self.clock.now(),
        )?;
        Ok(Ended::Again(Box::new(self.config)))
    }
}

/// Builds everything that a start with this config would build, and throws it away. `running` is the
/// config of the agent that asks: its folder and its address are free for itself. Where none asks, an
/// agent that runs must not be disturbed.
///
/// # Errors
/// Names the key or the file that the start would stumble over.
pub fn rehearse(config: &Config, running: Option<&Config>) -> anyhow::Result<()> {
    let node = Arc::new(facts(config, AgentId(Uuid::nil())));
    read::readers(config, Wiring::to_look(node))?;
    config.attribute.rehearse()?;
    config.ship.rehearse()?;
    let listens = running.map(|it| it.listen.address.as_str());
    config.listen.rehearse(listens)?;
    log::rehearse(&config.trace)?;
    if let Some(running) = running {
        anyhow::ensure!(
            running.trace == config.trace,
            "trace.endpoint: it is read at the start only; restart the agent for it"
        );
    }
    let folder = &config.node.state_folder;
    let is_ours =
        running.is_some_and(|it| !it.ship.endpoint.is_empty() && it.node.state_folder == *folder);
    if config.ship.endpoint.is_empty() || is_ours {
        return Ok(());
    }
    identity::may_write(folder)?;
    if running.is_some() {
        drop(identity::lock(folder)?);
    }
    Ok(())
}

/// Who and where this agent is.
fn node_facts(config: &Config, clock: &dyn Clock) -> anyhow::Result<(Arc<NodeFacts>, Found)> {
    let state = &config.node.state_folder;
    let (agent_id, found) = if config.ship.endpoint.is_empty() {
        // Nothing is sent, so nobody needs to know it again.
        (AgentId(Uuid::new_v4()), Found::New)
    } else {
        identity::load(
            state,
            &config::machine_id(),
            &config.node.resolved_name(),
            Uuid::new_v4(),
            clock.now(),
        )?
    };
    Ok((Arc::new(facts(config, agent_id)), found))
}

fn facts(config: &Config, agent_id: AgentId) -> NodeFacts {
    NodeFacts {
        cluster: config.node.cluster.clone(),
        node: config.node.resolved_name(),
        boot_id: config::boot_id(),
        agent_id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn open_ship(
    config: &Config,
    node: &Arc<NodeFacts>,
    health: &ShipHealth,
    clock: &dyn Clock,
) -> anyhow::Result<(Option<Shipping>, Opened)> {
    if config.ship.endpoint.is_empty() {
        return Ok((None, Opened::default()));
    }
    let folder = config.node.state_folder.join(aside::SPOOL);
    let (spool, opened) = config.spool.open(&folder, clock.now())?;
    if opened.bad_bytes > 0 {
        tracing::warn!(
            bytes = opened.bad_bytes,
            "bytes of the spool are no record: a torn write or a bad disk"
        );
    }
    let next_seq = |epoch| spool.next_seq(epoch, Stream::Metrics);
    let (under_way, recovered) =
        UnderWay::begin(&config.node.state_folder, node, next_seq, clock.now())?;
    if !recovered.is_empty() {
        tracing::info!(
            ticks = recovered.len(),
            "an agent before this one ended in the middle of a tick: what it had read of it is shipped now"
        );
    }
    let spooled = Spooled::open(&config.node.state_folder, &node.boot_id, |epoch| {
        spool.next_seq(epoch, Stream::Logs)
    })?;
    let shipper = Shipper::new(node.agent_id, spool, Box::new(Uuid::new_v4));
    let sender = node.resource(
        ResourceKind::Node,
        node.node.as_str(),
        Origin::Live,
        "agent",
    );
    let refused = config.node.state_folder.join("refused");
    let ship = Ship::new(shipper, Arc::new(sender), Some(refused), health.clone());
    let filling = Filling {
        ship,
        under_way,
        sync_every: config.spool.sync_every(),
        recovered,
    };
    Ok((Some((filling, Arc::new(spooled))), opened))
}

/// The event that tells of this start.
fn started(node: &NodeFacts, opened: &Opened, found: Found, clock: &dyn Clock) -> Event {
    let epoch = match opened.new_epoch {
        None => "goes on",
        Some(NewEpoch::NoSpool) => "new: there was no spool",
        Some(NewEpoch::Corrupt) => "new: the spool had holes or garbage",
    };
    let identity = match found {
        Found::Kept => "kept",
        Found::New => "new",
        Found::Cloned => "new: the state folder is of another machine",
    };
    let attributes = [
        ("version", node.version.clone()),
        ("epoch", epoch.to_owned()),
        ("identity", identity.to_owned()),
        ("bad_bytes", opened.bad_bytes.to_string()),
        ("waiting", opened.records.to_string()),
    ];
    Event {
        at: clock.now(),
        kind: EventKind::AgentStarted,
        severity: Severity::Info,
        resource_kind: ResourceKind::Node,
        resource_id: node.node.as_str().into(),
        message: format!("agent {} started", node.version),
        attributes: attributes
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufleet_program::clock::SystemClock;

    /// What a start would stumble over is said before it, with the key and the file.
    #[test]
    fn a_config_that_no_agent_could_start_with_is_refused_with_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let not_a_folder = file("file", "x");
        let not_a_table = file("bad.toml", "no table");
        let tables = folder.path().display().to_string();
        let https = "ship.endpoint=https://127.0.0.1:4317";
        let check = |settings: &[&str], words: &[&str]| {
            let state = format!("node.state_folder={tables}");
            let off = [&state, "nvml.enabled=false", "listen.address=127.0.0.1:0"];
            let set = off.into_iter().chain(settings.iter().copied());
            let sources = Sources {
                set: set.map(str::to_owned).collect(),
                ..Sources::default()
            };
            let config: Config = sources.load().expect("each value may be meant");
            let error = rehearse(&config, None).expect_err("it cannot start");
            let error = format!("{error:#}");
            for word in words {
                assert!(error.contains(word), "`{word}` is not in: {error}");
            }
        };
        check(
            &["ship.token_file=/nowhere/token"],
            &["ship.token_file", "/nowhere/token"],
        );
        check(&["ship.endpoint=ftp://x"], &["ship.endpoint", "ftp://x"]);
        check(
            &["ship.endpoint=http://me:secret@x:4317"],
            &["ship.endpoint", "ship.token_file"],
        );
        check(
            &["ship.ca_file=/nowhere.pem"],
            &["ship.ca_file", "https://"],
        );
        check(
            &[https, "ship.ca_file=/nowhere.pem"],
            &["ship.ca_file", "/nowhere.pem"],
        );
        check(
            &[https, "ship.certificate_file=/nowhere.pem"],
            &["ship.certificate_file", "ship.key_file"],
        );
        check(
            &["listen.token_file=/nowhere/token"],
            &["listen.token_file", "/nowhere/token"],
        );
        check(
            &["listen.key_file=/nowhere.pem"],
            &["listen.key_file", "listen.certificate_file"],
        );
        check(
            &[
                "listen.address=203.0.113.1:9410",
                "listen.allow_insecure=true",
            ],
            &["listen.address", "203.0.113.1"],
        );
        let wrong = format!("exporter.tables_folder={tables}");
        check(&[&wrong], &["exporter.tables_folder", &not_a_table]);
        check(
            &["exporter.targets=[{ url = \"http://x/metrics\", token_file = \"/nowhere\" }]"],
            &["exporter.targets", "token_file", "/nowhere"],
        );
        check(&["recorded.files=/nowhere.metrics"], &["/nowhere.metrics"]);
        let wrong = format!("nvml.xid_actions_path={not_a_table}");
        check(&["nvml.enabled=true", &wrong], &[&not_a_table]);
        check(
            &["trace.endpoint=nonsense"],
            &["trace.endpoint", "nonsense"],
        );
        let wrong = format!("node.state_folder={not_a_folder}/state");
        check(&[&wrong], &["node.state_folder", &not_a_folder]);
    }

    #[test]
    fn an_address_that_another_has_is_refused_by_an_agent_that_would_move_there() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut next = Config::for_tests();
        next.node.state_folder = folder.path().to_owned();
        let running = next.clone();
        next.listen.address = other.local_addr().expect("an address").to_string();
        let error = rehearse(&next, Some(&running)).expect_err("it is taken");
        assert!(format!("{error:#}").contains("listen.address"), "{error:#}");
        rehearse(&next, Some(&next)).expect("it is the agent's own");
        rehearse(&next, None).expect("it may be the running agent's");
        next.listen.address = running.listen.address.clone();
        next.trace.endpoint = "http://127.0.0.1:4317".to_owned();
        let error = rehearse(&next, Some(&running)).expect_err("too late for it");
        assert!(error.to_string().contains("trace.endpoint"), "{error:#}");
    }

    #[tokio::test]
    async fn a_second_agent_on_one_state_folder_is_refused_before_it_touches_anything() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let _running = identity::lock(folder.path()).expect("the first agent");
        let identity = folder.path().join("identity.json");
        let of_another = r#"{"agent_id":"00000000-0000-0000-0000-000000000001","machine_id":"another","node":"a"}"#;
        std::fs::write(&identity, of_another).expect("a file");
        let record = folder.path().join("spool/record");
        std::fs::create_dir(folder.path().join("spool")).expect("a folder");
        std::fs::write(&record, "x").expect("a file");
        let mut config = Config::for_tests();
        config.node.state_folder = folder.path().to_owned();
        let clock = Arc::new(SystemClock::start());
        let (sources, stop) = (Sources::default(), CancellationToken::new());
        let ran = run(&config, &sources, clock, stop).await;
        let error = ran.expect_err("the folder is taken").to_string();
        assert!(
            error.contains("stop that one") && error.contains(&folder.path().display().to_string()),
            "{error}"
        );
        let text = std::fs::read_to_string(identity).expect("it is still there");
        assert_eq!(text, of_another);
        assert!(record.exists(), "the spool is the running agent's");
    }
}
