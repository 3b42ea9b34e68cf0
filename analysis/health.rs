//! What is wrong with a GPU: events, edges and absence, not statistics, because of seven studied GPUs
//! that fell off the bus the only sign was that their metrics stopped.
//!
//! Method, each rule on its own: an XID whose action is more than restarting the program, until that is done or, where
//! it only asks for a look, until it did not come again ([`xid`]); 13 or 31 in two jobs within 7 days on one GPU (that
//! is the GPU, not the program), until it is reset, and without jobs of which several GPUs raised it (that is the program);
//! uncorrectable ECC errors at all until a reset, correctable ones by rate; a failed or pending row remap;
//! throttling with its cause: hardware slowdowns by rate, heat and hardware brake by time, the power
//! cap only where like GPUs do not have it; temperature and power away from like GPUs by 5σ and a
//! floor; PCIe below what it or like GPUs had and NVLinks down, by consecutive readings; links that
//! go and come; GPU lost; driver hung; a series that stops while the agent goes on.
//!
//! Numbers: hardware slowdown >0.6 a minute; link down ≥25 s and back ≥3 times; NVLink by 5 readings
//! in a row and not within 10 minutes of the boot (one reading called 214 of 288 healthy machines
//! broken); the others are starting points beside their names below.
//!
//! Measured: quiet on seven real machines (`nvidia-smi -q` of 8×B200, 8×H100, …; the replay in the
//! tests; one reading each). No real series of sick GPUs is beside this repository: those tests are made up.
//!
//! Limits: no state, a call judges the window it is given (an hour is meant) from facts that are
//! there; what is not known is none and finds nothing. What an XID asks for comes with its event,
//! by the agent's table (`agent/read/nvml/xid_actions.toml`). Like GPUs are the caller's choice: the same
//! model and the same job, at least 4.

use gpufleet_telemetry::time::Timestamp;

use crate::robust::{median, sigma_about};

pub mod links;
pub mod xid;

#[cfg(test)]
mod tests;

pub use links::{Links, Pcie};
pub use xid::{Asks, PROGRAM_XIDS, REPEAT_JOBS, REPEAT_NS, TOLD_NS, Xid};

/// Correctable ECC errors an hour from which a GPU is watched.
pub const CORRECTABLE_PER_HOUR: f64 = 60.0;
/// Times a minute that the hardware begins to slow a GPU down, over five minutes: what comes in one flurry is one time.
pub const SLOWDOWNS_PER_MINUTE: f64 = 0.6;
/// Part of the window that heat or the hardware's brake may slow a GPU down.
pub const THROTTLED_PART: f64 = 0.05;
/// Part of the window that the power cap may, where like GPUs are below a quarter of it.
pub const CAPPED_PART: f64 = 0.2;
/// σ and floors by which a GPU is apart from like ones.
pub const OUTLIER_SIGMAS: f64 = 5.0;
/// See [`OUTLIER_SIGMAS`]: inlet and slot alone make 8 °C.
pub const OUTLIER_CELSIUS: f64 = 10.0;
/// See [`OUTLIER_SIGMAS`]: like GPUs of one job draw within a tenth.
pub const OUTLIER_POWER_PART: f64 = 0.25;
/// Over how long parts and rates are meant that forget, seconds.
pub const MEMORY_S: f64 = 300.0;
/// Fewest like GPUs that say what is usual.
pub const LEAST_LIKE: usize = 4;
/// A series is gone after this, nanoseconds: three ticks.
pub const VANISHED_NS: i64 = 30_000_000_000;

/// From when a GPU is not well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Correctable ECC errors an hour.
    pub corrected_per_hour: f64,
    /// Hardware slowdowns a minute.
    pub slowdowns_per_minute: f64,
    /// Part of the window slowed down by heat or the brake.
    pub throttled_part: f64,
    /// Part of the window at the power cap, where like GPUs are below a quarter of it.
    pub capped_part: f64,
    /// Least °C above like GPUs.
    pub hotter_celsius: f64,
    /// Least part of like GPUs' power that is missing.
    pub weaker_part: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            corrected_per_hour: CORRECTABLE_PER_HOUR,
            slowdowns_per_minute: SLOWDOWNS_PER_MINUTE,
            throttled_part: THROTTLED_PART,
            capped_part: CAPPED_PART,
            hotter_celsius: OUTLIER_CELSIUS,
            weaker_part: OUTLIER_POWER_PART,
        }
    }
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An XID that asks for more than a restart of the program.
    Xid(u32),
    /// A program's XID that came back in another job.
    RepeatedXid(u32),
    /// Uncorrectable ECC errors.
    EccUncorrectable,
    /// Correctable ones, often.
    EccRate,
    /// A row could not be remapped.
    RemapFailed,
    /// A row is remapped at the next reset.
    RemapPending,
    /// Slowed down.
    Throttled(Cause),
    /// Hotter than like GPUs.
    Hot,
    /// Draws less than like GPUs.
    Underpowered,
    /// PCIe below what it had.
    PcieDegraded,
    /// NVLinks down.
    NvlinkDown,
    /// Listed and not reachable.
    Lost,
    /// A driver call does not return.
    DriverHung,
    /// Its series stopped while its agent goes on.
    Vanished,
    /// The probe had wrong results or broke on it; the SM to blame, where one is.
    ProbeFailed(Option<u32>),
    /// The probe was right and slow.
    ProbeSlow,
}

/// Why a GPU is slowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Heat.
    Heat,
    /// The power supply's or the board's brake.
    HardwareBrake,
    /// The power cap, where like GPUs are not at theirs.
    PowerCap,
    /// The hardware, without saying why.
    Hardware,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Keep an eye on it.
    Watch,
    /// Look at cooling or power.
    CheckCoolingOrPower,
    /// Drain its jobs and reset it.
    DrainAndReset,
    /// Drain the node and reboot it.
    DrainAndReboot,
    /// Have it replaced.
    Replace,
    /// Run a diagnosis.
    Diagnose,
    /// What the XID's table says.
    AsTheTableSays,
}

/// One thing that is wrong, with the reading and the limit it is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// What to do.
    pub action: Action,
    /// Since when, where an event says so.
    pub since: Option<Timestamp>,
    /// The reading.
    pub reading: f64,
    /// What it is held against.
    pub limit: f64,
}

/// What like GPUs read: their median and how far they go from it. Worked out once for all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usual {
    middle: f64,
    sigma: f64,
}

/// What a probe found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// Whether results were wrong; else it was slow.
    pub is_wrong: bool,
    /// The SM to blame.
    pub sm: Option<u32>,
    /// When.
    pub at: Timestamp,
}

/// What is known of a GPU over a window. None is unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gpu<'a> {
    /// What it is judged by.
    pub by: Thresholds,
    /// The window's end.
    pub now: Timestamp,
    /// The window's length, hours.
    pub hours: f64,
    /// When its node came up.
    pub booted_at: Option<Timestamp>,
    /// XIDs of the last 7 days.
    pub xids: &'a [Xid<'a>],
    /// When it was last made whole: reset, listed anew, its driver loaded anew, or nothing more asked of it by the
    /// driver. That it works says nothing of it: what owes a reset works meanwhile.
    pub healed_at: Option<Timestamp>,
    /// When it last answered again after it could not be reached.
    pub back_at: Option<Timestamp>,
    /// Uncorrectable ECC errors since it was made whole.
    pub ecc_uncorrectable: Option<u64>,
    /// Correctable ones in the window.
    pub ecc_correctable: Option<u64>,
    /// Whether a row could not be remapped.
    pub has_remap_failure: Option<bool>,
    /// Whether a row is to be remapped.
    pub has_remap_pending: Option<bool>,
    /// In how many ticks a minute hardware slowdowns begin, lately.
    pub slowdowns_per_minute: Option<f64>,
    /// Part of the window slowed down by heat, by the hardware's brake and by the power cap.
    pub heat_part: Option<f64>,
    /// See `heat_part`.
    pub brake_part: Option<f64>,
    /// See `heat_part`.
    pub cap_part: Option<f64>,
    /// Median of `cap_part` of like GPUs.
    pub like_cap_part: Option<f64>,
    /// Mean temperature, and that of like GPUs, °C.
    pub temperature_celsius: Option<f64>,
    /// See `temperature_celsius`.
    pub like_celsius: Option<Usual>,
    /// Mean power, and that of like GPUs, watts.
    pub power_watts: Option<f64>,
    /// See `power_watts`.
    pub like_watts: Option<Usual>,
    /// Its links.
    pub links: Links<'a>,
    /// Since when it is lost.
    pub lost_since: Option<Timestamp>,
    /// Since when a driver call hangs.
    pub hung_since: Option<Timestamp>,
    /// What the last probe of it found, where that was wrong or slow.
    pub probe: Option<Probed>,
    /// When it was last read.
    pub last_seen: Option<Timestamp>,
    /// Whether its agent was heard within two ticks, and did not say that it was taken out.
    pub is_expected: bool,
}

/// Everything that is wrong with it, in the order of [`Kind`].
pub fn findings(gpu: &Gpu<'_>) -> Vec<Finding> {
    let mut found = xid::findings(gpu);
    found.extend(memory(gpu));
    found.extend(throttled(gpu));
    found.extend(apart(gpu));
    found.extend(links::findings(gpu));
    found.extend(absent(gpu));
    found.extend(
        gpu.probe
            .filter(|it| gpu.healed_at.is_none_or(|at| at < it.at))
            .map(probed),
    );
    found.sort_by_key(|it| it.kind);
    found
}

fn over(kind: Kind, action: Action, reading: f64, limit: f64) -> Finding {
    let since = None;
    Finding {
        kind,
        action,
        since,
        reading,
        limit,
    }
}

fn memory(gpu: &Gpu<'_>) -> Vec<Finding> {
    let per_hour = |count: u64| count as f64 / gpu.hours;
    let uncorrectable = gpu.ecc_uncorrectable.filter(|it| *it > 0);
    let often = gpu.ecc_correctable.map(per_hour);
    let limit = gpu.by.corrected_per_hour;
    let often = often.filter(|it| gpu.hours > 0.0 && *it > limit);
    let is = |known: Option<bool>| known == Some(true);
    let rows = [
        uncorrectable.map(|it| {
            over(
                Kind::EccUncorrectable,
                Action::DrainAndReset,
                it as f64,
                0.0,
            )
        }),
        often.map(|it| over(Kind::EccRate, Action::Watch, it, limit)),
        is(gpu.has_remap_failure).then(|| over(Kind::RemapFailed, Action::Replace, 1.0, 0.0)),
        is(gpu.has_remap_pending)
            .then(|| over(Kind::RemapPending, Action::DrainAndReset, 1.0, 0.0)),
    ];
    rows.into_iter().flatten().collect()
}

fn throttled(gpu: &Gpu<'_>) -> Vec<Finding> {
    let slow = |cause: Cause, part: Option<f64>, limit: f64| {
        let part = part.filter(|it| *it > limit)?;
        Some(over(
            Kind::Throttled(cause),
            Action::CheckCoolingOrPower,
            part,
            limit,
        ))
    };
    let (throttled, capped) = (gpu.by.throttled_part, gpu.by.capped_part);
    let alone = gpu.like_cap_part.is_some_and(|it| it < capped / 4.0);
    let heat = slow(Cause::Heat, gpu.heat_part, throttled);
    let brake = slow(Cause::HardwareBrake, gpu.brake_part, throttled);
    let limit = gpu.by.slowdowns_per_minute;
    let often = gpu.slowdowns_per_minute.filter(|it| *it > limit);
    // Heat and brake are the hardware's slowdowns with a cause: they are not told twice. The power cap is the driver's.
    let often = often.filter(|_| heat.is_none() && brake.is_none());
    let hardware = Kind::Throttled(Cause::Hardware);
    let often = often.map(|it| over(hardware, Action::CheckCoolingOrPower, it, limit));
    let cap = slow(Cause::PowerCap, gpu.cap_part.filter(|_| alone), capped);
    [heat, brake, cap, often].into_iter().flatten().collect()
}

impl Usual {
    /// Of what like GPUs read; none of fewer than [`LEAST_LIKE`]. The values are reordered.
    pub fn of(like: &mut [f64]) -> Option<Self> {
        let is_enough = like.len() >= LEAST_LIKE;
        let middle = median(like).filter(|_| is_enough)?;
        let sigma = sigma_about(like, middle)?;
        Some(Self { middle, sigma })
    }

    /// How far from the middle one is apart.
    fn far(self, floor: f64) -> f64 {
        (OUTLIER_SIGMAS * self.sigma).max(floor)
    }
}

fn apart(gpu: &Gpu<'_>) -> Vec<Finding> {
    let hot = gpu.like_celsius.and_then(|usual| {
        let limit = usual.middle + usual.far(gpu.by.hotter_celsius);
        let own = gpu.temperature_celsius.filter(|own| *own > limit)?;
        Some(over(Kind::Hot, Action::CheckCoolingOrPower, own, limit))
    });
    let low = gpu.like_watts.and_then(|usual| {
        let limit = usual.middle - usual.far(usual.middle * gpu.by.weaker_part);
        let own = gpu.power_watts.filter(|own| *own < limit)?;
        let action = Action::CheckCoolingOrPower;
        Some(over(Kind::Underpowered, action, own, limit))
    });
    hot.into_iter().chain(low).collect()
}

fn probed(probe: Probed) -> Finding {
    let (kind, action) = match probe.is_wrong {
        true => (Kind::ProbeFailed(probe.sm), Action::DrainAndReset),
        false => (Kind::ProbeSlow, Action::Diagnose),
    };
    Finding {
        since: Some(probe.at),
        ..over(kind, action, 1.0, 0.0)
    }
}

fn absent(gpu: &Gpu<'_>) -> Vec<Finding> {
    let since = |kind: Kind, action: Action, since: Option<Timestamp>| {
        let since = since?;
        let seconds = gpu.now.0.saturating_sub(since.0) as f64 / 1e9;
        let since = Some(since);
        Some(Finding {
            since,
            ..over(kind, action, seconds, 0.0)
        })
    };
    let is_told = gpu.lost_since.is_some() || gpu.hung_since.is_some();
    let is_gone = |at: &Timestamp| gpu.is_expected && gpu.now.0.saturating_sub(at.0) > VANISHED_NS;
    let gone = gpu.last_seen.filter(is_gone).filter(|_| !is_told);
    let rows = [
        since(Kind::Lost, Action::DrainAndReboot, gpu.lost_since),
        since(Kind::DriverHung, Action::DrainAndReboot, gpu.hung_since),
        since(Kind::Vanished, Action::Diagnose, gone),
    ];
    rows.into_iter().flatten().collect()
}
