//! How long a month of 10,000 GPUs takes to be reported, by the command that people type: from the days of
//! the ledger, which the server's own code put together from 7.2 million hours that the store's own writer
//! wrote. Of the last day some wait to be put together, as of one that runs. The month before is as large ([`before`]):
//! pages and JSON compare with it. What comes out has to be what went in, to the billionth.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use gpufleet_analysis::money;
use gpufleet_server::ledger::days;
use gpufleet_server::store::model::DirtyHour;
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_tests::harness::database::Kind;
use gpufleet_tests::harness::{World, postgres, server, wait};
use serde_json::Value;

use crate::figures::{Spread, line, told};

mod before;
mod month;

use before::DAYS_BEFORE;
use month::{DAYS, FIRST_HOUR, Month};

const GPUS: usize = 10_000;
/// A quick look.
const SHORT_GPUS: usize = 800;
/// What a report may take, seconds.
const LIMIT_S: f64 = 5.0;
const TIMES: usize = 3;
/// Of the last day one GPU's in so many waits to be put together: as long as that takes of the time after which an hour that
/// runs is computed again.
const WAITING: usize = 8;
/// How long one report is waited for.
const PATIENCE: Duration = Duration::from_secs(300);
/// The store's right to write, for as long as loading may take.
const LEASE: Duration = Duration::from_secs(86_400);
const MIB: f64 = 1024.0;

pub(crate) fn run(short: bool) -> bool {
    let world = World::on(Kind::Sqlite);
    let place = server::Place::sqlite(&world);
    let execute = |sql: &str| world.execute(sql);
    let mut reached = on(("SQLite", &execute), &place, &world, short);
    match std::env::var(postgres::VARIABLE) {
        Ok(_) => {
            let database = postgres::Database::new();
            let place = place.on(&database.url());
            let execute = |sql: &str| database.execute(sql);
            reached &= on(("PostgreSQL", &execute), &place, &world, short);
        }
        Err(_) => told("PostgreSQL: NOT RUN, eval \"$(scripts/postgres.sh start)\" before"),
    }
    reached
}

/// A kind of database, and what runs SQL in the one of it that is measured.
type Database<'a> = (&'a str, &'a dyn Fn(&str));

fn on(database: Database<'_>, place: &server::Place, world: &World, short: bool) -> bool {
    let (kind, _) = database;
    let mut month = Month::of(if short { SHORT_GPUS } else { GPUS });
    let gpus = month.gpus();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(load(database, &place.database, &mut month));
    drop(runtime);
    let mut command = reporting(place, "json", "team");
    let (json, _) = printed(&mut command, world, "the report in json", PATIENCE);
    let mut reached = is_right(&json, &month);
    // FOCUS has a row for each job on each GPU in each state.
    for format in ["csv", "html", "json", "focus"] {
        let (mut took, mut memory) = (Spread::default(), Spread::default());
        let mut length = 0;
        for _ in 0..TIMES {
            let (seconds, bytes, kib) = timed(place, world, format);
            length = bytes;
            took.add(seconds);
            memory.add(kib / MIB);
        }
        told(&format!(
            "{format}: {:.1} MB, most resident memory {} MiB",
            length as f64 / 1e6,
            memory.told()
        ));
        let name = format!("{kind}: a month of {gpus} GPUs, {format}, s");
        reached &= line(&name, &took.told(), took.max(), LIMIT_S);
    }
    reached
}

/// How long a report takes until its text has ended, seconds, how many bytes that has, and the most memory that the
/// command held, KiB.
fn timed(place: &server::Place, world: &World, format: &str) -> (f64, u64, f64) {
    let mut command = reporting(place, format, "team,namespace,job");
    let before = wait::now();
    let what = format!("the report in {format}");
    let (path, kib) = ended(&mut command, world, &what, PATIENCE);
    let seconds = (wait::now() - before).as_secs_f64();
    let length = std::fs::metadata(path).expect("it was written").len();
    (seconds, length, kib)
}

/// Writes the month, and puts its days together.
async fn load((kind, execute): Database<'_>, url: &str, month: &mut Month) {
    let config = StoreConfig {
        url: url.to_owned(),
        ..StoreConfig::default()
    };
    let store = Store::open(&config).await.expect("a new database opens");
    let over = Timestamp::from_seconds((FIRST_HOUR + DAYS * 24) * 3_600 + 7_200);
    let lease = store.acquire_lease("bench", over, LEASE).await;
    let token = lease.expect("nobody has the lease of a new database").token;
    for table in Month::tables() {
        store.keep_table(&table).await.expect("it answers");
    }
    let committed = store.commit(&month.commit(), token).await;
    committed.expect("nothing else writes");
    let gpus = month.gpus();
    let numbers: HashMap<String, usize> = (0..gpus).map(|it| (month::gpu_name(it), it)).collect();
    let mut number_of: HashMap<i64, usize> = HashMap::new();
    let began = wait::now();
    let (mut hours, mut done) = (0, Together::default());
    while let Some((first, dirty)) = oldest(&store, over, gpus).await {
        // The day is then as it is while it runs: put together without its newest hour.
        if first == FIRST_HOUR + DAYS * 24 - 1 {
            done.put(&store, usize::MAX).await;
        }
        if number_of.is_empty() {
            for input in store.ledger_inputs(&dirty).await.expect("it answers") {
                let gpu = numbers[&*input.resource.key.id];
                number_of.insert(input.dirty.subject, gpu);
            }
        }
        let computed = dirty
            .iter()
            .map(|it| month.computed(*it, number_of[&it.subject]));
        let computed: Vec<_> = computed.collect();
        hours += store
            .replace_hours(&computed, over)
            .await
            .expect("it answers");
    }
    let took = (wait::now() - began).as_secs_f64() - done.seconds;
    told(&format!(
        "{kind}: {hours} GPU-hours written in {took:.0} s, {:.0} a second",
        hours as f64 / took
    ));
    assert_eq!(hours as i64, gpus as i64 * DAYS * 24);
    done.put(&store, gpus - gpus / WAITING).await;
    told(&format!(
        "{kind}: {} days put together in {:.0} s, {:.0} a second",
        done.days,
        done.seconds,
        done.days as f64 / done.seconds
    ));
    let began = wait::now();
    let days = before::write(&store, execute, over).await;
    let took = (wait::now() - began).as_secs_f64();
    told(&format!(
        "{kind}: {days} days of the month before written in {took:.0} s"
    ));
    assert_eq!(days as i64, gpus as i64 * DAYS_BEFORE);
    store.close().await;
}

/// The oldest hours that are to be computed, with the first of them; none where there is none.
async fn oldest(store: &Store, now: Timestamp, most: usize) -> Option<(i64, Vec<DirtyHour>)> {
    let dirty = store.oldest_dirty_hours(now, most).await;
    let dirty = dirty.expect("it answers");
    Some((dirty.first()?.hour, dirty))
}

/// How many days were put together, and how long that took.
#[derive(Default)]
struct Together {
    days: usize,
    seconds: f64,
}

impl Together {
    /// Puts so many together or a few more, or all that there are.
    async fn put(&mut self, store: &Store, most: usize) {
        let later = Timestamp::from_seconds((FIRST_HOUR + DAYS * 24) * 3_600 + 10_800);
        let (began, mut put) = (wait::now(), 0);
        while put < most {
            match days::round(store, later).await.expect("it answers") {
                0 => break,
                more => put += more,
            }
        }
        self.days += put;
        self.seconds += (wait::now() - began).as_secs_f64();
    }
}

/// The server's own command that prints a report.
fn reporting(place: &server::Place, format: &str, by: &str) -> Command {
    let mut command: Command = place.command();
    command.args(["report", "chargeback", "--month", month::NAME]);
    command.args(["--by", by, "--format", format]);
    command
}

/// What a command prints, and the most memory that it held, KiB.
pub(crate) fn printed(
    command: &mut Command,
    world: &World,
    what: &str,
    patience: Duration,
) -> (String, f64) {
    let (path, kib) = ended(command, world, what, patience);
    let text = std::fs::read_to_string(path).expect("it was written");
    (text, kib)
}

/// Waits until a command has ended: the file with what it printed, and the most memory that it held, KiB.
fn ended(command: &mut Command, world: &World, what: &str, patience: Duration) -> (PathBuf, f64) {
    let path = world.path("printed");
    let file = File::create(&path).expect("the bench's own folder");
    let child = command.stdin(Stdio::null()).stdout(file).spawn();
    let mut child = child.expect("the server is built");
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0.0;
    let ended = wait::until(what, patience, || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|it| it.strip_prefix("VmHWM:"));
        let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
        most = kib.unwrap_or(0.0).max(most);
        child.try_wait().expect("it was started here")
    });
    assert!(ended.success(), "{what} ended with {ended}");
    (path, most)
}

/// Whether what was reported is what was written.
fn is_right(json: &str, month: &Month) -> bool {
    let report: Value = serde_json::from_str(json).expect("it is JSON");
    let cost = money::decimal(month.cost());
    let told_cost = report["total"]["cost"].as_str().unwrap_or_default();
    let is_exact = told_cost == cost && report["balance"]["is_exact"] == true;
    let mut states: BTreeMap<String, i64> = BTreeMap::new();
    let groups = report["groups"].as_array().map_or(&[][..], Vec::as_slice);
    for group in groups {
        for (state, sum) in group["states"].as_object().into_iter().flatten() {
            let millis = sum["gpu_millis"].as_i64().unwrap_or(0);
            *states.entry(state.clone()).or_default() += millis;
        }
    }
    let truth = month.truth.iter();
    let truth: BTreeMap<String, i64> = truth.map(|it| (it.0.name().to_owned(), *it.1)).collect();
    let against = &report["against"];
    let cost_before = money::decimal(month.cost_before(DAYS_BEFORE));
    let is_compared = against["days_before"]["cost"].as_str() == Some(cost_before.as_str());
    let is_all = states == truth && groups.len() == month::TEAMS + 1;
    let is_right = is_exact && is_compared && is_all;
    if !is_right {
        told(&format!(
            "NOT RIGHT: {told_cost} of {cost}, {states:?} of {truth:?}, {} groups, {}, {cost_before} before: {against}",
            groups.len(),
            report["findings"]
        ));
    }
    is_right
}
