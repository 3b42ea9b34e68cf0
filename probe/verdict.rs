//! What a run of the probe means: pass, degraded, fail or could not measure, with the reason in words.
//! Pure: from readings, what the card could do at best, what it did before and what like ones do.
//!
//! *Fail* is a wrong result, an error that CUDA or ECC raised while kernels ran, or a kernel that does
//! not return: nobody should compute on this GPU. *Degraded* is right and slow. *Could not measure* is
//! neither: nothing is known, and that is never a pass.
//!
//! Numbers: starting points beside their names below. None of them has been held against a fleet yet.

use std::sync::Arc;

use gpufleet_telemetry::gpu_specs::{DataType, Spec};

use super::between;
use super::measured::{Check, Ended, Measured, Stage, Stopped, Why};
use super::ptx::{Capability, Work};

/// Part of the memory's peak below which a card is slow: copies reach 85 to 93 % of it.
const LEAST_MEMORY: f64 = 0.70;

/// Part of the peak in bf16 that `mma.sync` must reach, by capability. Newer tensor cores give their peak
/// to other instructions only: there the rate is reported, and held against what it was.
const LEAST_TENSOR: [(Capability, f64); 2] = [(Capability(8, 0), 0.60), (Capability(9, 0), 0.40)];

/// Part of a PCIe link's rate below which it is slow: pinned copies reach 80 to 90 %.
const LEAST_LINK: f64 = 0.50;

/// Part of what it did before, or of what like ones do, below which it is slow.
const LEAST_OF_USUAL: f64 = 0.90;

/// Part of the middle SM's speed below which one is slow.
const LEAST_SM: f64 = 0.80;

/// Part of a GPU's SMs that must have taken part inside a training process, where the step keeps others
/// busy: what is not reached this time is another time.
const LEAST_INSIDE: f64 = 0.5;

/// Runs of its own from which there is something usual.
pub const LEAST_RUNS: usize = 5;

/// Like GPUs from which there is something usual.
pub const LEAST_LIKE: usize = 3;

/// CUDA's errors that mean that the GPU broke what it ran, and what each says.
const FAULTS: [(u32, &str); 8] = [
    (214, "an ECC error that could not be corrected"),
    (220, "an NVLink error that could not be corrected"),
    (700, "a kernel read or wrote where it must not"),
    (702, "the driver gave a kernel up"),
    (714, "a hardware stack error"),
    (715, "an illegal instruction"),
    (716, "a misaligned address"),
    (719, "a kernel broke"),
];

/// What it comes to, from good to bad: what nobody knows is worse than slow and better than wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Right and as fast as it should be.
    Pass,
    /// Right and slow.
    Degraded,
    /// Nothing is known.
    CouldNotMeasure,
    /// Wrong.
    Fail,
}

/// A verdict with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// What it comes to.
    pub verdict: Verdict,
    /// Why, in words; of a pass what was done.
    pub reason: String,
    /// The SM that is to blame, where one is.
    pub sm: Option<u32>,
}

/// Rates of one run, as later ones and like GPUs are held against.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Bytes a second of the memory.
    pub memory: Option<f64>,
    /// Operations a second of the tensor cores, in the widest type that both runs have.
    pub tensor: Option<f64>,
    /// Bytes a second between it and others of the node, with CUDA's rank of the links.
    pub peers: Option<(i32, f64)>,
}

/// What is usual: the GPU's own runs before, and the last ones of like GPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usual<'a> {
    /// Its own, the order does not matter.
    pub own: &'a [Rates],
    /// Of the same model on the same node.
    pub like: &'a [Rates],
    /// GPUs of the node whose own last verdict was no pass.
    pub known_bad: &'a [Arc<str>],
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 4] = [
        Self::Pass,
        Self::Degraded,
        Self::Fail,
        Self::CouldNotMeasure,
    ];

    /// The name in events and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Degraded => "degraded",
            Self::Fail => "fail",
            Self::CouldNotMeasure => "could_not_measure",
        }
    }

    /// The number in metrics.
    pub const fn number(self) -> u8 {
        match self {
            Self::Pass => 1,
            Self::Degraded => 2,
            Self::Fail => 3,
            Self::CouldNotMeasure => 4,
        }
    }

    /// How the command ends. Above those that shells and clap use; docs/probe.md has the table.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Degraded => 10,
            Self::Fail => 20,
            Self::CouldNotMeasure => 30,
        }
    }
}

impl Rates {
    /// Of one run.
    pub fn of(measured: &Measured) -> Self {
        let rate = |work: Work| {
            let check = measured.checks.iter().find(|it| it.work == work)?;
            check.rate
        };
        Self {
            memory: measured.memory_rate,
            tensor: rate(Work::Bf16).or_else(|| rate(Work::Fp16)),
            peers: between::rate(measured),
        }
    }
}

/// Judges one run.
pub fn judge(ended: &Ended, spec: Option<&Spec>, usual: Usual<'_>) -> Judgement {
    let measured = match ended {
        Ended::Stopped(stopped) => return judge_stopped(stopped),
        Ended::Measured(measured) => measured,
    };
    if let Some(wrong) = wrong(measured) {
        return wrong;
    }
    // That another GPU is broken by itself says nothing of this one.
    let is_known_bad = |gpu: &str| usual.known_bad.iter().any(|it| **it == *gpu);
    if let Some((gpu, stopped)) = &measured.broke_with
        && !is_known_bad(gpu)
    {
        let broke = judge_stopped(stopped);
        return told(broke.verdict, format!("with {gpu}: {}", broke.reason), None);
    }
    if let Some(unseen) = unseen(measured, measured.sms) {
        return told(Verdict::CouldNotMeasure, unseen, None);
    }
    let mut slow = slow_of_peak(measured, spec);
    slow.extend(slow_of_usual(Rates::of(measured), usual));
    slow.extend(between::slow_pairs(measured, usual.known_bad));
    let sm = measured.slowest.filter(|(_, part)| *part < LEAST_SM);
    if let Some((number, part)) = sm {
        let speed = percent(part);
        slow.push(format!("SM {number} runs at {speed} of the others' speed"));
    }
    if !slow.is_empty() {
        return told(Verdict::Degraded, slow.join("; "), sm.map(|it| it.0));
    }
    let names: Vec<_> = measured.checks.iter().map(|it| it.work.name()).collect();
    let did = format!("{} right on {} SMs", names.join(", "), measured.sms);
    told(Verdict::Pass, did, None)
}

/// Judges one run inside a training process. Whether it was fast is nobody's to say: the GPU was shared. The
/// kernels that were there had no need to reach every SM, and the reason says how many they did.
pub fn judge_inside(measured: &Measured) -> Judgement {
    if let Some(wrong) = wrong(measured) {
        return wrong;
    }
    let least = (f64::from(measured.sms) * LEAST_INSIDE).ceil() as u32;
    if let Some(unseen) = unseen(measured, least.max(1)) {
        return told(Verdict::CouldNotMeasure, unseen, None);
    }
    let names: Vec<_> = measured.checks.iter().map(|it| it.work.name()).collect();
    let (names, covered, all) = (names.join(", "), covered(measured), measured.sms);
    let mut did = format!("{names} right on {covered} of {all} SMs, inside the training process");
    if !measured.left_out.is_empty() {
        did = format!("{did}; left out: {}", measured.left_out.join(", "));
    }
    told(Verdict::Pass, did, None)
}

/// SMs that took part in every work that is to reach all.
pub fn covered(measured: &Measured) -> u32 {
    let of_sms = measured.checks.iter().filter(|it| it.work != Work::Memory);
    of_sms.map(|it| it.covered).min().unwrap_or(0)
}

fn told(verdict: Verdict, reason: String, sm: Option<u32>) -> Judgement {
    Judgement {
        verdict,
        reason,
        sm,
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Results that are not what they must be.
fn wrong(measured: &Measured) -> Option<Judgement> {
    if let Some(check) = measured.checks.iter().find(|it| it.wrong > 0) {
        let sm = check.wrong_sms.iter().max_by_key(|it| it.wrong);
        let sm = sm.map(|it| it.number).or(check.first.map(|it| it.sm));
        return Some(told(Verdict::Fail, words_of_wrong(check, sm), sm));
    }
    let (_, uncorrected) = measured.ecc.unwrap_or((0, 0));
    let raised = format!("{uncorrected} ECC errors that could not be corrected came while it ran");
    (uncorrected > 0).then(|| told(Verdict::Fail, raised, None))
}

fn words_of_wrong(check: &Check, sm: Option<u32>) -> String {
    let on = match (sm, check.wrong_sms.len()) {
        (Some(sm), 0 | 1) => format!("on SM {sm}"),
        (Some(sm), count) => format!("on {count} SMs, most on SM {sm}"),
        (None, _) => "on an SM that is not known".to_owned(),
    };
    let first = check.first.map_or_else(String::new, |it| {
        let (place, expected, found) = (it.place, it.expected, it.found);
        format!(" (first at {place}: {found:#x} where {expected:#x} is right)")
    });
    let (wrong, name) = (check.wrong, check.work.name());
    format!("{wrong} wrong results of {name} {on}{first}")
}

/// What could not be seen although it ran, where so many SMs must have taken part: no pass without it.
fn unseen(measured: &Measured, least: u32) -> Option<String> {
    let Some(first) = measured.checks.first() else {
        return Some("nothing was compared".to_owned());
    };
    if first.work != Work::Arithmetic {
        return Some("the arithmetic was not compared".to_owned());
    }
    for check in &measured.checks {
        let name = check.work.name();
        if !check.sees_errors {
            return Some(format!("{name}: a spoilt expectation was not noticed"));
        }
        // Memory is read by whoever comes first.
        if check.covered < least && check.work != Work::Memory {
            let (covered, all) = (check.covered, measured.sms);
            return Some(format!("{name}: only {covered} of {all} SMs took part"));
        }
    }
    None
}

fn slow_of_peak(measured: &Measured, spec: Option<&Spec>) -> Vec<String> {
    let mut slow = Vec::new();
    let mut hold = |what: &str, rate: Option<f64>, peak: Option<f64>, least: f64| {
        if let (Some(rate), Some(peak)) = (rate, peak)
            && rate < peak * least
        {
            let (part, least) = (percent(rate / peak), percent(least));
            slow.push(format!(
                "{what} at {part} of its peak, {least} are the least"
            ));
        }
    };
    if !measured.is_slice {
        let peak = spec.and_then(|it| it.memory_bytes_per_second);
        hold("memory", measured.memory_rate, peak, LEAST_MEMORY);
        let bf16 = measured.checks.iter().find(|it| it.work == Work::Bf16);
        let least = LEAST_TENSOR
            .iter()
            .find(|it| Some(it.0) == measured.capability);
        if let (Some(bf16), Some((_, least))) = (bf16, least) {
            let peak = spec.and_then(|it| it.peak(DataType::Bf16Tensor));
            hold("bf16", bf16.rate, peak, *least);
        }
    }
    hold(
        "PCIe to the GPU",
        measured.to_gpu,
        measured.link,
        LEAST_LINK,
    );
    hold(
        "PCIe from the GPU",
        measured.from_gpu,
        measured.link,
        LEAST_LINK,
    );
    slow
}

fn slow_of_usual(now: Rates, usual: Usual<'_>) -> Vec<String> {
    let mut slow = Vec::new();
    let link = now.peers.map(|it| it.0);
    for (others, least, whose) in [
        (usual.own, LEAST_RUNS, "what it did before"),
        (usual.like, LEAST_LIKE, "what like GPUs of this node do"),
    ] {
        let mut hold = |what: &str, rate: Option<f64>, others: Vec<f64>, least_part: f64| {
            let are_enough = others.len() >= least;
            let middle = between::middle(others).filter(|_| are_enough);
            if let (Some(rate), Some(middle)) = (rate, middle)
                && rate < middle * least_part
            {
                slow.push(format!("{what} at {} of {whose}", percent(rate / middle)));
            }
        };
        let all = |of: fn(&Rates) -> Option<f64>| others.iter().filter_map(of).collect();
        hold("memory", now.memory, all(|it| it.memory), LEAST_OF_USUAL);
        hold(
            "tensor cores",
            now.tensor,
            all(|it| it.tensor),
            LEAST_OF_USUAL,
        );
        let pairs = others.iter().filter_map(|it| it.peers);
        let alike = pairs.filter(|it| Some(it.0) == link).map(|it| it.1);
        let rate = now.peers.map(|it| it.1);
        let least_part = between::LEAST_OF_USUAL;
        hold("copies between GPUs", rate, alike.collect(), least_part);
    }
    slow
}

/// Why there are no readings, and whether that is the GPU's fault.
pub fn judge_stopped(stopped: &Stopped) -> Judgement {
    let doing = stopped.stage.words();
    let runs = matches!(
        stopped.stage,
        Stage::Run(_) | Stage::Transfer | Stage::Between(_)
    );
    let could_not = |reason: String| told(Verdict::CouldNotMeasure, reason, None);
    match &stopped.why {
        Why::Cuda(code, name) => match FAULTS.iter().find(|it| it.0 == *code) {
            Some((_, words)) => {
                told(Verdict::Fail, format!("{words} ({name}, {code}) while {doing}"), None)
            }
            None => could_not(format!("CUDA says {name} ({code}) while {doing}")),
        },
        Why::Hung(after_ms) if runs => {
            told(Verdict::Fail, format!("{doing} did not end within {after_ms} ms"), None)
        }
        Why::Hung(after_ms) => could_not(format!(
            "the driver did not come back from {doing} within {after_ms} ms"
        )),
        Why::Died(how) => could_not(format!("the probe's process {how} while {doing}")),
        Why::NoLibrary => could_not(
            "there is no CUDA driver to load (libcuda.so.1): run it on a node with NVIDIA's driver, \
             and in a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                .to_owned(),
        ),
        Why::NoGpu => could_not("no such GPU is here".to_owned()),
        Why::OldDriver(cuda) => could_not(format!(
            "the driver is of CUDA {}.{}, older than the kernels (11.0): update it",
            cuda / 1_000,
            cuda % 1_000 / 10
        )),
        Why::OldCard(Capability(major, minor)) => could_not(format!(
            "the card's compute capability is {major}.{minor}, the kernels are for 7.5 and newer"
        )),
        Why::MigIsOn => could_not(
            "MIG is on, only its instances can compute: probe them by their ids (MIG-…)".to_owned(),
        ),
        Why::ComputeMode(mode) => could_not(format!(
            "its compute mode is {mode}: nvidia-smi -c 0 lets the probe in"
        )),
        Why::Busy(count) => could_not(format!(
            "busy: {count} processes compute on it; gpufleet.probe() asks from inside them"
        )),
        Why::NoMemory(free) => could_not(format!(
            "out of memory: {} MiB are free, too few while {doing}",
            free >> 20
        )),
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
