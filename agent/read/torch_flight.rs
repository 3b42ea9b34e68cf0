//! How far the process groups of a torch program are, from its flight recorder's JSON dump
//! (`_dump_nccl_trace_json`): which collective each enqueued, started and completed last.
//!
//! The recorder is on by default. Nobody calls this yet: a dump is made inside the process, by whoever
//! sees the anomaly there.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Longest dump: 2,000 entries (torch's default) with their stacks are some megabytes.
const LONGEST_DUMP: usize = 64 * 1024 * 1024;

/// Why a dump is not taken.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// No recorder writes that much.
    #[error("the dump has {0} bytes, more than {LONGEST_DUMP}")]
    TooLong(usize),
    /// Not a recorder's.
    #[error("the dump is not a flight recorder's JSON")]
    Json(#[from] serde_json::Error),
}

/// How far a process group is. Collectives count from 1, per group, and equally on every rank: the rank
/// that is behind is the one to look at. `None`: none so far, or not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// torch's name of the group.
    pub group: String,
    /// What the program calls it: `default_pg`, `mesh_tp`; empty where it is not said.
    pub description: String,
    /// Last collective enqueued.
    pub enqueued: Option<u64>,
    /// Last collective that the GPU began; recorded only where torch times collectives.
    pub started: Option<u64>,
    /// Last collective that the GPU was done with.
    pub completed: Option<u64>,
}

#[derive(Deserialize)]
struct Dump {
    pg_status: BTreeMap<String, Status>,
    #[serde(default)]
    pg_config: BTreeMap<String, Config>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(deserialize_with = "number")]
    last_enqueued_collective: Option<u64>,
    #[serde(deserialize_with = "number")]
    last_started_collective: Option<u64>,
    #[serde(deserialize_with = "number")]
    last_completed_collective: Option<u64>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    desc: String,
}

/// A number, or a text that is one; -1 is none.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }
    let number = match Either::deserialize(from)? {
        Either::Number(number) => number,
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom)?,
    };
    Ok(u64::try_from(number).ok())
}

/// How far each group is.
///
/// # Errors
/// It is not a flight recorder's dump.
pub fn progress(json: &[u8]) -> Result<Vec<Progress>, DumpError> {
    if json.len() > LONGEST_DUMP {
        return Err(DumpError::TooLong(json.len()));
    }
    let mut dump: Dump = serde_json::from_slice(json)?;
    let progress = |(group, status): (String, Status)| Progress {
        description: dump
            .pg_config
            .remove(&group)
            .map_or_else(String::new, |it| it.desc),
        group,
        enqueued: status.last_enqueued_collective,
        started: status.last_started_collective,
        completed: status.last_completed_collective,
    };
    Ok(dump.pg_status.into_iter().map(progress).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_says_how_far_it_is() {
        let json = br#"{"version": "2.10", "entries": [{"seq": 7}],
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {
                "0": {"last_enqueued_collective": 7, "last_started_collective": -1,
                      "last_completed_collective": 6},
                "1": {"last_enqueued_collective": "3", "last_started_collective": "3",
                      "last_completed_collective": "-1"}}}"#;
        let found = progress(json).expect("a dump");
        let (first, second) = (&found[0], &found[1]);
        assert_eq!(
            (first.group.as_str(), first.description.as_str()),
            ("0", "default_pg")
        );
        assert_eq!(
            (first.enqueued, first.started, first.completed),
            (Some(7), None, Some(6))
        );
        assert_eq!(
            (second.group.as_str(), second.description.as_str()),
            ("1", "")
        );
        assert_eq!(
            (second.enqueued, second.started, second.completed),
            (Some(3), Some(3), None)
        );
    }

    #[test]
    fn what_is_no_dump_is_refused() {
        for json in [
            "",
            "{}",
            "[]",
            r#"{"pg_status": {"0": {}}}"#,
            r#"{"pg_status": 1}"#,
        ] {
            assert!(progress(json.as_bytes()).is_err(), "{json}");
        }
    }
}
