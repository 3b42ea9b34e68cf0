//! Tables of prices, owners, budgets, quotas, targets and warm standbys: known by the names of their columns.
//!
//! Limits: [`MAX_BYTES`] a table.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

mod quotas;

mod standby;

mod targets;

pub use quotas::{Quota, overlapping_quotas, quotas, quotas_at};
pub use standby::{Standby, standby};
pub use targets::{Targets, targets};

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::money;
use gpufleet_analysis::owner::{self, idle};
use gpufleet_analysis::price_book::load;
use gpufleet_analysis::table;
use gpufleet_telemetry::time::Timestamp;

use super::report::{month_around, month_of};

/// Longest table, bytes: a year of hourly Spot prices of 10 series.
pub const MAX_BYTES: u64 = 16 << 20;

/// What a spreadsheet writes before a text to say that it is in UTF-8, such as Excel's "CSV UTF-8".
const MARK: char = '\u{feff}';

/// Columns of a table of budgets: what a team may spend in a month, from a date until a date.
pub const BUDGETS: [&str; 5] = ["from", "until", "team", "amount", "currency"];

/// The same where each names the cluster that it is of; one without is of all live clusters together.
pub const BUDGETS_OF_CLUSTERS: [&str; 6] =
    ["from", "until", "team", "amount", "currency", "cluster"];

/// What a table is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Machine types.
    Machines,
    /// Rates.
    Rates,
    /// Discounts.
    Discounts,
    /// Commitments.
    Commitments,
    /// Owner rules.
    Owners,
    /// Who bears what was free.
    Idle,
    /// Budgets.
    Budgets,
    /// Quotas in GPUs.
    Quotas,
    /// Targets of one's own.
    Targets,
    /// What is held and idle by design.
    Standby,
}

/// A text that is no table that is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTable {
    /// Its columns are those of none.
    #[error(
        "its columns `{0}` are those of no table: docs/cost.md has the columns of rates, machine types, discounts, commitments, owner rules, idle policies, budgets, quotas, targets and warm standbys"
    )]
    Columns(String),
    /// Its fields have semicolons between them.
    #[error(
        "its columns `{0}` have semicolons between them, as spreadsheets of some languages save CSV: a table has commas, and points in its numbers"
    )]
    Semicolons(String),
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It is too long.
    #[error("it is longer than {MAX_BYTES} bytes: split it by date")]
    TooLong,
}

impl Kind {
    const ALL: [(Self, &str, &[&str]); 13] = [
        (Self::Machines, "machine types", &load::MACHINES),
        (Self::Rates, "rates", &load::RATES),
        (Self::Discounts, "discounts", &load::DISCOUNTS),
        (Self::Commitments, "commitments", &load::COMMITMENTS),
        (
            Self::Commitments,
            "commitments",
            &load::COMMITMENTS_OF_CLUSTERS,
        ),
        (Self::Owners, "owner rules", &owner::COLUMNS),
        (Self::Owners, "owner rules", &owner::COLUMNS_OF_CLUSTERS),
        (Self::Idle, "idle policies", &idle::COLUMNS),
        (Self::Budgets, "budgets", &BUDGETS),
        (Self::Budgets, "budgets", &BUDGETS_OF_CLUSTERS),
        (Self::Quotas, "quotas", &quotas::QUOTAS),
        (Self::Targets, "targets", &targets::TARGETS),
        (Self::Standby, "warm standbys", &standby::STANDBY),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let known = Self::ALL.iter().find(|it| it.0 == self);
        known.expect("every kind is listed").1
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|it| it.1 == name).map(|it| it.0)
    }

    /// What a text is a table of, by its columns in any order.
    ///
    /// # Errors
    /// When it is of none that is known.
    pub fn of(text: &str) -> Result<Self, NoTable> {
        let header = table::columns(text);
        let columns: BTreeSet<&str> = header.iter().map(String::as_str).collect();
        let is_it = |it: &&(Self, &str, &[&str])| columns == it.2.iter().copied().collect();
        if let Some(known) = Self::ALL.iter().find(is_it) {
            return Ok(known.0);
        }
        let shown: String = header.join(",").chars().take(200).collect();
        Err(match header.as_slice() {
            [all] if all.contains(';') => NoTable::Semicolons(shown),
            _ => NoTable::Columns(shown),
        })
    }
}

/// A file of the configuration: its name and its text, or why there is none.
pub type File = (String, Result<String, NoTable>);

/// Reads a file.
pub fn file(path: &str) -> File {
    (path.to_owned(), read(path))
}

/// Reads a file of at most [`MAX_BYTES`]. The mark that spreadsheets write before it is no part of it.
///
/// # Errors
/// When it cannot be read or is longer.
pub fn read(path: &str) -> Result<String, NoTable> {
    let unreadable = |error: std::io::Error| NoTable::Unreadable(error.to_string());
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    match read.map_err(unreadable)? as u64 {
        length if length > MAX_BYTES => Err(NoTable::TooLong),
        _ if text.starts_with(MARK) => Ok(text.split_off(MARK.len_utf8())),
        _ => Ok(text),
    }
}

/// From when until when a row holds; without an end for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    from_ms: i64,
    until_ms: Option<i64>,
}

impl Span {
    fn read(from: &str, until: &str) -> Result<Self, String> {
        let (from_ms, until_ms) = table::span(from, until).map_err(|why| why.to_string())?;
        Ok(Self { from_ms, until_ms })
    }

    fn holds_at(self, at_ms: i64) -> bool {
        self.from_ms <= at_ms && self.ends_after(at_ms)
    }

    /// Whether it is not over at a moment; it may not have begun.
    fn ends_after(self, at_ms: i64) -> bool {
        self.until_ms.is_none_or(|until| at_ms < until)
    }

    /// From when on it counts where months go by what holds at their first moment, in words; none where it begins with one.
    fn begins_late(self) -> Option<String> {
        let month = month_around(self.from_ms.div_euclid(MILLIS_PER_DAY))?;
        let [begins_ms, next_ms] = [month.start, month.end].map(|day| day * MILLIS_PER_DAY);
        let [month, next] = [begins_ms, next_ms].map(|at| month_of(Timestamp::from_millis(at)));
        if self.from_ms == begins_ms {
            return None;
        }
        Some(match self.holds_at(next_ms) {
            true => format!("it begins within {month}, so it counts from {next} on"),
            false => {
                format!("it begins within {month} and ends with it, so it counts for no month")
            }
        })
    }
}

/// Whose a row is by what it names, each with what that is; where it names nothing everybody's.
fn whose(all: &[(&str, &str)]) -> String {
    let named = all.iter().filter(|it| !it.1.is_empty());
    let named: Vec<String> = named.map(|it| format!("{} `{}`", it.0, it.1)).collect();
    match named.is_empty() {
        true => "everybody".to_owned(),
        false => named.join(", "),
    }
}

/// That rows for the same overlap in time, one sentence for each of these; `rows` say whose they are.
fn overlaps(kind: &str, rows: impl Iterator<Item = (String, Span)>) -> Vec<String> {
    let mut all: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for (whose, span) in rows {
        all.entry(whose).or_default().push(span);
    }
    let overlap = |(whose, mut spans): (String, Vec<Span>)| {
        spans.sort_by_key(|it| it.from_ms);
        let ends_later = |it: Span, than: i64| it.until_ms.is_none_or(|until| than < until);
        let mut pairs = spans.windows(2);
        let second = pairs.find(|it| ends_later(it[0], it[1].from_ms))?[1];
        let from = table::moment_text(second.from_ms);
        Some(format!(
            "{kind}: rows for {whose} overlap from {from}: the first of them counts"
        ))
    };
    all.into_iter().filter_map(overlap).collect()
}

/// A team's budget in a stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    span: Span,
    /// Of this cluster; empty of all live ones together.
    pub cluster: String,
    team: String,
    amount: i64,
}

impl Budget {
    /// The cluster and the team that it names, of which the first may be empty; none where it is over.
    pub(in crate::money) fn named(&self, at_ms: i64) -> Option<[&str; 2]> {
        let named = [self.cluster.as_str(), self.team.as_str()];
        self.span.ends_after(at_ms).then_some(named)
    }
}

/// Reads a table of budgets; what cannot be used is told.
pub fn budgets(text: &str, currency: &str) -> (Vec<Budget>, Vec<String>) {
    let rows = match table::read_without_last(text, &BUDGETS_OF_CLUSTERS) {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for row in rows {
        match budget(&row.fields, currency) {
            Ok(budget) => {
                let late = budget.span.begins_late();
                findings.extend(late.map(|why| format!("line {}: {why}", row.line)));
                found.push(budget);
            }
            Err(why) => findings.push(format!("line {}: {why}", row.line)),
        }
    }
    (found, findings)
}

fn budget(fields: &[String], currency: &str) -> Result<Budget, String> {
    let [from, until, team, amount, of, cluster] = fields else {
        return Err("it has not as many fields as columns".to_owned());
    };
    if of != currency {
        return Err(format!("it is in `{of}`, prices are in `{currency}`"));
    }
    if team.is_empty() {
        return Err("`team` is empty".to_owned());
    }
    owner::check_team(team)?;
    let amount = money::parse(amount).map_err(|error| format!("`{amount}` {error}"))?;
    if amount < 0 {
        return Err("a budget is not below 0".to_owned());
    }
    Ok(Budget {
        span: Span::read(from, until)?,
        cluster: cluster.clone(),
        team: team.clone(),
        amount,
    })
}

/// What each team may spend in the month that begins here, in one cluster or in all live ones together; the
/// first budget that holds counts.
pub fn budgets_at(
    budgets: &[Budget],
    cluster: Option<&str>,
    month_ms: i64,
) -> BTreeMap<String, i128> {
    let mut found = BTreeMap::new();
    let of = cluster.unwrap_or_default();
    let holds = |it: &&Budget| it.cluster == of && it.span.holds_at(month_ms);
    for budget in budgets.iter().filter(holds) {
        let amount = i128::from(budget.amount);
        found.entry(budget.team.clone()).or_insert(amount);
    }
    found
}

/// That budgets of a team in the same clusters overlap in time, one sentence for each.
pub fn overlapping_budgets(budgets: &[Budget]) -> Vec<String> {
    let of = |it: &Budget| whose(&[("cluster", it.cluster.as_str()), ("team", it.team.as_str())]);
    overlaps("budgets", budgets.iter().map(|it| (of(it), it.span)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_known_by_its_columns_in_any_order_behind_comments() {
        for (kind, name, columns) in Kind::ALL {
            let mut columns = columns.to_vec();
            columns.reverse();
            let text = format!("# mine\n\n{}\n1,2\n", columns.join(", "));
            assert_eq!(Kind::of(&text), Ok(kind));
            assert_eq!((Kind::parse(name), kind.name()), (Some(kind), name));
        }
        let error = Kind::of("a,b\n1,2\n").expect_err("no table");
        assert!(error.to_string().contains("`a,b`"), "{error}");
    }

    #[test]
    fn a_table_as_spreadsheets_save_it_is_known_and_read_and_one_with_semicolons_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("it.csv").display().to_string();
        let saved = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            read(&path).expect("it is there")
        };
        for (kind, _, columns) in Kind::ALL {
            let plain = columns.join(",");
            let quoted = format!("\"{}\"", columns.join("\",\""));
            for header in [&plain, &quoted] {
                for mark in ["", "\u{feff}"] {
                    let text = saved(&format!("{mark}{header}\r\n"));
                    assert_eq!(Kind::of(&text), Ok(kind), "{mark:?} {header}");
                    assert_eq!(table::read(&text, columns), Ok(Vec::new()), "{header}");
                }
            }
            for header in [plain.replace(',', ";"), quoted.replace(',', ";")] {
                let error = Kind::of(&saved(&header)).expect_err("it has one column");
                let said = error.to_string();
                assert!(said.contains("have semicolons between them"), "{said}");
            }
        }
        let quoted = "\u{feff}\"from\",\"until\",\"team\",\"amount\",\"currency\"\r\n\
            \"2026-10-01\",\"\",\"science\",\"100\",\"USD\"\r\n";
        let (found, findings) = budgets(&saved(quoted), "USD");
        assert_eq!((found.len(), findings), (1, Vec::new()));
    }

    #[test]
    fn budgets_hold_from_month_to_month_and_what_is_wrong_is_named() {
        let text = "from,until,team,amount,currency\n\
            2026-01-01,2026-11-01,science,100,USD\n\
            2026-11-01,,science,250.5,USD\n\
            2026-01-01,,robots,7,EUR\nsoon,,a,1,USD\n2026-01-01,,,1,USD\n2026-01-01,,a,-1,USD\n\
            2026-02-01,2026-01-01,a,1,USD\n2026-01-01,,unowned,1,USD\n";
        let (found, findings) = budgets(text, "USD");
        let at = |month| budgets_at(&found, None, table::moment(month).expect("a date"));
        assert_eq!(at("2026-10-01")["science"], 100_000_000_000);
        assert_eq!(at("2026-11-01")["science"], 250_500_000_000);
        assert!(at("2025-12-01").is_empty());
        let expected = [
            "line 4: it is in `EUR`, prices are in `USD`",
            "line 5: `soon` is no date",
            "line 6: `team` is empty",
            "line 7: a budget is not below 0",
            "line 8: it ends before it begins",
            "line 9: no team can be called `unowned`: reports show under that name what is nobody's",
        ];
        assert_eq!(findings, expected);
    }

    #[test]
    fn a_budget_that_begins_within_a_month_says_from_when_on_it_counts() {
        let text = "from,until,team,amount,currency\n\
            2026-11-15,,science,50000,USD\n2026-12-01T00:00:01Z,,ads,1,USD\n\
            2026-12-01,,robots,1,USD\n2026-11-02,2026-12-01,vision,1,USD\n";
        let (found, findings) = budgets(text, "USD");
        let expected = [
            "line 2: it begins within 2026-11, so it counts from 2026-12 on",
            "line 3: it begins within 2026-12, so it counts from 2027-01 on",
            "line 5: it begins within 2026-11 and ends with it, so it counts for no month",
        ];
        assert_eq!(findings, expected);
        let at = |month| budgets_at(&found, None, table::moment(month).expect("a date"));
        let teams = |month| at(month).into_keys().collect::<Vec<_>>();
        assert_eq!(teams("2026-11-01"), [""; 0]);
        assert_eq!(teams("2026-12-01"), ["robots", "science"]);
        assert_eq!(teams("2027-01-01"), ["ads", "robots", "science"]);
    }

    #[test]
    fn a_budget_that_names_a_cluster_is_of_that_one_alone() {
        let text = "from,until,cluster,team,amount,currency\n\
            2026-01-01,,prod,science,100,USD\n2026-01-01,,,science,150,USD\n";
        let (found, findings) = budgets(text, "USD");
        assert_eq!(findings, [""; 0]);
        let month = table::moment("2026-10-01").expect("a date");
        let of = |cluster| budgets_at(&found, cluster, month);
        assert_eq!(of(Some("prod"))["science"], 100_000_000_000);
        assert_eq!(of(None)["science"], 150_000_000_000);
        assert!(of(Some("other")).is_empty());
        assert_eq!(overlapping_budgets(&found), [""; 0]);
    }

    #[test]
    fn budgets_of_a_team_that_overlap_are_told_and_the_first_counts() {
        let text = "from,until,team,amount,currency\n\
            2026-01-01,,science,100,USD\n2026-09-15,2026-12-01,science,150,USD\n\
            2026-01-01,2026-06-01,ads,5,USD\n2026-06-01,,ads,6,USD\n";
        let (found, findings) = budgets(text, "USD");
        assert_eq!(
            findings,
            ["line 3: it begins within 2026-09, so it counts from 2026-10 on"]
        );
        assert_eq!(
            overlapping_budgets(&found),
            [
                "budgets: rows for team `science` overlap from 2026-09-15T00:00:00Z: the first of them counts"
            ]
        );
        let month = table::moment("2026-10-01").expect("a date");
        assert_eq!(budgets_at(&found, None, month)["science"], 100_000_000_000);
    }
}
