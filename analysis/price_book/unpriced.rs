//! Why there is no price, in words that name what is missing.

use super::Place;

/// Why there is no price.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unpriced {
    /// Nobody told what a node of this type is.
    #[error("machine type `{0}` is not known: add it to the table of machine types")]
    UnknownMachine(String),
    /// The machine type is not known of the node.
    #[error("the node tells no machine type, and its GPU has no line in [detect.gpu_hour_usd]")]
    NoMachine,
    /// No rate at all.
    #[error("{0} has no rate")]
    NoRate(String),
    /// The first rate is later.
    #[error("{series} has no rate before {first}")]
    Before {
        /// Machine type, region and basis.
        series: String,
        /// When its first rate begins.
        first: String,
    },
    /// One rate ended and the next has not begun.
    #[error("{series} has no rate at {at}")]
    Gap {
        /// Machine type, region and basis.
        series: String,
        /// The first moment without one.
        at: String,
    },
    /// Two rates hold.
    #[error("{series} has two rates at once: {first} and {second}")]
    Overlap {
        /// Machine type, region and basis.
        series: String,
        /// One of them.
        first: Place,
        /// Another.
        second: Place,
    },
    /// The rate was refused.
    #[error("{series} at {place} was refused: Spot is not below on-demand")]
    Refused {
        /// Machine type, region and basis.
        series: String,
        /// Its row.
        place: Place,
    },
    /// Two discounts hold.
    #[error("{series} has two discounts at once: {first} and {second}")]
    TwoDiscounts {
        /// Machine type, region and basis.
        series: String,
        /// One of them.
        first: Place,
        /// Another.
        second: Place,
    },
    /// The sum does not fit.
    #[error("the price of {0} is too large to be one")]
    TooLarge(String),
}
