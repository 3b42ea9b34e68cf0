//! GPUs that are alike: of one model, under one job.
//!
//! Each such group is held once, and its GPUs name it by its address: to read the names of a hundred thousand at
//! every tick costs more than to judge them.

use std::collections::HashSet;
use std::sync::Arc;

use gpufleet_analysis::owner::job_of;
use gpufleet_telemetry::identity::attribute;

use crate::fleet::Live;

/// What GPUs that are alike have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::detect) struct Alike {
    pub(in crate::detect) cluster: Arc<str>,
    pub(in crate::detect) model: Arc<str>,
    /// The job that holds them; none when nobody does or it is not known.
    pub(in crate::detect) job: Option<Arc<str>>,
}

impl Alike {
    /// As a GPU or share says itself.
    pub(super) fn told_by(live: &Live) -> Self {
        let text = |name| live.resource.attribute(name).filter(|it| !it.is_empty());
        // Of Slurm JOB is a name, which others may have given too.
        let job = text(attribute::WORKLOAD)
            .or_else(|| text(attribute::HOLDER).map(job_of))
            .or_else(|| text(attribute::JOB));
        Self {
            cluster: Arc::clone(&live.key.cluster),
            model: text(attribute::GPU_MODEL).unwrap_or_default().into(),
            job: job.map(Into::into),
        }
    }
}

/// All groups that a GPU is of.
#[derive(Default)]
pub(super) struct Groups(HashSet<Arc<Alike>>);

impl Groups {
    /// The one that is called so.
    pub(super) fn of(&mut self, called: Alike) -> Arc<Alike> {
        let group = match self.0.get(&called) {
            Some(known) => Arc::clone(known),
            None => Arc::new(called),
        };
        self.0.insert(Arc::clone(&group));
        group
    }

    /// Forgets those that nobody names any more.
    pub(super) fn forget(&mut self) {
        self.0.retain(|it| Arc::strong_count(it) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_address_as_long_as_somebody_names_it() {
        let mut groups = Groups::default();
        let called = |job: &str| Alike {
            cluster: "prod".into(),
            model: "H100".into(),
            job: Some(job.into()),
        };
        let one = groups.of(called("a"));
        assert!(Arc::ptr_eq(&one, &groups.of(called("a"))));
        assert!(!Arc::ptr_eq(&one, &groups.of(called("b"))));
        groups.forget();
        assert_eq!(groups.0.len(), 1, "nobody is of b");
        assert!(Arc::ptr_eq(&one, &groups.of(called("a"))));
    }
}
