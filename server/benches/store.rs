//! What the store costs: CPU of a commit, CPU of the ledger, bytes per GPU-day.
//!
//! `cargo bench -p gpufleet-server --bench store -- [GPUS] [HOURS]` (10,000 and 1 when not told):
//! three commits a minute, as the server makes them, each with two ticks of every GPU, half of whose
//! metrics are noise; the ledger every half hour, and until every hour is final and packed. Runs on
//! SQLite in a folder of its own, and on PostgreSQL too where `GPUFLEET_TEST_POSTGRES` names one. CPU
//! is this process's: on SQLite everything, on PostgreSQL our side alone. Exits with 1 when a commit
//! of 10,000 rows takes more than [`COMMIT_CPU_MS`] on SQLite, or on either a GPU-day more than
//! [`GPU_DAY_BYTES`].
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the real clock"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpufleet_server::ledger::{LedgerConfig, Rules, round};
use gpufleet_server::money::tables::{Standby, Targets};
use gpufleet_server::store::model::*;
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::catalog::{Kind, Unit, gpu};
use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{Aggregate, Counter, MinuteRow};
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::Stream;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sqlx::{Connection as _, Executor as _};
use uuid::Uuid;

/// Most CPU of one commit of 10,000 rows on SQLite, ms: with one every 20 s, 1.5 % of a core.
const COMMIT_CPU_MS: f64 = 300.0;

/// Most bytes of one GPU and day: half a gigabyte for a thousand of them.
const GPU_DAY_BYTES: f64 = 500_000.0;

/// GPUs of one node.
const GPUS_A_NODE: usize = 8;

/// A full hour in 2026.
const START: Minute = Minute(29_600_000 / 60 * 60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().filter_map(|it| it.parse::<usize>().ok());
    let gpus = numbers.next().unwrap_or(10_000);
    let hours = numbers.next().unwrap_or(1).max(1) as i64;
    println!("{gpus} GPUs, {hours} hours, three commits a minute");
    let folder = tempfile::tempdir()?;
    let config = StoreConfig::for_tests(folder.path());
    let figures = measure(&config, gpus, hours).await?;
    let cpu = figures.report("SQLite", gpus, hours)?;
    if let Ok(server) = std::env::var("GPUFLEET_TEST_POSTGRES") {
        on_postgres(&server, gpus, hours).await?;
    }
    let allowed = COMMIT_CPU_MS * gpus as f64 / 10_000.0;
    // The commits of a small fleet are too short to measure.
    anyhow::ensure!(
        gpus < 5_000 || cpu <= allowed,
        "a commit may take {allowed} ms of CPU"
    );
    Ok(())
}

async fn on_postgres(server: &str, gpus: usize, hours: i64) -> anyhow::Result<()> {
    let name = format!("bench_{}", Uuid::new_v4().simple());
    let mut admin = sqlx::PgConnection::connect(&format!("{server}/postgres")).await?;
    let create = format!("CREATE DATABASE {name}");
    admin.execute(sqlx::AssertSqlSafe(create)).await?;
    let config = StoreConfig {
        url: format!("{server}/{name}"),
        ..StoreConfig::default()
    };
    let figures = measure(&config, gpus, hours).await?;
    figures.report("PostgreSQL", gpus, hours)?;
    tables(&config, gpus as f64 * hours as f64 / 24.0).await?;
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    admin.execute(sqlx::AssertSqlSafe(drop)).await?;
    Ok(())
}

/// Prints what each of the largest tables takes of a GPU-day, with its indexes.
async fn tables(config: &StoreConfig, gpu_days: f64) -> anyhow::Result<()> {
    let sql = "SELECT relname::text, pg_total_relation_size(oid)::bigint FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 2 DESC LIMIT 8";
    let mut connection = sqlx::PgConnection::connect(&config.url).await?;
    let found: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(&mut connection).await?;
    connection.close().await?;
    for (table, bytes) in found {
        println!("  {table}: {:.0} bytes a GPU-day", bytes as f64 / gpu_days);
    }
    Ok(())
}

/// What was measured on one database.
struct Figures {
    /// CPU ms and wall ms of each commit.
    commits: Vec<(f64, f64)>,
    /// CPU ms of all ledger rounds, and how many hours they computed.
    ledger: (f64, usize),
    /// Bytes of the empty database.
    empty: u64,
    /// Bytes at the end as it stands, and without the room that deleted rows have left for others.
    bytes: (u64, u64),
    /// Bytes of one whole minute row.
    packed_bytes: usize,
}

async fn measure(config: &StoreConfig, gpus: usize, hours: i64) -> anyhow::Result<Figures> {
    let store = Store::open(config).await?;
    let second = Duration::from_secs(1);
    let token = store
        .acquire_lease("bench", START.start(), second)
        .await?
        .token;
    let mut figures = Figures {
        commits: Vec::new(),
        ledger: (0.0, 0),
        empty: size(&store, config).await?.1,
        bytes: (0, 0),
        packed_bytes: 0,
    };
    let fleet: Vec<KnownResource> = (0..gpus).map(resource).collect();
    let mut random = StdRng::seed_from_u64(7);
    let mut whole = MinuteRow::default();
    (0..3).for_each(|third| whole.merge(&row(&mut random, third)));
    figures.packed_bytes = whole.pack().len();
    let end = hours * 60;
    for minute in 0..end {
        for third in 0..3 {
            let number = figures.commits.len() as u64 + 1;
            let at = Minute(START.0 + minute);
            let commit = commit(number, &fleet, at, third, &mut random);
            let (cpu, wall) = (cpu_ms()?, Instant::now());
            store.commit(&commit, token).await?;
            let wall = wall.elapsed().as_secs_f64() * 1e3;
            figures.commits.push((cpu_ms()? - cpu, wall));
        }
        if minute % 30 == 29 {
            figures.compute(&store, minute + 1).await?;
        }
    }
    // Until the last hour is final and packed.
    for minute in [end + 10, end + 25, end + 40] {
        figures.compute(&store, minute).await?;
    }
    figures.bytes = size(&store, config).await?;
    store.close().await;
    Ok(figures)
}

/// Bytes as they stand, and without the room that deleted rows have left for others.
async fn size(store: &Store, config: &StoreConfig) -> anyhow::Result<(u64, u64)> {
    let whole = store.size_bytes().await?;
    if store.kind() == "postgres" {
        let mut connection = sqlx::PgConnection::connect(&config.url).await?;
        connection.execute("VACUUM FULL").await?;
        connection.close().await?;
        return Ok((whole, store.size_bytes().await?));
    }
    let mut connection = sqlx::SqliteConnection::connect(&config.url).await?;
    let free = "SELECT freelist_count * page_size FROM pragma_freelist_count(), pragma_page_size()";
    let free: i64 = sqlx::query_scalar(free).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok((whole, whole - free.unsigned_abs()))
}

impl Figures {
    /// Computes every hour that is due so many minutes after the start.
    async fn compute(&mut self, store: &Store, minute: i64) -> anyhow::Result<()> {
        let cpu = cpu_ms()?;
        let now = Minute(START.0 + minute).start();
        let rules = Rules {
            targets: &Targets::default(),
            standby: &Standby::default(),
        };
        loop {
            let done = round(store, &LedgerConfig::default(), rules, now).await?;
            self.ledger.1 += done;
            if done == 0 {
                break;
            }
        }
        self.ledger.0 += cpu_ms()? - cpu;
        Ok(())
    }

    /// Prints the figures; returns the CPU of a commit, ms.
    fn report(&self, name: &str, gpus: usize, hours: i64) -> anyhow::Result<f64> {
        // The first commit describes every resource; the others are what happens every 20 s.
        let steady = &self.commits[1..];
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<f64> = steady.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            (all[all.len() / 2], all[all.len() - 1])
        };
        let (wall, longest) = median(|it| it.1);
        // The kernel's ticks are too long for the median of short ones.
        let cpu = steady.iter().map(|it| it.0).sum::<f64>() / steady.len() as f64;
        let first = self.commits[0].0;
        println!("{name}:");
        println!(
            "  a commit: {cpu:.1} ms CPU, {wall:.0} ms (longest {longest:.0}), {} of them",
            steady.len()
        );
        println!("  the first one, which describes every GPU: {first:.0} ms CPU");
        let (ledger_ms, computed) = self.ledger;
        println!(
            "  the ledger: {:.2} ms CPU an hour computed, {computed} of them",
            ledger_ms / computed.max(1) as f64
        );
        let gpu_days = gpus as f64 * hours as f64 / 24.0;
        let day = |bytes: u64| bytes.saturating_sub(self.empty) as f64 / gpu_days;
        let (standing, compact) = (day(self.bytes.0), day(self.bytes.1));
        println!(
            "  a minute packed: {} bytes; a GPU-day, all tables: {compact:.0} bytes, {standing:.0} \
             with the room of deleted rows",
            self.packed_bytes
        );
        // The file of a small fleet is mostly its schema.
        anyhow::ensure!(
            gpus < 500 || compact <= GPU_DAY_BYTES,
            "a GPU-day may take {GPU_DAY_BYTES} bytes"
        );
        Ok(cpu)
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

/// Two ticks of a training H200, those of one third of a minute: every metric that is kept, half of them noise. Real ones vary less, so
/// they pack better.
fn row(random: &mut StdRng, third: u32) -> MinuteRow {
    let mut row = MinuteRow::default();
    let kept = gpu::ALL
        .iter()
        .filter(|it| it.in_minutes && it.kind != Kind::SecondBits);
    for (place, metric) in kept.enumerate() {
        let varies = place % 2 == 0;
        for tick in 0..2 {
            let step = if metric.unit == Unit::Ratio {
                0.01
            } else {
                0.001
            };
            let value = f64::from(random.random_range(57_000..60_000)) * step;
            if metric.kind == Kind::Counter {
                let raw = if varies { 8.1e9 + value } else { 0.0 };
                let from = (third * 2 + tick) * 10_000;
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
    random: &mut StdRng,
) -> Commit {
    let seconds = 0xf_ffff_u64 << (third * 20);
    let mut third_of_a_minute = || {
        let mut row = row(random, third);
        for metric in [gpu::OBSERVED, gpu::ACTIVE, gpu::HELD, gpu::HOLDER_KNOWN] {
            row.bitmaps.set(metric.id, seconds);
        }
        row
    };
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
                row: third_of_a_minute(),
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
