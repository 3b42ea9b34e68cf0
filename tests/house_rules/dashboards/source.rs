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
    /// The same asked of the ledger in PostgreSQL, for dashboards over it.
    #[serde(default)]
    pub(super) sql: String,
    /// Whether one is chosen at a time: the first, where none is.
    #[serde(default)]
    pub(super) single: bool,
}

/// One dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dashboard {
    pub(super) uid: String,
    pub(super) title: String,
    pub(super) says: String,
    pub(super) variables: Vec<String>,
    /// Those of them of which one is chosen at a time, and not all: the first, where none is. Grafana knows them as
    /// `one_node` and the like; queries here name them as everywhere.
    #[serde(default)]
    pub(super) one: Vec<String>,
    /// How far back it looks, as Grafana writes it.
    #[serde(default = "three_hours")]
    pub(super) from: String,
    /// Another dashboard that goes on where this one ends, by the uid.
    #[serde(default)]
    pub(super) see_also: Vec<String>,
    /// Pieces of PromQL: what `<<name>>` in a query, or in another piece, stands for.
    #[serde(default)]
    pub(super) fragments: BTreeMap<String, String>,
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
    /// Bars instead of lines: what is said of a whole day.
    #[serde(default)]
    pub(super) bars: bool,
    #[serde(default)]
    pub(super) max: Option<f64>,
    /// The dashboard that a row of a table leads to, or `incident`: gpufleet's page of it.
    #[serde(default)]
    pub(super) link: Option<String>,
    /// When it shows nothing although all is well. Such a panel names a fault, with which it shows something, unless it
    /// asks the ledger.
    #[serde(default)]
    pub(super) may_be_empty: Option<String>,
    /// The fault that it shows: one of the simulator's, or `made`, a node that has every fault there is.
    #[serde(default)]
    pub(super) fault: Option<String>,
    /// With that fault a value of it is over this.
    #[serde(default)]
    pub(super) over: f64,
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
}

/// From which value on which colour.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Threshold {
    pub(super) from: f64,
    pub(super) color: String,
}

/// A query with the name of its lines: of Prometheus, or of the ledger.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    #[serde(default)]
    pub(super) expr: String,
    /// Lines over time have columns `time`, `metric` and `value`.
    #[serde(default)]
    pub(super) sql: String,
    #[serde(default)]
    pub(super) legend: String,
}

impl Dashboard {
    /// The same with every query written out: with the pieces that it names, and those that they name.
    pub(super) fn written_out(mut self) -> Self {
        let pieces = std::mem::take(&mut self.fragments);
        let panels = self.row.iter_mut().flat_map(|row| &mut row.panel);
        for query in panels.flat_map(|panel| &mut panel.queries) {
            // A piece names others, which may do so too: no deeper than there are pieces.
            for (name, piece) in pieces.iter().cycle().take(pieces.len() * pieces.len()) {
                query.expr = query.expr.replace(&format!("<<{name}>>"), piece);
            }
        }
        self.fragments = pieces;
        self
    }

    /// Every panel of every row.
    pub(super) fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.row.iter().flat_map(|row| &row.panel)
    }

    /// Whether it asks the ledger.
    pub(super) fn is_of_ledger(&self) -> bool {
        self.panels().any(Panel::is_of_ledger)
    }
}

impl Panel {
    /// Whether it asks the ledger. No panel asks both.
    pub(super) fn is_of_ledger(&self) -> bool {
        self.queries.iter().any(|it| !it.sql.is_empty())
    }
}

fn three_hours() -> String {
    "now-3h".to_owned()
}
