//! Who holds a resource, as its attributes tell it from request to request.
//!
//! Limits: [`MAX_NEW`] holders of one resource from commit to commit; who comes beyond them is met with the
//! first request after the commit.

use std::sync::Arc;

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::otlp::DecodedResource;

use super::fold::Fold;
use crate::store::model::KnownHolder;

/// Most holders of one resource that wait for its commit: one a tick for ten minutes. The time of those
/// beyond it, up to the commit, is held by somebody who is not known.
const MAX_NEW: usize = 64;

/// Who holds a resource.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// The resource as it was last described, and the number of who holds it; 0 of nobody.
    last: Option<(Arc<Resource>, i64)>,
    /// Who was met since the last commit.
    met: Vec<KnownHolder>,
}

impl Holding {
    /// The resource as this request describes it, the same one as long as it stays the same, and the
    /// number of who holds it.
    pub(super) fn described(
        &mut self,
        fold: &Fold,
        decoded: &DecodedResource,
    ) -> (Arc<Resource>, i64) {
        if let Some((resource, number)) = &self.last
            && **resource == *decoded.resource
        {
            return (Arc::clone(resource), *number);
        }
        let resource = Arc::clone(&decoded.resource);
        let Some(number) = self.holder(fold, decoded) else {
            // Nobody is remembered, so that he is met when there is room.
            self.last = None;
            return (resource, 0);
        };
        self.last = Some((Arc::clone(&resource), number));
        (resource, number)
    }

    /// The number of who holds it; 0 of nobody, none while there is no room for one more.
    fn holder(&mut self, fold: &Fold, decoded: &DecodedResource) -> Option<i64> {
        let resource = &decoded.resource;
        if !matches!(resource.kind, ResourceKind::Gpu | ResourceKind::Share) {
            return Some(0);
        }
        let Some(holder) = Holder::told_by(resource) else {
            return Some(0);
        };
        let number = holder.number();
        let is_last = self.last.as_ref().is_some_and(|it| it.1 == number);
        if is_last || self.met.iter().any(|it| it.number == number) {
            return Some(number);
        }
        if self.met.len() >= MAX_NEW {
            return None;
        }
        let first = decoded.points.first();
        self.met.push(KnownHolder {
            number,
            holder,
            met: first.map_or(fold.received, |it| it.at.shifted(fold.offset)),
        });
        Some(number)
    }

    /// Hands out who was met since the last commit.
    pub(super) fn met(&mut self) -> Vec<KnownHolder> {
        std::mem::take(&mut self.met)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::attribute;
    use gpufleet_telemetry::time::Timestamp;
    use gpufleet_telemetry::wire::Lane;

    use super::*;

    fn held_by(job: &str) -> DecodedResource {
        let gpu = Resource::new(ResourceKind::Gpu, "GPU-1");
        DecodedResource {
            resource: Arc::new(
                gpu.with(attribute::HOLDER, "pod:team/x")
                    .with(attribute::WORKLOAD, job),
            ),
            points: Vec::new(),
        }
    }

    #[test]
    fn a_holder_for_whom_there_was_no_room_is_met_after_the_commit() {
        let fold = Fold {
            lane: Lane::Live,
            offset: 0,
            received: Timestamp::from_seconds(1_790_000_000),
        };
        let mut holding = Holding::default();
        for number in 0..MAX_NEW {
            let (_, number) = holding.described(&fold, &held_by(&format!("job-{number}")));
            assert_ne!(number, 0);
        }
        let (_, again) = holding.described(&fold, &held_by("job-0"));
        assert_ne!(again, 0, "he was met already");
        let long = held_by("long");
        assert_eq!(holding.described(&fold, &long).1, 0);
        assert_eq!(holding.met().len(), MAX_NEW);
        assert_ne!(holding.described(&fold, &long).1, 0);
        assert_eq!(holding.met().len(), 1);
    }
}
