//! Why the GPUs of a run stand still, as a profile told it, and what is said where none did.

use gpufleet_analysis::adviser::{self, Gaps, Profile};
use gpufleet_telemetry::catalog::{Metric, Unit, training};

use crate::runs::{Rank, Run};
use crate::words::text;

/// What is said where GPUs stand still, waiting for data does not explain it, and nobody had a profile taken.
pub fn unexplained(profile: &Profile) -> Option<String> {
    let share = text::quantity(Unit::Ratio, adviser::unexplained(profile)?);
    Some(format!(
        "The GPUs stand still for {share} of the time and waiting for data does not explain it: take a profile (gpufleet \
         profile) to learn whether synchronisations or launches do."
    ))
}

/// Why the GPU stood still in the newest profile of a living rank.
pub(super) fn of(run: &Run) -> Option<Gaps> {
    let told_by = |rank: &Rank| {
        let told = |metric: Metric| rank.facts.reading(metric.id);
        let before = told(training::PROFILE_STEP)?;
        Some(Gaps {
            first_step: before as u64 + 1,
            last_step: (before + told(training::PROFILE_STEPS)?) as u64,
            synchronisation: told(training::PROFILE_GAP_SYNCHRONISATION)?,
            launch: told(training::PROFILE_GAP_LAUNCH)?,
            synchronisations: told(training::PROFILE_SYNCHRONISATIONS)?,
            kernels: told(training::PROFILE_KERNELS)?,
            kernel_s: told(training::PROFILE_KERNEL_TIME),
        })
    };
    let all = run.living().filter_map(|(_, rank)| told_by(rank));
    all.max_by_key(|it| it.last_step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_profile_of_a_rank_says_why_gpus_stand_still_and_without_one_that_they_do() {
        let mut run = Run::default();
        for number in 0..3 {
            run.ranks.entry(number).or_default();
        }
        assert_eq!(of(&run), None);
        for (number, step) in [(1, 120.0), (2, 80.0)] {
            let told = [
                (training::PROFILE_STEP, step),
                (training::PROFILE_STEPS, 3.0),
                (training::PROFILE_GAP_DATA, 0.1),
                (training::PROFILE_GAP_SYNCHRONISATION, 0.2),
                (training::PROFILE_GAP_LAUNCH, 0.05),
                (training::PROFILE_SYNCHRONISATIONS, 12.0),
                (training::PROFILE_KERNELS, 4_300.0),
            ];
            let facts = &mut run.ranks.get_mut(&number).expect("it is there").facts;
            facts.readings = told.map(|(metric, it)| (metric.id, it)).into();
        }
        let newest = Gaps {
            first_step: 121,
            last_step: 123,
            synchronisation: 0.2,
            launch: 0.05,
            synchronisations: 12.0,
            kernels: 4_300.0,
            kernel_s: None,
        };
        assert_eq!(of(&run), Some(newest));
        let mut profile = Profile {
            step_s: 1.0,
            data_wait_s: Some(0.05),
            gaps: Some(newest),
            ..Profile::default()
        };
        profile.gpu.engine = Some(0.73);
        assert_eq!(unexplained(&profile), None, "it was taken");
        profile.gaps = None;
        let said = unexplained(&profile).expect("they stand still");
        assert!(said.contains("stand still for 22 % of the time"), "{said}");
        profile.gpu.engine = Some(0.94);
        assert_eq!(unexplained(&profile), None, "too little to look for");
    }
}
