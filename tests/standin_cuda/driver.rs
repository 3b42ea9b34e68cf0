//! What the stand-in remembers: the scenario, modules, the time on the GPU, what broke.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use crate::counted::{ENDED_CAPTURES, HANGS};
use crate::scenario::{Capture, Fault, Scenario};

/// CUDA's numbers of errors that the stand-in gives by itself.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const NO_BINARY: u32 = 209;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const UNSUPPORTED_PTX: u32 = 222;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const ALREADY_ENABLED: u32 = 704;
    pub(crate) const CAPTURE_FORBIDS: u32 = 900;
    pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
}

/// What changes.
#[derive(Default)]
pub(crate) struct State {
    /// Texts of the modules that were loaded.
    pub(crate) modules: Vec<String>,
    /// Names of the kernels that were asked for.
    pub(crate) kernels: Vec<String>,
    /// Numbers of those that are loaded: a first launch loads, too, and may wait for it.
    pub(crate) loaded: BTreeSet<u64>,
    /// Time on the GPU so far.
    pub(crate) nanoseconds: u64,
    /// Moments that were noted, and how often each is asked for before the GPU is past it.
    pub(crate) events: Vec<(u64, u32)>,
    /// Streams that were made.
    pub(crate) streams: Vec<Stream>,
    /// How often each function was called, and what else is counted.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    /// Bytes that were given out.
    pub(crate) allocated: u64,
    /// Which context reaches the memory of which.
    pub(crate) ways: BTreeSet<(u64, u64)>,
    /// What every wait returns from now on: an error of a kernel sticks to its context.
    pub(crate) broken: u32,
    /// Whether a kernel never ends.
    pub(crate) is_stuck: bool,
}

/// A stream that was made.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Whether it is of the lowest priority and the default stream does not wait for it.
    pub(crate) is_aside: bool,
    /// Whether it waits for what was on another.
    pub(crate) is_ordered: bool,
}

thread_local! {
    /// In which mode of captures this thread is: CUDA's numbers, 0 global, 2 relaxed.
    pub(crate) static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
    /// The context that this thread made its own; 0 none.
    pub(crate) static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The relaxed mode.
const RELAXED: i32 = 2;

/// Functions that are forbidden in other modes while a graph is captured.
const UNSAFE: [&str; 6] = [
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuModuleLoadData",
];

static SCENARIO: RwLock<Option<&'static Scenario>> = RwLock::new(None);

/// What happens now.
pub(crate) fn scenario() -> &'static Scenario {
    let known = *SCENARIO.read().unwrap_or_else(PoisonError::into_inner);
    known.unwrap_or_else(|| {
        let path = std::env::var_os(crate::SCENARIO_VARIABLE);
        let text = path.map_or_else(String::new, |path| {
            std::fs::read_to_string(path).expect("the scenario can be read")
        });
        set(&text)
    })
}

/// From now on this scenario holds, and everything is whole again.
pub(crate) fn set(text: &str) -> &'static Scenario {
    let scenario = toml::from_str(text).expect("the scenario is one");
    let scenario: &'static Scenario = Box::leak(Box::new(scenario));
    *SCENARIO.write().unwrap_or_else(PoisonError::into_inner) = Some(scenario);
    with(|state| {
        (state.broken, state.is_stuck, state.allocated) = (0, false, 0);
        state.calls.clear();
    });
    scenario
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

/// Counts something.
pub(crate) fn count(what: &'static str) {
    with(|state| *state.calls.entry(what).or_default() += 1);
}

/// One call of a function: its fault, else what it answers.
pub(crate) fn call(function: &'static str, answer: impl FnOnce() -> Result<(), u32>) -> u32 {
    count(function);
    let is_relaxed = CAPTURE_MODE.get() == RELAXED;
    if scenario().capture != Capture::Nothing && UNSAFE.contains(&function) && !is_relaxed {
        count(ENDED_CAPTURES);
        return code::CAPTURE_FORBIDS;
    }
    for fault in &scenario().faults {
        match fault {
            Fault::Error(name, code) if name == function => return *code,
            Fault::Hang(name) if name == function => {
                count(HANGS);
                hang()
            }
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

/// The GPUs that the process is shown and that are here, in its order: as with the real driver, one that is not ends
/// the list. Without the variable there is one.
pub(crate) fn shown() -> Vec<String> {
    let gpus = &scenario().gpus;
    let named = std::env::var("CUDA_VISIBLE_DEVICES");
    let named = named.map_or_else(
        |_| vec![String::new()],
        |it| it.split(',').map(str::to_owned).collect(),
    );
    let is_here = |it: &String| gpus.is_empty() || it.is_empty() || gpus.contains(it);
    named.into_iter().take_while(is_here).collect()
}

/// Bytes a second between the GPUs of two contexts, in the first of which a copy runs: over PCIe where nobody opened
/// the way.
pub(crate) fn rate_between(own: u64, other: u64) -> f64 {
    let scenario = scenario();
    let is_open =
        with(|state| state.ways.contains(&(own, other)) && state.ways.contains(&(other, own)));
    if !is_open {
        return scenario.link_rate;
    }
    let shown = shown();
    let named = |context: u64| shown.get(context as usize - 1);
    let slow = scenario.faults.iter().find_map(|it| match it {
        Fault::SlowPeer(gpu, times) => {
            let is_one = named(own) == Some(gpu) || named(other) == Some(gpu);
            is_one.then_some(*times)
        }
        _ => None,
    });
    scenario.peer_rate / slow.unwrap_or(1.0)
}
