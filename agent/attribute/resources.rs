//! The GPUs and shares as resources that tell who holds them, and what else is needed to know them.

use std::sync::Arc;

use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::sample::ResourceSamples;

use super::held::Found;
use super::users::Card;

/// The GPUs and shares, each with its holder.
pub(super) fn resources(cards: &[Card], found: &Found) -> Vec<ResourceSamples> {
    let cards = cards.iter();
    cards
        .filter_map(|card| {
            let told = &card.resource;
            let facts = found.attributes.get(&told.id)?;
            let mut resource = Resource::new(told.kind, Arc::clone(&told.id));
            resource.attributes.extend(facts.iter().cloned());
            // By these a share is known to be the same.
            for name in [attribute::PARENT, attribute::MIG_GPU_INSTANCE] {
                let value = told.attribute(name).unwrap_or_default();
                resource = resource.with(name, value);
            }
            Some(ResourceSamples {
                resource: Arc::new(resource),
                samples: Vec::new(),
            })
        })
        .collect()
}
