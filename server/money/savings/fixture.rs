//! Answers of tests: put there, and looked at once they are made.

use std::sync::Arc;

use futures::FutureExt as _;

use super::{Kept, Savings};
use crate::App;

impl Kept {
    /// Has this for an answer that was made now.
    pub(crate) async fn put_for_tests(&self, app: &App, saved: Savings) {
        let made = self.0.get(None, &app.clock, async { Ok(saved) }).await;
        made.expect("it was made");
    }

    /// What is kept for later when what is being made is made.
    pub(crate) async fn kept_for_tests(&self, app: &App) -> Option<Arc<Savings>> {
        let nothing = async { Err(Arc::from("nothing is being made")) };
        self.0.get(None, &app.clock, nothing).await.ok()?;
        self.0.last(&None)
    }

    /// Is making an answer that never ends, so that no other is made.
    pub(crate) fn stuck_for_tests(&self, app: &App) {
        let never = self
            .0
            .get(Some("stuck".into()), &app.clock, std::future::pending());
        assert!(never.now_or_never().is_none());
    }
}
