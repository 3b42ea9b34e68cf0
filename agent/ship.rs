//! Shipping: what the agent knows of the server it sends to.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where and how readings are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShipConfig {
    /// The server's OTLP/gRPC address, `http://host:4317` or `https://…`; empty means that nothing
    /// is sent and nothing is spooled: the agent then serves /metrics only.
    pub endpoint: String,
    /// A file with the bearer token of role `ingest`; read again when it changes. Empty means none.
    pub token_file: PathBuf,
    /// A file with the certificates (PEM) that the server's must come from; empty means the
    /// system's.
    pub ca_file: PathBuf,
    /// A file with this agent's own certificate (PEM), for mutual TLS; empty means none.
    pub certificate_file: PathBuf,
    /// A file with the key of that certificate (PEM).
    pub key_file: PathBuf,
    /// How requests are compressed: `gzip`, `zstd` or `none`.
    pub compression: Compression,
    /// Seconds after which an unanswered request counts as failed.
    pub timeout_seconds: u64,
}

/// How requests are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Every Collector takes it.
    Gzip,
    /// Smaller and cheaper.
    #[default]
    Zstd,
    /// Not at all.
    None,
}

impl Default for ShipConfig {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:4317".to_owned(),
            token_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
            compression: Compression::default(),
            timeout_seconds: 10,
        }
    }
}
