//! The shipped rates beside imported ones: these go before shipped ones that begin when they do or later.

use std::collections::BTreeMap;

use gpufleet_analysis::price_book::{SHIPPED_PRICES, Text, load};
use gpufleet_analysis::table;

/// A series of a table of rates: machine type, region and basis.
pub(super) type Series = [String; 3];

/// Where a table of rates has from when a rate holds.
const FROM: usize = 6;

/// When the first rate of each series of these tables begins, Unix milliseconds.
pub(super) fn first_rates<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeMap<Series, i64> {
    let mut first = BTreeMap::new();
    for text in texts {
        for row in table::read(text, &load::RATES).unwrap_or_default() {
            let Some(from_ms) = table::moment(&row.fields[FROM]) else {
                continue;
            };
            let known = first.entry(series(&row.fields)).or_insert(from_ms);
            *known = from_ms.min(*known);
        }
    }
    first
}

fn series(fields: &[String]) -> Series {
    [0, 1, 2].map(|at: usize| fields[at].clone())
}

/// The shipped rates without those that an imported table has a say in: of the same series, from the
/// first of its rates on.
pub(super) fn rates(imported: &[Text], currency: &str) -> Text {
    let first = first_rates(imported.iter().map(|it| it.text.as_str()));
    let name = "gcp.csv";
    // Nothing is converted: a book in another currency knows only what was imported.
    if currency != "USD" {
        return Text::new(name, &load::RATES.join(","));
    }
    if first.is_empty() {
        return Text::new(name, SHIPPED_PRICES);
    }
    let rows = table::read(SHIPPED_PRICES, &load::RATES).expect("the shipped table is one");
    let mut kept = String::new();
    table::write(&mut kept, &load::RATES);
    for row in rows {
        let begins = table::moment(&row.fields[FROM]);
        let is_before = |first: &i64| begins.is_some_and(|begins| begins < *first);
        if first.get(&series(&row.fields)).is_none_or(is_before) {
            let fields: Vec<&str> = row.fields.iter().map(String::as_str).collect();
            table::write(&mut kept, &fields);
        }
    }
    Text::new(name, &kept)
}
