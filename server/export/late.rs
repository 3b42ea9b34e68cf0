//! What comes for minutes that were pushed already: they are not pushed again, so it is counted.

use super::push::Pushed;
use crate::commit::CommitTo;
use crate::store::CommitError;
use crate::store::model::{Commit, Committed};

/// Where commits go, with a look at what of them comes too late for the ways on which minutes are pushed.
pub struct Watched<'a, T> {
    /// Where they go.
    pub to: &'a T,
    /// The ways.
    pub ways: [&'a Pushed; 2],
}

impl<T: CommitTo> CommitTo for Watched<'_, T> {
    async fn commit(&self, commit: &Commit) -> Result<Committed, CommitError> {
        let committed = self.to.commit(commit).await?;
        for way in self.ways {
            way.came(&commit.minutes);
        }
        Ok(committed)
    }

    async fn last_commit(&self) -> Result<u64, CommitError> {
        self.to.last_commit().await
    }
}
