//! What is reported, in which forms and at which prices.

use clap::ValueEnum as _;

/// What is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Who owes what.
    Chargeback,
    /// What time was worth: use, cost of a useful hour, waste.
    Efficiency,
    /// Whether it adds up: against the nodes' price and an invoice.
    Reconcile,
}

/// In which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// A page for people.
    Html,
    /// One row for each group and state.
    Csv,
    /// Everything, for programs.
    Json,
    /// FOCUS 1.2 or 1.3, one row for each line.
    Focus,
}

/// At which price a GPU counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Basis {
    /// Its part of its machine's price.
    #[default]
    FullyLoaded,
    /// Its own, without the machine around it.
    GpuOnly,
}

impl What {
    /// The forms that it is there in: a FOCUS file is of who owes what.
    pub fn forms(self) -> impl Iterator<Item = Form> {
        let all = Form::value_variants().iter().copied();
        all.filter(move |it| self == Self::Chargeback || *it != Form::Focus)
    }

    /// The prices that it is there at, in a form that is no FOCUS file.
    pub const fn bases(self) -> &'static [Basis] {
        match self {
            Self::Chargeback => &[Basis::FullyLoaded, Basis::GpuOnly],
            Self::Efficiency | Self::Reconcile => &[Basis::FullyLoaded],
        }
    }
}

impl Form {
    /// Its media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Csv | Self::Focus => "text/csv; charset=utf-8",
            Self::Json => "application/json",
        }
    }

    /// Whether it is rows alone, with no place for what is missing in them.
    pub const fn is_rows(self) -> bool {
        matches!(self, Self::Csv | Self::Focus)
    }

    /// How its files end.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Focus => "focus.csv",
        }
    }
}
