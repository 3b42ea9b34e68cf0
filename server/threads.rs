//! Work that takes long, apart from the threads that answer.

/// Does what takes long on a thread of its own.
///
/// # Panics
/// When the work did.
pub async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
