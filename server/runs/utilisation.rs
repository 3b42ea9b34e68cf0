//! MFU and HFU of a run, each with its kind, what its FLOPs are by, and its peak, or the reason why there is none.
//!
//! HFU is taken, in this order, from FLOPs with recomputation that the ranks say; from MFU, where the run does its
//! whole forward pass again; else it is an estimate from the time in which tensor cores were active, and named one.
//! Pure, over what the ranks said last.

use std::collections::BTreeSet;

use gpufleet_analysis::mfu::{self, Convention, FORWARD_AGAIN, Kind, Peak, Refused, Utilisation};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::gpu_specs::{DataType, Specs};
use gpufleet_telemetry::time::Timestamp;

use super::advice::set_up;
use super::card::Card;
use super::{Run, State};

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
        let (mut flops, mut ranks) = (0.0, 0);
        for (of_step, gpu) in self.flops(training::MODEL_FLOPS) {
            if !gpu.is_empty() && card(gpu).is_some() {
                return None;
            }
            flops += of_step;
            ranks += 1;
        }
        (ranks > 0).then(|| {
            let seconds = self.step_seconds().ok_or(NO_STEP)?;
            let data_type = DataType::parse(&self.facts.data_type).ok_or(NO_TYPE)?;
            let peak = Peak::stated(stated, data_type);
            mfu::utilisation(Kind::Mfu, flops / seconds, ranks, &peak).map_err(refused)
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
        let named = self.gpus();
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

    /// FLOPs of one step, of each rank that says any, with the GPU that it names.
    pub(super) fn flops(&self, metric: Metric) -> impl Iterator<Item = (f64, &str)> {
        self.members().filter_map(move |(_, rank)| {
            let told = |metric: Metric| rank.facts.reading(metric.id);
            let (flops, steps) = (told(metric)?, told(training::STEPS)?);
            let is_said = flops > 0.0 && steps > 0.0;
            is_said.then_some((flops / steps, &*rank.facts.gpu))
        })
    }

    fn says(&self, metric: Metric) -> bool {
        self.flops(metric).next().is_some()
    }

    fn share(
        &self,
        kind: Kind,
        metric: Metric,
        card: &dyn Fn(&str) -> Option<Card>,
        specs: &Specs,
    ) -> Result<Utilisation, Missing> {
        let flops: f64 = self.flops(metric).map(|it| it.0).sum();
        let gpus: BTreeSet<&str> = self.flops(metric).map(|it| it.1).collect();
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
        let seconds = self.step_seconds();
        let seconds = seconds.ok_or(NO_STEP)?;
        let peak = self.peak(&gpus, card, specs)?;
        let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        mfu::utilisation(kind, flops / seconds, count, &peak).map_err(|it| refused(it).into())
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
mod tests {
    use super::super::Rank;
    use super::*;

    const CARD: &str = "NVIDIA H100 80GB HBM3";
    const PEAK: f64 = 989.4e12;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_790_000_400)
    }

    /// A run of one rank that takes a second a step and says these FLOPs of each.
    fn run(told: &[(Metric, f64)]) -> Run {
        let steps = [(training::STEPS, 10.0), (training::STEP_WALL, 10.0)];
        let flops = told.iter().map(|(metric, it)| (*metric, it * 10.0));
        let readings = steps.into_iter().chain(flops);
        let mut rank = Rank::default();
        rank.facts.gpu = "GPU-a".into();
        rank.facts.heard = now();
        rank.facts.readings = readings.map(|(metric, it)| (metric.id, it)).collect();
        rank.facts.readings.sort_by_key(|it| it.0);
        let mut run = Run::default();
        run.ranks.insert(0, rank);
        run.facts.data_type = "bf16".to_owned();
        run
    }

    fn hfu(run: &Run, tensor: Option<f64>) -> Result<(f64, Kind, Basis), String> {
        let gpus = Gpus {
            card: &|_| Some(Card::whole(CARD)),
            tensor: &|_| tensor,
        };
        let found = run.hfu(&gpus, &Specs::default(), now())?;
        Ok((found.0.ratio, found.0.kind, found.1))
    }

    /// The share that comes out, of which kind and by what.
    fn check(run: &Run, tensor: Option<f64>, ratio: f64, kind: Kind, basis: Basis) {
        let found = hfu(run, tensor).expect("there is one");
        assert!((found.0 / ratio - 1.0).abs() < 1e-6, "{found:?}");
        assert_eq!((found.1, found.2), (kind, basis));
    }

    fn recomputing(mut run: Run) -> Run {
        let pair = ("gradient_checkpointing".to_owned(), "True".to_owned());
        run.facts.fingerprint.extend([pair]);
        run
    }

    #[test]
    fn hfu_is_what_is_told_else_by_recomputation_else_an_estimate_that_is_named_one() {
        let model = (training::MODEL_FLOPS, 0.3 * PEAK);
        let told = run(&[model, (training::HARDWARE_FLOPS, 0.36 * PEAK)]);
        check(&told, Some(0.5), 0.36, Kind::Hfu, Basis::Told);
        check(&recomputing(told), Some(0.5), 0.36, Kind::Hfu, Basis::Told);
        let by_model = recomputing(run(&[model]));
        check(&by_model, Some(0.5), 0.4, Kind::Hfu, Basis::Recomputed);
        for run in [run(&[model]), run(&[]), recomputing(run(&[]))] {
            check(&run, Some(0.5), 0.5, Kind::Estimate, Basis::Estimated);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_is_not_told_is_a_reason() {
        let model = (training::MODEL_FLOPS, 0.3 * PEAK);
        let fewer = run(&[model, (training::HARDWARE_FLOPS, 0.15 * PEAK)]);
        let too_much = recomputing(run(&[(training::MODEL_FLOPS, 0.8 * PEAK)]));
        let mut no_type = run(&[]);
        no_type.facts.data_type.clear();
        let mut over = run(&[]);
        over.ranks.get_mut(&0).expect("a rank").facts.heard = Timestamp(0);
        for (run, tensor, words) in [
            (&fewer, None, "50 % of the model's"),
            (&too_much, None, "107 %"),
            (&run(&[]), Some(1.5), "150 %"),
            (&run(&[]), Some(0.0), "not told"),
            (&run(&[]), None, "tensor cores"),
            (&no_type, Some(0.5), "the type of its arithmetic"),
            (&over, Some(0.5), "it does not run"),
        ] {
            let why = hfu(run, tensor).expect_err(words);
            assert!(why.contains(words), "{words}: {why}");
        }
    }

    #[test]
    fn a_run_on_what_is_in_no_table_is_held_against_the_peak_that_it_states() {
        let mut run = run(&[(training::MODEL_FLOPS, 3e9)]);
        let no_card = |_: &str| None;
        assert_eq!(run.mfu_of_stated_peak(no_card), None, "it states none");
        let states = |run: &mut Run, peak: &str| {
            let pair = (STATED_PEAK.to_owned(), peak.to_owned());
            run.facts.fingerprint.extend([pair]);
        };
        states(&mut run, "60000000000.0");
        let known = |_: &str| Some(Card::whole(CARD));
        assert_eq!(
            run.mfu_of_stated_peak(known),
            None,
            "the table knows better"
        );
        let found = run.mfu_of_stated_peak(no_card).expect("it states one");
        let found = found.expect("it is below it");
        assert!((found.ratio - 0.05).abs() < 1e-6, "{found:?}");
        assert!(found.peak.is_stated);
        for (peak, words) in [("1e9", "300 % of the run's bf16 peak"), ("0", "above 0")] {
            states(&mut run, peak);
            let why = run.mfu_of_stated_peak(no_card).expect("it states one");
            let why = why.expect_err("it cannot be");
            assert!(why.contains(words), "{words}: {why}");
        }
        states(&mut run, "much");
        assert_eq!(run.mfu_of_stated_peak(no_card), None, "that is no number");
    }

    #[test]
    fn a_run_on_a_part_of_a_card_is_not_held_against_all_of_it() {
        let run = run(&[(training::MODEL_FLOPS, 0.05 * PEAK)]);
        for part in [Some((1, 7)), None] {
            let card = |_: &str| {
                Some(Card {
                    part,
                    ..Card::whole(CARD)
                })
            };
            let why = run.mfu(card, &Specs::default()).expect_err("of what?");
            assert!(why.contains("a part of a card"), "{why}");
            assert!(why.contains("peak_flops"), "it may be stated: {why}");
        }
        let all = |_: &str| Some(Card::whole(CARD));
        assert!(run.mfu(all, &Specs::default()).is_ok());
    }

    #[test]
    fn where_nothing_lacks_but_a_peak_the_way_to_give_one_is_told() {
        let mut run = run(&[(training::MODEL_FLOPS, 3e9)]);
        let no_card = |_: &str| None;
        let in_no_table = |_: &str| Some(Card::whole("Mystery 9000"));
        let why = |run: &Run, card: &dyn Fn(&str) -> Option<Card>| {
            run.mfu(card, &Specs::default())
                .expect_err("it has no peak")
        };
        let way = "; gpufleet.init(peak_flops=…) gives its peak";
        for (card, words) in [
            (&no_card as &dyn Fn(&str) -> Option<Card>, "is not reported"),
            (&in_no_table, "`Mystery 9000`"),
        ] {
            let why = why(&run, card);
            assert!(why.contains(words) && why.ends_with(way), "{why}");
        }
        let gpu = &mut run.ranks.get_mut(&0).expect("a rank").facts.gpu;
        *gpu = "".into();
        assert!(why(&run, &no_card).ends_with(way));
        run.ranks = Default::default();
        assert!(!why(&run, &no_card).contains("peak_flops"));
    }

    #[test]
    fn a_run_that_tells_no_flops_says_why_where_it_knows() {
        let why = |run: &Run| {
            let card = |_: &str| Some(Card::whole(CARD));
            run.mfu(card, &Specs::default()).err()
        };
        let pair = (FLOPS_REFUSED.to_owned(), "not known: a stage".to_owned());
        let mut silent = run(&[]);
        assert_eq!(
            why(&silent).as_deref(),
            Some("not said: the run gives no FLOPs")
        );
        silent.facts.fingerprint.extend([pair.clone()]);
        assert_eq!(why(&silent).as_deref(), Some("not known: a stage"));
        let mut told = run(&[(training::MODEL_FLOPS, 0.3 * PEAK)]);
        told.facts.fingerprint.extend([pair]);
        assert_eq!(why(&told), None, "it was told since");
    }

    #[test]
    fn the_work_of_several_gpus_is_not_held_against_the_one_that_is_named() {
        let mut run = run(&[(training::MODEL_FLOPS, 0.2 * PEAK)]);
        for (gpus, is_known) in [("1", true), ("4", false)] {
            let pair = ("gpus_per_process".to_owned(), gpus.to_owned());
            run.facts.fingerprint.extend([pair]);
            let found = run.mfu(|_| Some(Card::whole(CARD)), &Specs::default());
            assert_eq!(found.is_ok(), is_known, "{gpus}: {found:?}");
        }
    }

    #[test]
    fn how_flops_were_got_is_told_by_its_convention() {
        let mut run = run(&[]);
        assert_eq!(run.flops_by(), None);
        for (source, words) in [
            ("model_shape", "6N + 12·L·H·Q·T"),
            ("explicit", "the run gives"),
            ("measured", "counted"),
        ] {
            source.clone_into(&mut run.facts.flops_source);
            let told = run.flops_by().expect("it is said");
            assert!(told.contains(words), "{told}");
        }
    }
}
