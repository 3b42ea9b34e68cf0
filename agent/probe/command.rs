//! `gpufleet-agent probe`: one run on each GPU that is named, in words or JSON, with the verdict as exit
//! code; with `--gate` before a job, in an init container or Slurm's prolog.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use gpufleet_telemetry::gpu_specs;
use serde::Serialize;

use super::child;
use super::look;
use super::measured::{Ended, Measured, Stopped};
use super::process::{Order, Spawner, after};
use super::verdict::{Judgement, Usual, Verdict, judge};
use crate::config::Config;

/// Most GPUs that one command probes: no node has more.
const MAX_GPUS: usize = 64;

/// Which GPUs, and how it is told.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// A GPU by UUID (GPU-…), MIG instance (MIG-…) or index; may be given several times. Without it:
    /// every GPU that NVML shows.
    #[arg(long)]
    gpu: Vec<String>,
    /// Before a job: a GPU that is right and slow lets the job through (exit code 0) and says so.
    #[arg(long)]
    gate: bool,
    /// What was read, as JSON, one line a GPU.
    #[arg(long)]
    json: bool,
    /// Spoils what this work expects, to see that the probe can fail: arithmetic, memory, fp16, int8,
    /// bf16, tf32 or fp8.
    #[arg(long, value_name = "WORK")]
    spoil: Option<String>,
}

/// One GPU's result.
#[derive(Serialize)]
struct Line<'a> {
    gpu: &'a str,
    verdict: &'static str,
    reason: &'a str,
    sm: Option<u32>,
    wall_seconds: f64,
    measured: Option<&'a Measured>,
    stopped: Option<&'a Stopped>,
}

/// Probes and says how the process is to end: with the code of the worst verdict, of which a
/// failure is the worst.
///
/// # Errors
/// When what was asked for cannot be meant, or nothing can be written.
pub async fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    child::spoilt(arguments.spoil.as_deref())?;
    let library = config.nvml.library_path.display().to_string();
    let gpus = match arguments.gpu.as_slice() {
        [] => look::all(&library),
        named => named.to_vec(),
    };
    anyhow::ensure!(
        gpus.len() <= MAX_GPUS,
        "{} GPUs are named, at most {MAX_GPUS} can be",
        gpus.len()
    );
    // Without NVML CUDA's first GPU is asked for, which then says what is the matter.
    let gpus = if gpus.is_empty() {
        vec!["0".to_owned()]
    } else {
        gpus
    };
    let mut worst = Verdict::Pass;
    let free = look::free(&library);
    for gpu in gpus {
        let judgement = one(config, arguments, &library, (&gpu, &free)).await?;
        let lets_through = arguments.gate && judgement.verdict == Verdict::Degraded;
        let verdict = if lets_through {
            Verdict::Pass
        } else {
            judgement.verdict
        };
        worst = worst.max(verdict);
    }
    Ok(ExitCode::from(worst.exit_code()))
}

async fn one(
    config: &Config,
    arguments: &Arguments,
    library: &str,
    (gpu, free): (&str, &[String]),
) -> anyhow::Result<Judgement> {
    let known = look::Look::open(library, gpu).ok();
    let id = known.and_then(|it| it.id()).unwrap_or_default();
    let peers = after(&id, free);
    // Beside others it is named as they are: CUDA takes indices or UUIDs, not some of each.
    let named = if peers.is_empty() { gpu } else { id.as_str() };
    let order = Order {
        gpu: named.to_owned(),
        peers,
        nvml_library: library.to_owned(),
        region_mib: config.probe.region_mib,
        deadline: Duration::from_secs(config.probe.deadline_seconds),
        spoil: arguments.spoil.clone(),
    };
    let began = tokio::time::Instant::now();
    let ran = Spawner::default().run(&order).await;
    let wall_seconds = began.elapsed().as_secs_f64();
    let (measured, stopped) = match &ran.ended {
        Ended::Measured(measured) => (Some(measured.as_ref()), None),
        Ended::Stopped(stopped) => (None, Some(stopped)),
    };
    let spec = measured.and_then(|it| gpu_specs::lookup(&it.card));
    let judgement = judge(&ran.ended, spec, Usual::default());
    let mut out = std::io::stdout().lock();
    let written = if arguments.json {
        let line = Line {
            gpu,
            verdict: judgement.verdict.name(),
            reason: &judgement.reason,
            sm: judgement.sm,
            wall_seconds,
            measured,
            stopped,
        };
        writeln!(out, "{}", serde_json::to_string(&line)?)
    } else {
        let words = judgement.verdict.name().replace('_', " ");
        writeln!(out, "{gpu}: {words}: {}", judgement.reason)
            .and_then(|()| measured.map_or(Ok(()), |it| readings(&mut out, it)))
    };
    written.context("cannot write to standard output")?;
    Ok(judgement)
}

/// The readings in words.
fn readings(out: &mut impl Write, measured: &Measured) -> std::io::Result<()> {
    let giga = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
    let mut rows = vec![("card", measured.card.clone())];
    rows.extend(measured.memory_rate.map(|it| ("memory, copied", giga(it))));
    rows.extend(measured.to_gpu.map(|it| ("PCIe to the GPU", giga(it))));
    rows.extend(measured.from_gpu.map(|it| ("PCIe from the GPU", giga(it))));
    for peer in &measured.peers {
        let words = format!("{}: {}, back {}", peer.gpu, giga(peer.to), giga(peer.from));
        rows.push(("copied to", words));
    }
    for check in &measured.checks {
        let rate = check
            .rate
            .map(|it| format!("{:.1} TFLOPS or TOPS", it / 1e12));
        rows.extend(rate.map(|it| (check.work.name(), it)));
    }
    let slowest = measured.slowest;
    rows.extend(slowest.map(|(sm, part)| {
        (
            "slowest SM",
            format!("{sm}, at {:.0} % of the middle one", part * 100.0),
        )
    }));
    let context = measured.context_bytes;
    rows.extend(context.map(|it| ("memory of its context", format!("{} MiB", it >> 20))));
    rows.push((
        "time on the GPU",
        format!("{:.1} ms", measured.gpu_seconds * 1e3),
    ));
    rows.extend(
        measured
            .left_out
            .iter()
            .map(|it| ("not measured", it.clone())),
    );
    for (name, value) in rows {
        writeln!(out, "  {name:22} {value}")?;
    }
    Ok(())
}
