//! Follows what dynamic resource allocation has: slices of devices, their classes, the claims and what these are made of.
//!
//! The API was v1beta1, then v1beta2, and is v1: of these the newest is taken that the server serves; where it serves
//! none there are no such GPUs, and all are asked for again, because it may be upgraded.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpufleet_program::kubernetes::follow::{self, Follow};
use gpufleet_program::kubernetes::{Api, ApiError};
use serde::de::DeserializeOwned;

use super::super::known::{Asks, DeviceClaim, DeviceKind, Gives, Slice};
use super::super::now;
use super::devices::{self, ClaimObject, ClassObject, SliceObject, TemplateObject};
use super::{Following, Tells, follow_of, served};
use crate::App;

/// Versions that are understood, the newest first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// So long nodes wait for it to be known which GPUs are given out by claims.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);

/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Follows all of them, for ever.
pub(super) async fn run(app: &App, api: &Api) {
    let slices = follow_of::<Device<SliceObject>>(app, api);
    let classes = follow_of::<Device<ClassObject>>(app, api);
    let claims = follow_of::<Device<ClaimObject>>(app, api);
    let templates = follow_of::<Device<TemplateObject>>(app, api);
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

/// A kind of object that is followed as [`OfDevices`] says.
struct Device<K>(PhantomData<K>);

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

impl<K: OfDevices> Follow for Following<'_, Device<K>> {
    type Object = K;
    type All = K::All;

    const IS_SHORT: bool = false;

    fn path(&self) -> String {
        let version = served(&VERSIONS, self.version.load(Ordering::Relaxed));
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
        self.failed_in_version(Tells::Devices(K::KIND), VERSIONS.len(), why);
    }
}
