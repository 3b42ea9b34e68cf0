//! What the tests of the probe share: the stand-ins under the names that are looked for, and a run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufleet_agent::probe::measured::{Ended, Measured, Stopped};
use gpufleet_agent::probe::process::{Order, Ran, Spawner};
use gpufleet_agent::probe::verdict::{Judgement, Usual, judge};
use gpufleet_standin_cuda::{Fault, Scenario};
use gpufleet_standin_nvml::load::Load;
use gpufleet_telemetry::gpu_specs;

/// The agent, which is parent and child.
pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_gpufleet-agent");

/// The id of the stand-in's first GPU.
pub(crate) const GPU: &str = "GPU-5eed0000-0000-4000-8000-000000000000";

/// How long a run may take here: the stand-in's memory is a machine's that others use.
const PATIENCE: Duration = Duration::from_secs(100);

/// One machine: its drivers.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    /// What CUDA's stand-in shows.
    pub(crate) cuda: Scenario,
    /// What NVML's does.
    pub(crate) nvml: gpufleet_standin_nvml::Scenario,
    /// Whether there is a CUDA driver.
    pub(crate) has_driver: bool,
    /// What a run is told.
    pub(crate) order: Order,
}

fn built(name: &str) -> PathBuf {
    let folder = Path::new(AGENT).parent().expect("a folder");
    let path = folder.join("deps").join(name);
    assert!(path.exists(), "cargo did not build {}", path.display());
    path
}

impl Bench {
    /// An idle H100 with nothing wrong.
    pub(crate) fn new() -> Self {
        let mut nvml = gpufleet_standin_nvml::Scenario::of(1, "NVIDIA H100 80GB HBM3", Load::Idle);
        nvml.gpus[0].processes.clear();
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            cuda: Scenario::default(),
            nvml,
            has_driver: true,
            order: Order {
                gpu: GPU.to_owned(),
                peers: Vec::new(),
                nvml_library: built("libgpufleet_standin_nvml.so").display().to_string(),
                region_mib: 64,
                deadline: PATIENCE,
                spoil: None,
            },
        }
    }

    /// The same with something wrong.
    pub(crate) fn with(fault: Fault) -> Self {
        let mut bench = Self::new();
        bench.cuda.faults.push(fault);
        bench
    }

    /// The environment that leads to this machine's drivers.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let folder = self.folder.path();
        let (cuda, nvml) = (folder.join("cuda.toml"), folder.join("nvml.toml"));
        self.cuda.write(&cuda).expect("a scenario");
        self.nvml.write(&nvml).expect("a scenario");
        let libraries = folder.join("lib");
        std::fs::create_dir_all(&libraries).expect("a folder");
        let library = libraries.join("libcuda.so.1");
        let _ = std::fs::remove_file(&library);
        if self.has_driver {
            let built = built("libgpufleet_standin_cuda.so");
            std::os::unix::fs::symlink(built, library).expect("a link");
        }
        vec![
            ("LD_LIBRARY_PATH".into(), libraries.into()),
            (gpufleet_standin_cuda::SCENARIO_VARIABLE.into(), cuda.into()),
            (gpufleet_standin_nvml::SCENARIO_VARIABLE.into(), nvml.into()),
        ]
    }

    /// One run.
    pub(crate) async fn run(&self) -> Ran {
        let spawner = Spawner {
            program: AGENT.into(),
            environment: self.environment(),
        };
        spawner.run(&self.order).await
    }

    /// One run that measures.
    pub(crate) async fn measured(&self) -> Measured {
        match self.run().await.ended {
            Ended::Measured(measured) => *measured,
            Ended::Stopped(stopped) => panic!("nothing was measured: {stopped:?}"),
        }
    }

    /// One run that does not.
    pub(crate) async fn stopped(&self) -> Stopped {
        match self.run().await.ended {
            Ended::Stopped(stopped) => stopped,
            Ended::Measured(measured) => panic!("it measured: {measured:?}"),
        }
    }

    /// One run, judged as the command judges it.
    pub(crate) async fn judged(&self) -> Judgement {
        let ran = self.run().await;
        let spec = match &ran.ended {
            Ended::Measured(measured) => gpu_specs::lookup(&measured.card),
            Ended::Stopped(_) => None,
        };
        judge(&ran.ended, spec, Usual::default())
    }
}
