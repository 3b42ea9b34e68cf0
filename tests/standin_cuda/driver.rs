//! What the stand-in remembers: the scenario, modules, the time on the GPU, what broke.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::scenario::{Fault, Scenario};

/// CUDA's numbers of errors that the stand-in gives by itself.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NO_BINARY: u32 = 209;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const UNSUPPORTED_PTX: u32 = 222;
    pub(crate) const NOT_FOUND: u32 = 500;
}

/// What changes.
#[derive(Default)]
pub(crate) struct State {
    /// Texts of the modules that were loaded.
    pub(crate) modules: Vec<String>,
    /// Names of the kernels that were asked for.
    pub(crate) kernels: Vec<String>,
    /// Time on the GPU so far.
    pub(crate) nanoseconds: u64,
    /// Moments that were noted.
    pub(crate) events: Vec<u64>,
    /// Bytes that were given out.
    pub(crate) allocated: u64,
    /// What every wait returns from now on: an error of a kernel sticks to its context.
    pub(crate) broken: u32,
    /// Whether a kernel never ends.
    pub(crate) is_stuck: bool,
}

pub(crate) fn scenario() -> &'static Scenario {
    static SCENARIO: OnceLock<Scenario> = OnceLock::new();
    SCENARIO.get_or_init(|| {
        let path = std::env::var_os(crate::SCENARIO_VARIABLE);
        let text = path.map_or_else(String::new, |path| {
            std::fs::read_to_string(path).expect("the scenario can be read")
        });
        toml::from_str(&text).expect("the scenario is one")
    })
}

pub(crate) fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(Mutex::default);
    act(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Never returns.
pub(crate) fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// One call of a function: its fault, else what it answers.
pub(crate) fn call(function: &str, answer: impl FnOnce() -> Result<(), u32>) -> u32 {
    for fault in &scenario().faults {
        match fault {
            Fault::Error(name, code) if name == function => return *code,
            Fault::Hang(name) if name == function => hang(),
            _ => {}
        }
    }
    answer().err().unwrap_or(0)
}

/// Waits for what was launched.
pub(crate) fn wait() -> Result<(), u32> {
    let (is_stuck, broken) = with(|state| (state.is_stuck, state.broken));
    if is_stuck {
        hang();
    }
    match broken {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Whether the GPU that the process is shown is here.
pub(crate) fn is_here() -> bool {
    let gpus = &scenario().gpus;
    let shown = std::env::var("CUDA_VISIBLE_DEVICES");
    gpus.is_empty() || shown.map_or(true, |it| gpus.contains(&it))
}
