//! The attempts of a job, read once for all that is made of them: goodput, cost, how often it breaks off.
//!
//! Limits: the last [`MAX_ATTEMPTS`]; where there are more than [`MAX_ADDED_UP`], those before one are not added up to
//! it, which is a reason and not a smaller sum.

use super::{KnownRun, RunKey};
use crate::store::{RunFilter, Store, StoreError};

/// Most attempts that are looked at.
const MAX_ATTEMPTS: usize = 1_000;

/// Most attempts that are added up: the steps of each are read.
const MAX_ADDED_UP: usize = 16;

/// What the store knows of the attempts of a job, without their ranks, the last started first.
#[derive(Debug, Default)]
pub struct Attempts(Vec<KnownRun>);

impl Attempts {
    /// Those of the job that a run is an attempt of.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn of(store: &Store, key: &RunKey) -> Result<Self, StoreError> {
        let filter = RunFilter {
            cluster: Some(key.cluster.clone()),
            job: Some(key.run.job.clone()),
            ..RunFilter::default()
        };
        let (known, _) = store.runs(&filter, None, MAX_ATTEMPTS).await?;
        Ok(Self(known))
    }

    /// All that are looked at.
    pub fn all(&self) -> &[KnownRun] {
        &self.0
    }

    /// Those before this one.
    ///
    /// # Errors
    /// A sentence that says that there are too many.
    pub fn before(&self, attempt: u32) -> Result<impl Iterator<Item = &KnownRun>, &'static str> {
        if self.0.len() > MAX_ADDED_UP {
            return Err("not added up: the job has more attempts than are looked at");
        }
        let is_before = move |it: &&KnownRun| it.key.run.attempt < attempt;
        Ok(self.0.iter().filter(is_before))
    }
}

#[cfg(test)]
impl From<Vec<KnownRun>> for Attempts {
    fn from(known: Vec<KnownRun>) -> Self {
        Self(known)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::RankId;

    use super::*;
    use crate::runs::RunFacts;

    #[test]
    fn those_before_one_are_told_unless_there_are_too_many() {
        let known = |number: usize| KnownRun {
            key: RunKey::of(
                &"c".into(),
                &RankId::parse(&format!("team/llama/u1/{number}/0")).expect("an id"),
            ),
            facts: RunFacts::default(),
            ranks: Vec::new(),
            is_part: false,
        };
        let before = |of: usize, attempt: u32| {
            let attempts = Attempts((0..of).rev().map(known).collect());
            let numbers = attempts.before(attempt);
            numbers.map(|all| all.map(|it| it.key.run.attempt).collect::<Vec<_>>())
        };
        assert_eq!(before(4, 2), Ok(vec![1, 0]));
        assert_eq!(before(MAX_ADDED_UP, 1), Ok(vec![0]));
        assert!(before(MAX_ADDED_UP + 1, 1).is_err());
    }
}
