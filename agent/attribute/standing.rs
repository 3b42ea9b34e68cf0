//! How those are doing who know who holds what: when each was heard last, and what is wrong with it.

use std::time::Duration;

use tokio::time::Instant;

/// Who may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The kubelet's PodResources.
    Kubelet,
    /// The Kubernetes API.
    Kubernetes,
    /// The same, of resource claims.
    Claims,
    /// `scontrol`, of jobs.
    Slurm,
    /// `squeue` and `scontrol`, of this node's GPUs.
    Allocations,
}

/// How one of them is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Standing {
    heard_at: Option<Instant>,
    error: Option<String>,
}

impl Source {
    /// Its name in metrics, events and the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Kubernetes => "kubernetes",
            Self::Claims => "kubernetes_claims",
            Self::Slurm => "slurm",
            Self::Allocations => "slurm_gpus",
        }
    }
}

impl Standing {
    /// It answered now.
    pub(super) fn heard(&mut self) {
        self.heard_at = Some(Instant::now());
        self.error = None;
    }

    /// It failed; the first time after it worked is worth a line.
    pub(super) fn failed(&mut self, source: Source, why: String) {
        if self.error.is_none() {
            tracing::warn!(
                source = source.name(),
                error = why,
                "who holds GPUs may be unknown"
            );
        }
        self.error = Some(why);
    }

    /// It is not asked any more: what was wrong with it matters to nobody.
    pub(super) fn rests(&mut self) {
        self.error = None;
    }

    /// How long ago it answered last; none where it never did.
    pub(super) fn age(&self) -> Option<Duration> {
        self.heard_at.map(|it| it.elapsed())
    }

    /// What is wrong with it.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}
