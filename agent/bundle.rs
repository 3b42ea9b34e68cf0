//! `gpufleet-agent bundle`: one file for the vendor's repair form.
//!
//! A tar.gz with what a form asks for: which cards (serial numbers, UUIDs, VBIOS, driver), what was counted of
//! them (ECC, remapped rows, retired pages, links, throttling), the XIDs that the kernel's log has with their
//! times, some seconds of readings, what the running agent's last probe found, and the doctor's screen.
//!
//! What people run is left out: holders, pods, labels, jobs and processes. Of attributes only those of
//! [`HARDWARE`] go in, so that a new one of people's stays out by itself; no config and no token is read into it. The kernel's lines are as they are: of an XID the driver
//! names the process.
//!
//! Limits: [`MAX_SECONDS`], [`MAX_FILE_BYTES`] of each file, what a reader may return.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::catalog;
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::{AgentId, PartKind, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Reading, Readings, ResourceSamples, Sample};
use gpufleet_telemetry::time::{Clock, Timestamp};
use serde_json::{Map, Value, json};
use tokio::time::MissedTickBehavior;

use crate::config::Config;
use crate::doctor;
use crate::read::recorded::convert;
use crate::read::recorded::format::{Header, Writer};
use crate::read::{NodeFacts, Read, Turn, Wiring, readers};

mod kernel;
mod running;
mod tar;

use tar::Archive;

/// Longest time that readings are taken, seconds: the slow ones come each minute.
const MAX_SECONDS: u64 = 600;

/// Most bytes of one file in it.
const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// The time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Attributes of a GPU, a share or the machine that go in.
const HARDWARE: [&str; 20] = [
    attribute::GPU_MODEL,
    attribute::GPU_INDEX,
    attribute::GPU_MINOR,
    attribute::PCI_ADDRESS,
    attribute::SERIAL,
    attribute::COMPUTE_CAPABILITY,
    attribute::DRIVER_VERSION,
    attribute::NVML_VERSION,
    attribute::CUDA_VERSION,
    attribute::VBIOS_VERSION,
    attribute::MIG_PROFILE,
    attribute::MIG_GPU_INSTANCE,
    attribute::MIG_PLACEMENT,
    attribute::MIG_SLICES,
    attribute::FABRIC_CLUSTER,
    attribute::FABRIC_CLIQUE,
    attribute::PARENT,
    attribute::REPLICA_OF,
    attribute::REPLICAS,
    attribute::MACHINE_TYPE,
];

/// Attributes of an event that go in.
const OF_EVENTS: [&str; 4] = ["xid", "action", "function", "gpu"];

/// Readers that are asked: those of hardware.
const ASKED: [&str; 2] = ["nvml", "host"];

/// What to put together.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The file to write, a tar.gz. One that is there is not written over.
    #[arg(long, visible_alias = "out")]
    pub output: PathBuf,
    /// Only these GPUs, by UUID or serial number; without it all of the node.
    #[arg(long = "gpu", value_name = "UUID|SERIAL")]
    pub gpus: Vec<String>,
    /// For how many seconds readings are taken, 1 to 600. What is slow to read comes each minute.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
}

/// What the readers said, oldest first, without what is people's.
struct Taken {
    /// By reader.
    rounds: Vec<(String, Readings)>,
    /// Readers that failed, and why.
    failed: Vec<String>,
}

/// Puts it together and says what is in it.
///
/// # Errors
/// When the file cannot be written, or a GPU that is named is not there.
pub async fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    put_together(config, arguments, Path::new("/")).await
}

/// The same of the machine that lies under `root`: `/` but in tests.
async fn put_together(config: &Config, arguments: &Arguments, root: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        (1..=MAX_SECONDS).contains(&arguments.seconds),
        "--seconds {} does not lie in 1..={MAX_SECONDS}",
        arguments.seconds
    );
    let clock = SystemClock::start();
    let began = clock.now();
    // First, so that nobody waits for seconds of readings that cannot be written.
    let out = create(&arguments.output)?;
    let written = Box::pin(write(config, arguments, root, (clock, began), out)).await;
    if written.is_err() {
        // Half of it, or nothing, would stand in the way of the next try.
        let _ = std::fs::remove_file(&arguments.output);
    }
    written
}

async fn write(
    config: &Config,
    arguments: &Arguments,
    root: &Path,
    (clock, began): (SystemClock, Timestamp),
    mut out: BufWriter<File>,
) -> anyhow::Result<()> {
    let (mut taken, running, doctor) = tokio::join!(
        take(config, arguments.seconds, &clock),
        running::ask(config),
        doctor::text(config, root.to_owned()),
    );
    taken.keep_only(&arguments.gpus)?;
    let kernel = kernel::xids(root, clock.now());
    let cards = cards(&taken.rounds);
    let mut files = vec![
        ("gpus.json", pretty(&Value::Array(cards.clone()))),
        ("readings.jsonl", recording(&taken.rounds, began)?),
        ("xids.txt", kernel.text()),
        ("agent.json", pretty(&running.json())),
        ("doctor.txt", doctor.into_bytes()),
    ];
    files.insert(0, ("README.txt", about(&taken, &files, began)));
    let mut archive = Archive::new(GzEncoder::new(&mut out, Compression::default()));
    let folder = format!("gpufleet-bundle-{}", began.seconds());
    for (name, bytes) in &files {
        archive.file(&format!("{folder}/{name}"), shortened(bytes), began)?;
    }
    let written = archive.finish().and_then(GzEncoder::finish);
    written
        .and_then(|out| out.flush())
        .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    let (file, gpus) = (arguments.output.display(), cards.len());
    let xids = kernel.count();
    writeln!(
        std::io::stdout().lock(),
        "{file}: {gpus} GPUs, {xids} XIDs of the kernel's log. Look at README.txt in it before it leaves the house."
    )?;
    Ok(())
}

/// A new file that nobody else may read: serial numbers are the house's.
fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    Ok(BufWriter::new(file))
}

/// Some seconds of the readers of hardware.
async fn take(config: &Config, seconds: u64, clock: &SystemClock) -> Taken {
    let mut taken = Taken {
        rounds: Vec::new(),
        failed: Vec::new(),
    };
    let node = Arc::new(NodeFacts {
        cluster: String::new(),
        node: config.node.resolved_name(),
        boot_id: String::new(),
        agent_id: AgentId(uuid::Uuid::nil()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let wiring = Wiring::to_look(Arc::clone(&node));
    let mut readers = match readers(config, wiring) {
        Ok(readers) => readers,
        Err(error) => {
            taken.failed.push(format!("{error:#}"));
            return taken;
        }
    };
    readers.retain(|it| ASKED.contains(&it.name()) || it.name().starts_with("exporter:"));
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for second in 0..seconds {
        ticks.tick().await;
        let turn = Turn {
            at: clock.now().aligned_to(PERIOD),
            monotonic: clock.monotonic(),
            node: Arc::clone(&node),
        };
        let due = readers.iter_mut().filter(|it| {
            let period = it.period().as_secs().max(1);
            second.is_multiple_of(period)
        });
        let rounds = due.map(|it| one_round(it, &turn));
        for (name, read) in futures::future::join_all(rounds).await {
            match read {
                Ok(readings) => taken.rounds.push((name, without_people(&readings))),
                Err(why) => taken.failed.push(why),
            }
        }
    }
    taken.failed.sort();
    taken.failed.dedup();
    taken
}

async fn one_round(reader: &mut Box<dyn Read>, turn: &Turn) -> (String, Result<Readings, String>) {
    let name = reader.name().to_owned();
    let read = tokio::time::timeout(reader.deadline(), reader.read(turn.clone())).await;
    let read = match read {
        Ok(Ok(readings)) => Ok(readings),
        Ok(Err(error)) => Err(format!("{name}: {error}")),
        Err(_) => Err(format!("{name}: no answer in time")),
    };
    (name, read)
}

/// What is hardware's of it.
fn without_people(readings: &Readings) -> Readings {
    let is_hardware = |it: &&ResourceSamples| {
        let kind = it.resource.kind;
        matches!(
            kind,
            ResourceKind::Gpu | ResourceKind::Share | ResourceKind::Node
        )
    };
    let of_process = |it: &&Sample| {
        it.part
            .as_ref()
            .is_some_and(|it| it.kind == PartKind::Process)
    };
    let resources = readings.resources.iter().filter(is_hardware);
    let resources = resources.map(|one| {
        let samples = one.samples.iter().filter(|it| !of_process(it));
        ResourceSamples {
            resource: Arc::new(hardware(&one.resource)),
            samples: samples.cloned().collect(),
        }
    });
    Readings {
        at: readings.at,
        resources: resources.collect(),
        events: readings.events.iter().map(bare).collect(),
    }
}

fn hardware(resource: &Resource) -> Resource {
    let mut kept = Resource::new(resource.kind, Arc::clone(&resource.id));
    for name in HARDWARE {
        if let Some(value) = resource.attribute(name) {
            kept = kept.with(name, value);
        }
    }
    kept
}

/// An event without its sentence, which may name whose process it was.
fn bare(event: &Event) -> Event {
    let mut event = event.clone();
    event
        .attributes
        .retain(|name, _| OF_EVENTS.contains(&name.as_str()));
    event.message = event.kind.name().replace('_', " ");
    event
}

impl Taken {
    /// Leaves out every other GPU, and their shares; of the machine everything stays.
    fn keep_only(&mut self, wanted: &[String]) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let names = |it: &Resource| {
            let serial = it.attribute(attribute::SERIAL).unwrap_or_default();
            let parent = it.attribute(attribute::PARENT).unwrap_or_default();
            [it.id.to_string(), serial.to_owned(), parent.to_owned()]
        };
        let all = self.rounds.iter().flat_map(|(_, it)| &it.resources);
        let all: Vec<[String; 3]> = all.map(|it| names(&it.resource)).collect();
        for gpu in wanted {
            let is_there = all.iter().flatten().any(|it| it == gpu);
            anyhow::ensure!(
                is_there,
                "--gpu {gpu}: no GPU that the driver lists has that UUID or serial number{}; without --gpu the bundle has all that is left to read, the kernel's XIDs too",
                match self.failed.as_slice() {
                    [] => String::new(),
                    failed => format!(" ({})", failed.join("; ")),
                }
            );
        }
        let is_wanted = |it: &Resource| {
            it.kind == ResourceKind::Node || names(it).iter().any(|it| wanted.contains(it))
        };
        for (_, readings) in &mut self.rounds {
            readings.resources.retain(|it| is_wanted(&it.resource));
            let is_about = |it: &Event| wanted.iter().any(|gpu| **gpu == *it.resource_id);
            readings.events.retain(is_about);
        }
        Ok(())
    }
}

/// What a GPU is, and the last reading of everything by its name.
type Card = (Arc<Resource>, BTreeMap<String, Reading>);

/// Each GPU with what it is, and the last reading of everything.
fn cards(rounds: &[(String, Readings)]) -> Vec<Value> {
    let mut known: BTreeMap<Arc<str>, Card> = BTreeMap::new();
    for (_, readings) in rounds {
        for one in &readings.resources {
            if one.resource.kind != ResourceKind::Gpu {
                continue;
            }
            let card = known.entry(Arc::clone(&one.resource.id));
            let card = card.or_insert_with(|| (Arc::clone(&one.resource), BTreeMap::new()));
            card.0 = Arc::clone(&one.resource);
            for sample in &one.samples {
                let Some(metric) = catalog::by_id(sample.metric) else {
                    continue;
                };
                let name = match &sample.part {
                    Some(part) => format!("{} of {}", metric.name, part.id),
                    None => metric.name.to_owned(),
                };
                card.1.insert(name, sample.reading);
            }
        }
    }
    let card = |(id, (resource, values)): (Arc<str>, Card)| {
        let value = |reading: Reading| match reading {
            Ok(value) => json!(value),
            Err(why) => json!({"missing": why.name()}),
        };
        let values: Map<String, Value> = values
            .into_iter()
            .map(|(name, reading)| (name, value(reading)))
            .collect();
        json!({
            "uuid": &*id,
            "serial_number": resource.attribute(attribute::SERIAL),
            "model": resource.attribute(attribute::GPU_MODEL),
            "vbios": resource.attribute(attribute::VBIOS_VERSION),
            "driver": resource.attribute(attribute::DRIVER_VERSION),
            "pci_address": resource.attribute(attribute::PCI_ADDRESS),
            "attributes": resource.attributes,
            "readings": values,
        })
    };
    known.into_iter().map(card).collect()
}

/// The readings as a recording that can be played back.
fn recording(rounds: &[(String, Readings)], began: Timestamp) -> std::io::Result<Vec<u8>> {
    let header = Header {
        taken_at_seconds: Some(began.seconds()),
        ..convert::header()
    };
    let mut writer = Writer::new(Vec::new(), &header)?;
    for (reader, readings) in rounds {
        writer.round(reader, readings)?;
    }
    Ok(writer.into_inner())
}

/// As much of a file as goes in, in whole lines: one that is cut cannot be read.
fn shortened(bytes: &[u8]) -> &[u8] {
    if bytes.len() <= MAX_FILE_BYTES {
        return bytes;
    }
    let end = bytes[..MAX_FILE_BYTES].iter().rposition(|it| *it == b'\n');
    &bytes[..end.map_or(0, |it| it + 1)]
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("texts and numbers are JSON");
    text.push(b'\n');
    text
}

/// What is in it, for whoever sends it; `files` are whole.
fn about(taken: &Taken, files: &[(&str, Vec<u8>)], began: Timestamp) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "Put together by gpufleet-agent {version}, at Unix time {}, for a repair form.\n\n\
         gpus.json       each GPU: serial number, UUID, VBIOS, driver, PCI address, and the last\n                \
         reading of everything: ECC, remapped rows, retired pages, links, throttling\n\
         readings.jsonl  second by second; gpufleet-agent --playback plays it\n\
         xids.txt        the XIDs of the kernel's log, with their times\n\
         agent.json      what the running agent says: its last probe, XIDs it has counted\n\
         doctor.txt      what works on the node, and what does not\n\n\
         Who uses the GPUs is not in it: no holders, pods, labels, jobs or processes, but for the\n\
         process that the driver names in a line of xids.txt. doctor.txt names files and addresses\n\
         of this node.\n",
        began.seconds()
    );
    for why in &taken.failed {
        text.push_str(&format!("\nNot read: {why}\n"));
    }
    for (name, bytes) in files {
        if bytes.len() > MAX_FILE_BYTES {
            text.push_str(&format!("\nCut at {MAX_FILE_BYTES} bytes: {name}\n"));
        }
    }
    text.into_bytes()
}

#[cfg(test)]
#[path = "bundle/tests.rs"]
mod tests;
