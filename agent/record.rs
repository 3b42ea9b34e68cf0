//! `gpufleet-agent record`: what the readers return, written to a file that can be played back.
//!
//! Nothing of the machine or its people goes into it: the node is called `recorded`, GPUs get random
//! ids, serial numbers, holders and jobs are left out. With `--from` a capture that somebody else
//! took becomes a recording of one sample.
//!
//! Limits: [`MIN_SECONDS`], [`MAX_SECONDS`].

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::sample::{Readings, ResourceSamples};
use gpufleet_telemetry::time::{Clock, Timestamp};
use tokio::time::MissedTickBehavior;

use crate::config::Config;
use crate::read::exporter::table::{self, Table};
use crate::read::recorded::convert::{self, SCRUBBED_NODE};
use crate::read::recorded::format::{Header, VERSION, Writer};
use crate::read::recorded::rename::Renamer;
use crate::read::recorded::source::Source;
use crate::read::{NodeFacts, Read, ReadError, Turn, Wiring, readers};
use gpufleet_program::clock::SystemClock;

/// Shortest recording: below a minute there is not one whole minute row in it.
pub const MIN_SECONDS: u64 = 60;

/// Longest recording: what playback takes, [`crate::read::recorded::format::MAX_ROUNDS`], by three
/// readers a second.
pub const MAX_SECONDS: u64 = 86_400;

/// The time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// What to record.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The file to write; gzip where the name ends in .gz.
    #[arg(long, visible_alias = "out")]
    pub output: PathBuf,
    /// How many seconds to record, 60 to 86400.
    #[arg(long, default_value_t = MIN_SECONDS)]
    pub seconds: u64,
    /// Instead of recording, turn this capture of an exporter (text) or of `nvidia-smi -q -x` (XML)
    /// into a recording of one sample.
    #[arg(long, value_name = "CAPTURE")]
    pub from: Option<PathBuf>,
    /// The mapping table that reads the capture; without it every table is tried.
    #[arg(long, requires = "from")]
    pub table: Option<String>,
}

/// A reader and how it did.
struct Recorded {
    reader: Box<dyn Read>,
    rounds: u64,
    failures: u64,
    error: Option<String>,
}

/// Where the lines go.
enum Out {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
        }
    }
}

/// Records until the time is over, or until it is interrupted.
///
/// # Errors
/// When no reader has anything to record, the capture cannot be read or the file cannot be written.
pub async fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(capture) = &arguments.from {
        return convert(config, arguments, capture);
    }
    if !(MIN_SECONDS..=MAX_SECONDS).contains(&arguments.seconds) {
        let seconds = arguments.seconds;
        anyhow::bail!("--seconds {seconds} does not lie in {MIN_SECONDS}..={MAX_SECONDS}");
    }
    let node = Arc::new(scrubbed_node());
    let wiring = Wiring::to_look(Arc::clone(&node));
    let clock = SystemClock::start();
    let mut recorded: Vec<Recorded> = readers(config, wiring)?
        .into_iter()
        .map(|reader| Recorded {
            reader,
            rounds: 0,
            failures: 0,
            error: None,
        })
        .collect();
    let header = Header {
        taken_at_seconds: Some(clock.now().seconds()),
        ..convert::header()
    };
    let mut writer = Writer::new(create(&arguments.output)?, &header)?;
    let renamer = Renamer::scrubbing(SCRUBBED_NODE, SCRUBBED_NODE);
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    for second in 0..arguments.seconds {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = &mut interrupted => break,
        }
        let turn = Turn {
            at: clock.now().aligned_to(PERIOD),
            monotonic: clock.monotonic(),
            node: Arc::clone(&node),
        };
        for (name, readings) in one_second(&mut recorded, second, &turn).await {
            let scrubbed = scrub(&readings, &renamer);
            writer
                .round(&name, &scrubbed)
                .with_context(|| format!("cannot write {}", arguments.output.display()))?;
        }
    }
    finish(writer.into_inner(), &arguments.output)?;
    report(&recorded, &arguments.output)
}

fn scrubbed_node() -> NodeFacts {
    NodeFacts {
        cluster: SCRUBBED_NODE.to_owned(),
        node: SCRUBBED_NODE.to_owned(),
        boot_id: String::new(),
        agent_id: AgentId(uuid::Uuid::nil()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Gives every reader whose turn it is its turn, all at once; what fails is counted.
async fn one_second(
    recorded: &mut [Recorded],
    second: u64,
    turn: &Turn,
) -> Vec<(String, Readings)> {
    let due = recorded.iter_mut().filter(|it| {
        let period = it.reader.period().as_secs().max(1);
        second.is_multiple_of(period)
    });
    let rounds = due.map(|it| async move {
        let deadline = it.reader.deadline();
        let round = tokio::time::timeout(deadline, it.reader.read(turn.clone())).await;
        match round.unwrap_or(Err(ReadError::Timeout { after: deadline })) {
            Ok(readings) if readings.resources.is_empty() && readings.events.is_empty() => None,
            Ok(readings) => {
                it.rounds += 1;
                Some((it.reader.name().to_owned(), readings))
            }
            Err(error) => {
                it.failures += 1;
                it.error = Some(error.to_string());
                None
            }
        }
    });
    let rounds = futures::future::join_all(rounds).await;
    rounds.into_iter().flatten().collect()
}

fn scrub(readings: &Readings, renamer: &Renamer) -> Readings {
    let resources = readings.resources.iter().map(|one| ResourceSamples {
        resource: Arc::new(renamer.resource(&one.resource)),
        samples: one.samples.clone(),
    });
    let events = readings.events.iter();
    Readings {
        at: readings.at,
        resources: resources.collect(),
        events: events.map(|event| renamer.event(event)).collect(),
    }
}

fn report(recorded: &[Recorded], output: &Path) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for it in recorded {
        let name = it.reader.name();
        write!(out, "{name}: {} rounds", it.rounds)?;
        match &it.error {
            Some(error) => writeln!(out, ", {} failed, the last: {error}", it.failures)?,
            None => writeln!(out)?,
        }
    }
    if recorded.iter().all(|it| it.rounds == 0) {
        anyhow::bail!(
            "no reader had anything to record; {} has only its header",
            output.display()
        );
    }
    writeln!(out, "written to {}", output.display())?;
    Ok(())
}

fn convert(config: &Config, arguments: &Arguments, capture: &Path) -> anyhow::Result<()> {
    let folder = config.exporter.tables_folder.as_path();
    let folder = Some(folder).filter(|it| !it.as_os_str().is_empty());
    let (tables, errors) = table::load(folder);
    if let Some(error) = errors.first() {
        anyhow::bail!("exporter.tables_folder: {error}");
    }
    let tables = wanted_tables(tables, arguments.table.as_deref())?;
    let source = Source::open(capture, &tables)?;
    if source.header.taken_at_seconds.is_some() {
        anyhow::bail!("{} is a recording already", capture.display());
    }
    let header = Header {
        gpufleet_recording: VERSION,
        ..source.header.clone()
    };
    let renamer = Renamer::scrubbing(SCRUBBED_NODE, SCRUBBED_NODE);
    let mut writer = Writer::new(create(&arguments.output)?, &header)?;
    let mut gpus = 0;
    for round in source.play()? {
        gpus += round.resources.len();
        let readings = Readings {
            at: Timestamp(round.at_ns),
            resources: round.resources,
            events: round.events,
        };
        writer.round(&round.reader, &scrub(&readings, &renamer))?;
    }
    finish(writer.into_inner(), &arguments.output)?;
    let (from, to) = (capture.display(), arguments.output.display());
    writeln!(
        std::io::stdout().lock(),
        "{from}: {gpus} resources, 1 sample, written to {to}"
    )?;
    Ok(())
}

fn wanted_tables(tables: Vec<Table>, name: Option<&str>) -> anyhow::Result<Vec<Table>> {
    let Some(name) = name else {
        return Ok(tables);
    };
    let known: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
    let wanted: Vec<Table> = tables.into_iter().filter(|it| it.name == name).collect();
    if wanted.is_empty() {
        anyhow::bail!("--table: no table `{name}`; there are {}", known.join(", "));
    }
    Ok(wanted)
}

fn create(path: &Path) -> anyhow::Result<Out> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let file = BufWriter::new(file);
    if path.extension().is_some_and(|it| it == "gz") {
        return Ok(Out::Gzip(GzEncoder::new(file, Compression::default())));
    }
    Ok(Out::Plain(file))
}

/// Writes what is still held back, and the end of a gzip stream.
fn finish(out: Out, path: &Path) -> anyhow::Result<()> {
    let written = match out {
        Out::Plain(mut out) => out.flush(),
        Out::Gzip(out) => out.finish().and_then(|mut out| out.flush()),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(output: PathBuf) -> Arguments {
        Arguments {
            output,
            seconds: MIN_SECONDS,
            from: None,
            table: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_minute_of_the_machine_is_recorded_and_can_be_played() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::for_tests();
        config.host.enabled = true;
        config.host.period_seconds = 1;
        for name in ["host.jsonl", "host.jsonl.gz"] {
            let output = folder.path().join(name);
            run(&config, &arguments(output.clone())).await.expect(name);
            let source = Source::open(&output, &[]).expect("a recording");
            assert_eq!((source.samples, source.damaged), (60, 0), "{name}");
            let round = source.play().expect("there").next().expect("a round");
            let resource = &round.resources[0].resource;
            assert_eq!(resource.id.as_ref(), "recorded");
            assert!(resource.attribute("host.name").is_none(), "{resource:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_to_record_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("a.jsonl");
        let error = run(&Config::for_tests(), &arguments(output)).await;
        let error = error.expect_err("no reader").to_string();
        assert!(
            error.contains("no reader had anything to record"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_capture_becomes_a_recording_of_one_sample() {
        let folder = tempfile::tempdir().expect("a folder");
        let capture = folder.path().join("a.metrics");
        let line = "DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-5f2c\"} 70\n";
        std::fs::write(&capture, line).expect("written");
        let mut arguments = arguments(folder.path().join("a.jsonl.gz"));
        arguments.from = Some(capture);
        for (table, good) in [
            (None, true),
            (Some("dcgm"), true),
            (Some("vllm"), false),
            (Some("no"), false),
        ] {
            arguments.table = table.map(str::to_owned);
            let result = run(&Config::for_tests(), &arguments).await;
            assert_eq!(result.is_ok(), good, "{table:?}: {result:?}");
        }
        let source = Source::open(&arguments.output, &[]).expect("a recording");
        assert_eq!(source.samples, 1);
        let round = source.play().expect("there").next().expect("a round");
        assert_eq!(round.reader, "exporter:dcgm");
        assert_ne!(round.resources[0].resource.id.as_ref(), "GPU-5f2c");
    }

    #[tokio::test]
    async fn a_recording_shorter_than_a_minute_is_refused() {
        let mut arguments = arguments(PathBuf::from("/nowhere/a.jsonl"));
        arguments.seconds = 59;
        let error = run(&Config::for_tests(), &arguments)
            .await
            .expect_err("short");
        assert!(error.to_string().contains("--seconds 59"), "{error}");
        arguments.seconds = 60;
        let error = run(&Config::for_tests(), &arguments)
            .await
            .expect_err("no folder");
        assert!(
            error.to_string().contains("cannot create /nowhere"),
            "{error}"
        );
    }
}
