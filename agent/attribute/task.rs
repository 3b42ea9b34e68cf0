//! Work beside the reader, for as long as somebody holds what it learns.

use tokio::task::AbortHandle;

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

impl Task {
    /// Begins it; needs a runtime.
    pub(super) fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
