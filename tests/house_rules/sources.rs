//! The table of what each GPU metric is read from, held against the readers: the fields, the metrics
//! of GPM and the functions of the driver that stand in it are those that the readers ask for.
//!
//! That a metric reads *its* source is the business of `agent/tests/nvml/every_metric.rs`.

use std::collections::BTreeSet;

use gpufleet_telemetry::catalog;
use gpufleet_telemetry::catalog::sources::{self, Source};

use super::readers::has_word;
use super::tree::{File, files, none};

/// Where the readers' lists of fields, of GPM's metrics and of functions stand.
const FIELDS: &str = "agent/read/nvml/fields.rs";
const GPM: &str = "agent/read/nvml/gpm.rs";
const FUNCTIONS: &str = "agent/read/nvml/function.rs";

/// Fields that are asked for by a named number, not in a row of their own.
const NAMED: [&str; 4] = [
    "const MEMORY_TEMPERATURE: u32 = ",
    "const LINK_SPEED: u32 = ",
    "const LINK_STATE: u32 = ",
    "const LINK_BIT_ERRORS: u32 = ",
];

/// What the table says is read from the driver.
fn in_the_table() -> BTreeSet<String> {
    let of_metrics = catalog::all().flat_map(|metric| sources::of(metric.id));
    let mut table: BTreeSet<String> = of_metrics
        .filter_map(|source| match source {
            Source::Field(id) => Some(format!("field {id}")),
            Source::Gpm(id) => Some(format!("gpm {id}")),
            Source::Function(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect();
    table.extend(sources::CALLED.iter().map(|(name, _)| (*name).to_owned()));
    table
}

/// What the readers ask the driver for.
fn in_the_readers(all: &[File]) -> BTreeSet<String> {
    let shipped = |path: &str| {
        let file = all.iter().find(|file| file.path == path);
        file.map_or("", |file| file.shipped())
    };
    let rows = |text: &str, kind: &str| -> Vec<String> {
        let numbers = text.lines().filter_map(|line| {
            let row = line.trim().strip_prefix('(')?;
            row.split_once(", gpu::")?.0.parse::<u32>().ok()
        });
        numbers.map(|id| format!("{kind} {id}")).collect()
    };
    let fields = shipped(FIELDS);
    let mut asked: BTreeSet<String> = rows(fields, "field").into_iter().collect();
    asked.extend(rows(shipped(GPM), "gpm"));
    let named = fields.lines().filter_map(|line| {
        let number = NAMED.iter().find_map(|name| line.strip_prefix(name))?;
        Some(format!("field {}", number.strip_suffix(';')?))
    });
    asked.extend(named);
    let called = all
        .iter()
        .filter(|file| file.path.starts_with("agent/read/"));
    let called: Vec<&str> = called.map(File::shipped).collect();
    for line in shipped(FUNCTIONS).lines() {
        let Some((variant, name)) = line.trim().split_once(" = \"") else {
            continue;
        };
        let variant = format!("Function::{variant}");
        // A function that stands in the list and is never called is not read.
        if called.iter().any(|text| has_word(text, &variant)) {
            asked.extend(name.strip_suffix("\";").map(str::to_owned));
        }
    }
    // Its fields are the sources, not the call that fetches them.
    asked.remove("nvmlDeviceGetFieldValues");
    asked
}

#[test]
fn the_table_of_sources_names_what_the_readers_ask_the_driver_for() {
    let (table, asked) = (in_the_table(), in_the_readers(&files(&[".rs"])));
    assert!(asked.len() > 90, "the readers' lists are found: {asked:?}");
    let wrong: Vec<String> = table
        .symmetric_difference(&asked)
        .map(|it| {
            let place = if table.contains(it) {
                "table"
            } else {
                "readers"
            };
            format!("{it} is only in the {place}")
        })
        .collect();
    none(
        "telemetry/catalog/sources.rs names every field, GPM metric and function that is asked for",
        &wrong,
    );
}

#[test]
fn a_field_and_a_function_that_only_the_readers_know_would_be_found() {
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let asked = in_the_readers(&[
        file(
            FIELDS,
            "    (999, gpu::POWER, 1.0),\nconst LINK_SPEED: u32 = 998;",
        ),
        file(
            FUNCTIONS,
            "    Dance = \"nvmlDeviceDance\";\n    Sing = \"nvmlDeviceSing\";",
        ),
        file("agent/read/nvml/device.rs", "ask(Function::Dance)"),
    ]);
    let asked: Vec<_> = asked.iter().map(String::as_str).collect();
    assert_eq!(asked, ["field 998", "field 999", "nvmlDeviceDance"]);
}
