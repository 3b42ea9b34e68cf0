//! Writes down who changes what, before it is changed: nothing is changed that stands nowhere.

use axum::extract::{ConnectInfo, Extension};
use axum::http::HeaderMap;
use gpufleet_program::listen::Peer;

use super::problem::Problem;
use crate::auth::{Role, person};
use crate::store::model::AuditEntry;
use crate::web::Web;

/// From where a request came.
pub type From = ConnectInfo<Peer>;

/// What is about to be changed.
pub struct Changed {
    /// What is done: `command release_nvml`, `incident silence`.
    pub action: String,
    /// To what.
    pub target: String,
    /// What was asked, as it was asked.
    pub detail: String,
}

/// Writes it down; returns under whose name.
///
/// # Errors
/// When the store does not take it: then nothing may be changed.
pub async fn write(
    web: &Web,
    headers: &HeaderMap,
    from: Option<Extension<From>>,
    changed: Changed,
) -> Result<String, Problem> {
    let peer = from.map(|it| it.0.0.address.ip());
    let entry = AuditEntry {
        at: web.app.clock.now(),
        who: person::name(&web.app.config.auth, headers, peer, Role::Operate),
        peer: peer.map_or_else(String::new, |it| it.to_string()),
        action: changed.action,
        target: changed.target,
        detail: changed.detail,
    };
    let written = web.app.store.audit(&entry).await;
    written.map_err(|error| Problem::store(&error))?;
    Ok(entry.who)
}
