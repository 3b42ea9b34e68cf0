//! Whether it is known who holds a GPU: what is not known of it is neither so nor over.

use gpufleet_analysis::leak::watch::Owner;
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::states::Status;

use crate::fleet::Live;
use crate::view::judge::is_holder_known;

/// Whether it is heard, and who holds it or what it does is not known.
pub(in crate::detect) const fn is_unknown(status: &Status) -> bool {
    let is_why = matches!(
        status.reason,
        Reason::HolderUnknown | Reason::ActivityUnknown
    );
    matches!(status.state, State::Unobserved) && is_why
}

/// Whose the memory of a GPU is, by the number of the job that is said to hold it.
pub(super) fn of_memory(live: &Live, status: &Status, told: Option<u32>) -> Owner {
    match told {
        Some(owner) => Owner::Is(owner),
        None if is_holder_known(live, status.reason) => Owner::Nobody,
        None => Owner::Unknown,
    }
}
