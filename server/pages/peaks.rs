//! What a card could do at best, on its page; a card that the table does not know says how to tell.

use crate::fleet::live::Live;

/// Peak rates, or the line that makes them known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peaks {
    /// What the rate is of, and the rate.
    pub rates: Vec<(&'static str, String)>,
    /// How sure the table is, and from where.
    pub source: String,
    /// The config lines to add; none when the card is known.
    pub config: Option<String>,
}

/// The peak rates of a GPU.
pub fn of(_live: &Live) -> Peaks {
    Peaks::default()
}
