//! How a run scales, held against a smaller run of the same job's name.
//!
//! Tokens a second where both say them; else steps a second, which holds only where a step is the same
//! work. Limits: the last [`LOOKED_AT`] runs of the name.

use gpufleet_analysis::scaling::{self, Efficiency, Measured, Scaling};

use super::{Run, RunKey};
use crate::store::{RunFilter, Store, StoreError};

/// Runs of a name that are looked through for a smaller one.
const LOOKED_AT: usize = 100;

/// How far two runs' tokens a step may differ and be the same batch.
const SAME_BATCH: f64 = 0.01;

/// The efficiency of a run.
///
/// # Errors
/// When the database refuses.
pub async fn of(store: &Store, (key, run): (&RunKey, &Run)) -> Result<Efficiency, StoreError> {
    let filter = RunFilter {
        cluster: Some(key.cluster.clone()),
        name_of: Some(key.run.job.clone()),
        ..RunFilter::default()
    };
    let (known, _) = store.runs(&filter, None, LOOKED_AT).await?;
    let size = |run: &Run| u32::try_from(run.gpu_count()).unwrap_or(u32::MAX);
    let own = size(run);
    let smaller = known.into_iter().filter(|it| it.key != *key);
    let smaller = smaller.filter(|it| it.facts.world > 0 && it.facts.world < own);
    let reference = match smaller.min_by_key(|it| it.facts.world) {
        Some(found) => store.run(&found.key).await?.map(Run::of_store),
        None => None,
    };
    Ok(efficiency(
        (own, run),
        reference.as_ref().map(|it| (size(it), it)),
    ))
}

fn efficiency((own, run): (u32, &Run), reference: Option<(u32, &Run)>) -> Efficiency {
    let measured = |gpus, throughput| Measured { gpus, throughput };
    let steps = |run: &Run| run.step_seconds().map(|it| 1.0 / it);
    let none = measured(own, 0.0);
    let Some((other, reference)) = reference else {
        return scaling::efficiency(none, &[], Scaling::Strong);
    };
    let per_step = |run: &Run| Some(run.tokens_per_second()? / steps(run)?);
    match (run.tokens_per_second(), reference.tokens_per_second()) {
        (Some(mine), Some(theirs)) => {
            let batches = per_step(run).zip(per_step(reference));
            let is_same = batches.is_some_and(|(a, b)| (a / b - 1.0).abs() < SAME_BATCH);
            let kind = if is_same {
                Scaling::Strong
            } else {
                Scaling::Weak
            };
            scaling::efficiency(measured(own, mine), &[measured(other, theirs)], kind)
        }
        _ => match steps(run).zip(steps(reference)) {
            Some((mine, theirs)) => {
                let theirs = [measured(other, theirs)];
                scaling::efficiency(measured(own, mine), &theirs, Scaling::Strong)
            }
            None => scaling::efficiency(none, &[], Scaling::Strong),
        },
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::training;

    use super::*;
    use crate::runs::fixture;

    /// A run of so many ranks, one GPU each, of this many tokens and seconds a step.
    fn run(ranks: u32, tokens: f64, seconds: f64) -> Run {
        let mut run = Run::default();
        for number in 0..ranks {
            let told = [
                (training::STEPS, 100.0),
                (training::STEP_WALL, 100.0 * seconds),
                (training::TOKENS, 100.0 * tokens / f64::from(ranks)),
            ];
            let mut rank = fixture::rank(&format!("GPU-{number}"), &told);
            rank.facts.readings.retain(|it| it.1 > 0.0);
            run.ranks.insert(number, rank);
        }
        run
    }

    #[test]
    fn a_run_is_held_against_the_smaller_one_by_its_tokens_or_its_steps() {
        let check = |mine: Run, theirs: Run, expected: (f64, Scaling)| match efficiency(
            (16, &mine),
            Some((8, &theirs)),
        ) {
            Efficiency::Own { ratio, scaling, .. } => {
                assert!((ratio - expected.0).abs() < 1e-9, "{ratio}");
                assert_eq!(scaling, expected.1);
            }
            other => panic!("{other:?}"),
        };
        let small = run(8, 8_000.0, 1.0);
        check(
            run(16, 8_000.0, 0.625),
            small.clone(),
            (0.8, Scaling::Strong),
        );
        check(run(16, 16_000.0, 1.25), small.clone(), (0.8, Scaling::Weak));
        check(run(16, 0.0, 0.625), small.clone(), (0.8, Scaling::Strong));
        let alone = efficiency((16, &small), None);
        assert!(matches!(alone, Efficiency::Published(_)), "{alone:?}");
    }
}
