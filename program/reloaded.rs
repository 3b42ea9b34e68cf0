//! A value made from files, and made again when one of them changes: so tokens and certificates are
//! rotated without a restart.
//!
//! The files are looked at whenever the value is wanted, which costs a system call each. Links are
//! followed, because Kubernetes rotates a secret by swapping one. What cannot be made of new files is
//! told once, and the value before stays.

use std::error::Error;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a value could not be made.
pub type Unusable = Box<dyn Error + Send + Sync>;

type Make<T> = Box<dyn Fn() -> Result<T, Unusable> + Send + Sync>;

/// A value made from files.
pub struct Reloaded<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    seen: Vec<Stamp>,
    value: Arc<T>,
    /// Why the files as they are now could not be used.
    refused: Option<String>,
}

/// What of a file changes when its content does; nothing of one that is not there.
type Stamp = Option<[i64; 6]>;

impl<T> Reloaded<T> {
    /// Makes the value for the first time. `what` names it in the log.
    ///
    /// # Errors
    /// As `make`.
    pub fn new(
        what: &'static str,
        files: impl IntoIterator<Item = PathBuf>,
        make: impl Fn() -> Result<T, Unusable> + Send + Sync + 'static,
    ) -> Result<Self, Unusable> {
        let files: Vec<PathBuf> = files.into_iter().collect();
        // Before the files are read: what changes meanwhile is seen the next time.
        let seen = stamps(&files);
        let state = State {
            seen,
            value: Arc::new(make()?),
            refused: None,
        };
        Ok(Self {
            what,
            files,
            make: Box::new(make),
            state: Mutex::new(state),
        })
    }

    /// The value of the files as they are, or the last one that could be made.
    pub fn get(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = stamps(&self.files);
        if seen != state.seen {
            state.seen = seen;
            match (self.make)() {
                Ok(value) => {
                    tracing::info!("{}: the files have changed and were read again", self.what);
                    state.value = Arc::new(value);
                    state.refused = None;
                }
                Err(error) => {
                    let why = words(error.as_ref());
                    tracing::error!(
                        why,
                        "{}: the files have changed and cannot be used; what they were stays in use",
                        self.what
                    );
                    state.refused = Some(why);
                }
            }
        }
        Arc::clone(&state.value)
    }

    /// Why the files as they are cannot be used, while an earlier value is.
    pub fn refused(&self) -> Option<String> {
        self.get();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.refused.clone()
    }
}

impl<T> fmt::Debug for Reloaded<T> {
    /// Without the value: it may be a secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Reloaded")
            .field("what", &self.what)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// An error with everything that caused it, in one line.
pub fn words(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many errors repeat their cause.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Stamp {
    let is = std::fs::metadata(file).ok()?;
    Some([
        i64::from_ne_bytes(is.ino().to_ne_bytes()),
        i64::from_ne_bytes(is.size().to_ne_bytes()),
        is.mtime(),
        is.mtime_nsec(),
        // Also what a mended right changes.
        is.ctime(),
        is.ctime_nsec(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again_and_a_bad_one_keeps_what_was() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("number");
        std::fs::write(&path, "1").expect("written");
        let read = path.clone();
        let make = move || -> Result<u64, Unusable> {
            let text = std::fs::read_to_string(&read)?;
            Ok(text.parse()?)
        };
        let number = Reloaded::new("the number", [path.clone()], make).expect("a number");
        assert_eq!(*number.get(), 1);
        // As Kubernetes does it: another file under the same name.
        let next = folder.path().join("next");
        std::fs::write(&next, "2").expect("written");
        std::fs::rename(&next, &path).expect("renamed");
        assert_eq!((*number.get(), number.refused()), (2, None));
        std::fs::write(&path, "no number").expect("written");
        assert_eq!(*number.get(), 2, "the last good one");
        let why = number.refused().expect("it is told");
        assert!(why.contains("invalid digit"), "{why}");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(*number.get(), 2, "also when it is gone");
        std::fs::write(&path, "345").expect("written");
        assert_eq!((*number.get(), number.refused()), (345, None));
    }

    #[test]
    fn files_that_stay_as_they_are_are_read_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "x").expect("written");
        let times = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&times);
        let make = move || {
            *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            Ok(())
        };
        let value = Reloaded::new("it", [path], make).expect("made");
        value.get();
        value.get();
        assert_eq!(*times.lock().expect("no panic"), 1);
    }

    #[test]
    fn what_cannot_be_made_at_first_is_refused() {
        let make = || -> Result<(), Unusable> { Err("no".into()) };
        let refused = Reloaded::new("it", [PathBuf::from("/nowhere")], make);
        assert_eq!(refused.expect_err("refused").to_string(), "no");
    }
}
