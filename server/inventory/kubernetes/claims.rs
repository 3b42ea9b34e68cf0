//! Follows what dynamic resource allocation has: slices of devices, their classes, the claims and what these are made of.
//!
//! The API was v1beta1, then v1beta2, and is v1: of these the newest is taken that the server serves; where it serves
//! none there are no such GPUs, and all are asked for again, because it may be upgraded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpufleet_program::kubernetes::follow::{self, Follow};
use gpufleet_program::kubernetes::{Api, ApiError};
use serde::de::DeserializeOwned;

use super::super::known::{Asks, DeviceClaim, DeviceKind, Gives, Slice};
use super::super::{known::ClusterState, now};
use super::devices::{self, ClaimObject, ClassObject, SliceObject, TemplateObject};
use super::{NOT_INSTALLED, Tells, note};
use crate::App;

/// Versions that are understood, the newest first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// So long nodes wait for it to be known which GPUs are given out by claims.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);

/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Follows all of them, for ever.
pub(super) async fn run(app: &App, api: &Api) {
    let (slices, classes, claims, templates) = (
        Following::<SliceObject>::new(app, api),
        Following::<ClassObject>::new(app, api),
        Following::<ClaimObject>::new(app, api),
        Following::<TemplateObject>::new(app, api),
    );
    tokio::join!(
        follow::follow(&slices),
        follow::follow(&classes),
        follow::follow(&claims),
        follow::follow(&templates),
    );
}

/// Returns when it is known which GPUs are given out by claims, or that it will not be.
pub(super) async fn decided(app: &App) {
    let decided = async {
        while !app.inventory.known().claimed.is_decided() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    // Who is not answered within it hears of nodes all the same.
    let _late = tokio::time::timeout(DECIDED_WITHIN, decided).await;
}

/// Follows one kind of object.
struct Following<'a, K> {
    app: &'a App,
    api: &'a Api,
    /// Which of [`VERSIONS`] is asked for.
    version: AtomicUsize,
    kind: std::marker::PhantomData<fn() -> K>,
}

/// An object of the API.
trait OfDevices: DeserializeOwned + Send {
    /// Of a list of them this much is kept.
    type All: Default + Send;

    const RESOURCE: &str;
    const KIND: DeviceKind;

    fn gather(self, all: &mut Self::All);
    fn replace(all: Self::All, app: &App);
    /// It is new or changed, or gone.
    fn take(self, is_there: bool, app: &App);
}

impl OfDevices for SliceObject {
    type All = Vec<(String, Slice)>;

    const RESOURCE: &str = "resourceslices";
    const KIND: DeviceKind = DeviceKind::Slice;

    fn gather(self, all: &mut Self::All) {
        let name = self.metadata.name.clone();
        all.extend(devices::slice(self).map(|it| (name, it)));
    }

    fn replace(all: Self::All, app: &App) {
        let now = now(app);
        let mut known = app.inventory.known();
        let nodes = known.claimed.all_slices(all, now);
        known.slices_changed(nodes.iter().map(String::as_str), now.at);
    }

    fn take(self, is_there: bool, app: &App) {
        let name = self.metadata.name.clone();
        let Some(slice) = devices::slice(self) else {
            return;
        };
        let at = app.clock.now();
        let node = slice.node.clone();
        let mut known = app.inventory.known();
        match is_there {
            true => known.claimed.slice(&name, slice),
            false => known.claimed.slice_gone(&name, &node),
        }
        known.slices_changed([node.as_str()].into_iter(), at);
    }
}

impl OfDevices for ClassObject {
    type All = BTreeMap<String, Gives>;

    const RESOURCE: &str = "deviceclasses";
    const KIND: DeviceKind = DeviceKind::Class;

    fn gather(self, all: &mut Self::All) {
        all.insert(self.metadata.name.clone(), devices::class(&self));
    }

    fn replace(all: Self::All, app: &App) {
        let now = now(app);
        app.inventory.known().claimed.all_classes(all, now);
    }

    fn take(self, is_there: bool, app: &App) {
        let gives = is_there.then(|| devices::class(&self));
        let mut known = app.inventory.known();
        known.claimed.class(&self.metadata.name, gives);
    }
}

impl OfDevices for ClaimObject {
    type All = BTreeMap<String, DeviceClaim>;

    const RESOURCE: &str = "resourceclaims";
    const KIND: DeviceKind = DeviceKind::Claim;

    fn gather(self, all: &mut Self::All) {
        all.insert(self.metadata.full_name(), devices::claim(self));
    }

    fn replace(all: Self::All, app: &App) {
        let now = now(app);
        app.inventory.known().claimed.all_claims(all, now);
    }

    fn take(self, is_there: bool, app: &App) {
        let name = self.metadata.full_name();
        let claim = is_there.then(|| devices::claim(self));
        app.inventory.known().claimed.claim(&name, claim);
    }
}

impl OfDevices for TemplateObject {
    type All = BTreeMap<String, Asks>;

    const RESOURCE: &str = "resourceclaimtemplates";
    const KIND: DeviceKind = DeviceKind::Template;

    fn gather(self, all: &mut Self::All) {
        all.insert(self.metadata.full_name(), devices::template(self));
    }

    fn replace(all: Self::All, app: &App) {
        let now = now(app);
        app.inventory.known().claimed.all_templates(all, now);
    }

    fn take(self, is_there: bool, app: &App) {
        let name = self.metadata.full_name();
        let asks = is_there.then(|| devices::template(self));
        app.inventory.known().claimed.template(&name, asks);
    }
}

impl<'a, K> Following<'a, K> {
    const fn new(app: &'a App, api: &'a Api) -> Self {
        Self {
            app,
            api,
            version: AtomicUsize::new(0),
            kind: std::marker::PhantomData,
        }
    }
}

impl<K: OfDevices> Follow for Following<'_, K> {
    type Object = K;
    type All = K::All;

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        let version = VERSIONS[self.version.load(Ordering::Relaxed) % VERSIONS.len()];
        format!("/apis/resource.k8s.io/{version}/{}", K::RESOURCE)
    }

    async fn api(&self) -> &Api {
        self.api
    }

    fn gather(&self, all: &mut K::All, object: K) {
        object.gather(all);
    }

    fn replace(&self, all: K::All) {
        K::replace(all, self.app);
    }

    fn put(&self, object: K) {
        object.take(true, self.app);
    }

    fn remove(&self, object: K) {
        object.take(false, self.app);
    }

    fn heard(&self) {
        let now = now(self.app);
        self.app
            .inventory
            .known()
            .claimed
            .standing(K::KIND)
            .heard(now);
    }

    fn failed(&self, why: &ApiError) {
        let tells = Tells::Devices(K::KIND);
        let mut known = self.app.inventory.known();
        let known: &mut ClusterState = &mut known;
        if why.is_not_found() {
            let tried = self.version.fetch_add(1, Ordering::Relaxed) + 1;
            if tried >= VERSIONS.len() {
                tells.of(known).is_absent(NOT_INSTALLED);
            }
            return;
        }
        note(tells.of(known), tells, &why.to_string(), why.refusal());
    }
}
