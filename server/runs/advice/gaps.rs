//! Why the GPUs of a run stand still, as a profile told it, and what is said where none did.

use gpufleet_analysis::adviser::{self, Gaps, Profile};
use gpufleet_telemetry::catalog::{Metric, Unit, training};

use crate::runs::{Rank, Run};
use crate::words::text;

/// What is said where GPUs stand still, waiting for data does not explain it, and no profile says what does.
pub fn unexplained(profile: &Profile, run: &Run) -> Option<String> {
    let share = text::quantity(Unit::Ratio, adviser::unexplained(profile)?);
    let why = untold(run).unwrap_or_else(|| {
        "take a profile (gpufleet profile) to learn whether synchronisations or launches do"
            .to_owned()
    });
    Some(format!(
        "The GPUs stand still for {share} of the time and waiting for data does not explain it: {why}."
    ))
}

/// Why the newest profile of a living rank that told no gaps told none.
fn untold(run: &Run) -> Option<String> {
    let all = run.living().filter_map(|(_, rank)| {
        let why = rank.facts.reading(training::PROFILE_UNTOLD.id)?;
        Some((steps(rank)?, why as u64))
    });
    let ((first, last), why) = all.max_by_key(|((_, last), _)| *last)?;
    let why = match why {
        1 => "had too many events to say why, take one with gpufleet profile --steps 1",
        2 => {
            "could not be looked through, as this version of PyTorch tells its events otherwise: look at its file"
        }
        3 => "shows no work of the GPU in them or the step before, take another while it trains",
        _ => "does not say why",
    };
    Some(format!("the profile of steps {first} to {last} {why}"))
}

/// The first and the last step of the newest profile of a rank.
fn steps(rank: &Rank) -> Option<(u64, u64)> {
    let told = |metric: Metric| Some(rank.facts.reading(metric.id)? as u64);
    let before = told(training::PROFILE_STEP)?;
    let last = before.saturating_add(told(training::PROFILE_STEPS)?);
    Some((before.saturating_add(1), last))
}

/// Why the GPU stood still in the newest profile of a living rank.
pub(super) fn of(run: &Run) -> Option<Gaps> {
    let told_by = |rank: &Rank| {
        let told = |metric: Metric| rank.facts.reading(metric.id);
        let (first_step, last_step) = steps(rank)?;
        Some(Gaps {
            first_step,
            last_step,
            data: told(training::PROFILE_GAP_DATA)?,
            synchronisation: told(training::PROFILE_GAP_SYNCHRONISATION)?,
            host: told(training::PROFILE_GAP_HOST)?,
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
                (training::PROFILE_GAP_HOST, 0.07),
            ];
            let facts = &mut run.ranks.get_mut(&number).expect("it is there").facts;
            facts.readings = told.map(|(metric, it)| (metric.id, it)).into();
        }
        let newest = Gaps {
            first_step: 121,
            last_step: 123,
            data: 0.1,
            synchronisation: 0.2,
            host: 0.07,
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
        assert_eq!(unexplained(&profile, &run), None, "it was taken");
        profile.gaps = None;
        let said = unexplained(&profile, &run).expect("they stand still");
        assert!(said.contains("stand still for 22 % of the time"), "{said}");
        profile.gpu.engine = Some(0.94);
        assert_eq!(unexplained(&profile, &run), None, "too little to look for");
    }

    #[test]
    fn a_profile_that_told_no_gaps_says_why_and_not_that_one_is_to_be_taken() {
        let mut run = Run::default();
        let mut profile = Profile {
            step_s: 1.0,
            data_wait_s: Some(0.0),
            ..Profile::default()
        };
        profile.gpu.engine = Some(0.7);
        let said = unexplained(&profile, &run).expect("they stand still");
        assert!(said.contains("take a profile"), "{said}");
        for (why, step, expected) in [
            (1.0, 120.0, "of steps 121 to 123 had too many events"),
            (
                2.0,
                120.0,
                "of steps 121 to 123 could not be looked through",
            ),
            (3.0, 120.0, "of steps 121 to 123 shows no work of the GPU"),
            (9.0, 1e300, "does not say why"),
        ] {
            let told = [
                (training::PROFILE_STEP, step),
                (training::PROFILE_STEPS, 3.0),
                (training::PROFILE_UNTOLD, why),
            ];
            let facts = &mut run.ranks.entry(0).or_default().facts;
            facts.readings = told.map(|(metric, it)| (metric.id, it)).into();
            assert_eq!(of(&run), None);
            let said = unexplained(&profile, &run).expect("they stand still");
            assert!(said.contains(expected), "{said}");
            assert!(!said.contains("take a profile"), "{said}");
        }
    }
}
