//! MFU and HFU of a run, each with its kind, what its FLOPs are by, and its peak, or the reason why there is none.
//!
//! HFU is taken, in this order, from FLOPs with recomputation that the ranks say; from MFU, where the run does its
//! whole forward pass again; else it is an estimate from the time in which tensor cores were active, and named one.
//!
//! FLOPs and their time are of the same steps: the last minute's, what lies between steps included; of a run whose steps
//! are not in memory, as in reports, all that its processes did. FLOPs are counted for a whole process: those of the
//! last minute are its part by tokens, else samples, else steps. Pure, over what the ranks said last.

use std::collections::BTreeSet;

use gpufleet_analysis::mfu::{self, Convention, FORWARD_AGAIN, Kind, Peak, Refused, Utilisation};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::gpu_specs::{DataType, Specs};
use gpufleet_telemetry::time::Timestamp;

use super::advice::set_up;
use super::card::Card;
use super::{Rank, Run, State};

/// Why there is no peak to hold it against.
const NO_TYPE: &str = "not said: the run does not say the type of its arithmetic";

/// The pair of the fingerprint by which a run states its peak: dense FLOPs a second of what one rank computes on.
const STATED_PEAK: &str = "peak_flops_per_second";

/// The pair of the fingerprint that says why its ranks tell no FLOPs: of a sharded model they are not always known.
const FLOPS_REFUSED: &str = "flops_refused";

/// Why there is no time to divide by.
const NO_STEP: &str = "not known: no step was told yet";

/// What is known of GPUs beside the run.
pub struct Gpus<'a> {
    /// The card of one.
    pub card: &'a dyn Fn(&str) -> Option<Card>,
    /// The share of time in which its tensor cores were active lately, 0 to 1.
    pub tensor: &'a dyn Fn(&str) -> Option<f64>,
}

/// HFU and where it comes from.
pub type Hfu = (Utilisation, Basis);

/// Where an HFU comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The ranks say their FLOPs with recomputation.
    Told,
    /// The run says that it does its forward pass again.
    Recomputed,
    /// The tensor cores' activity.
    Estimated,
}

impl Basis {
    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Recomputed => "recomputed",
            Self::Estimated => "estimated",
        }
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Told => "FLOPs with recomputation as the run gives them",
            Self::Recomputed => "4/3 of MFU: the forward pass is done again",
            Self::Estimated => {
                "an estimate: the time in which tensor cores were active, its upper bound"
            }
        }
    }
}

fn refused(refused: Refused) -> String {
    format!("refused: {refused}")
}

/// Why there is no share of a peak.
struct Missing {
    why: String,
    /// Whether a peak is all that lacks: then the run may state one.
    lacks_peak: bool,
}

impl Missing {
    fn peak(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            lacks_peak: true,
        }
    }

    /// With how to give what lacks, in words.
    fn with_way(self) -> String {
        match self.lacks_peak {
            true => format!("{}; gpufleet.init(peak_flops=…) gives its peak", self.why),
            false => self.why,
        }
    }
}

impl From<String> for Missing {
    fn from(why: String) -> Self {
        Self {
            why,
            lacks_peak: false,
        }
    }
}

impl From<&str> for Missing {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

/// FLOPs a second of ranks that say so many; none where one tells no time of steps.
fn a_second(told: &[(f64, &Rank)]) -> Option<f64> {
    let rates = told.iter().map(|(flops, rank)| {
        let (part, seconds) = rank.part_done_lately()?;
        Some(flops * part / seconds)
    });
    rates.sum()
}

impl Run {
    /// MFU of the ranks that say their FLOPs; `card` gives the card of a GPU.
    ///
    /// # Errors
    /// A sentence that says why there is none.
    pub fn mfu(
        &self,
        card: impl Fn(&str) -> Option<Card>,
        specs: &Specs,
    ) -> Result<Utilisation, String> {
        self.share(Kind::Mfu, training::MODEL_FLOPS, &card, specs)
            .map_err(Missing::with_way)
    }

    /// MFU of ranks of which `card` gives no card, against the peak that the run states itself; none where it states none.
    ///
    /// # Errors
    /// A sentence that says why there is none.
    pub fn mfu_of_stated_peak(
        &self,
        card: impl Fn(&str) -> Option<Card>,
    ) -> Option<Result<Utilisation, String>> {
        let stated = self.facts.fingerprint.get(STATED_PEAK)?.parse().ok()?;
        let told: Vec<_> = self.counted(training::MODEL_FLOPS).collect();
        let mut gpus = told.iter().map(|it| &*it.1.facts.gpu);
        if gpus.any(|it| !it.is_empty() && card(it).is_some()) {
            return None;
        }
        (!told.is_empty()).then(|| {
            let rate = a_second(&told).ok_or(NO_STEP)?;
            let data_type = DataType::parse(&self.facts.data_type).ok_or(NO_TYPE)?;
            let peak = Peak::stated(stated, data_type);
            let ranks = u32::try_from(told.len()).unwrap_or(u32::MAX);
            mfu::utilisation(Kind::Mfu, rate, ranks, &peak).map_err(refused)
        })
    }

    /// HFU and where it is from.
    ///
    /// # Errors
    /// A sentence that says why there is none.
    pub fn hfu(&self, gpus: &Gpus<'_>, specs: &Specs, now: Timestamp) -> Result<Hfu, String> {
        let model = self.mfu(gpus.card, specs);
        if self.says(training::HARDWARE_FLOPS) {
            let found = self.share(Kind::Hfu, training::HARDWARE_FLOPS, gpus.card, specs);
            let found = found.map_err(|it| it.why)?;
            return match model {
                Ok(model) if model.ratio > found.ratio => Err(format!(
                    "refused: its FLOPs with recomputation are {:.0} % of the model's, and cannot be fewer",
                    100.0 * found.ratio / model.ratio
                )),
                _ => Ok((found, Basis::Told)),
            };
        }
        let recomputes = set_up(&self.facts.fingerprint, &self.facts.data_type).recomputes_all;
        if let (Ok(model), Some(true)) = (&model, recomputes) {
            let rate = model.flops_per_second * FORWARD_AGAIN;
            let found = mfu::utilisation(Kind::Hfu, rate, 1, &model.peak).map_err(refused)?;
            return Ok((found, Basis::Recomputed));
        }
        if self.state(now) != State::Running {
            return Err(
                "not known: it does not run, and gives no FLOPs with recomputation".to_owned(),
            );
        }
        let named = self.gpus_computing();
        let active: Vec<f64> = named.iter().filter_map(|it| (gpus.tensor)(it)).collect();
        let mean = active.iter().sum::<f64>() / active.len() as f64;
        let otherwise = "not known: no GPU of the run tells how long its tensor cores are active";
        let mean = self.at_its_pace(Some(mean).filter(|it| it.is_finite()), otherwise, now)?;
        if mean <= 0.0 {
            // A moment without work, as while a checkpoint is saved, is no FLOPs that were told to be 0.
            return Err(
                "not told: the run gives no FLOPs with recomputation, and its tensor cores are not active now"
                    .to_owned(),
            );
        }
        let peak = self.peak(&named, gpus.card, specs);
        let peak = peak.map_err(|it| it.why)?;
        let found = mfu::estimated(mean, &peak).map_err(refused)?;
        match model {
            // Of other moments, or of few GPUs: it says less than what is known.
            Ok(model) if model.ratio > found.ratio => Err(
                "not known: what its tensor cores were seen to do is less than the model's FLOPs"
                    .to_owned(),
            ),
            _ => Ok((found, Basis::Estimated)),
        }
    }

    /// How the run's FLOPs were got, in words; none where it does not say.
    pub fn flops_by(&self) -> Option<String> {
        match self.facts.flops_source.as_str() {
            "explicit" => Some("FLOPs as the run gives them".to_owned()),
            "model_shape" => Some(format!("FLOPs by {}", Convention::Palm.name())),
            "measured" => Some("FLOPs counted in one step".to_owned()),
            _ => None,
        }
    }

    /// FLOPs of one step, mean over all of a process, of each rank that says any.
    pub(super) fn flops_of_step(&self, metric: Metric) -> impl Iterator<Item = f64> {
        self.counted(metric).filter_map(|(flops, rank)| {
            let steps = rank.facts.reading(training::STEPS.id)?;
            Some(flops / steps)
        })
    }

    /// FLOPs of all steps of its process, of each rank that says any.
    fn counted(&self, metric: Metric) -> impl Iterator<Item = (f64, &Rank)> {
        self.computing().filter_map(move |(_, rank)| {
            let told = |metric: Metric| rank.facts.reading(metric.id).filter(|it| *it > 0.0);
            told(training::STEPS)?;
            Some((told(metric)?, rank))
        })
    }

    fn says(&self, metric: Metric) -> bool {
        self.counted(metric).next().is_some()
    }

    fn share(
        &self,
        kind: Kind,
        metric: Metric,
        card: &dyn Fn(&str) -> Option<Card>,
        specs: &Specs,
    ) -> Result<Utilisation, Missing> {
        let told: Vec<_> = self.counted(metric).collect();
        let gpus: BTreeSet<&str> = told.iter().map(|it| &*it.1.facts.gpu).collect();
        if gpus.is_empty() {
            let why = self.facts.fingerprint.get(FLOPS_REFUSED);
            let why = why.map_or("not said: the run gives no FLOPs", String::as_str);
            return Err(why.into());
        }
        if let Some(why) = self.names_too_few_gpus() {
            return Err(why.into());
        }
        if gpus.contains("") {
            return Err(Missing::peak(
                "not known: a rank does not say on which GPU it computes",
            ));
        }
        let rate = a_second(&told).ok_or(NO_STEP)?;
        let peak = self.peak(&gpus, card, specs)?;
        let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        mfu::utilisation(kind, rate, count, &peak).map_err(|it| refused(it).into())
    }

    /// The dense peak of one of these GPUs for the run's type.
    fn peak(
        &self,
        gpus: &BTreeSet<&str>,
        card: &dyn Fn(&str) -> Option<Card>,
        specs: &Specs,
    ) -> Result<Peak, Missing> {
        let cards: Option<BTreeSet<Card>> = gpus.iter().map(|it| card(it)).collect();
        let cards = cards.ok_or_else(|| {
            Missing::peak("not known: a GPU of the run is not reported, so neither is its card")
        })?;
        if cards.iter().any(Card::is_part) {
            // Slices of compute are not the same part of its cores, and who takes turns has no peak of its own.
            return Err(Missing::peak(
                "not known: the run computes on a part of a card, of which no peak is known",
            ));
        }
        let cards: BTreeSet<String> = cards.into_iter().map(|it| it.model).collect();
        let mut cards = cards.into_iter();
        let (Some(card), None) = (cards.next(), cards.next()) else {
            return Err(
                "refused: the run computes on different cards, which have no one peak".into(),
            );
        };
        let data_type = DataType::parse(&self.facts.data_type).ok_or(NO_TYPE)?;
        let spec = specs.lookup(&card);
        let spec =
            spec.ok_or_else(|| Missing::peak(format!("refused: no peak is known for `{card}`")))?;
        Peak::of(spec, data_type).map_err(|it| refused(it).into())
    }
}

#[cfg(test)]
mod tests;
