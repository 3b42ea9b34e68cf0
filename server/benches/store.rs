//! What the store costs: CPU of a commit, CPU of the ledger, bytes per GPU-day.
//!
//! `cargo bench -p gpufleet-server --bench store -- [GPUS] [MINUTES]` (10,000 and 12 when not told):
//! three commits a minute, as the server makes them, each with two ticks of every GPU; then the
//! ledger of that hour. Runs on SQLite in a folder of its own, and on PostgreSQL too where
//! `GPUFLEET_TEST_POSTGRES` names one. CPU is this process's: on SQLite everything, on PostgreSQL our
//! side alone. Exits with 1 when a commit of 10,000 rows takes more than [`COMMIT_CPU_MS`] on SQLite
//! or a GPU-day more than [`GPU_DAY_BYTES`].
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the real clock"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpufleet_server::ledger::{LedgerConfig, round};
use gpufleet_server::store::model::*;
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::catalog::{Kind, Unit, gpu};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{Aggregate, Counter, MinuteRow};
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::Stream;
use sqlx::{Connection as _, Executor as _};
use uuid::Uuid;

/// Most CPU of one commit of 10,000 rows on SQLite, ms: with one every 20 s, 1.5 % of a core.
const COMMIT_CPU_MS: f64 = 300.0;

/// Most bytes of one GPU and day: the blueprint's promise.
const GPU_DAY_BYTES: f64 = 500_000.0;

/// GPUs of one node.
const GPUS_A_NODE: usize = 8;

/// A full hour in 2026.
const START: Minute = Minute(29_600_000 / 60 * 60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().filter_map(|it| it.parse::<usize>().ok());
    let gpus = numbers.next().unwrap_or(10_000);
    let minutes = numbers.next().unwrap_or(12).clamp(2, 60) as i64;
    println!("{gpus} GPUs, {minutes} minutes, three commits a minute");
    let folder = tempfile::tempdir()?;
    let config = StoreConfig::for_tests(folder.path());
    let figures = measure(&config, gpus, minutes).await?;
    let checked = figures.report("SQLite", gpus, minutes);
    if let Ok(server) = std::env::var("GPUFLEET_TEST_POSTGRES") {
        on_postgres(&server, gpus, minutes).await?;
    }
    checked
}

async fn on_postgres(server: &str, gpus: usize, minutes: i64) -> anyhow::Result<()> {
    let name = format!("bench_{}", Uuid::new_v4().simple());
    let mut admin = sqlx::PgConnection::connect(&format!("{server}/postgres")).await?;
    let create = format!("CREATE DATABASE {name}");
    admin.execute(sqlx::AssertSqlSafe(create)).await?;
    let config = StoreConfig {
        url: format!("{server}/{name}"),
        ..StoreConfig::default()
    };
    let figures = measure(&config, gpus, minutes).await?;
    // The limits are SQLite's: PostgreSQL's own CPU is not seen from here.
    if let Err(beyond) = figures.report("PostgreSQL", gpus, minutes) {
        println!("  beyond the limits of SQLite: {beyond}");
    }
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    admin.execute(sqlx::AssertSqlSafe(drop)).await?;
    Ok(())
}

/// What was measured on one database.
struct Figures {
    /// CPU ms and wall ms of each commit.
    commits: Vec<(f64, f64)>,
    /// CPU ms of all ledger rounds, and how many hours they computed.
    ledger: (f64, usize),
    /// Bytes of the database after a third of the minutes and at the end; on PostgreSQL compacted,
    /// because vacuum keeps the room of replaced rows for the next minutes.
    bytes: (u64, u64),
    /// Bytes of one whole minute row.
    packed_bytes: usize,
}

async fn measure(config: &StoreConfig, gpus: usize, minutes: i64) -> anyhow::Result<Figures> {
    let store = Store::open(config).await?;
    let second = Duration::from_secs(1);
    let token = store
        .acquire_lease("bench", START.start(), second)
        .await?
        .token;
    let fleet: Vec<KnownResource> = (0..gpus).map(resource).collect();
    let row = row();
    let mut whole = MinuteRow::default();
    (0..3).for_each(|_| whole.merge(&row));
    let mut commits = Vec::new();
    let (mut number, mut third_bytes) = (0, 0);
    for minute in 0..minutes {
        if minute == minutes / 3 {
            third_bytes = size(&store, config).await?;
        }
        for third in 0..3 {
            number += 1;
            let commit = commit(number, &fleet, Minute(START.0 + minute), third, &row);
            let (cpu, wall) = (cpu_ms()?, Instant::now());
            store.commit(&commit, token).await?;
            commits.push((cpu_ms()? - cpu, wall.elapsed().as_secs_f64() * 1e3));
        }
    }
    let end_bytes = size(&store, config).await?;
    let (cpu, mut hours) = (cpu_ms()?, 0);
    // Five minutes later: every GPU's hour is due once, as far as it goes.
    let now = Minute(START.0 + minutes + 5).start();
    loop {
        let done = round(&store, &LedgerConfig::default(), now).await?;
        hours += done;
        if done == 0 {
            break;
        }
    }
    let ledger = (cpu_ms()? - cpu, hours);
    store.close().await;
    Ok(Figures {
        commits,
        ledger,
        bytes: (third_bytes, end_bytes),
        packed_bytes: whole.pack().len(),
    })
}

async fn size(store: &Store, config: &StoreConfig) -> anyhow::Result<u64> {
    if store.kind() == "postgres" {
        let mut connection = sqlx::PgConnection::connect(&config.url).await?;
        connection.execute("VACUUM FULL minute_row").await?;
        connection.close().await?;
    }
    Ok(store.size_bytes().await?)
}

impl Figures {
    fn report(&self, name: &str, gpus: usize, minutes: i64) -> anyhow::Result<()> {
        // The first commit describes every resource; the others are what happens every 20 s.
        let steady = &self.commits[1..];
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<f64> = steady.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            (all[all.len() / 2], all[all.len() - 1])
        };
        let ((cpu, _), (wall, longest)) = (median(|it| it.0), median(|it| it.1));
        let first = self.commits[0].0;
        println!("{name}:");
        println!(
            "  a commit: {cpu:.0} ms CPU, {wall:.0} ms (longest {longest:.0}), median of {}",
            steady.len()
        );
        println!("  the first one, which describes every GPU: {first:.0} ms CPU");
        let (ledger_ms, hours) = self.ledger;
        println!(
            "  the ledger: {:.2} ms CPU an hour of {minutes} minutes",
            ledger_ms / hours.max(1) as f64
        );
        let grown = self.bytes.1.saturating_sub(self.bytes.0) as f64;
        let a_minute = grown / gpus as f64 / (minutes - minutes / 3) as f64;
        let day = a_minute * 1_440.0;
        println!(
            "  minute rows: {a_minute:.0} bytes each ({} packed), {day:.0} a GPU-day",
            self.packed_bytes
        );
        let allowed = COMMIT_CPU_MS * gpus as f64 / 10_000.0;
        // A small fleet's file is mostly its schema, and its commits are too short to measure.
        if gpus >= 5_000 {
            anyhow::ensure!(cpu <= allowed, "a commit may take {allowed} ms of CPU");
            anyhow::ensure!(
                day <= GPU_DAY_BYTES,
                "a GPU-day may take {GPU_DAY_BYTES} bytes"
            );
        }
        Ok(())
    }
}

fn resource(number: usize) -> KnownResource {
    let id: Arc<str> = format!("GPU-{number:08x}-8d1c-4c57-9f0e-5c2f4d1b7a90").into();
    let resource = Resource::new(ResourceKind::Gpu, Arc::clone(&id))
        .with(attribute::CLUSTER, "bench")
        .with(attribute::NODE, format!("node-{:05}", number / GPUS_A_NODE))
        .with(attribute::BOOT_ID, "6f1b6e58-6a0a-4b8e-9f5d-0d5e7f6f3c11")
        .with(attribute::GPU_MODEL, "NVIDIA H200")
        .with(attribute::PCI_ADDRESS, "00000000:53:00.0")
        .with(attribute::DRIVER_VERSION, "580.95.05")
        .with(attribute::VBIOS_VERSION, "96.00.BC.00.01")
        .with(attribute::SOURCE, "nvml");
    KnownResource {
        key: ResourceKey {
            cluster: "bench".into(),
            kind: ResourceKind::Gpu,
            id,
        },
        resource: Arc::new(resource),
        agent: Some(AgentId(Uuid::from_u128((number / GPUS_A_NODE) as u128))),
        first_seen: START.start(),
        last_seen: START.start(),
    }
}

/// Two ticks of a training H200: every metric that is kept, half of them varying.
fn row() -> MinuteRow {
    let mut row = MinuteRow::default();
    let kept = gpu::ALL
        .iter()
        .filter(|it| it.in_minutes && it.kind != Kind::SecondBits);
    for (place, metric) in kept.enumerate() {
        let varies = place % 2 == 0;
        for tick in 0..2_i32 {
            let step = if metric.unit == Unit::Ratio {
                0.01
            } else {
                0.001
            };
            let value = f64::from(57_000 + (tick * 7_919 + place as i32 * 104_729) % 3_001) * step;
            if metric.kind == Kind::Counter {
                let raw = if varies { 8.1e9 + value } else { 0.0 };
                let from = tick.unsigned_abs() * 10_000;
                let point = Counter::point(raw, from, from + 10_000).expect("finite");
                row.add_counter(metric.id, &point);
                continue;
            }
            let point = if varies {
                Aggregate::of_gauge(value, metric.with_max.then_some(value * 1.01))
            } else {
                Aggregate::of_gauge(700.0, None)
            };
            row.add(metric.id, point.expect("finite"));
        }
    }
    row
}

/// The commit of one third of a minute.
fn commit(
    number: u64,
    fleet: &[KnownResource],
    minute: Minute,
    third: u32,
    row: &MinuteRow,
) -> Commit {
    let mut row = row.clone();
    let seconds = 0xf_ffff_u64 << (third * 20);
    for metric in [gpu::OBSERVED, gpu::ACTIVE, gpu::HELD, gpu::HOLDER_KNOWN] {
        row.bitmaps.set(metric.id, seconds);
    }
    let seen = Timestamp::from_seconds(minute.start().seconds() + i64::from(third) * 20 + 19);
    let agents = fleet.iter().step_by(GPUS_A_NODE).filter_map(|it| it.agent);
    Commit {
        number,
        cursors: agents
            .map(|agent| Cursor {
                key: CursorKey {
                    agent,
                    epoch: Epoch(agent.0),
                    stream: Stream::Metrics,
                },
                seq: number * 2,
                clock_offset_nanos: 0,
                seen,
            })
            .collect(),
        resources: fleet
            .iter()
            .map(|it| KnownResource {
                last_seen: seen,
                ..it.clone()
            })
            .collect(),
        minutes: fleet
            .iter()
            .map(|it| MinuteDelta {
                key: it.key.clone(),
                minute,
                row: row.clone(),
            })
            .collect(),
        ..Commit::default()
    }
}

/// CPU time of this process, all threads, ms; in the kernel's ticks of 10 ms.
fn cpu_ms() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in brackets may hold spaces; user and system time are the 12th and 13th after it.
    let fields = stat
        .rsplit(')')
        .next()
        .context("/proc/self/stat has a name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> anyhow::Result<f64> {
        Ok(fields.next().context("/proc/self/stat is short")?.parse()?)
    };
    Ok((ticks()? + ticks()?) * 10.0)
}
