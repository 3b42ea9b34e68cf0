//! What stands in `dashboards/source/`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `variables.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variables {
    /// What `@name` in a query stands for.
    pub(super) filters: BTreeMap<String, String>,
    pub(super) variable: Vec<Variable>,
}

/// Something to choose from: fixed choices, one at a time, or the values of a label.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) label: String,
    #[serde(default)]
    pub(super) choices: Vec<String>,
    #[serde(default)]
    pub(super) query: String,
}

/// One dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dashboard {
    pub(super) uid: String,
    pub(super) title: String,
    pub(super) says: String,
    pub(super) variables: Vec<String>,
    pub(super) row: Vec<Row>,
}

/// A row of panels under a title.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) title: String,
    pub(super) panel: Vec<Panel>,
}

/// One panel; a type that old and new Grafana share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) kind: Kind,
    /// Grafana's word for it: `percentunit`, `watt`, `bytes`, `s`, …
    pub(super) unit: String,
    /// Of 24.
    pub(super) width: u32,
    #[serde(default)]
    pub(super) height: Option<u32>,
    /// What it shows and how to read it.
    pub(super) says: String,
    #[serde(default)]
    pub(super) stack: bool,
    #[serde(default)]
    pub(super) max: Option<f64>,
    /// The dashboard that a row of a table leads to.
    #[serde(default)]
    pub(super) link: Option<String>,
    /// When it shows nothing although all is well.
    #[serde(default)]
    pub(super) may_be_empty: Option<String>,
    #[serde(default)]
    pub(super) thresholds: Vec<Threshold>,
    pub(super) queries: Vec<Query>,
}

/// A panel's type.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Timeseries,
    Stat,
    Table,
    Bargauge,
    Heatmap,
}

/// From which value on which colour.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Threshold {
    pub(super) from: f64,
    pub(super) color: String,
}

/// A query with the name of its lines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    pub(super) expr: String,
    pub(super) legend: String,
}
