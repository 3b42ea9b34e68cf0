//! What the simulator does: one agent's shipping per node, history first, then live ticks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gpufleet_agent::sample::own::ShipHealth;
use gpufleet_agent::ship::state::Shipper;
use gpufleet_agent::ship::{End, Ship, ShipConfig};
use gpufleet_program::clock::SystemClock;
use gpufleet_spool::disk::{Disk, RealDisk};
use gpufleet_spool::sim::SimDisk;
use gpufleet_spool::{Limits, Spool};
use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::{Clock, Timestamp};
use gpufleet_telemetry::wire::Stream;
use gpufleet_tests::simulator::faults::Faults;
use gpufleet_tests::simulator::fleet::SimulatedFleet;
use gpufleet_tests::simulator::journal::{Journal, goes_on_at};
use gpufleet_tests::simulator::node::SimulatedNode;
use gpufleet_tests::simulator::served::Served;
use gpufleet_tests::simulator::{OUTAGE_DRAINED, OUTAGE_MADE};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Arguments;
use crate::control::{self, Control};
use crate::history;

/// The live tick, seconds.
const TICK_SECONDS: u32 = 10;
/// How often is looked whether everything is durable.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Commands that may wait; nobody here carries them out, but the server may send some.
const COMMANDS: usize = 4;
const NANOS: i64 = 1_000_000_000;

/// One node with its way out.
struct Member<D: Disk> {
    node: SimulatedNode,
    ship: Ship<D>,
    health: ShipHealth,
}

/// Runs until it is stopped, or until everything is durable where that was asked for.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.in_memory {
        let disk = |node: usize| Ok(SimDisk::new(node as u64));
        return with_disks(&arguments, disk).await;
    }
    let state = arguments
        .state
        .clone()
        .context("--state is needed without --in-memory")?;
    let disk = |node: usize| {
        let folder = state.join(format!("node-{}", node + 1));
        std::fs::create_dir_all(&folder)?;
        RealDisk::open(folder)
    };
    with_disks(&arguments, disk).await
}

async fn with_disks<D: Disk + 'static>(
    arguments: &Arguments,
    disk: impl Fn(usize) -> std::io::Result<D>,
) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let fleet = SimulatedFleet::new(&arguments.plan());
    let gpu_ids = Arc::new(fleet.gpu_ids());
    let faults = Arc::new(fleet.faults);
    let served = Arc::new(Served::default());
    let (mut journal, goes_on) = open_journal(arguments)?;
    let span = history::span(arguments, clock.now(), goes_on);
    // An agent that has seen an outage was there before it.
    let opened = clock.now().min(span.live_from);
    let mut members = Vec::new();
    for mut node in fleet.nodes {
        let disk = disk(node.index()).context("cannot use the folder of a spool")?;
        let (mut spool, _) = Spool::open(disk, limits(), Epoch(Uuid::new_v4()), opened)
            .context("cannot open a spool")?;
        history::fill(&mut node, &mut spool, &span, &mut journal, clock.now())?;
        let shipper = Shipper::new(node.facts().agent_id, spool, Box::new(Uuid::new_v4));
        let (sender, health) = (Arc::new(node.resource().clone()), ShipHealth::default());
        let ship = Ship::new(shipper, sender, None, health.clone());
        members.push(Member { node, ship, health });
    }
    let stop = CancellationToken::new();
    let config = ShipConfig {
        endpoint: arguments.endpoint.clone(),
        ..ShipConfig::default()
    };
    let mut ways = tokio::task::JoinSet::new();
    for member in &members {
        let (ship, clock) = (member.ship.clone(), Arc::clone(&clock));
        ways.spawn(way(ship, config.clone(), clock, stop.clone()));
    }
    if let Some(address) = arguments.control {
        let control = Control {
            faults: Arc::clone(&faults),
            gpu_ids,
            clock: Arc::clone(&clock),
            served: Arc::clone(&served),
        };
        tokio::spawn(async move {
            if let Err(error) = control::serve(address, control).await {
                tracing::error!("{error:#}");
            }
        });
    }
    let work = live(
        arguments,
        &mut members,
        // Where nobody can ask, nothing is kept.
        (&faults, arguments.control.map(|_| &*served)),
        &*clock,
        &mut journal,
        span.live_from,
    );
    let done = tokio::select! {
        done = work => done,
        Some(way) = ways.join_next() => way.context("a way out panicked")?,
        () = stopped() => Ok(()),
    };
    stop.cancel();
    while let Some(way) = ways.join_next().await {
        way.context("a way out panicked")??;
    }
    done
}

fn limits() -> Limits {
    Limits {
        // History is as old as it is: it is dropped when the spool is full, not when it is old.
        age: Duration::from_secs(7 * 86_400),
        ..Limits::default()
    }
}

/// The journal, if there is a state folder, and where an earlier run left off.
fn open_journal(arguments: &Arguments) -> anyhow::Result<(Option<Journal>, Option<Timestamp>)> {
    let Some(folder) = &arguments.state else {
        return Ok((None, None));
    };
    std::fs::create_dir_all(folder).context("cannot make the state folder")?;
    let file = folder.join("journal");
    let told = std::fs::read_to_string(&file).unwrap_or_default();
    let journal = Journal::open(&file).context("cannot write the journal")?;
    Ok((Some(journal), goes_on_at(&told)))
}

async fn way<D: Disk + 'static>(
    ship: Ship<D>,
    config: ShipConfig,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (commands, mut given) = mpsc::channel(COMMANDS);
    tokio::spawn(async move { while given.recv().await.is_some() {} });
    match ship.run(&config, clock, commands, stop).await? {
        End::Stopped => Ok(()),
        End::NewIdentity => {
            anyhow::bail!("another simulator ships to this server with the same seed: --seed 2")
        }
    }
}

/// Live ticks: in real time until the process is stopped; in a replay quickly, in an outage at once,
/// until they have caught up with it.
async fn live<D: Disk + 'static>(
    arguments: &Arguments,
    members: &mut [Member<D>],
    fleet: (&Faults, Option<&Served>),
    clock: &dyn Clock,
    journal: &mut Option<Journal>,
    from: Timestamp,
) -> anyhow::Result<()> {
    let mut next = from;
    let mut outage_until = None;
    loop {
        let end = next.shifted(i64::from(TICK_SECONDS) * NANOS);
        let left = u64::try_from(end.since(clock.now())).unwrap_or(0);
        let is_past = left == 0 && outage_until.is_none();
        if arguments.outage_minutes.is_some() && is_past {
            make(members, fleet, journal, next, end).await?;
            next = end;
            continue;
        }
        let due = tokio::time::sleep(Duration::from_nanos(left));
        match (arguments.every_ms, arguments.outage_minutes) {
            (Some(_), _) if left > 0 => return drained(members).await,
            (Some(every), _) => tokio::time::sleep(Duration::from_millis(every)).await,
            (None, None) => due.await,
            (None, Some(_)) => {
                let until = *outage_until.get_or_insert_with(|| {
                    tracing::info!("{OUTAGE_MADE}");
                    next
                });
                tokio::select! {
                    () = due => {}
                    () = outage_drained(members, until) => return drained(members).await,
                }
            }
        }
        make(members, fleet, journal, next, clock.now()).await?;
        next = end;
    }
}

/// Makes the tick that begins at `start` and hands it to each node's agent at the time `at`.
async fn make<D: Disk + 'static>(
    members: &mut [Member<D>],
    (faults, served): (&Faults, Option<&Served>),
    journal: &mut Option<Journal>,
    start: Timestamp,
    at: Timestamp,
) -> anyhow::Result<()> {
    for member in members {
        let index = member.node.index();
        let ticks = member.node.tick(start, TICK_SECONDS, faults);
        if let Some(served) = served {
            served.note(index, &ticks);
        }
        if let Some(journal) = journal {
            journal.begin(index, start, TICK_SECONDS, true)?;
        }
        let mut told = member.node.take_told();
        told.events.extend(faults.take_events(index));
        for request in told.requests(member.node.resource()) {
            member.ship.append(Stream::Logs, request, at).await?;
        }
        member.ship.tick(ticks, at).await?;
        if let Some(journal) = journal {
            journal.end(index, start)?;
        }
    }
    Ok(())
}

/// Returns when the server has on its disk what was made before `until`.
async fn outage_drained<D: Disk>(members: &[Member<D>], until: Timestamp) {
    let waits = |member: &Member<D>| {
        let streams = member.health.get().streams;
        streams
            .iter()
            .any(|it| it.oldest.is_some_and(|at| at <= until))
    };
    while members.iter().any(waits) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    tracing::info!("{OUTAGE_DRAINED}");
}

/// Returns when the server has everything on its disk.
async fn drained<D: Disk>(members: &[Member<D>]) -> anyhow::Result<()> {
    tracing::info!("caught up; waiting until everything is durable");
    loop {
        let waiting: u64 = members
            .iter()
            .flat_map(|member| member.health.get().streams)
            .map(|stream| stream.waiting_bytes)
            .sum();
        if waiting == 0 {
            tracing::info!("everything is durable");
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn stopped() {
    let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    match terminate {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        Err(error) => tracing::error!(%error, "signals cannot be watched"),
    }
}
