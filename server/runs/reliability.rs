//! How often a job is interrupted and how long it is down then, over its attempts.
//!
//! Down is from the end of an attempt to when the next one came up.

use gpufleet_analysis::ending::{Exposure, Interruption, Reliability, Where, reliability};

use super::attempts::Attempts;

/// The figures of a job.
pub fn of(attempts: &Attempts) -> Reliability {
    let mut attempts: Vec<_> = attempts.all().iter().collect();
    attempts.sort_by_key(|it| it.key.run.attempt);
    let (mut interruptions, mut exposures) = (Vec::new(), Vec::new());
    for (place, attempt) in attempts.iter().enumerate() {
        let facts = &attempt.facts;
        let until = facts.ended.unwrap_or(facts.heard);
        if let Some(started) = facts.started {
            let run_ns = until.since(started).max(0).unsigned_abs();
            exposures.push(Exposure {
                place: Where::default(),
                run_ns,
                gpu_ns: u128::from(run_ns) * u128::from(facts.world),
            });
        }
        let cause = facts.ending.as_ref().and_then(|it| it.cause());
        if let (Some(cause), Some(at)) = (cause, facts.ended) {
            // Its processes may have begun before the last of this one was gone.
            let mut later = attempts[place + 1..].iter();
            interruptions.push(Interruption {
                cause,
                place: Where::default(),
                at,
                recovered_at: later.find_map(|it| Some(it.facts.started?.max(at))),
            });
        }
    }
    let all = reliability(&interruptions, &exposures).remove("all");
    all.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ending::Cause;
    use gpufleet_telemetry::time::Timestamp;
    use gpufleet_telemetry::training::RankId;

    use super::*;
    use crate::runs::facts::EndingFacts;
    use crate::runs::{KnownRun, RunFacts, RunKey};

    fn attempt(number: u32, from: i64, to: i64, cause: Option<Cause>) -> KnownRun {
        let at = |hours: i64| Timestamp::from_seconds(1_790_000_000 + hours * 3_600);
        let id = RankId::parse(&format!("team/llama/u1/{number}/0")).expect("an id");
        KnownRun {
            key: RunKey::of(&"c".into(), &id),
            facts: RunFacts {
                started: Some(at(from)),
                heard: at(to),
                ended: cause.map(|_| at(to)),
                ending: cause.map(|it| EndingFacts {
                    cause: it.name().to_owned(),
                    ..EndingFacts::default()
                }),
                world: 8,
                ..RunFacts::default()
            },
            ranks: Vec::new(),
            is_part: false,
        }
    }

    #[test]
    fn a_job_that_broke_off_twice_is_down_until_it_comes_up_again() {
        let interrupted = Cause::ALL.into_iter().find(|it| it.is_interruption());
        let wanted = Cause::ALL.into_iter().find(|it| !it.is_interruption());
        let found = of(&vec![
            attempt(2, 16, 19, None),
            attempt(0, 0, 4, interrupted),
            attempt(1, 5, 13, interrupted),
        ]
        .into());
        let hours = |ns: Option<f64>| ns.map(|it| it / 3.6e12);
        assert_eq!(found.interruptions, 2);
        assert_eq!(
            (hours(found.mtbf_ns), hours(found.mttr_ns)),
            (Some(7.5), Some(2.0))
        );
        let overlap = of(&vec![attempt(0, 0, 4, interrupted), attempt(1, 3, 9, None)].into());
        assert_eq!(hours(overlap.mttr_ns), Some(0.0), "it was back at once");
        let found = of(&vec![attempt(0, 0, 4, wanted)].into());
        assert_eq!((found.interruptions, found.mtbf_ns), (0, None));
    }
}
