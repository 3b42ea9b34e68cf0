//! What the agent that runs on this node says of its GPUs: its last probe, and the XIDs it has counted.
//!
//! Limits: those of a scrape; one answer within [`DEADLINE`]. An agent that listens with TLS is not asked: its
//! certificate is not made for this address.

use std::time::Duration;

use gpufleet_program::tls::ClientFiles;
use gpufleet_program::token;
use gpufleet_telemetry::catalog::{self, gpu, own};
use serde_json::{Value, json};

use crate::config::Config;
use crate::read::exporter::scrape::Endpoint;
use crate::read::exporter::text;

/// How long it may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// What it said.
#[derive(Debug)]
pub(super) enum Said {
    /// Its page.
    Page(String),
    /// Nothing, and why.
    Nothing(String),
}

/// Asks it.
pub(super) async fn ask(config: &Config) -> Said {
    let listen = &config.listen;
    if !listen.certificate_file.as_os_str().is_empty() {
        return Said::Nothing(
            "the agent of this node listens with TLS and was not asked".to_owned(),
        );
    }
    let token = match token::file("listen.token_file", &listen.token_file) {
        Ok(token) => token,
        Err(error) => return Said::Nothing(error.to_string()),
    };
    let url = format!("http://{}/metrics", listen.address);
    let endpoint = match Endpoint::new(&url, token, ClientFiles::default()) {
        Ok(endpoint) => endpoint,
        Err(why) => return Said::Nothing(why),
    };
    match tokio::time::timeout(DEADLINE, endpoint.get()).await {
        Ok(Ok(page)) => Said::Page(page),
        Ok(Err(error)) => Said::Nothing(format!("no agent answers on this node: {error}")),
        Err(_) => Said::Nothing("the agent of this node does not answer".to_owned()),
    }
}

impl Said {
    /// As a file.
    pub(super) fn json(&self) -> Value {
        let page = match self {
            Self::Page(page) => page,
            Self::Nothing(why) => {
                return json!({
                    "unknown": why,
                    "try": "gpufleet-agent probe --json computes on the GPUs now",
                });
            }
        };
        let body = text::parse(page);
        let is_told = |name: &str| {
            let metric = catalog::by_name(name);
            metric.is_some_and(|it| own::is_probed(it.id) || it.id == gpu::XID.id)
        };
        let told = body.series.iter().filter(|it| is_told(it.name));
        let each = told.map(|it| {
            let metric = catalog::by_name(it.name);
            json!({
                "uuid": it.label("uuid"),
                "gpu": it.label("gpu"),
                "name": it.name,
                "xid": it.label("xid"),
                "value": it.value,
                "means": metric.map(|it| it.help),
            })
        });
        let each: Vec<Value> = each.collect();
        json!({ "told": each })
    }
}
