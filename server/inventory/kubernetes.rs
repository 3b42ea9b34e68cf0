//! Follows nodes and pods of the whole cluster, by a list and a watch of each; beside them what waits before it
//! has pods ([`held_back`]) and what the autoscaler says ([`scaler`]).
//!
//! Of a node this much is read ([`objects`]): labels, taints, whether it is cordoned and ready, its GPUs. Of a pod: its
//! node, its requests, its labels and what the scheduler said; pods that are over are not asked for, and
//! those that ask for no GPU are forgotten as they are read, so that 100,000 of them cost nothing. Lists
//! come in pages.
//!
//! Of kinds that came in several versions the newest that the server serves is taken; one that it serves in none is asked
//! for again, because it may be installed or upgraded any day.
//!
//! GPUs that are given out by resource claims ([`devices`]) are told by the driver's slices and the claims; nodes are
//! listed when it is known whether there are such, so that none is taken for one without GPUs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpufleet_analysis::inventory::Node;
use gpufleet_program::kubernetes::follow::{self, Follow, LONGEST_PAUSE};
use gpufleet_program::kubernetes::{Api, ApiError, Asker, Refusal};
use gpufleet_program::tls::Setting;

use super::known::{
    Asking, ClusterState, DeviceKind, HeldBack, Maker, Pod, Pods, ScalerSaid, Standing,
};
use super::{InventoryConfig, now};
use crate::App;

mod claims;

mod devices;

mod held_back;

mod objects;

mod scaler;

use held_back::{JobObject, JobSetObject, WorkloadObject};
use objects::{Meta, NodeObject, PodObject, node, pod};
use scaler::{EventObject, event};

/// The key of the config with the address.
pub(super) const URL_KEY: &str = "inventory.kubernetes_url";

/// What gives the right to watch.
pub const RIGHTS: &str = "ClusterRole and ClusterRoleBinding gpufleet-server (list, watch of nodes, pods, events, jobs, jobsets, workloads, resourceslices, resourceclaims, resourceclaimtemplates and deviceclasses; deploy/base/accounts.yaml)";

/// Pods that are over hold nothing and wait for nothing.
const PODS: &str =
    "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

const NODES: &str = "/api/v1/nodes";

/// Of 100,000 events in a large cluster those that the autoscaler made of pods.
const EVENTS: &str =
    "/api/v1/events?fieldSelector=source%3Dcluster-autoscaler%2CinvolvedObject.kind%3DPod";

const JOBS: [&str; 1] = ["/apis/batch/v1/jobs"];

/// Where JobSets are, the newest version first: what is read of them is the same in all.
const JOB_SETS: [&str; 2] = [
    "/apis/jobset.x-k8s.io/v1beta1/jobsets",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
];

/// Where Kueue's workloads are, the newest version first. No more than are known: each that is asked for in vain
/// costs a pause, and what is installed later is seen that much later.
const WORKLOADS: [&str; 2] = [
    "/apis/kueue.x-k8s.io/v1beta2/workloads",
    "/apis/kueue.x-k8s.io/v1beta1/workloads",
];

/// Why a kind of object is not told.
const NOT_INSTALLED: &str = "the cluster does not have this kind of object";

/// Follows all of them, for ever.
pub(super) async fn run(app: &App, base: &str) {
    let api = open(app, base).await;
    let nodes = follow_of::<OfNodes>(app, &api);
    let pods = follow_of::<OfPods>(app, &api);
    let jobs = follow_of::<JobObject>(app, &api);
    let job_sets = follow_of::<JobSetObject>(app, &api);
    let workloads = follow_of::<WorkloadObject>(app, &api);
    let events = follow_of::<OfEvents>(app, &api);
    let nodes = async {
        claims::decided(app).await;
        follow::follow(&nodes).await;
    };
    tokio::join!(
        nodes,
        claims::run(app, &api),
        follow::follow(&pods),
        follow::follow(&jobs),
        follow::follow(&job_sets),
        follow::follow(&workloads),
        follow::follow(&events),
    );
}

fn follow_of<'a, K>(app: &'a App, api: &'a Api) -> Following<'a, K> {
    Following {
        app,
        api,
        version: AtomicUsize::new(0),
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
                    note(standing.of(&mut known), standing, &error.to_string(), None);
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
    HeldBack(Maker),
    Events,
    Devices(DeviceKind),
}

impl Tells {
    fn of(self, known: &mut ClusterState) -> &mut Standing {
        match self {
            Self::Nodes => &mut known.nodes,
            Self::Pods => &mut known.claims,
            Self::HeldBack(maker) => &mut known.held_back(maker).standing,
            Self::Events => &mut known.scaler.standing,
            Self::Devices(kind) => known.claimed.standing(kind),
        }
    }
}

fn note(standing: &mut Standing, tells: Tells, why: &str, refusal: Option<Refusal>) {
    if standing.failed(why.to_owned(), refusal) {
        let what = match tells {
            Tells::Nodes => "the cluster's nodes are not seen",
            Tells::Pods => "who waits for GPUs is not seen",
            Tells::HeldBack(_) => "what waits for GPUs before it has pods is not seen",
            Tells::Events => "what the autoscaler says is not seen",
            Tells::Devices(_) => "GPUs that are given out by resource claims are not seen",
        };
        tracing::warn!(error = why, "{what}");
    }
}

/// Follows one kind of object.
struct Following<'a, K> {
    app: &'a App,
    api: &'a Api,
    /// Which version is asked for, of a kind that has several; counts up with each that is not served.
    version: AtomicUsize,
    kind: std::marker::PhantomData<fn() -> K>,
}

/// The path that is asked for when so many were not served.
fn served<'a>(paths: &[&'a str], not_served: usize) -> &'a str {
    paths[not_served % paths.len()]
}

struct OfNodes;
struct OfPods;
struct OfEvents;

/// An object that may wait before it has pods.
trait MayBeHeldBack: serde::de::DeserializeOwned + Send {
    /// Where they are, the newest version first; one at least.
    const PATHS: &'static [&'static str];
    const MAKER: Maker;

    fn meta(&self) -> &Meta;
    fn waits(&self) -> Vec<Asking>;

    /// What made it, by which it may be told as well.
    fn made_by(&self) -> Option<String> {
        held_back::made_by(self.meta())
    }
}

impl MayBeHeldBack for JobObject {
    const PATHS: &'static [&'static str] = &JOBS;
    const MAKER: Maker = Maker::Job;

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn waits(&self) -> Vec<Asking> {
        held_back::job(self)
    }
}

impl MayBeHeldBack for JobSetObject {
    const PATHS: &'static [&'static str] = &JOB_SETS;
    const MAKER: Maker = Maker::JobSet;

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn waits(&self) -> Vec<Asking> {
        held_back::job_set(self)
    }
}

impl MayBeHeldBack for WorkloadObject {
    const PATHS: &'static [&'static str] = &WORKLOADS;
    const MAKER: Maker = Maker::Workload;

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    fn waits(&self) -> Vec<Asking> {
        held_back::workload(self)
    }
}

impl<K> Following<'_, K> {
    fn failed_at(&self, tells: Tells, why: &ApiError) {
        let mut known = self.app.inventory.known();
        note(tells.of(&mut known), tells, &why.to_string(), why.refusal());
    }

    /// The same of a kind that comes in so many versions: where this one is not served, the next is asked for.
    fn failed_in_version(&self, tells: Tells, versions: usize, why: &ApiError) {
        if !why.is_not_found() {
            return self.failed_at(tells, why);
        }
        let not_served = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        if not_served >= versions {
            let mut known = self.app.inventory.known();
            tells.of(&mut known).is_absent(NOT_INSTALLED);
        }
    }
}

impl Follow for Following<'_, OfNodes> {
    type Object = NodeObject;
    /// Those with GPUs, and the names of those without.
    type All = (Vec<Node>, BTreeSet<String>);

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        NODES.to_owned()
    }

    async fn api(&self) -> &Api {
        self.api
    }

    fn gather(&self, all: &mut Self::All, object: NodeObject) {
        let name = object.metadata.name.clone();
        match node(object) {
            Some(node) => all.0.push(node),
            None => {
                all.1.insert(name);
            }
        }
    }

    fn replace(&self, (nodes, without_gpus): Self::All) {
        let now = now(self.app);
        let mut known = self.app.inventory.known();
        known.all_without_gpus(&without_gpus, now.at);
        known.all_nodes(nodes, now);
    }

    fn put(&self, object: NodeObject) {
        let name = object.metadata.name.clone();
        let at = self.app.clock.now();
        let mut known = self.app.inventory.known();
        match node(object) {
            Some(node) => known.node(node, at),
            None => known.node_without_gpus(&name, at),
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

impl<K: MayBeHeldBack> Follow for Following<'_, K> {
    type Object = K;
    type All = HeldBack;

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        served(K::PATHS, self.version.load(Ordering::Relaxed)).to_owned()
    }

    async fn api(&self) -> &Api {
        self.api
    }

    fn gather(&self, all: &mut HeldBack, object: K) {
        all.put_of(&object.meta().uid, object.waits(), object.made_by());
    }

    fn replace(&self, all: HeldBack) {
        let now = now(self.app);
        self.app.inventory.known().held_back(K::MAKER).all(all, now);
    }

    fn put(&self, object: K) {
        let mut known = self.app.inventory.known();
        let (waits, maker) = (object.waits(), object.made_by());
        let held_back = known.held_back(K::MAKER);
        held_back.put_of(&object.meta().uid, waits, maker);
    }

    fn remove(&self, object: K) {
        let mut known = self.app.inventory.known();
        known.held_back(K::MAKER).remove(&object.meta().uid);
    }

    fn heard(&self) {
        let now = now(self.app);
        let mut known = self.app.inventory.known();
        known.held_back(K::MAKER).standing.heard(now);
    }

    fn failed(&self, why: &ApiError) {
        self.failed_in_version(Tells::HeldBack(K::MAKER), K::PATHS.len(), why);
    }
}

impl Follow for Following<'_, OfEvents> {
    type Object = EventObject;
    type All = ScalerSaid;

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        EVENTS.to_owned()
    }

    async fn api(&self) -> &Api {
        self.api
    }

    fn gather(&self, all: &mut ScalerSaid, object: EventObject) {
        if let Some((pod, scaled)) = event(&object) {
            all.said(pod, scaled);
        }
    }

    fn replace(&self, all: ScalerSaid) {
        let now = now(self.app);
        self.app.inventory.known().scaler.all(all, now);
    }

    fn put(&self, object: EventObject) {
        if let Some((pod, scaled)) = event(&object) {
            self.app.inventory.known().scaler.said(pod, scaled);
        }
    }

    /// What it said does not cease to be so because the event is forgotten; it goes with time.
    fn remove(&self, _: EventObject) {}

    fn heard(&self) {
        let now = now(self.app);
        self.app.inventory.known().scaler.standing.heard(now);
    }

    fn failed(&self, why: &ApiError) {
        self.failed_at(Tells::Events, why);
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

    #[test]
    fn the_newest_version_is_asked_for_first_and_when_none_is_served_all_are_asked_for_again() {
        for paths in [&JOB_SETS[..], &WORKLOADS[..]] {
            let asked: Vec<&str> = (0..=paths.len()).map(|it| served(paths, it)).collect();
            assert_eq!(asked[..paths.len()], *paths);
            assert_eq!(asked[paths.len()], paths[0]);
        }
        let version = |path: &str| path.split('/').nth(3).map(str::to_owned);
        let all = |paths: &[&str]| {
            paths
                .iter()
                .filter_map(|it| version(it))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(&WORKLOADS), ["v1beta2", "v1beta1"]);
        assert_eq!(all(&JOB_SETS), ["v1beta1", "v1alpha2"]);
    }
}
