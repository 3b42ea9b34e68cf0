//! The agent's readings as Prometheus text: our names, and dcgm-exporter's for drop-in dashboards.
//!
//! Both come from one snapshot, so a scrape never mixes two rounds. No limit of its own: what can be
//! written is bounded by what the readers may return.

use gpufleet_program::section;
use gpufleet_telemetry::catalog::own as own_metrics;
use serde::{Deserialize, Serialize};

use crate::sample::Latest;

mod text;

mod dcgm;

mod own;

section! {
    /// How /metrics is written.
    pub struct PrometheusConfig {
        /// Whether dcgm-exporter's names are served: `auto` (off where another exporter was found on
        /// the node, so that no sum doubles), `on` or `off`.
        pub dcgm_names: DcgmNames = DcgmNames::default(),
    }
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

/// The content type of what [`encode`] returns.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything as Prometheus text.
pub fn encode(latest: &Latest, config: &PrometheusConfig) -> String {
    // 8 GPUs are about 290 KB: reserving that spares the copies of a growing string.
    let mut out = String::with_capacity(320 * 1024);
    if serves_dcgm_names(latest, config.dcgm_names) {
        dcgm::encode(latest, &mut out);
    }
    own::encode(latest, &mut out);
    out
}

/// Whether dcgm-exporter's names are served now.
pub fn serves_dcgm_names(latest: &Latest, names: DcgmNames) -> bool {
    match names {
        DcgmNames::On => true,
        DcgmNames::Off => false,
        DcgmNames::Auto => !latest
            .resources
            .iter()
            .flat_map(|resource| &resource.values)
            .any(|it| it.metric == own_metrics::FOREIGN_DCGM.id && it.reading == Ok(1.0)),
    }
}

#[cfg(test)]
#[path = "prometheus/tests.rs"]
mod tests;
