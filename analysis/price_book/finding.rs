//! What was wrong with a table of prices: where, and what.

use std::fmt;

use crate::table::TableError;

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The table.
    pub table: String,
    /// The line, from 1; 0 is the table as a whole.
    pub line: usize,
}

/// Something that is wrong with a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// What.
    pub problem: Problem,
}

/// What is wrong with a row. Unless it says otherwise the row is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The table cannot be read.
    #[error(transparent)]
    Table(TableError),
    /// A field that must not be empty is.
    #[error("`{0}` is empty")]
    Empty(&'static str),
    /// A field that cannot be understood.
    #[error("`{column}` is `{value}`: {why}")]
    Field {
        /// The column.
        column: &'static str,
        /// What is in it.
        value: String,
        /// What it should be.
        why: String,
    },
    /// A price in another currency.
    #[error("the price is in `{found}`, the book is in `{book}`: nothing is converted")]
    Currency {
        /// The row's.
        found: String,
        /// The book's.
        book: String,
    },
    /// A price below 0.
    #[error("the price `{0}` is negative")]
    Negative(String),
    /// It ends before it begins.
    #[error("it ends at {until}, not after {from}")]
    Backwards {
        /// Its beginning.
        from: String,
        /// Its end.
        until: String,
    },
    /// A price of nothing of what is rented.
    #[error("`{0}` is 0, which only an `own` rate may be: without the row that time has no price")]
    Free(&'static str),
    /// The machine type is in no table of machine types.
    #[error("machine type `{0}` is not known: add it to the table of machine types")]
    UnknownMachine(String),
    /// The machine type is there already, and is another one.
    #[error("machine type `{0}` is there already and has other GPUs, cores or memory")]
    MachineTwice(String),
    /// Spot that is not cheaper; as long as both hold that time reads unpriced.
    #[error("Spot {spot} is not below the on-demand {on_demand} of {other}")]
    SpotNotBelow {
        /// The Spot price.
        spot: String,
        /// The on-demand price of the same time.
        on_demand: String,
        /// Its row.
        other: Place,
    },
    /// The GPUs cost more than the node; only the GPU's part is left out.
    #[error("its GPUs cost {gpus}, more than the node's {node}: the GPU's part is left out")]
    GpuAboveNode {
        /// All GPUs of the node.
        gpus: String,
        /// The node.
        node: String,
    },
    /// Another rate of the series holds at the same time: that time reads unpriced.
    #[error("it holds at the same time as {0}: that time has no price")]
    Overlap(Place),
    /// A commitment of a host that GPUs are added to, or of one such GPU: what it is paid for is a part of a node.
    #[error(
        "a commitment is of whole nodes, and `{0}` is a part of one, a host or a GPU that is added to it: give what is paid \
         for it as a rate"
    )]
    PartCommitted(String),
    /// A commitment of this name is there already for some of the time.
    #[error("commitment `{id}` is there already at that time, in {first}: it counts once")]
    CommittedTwice {
        /// Its name.
        id: String,
        /// The row that counts.
        first: Place,
    },
    /// The next rate of the series begins later than this one ends: what is between reads unpriced.
    #[error("there is no rate from {from} until {until}")]
    Gap {
        /// The end of this one.
        from: String,
        /// The beginning of the next.
        until: String,
    },
}

impl Problem {
    /// Whether the row is left out.
    pub const fn leaves_out(&self) -> bool {
        !matches!(
            self,
            Self::SpotNotBelow { .. }
                | Self::GpuAboveNode { .. }
                | Self::Overlap(_)
                | Self::Gap { .. }
        )
    }
}

impl fmt::Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} line {}", self.table, self.line)
    }
}
