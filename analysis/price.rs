//! What a finding says of its price: the figures, what they are figures of, what they were reckoned by; or why
//! there are none.
//!
//! One rule for every detector: a finding names a [`Basis`], and the basis says what its figures are
//! ([`Figure`]). Only what is [`Figure::Lost`] is in sums of losses. GPU time that is at stake, that nobody can
//! account for, or that incidents lost which are told already is told beside, with its own word, because it
//! would be counted twice or is not gone. What was not measured is none, with the reason, and never 0.
//!
//! Of several places of one cause the figures add up where they are of one kind; a place without a figure beside
//! some that have one makes the sum the least that it can be ([`Price::is_least`]).

use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::lost::{Losing, Lost};

/// What the figures of a price are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// There are none.
    None,
    /// What incidents lost that are told already.
    Repeated,
    /// What would be lost.
    AtStake,
    /// GPU time that nobody can account for.
    Unobserved,
    /// What is lost.
    Lost,
}

impl Figure {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Repeated,
        Self::AtStake,
        Self::Unobserved,
        Self::Lost,
    ];

    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Repeated => "repeated",
            Self::AtStake => "at_stake",
            Self::Unobserved => "unobserved",
            Self::Lost => "lost",
        }
    }
}

macro_rules! bases {
    ($($(#[$doc:meta])* $name:ident: $figure:ident = $words:literal,)*) => {
        /// What a price is reckoned by, or why there is none.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Basis {
            $($(#[$doc])* $name,)*
        }

        impl Basis {
            /// Every basis.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What its figures are.
            pub const fn figure(self) -> Figure {
                match self {
                    $(Self::$name => Figure::$figure,)*
                }
            }

            /// What is reckoned, or why nothing is, in words that go on behind a colon.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }
        }
    };
}

bases! {
    /// A GPU that is lost, hung, vanished, wrong or waits for a reset.
    BrokenGpu: Lost = "all of the GPU's time, because nothing that it does counts",
    /// A run in which nothing goes on.
    RunStands: Lost = "all of the time of the run's GPUs, because none of them goes on",
    /// GPUs that are held and do no work.
    HeldUnused: Lost = "all of the time of the GPUs that are held and do no work",
    /// A GPU that is hardly used.
    PartUnused: Lost = "the part of the GPU that is not used",
    /// A GPU at a lower clock than like ones.
    LowerClock: Lost = "the part of its clock that it has less than like GPUs",
    /// GPUs that wait for one at a lower clock.
    LowerPace: Lost = "at most: the part of the clock that it has less, on all GPUs of its job that wait for it, shared with others that are as slow; what memory bounds is no slower for it",
    /// A rank that makes the others wait.
    LongerForRank: Lost = "what a step takes longer than it would without it, on all GPUs of the run",
    /// A run whose steps take longer.
    LongerThanBefore: Lost = "what a step takes longer than it did, on all GPUs of the run",
    /// A run whose steps take longer than those of others of its name.
    LongerThanRuns: Lost = "what a step takes longer than in the runs before it, on all GPUs of the run",
    /// A run whose collectives take longer.
    LongerCollectives: Lost = "what a step waits in collectives that it would not over a way as fast as the others, on all GPUs of the run",
    /// Steps whose result is worth nothing.
    WorthlessSteps: Lost = "all of the time of the run's GPUs, because what they compute with such numbers is worth nothing",
    /// Steps that the loss scaler threw away.
    SkippedSteps: Lost = "the part of the last 200 steps that were thrown away, on all GPUs of the run",
    /// Work that is in no checkpoint.
    SinceCheckpoint: AtStake = "what the run's GPUs did since its last checkpoint, which is lost if it fails now",
    /// Work that is in no checkpoint, of a run that tells of none.
    SinceStart: AtStake = "what the run's GPUs did since it began, which is lost if it fails now: it has told of no checkpoint",
    /// Work since a sign that it may be worth nothing.
    IfItFollows: AtStake = "what the run's GPUs did since it began, which is worth nothing if the loss stays high",
    /// GPUs of which nothing is known.
    NotObserved: Unobserved = "the time of its GPUs of which nobody can say what they did",
    /// What repeats.
    PastIncidents: Repeated = "what the incidents of the last 30 days have lost that it puts together, each of which tells its own; a day's average is its pace",
    /// What repeats, and was never measured.
    PastUnmeasured: None = "of none of the incidents that it puts together it was measured what they lost",
    /// The GPU goes on.
    GoesOn: None = "it goes on working, and a job that was ended by it tells what it lost itself",
    /// Nothing is lost yet.
    NotYet: None = "nothing is lost before it fails, and when it does is not known",
    /// Nothing to compare with.
    NoLikeClock: None = "no clock of it and of like GPUs was read that would say how much slower it is",
    /// No time of the probe's.
    NoProbeTime: None = "the probe says that it is slow, and what that takes of its jobs was not measured",
    /// A link that no run is known to wait for.
    NoRunWaits: None = "what the runs over it wait for it was not measured",
    /// A run without steps.
    NoSteps: None = "its run does not tell how long its steps and their waits take",
    /// A run without checkpoints.
    NoRunKnown: None = "no run is known there whose checkpoints would say how much is at stake",
    /// A process that ended.
    EndsProcess: None = "what the process had done that was ended was not measured; where it was a run's, that tells it",
    /// A wrong result.
    NotToBeTrusted: None = "which of its results are wrong nobody has measured",
    /// A machine that is short of something.
    HostWaits: None = "how long GPUs wait for it was not measured; a run that becomes slower for it tells that itself",
    /// A model server that is late.
    RequestsWait: None = "its requests are late, and no GPU time is known to be lost for it",
    /// A GPU that is not known any more.
    GpuUnknown: None = "the GPU is no longer among those that are known, so that its time has no measure",
    /// A model server whose GPUs are not told.
    NoGpusTold: None = "which GPUs the server has is not told",
    /// A reader without which all GPUs are known.
    GpusObserved: None = "all GPUs of the node are observed all the same, and what the missing readings would show is not known",
    /// A team that spends more than its budget.
    BudgetSpent: None = "the money went for GPU time that may all have done useful work; what of it is wasted other incidents and the page on cost say",
    /// Trouble of gpufleet itself.
    OwnTrouble: None = "it is gpufleet's own trouble: no GPU is known to lose time by it, and what is lost meanwhile may not be told",
    /// An incident that was written before there was a basis.
    #[default]
    NotRecorded: None = "it was written by a version that did not keep what its price was reckoned by",
}

/// What a finding says of its price at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// What it is reckoned by, or why there is none.
    pub basis: Basis,
    /// At what pace; nothing where there is no figure.
    pub losing: Losing,
    /// How much it is by now, of what is not added up from tick to tick: at stake, repeated.
    pub so_far: Lost,
    /// Whether a place that is in it has no figure.
    pub is_least: bool,
}

/// GPU time beside losses: at stake, unobserved, repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stake {
    /// At what pace it grows.
    pub losing: Losing,
    /// How much it is.
    pub so_far: Lost,
}

impl Price {
    /// So much is lost now, or unobserved.
    pub fn of(basis: Basis, losing: Losing) -> Self {
        debug_assert!(matches!(basis.figure(), Figure::Lost | Figure::Unobserved));
        Self {
            losing,
            ..Self::bare(basis)
        }
    }

    /// There is none, for this reason.
    pub fn none(reason: Basis) -> Self {
        debug_assert_eq!(reason.figure(), Figure::None);
        Self::bare(reason)
    }

    /// So much is lost now; or there is no figure, for this reason.
    pub fn measured(losing: Option<Losing>, basis: Basis, otherwise: Basis) -> Self {
        match losing {
            Some(losing) => Self::of(basis, losing),
            None => Self::none(otherwise),
        }
    }

    /// What all of these GPUs did since a moment, and do, is at stake.
    pub fn at_stake(basis: Basis, gpus: Losing, since: Timestamp, now: Timestamp) -> Self {
        debug_assert_eq!(basis.figure(), Figure::AtStake);
        let mut so_far = Lost::default();
        so_far.add(since, now, &gpus);
        Self {
            losing: gpus,
            so_far,
            ..Self::bare(basis)
        }
    }

    /// What these incidents have lost, each of which tells its own, within so long, nanoseconds. One that does not
    /// know what it has lost makes it the least; of none that knows there is no figure.
    pub fn repeated(incidents: impl IntoIterator<Item = Option<Lost>>, within_ns: i64) -> Self {
        let (mut sum, mut is_known, mut is_least) = (Lost::default(), false, false);
        for lost in incidents {
            match lost {
                Some(lost) => (is_known, _) = (true, sum.join(&lost)),
                None => is_least = true,
            }
        }
        if !is_known {
            return Self::none(Basis::PastUnmeasured);
        }
        Self {
            basis: Basis::PastIncidents,
            losing: sum.pace(within_ns),
            so_far: sum,
            is_least,
        }
    }

    fn bare(basis: Basis) -> Self {
        Self {
            basis,
            losing: Losing::default(),
            so_far: Lost::default(),
            is_least: false,
        }
    }

    /// What is lost by it now; nothing where its figures are of something else.
    pub fn lost(&self) -> Losing {
        match self.basis.figure() {
            Figure::Lost => self.losing,
            _ => Losing::default(),
        }
    }

    /// The one of two about the same place that says more.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let says = |it: &Self| (it.basis.figure(), it.losing.milli_gpus);
        if says(&other) > says(&self) {
            other
        } else {
            self
        }
    }

    /// Both together, of two places: figures of one kind add up.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let more = self.or(other);
        if self.basis.figure() != other.basis.figure() {
            // One of them has a figure at least, and the other adds nothing to it.
            return Self {
                is_least: true,
                ..more
            };
        }
        let mut so_far = self.so_far;
        so_far.join(&other.so_far);
        Self {
            basis: more.basis,
            losing: self.losing.and(&other.losing),
            so_far,
            is_least: self.is_least || other.is_least,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);
    const PRICE: Option<i64> = Some(3_000_000_000);

    #[test]
    fn every_basis_has_words_of_its_own_that_say_what_its_figures_are() {
        let mut words = BTreeSet::new();
        for basis in Basis::ALL {
            let said = basis.words();
            assert!(said.len() > 20 && !said.ends_with('.'), "{basis:?}: {said}");
            assert!(words.insert(said), "{basis:?} says what another says");
            let name = serde_json::to_string(basis).expect("it has a name");
            let read: Basis = serde_json::from_str(&name).expect("its name is read");
            assert_eq!(read, *basis);
            let is_loss = Price {
                losing: Losing::gpus(1, PRICE),
                ..Price::bare(*basis)
            }
            .lost();
            let is_lost = basis.figure() == Figure::Lost;
            assert_eq!(is_loss.milli_gpus > 0, is_lost, "{basis:?}");
        }
        for figure in Figure::ALL {
            let of = |it: &&Basis| it.figure() == figure;
            assert!(Basis::ALL.iter().any(|it| of(&it)), "{figure:?}");
        }
    }

    #[test]
    fn of_two_words_on_one_place_a_figure_says_more_than_none_and_more_than_less() {
        let none = Price::none(Basis::NoRunWaits);
        let some = Price::of(Basis::LongerCollectives, Losing::gpus(1, PRICE));
        let more = Price::of(Basis::BrokenGpu, Losing::gpus(8, PRICE));
        let zero = Price::of(Basis::LowerClock, Losing::gpus(0, PRICE));
        assert_eq!((none.or(some), some.or(none)), (some, some));
        assert_eq!((some.or(more), more.or(some)), (more, more));
        assert_eq!(
            (none.or(zero), zero.or(none)),
            (zero, zero),
            "0 was measured"
        );
    }

    #[test]
    fn places_add_up_and_one_without_a_figure_makes_it_the_least() {
        let one = Price::of(Basis::LowerClock, Losing::part(1, 0.25, PRICE));
        let both = one.and(one);
        assert_eq!((both.losing.milli_gpus, both.is_least), (500, false));
        let unknown = Price::none(Basis::NoLikeClock);
        for sum in [both.and(unknown), unknown.and(both)] {
            assert_eq!((sum.basis, sum.lost().milli_gpus), (Basis::LowerClock, 500));
            assert!(sum.is_least);
        }
        let neither = unknown.and(unknown);
        assert!(!neither.is_least, "it has no figure at all");
    }

    #[test]
    fn what_incidents_lost_is_told_again_with_its_pace_and_not_as_a_loss() {
        let mut hour = Lost::default();
        hour.add(
            NOW.shifted(-3_600_000_000_000),
            NOW,
            &Losing::gpus(1, PRICE),
        );
        let day_ns = 24 * 3_600_000_000_000;
        let price = Price::repeated([Some(hour), Some(hour), None], day_ns);
        assert_eq!((price.basis, price.is_least), (Basis::PastIncidents, true));
        assert_eq!(price.so_far.gpu_seconds(), 7_200.0);
        assert_eq!(price.losing.milli_gpus, 84, "two of 24 hours");
        assert_eq!(price.losing.nano_usd_per_gpu_second, PRICE);
        assert_eq!(price.lost(), Losing::default());
        let unknown = Price::repeated([None, None], day_ns);
        assert_eq!(unknown, Price::none(Basis::PastUnmeasured), "and not 0");
    }

    #[test]
    fn what_is_at_stake_is_no_loss_and_never_added_to_one() {
        let since = NOW.shifted(-3_600_000_000_000);
        let stake = Price::at_stake(Basis::SinceCheckpoint, Losing::gpus(8, PRICE), since, NOW);
        assert_eq!(stake.so_far.gpu_seconds(), 8.0 * 3_600.0);
        assert_eq!(stake.lost(), Losing::default());
        let lost = Price::of(Basis::BrokenGpu, Losing::gpus(1, PRICE));
        for sum in [stake.and(lost), lost.and(stake)] {
            assert_eq!((sum.lost().milli_gpus, sum.is_least), (1_000, true));
            assert_eq!(sum.so_far, Lost::default());
        }
        assert_eq!(stake.and(stake).so_far.gpu_seconds(), 16.0 * 3_600.0);
    }
}
