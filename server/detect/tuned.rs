//! The thresholds that statistical detectors judge by, as the config has them: one table of keys, each with its
//! range and its place.
//!
//! What a threshold means, and why its default is what it is, stands in its detector's file in `analysis`; the key's
//! documentation in [`super::DetectConfig`] says what it does and its range, which a test holds against the table.
//!
//! Limits: a value outside its range is refused by name, so that no file turns a detector into noise or off by a
//! slip of the hand; of a family [`MOST_OPEN_TICKS`] ticks at most.

use std::collections::BTreeMap;

use gpufleet_analysis::incident::Family;
use gpufleet_analysis::{
    hang, health, leak, loss, offender, port, regression, slow_link, straggler, wrong_network,
};

use super::DetectConfig;

/// An incident may wait for this many ticks in a row at most: an hour.
pub const MOST_OPEN_TICKS: u32 = 360;

/// What the detectors judge by.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tuned {
    /// See [`straggler`].
    pub straggler: straggler::Thresholds,
    /// See [`hang`].
    pub hang: hang::Thresholds,
    /// See [`regression`].
    pub slower: regression::Thresholds,
    /// See [`loss`].
    pub loss: loss::Thresholds,
    /// See [`leak`].
    pub leak: leak::Thresholds,
    /// See [`health`].
    pub health: health::Thresholds,
    /// See [`slow_link`].
    pub link: slow_link::Thresholds,
    /// See [`port`].
    pub port: port::Thresholds,
    /// See [`wrong_network`].
    pub way: wrong_network::Thresholds,
    /// See [`offender`].
    pub offender: offender::Thresholds,
}

/// One key of the section `detect`.
#[derive(Debug)]
pub struct Threshold {
    /// Its name.
    pub key: &'static str,
    /// What it may be.
    pub range: std::ops::RangeInclusive<f64>,
    /// What it is.
    value: fn(&DetectConfig) -> f64,
    /// Where it goes.
    place: fn(&mut Tuned) -> &mut f64,
}

/// A threshold of the config that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("detect.{0}")]
pub struct ThresholdError(String);

macro_rules! thresholds {
    ($($key:ident in $least:literal to $most:literal is $detector:ident.$field:ident;)+) => {
        /// Every threshold that is a number of its own.
        pub const THRESHOLDS: &[Threshold] = &[$(Threshold {
            key: stringify!($key),
            range: $least..=$most,
            value: |config| config.$key,
            place: |tuned| &mut tuned.$detector.$field,
        }),+];
    };
}

thresholds! {
    straggler_ratio in 1.01 to 3.0 is straggler.ratio;
    straggler_z in 2.0 to 50.0 is straggler.z;
    hang_after_s in 30.0 to 86_400.0 is hang.after_s;
    hang_gaps in 3.0 to 1_000.0 is hang.gaps;
    first_step_after_s in 300.0 to 86_400.0 is hang.first_step_s;
    slower_by in 0.005 to 1.0 is slower.change;
    loss_sigmas in 3.0 to 100.0 is loss.sigmas;
    loss_steps in 1.0 to 199.0 is loss.steps;
    loss_not_finite_steps in 1.0 to 200.0 is loss.not_finite_steps;
    loss_stuck_steps in 10.0 to 10_000.0 is loss.stuck_steps;
    leak_z in 1.65 to 10.0 is leak.z;
    leak_tau in 0.2 to 0.95 is leak.tau;
    leak_growth in 0.005 to 0.5 is leak.growth;
    leak_third in 0.0 to 0.9 is leak.third;
    leak_jump in 0.05 to 1.0 is leak.jump;
    throttled_part in 0.005 to 1.0 is health.throttled_part;
    capped_part in 0.02 to 1.0 is health.capped_part;
    slowdowns_per_minute in 0.4 to 5.0 is health.slowdowns_per_minute;
    ecc_corrected_per_hour in 1.0 to 100_000.0 is health.corrected_per_hour;
    hotter_by_celsius in 1.0 to 60.0 is health.hotter_celsius;
    weaker_by in 0.05 to 0.9 is health.weaker_part;
    slow_link_part in 0.3 to 0.95 is link.part;
    slow_port_part in 0.3 to 0.99 is port.slow_part;
    port_errors_per_second in 0.01 to 10_000.0 is port.errors;
    wrong_network_bytes in 1_000_000.0 to 10_000_000_000.0 is way.bytes;
    wrong_network_silent_part in 0.001 to 0.5 is way.silent_part;
    wrong_network_nodes_part in 0.25 to 1.0 is way.nodes_part;
    offender_card_faults in 2.0 to 100.0 is offender.card_faults;
    offender_node_faults in 2.0 to 100.0 is offender.node_faults;
    offender_part_times in 1.5 to 20.0 is offender.part_times;
}

impl Tuned {
    /// As the config says, which was checked.
    pub fn of(config: &DetectConfig) -> Self {
        let mut tuned = Self::default();
        for it in THRESHOLDS {
            *(it.place)(&mut tuned) = (it.value)(config);
        }
        tuned
    }
}

/// Ticks in a row that open an incident, as the config says, which was checked.
pub fn open_after(config: &DetectConfig) -> BTreeMap<Family, u32> {
    let ticks = config.open_after_ticks.iter();
    ticks
        .filter_map(|(family, ticks)| Some((Family::parse(family)?, *ticks)))
        .collect()
}

/// Refuses what is no threshold.
///
/// # Errors
/// With the first that is none: its key, its value and what it may be.
pub fn check(config: &DetectConfig) -> Result<(), ThresholdError> {
    for it in THRESHOLDS {
        let (value, range) = ((it.value)(config), &it.range);
        if !range.contains(&value) {
            let (key, least, most) = (it.key, range.start(), range.end());
            return Err(ThresholdError(format!(
                "{key} = {value}: must be a number from {least} to {most}"
            )));
        }
    }
    for (family, ticks) in &config.open_after_ticks {
        let key = format!("open_after_ticks: {family:?} = {ticks}");
        if Family::parse(family).is_none() {
            let all = Family::ALL.map(Family::name).join(", ");
            return Err(ThresholdError(format!(
                "{key}: there is no such kind of incident; these are: {all}"
            )));
        }
        if !(1..=MOST_OPEN_TICKS).contains(ticks) {
            return Err(ThresholdError(format!(
                "{key}: must be from 1 to {MOST_OPEN_TICKS} ticks of 10 s"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpufleet_program::config::Section as _;

    use super::*;

    #[test]
    fn without_a_word_the_detectors_judge_by_their_own_thresholds() {
        assert_eq!(Tuned::of(&DetectConfig::default()), Tuned::default());
        assert_eq!(check(&DetectConfig::default()), Ok(()));
    }

    #[test]
    fn each_key_has_a_place_of_its_own_and_its_documentation_says_its_range() {
        let mut places = std::collections::BTreeSet::new();
        for it in THRESHOLDS {
            let mut tuned = Tuned::default();
            *(it.place)(&mut tuned) = -1.0;
            assert!(places.insert(format!("{tuned:?}")), "{}", it.key);
            let documented = DetectConfig::FIELDS.iter().find(|known| known.0 == it.key);
            let (_, about) = documented.expect("a key of the section");
            let about = about.join("");
            let range = format!("{} to {}", it.range.start(), it.range.end());
            assert!(about.contains(&range), "{}: {range} not in:{about}", it.key);
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_key_value_and_range() {
        let said = |change: &dyn Fn(&mut DetectConfig)| {
            let mut config = DetectConfig::default();
            change(&mut config);
            let error = check(&config).expect_err("it is refused");
            error.to_string()
        };
        assert_eq!(
            said(&|it| it.straggler_ratio = 0.9),
            "detect.straggler_ratio = 0.9: must be a number from 1.01 to 3"
        );
        assert!(said(&|it| it.hang_after_s = f64::NAN).contains("hang_after_s = NaN"));
        let ticks = |family: &str, ticks: u32| {
            said(&|it| it.open_after_ticks = BTreeMap::from([(family.to_owned(), ticks)]))
        };
        let none = ticks("slow", 3);
        assert!(
            none.contains("\"slow\" = 3") && none.contains("straggler"),
            "{none}"
        );
        assert!(
            ticks("link", 0).contains("from 1 to 360"),
            "{}",
            ticks("link", 0)
        );
    }
}
