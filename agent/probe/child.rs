//! The process that goes to the GPU: no runtime, no config, no log. It says on its standard output what
//! it is at, line by line, and ends; its parent kills it when it is late.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use anyhow::Context;
use clap::Args;

use super::between;
use super::measured::{Ended, Stage, Stopped, Told};
use super::ptx::Work;
use super::work::{self, Settings};

/// What the parent passes.
#[derive(Debug, Clone, Args)]
pub struct ChildArguments {
    /// The GPU, by UUID or index.
    #[arg(long)]
    pub(super) gpu: String,
    /// Other GPUs: then it only copies to and from them.
    #[arg(long)]
    pub(super) peer: Vec<String>,
    /// Where NVML is; empty is where the loader finds it.
    #[arg(long, default_value = "")]
    pub(super) nvml_library: String,
    /// Most memory to go through, MiB.
    #[arg(long)]
    pub(super) region_mib: usize,
    /// Work whose expectation is spoilt.
    #[arg(long)]
    pub(super) spoil: Option<String>,
}

/// Runs the probe once.
///
/// # Errors
/// When it was not started by an agent.
pub fn run(arguments: &ChildArguments) -> anyhow::Result<()> {
    const BY_HAND: &str = "probe-child is started by the agent, not by hand: gpufleet-agent probe";
    // A call that hangs would keep this process past its parent, which then nobody would kill.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // What the driver prints must not land among the lines.
    let out = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .context(BY_HAND)?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    let mut out = File::from(out);
    let settings = Settings {
        gpu: arguments.gpu.clone(),
        nvml_library: arguments.nvml_library.clone(),
        region_bytes: arguments.region_mib << 20,
        spoil: spoilt(arguments.spoil.as_deref())?,
    };
    let mut at = Stage::Look;
    let mut failed = None;
    let mut told = |stage| {
        at = stage;
        // A parent that is gone has this process killed; until then it goes on.
        failed = tell(&mut out, &Told::Stage(stage)).err().or(failed.take());
    };
    let ended = match arguments.peer.as_slice() {
        [] => work::run(&settings, &mut told),
        peers => between::run(&settings.nvml_library, peers, &mut told),
    };
    let ended = match ended {
        Ok(measured) => Ended::Measured(Box::new(measured)),
        Err(why) => Ended::Stopped(Stopped { stage: at, why }),
    };
    if let Some(error) = failed {
        return Err(error).context(BY_HAND);
    }
    tell(&mut out, &Told::Ended(ended)).context(BY_HAND)
}

/// The work with this name.
///
/// # Errors
/// When there is none, with the names that there are.
pub(super) fn spoilt(name: Option<&str>) -> anyhow::Result<Option<Work>> {
    let Some(name) = name else { return Ok(None) };
    let found = Work::ALL.into_iter().find(|it| it.name() == name);
    let names = Work::ALL.map(Work::name).join(", ");
    let found = found.with_context(|| format!("--spoil {name}: it may be {names}"))?;
    Ok(Some(found))
}

fn tell(out: &mut File, told: &Told) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    Ok(out.write_all(&line)?)
}
