//! A mapping table: how one exporter's series become the catalog's metrics. Tables are data.
//!
//! The shipped tables stand in `agent/read/exporter/tables/*.toml`; users put theirs into a folder. An error
//! in a table names file, line and key, and only that table is refused.
//!
//! Limits: [`MAX_TABLES`], [`MAX_TABLE_BYTES`], [`MAX_ROWS`]. Format: docs/exporter-tables.md.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gpufleet_telemetry::catalog::{self, Metric};
use gpufleet_telemetry::identity::{PartKind, ResourceKind};
use serde::Deserialize;
use toml::Spanned;

use super::holder::HolderLabels;

/// Most tables of one agent: every exporter known to us ten times over.
pub const MAX_TABLES: usize = 64;

/// Most bytes of one table file; the longest shipped one has 10 KiB.
pub const MAX_TABLE_BYTES: u64 = 256 * 1024;

/// Most rows of one table: more than the catalog has metrics, twice.
pub const MAX_ROWS: usize = 512;

/// The tables that are part of the program, in the order they are tried.
pub const SHIPPED: [(&str, &str); 9] = [
    ("dcgm.toml", include_str!("tables/dcgm.toml")),
    (
        "nvidia_gpu_exporter.toml",
        include_str!("tables/nvidia_gpu_exporter.toml"),
    ),
    ("amd.toml", include_str!("tables/amd.toml")),
    ("tpu.toml", include_str!("tables/tpu.toml")),
    ("vllm.toml", include_str!("tables/vllm.toml")),
    ("sglang.toml", include_str!("tables/sglang.toml")),
    ("tgi.toml", include_str!("tables/tgi.toml")),
    ("triton.toml", include_str!("tables/triton.toml")),
    ("triton_gpu.toml", include_str!("tables/triton_gpu.toml")),
];

/// What is wrong with a table, where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {why}")]
pub struct TableError {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, with the key's name.
    pub why: String,
}

/// One exporter's dialect.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name in config and in `gpufleet.source`: `exporter:<name>`.
    pub name: String,
    /// What its series are about: GPUs or model servers.
    pub resource: ResourceKind,
    /// Labels a series must have to be this exporter's at all, with the values they may have.
    pub conditions: Conditions,
    /// Which labels say whose a series is.
    pub identity: Identity,
    /// Resource attributes by name, each with the labels it may stand in, in order.
    pub attributes: BTreeMap<String, Vec<String>>,
    /// A series whose labels describe the resource, joined by the UUID label.
    pub info: Option<String>,
    /// Labels that name the pod that holds the resource.
    pub holder: Option<HolderLabels>,
    /// The rows, in order: of two rows for one metric the first that has a value wins.
    pub rows: Vec<Row>,
    /// Rows by the name of the series they read.
    by_source: HashMap<String, Vec<usize>>,
}

/// Label name → values it may have; none is any value, an empty one that the label is not there.
pub type Conditions = BTreeMap<String, Vec<String>>;

/// Which labels say whose a series is; the first label that is there counts.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// Labels with the accelerator's UUID.
    pub uuid: Vec<String>,
    /// What NVML's spelling of the UUID has in front and this exporter leaves out.
    pub uuid_prefix: String,
    /// Labels with the PCI address: stands in for a null UUID.
    pub pci_address: Vec<String>,
    /// Labels with the index on the node: stands in where there is no PCI address either.
    pub index: Vec<String>,
    /// Labels with the MIG GPU instance id: the series is about a share of the GPU.
    pub gpu_instance: Vec<String>,
    /// Labels with the name of what a model server serves; none where it serves one model and does not name it.
    pub model: Vec<String>,
}

/// One series name → one metric.
#[derive(Debug, Clone)]
pub struct Row {
    /// The series' name; of a histogram the name without `_bucket`.
    pub source: String,
    /// The metric.
    pub metric: &'static Metric,
    /// Its value = the series' value × scale.
    pub scale: f64,
    /// Labels the series must have.
    pub conditions: Conditions,
    /// Where the part's id stands, for metrics of a part.
    pub part: Option<(PartKind, String)>,
    /// What several series of one resource come to.
    pub combine: Combine,
    /// The quantile to take from the histogram's growth between two scrapes.
    pub quantile: Option<f64>,
    /// Values above are the exporter's way to say that there is none.
    pub missing_above: Option<f64>,
}

/// What several series of one resource and one row come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// The first; the others are the same value for another pod or replica.
    #[default]
    First,
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The greatest.
    Max,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    resource: Spanned<String>,
    #[serde(default, rename = "where")]
    conditions: RawConditions,
    #[serde(default)]
    identity: Identity,
    #[serde(default)]
    attributes: BTreeMap<String, OneOrMany>,
    info: Option<String>,
    holder: Option<Spanned<HolderLabels>>,
    #[serde(default)]
    metric: Vec<Spanned<RawRow>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRow {
    source: String,
    metric: Spanned<String>,
    scale: Option<f64>,
    #[serde(default, rename = "where")]
    conditions: RawConditions,
    part: Option<String>,
    #[serde(default)]
    combine: Combine,
    quantile: Option<f64>,
    missing_above: Option<f64>,
}

type RawConditions = BTreeMap<String, OneOrMany>;

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl Table {
    /// Reads a table; `file` is only for the error.
    pub fn parse(file: &str, text: &str) -> Result<Self, TableError> {
        let error_at = |offset: usize, why: String| TableError {
            file: file.to_owned(),
            line: line_of(text, offset),
            why,
        };
        let raw: File = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            error_at(offset, error.message().to_owned())
        })?;
        let resource = match raw.resource.get_ref().as_str() {
            "gpu" => ResourceKind::Gpu,
            "endpoint" => ResourceKind::Endpoint,
            other => {
                let why = format!("resource: `{other}` is neither `gpu` nor `endpoint`");
                return Err(error_at(raw.resource.span().start, why));
            }
        };
        let holder = raw.holder.map(|it| {
            let start = it.span().start;
            let checked = it.into_inner().checked(resource);
            checked.map_err(|why| error_at(start, why))
        });
        if raw.metric.len() > MAX_ROWS {
            let why = format!("metric: {} rows, at most {MAX_ROWS}", raw.metric.len());
            return Err(error_at(0, why));
        }
        let mut rows = Vec::with_capacity(raw.metric.len());
        for row in raw.metric {
            let start = row.span().start;
            let row = read_row(row.into_inner(), resource)
                .map_err(|(at, why)| error_at(at.unwrap_or(start), why))?;
            rows.push(row);
        }
        let mut by_source: HashMap<String, Vec<usize>> = HashMap::new();
        for (number, row) in rows.iter().enumerate() {
            by_source.entry(row.series_name()).or_default().push(number);
        }
        let attributes = raw.attributes.into_iter();
        Ok(Self {
            name: raw.name,
            resource,
            conditions: into_conditions(raw.conditions),
            identity: raw.identity,
            attributes: attributes
                .map(|(name, labels)| (name, labels.into_vec()))
                .collect(),
            info: raw.info,
            holder: holder.transpose()?,
            rows,
            by_source,
        })
    }

    /// The rows that read series of this name, by number.
    pub fn rows_for(&self, series_name: &str) -> &[usize] {
        self.by_source.get(series_name).map_or(&[], Vec::as_slice)
    }
}

impl Row {
    fn series_name(&self) -> String {
        match self.quantile {
            Some(_) => format!("{}_bucket", self.source),
            None => self.source.clone(),
        }
    }
}

/// What is wrong with a row, and where if that is known more closely than the row.
type RowError = (Option<usize>, String);

fn read_row(raw: RawRow, resource: ResourceKind) -> Result<Row, RowError> {
    let at = Some(raw.metric.span().start);
    let name = raw.metric.get_ref();
    let metric = catalog::by_name(name)
        .ok_or_else(|| (at, format!("metric: the catalog has no `{name}`")))?;
    if metric.resource != resource {
        let (kind, wanted) = (metric.resource.name(), resource.name());
        return Err((
            at,
            format!("metric: `{name}` is about a {kind}, this table about a {wanted}"),
        ));
    }
    let part = match (metric.part, raw.part) {
        (Some(kind), Some(label)) => Some((kind, label)),
        (None, None) => None,
        (Some(_), None) => {
            return Err((
                None,
                format!("part: `{name}` is about a part; say which label names it"),
            ));
        }
        (None, Some(_)) => {
            return Err((None, format!("part: `{name}` is not about a part")));
        }
    };
    let scale = raw.scale.unwrap_or(1.0);
    if !scale.is_finite() || scale <= 0.0 {
        return Err((None, "scale: must be a number above 0".to_owned()));
    }
    if raw.quantile.is_some_and(|it| !(it > 0.0 && it < 1.0)) {
        return Err((None, "quantile: must lie between 0 and 1".to_owned()));
    }
    if raw.source.is_empty() {
        return Err((None, "source: is empty".to_owned()));
    }
    Ok(Row {
        source: raw.source,
        metric,
        scale,
        conditions: into_conditions(raw.conditions),
        part,
        combine: raw.combine,
        quantile: raw.quantile,
        missing_above: raw.missing_above,
    })
}

fn into_conditions(raw: RawConditions) -> Conditions {
    let pairs = raw.into_iter();
    pairs
        .map(|(label, values)| (label, values.into_vec()))
        .collect()
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// The shipped tables. They are part of the program, and a test reads them all.
pub fn shipped() -> Vec<Table> {
    SHIPPED
        .iter()
        .map(|(file, text)| Table::parse(file, text).expect("a test reads every shipped table"))
        .collect()
}

/// The shipped tables and those of a folder, which replace a shipped one of the same name.
///
/// A table that cannot be read is left out and told; the others are used.
pub fn load(folder: Option<&Path>) -> (Vec<Table>, Vec<TableError>) {
    let mut tables = shipped();
    let mut errors = Vec::new();
    let Some(folder) = folder else {
        return (tables, errors);
    };
    let whole = |file: &Path, why: String| TableError {
        file: file.display().to_string(),
        line: 1,
        why,
    };
    let mut files: Vec<_> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) => {
            errors.push(whole(folder, format!("the folder cannot be read: {error}")));
            return (tables, errors);
        }
    };
    files.retain(|file| file.extension().is_some_and(|it| it == "toml"));
    files.sort();
    for file in files {
        match read_file(&file) {
            Ok(text) => match Table::parse(&file.display().to_string(), &text) {
                Ok(table) => {
                    tables.retain(|other| other.name != table.name);
                    if tables.len() < MAX_TABLES {
                        tables.push(table);
                    } else {
                        errors.push(whole(&file, format!("more than {MAX_TABLES} tables")));
                    }
                }
                Err(error) => errors.push(error),
            },
            Err(why) => errors.push(whole(&file, why)),
        }
    }
    (tables, errors)
}

fn read_file(file: &Path) -> Result<String, String> {
    let size = std::fs::metadata(file)
        .map_err(|error| error.to_string())?
        .len();
    if size > MAX_TABLE_BYTES {
        return Err(format!("{size} bytes, at most {MAX_TABLE_BYTES}"));
    }
    std::fs::read_to_string(file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name = \"x\"\nresource = \"gpu\"\n";

    #[test]
    fn every_shipped_table_is_right_and_bears_its_files_name() {
        for (file, text) in SHIPPED {
            let table = Table::parse(file, text).expect(file);
            assert_eq!(format!("{}.toml", table.name), file);
            assert!(!table.rows.is_empty(), "{file}");
        }
    }

    #[test]
    fn the_table_in_the_docs_is_right() {
        let docs = include_str!("../../../docs/exporter-tables.md");
        let (_, own) = docs
            .split_once("## A table of your own")
            .expect("the section");
        let (_, block) = own.split_once("```toml\n").expect("a block");
        let (block, _) = block.split_once("```").expect("its end");
        let table = Table::parse("docs", block).expect("right");
        assert_eq!((table.name.as_str(), table.rows.len()), ("mine", 1));
    }

    #[test]
    fn the_dcgm_table_reads_every_name_the_catalog_gives_to_dcgm_with_its_scale() {
        let tables = shipped();
        let dcgm = tables.iter().find(|it| it.name == "dcgm").expect("dcgm");
        for metric in catalog::all() {
            let Some(alias) = metric.dcgm else { continue };
            let rows = dcgm.rows_for(alias.name);
            assert_eq!(rows.len(), 1, "{}", alias.name);
            let row = &dcgm.rows[rows[0]];
            assert_eq!(row.metric.name, metric.name);
            assert!(
                (row.scale * alias.scale - 1.0).abs() < 1e-12,
                "{}",
                alias.name
            );
        }
    }

    #[test]
    fn an_error_names_file_line_and_key() {
        let row = "[[metric]]\nsource = \"s\"\nmetric = \"gpufleet_gpu_power_watts\"\n";
        let cases = [
            ("name = \"x\"\n".to_owned(), 1, "missing field `resource`"),
            (format!("{HEAD}colour = 1\n"), 3, "unknown field `colour`"),
            (
                "name = \"x\"\nresource = \"node\"\n".to_owned(),
                2,
                "resource: `node`",
            ),
            (
                format!("{HEAD}{row}sacle = 1.0\n"),
                6,
                "unknown field `sacle`",
            ),
            (format!("{HEAD}{row}scale = 0.0\n"), 3, "scale: must be"),
            (
                format!("{HEAD}{row}quantile = 1.5\n"),
                3,
                "quantile: must lie",
            ),
            (
                format!("{HEAD}{row}part = \"link\"\n"),
                3,
                "is not about a part",
            ),
            (
                format!("{HEAD}[[metric]]\nsource = \"s\"\nmetric = \"nothing\"\n"),
                5,
                "the catalog has no `nothing`",
            ),
            (
                format!(
                    "{HEAD}[[metric]]\nsource = \"s\"\nmetric = \"gpufleet_node_uptime_seconds\"\n"
                ),
                5,
                "is about a node, this table about a gpu",
            ),
            (format!("{HEAD}= 3"), 3, ""),
        ];
        for (text, line, why) in cases {
            let error = Table::parse("mine.toml", &text).expect_err(&text);
            assert_eq!(
                (error.file.as_str(), error.line),
                ("mine.toml", line),
                "{text}\n{error}"
            );
            assert!(error.why.contains(why), "{error} for {why}");
        }
    }

    #[test]
    fn a_users_table_replaces_the_shipped_one_and_a_wrong_one_costs_only_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("a.toml", &HEAD.replace('x', "dcgm")).expect("written");
        write("b.toml", "name = 3").expect("written");
        write("c.toml", HEAD).expect("written");
        write("d.txt", "not a table").expect("written");
        let (tables, errors) = load(Some(folder.path()));
        assert_eq!(tables.len(), SHIPPED.len() + 1);
        let dcgm = tables.iter().find(|it| it.name == "dcgm").expect("dcgm");
        assert!(dcgm.rows.is_empty(), "the user's table counts");
        assert_eq!(errors.len(), 1);
        assert!(errors[0].file.ends_with("b.toml"));
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_and_the_shipped_tables_remain() {
        let (tables, errors) = load(Some(Path::new("/nowhere/at/all")));
        assert_eq!(tables.len(), SHIPPED.len());
        assert!(errors[0].why.contains("cannot be read"));
    }
}
