//! What was silent for so long that the fleet knows it no more (`fleet.forget_after_s`), as the store knows it: links
//! of incidents, events and bills lead there for as long as these are kept. It is in no list and in no count.
//!
//! Limits: of at most [`MAX_CLUSTERS`] clusters it is looked whether there ever was a live one.

use std::sync::Arc;

use gpufleet_telemetry::identity::{Origin, ResourceKind};

use super::{FleetView, gather};
use crate::App;
use crate::auth::Grant;
use crate::fleet::Live;
use crate::fleet::naming::origin_of;
use crate::store::StoreError;
use crate::store::model::ResourceKey;

/// Most clusters that are looked at: agents may give any names.
const MAX_CLUSTERS: usize = 100;

/// A resource that was looked for.
pub struct Found {
    /// As it is live; without readings where it is forgotten.
    pub live: Live,
    /// Whether the fleet knows it no more.
    pub is_forgotten: bool,
}

/// A picture in which a node was looked for.
pub struct WithNode {
    /// That of now; of a node that is forgotten, one of it alone.
    pub view: Arc<FleetView>,
    /// The machine's own readings; none where nobody tells any.
    pub live: Option<Live>,
    /// Whether the fleet knows the node no more.
    pub is_forgotten: bool,
}

/// A GPU or a share; none where neither fleet nor store knows it, or the token may not see its cluster.
///
/// # Errors
/// When the fleet does not know it and the store does not answer.
pub async fn gpu(
    app: &App,
    grant: &Grant,
    cluster: &str,
    id: &str,
) -> Result<Option<Found>, StoreError> {
    if !grant.may_see(cluster) {
        return Ok(None);
    }
    let keys = [ResourceKind::Gpu, ResourceKind::Share].map(|kind| ResourceKey {
        cluster: cluster.into(),
        kind,
        id: id.into(),
    });
    if let Some(live) = keys.iter().find_map(|key| app.fleet.get(key)) {
        return Ok(Some(Found {
            live,
            is_forgotten: false,
        }));
    }
    let stored = app.store.resources_named(&keys).await?;
    let newest = stored.iter().max_by_key(|it| it.last_seen);
    Ok(newest.map(|it| Found {
        live: Live::stored(it),
        is_forgotten: true,
    }))
}

/// Of which origin something is stored that a reader may see: that of the cluster that he is bound to, else live where
/// any cluster was; none where nothing is.
///
/// # Errors
/// When the store does not answer.
pub async fn was_there(app: &App, grant: &Grant) -> Result<Option<Origin>, StoreError> {
    if let Some(bound) = &grant.cluster {
        let is_there = app.store.has_cluster(bound).await?;
        return Ok(is_there.then(|| origin_of(bound)));
    }
    let mut last = String::new();
    for _ in 0..MAX_CLUSTERS {
        match app.store.cluster_after(&last).await? {
            Some(name) if origin_of(&name) == Origin::Live => return Ok(Some(Origin::Live)),
            Some(name) => last = name,
            None => break,
        }
    }
    Ok(None)
}

/// Of a picture without a cluster, whether anything was there that a reader may see: so not before the first agent came.
/// None of one with a cluster, and where the store does not answer.
pub async fn ever(app: &App, view: &FleetView, grant: &Grant) -> Option<bool> {
    if !view.clusters.is_empty() {
        return None;
    }
    let was = was_there(app, grant).await;
    let was = was.inspect_err(|error| {
        tracing::error!(%error, "whether anything was ever reported cannot be read");
    });
    Some(was.ok()?.is_some())
}

/// The picture with a node, or as it was where neither fleet nor store knows the node, or the token may not see its
/// cluster.
///
/// # Errors
/// When the fleet does not know it and the store does not answer.
pub async fn with_node(
    app: &App,
    view: Arc<FleetView>,
    grant: &Grant,
    (cluster, name): (&str, &str),
) -> Result<WithNode, StoreError> {
    let key = ResourceKey {
        cluster: cluster.into(),
        kind: ResourceKind::Node,
        id: name.into(),
    };
    if view.node(cluster, name).is_some() || !grant.may_see(cluster) {
        return Ok(WithNode {
            view,
            live: app.fleet.get(&key),
            is_forgotten: false,
        });
    }
    let stored = app.store.resources_named(&[key]).await?;
    let Some(known) = stored.first() else {
        return Ok(WithNode {
            view,
            live: None,
            is_forgotten: false,
        });
    };
    let gpus = match known.agent {
        Some(agent) => app.store.gpus_told_by(cluster, agent).await?,
        None => Vec::new(),
    };
    let machine = Live::stored(known);
    // A card that was put into another machine is told of there.
    let gpus = gpus.iter().map(Live::stored);
    let mut lives: Vec<Live> = gpus.filter(|it| it.node == machine.node).collect();
    lives.push(machine.clone());
    Ok(WithNode {
        view: Arc::new(gather::of(lives.iter(), view.at)),
        live: Some(machine),
        is_forgotten: true,
    })
}
