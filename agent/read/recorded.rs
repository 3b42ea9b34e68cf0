//! Recordings of real hardware, played back and marked as what they are.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is played back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordedConfig {
    /// Recordings to play back.
    pub files: Vec<PathBuf>,
    /// How many recorded seconds pass in one second.
    pub speed: f64,
    /// The node name the recording is shown under; empty means the name in the recording.
    pub node: String,
}

impl Default for RecordedConfig {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            speed: 1.0,
            node: String::new(),
        }
    }
}
