//! Last attempts of jobs: which of the runs that are named are.

use std::collections::HashMap;

use super::Store;
use super::error::StoreError;
use super::runs::{named, read};
use crate::runs::{KnownRun, RunKey};

/// What is so of a run `r` that is the last attempt of its job.
pub(super) const IS_LAST: &str = "AND NOT EXISTS (SELECT 1 FROM run n WHERE n.lease = r.lease
     AND n.cluster = r.cluster AND n.job = r.job AND n.attempt > r.attempt)";

impl Store {
    /// Those of these runs that are known and the last attempts of their jobs, without their ranks, in the order in
    /// which they are named.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn last_attempts(&self, keys: &[RunKey]) -> Result<Vec<KnownRun>, StoreError> {
        let mut transaction = self.read().await?;
        let rows = named(&mut transaction, &self.0.lease, keys, IS_LAST).await?;
        drop(transaction);
        let (mut bad, mut found) = (Vec::new(), HashMap::with_capacity(rows.len()));
        for row in &rows {
            found.extend(read(row, &mut bad)?.map(|(_, run)| (run.key.clone(), run)));
        }
        self.set_aside(&bad).await?;
        Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
    }
}
