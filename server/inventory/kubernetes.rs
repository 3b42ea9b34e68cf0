//! Follows nodes and pods of the whole cluster, by a list and a watch of each.
//!
//! Of a node this much is read ([`objects`]): labels, taints, whether it is cordoned and ready, its GPUs. Of a pod: its
//! node, its requests, its labels and what the scheduler said; pods that are over are not asked for, and
//! those that ask for no GPU are forgotten as they are read, so that 100,000 of them cost nothing. Lists
//! come in pages.
//!
//! GPUs that are asked for by resource claims (DRA) are not counted: a claim does not say how many.

use gpufleet_analysis::inventory::Node;
use gpufleet_program::kubernetes::follow::{self, Follow, LONGEST_PAUSE};
use gpufleet_program::kubernetes::{Api, ApiError, Asker};
use gpufleet_program::tls::Setting;

use super::known::{Known, Pod, Pods, Standing};
use super::{InventoryConfig, now};
use crate::App;

mod objects;

use objects::{NodeObject, PodObject, node, pod};

/// The key of the config with the address.
pub(super) const URL_KEY: &str = "inventory.kubernetes_url";

/// What gives the right to watch.
pub const RIGHTS: &str = "ClusterRole and ClusterRoleBinding gpufleet-server (get, list, watch of nodes and pods; deploy/base/accounts.yaml)";

/// Pods that are over hold nothing and wait for nothing.
const PODS: &str =
    "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

const NODES: &str = "/api/v1/nodes";

/// Follows both, for ever.
pub(super) async fn run(app: &App, base: &str) {
    let api = open(app, base).await;
    let nodes = follow_of::<OfNodes>(app, &api);
    let pods = follow_of::<OfPods>(app, &api);
    tokio::join!(follow::follow(&nodes), follow::follow(&pods));
}

fn follow_of<'a, K>(app: &'a App, api: &'a Api) -> Following<'a, K> {
    Following {
        app,
        api,
        kind: std::marker::PhantomData,
    }
}

/// The API, as soon as its files can be used: in a pod that has just begun they may not be there yet.
async fn open(app: &App, base: &str) -> Api {
    loop {
        match Api::new(base, asker(&app.config.inventory)) {
            Ok(api) => return api,
            Err(error) => {
                let mut known = app.inventory.known();
                for standing in [Tells::Nodes, Tells::Pods] {
                    note(standing.of(&mut known), standing, &error.to_string(), false);
                }
            }
        }
        tokio::time::sleep(LONGEST_PAUSE).await;
    }
}

/// Who asks.
pub(crate) fn asker(config: &InventoryConfig) -> Asker {
    Asker {
        program: concat!("gpufleet-server/", env!("CARGO_PKG_VERSION")),
        url_key: URL_KEY,
        token: Setting::new(
            "inventory.kubernetes_token_file",
            &config.kubernetes_token_file,
        ),
        authorities: Setting::new("inventory.kubernetes_ca_file", &config.kubernetes_ca_file),
        rights: RIGHTS,
    }
}

/// What of it is told.
#[derive(Debug, Clone, Copy)]
enum Tells {
    Nodes,
    Pods,
}

impl Tells {
    fn of(self, known: &mut Known) -> &mut Standing {
        match self {
            Self::Nodes => &mut known.nodes,
            Self::Pods => &mut known.claims,
        }
    }
}

fn note(standing: &mut Standing, tells: Tells, why: &str, is_refused: bool) {
    if standing.failed(why.to_owned(), is_refused) {
        let what = match tells {
            Tells::Nodes => "the cluster's nodes are not seen",
            Tells::Pods => "who waits for GPUs is not seen",
        };
        tracing::warn!(error = why, "{what}");
    }
}

/// Follows one kind of object.
struct Following<'a, K> {
    app: &'a App,
    api: &'a Api,
    kind: std::marker::PhantomData<fn() -> K>,
}

struct OfNodes;
struct OfPods;

impl<K> Following<'_, K> {
    fn failed_at(&self, tells: Tells, why: &ApiError) {
        let mut known = self.app.inventory.known();
        note(
            tells.of(&mut known),
            tells,
            &why.to_string(),
            why.is_refused(),
        );
    }
}

impl Follow for Following<'_, OfNodes> {
    type Object = NodeObject;
    type All = Vec<Node>;

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        NODES.to_owned()
    }

    async fn api(&self) -> &Api {
        self.api
    }

    fn gather(&self, all: &mut Vec<Node>, object: NodeObject) {
        all.extend(node(object));
    }

    fn replace(&self, all: Vec<Node>) {
        let now = now(self.app);
        self.app.inventory.known().all_nodes(all, now);
    }

    fn put(&self, object: NodeObject) {
        let name = object.metadata.name.clone();
        let at = self.app.clock.now();
        let mut known = self.app.inventory.known();
        match node(object) {
            Some(node) => known.node(node, at),
            // It has no GPUs any more.
            None => known.node_gone(&name, at),
        }
    }

    fn remove(&self, object: NodeObject) {
        let at = self.app.clock.now();
        let mut known = self.app.inventory.known();
        known.node_gone(&object.metadata.name, at);
    }

    fn heard(&self) {
        let now = now(self.app);
        self.app.inventory.known().nodes.heard(now);
    }

    fn failed(&self, why: &ApiError) {
        self.failed_at(Tells::Nodes, why);
    }
}

impl Follow for Following<'_, OfPods> {
    type Object = PodObject;
    type All = Pods;

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        PODS.to_owned()
    }

    async fn api(&self) -> &Api {
        self.api
    }

    fn gather(&self, all: &mut Pods, object: PodObject) {
        let uid = object.metadata.uid.clone();
        all.put(&uid, pod(object));
    }

    fn replace(&self, all: Pods) {
        let now = now(self.app);
        self.app.inventory.known().all_pods(all, now);
    }

    fn put(&self, object: PodObject) {
        let uid = object.metadata.uid.clone();
        self.app.inventory.known().pod(&uid, pod(object));
    }

    fn remove(&self, object: PodObject) {
        self.app.inventory.known().pod_gone(&object.metadata.uid);
    }

    fn heard(&self) {
        let now = now(self.app);
        self.app.inventory.known().claims.heard(now);
    }

    fn failed(&self, why: &ApiError) {
        self.failed_at(Tells::Pods, why);
    }
}

/// Whether this is a line of a watch of nodes or pods.
pub fn understands(line: &[u8]) -> bool {
    let a_node = follow::read::<NodeObject>(line, "");
    let a_pod = follow::read::<PodObject>(line, "");
    let mut is_one = false;
    if let Ok((follow::Event::Put(object), _)) = a_node {
        is_one |= node(object).is_some();
    }
    if let Ok((follow::Event::Put(object), _)) = a_pod {
        is_one |= pod(object) != Pod::Neither;
    }
    is_one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selector_of_pods_is_escaped_as_an_address_wants_it() {
        let selector = "status.phase!=Succeeded,status.phase!=Failed";
        let escaped = gpufleet_program::kubernetes::escaped(selector);
        assert!(PODS.ends_with(&escaped), "{escaped}");
    }
}
