//! Where each value of a config comes from, for whoever wonders why it is so.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// The config file.
    File(PathBuf),
    /// An environment variable of this name.
    Environment(String),
    /// The command line.
    CommandLine,
}

/// Every key that somebody set, with where; of several the one that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<(String, String), Origin>);

impl Origins {
    /// Where the value of a key comes from.
    pub fn of(&self, section: &str, key: &str) -> Origin {
        let key = (section.to_owned(), key.to_owned());
        self.0.get(&key).cloned().unwrap_or_default()
    }

    /// Notes where a key was set; the later counts.
    pub(super) fn note(&mut self, section: &str, key: &str, origin: Origin) {
        self.0.insert((section.to_owned(), key.to_owned()), origin);
    }
}
