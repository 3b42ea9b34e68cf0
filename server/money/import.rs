//! Tables that somebody wants to keep: what terms they would make, and whether any of it can be used.
//!
//! A table of which no row can be used is refused before it takes the place of the one of its name: a column that was exported
//! otherwise, or another currency, would leave months without their prices.

use std::collections::HashSet;

use gpufleet_analysis::owner::Owners;
use gpufleet_analysis::price_book::load;
use gpufleet_analysis::table::{self, TableError, TableRow};

use super::shipped::{Series, first_rates};
use super::tables::{self, Kind};
use super::terms::{Sources, Terms};
use crate::store::model::MoneyTable;

/// Most findings that a refusal tells.
const MAX_TOLD: usize = 5;

/// A table of which nothing can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no row of {name} can be used, so nothing was kept{why}")]
pub struct NoRow {
    name: String,
    /// What is wrong with its rows, each in a line of its own; empty of a table without any.
    why: String,
}

/// The terms with these tables in place of those that are kept under their names.
pub fn with(mut sources: Sources, tables: &[MoneyTable]) -> Terms {
    let is_new = |it: &MoneyTable| tables.iter().any(|new| new.name == it.name);
    sources.stored.retain(|it| !is_new(it));
    sources.stored.extend_from_slice(tables);
    // As the store has them.
    sources.stored.sort_by(|a, b| a.name.cmp(&b.name));
    Terms::of(sources)
}

/// Refuses tables, with which these terms were made, where nothing of one can be used.
///
/// # Errors
/// With the first of them.
pub fn check(terms: &Terms, tables: &[MoneyTable]) -> Result<(), NoRow> {
    let Some(table) = tables.iter().find(|it| !has_row(terms, it)) else {
        return Ok(());
    };
    let is_of = |finding: &&String| {
        let rest = finding.strip_prefix(&table.name);
        rest.is_some_and(|it| it.starts_with([' ', ':']))
    };
    let told = terms.findings.iter().filter(is_of).take(MAX_TOLD);
    Err(NoRow {
        name: table.name.clone(),
        why: told.map(|it| format!("\n  {it}")).collect(),
    })
}

/// What tables of rates no longer say of a time of which those said it that are kept under their names, a sentence for each
/// table: months that are over would silently have other prices, or none.
pub fn shortened(kept: &[MoneyTable], tables: &[MoneyTable]) -> Vec<String> {
    let is_rates = |it: &&MoneyTable| Kind::parse(&it.kind) == Some(Kind::Rates);
    let told = |table: &MoneyTable| {
        let before = kept.iter().find(|it| it.name == table.name);
        let before = first_rates([before.filter(is_rates)?.content.as_str()]);
        let now = first_rates([table.content.as_str()]);
        let begins_later =
            |it: &(&Series, &i64)| now.get(it.0).is_none_or(|from_ms| it.1 < from_ms);
        let later: Vec<(&Series, &i64)> = before.iter().filter(begins_later).collect();
        let ([machine_type, region, basis], from_ms) = later.first()?;
        let (name, count, from) = (&table.name, later.len(), table::moment_text(**from_ms));
        Some(format!(
            "{name}: of {count} series the table that it replaces had rates from earlier on, as of {machine_type} in \
             {region}, {basis} from {from}: that time has other prices now, or none"
        ))
    };
    tables.iter().filter_map(told).collect()
}

/// Whether a row of it is used.
fn has_row(terms: &Terms, table: &MoneyTable) -> bool {
    let (text, currency) = (table.content.as_str(), terms.book.currency.as_str());
    let in_book = |rows| is_in_book(terms, &table.name, rows);
    match Kind::parse(&table.kind) {
        Some(Kind::Machines) => in_book(table::read(text, &load::MACHINES)),
        Some(Kind::Rates) => in_book(table::read(text, &load::RATES)),
        Some(Kind::Discounts) => in_book(table::read(text, &load::DISCOUNTS)),
        Some(Kind::Commitments) => {
            let columns = &load::COMMITMENTS_OF_CLUSTERS;
            in_book(table::read_without_last(text, columns))
        }
        Some(Kind::Owners) => Owners::read(text).is_ok_and(|it| !it.is_empty()),
        Some(Kind::Idle) => Owners::read_idle(text).is_ok_and(|it| !it.is_empty()),
        Some(Kind::Budgets) => !tables::budgets(text, currency).0.is_empty(),
        Some(Kind::Quotas) => !tables::quotas(text).0.is_empty(),
        Some(Kind::Targets) => !tables::targets(text).0.is_empty(),
        Some(Kind::Standby) => !tables::standby(text).0.is_empty(),
        None => false,
    }
}

/// Whether the price book took one of these rows.
fn is_in_book(terms: &Terms, name: &str, rows: Result<Vec<TableRow>, TableError>) -> bool {
    let findings = terms.book.findings.iter();
    let refused = findings.filter(|it| it.place.table == name && it.problem.leaves_out());
    let refused: HashSet<usize> = refused.map(|it| it.place.line).collect();
    rows.is_ok_and(|rows| rows.iter().any(|it| !refused.contains(&it.line)))
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    fn table(text: String) -> MoneyTable {
        let kind = Kind::of(&text).expect("its columns are known");
        MoneyTable {
            name: "it.csv".to_owned(),
            kind: kind.name().to_owned(),
            content: text,
            imported: Timestamp::from_seconds(1_790_000_000),
        }
    }

    fn checked(text: String) -> Result<(), NoRow> {
        let tables = [table(text)];
        check(&with(Sources::default(), &tables), &tables)
    }

    #[test]
    fn a_table_of_each_kind_is_kept_where_a_row_of_it_is_used_and_else_refused_with_why() {
        let quotas = "from,until,cluster,team,gpus";
        let targets = "from,until,cluster,team,job,measure,least";
        let standby = "from,until,cluster,namespace,job";
        for (columns, good, bad) in [
            (load::MACHINES.join(","), "dgx,h100,8,,", "dgx,h100,x,,"),
            (
                load::RATES.join(","),
                "a3-highgpu-8g,here,on_demand,USD,80,,2026-10-01,,list,a",
                "a3-highgpu-8g,here,on_demand,EUR,80,,2026-10-01,,list,a",
            ),
            (
                load::DISCOUNTS.join(","),
                "*,*,,10,2026-10-01,",
                "*,*,,101,2026-10-01,",
            ),
            (
                load::COMMITMENTS.join(","),
                "c,a3-highgpu-8g,here,1,commitment_3y,USD,40,2026-01-01,2029-01-01,",
                "c,car,here,1,commitment_3y,USD,40,2026-01-01,2029-01-01,",
            ),
            (
                gpufleet_analysis::owner::COLUMNS.join(","),
                "2026-10-01,,namespace,,research,science",
                "2026-10-01,,planet,,research,science",
            ),
            (
                gpufleet_analysis::owner::COLUMNS_OF_CLUSTERS.join(","),
                "2026-10-01,,namespace,,research,science,prod-eu",
                "2026-10-01,,planet,,research,science,prod-eu",
            ),
            (
                gpufleet_analysis::owner::idle::COLUMNS.join(","),
                "2026-10-01,,prod,use,,",
                "2026-10-01,,prod,nobody,,",
            ),
            (
                tables::BUDGETS.join(","),
                "2026-10-01,,a,5,USD",
                "2026-10-01,,a,5,EUR",
            ),
            (quotas.to_owned(), "2026-10-01,,,a,8", "2026-10-01,,,a,x"),
            (
                targets.to_owned(),
                "2026-10-01,,,,,mfu,0.4",
                "2026-10-01,,,,,speed,0.4",
            ),
            (standby.to_owned(), "2026-10-01,,,chat,", "2026-10-01,,,,"),
        ] {
            let refused = checked(format!("{columns}\n{bad}\n")).expect_err(bad);
            let told = refused.to_string();
            assert!(told.contains("\n  it.csv line 2: "), "{told}");
            assert_eq!(checked(format!("{columns}\n{good}\n{bad}\n")), Ok(()));
            let empty = checked(format!("{columns}\n")).expect_err("it has no row");
            let told = "no row of it.csv can be used, so nothing was kept";
            assert_eq!(empty.to_string(), told);
        }
    }

    #[test]
    fn rates_that_begin_later_than_those_that_they_replace_are_told() {
        let rates = |rows: &[&str]| {
            let row = |it: &&str| format!("a3-highgpu-8g,{it},,list,a\n");
            let rows = rows.iter().map(row).collect::<String>();
            table(format!("{}\n{rows}", load::RATES.join(",")))
        };
        let october = "here,on_demand,USD,80,,2026-10-01";
        let november = "here,on_demand,USD,81,,2026-11-01";
        let spot = "here,spot,USD,40,,2026-11-01";
        let kept = [rates(&[october, spot])];
        let told = |rows: &[&str]| shortened(&kept, &[rates(rows)]);
        assert_eq!(told(&[october, november, spot]), [""; 0]);
        assert_eq!(
            told(&[november]),
            [
                "it.csv: of 2 series the table that it replaces had rates from earlier on, as of a3-highgpu-8g in here, \
                 on_demand from 2026-10-01T00:00:00Z: that time has other prices now, or none"
            ]
        );
        assert_eq!(shortened(&[], &kept), [""; 0], "it replaces none");
    }

    #[test]
    fn a_row_that_is_used_with_a_doubt_is_used_and_another_table_may_tell_what_it_needs() {
        let rates = format!(
            "{}\na3-highgpu-8g,here,on_demand,USD,80,11,2026-10-01,,list,a\n",
            load::RATES.join(",")
        );
        assert_eq!(checked(rates), Ok(()), "its GPUs alone have no price");
        let mut rates = table(format!(
            "{}\ndgx,*,own,USD,24,,2026-10-01,,list,mine\n",
            load::RATES.join(",")
        ));
        rates.name = "rates.csv".to_owned();
        let machines = table(format!("{}\ndgx,h100,8,,\n", load::MACHINES.join(",")));
        let both = [rates.clone(), machines];
        assert_eq!(check(&with(Sources::default(), &both), &both), Ok(()));
        let alone = [rates];
        let refused = check(&with(Sources::default(), &alone), &alone);
        assert!(
            refused.is_err_and(|it| it.to_string().contains("machine type `dgx` is not known"))
        );
    }
}
