//! The fields of a row: numbers, amounts, dates; what is wrong with one names its column.

use super::super::{Basis, Problem};
use super::TableRow;
use crate::money::{self, NotMoney};
use crate::table;

/// The fields of a row by the number of columns it was read with.
pub(super) fn fields<const N: usize>(row: &TableRow) -> [&str; N] {
    std::array::from_fn(|at| row.fields[at].as_str())
}

pub(super) fn field(column: &'static str, value: &str, why: &str) -> Problem {
    Problem::Field {
        column,
        value: value.to_owned(),
        why: why.to_owned(),
    }
}

pub(super) fn not_empty(column: &'static str, value: &str) -> Result<(), Problem> {
    if value.is_empty() {
        return Err(Problem::Empty(column));
    }
    Ok(())
}

pub(super) fn amount(column: &'static str, value: &str) -> Result<i64, Problem> {
    not_empty(column, value)?;
    money::parse(value).map_err(|error: NotMoney| field(column, value, &error.to_string()))
}

pub(super) fn whole(column: &'static str, value: &str) -> Result<u32, Problem> {
    let number = value.parse();
    number.map_err(|_| field(column, value, "it is not a whole number"))
}

pub(super) fn basis_of(value: &str) -> Result<Basis, Problem> {
    let names = Basis::ALL.map(Basis::name).join(", ");
    Basis::parse(value).ok_or_else(|| field("basis", value, &names))
}

pub(super) fn span(from: &str, until: &str) -> Result<(i64, Option<i64>), Problem> {
    let moment = |column, value: &str| {
        let at = table::moment(value);
        at.ok_or_else(|| field(column, value, "a date such as 2026-10-01"))
    };
    let from_ms = moment("from", from)?;
    if until.is_empty() {
        return Ok((from_ms, None));
    }
    let until_ms = moment("until", until)?;
    if until_ms <= from_ms {
        return Err(Problem::Backwards {
            from: from.to_owned(),
            until: until.to_owned(),
        });
    }
    Ok((from_ms, Some(until_ms)))
}
