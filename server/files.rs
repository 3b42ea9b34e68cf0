//! How many files and connections the server may have open: as many as the system allows.
//!
//! Each agent holds a connection. Many systems start a program with 1,024 handles although they
//! would give more to one that asks; the 1,025th connection then waits without a word.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Below this the server warns: a thousand agents on each of two doors, the database and the spool.
pub const ENOUGH: u64 = 4_096;

/// Asks for as many handles as the system allows.
pub fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the number of open files");
        }
    }
    match warning() {
        Some(warning) => tracing::warn!("{warning}"),
        None => tracing::info!(open_files = ?getrlimit(Resource::Nofile).current, "limits"),
    }
}

/// What is wrong with the present limit, if anything.
pub fn warning() -> Option<String> {
    warning_of(getrlimit(Resource::Nofile).current)
}

/// The same of any limit; none means without.
fn warning_of(limit: Option<u64>) -> Option<String> {
    let limit = limit.filter(|limit| *limit < ENOUGH)?;
    Some(format!(
        "the server may have {limit} files and connections open, and each agent takes one: allow at least {ENOUGH} (LimitNOFILE= of systemd, ulimit -Hn of a shell)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_the_system_allows() {
        let mut low = getrlimit(Resource::Nofile);
        low.current = Some(256);
        setrlimit(Resource::Nofile, low).unwrap();
        assert!(
            warning()
                .expect("256 are few")
                .contains("may have 256 files")
        );
        raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn few_handles_are_told_and_enough_are_not() {
        assert!(warning_of(Some(ENOUGH - 1)).is_some());
        assert_eq!(warning_of(Some(ENOUGH)), None);
        assert_eq!(warning_of(None), None);
    }
}
