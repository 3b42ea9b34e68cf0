//! Whose word it is that nobody holds a GPU.

use super::super::evidence::Free;
use super::{Entry, NVML, Reader};

impl Entry {
    /// Who can say that nobody holds it, for what this reader measured.
    pub(super) fn free(&self, reader: &Reader) -> Free {
        let Some(holders) = reader.holders else {
            return Free::ByProcesses;
        };
        let is_told = self.sources.iter().any(|it| it.reader == holders);
        match (reader.rank, is_told) {
            (NVML, false) => Free::Untold,
            (NVML, true) | (_, false) => Free::ByProcesses,
            (_, true) => Free::Told,
        }
    }
}
