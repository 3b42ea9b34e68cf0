//! How the agent asks the Kubernetes API: as the config says, or as a pod does.

use gpufleet_program::kubernetes::{self, Api, Asker, escaped};
use gpufleet_program::reloaded::Unusable;
use gpufleet_program::tls::Setting;

use super::AttributeConfig;

/// The key of the config with its address.
pub(super) const URL_KEY: &str = "attribute.kubernetes_url";

/// Where the API is: as the config says, or as a pod finds it; none where there is none, or no token
/// for it.
pub fn base_of(config: &AttributeConfig) -> Option<String> {
    kubernetes::base(&config.kubernetes_url, &config.kubernetes_token_file)
}

/// The API at this address.
///
/// # Errors
/// Names the key or file that cannot be used.
pub fn open(base: &str, config: &AttributeConfig) -> Result<Api, Unusable> {
    let asker = Asker {
        program: concat!("gpufleet-agent/", env!("CARGO_PKG_VERSION")),
        url_key: URL_KEY,
        token: Setting::new(
            "attribute.kubernetes_token_file",
            &config.kubernetes_token_file,
        ),
        authorities: Setting::new("attribute.kubernetes_ca_file", &config.kubernetes_ca_file),
        rights: "ClusterRole and ClusterRoleBinding gpufleet-agent",
    };
    Api::new(base, asker)
}

/// The pods of a node.
pub fn pods(node: &str) -> String {
    format!(
        "/api/v1/pods?fieldSelector=spec.nodeName%3D{}",
        escaped(node)
    )
}

/// A claim of dynamic resources, in this version of their API.
pub fn claim(version: &str, namespace: &str, name: &str) -> String {
    let (namespace, name) = (escaped(namespace), escaped(name));
    format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_node_ends_nothing_in_the_address() {
        assert!(pods("a&b").ends_with("spec.nodeName%3Da%26b"));
    }
}
