//! Tables as text: what RFC 4180 calls CSV, with `#` comments before the header, and dates in UTC.
//!
//! A row knows its line, so that what is wrong with it can be named. Columns are found by name, in
//! any order; a missing or unknown column is an error of the table, not of a row.

use std::borrow::Cow;

use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, OffsetDateTime, PrimitiveDateTime, Time};

/// Most rows of a table. The shipped prices are 3,669; a year of hourly Spot prices of 20 machine
/// types in 5 regions is 876,000.
pub const MAX_ROWS: usize = 1_000_000;

/// Why a text is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It has no header.
    #[error("the table is empty: it needs a line with the names of its columns")]
    Empty,
    /// A column that is needed is not there.
    #[error("the table has no column `{0}`")]
    Missing(String),
    /// A column that nobody knows.
    #[error("the table has an unknown column `{0}`")]
    Unknown(String),
    /// A row with another number of fields than the header.
    #[error("line {line} has {found} fields, the header has {expected}")]
    Fields {
        /// The line, from 1.
        line: usize,
        /// Its fields.
        found: usize,
        /// Those of the header.
        expected: usize,
    },
    /// More rows than a table may have.
    #[error("the table has more than {MAX_ROWS} rows: split it by date")]
    TooLong,
}

/// One row: its line and its fields in the order of the columns asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRow {
    /// The line it begins on, from 1.
    pub line: usize,
    /// Its fields, without spaces around them.
    pub fields: Vec<String>,
}

/// Reads the rows of a table that has exactly these columns, in any order.
///
/// # Errors
/// When a column is missing or unknown, a row has too few or too many fields, or there are too many.
pub fn read(text: &str, columns: &[&str]) -> Result<Vec<TableRow>, TableError> {
    read_rows(text, columns, None)
}

/// Reads the rows as [`read`] does; a row may have the field of the column `beside` where the header has not that column,
/// behind all others, and may lack it where that is the header's last.
fn read_rows(
    text: &str,
    columns: &[&str],
    beside: Option<&str>,
) -> Result<Vec<TableRow>, TableError> {
    let mut records = records(text, usize::MAX).into_iter();
    let header = records.next().ok_or(TableError::Empty)?;
    if let Some(unknown) = header
        .fields
        .iter()
        .find(|it| !columns.contains(&it.as_str()))
    {
        return Err(TableError::Unknown(unknown.clone()));
    }
    let place = |column: &&str| {
        let at = header.fields.iter().position(|it| it == column);
        at.ok_or_else(|| TableError::Missing((*column).to_owned()))
    };
    let places: Vec<usize> = columns.iter().map(place).collect::<Result<_, _>>()?;
    let expected = header.fields.len();
    let is_beside = |it: &str| beside == Some(it);
    let may_be_more = beside.is_some() && !header.fields.iter().any(|it| is_beside(it));
    let may_be_less = header.fields.last().is_some_and(|it| is_beside(it));
    let mut rows = Vec::new();
    for mut record in records {
        let found = record.fields.len();
        let mut more = None;
        if may_be_more && found == expected + 1 {
            more = record.fields.pop();
        } else if may_be_less && found + 1 == expected {
            record.fields.push(String::new());
        } else if found != expected {
            return Err(TableError::Fields {
                line: record.line,
                found,
                expected,
            });
        }
        if rows.len() == MAX_ROWS {
            return Err(TableError::TooLong);
        }
        let fields = places
            .iter()
            .map(|at| std::mem::take(&mut record.fields[*at]));
        rows.push(TableRow {
            line: record.line,
            fields: fields.chain(more).collect(),
        });
    }
    Ok(rows)
}

/// Reads the rows of a table as [`read`] does, also of one without the last of these columns, which is then empty.
///
/// # Errors
/// As [`read`] has them.
pub fn read_without_last(text: &str, columns: &[&str]) -> Result<Vec<TableRow>, TableError> {
    without_last(text, columns, false)
}

/// Reads the rows of a table as [`read_without_last`] does, where each row may have the last of these columns or not,
/// behind the others, whatever the header says: so a row of the one table can be put under the header of the other.
///
/// # Errors
/// As [`read`] has them.
pub fn read_mixed(text: &str, columns: &[&str]) -> Result<Vec<TableRow>, TableError> {
    without_last(text, columns, true)
}

/// Reads a table with the last of these columns or without it; `is_mixed`: whether each row may have it or not.
fn without_last(text: &str, columns: &[&str], is_mixed: bool) -> Result<Vec<TableRow>, TableError> {
    let Some((last, others)) = columns.split_last() else {
        return read(text, columns);
    };
    let beside = is_mixed.then_some(*last);
    match read_rows(text, columns, beside) {
        Err(TableError::Missing(column)) if column == *last => {
            let mut rows = read_rows(text, others, beside)?;
            for row in &mut rows {
                row.fields.resize(columns.len(), String::new());
            }
            Ok(rows)
        }
        read => read,
    }
}

/// The names of its columns in their order, without spaces and quotes around them; none of a text that has no header.
pub fn columns(text: &str) -> Vec<String> {
    let header = records(text, 1).into_iter().next();
    header.map(|it| it.fields).unwrap_or_default()
}

/// The first so many records of the text, the header among them; empty lines and comments are left out.
fn records(text: &str, most: usize) -> Vec<TableRow> {
    let mut records = Vec::new();
    let (mut line, mut begun) = (1, 1);
    let (mut fields, mut field) = (Vec::new(), String::new());
    let (mut is_quoted, mut was_quoted) = (false, false);
    let mut letters = text.chars().peekable();
    loop {
        let letter = letters.next();
        match letter {
            Some('"') if is_quoted && letters.next_if_eq(&'"').is_some() => field.push('"'),
            Some('"') if is_quoted => is_quoted = false,
            Some('"') if field.is_empty() && !was_quoted => (is_quoted, was_quoted) = (true, true),
            Some('\n') | None if !is_quoted || letter.is_none() => {
                fields.push(field.trim().to_owned());
                let is_blank = fields.len() == 1 && fields[0].is_empty() && !was_quoted;
                let is_comment = fields[0].starts_with('#') && records.is_empty();
                if !is_blank && !is_comment {
                    records.push(TableRow {
                        line: begun,
                        fields: std::mem::take(&mut fields),
                    });
                }
                fields.clear();
                field.clear();
                was_quoted = false;
                line += 1;
                begun = line;
                if letter.is_none() || records.len() == most {
                    return records;
                }
            }
            Some(',') if !is_quoted => {
                fields.push(field.trim().to_owned());
                field.clear();
                was_quoted = false;
            }
            Some(letter) => {
                line += usize::from(letter == '\n');
                field.push(letter);
            }
            None => return records,
        }
    }
}

/// Writes one record, quoting what must be.
pub fn write(out: &mut String, fields: &[&str]) {
    record(out, fields, push);
}

/// Writes one record, each field in this way.
fn record(out: &mut String, fields: &[&str], push: fn(&mut String, &str)) {
    for (index, field) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push(out, field);
    }
    out.push('\n');
}

/// Writes one field, quoting what must be.
fn push(out: &mut String, field: &str) {
    let is_quoted = |it: u8| matches!(it, b',' | b'"' | b'\n' | b'\r');
    if field.bytes().any(is_quoted) {
        out.push('"');
        out.push_str(&field.replace('"', "\"\""));
        out.push('"');
    } else {
        out.push_str(field);
    }
}

/// Writes one field as [`write_shown`] does.
pub fn push_shown(out: &mut String, field: &str) {
    push(out, &shown(field));
}

/// Writes one record for people who open it in a spreadsheet: a text that would be a formula there is
/// shown as a text. Such a table is not read back.
pub fn write_shown(out: &mut String, fields: &[&str]) {
    record(out, fields, push_shown);
}

/// A text as a spreadsheet shows it; numbers stay numbers.
fn shown(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    match is_formula && text.parse::<f64>().is_err() {
        true => format!("'{text}").into(),
        false => text.into(),
    }
}

/// Milliseconds of Unix time of `2026-10-01`, `2026-10-01T00:00:00Z` or with an offset.
pub fn moment(text: &str) -> Option<i64> {
    let date = Date::parse(text, format_description!("[year]-[month]-[day]"));
    let at = match date {
        Ok(date) => PrimitiveDateTime::new(date, Time::MIDNIGHT).assume_utc(),
        Err(_) => OffsetDateTime::parse(text, &Rfc3339).ok()?,
    };
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

/// The moment as FOCUS writes it, `YYYY-MM-DDTHH:mm:ssZ`.
pub fn moment_text(millis: i64) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let at = OffsetDateTime::from_unix_timestamp(millis.div_euclid(1_000));
    at.ok()
        .and_then(|it| it.format(format).ok())
        .unwrap_or_else(|| millis.to_string())
}

/// Why two fields are not a time from a date until a date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSpan {
    /// One of them is no moment.
    #[error("`{0}` is no date")]
    Moment(String),
    /// Nothing is in between.
    #[error("it ends before it begins")]
    Backwards,
}

/// Milliseconds of Unix time from when until when a row holds; an empty end is none.
///
/// # Errors
/// When one of the two is no moment, or the end is not after the beginning.
pub fn span(from: &str, until: &str) -> Result<(i64, Option<i64>), NoSpan> {
    let at = |text: &str| moment(text).ok_or_else(|| NoSpan::Moment(text.to_owned()));
    let from_ms = at(from)?;
    let until_ms = (!until.is_empty()).then(|| at(until)).transpose()?;
    match until_ms {
        Some(until_ms) if until_ms <= from_ms => Err(NoSpan::Backwards),
        until_ms => Ok((from_ms, until_ms)),
    }
}

/// Hours since the epoch from the first of a month such as `2026-10` up to the first of the next.
pub fn month_hours(text: &str) -> Option<std::ops::Range<i64>> {
    let first = |text: &str| Some(moment(&format!("{text}-01"))? / 3_600_000);
    let (year, month) = text.split_once('-')?;
    if year.len() != 4 || month.len() != 2 {
        return None;
    }
    let (year, month): (u16, u16) = (year.parse().ok()?, month.parse().ok()?);
    let next = match month {
        12 => format!("{:04}-01", year.checked_add(1)?),
        _ => format!("{year:04}-{:02}", month + 1),
    };
    Some(first(text)?..first(&next)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_commas_line_ends_and_comments_are_understood_and_lines_are_named() {
        let text = "# made up\nb,a\r\n1,\"x, \"\"y\"\"\nz\"\n\n2, w \n";
        let rows = read(text, &["a", "b"]).expect("a table");
        let row = |line, a: &str, b: &str| TableRow {
            line,
            fields: vec![a.to_owned(), b.to_owned()],
        };
        assert_eq!(rows, [row(3, "x, \"y\"\nz", "1"), row(6, "w", "2")]);
    }

    #[test]
    fn a_text_that_would_be_a_formula_is_shown_as_a_text_and_a_number_stays_one() {
        let mut out = String::new();
        let fields = [
            "=HYPERLINK(\"x\")",
            "@a",
            "+a",
            "-a",
            "-1.25",
            "+3",
            "a=b",
            "",
        ];
        write_shown(&mut out, &fields);
        let expected = "\"'=HYPERLINK(\"\"x\"\")\",'@a,'+a,'-a,-1.25,+3,a=b,\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn what_was_written_is_read_back() {
        let fields = ["a,b", "say \"it\"", "two\nlines", "", "plain"];
        let mut text = String::from("a,b,c,d,e\n");
        write(&mut text, &fields);
        let rows = read(&text, &["a", "b", "c", "d", "e"]).expect("a table");
        assert_eq!(rows[0].fields, fields);
    }

    #[test]
    fn a_table_with_other_columns_or_fields_is_refused_by_name() {
        let check = |text: &str, error: TableError| assert_eq!(read(text, &["a", "b"]), Err(error));
        check("", TableError::Empty);
        check("# only\n", TableError::Empty);
        check("a\n1\n", TableError::Missing("b".to_owned()));
        check("a,b,c\n", TableError::Unknown("c".to_owned()));
        let (line, found, expected) = (2, 3, 2);
        let error = TableError::Fields {
            line,
            found,
            expected,
        };
        check("a,b\n1,2,3\n", error);
    }

    #[test]
    fn the_columns_are_those_of_the_header_quoted_or_not() {
        for text in ["# mine\n\n a, b\r\n1,\"2", "\"a\",\"b\"\n", "a,b"] {
            assert_eq!(columns(text), ["a", "b"], "{text}");
        }
        assert_eq!(columns("# only\n"), [""; 0]);
    }

    #[test]
    fn the_last_column_may_be_missing_and_no_other() {
        let of = |text: &str| -> Result<Vec<String>, TableError> {
            let rows = read_without_last(text, &["a", "b"])?;
            Ok(rows.into_iter().map(|it| it.fields.join("/")).collect())
        };
        assert_eq!(of("b,a\n1,2\n"), Ok(vec!["2/1".to_owned()]));
        assert_eq!(of("a\n2\n"), Ok(vec!["2/".to_owned()]));
        assert_eq!(of("b\n1\n"), Err(TableError::Missing("a".to_owned())));
    }

    #[test]
    fn a_row_with_the_last_column_or_without_it_goes_under_either_header_where_rows_may_be_mixed() {
        let of = |text: &str| -> Result<Vec<String>, TableError> {
            let rows = read_mixed(text, &["a", "b", "c"])?;
            Ok(rows.into_iter().map(|it| it.fields.join("/")).collect())
        };
        let refused = |line, found, expected| {
            Err(TableError::Fields {
                line,
                found,
                expected,
            })
        };
        let both = |first: &str| Ok(vec![first.to_owned(), "3/4/5".to_owned()]);
        assert_eq!(of("a,b\n1,2\n3,4,5\n"), both("1/2/"));
        assert_eq!(of("b,a\n2,1\n4,3,5\n"), both("1/2/"));
        assert_eq!(of("a,b,c\n1,2\n3,4,5\n"), both("1/2/"));
        // Behind the others alone: which one is missing elsewhere nobody knows.
        assert_eq!(of("a,c,b\n1,2\n"), refused(2, 2, 3));
        assert_eq!(of("a,b\n1,2,3,4\n"), refused(2, 4, 2));
        assert_eq!(of("a,b\n1\n"), refused(2, 1, 2));
        let strict = read_without_last("a,b\n1,2\n3,4,5\n", &["a", "b", "c"]);
        assert_eq!(strict, refused(3, 3, 2).map(|_: Vec<String>| Vec::new()));
    }

    #[test]
    fn a_row_holds_from_a_date_until_a_later_one_or_for_good() {
        assert_eq!(span("1970-01-01", ""), Ok((0, None)));
        assert_eq!(span("1970-01-01", "1970-01-02"), Ok((0, Some(86_400_000))));
        for until in ["1970-01-02", "1970-01-01"] {
            assert_eq!(span("1970-01-02", until), Err(NoSpan::Backwards), "{until}");
        }
        for (from, until) in [("soon", ""), ("1970-01-01", "soon")] {
            assert_eq!(span(from, until), Err(NoSpan::Moment("soon".to_owned())));
        }
    }

    #[test]
    fn dates_are_utc_and_months_end_where_the_next_begins() {
        assert_eq!(moment("1970-01-02"), Some(86_400_000));
        assert_eq!(moment("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(moment("2026-02-30"), None);
        assert_eq!(moment_text(1_790_812_800_000), "2026-10-01T00:00:00Z");
        let hours = |month| month_hours(month).map(|it| it.end - it.start);
        assert_eq!(hours("2026-10"), Some(744));
        assert_eq!(hours("2024-02"), Some(696));
        assert_eq!(hours("2026-12"), Some(744));
        for text in ["2026-13", "2026-1", "2026", "26-10", "2026-00"] {
            assert_eq!(month_hours(text), None, "{text}");
        }
    }
}
