//! Which devices a resource claim gives only to look at (admin access), by the Kubernetes API: the kubelet lists them as
//! any others, and a monitoring pod with such a claim would hold every GPU of the fleet.
//!
//! Each claim that a pod of this node has is asked for once: what was allocated for it does not change. While that is not
//! known, and where the API server refuses or does not answer, the pod holds what the claim names.
//!
//! Limit: [`MAX_CLAIMS`].

use std::collections::BTreeSet;

use gpufleet_program::kubernetes::Api;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::learned::{Ask, Learned};
use super::standing::Source;
use super::{AttributeConfig, api, kubelet};

/// Most claims that are known at once: one for each instance of 16 GPUs of 7, and as many that look at them.
const MAX_CLAIMS: usize = 224;

/// The versions of the API, the newest first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// Devices, as their driver calls them.
pub(super) type Devices = BTreeSet<String>;

/// The Kubernetes API, asked for claims, `<namespace>/<name>`.
pub(super) struct Claims {
    base: String,
    config: AttributeConfig,
    api: OnceCell<Api>,
}

/// A ResourceClaim, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Claim {
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    allocation: Allocation,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: Allocated,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Allocated {
    results: Vec<OneDevice>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OneDevice {
    driver: String,
    device: String,
    admin_access: Option<bool>,
}

impl Claims {
    /// Asks the API that the config names, or a pod finds; needs a runtime. None where there is nobody to ask.
    pub(super) fn start(config: &AttributeConfig) -> Option<Learned<Self>> {
        Some(Learned::start(Self {
            base: api::base_of(config)?,
            config: config.clone(),
            api: OnceCell::new(),
        }))
    }
}

impl Ask for Claims {
    type Thing = String;
    type Answer = Devices;

    const SOURCE: Option<Source> = Some(Source::Claims);
    const MAX: usize = MAX_CLAIMS;

    async fn ask(&self, claim: &String) -> Result<Devices, String> {
        // Its files may not be there yet in a pod that has just begun.
        let open = || async { api::open(&self.base, &self.config) };
        let api = self.api.get_or_try_init(open).await;
        let api = api.map_err(|error| error.to_string())?;
        let (namespace, name) = claim.split_once('/').unwrap_or_default();
        for version in VERSIONS {
            let path = api::claim(version, namespace, name);
            match api.get::<Claim>(&path).await {
                Ok(claim) => return Ok(looked_at(claim)),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        // It is gone, and its pod will be.
        Ok(Devices::new())
    }
}

/// The GPUs and shares that a claim gives only to look at.
fn looked_at(claim: Claim) -> Devices {
    let results = claim.status.allocation.devices.results.into_iter();
    let of_gpus = results.filter(|it| it.driver == kubelet::DRIVER);
    let (looked_at, held): (Vec<OneDevice>, Vec<OneDevice>) =
        of_gpus.partition(|it| it.admin_access == Some(true));
    let names = |all: Vec<OneDevice>| -> Devices { all.into_iter().map(|it| it.device).collect() };
    // What one request of it has and another looks at is held.
    &names(looked_at) - &names(held)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::http::{StatusCode, Uri};
    use axum::response::IntoResponse as _;
    use tokio::time::Instant;

    use super::*;

    /// Longer than a busy machine takes for an answer.
    const LONG: Duration = Duration::from_secs(60);

    /// As a cluster of before v1 has a claim of a monitoring pod for two GPUs that it looks at, one that it looks at and
    /// has, and what is none.
    const DCGM: &str = r#"{"kind": "ResourceClaim", "metadata": {"name": "dcgm", "namespace": "monitoring"},
        "spec": {"devices": {"requests": [{"name": "all", "adminAccess": true}, {"name": "one"}]}},
        "status": {"reservedFor": [{"resource": "pods", "name": "dcgm-7"}], "allocation": {"devices": {"results": [
            {"request": "all", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0", "adminAccess": true},
            {"request": "all", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-1", "adminAccess": true},
            {"request": "all", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-2", "adminAccess": true},
            {"request": "all", "driver": "dra.example.com", "pool": "n", "device": "nic-0", "adminAccess": true},
            {"request": "one", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-2"}]}}}}"#;

    async fn claims() -> (tempfile::TempDir, Learned<Claims>) {
        let router = Router::new().fallback(|uri: Uri| async move {
            match uri.path().strip_prefix("/apis/resource.k8s.io/v1beta1/") {
                Some("namespaces/monitoring/resourceclaims/dcgm") => DCGM.into_response(),
                Some("namespaces/a/resourceclaims/waits") => "{}".into_response(),
                Some("namespaces/a/resourceclaims/closed") => StatusCode::FORBIDDEN.into_response(),
                _ => StatusCode::NOT_FOUND.into_response(),
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "secret").expect("written");
        let config = AttributeConfig {
            kubernetes_url: format!("http://{address}"),
            kubernetes_token_file: token,
            ..AttributeConfig::default()
        };
        let claims = Claims::start(&config).expect("it has an address");
        (folder, claims)
    }

    #[tokio::test]
    async fn what_a_claim_gives_only_to_look_at_is_known_in_every_version_of_the_api() {
        let (_folder, claims) = claims().await;
        let all = ["monitoring/dcgm", "a/waits", "a/gone", "a/closed"].map(str::to_owned);
        let new = claims.want(BTreeSet::from(all));
        claims.wait_for(&new, Instant::now() + LONG).await;
        let (known, standing) = claims.known();
        let told = known.iter().map(|(claim, devices)| {
            let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
            (claim.as_str(), devices.join(" "))
        });
        let told: Vec<(&str, String)> = told.collect();
        let expected = [
            ("a/gone", String::new()),
            ("a/waits", String::new()),
            ("monitoring/dcgm", "gpu-0 gpu-1".to_owned()),
        ];
        assert_eq!(told, expected);
        assert!(standing.age().is_some());
    }

    #[tokio::test]
    async fn that_claims_may_not_be_read_is_said_with_what_gives_the_right() {
        let (_folder, claims) = claims().await;
        let new = claims.want(BTreeSet::from(["a/closed".to_owned()]));
        claims.wait_for(&new, Instant::now() + LONG).await;
        let (known, standing) = claims.known();
        assert!(known.is_empty());
        let why = standing.error().unwrap_or_default();
        assert!(why.contains("ClusterRole"), "{why}");
    }
}
