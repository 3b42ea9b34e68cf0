//! What would make a run faster: the adviser's word, with what it rests on and what it is worth. The page of a run and
//! the API say it alike.

use gpufleet_analysis::adviser::{
    Advice, Bottleneck, Knob, Profile, advise, in_collectives, together,
};
use gpufleet_telemetry::catalog::Unit;

use super::unexplained;
use crate::runs::Run;
use crate::words::incident::measured;
use crate::words::text::{self, SHOWN_CHARACTERS, money};

/// One advice in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Advised {
    /// As the adviser has it.
    pub advice: Advice,
    /// What limits the run.
    pub what: &'static str,
    /// What was measured.
    pub measured: String,
    /// The knob, today and proposed, and those that are changed with it.
    pub knobs: Vec<String>,
    /// By how much the run gains, or why nobody knows.
    pub gain: String,
    /// GPU-hours that do the same work no more, each day; none where the gain is not known.
    pub gpu_hours_per_day: Option<f64>,
    /// What they cost, nano-USD; none without a price, or these.
    pub nano_usd_per_day: Option<i64>,
    /// What that is worth.
    pub worth: String,
    /// How sure it is.
    pub confidence: &'static str,
}

/// All of it, and what following all of it would give.
#[derive(Debug, Clone, PartialEq)]
pub struct Advisory {
    /// What gains most first, last of what nobody knows what it gains.
    pub all: Vec<Advised>,
    /// How much faster the run is that follows all of those whose gain is known; none where these are not several.
    pub gain_together: Option<f64>,
    /// The same in words.
    pub together: Option<String>,
    /// What takes time and cannot be told apart: GPUs that stand still, communication that may be hidden.
    pub unexplained: Vec<String>,
}

/// The advice for a run, of which this is known; what it is worth is in this currency.
pub fn advisory(profile: &Profile, run: &Run, currency: &str) -> Advisory {
    let all = advise(profile);
    let known = all.iter().filter(|it| it.removed.is_ok()).count();
    let gain_together = (known > 1).then(|| together(&all));
    let beside = match known < all.len() {
        true => ", without what is unknown",
        false => "",
    };
    Advisory {
        all: all
            .into_iter()
            .map(|it| advised(it, profile, currency))
            .collect(),
        gain_together,
        together: gain_together.map(|it| factor(it) + beside),
        unexplained: [unexplained(profile, run), maybe_hidden(profile)]
            .into_iter()
            .flatten()
            .collect(),
    }
}

/// That it communicates for a part of its steps, where nothing says how much of that computing hides.
pub fn maybe_hidden(profile: &Profile) -> Option<String> {
    let share = text::quantity(Unit::Ratio, in_collectives(profile)?);
    Some(format!(
        "Its collectives run for {share} of a step. How much of that computing hides is not known: its GPUs do not tell \
         how many of their SMs are active, and it marks no phase of communication (run.phase(\"communication\"))."
    ))
}

/// A knob, today and proposed.
fn said(knob: &Knob) -> String {
    let today = knob.today.as_deref().unwrap_or("not told");
    let today = text::harmless(today, SHOWN_CHARACTERS);
    format!("{}: {today} → {}", knob.name, knob.proposed)
}

fn advised(advice: Advice, profile: &Profile, currency: &str) -> Advised {
    let of_a_day = 24.0 * profile.gpus as f64;
    let gpu_hours_per_day = advice.removed.ok().map(|it| of_a_day * it);
    let nano_usd_per_day = advice.nano_usd_per_day(profile);
    Advised {
        what: what(advice.bottleneck),
        measured: measured(&advice.measured),
        knobs: [&advice.knob]
            .into_iter()
            .chain(&advice.also)
            .map(said)
            .collect(),
        gain: match advice.gain() {
            Ok(gain) => factor(gain),
            Err(why) => format!("unknown: {why}"),
        },
        gpu_hours_per_day,
        nano_usd_per_day,
        worth: match (nano_usd_per_day, gpu_hours_per_day) {
            (Some(nano), _) => format!("{} a day", money(currency, nano)),
            (None, Some(hours)) => format!("{hours:.1} GPU-hours a day, without a price"),
            (None, None) => "unknown, as its gain is".to_owned(),
        },
        confidence: advice.confidence.name(),
        advice,
    }
}

fn factor(gain: f64) -> String {
    format!("{gain:.2} × as fast")
}

const fn what(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::DataWorkers => "It waits for data: too few workers load it",
        Bottleneck::DataCpu => "It waits for data: too few CPUs load it",
        Bottleneck::DataDisk => "It waits for data: the disk is slow",
        Bottleneck::DataNetwork => "It waits for data: the network storage is slow",
        Bottleneck::DataStorage => "It waits for data: its storage is slow",
        Bottleneck::DataUnknown => {
            "It waits for data: whether for want of workers or for its storage the node does not tell (no PSI)"
        }
        Bottleneck::DataNotPinned => "Its batches come from memory that is not pinned",
        Bottleneck::HostSync => "It waits for the host: synchronisations",
        Bottleneck::HostWork => "It waits for the host: what it does after a synchronisation",
        Bottleneck::Communication => "It waits for communication",
        Bottleneck::MemoryBandwidth => "The GPU's memory is the limit",
        Bottleneck::Launch => "Kernels are launched too slowly",
        Bottleneck::TensorCoresUnused => "The tensor cores are not used",
        Bottleneck::PipelineBubble => "Stages wait for the pipeline to fill",
        Bottleneck::Recomputation => "It computes again what memory could keep",
        Bottleneck::Checkpoint => "Checkpoints take its time",
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::adviser::{Gaps, Host, SetUp};

    use super::*;

    #[test]
    fn an_advice_says_the_knob_today_and_proposed_its_gain_and_its_worth() {
        let mut profile = Profile {
            gpus: 8,
            nano_usd_per_gpu_second: Some(1_000_000_000 / 3_600),
            step_s: 6.0,
            data_wait_s: Some(2.0),
            host: Host {
                cpu_busy: Some(0.3),
                cpus_per_rank: Some(26.0),
                is_limit_known: true,
                io_pressure: Some(0.01),
                ..Host::default()
            },
            set_up: SetUp {
                num_workers: Some(4),
                pin_memory: Some(false),
                ..SetUp::default()
            },
            ..Profile::default()
        };
        let told = advisory(&profile, &Run::default(), "USD");
        assert_eq!(told.all.len(), 1);
        let advice = &told.all[0];
        let pinned = "pin_memory: off → on, with copies that are non_blocking=True";
        assert_eq!(advice.knobs, ["num_workers: 4 → 6", pinned]);
        assert_eq!(
            (&*advice.gain, advice.confidence),
            ("1.46 × as fast", "high")
        );
        // 8 GPUs at a dollar an hour, of which 31 % are waited away.
        assert_eq!(advice.worth, "$60.17 a day");
        let euros = advisory(&profile, &Run::default(), "EUR");
        assert_eq!(euros.all[0].worth, "60.17 EUR a day");
        profile.nano_usd_per_gpu_second = None;
        let worth = &advisory(&profile, &Run::default(), "USD").all[0].worth;
        assert!(worth.contains("without a price"), "{worth}");
        // With workers enough nobody knows what is left to gain, whatever its GPUs cost.
        profile.nano_usd_per_gpu_second = Some(1_000_000_000 / 3_600);
        profile.set_up.num_workers = Some(26);
        let told = advisory(&profile, &Run::default(), "USD");
        let advice = &told.all[0];
        let cpus = "CPUs that a rank may use: 26 → 1.5 times as many, or transforms that cost less";
        assert_eq!(advice.knobs, [pinned, cpus]);
        assert_eq!(
            (advice.gpu_hours_per_day, advice.nano_usd_per_day),
            (None, None)
        );
        assert!(advice.gain.starts_with("unknown: "), "{}", advice.gain);
        assert_eq!(advice.worth, "unknown, as its gain is");
        profile.data_wait_s = None;
        assert!(
            advisory(&profile, &Run::default(), "USD").all.is_empty(),
            "nothing is advised from what is not known"
        );
    }

    #[test]
    fn an_advice_of_a_profile_says_of_which_steps_it_is_and_what_was_counted() {
        let mut profile = Profile {
            step_s: 1.0,
            data_wait_s: Some(0.0),
            gaps: Some(Gaps {
                first_step: 121,
                last_step: 123,
                launch: 0.22,
                kernels: 4_300.0,
                kernel_s: Some(3e-6),
                ..Gaps::default()
            }),
            ..Profile::default()
        };
        profile.gpu.engine = Some(0.78);
        let told = advisory(&profile, &Run::default(), "USD");
        assert_eq!((told.all.len(), told.unexplained.len()), (1, 0));
        assert_eq!(
            told.all[0].measured,
            "measured in a profile of steps 121 to 123: gaps between kernels 22 % (usual 0 %), kernels a step \
             4\u{202f}300, median kernel 3.0 µs"
        );
        profile.gaps = None;
        let told = advisory(&profile, &Run::default(), "USD");
        assert!(told.all.is_empty() && told.unexplained.len() == 1);
    }

    #[test]
    fn collectives_that_computing_may_hide_are_told_and_nothing_is_advised_of_them() {
        let mut profile = Profile {
            step_s: 1.0,
            data_wait_s: Some(0.0),
            in_collectives_s: Some(0.4),
            ..Profile::default()
        };
        let told = advisory(&profile, &Run::default(), "USD");
        assert!(told.all.is_empty());
        let [said] = &told.unexplained[..] else {
            panic!("{:?}", told.unexplained);
        };
        assert!(said.starts_with("Its collectives run for 40 % of a step."));
        profile.gpu.sm = Some(0.6);
        let told = advisory(&profile, &Run::default(), "USD");
        assert_eq!((told.all.len(), told.unexplained.len()), (1, 0));
        assert_eq!(told.all[0].what, "It waits for communication");
        assert_eq!(told.all[0].confidence, "low");
    }
}
