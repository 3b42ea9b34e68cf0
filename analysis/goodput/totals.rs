//! Goodput of one attempt by its totals alone: what is left to know when its steps are no longer kept.
//!
//! Method. The process says how many steps it did, how long they took together, how long it waited for data and
//! stood still in them, stood for checkpoints, started up. Steps that a failure lost count at the mean step; time of
//! steps less what training stood still in them, less these and their share of the wait is productive. The categories
//! are given out in the order of the parent, so none counts twice and they add up to the attempt's time.
//!
//! Limits. Where the first step was slow (compilation) that is not told apart from the steps; time between
//! attempts is of no attempt; of an attempt of several processes the totals of one are not the whole. So this is
//! coarser than the partition by steps, and at most a little kinder.

use super::{Category, Goodput, Span};

/// What the process that stands for an attempt says of its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// How long the attempt held its GPUs, nanoseconds.
    pub held_ns: u64,
    /// Steps that it did.
    pub steps: u64,
    /// How long they took, their wait for data included.
    pub wall_ns: u64,
    /// How long of that was waiting for data.
    pub data_wait_ns: u64,
    /// How long of it training stood still, for checkpoints and evaluations.
    pub stood_ns: u64,
    /// Steps that its end lost.
    pub steps_lost: u64,
    /// From its start to its first step.
    pub startup_ns: u64,
    /// Standing for checkpoints, in steps and outside of them.
    pub checkpoint_save_ns: u64,
    /// Going back to one.
    pub checkpoint_restore_ns: u64,
    /// Evaluation, in steps and outside of them, and phases that the script named.
    pub custom_ns: u64,
}

/// The partition of an attempt's time; none of one without time or steps.
pub fn of_totals(totals: &Totals) -> Option<Goodput> {
    if totals.held_ns == 0 || totals.steps == 0 {
        return None;
    }
    let lost = totals.steps_lost.min(totals.steps);
    let kept = totals.steps - lost;
    let part = |whole: u64, steps: u64| {
        let product = u128::from(whole) * u128::from(steps) / u128::from(totals.steps);
        u64::try_from(product).unwrap_or(u64::MAX)
    };
    let trained = totals.wall_ns.saturating_sub(totals.stood_ns);
    let data = part(totals.data_wait_ns.min(trained), kept);
    let mut goodput = Goodput {
        steps: kept,
        steps_wasted: lost,
        ..Goodput::default()
    };
    let mut span = Span {
        left: totals.held_ns,
        goodput: &mut goodput,
    };
    let restore = totals.checkpoint_restore_ns;
    span.give(Category::Productive, part(trained, kept) - data);
    span.give(Category::DataLoading, data);
    span.give(Category::WastedProgress, part(trained, lost));
    span.give(Category::CheckpointRestore, restore);
    span.give(
        Category::Initialisation,
        totals.startup_ns.saturating_sub(restore),
    );
    span.give(Category::CheckpointSave, totals.checkpoint_save_ns);
    span.give(Category::Custom, totals.custom_ns);
    span.give(Category::Other, u64::MAX);
    Some(goodput)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn totals() -> Totals {
        Totals {
            held_ns: 1_000 * SECOND,
            steps: 100,
            wall_ns: 800 * SECOND,
            data_wait_ns: 80 * SECOND,
            stood_ns: 0,
            steps_lost: 25,
            startup_ns: 60 * SECOND,
            checkpoint_save_ns: 30 * SECOND,
            checkpoint_restore_ns: 20 * SECOND,
            custom_ns: 50 * SECOND,
        }
    }

    #[test]
    fn the_time_of_an_attempt_is_parted_without_a_rest_by_its_totals() {
        let found = of_totals(&totals()).expect("it has steps");
        let seconds = |category| found.of(category) / SECOND;
        assert_eq!(found.total(), 1_000 * SECOND);
        for (category, expected) in [
            (Category::Productive, 540),
            (Category::DataLoading, 60),
            (Category::WastedProgress, 200),
            (Category::CheckpointRestore, 20),
            (Category::Initialisation, 40),
            (Category::CheckpointSave, 30),
            (Category::Custom, 50),
            (Category::Other, 60),
        ] {
            assert_eq!(seconds(category), expected, "{}", category.name());
        }
        assert_eq!(found.ratio(), Some(0.54));
        assert_eq!((found.steps, found.steps_wasted), (75, 25));
    }

    #[test]
    fn checkpoints_and_evaluations_in_steps_are_not_productive() {
        let inside = Totals {
            stood_ns: 80 * SECOND,
            ..totals()
        };
        let found = of_totals(&inside).expect("it has steps");
        let seconds = |category| found.of(category) / SECOND;
        assert_eq!(found.total(), 1_000 * SECOND);
        for (category, expected) in [
            (Category::Productive, 480),
            (Category::DataLoading, 60),
            (Category::WastedProgress, 180),
            (Category::CheckpointSave, 30),
            (Category::Custom, 50),
            (Category::Other, 140),
        ] {
            assert_eq!(seconds(category), expected, "{}", category.name());
        }
    }

    #[test]
    fn totals_that_contradict_each_other_never_make_more_than_the_time_there_was() {
        let wild = Totals {
            wall_ns: 5_000 * SECOND,
            data_wait_ns: 9_000 * SECOND,
            stood_ns: 700 * SECOND,
            steps_lost: 400,
            ..totals()
        };
        let found = of_totals(&wild).expect("it has steps");
        assert_eq!(found.total(), 1_000 * SECOND);
        assert_eq!(found.of(Category::Productive), 0, "all was lost");
        assert_eq!(
            of_totals(&Totals {
                steps: 0,
                ..totals()
            }),
            None
        );
        assert_eq!(
            of_totals(&Totals {
                held_ns: 0,
                ..totals()
            }),
            None
        );
    }
}
