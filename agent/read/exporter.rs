//! Any Prometheus endpoint, by a mapping table that is data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub mod text;

pub mod table;

pub mod quantile;

pub mod map;

/// Which endpoints are scraped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExporterConfig {
    /// Endpoints to scrape.
    pub targets: Vec<Target>,
    /// A folder with mapping tables of your own (`*.toml`), beside the shipped ones.
    pub tables_folder: PathBuf,
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Its address, `http://127.0.0.1:9400/metrics`.
    pub url: String,
    /// The mapping table that reads it: `dcgm`, `gke`, `nvidia_gpu_exporter`, `vllm`, …
    pub table: String,
}
