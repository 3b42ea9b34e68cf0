//! Whether a holder could do with fewer or smaller GPUs, by what was measured of those that it has, and the money.
//!
//! Method. Of each GPU that was looked at: the peak and the 95th percentile of the memory in use, and the 95th
//! percentile of how busy tensor cores and the memory's bandwidth were, over ten-minute stretches in which the
//! holder had it. Of the GPUs of a holder the greatest counts.
//!
//! - A smaller card fits when the *peak* of memory is at most [`FILL`] of its memory (a job that runs out of memory
//!   once in twenty stretches is no saving), and what tensor cores and bandwidth did at the 95th percentile
//!   is at most [`BUSY`] of what the card can do at best. In place of several cards with NVLink none without it
//!   is proposed: how much they say to one another is not looked at.
//! - Fewer of the same card fit when as many do as hold all that memory within [`FILL`] and do all that work
//!   within [`BUSY`]: of a job that copies its model to each GPU that is more than it needs, never less.
//!
//! Of all that fit the one that saves most is proposed, if it saves at least [`LEAST_SAVED`] of the cost.
//!
//! Numbers. Memory in bytes, shares 0 to 1, money in nano-units a day (integers).
//!
//! Limits. Nothing is proposed from what was not measured: without memory and tensor cores (or of a card whose
//! figures are not known) there is a reason instead. Bandwidth that is not told lowers the confidence.
//! Under [`LEAST_HOURS`] nothing is said. What a card does beside tensor cores (fp64, video) is not looked at; nor
//! whether the code runs on it. Source of the cards' figures: `gpu_specs/peaks.csv`; of prices: the price book.

/// Most of a card's memory that may be full at the peak: the driver and fragments take some.
pub const FILL: f64 = 0.90;

/// Most of what a card can do that may be done at the 95th percentile: kernels reach 70 to 87 % of a peak.
pub const BUSY: f64 = 0.70;

/// The least that is worth a change: a tenth of the cost.
pub const LEAST_SAVED: (i128, i128) = (1, 10);

/// The least that must have been measured, hours: a day has a night.
pub const LEAST_HOURS: f64 = 24.0;

/// So much is a week's habit, hours.
const SURE_HOURS: f64 = 72.0;

/// What was measured of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// For how long, hours.
    pub hours: f64,
    /// The most memory that was in use, bytes.
    pub memory_peak: Option<f64>,
    /// Memory in use, 95th percentile.
    pub memory_p95: Option<f64>,
    /// Tensor cores, 95th percentile.
    pub tensor_p95: Option<f64>,
    /// The memory's bandwidth, 95th percentile.
    pub dram_p95: Option<f64>,
}

/// A card and what one of them costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Its memory, bytes.
    pub memory: f64,
    /// Operations a second of its tensor cores at best.
    pub flops: f64,
    /// Bandwidth of its memory, bytes a second; none when not known.
    pub bandwidth: Option<f64>,
    /// Whether it speaks to others by NVLink.
    pub has_links: bool,
    /// What one costs a day with its part of the machine, nano-units.
    pub day_cost: i128,
}

/// A holder.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// How many GPUs it has.
    pub gpus: u32,
    /// Of those that were looked at what was measured.
    pub measured: Vec<Measured>,
    /// What they are.
    pub card: Card,
}

/// How sure a proposal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Part of its GPUs, or without the memory's bandwidth.
    Low,
    /// Less than three days.
    Medium,
    /// All of its GPUs, three days or more.
    High,
}

/// What would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// How many GPUs.
    pub gpus: u32,
    /// Of which card.
    pub card: String,
    /// What that saves a day, nano-units.
    pub saved_per_day: i128,
    /// What was measured: the greatest of all GPUs.
    pub measured: Measured,
    /// How sure it is.
    pub confidence: Confidence,
}

/// Why nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Silent {
    /// Not for long enough.
    #[error("held for less than a day of the last seven")]
    TooShort,
    /// Less of it would cost the same.
    #[error("its machines are committed to: less of them costs the same")]
    Committed,
    /// Nobody told its memory.
    #[error("no reading of the memory in use")]
    NoMemory,
    /// Nobody told its tensor cores.
    #[error("no reading of how busy tensor cores are")]
    NoTensor,
    /// It is as it should be.
    #[error("it uses what it has")]
    Fits,
}

impl Confidence {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// The value below which 95 of 100 of these lie; none of none.
pub fn p95(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|it| it.is_finite());
    values.sort_by(f64::total_cmp);
    let place = (values.len() * 95).div_ceil(100).checked_sub(1)?;
    values.get(place).copied()
}

impl Measured {
    /// The greatest of each; hours are the least. None where a GPU lacks what another has.
    fn worst(all: &[Self]) -> Self {
        let most = |of: fn(&Self) -> Option<f64>| {
            let all: Option<Vec<f64>> = all.iter().map(of).collect();
            all?.into_iter().reduce(f64::max)
        };
        Self {
            hours: all
                .iter()
                .map(|it| it.hours)
                .reduce(f64::min)
                .unwrap_or(0.0),
            memory_peak: most(|it| it.memory_peak),
            memory_p95: most(|it| it.memory_p95),
            tensor_p95: most(|it| it.tensor_p95),
            dram_p95: most(|it| it.dram_p95),
        }
    }
}

/// What would do for a holder, of these cards or of its own.
///
/// # Errors
/// Why nothing is proposed.
pub fn right_size(held: &Held, cards: &[Card]) -> Result<Proposal, Silent> {
    let measured = Measured::worst(&held.measured);
    if measured.hours < LEAST_HOURS {
        return Err(Silent::TooShort);
    }
    let memory = measured.memory_peak.ok_or(Silent::NoMemory)?;
    let tensor = measured.tensor_p95.ok_or(Silent::NoTensor)?;
    let (own, count) = (&held.card, i128::from(held.gpus));
    let today = own.day_cost * count;
    let fewer = {
        let share = (memory / (FILL * own.memory)).max(tensor / BUSY);
        let share = measured.dram_p95.map_or(share, |it| share.max(it / BUSY));
        ((share * f64::from(held.gpus)).ceil() as u32).clamp(1, held.gpus)
    };
    let fits = |card: &&Card| {
        let bandwidth = match (measured.dram_p95, own.bandwidth, card.bandwidth) {
            (Some(busy), Some(own), Some(its)) => busy * own <= BUSY * its,
            (Some(_), _, _) => false,
            (None, _, _) => true,
        };
        let links = held.gpus == 1 || !own.has_links || card.has_links;
        let work = tensor * own.flops <= BUSY * card.flops && bandwidth;
        memory <= FILL * card.memory && work && links
    };
    // Its own card in a cheaper machine is no smaller card: what that saves is the host's.
    let smaller = cards.iter().filter(|it| it.name != own.name).filter(fits);
    let others = smaller.map(|it| (held.gpus, it.name.as_str(), it.day_cost * count));
    let same = (fewer, own.name.as_str(), own.day_cost * i128::from(fewer));
    let cheapest = others.chain([same]).min_by_key(|it| it.2).unwrap_or(same);
    let (gpus, card, cost) = cheapest;
    let saved = today - cost;
    if saved <= 0 || saved * LEAST_SAVED.1 < today * LEAST_SAVED.0 {
        return Err(Silent::Fits);
    }
    let is_whole = held.measured.len() >= held.gpus as usize && measured.dram_p95.is_some();
    Ok(Proposal {
        gpus,
        card: card.to_owned(),
        saved_per_day: saved,
        measured,
        confidence: match (is_whole, measured.hours >= SURE_HOURS) {
            (false, _) => Confidence::Low,
            (true, false) => Confidence::Medium,
            (true, true) => Confidence::High,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: f64 = 1e9;
    const USD: i128 = 1_000_000_000;

    fn card(name: &str, memory: f64, tflops: f64, bandwidth: f64, day: i128) -> Card {
        Card {
            name: name.to_owned(),
            memory: memory * GB,
            flops: tflops * 1e12,
            bandwidth: Some(bandwidth * GB),
            has_links: false,
            day_cost: day * USD,
        }
    }

    fn h100() -> Card {
        card("h100", 80.0, 989.0, 3350.0, 240)
    }

    fn l4() -> Card {
        card("l4", 24.0, 121.0, 300.0, 20)
    }

    fn a100() -> Card {
        card("a100", 40.0, 312.0, 1555.0, 90)
    }

    /// Eight H100s of which each had so many GB in use and was so busy.
    fn held(memory: f64, tensor: f64, dram: f64) -> Held {
        let measured = Measured {
            hours: 100.0,
            memory_peak: Some(memory * GB),
            memory_p95: Some(memory * GB * 0.9),
            tensor_p95: Some(tensor),
            dram_p95: Some(dram),
        };
        Held {
            gpus: 8,
            measured: vec![measured; 8],
            card: h100(),
        }
    }

    #[test]
    fn the_cheapest_card_that_holds_its_peak_and_does_its_work_is_proposed() {
        let found = right_size(&held(20.0, 0.05, 0.05), &[a100(), l4(), h100()]).expect("one");
        assert_eq!((found.gpus, found.card.as_str()), (8, "l4"));
        assert_eq!(found.saved_per_day, 8 * 220 * USD);
        assert_eq!(found.confidence, Confidence::High);
    }

    #[test]
    fn memory_at_its_peak_tensor_cores_and_bandwidth_each_rule_a_card_out() {
        let proposed = |memory, tensor, dram| {
            right_size(&held(memory, tensor, dram), &[l4()]).map(|it| (it.gpus, it.card))
        };
        // Fewer of the same are always looked at: here as many as the busiest of the three wants.
        assert_eq!(
            proposed(22.0, 0.05, 0.05),
            Ok((3, "h100".to_owned())),
            "22 of 24 GB are too full"
        );
        assert_eq!(
            proposed(10.0, 0.15, 0.05),
            Ok((2, "h100".to_owned())),
            "148 TFLOPS"
        );
        assert_eq!(
            proposed(10.0, 0.05, 0.10),
            Ok((2, "h100".to_owned())),
            "335 GB/s"
        );
        assert_eq!(proposed(75.0, 0.05, 0.05), Err(Silent::Fits), "it is full");
        assert_eq!(proposed(10.0, 0.69, 0.05), Err(Silent::Fits), "it is busy");
    }

    #[test]
    fn its_own_card_in_a_cheaper_machine_is_no_smaller_card() {
        let busy = held(60.0, 0.65, 0.05);
        let mut cheaper = h100();
        cheaper.day_cost = 100 * USD;
        assert_eq!(right_size(&busy, &[cheaper]), Err(Silent::Fits));
    }

    #[test]
    fn several_cards_that_speak_by_nvlink_are_not_replaced_by_ones_that_can_not() {
        let mut linked = held(20.0, 0.05, 0.05);
        linked.card.has_links = true;
        let found = right_size(&linked, &[l4()]).expect("fewer of its own");
        assert_eq!((found.gpus, found.card.as_str()), (3, "h100"));
        linked.gpus = 1;
        linked.measured.truncate(1);
        let found = right_size(&linked, &[l4()]).expect("one alone speaks to none");
        assert_eq!((found.gpus, found.card.as_str()), (1, "l4"));
    }

    #[test]
    fn what_was_not_measured_proposes_nothing_and_says_why() {
        let mut short = held(1.0, 0.01, 0.01);
        short.measured[3].hours = 23.0;
        assert_eq!(right_size(&short, &[l4()]), Err(Silent::TooShort));
        let mut blind = held(1.0, 0.01, 0.01);
        blind.measured[7].tensor_p95 = None;
        assert_eq!(
            right_size(&blind, &[l4()]),
            Err(Silent::NoTensor),
            "one of eight is not seen"
        );
        blind.measured[7].memory_peak = None;
        assert_eq!(right_size(&blind, &[l4()]), Err(Silent::NoMemory));
        let mut none = held(1.0, 0.01, 0.01);
        none.measured.clear();
        assert_eq!(right_size(&none, &[l4()]), Err(Silent::TooShort));
    }

    #[test]
    fn less_than_all_makes_it_less_sure_and_less_than_a_tenth_is_no_proposal() {
        let mut some = held(20.0, 0.05, 0.05);
        some.measured.truncate(4);
        let confidence = |held: &Held| right_size(held, &[l4()]).map(|it| it.confidence);
        assert_eq!(confidence(&some), Ok(Confidence::Low));
        let mut days = held(20.0, 0.05, 0.05);
        days.measured.iter_mut().for_each(|it| it.hours = 30.0);
        assert_eq!(confidence(&days), Ok(Confidence::Medium));
        days.measured.iter_mut().for_each(|it| it.dram_p95 = None);
        assert_eq!(confidence(&days), Ok(Confidence::Low));
        let almost = card("almost", 80.0, 989.0, 3350.0, 220);
        assert_eq!(
            right_size(&held(70.0, 0.6, 0.5), &[almost]),
            Err(Silent::Fits)
        );
    }

    #[test]
    fn the_95th_of_100_is_the_95th_and_of_one_it_is_that_one() {
        assert_eq!(p95((1..=100).map(f64::from).collect()), Some(95.0));
        assert_eq!(p95(vec![7.0]), Some(7.0));
        assert_eq!(p95((1..=20).map(f64::from).collect()), Some(19.0));
        assert_eq!(p95(vec![f64::NAN]), None);
    }
}
