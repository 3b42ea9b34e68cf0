//! The agent's readings as Prometheus text: our names, and dcgm-exporter's for drop-in dashboards.

use serde::{Deserialize, Serialize};

/// How /metrics is written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrometheusConfig {
    /// Whether dcgm-exporter's names are served: `auto` (off where another exporter was found on
    /// the node, so that no sum doubles), `on` or `off`.
    pub dcgm_names: DcgmNames,
}

/// Whether dcgm-exporter's names are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DcgmNames {
    /// Off where another exporter was found on the node.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}
