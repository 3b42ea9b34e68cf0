//! What the agent answers over HTTP on its node: /metrics, /healthz, /readyz.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the agent listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// Address and port of /metrics, /healthz and /readyz. Beyond loopback it needs a token file
    /// and TLS, or `allow_insecure`.
    pub address: String,
    /// Whether it may listen beyond loopback without TLS and token.
    pub allow_insecure: bool,
    /// A file with the token that a scraper must show; empty means none.
    pub token_file: PathBuf,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:9410".to_owned(),
            allow_insecure: false,
            token_file: PathBuf::new(),
        }
    }
}
