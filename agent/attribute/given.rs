//! Which GPUs Slurm means: what its prolog wrote and what it said when it was asked, held against where the processes of
//! its jobs are. The kernel knows these; a number may be another GPU's than it seems. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::identity::{ResourceKind, attribute};

use super::allocations::Given;
use super::by_process::jobs_on;
use super::processes::Looked;
use super::prolog::Wrote;
use super::users::Card;

/// What Slurm said of a GPU when it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    /// These jobs have it.
    Jobs(&'a BTreeSet<u64>),
    /// A job has it, and it does not say which.
    Held,
    /// No job has it.
    Free,
}

/// What Slurm said of the GPUs and shares, as far as no process shows that it meant others.
#[derive(Debug, Default)]
pub(super) struct Words<'a> {
    wrote: Option<&'a Wrote>,
    asked: BTreeMap<Arc<str>, Asked<'a>>,
    /// The job whose processes show that the prolog's numbers are of other GPUs.
    refuted_by: Option<u64>,
}

impl<'a> Words<'a> {
    /// What the prolog wrote and what was said on being asked, of these GPUs with these processes.
    pub(super) fn new(
        cards: &[Card],
        looked: &Looked,
        wrote: Option<&'a Wrote>,
        given: Option<&'a Given>,
    ) -> Self {
        let refuted_by = wrote.and_then(|wrote| {
            let is_its = |card: &Card, job: u64| {
                let jobs = wrote.of.get(&card.resource.id);
                jobs.is_some_and(|it| it.contains(&job))
            };
            refuting(cards, looked, is_its, |job| wrote.numbered.contains(&job))
        });
        // A prolog that tells is newer than any answer, and its numbers may be of another order than gres.conf's: laid
        // over each other they would give one job the GPUs of both.
        let given = given.filter(|_| wrote.is_none() || refuted_by.is_some());
        let asked = given.map(|it| asked(cards, looked, it));
        Self {
            wrote: wrote.filter(|_| refuted_by.is_none()),
            asked: asked.unwrap_or_default(),
            refuted_by,
        }
    }

    /// Whether a prolog tells, so that nobody has to be asked.
    pub(super) const fn is_written(&self) -> bool {
        self.wrote.is_some()
    }

    /// The jobs that the prolog wrote for it; none where it wrote none.
    pub(super) fn written(&self, card: &Card) -> Option<&'a BTreeSet<u64>> {
        let jobs = self.wrote?.of.get(&card.resource.id)?;
        (!jobs.is_empty()).then_some(jobs)
    }

    /// What was said of it on being asked; none where nothing was, or it cannot be known of which GPU.
    pub(super) fn asked(&self, card: &Card) -> Option<Asked<'a>> {
        self.asked.get(&card.resource.id).copied()
    }

    /// The job whose processes show that the prolog's numbers are of other GPUs.
    pub(super) const fn refuted_by(&self) -> Option<u64> {
        self.refuted_by
    }
}

/// A job that has GPUs by their numbers, and whose processes are on none of these and on another.
fn refuting(
    cards: &[Card],
    looked: &Looked,
    is_its: impl Fn(&Card, u64) -> bool,
    is_numbered: impl Fn(u64) -> bool,
) -> Option<u64> {
    let (mut right, mut wrong) = (BTreeSet::new(), BTreeSet::new());
    for card in cards {
        for job in jobs_on(card, looked) {
            match is_its(card, job) {
                true => right.insert(job),
                false => wrong.insert(job),
            };
        }
    }
    let mut wrong = wrong.difference(&right).copied();
    wrong.find(|it| is_numbered(*it))
}

/// By GPU what was said; nothing where Slurm has more or fewer of them than there are, or means others.
fn asked<'a>(cards: &[Card], looked: &Looked, given: &'a Given) -> BTreeMap<Arc<str>, Asked<'a>> {
    let order = in_order(cards).filter(|it| it.len() == given.total);
    let order = order.unwrap_or_default().into_iter();
    let told = order.zip(0_u32..).map(|(id, index)| {
        let asked = match given.of.get(&index) {
            _ if !given.used.contains(&index) => Asked::Free,
            Some(jobs) => Asked::Jobs(jobs),
            None => Asked::Held,
        };
        (Arc::clone(id), asked)
    });
    let told: BTreeMap<Arc<str>, Asked<'a>> = told.collect();
    let is_its = |card: &Card, job: u64| match told.get(&card.resource.id) {
        Some(Asked::Jobs(jobs)) => jobs.contains(&job),
        _ => false,
    };
    let is_numbered = |job: u64| given.of.values().any(|it| it.contains(&job));
    match refuting(cards, looked, is_its, is_numbered) {
        Some(_) => BTreeMap::new(),
        None => told,
    }
}

/// The GPUs in the order of their device files, which is commonly that of gres.conf; none where one is cut into
/// instances: Slurm counts these.
fn in_order(cards: &[Card]) -> Option<Vec<&Arc<str>>> {
    if cards.iter().any(|it| it.resource.kind != ResourceKind::Gpu) {
        return None;
    }
    let numbered =
        numbers(cards, attribute::GPU_MINOR).or_else(|| numbers(cards, attribute::GPU_INDEX))?;
    Some(numbered.into_values().collect())
}

/// The GPUs among these by a number that each of them has; none where one has none, or two have the same.
pub(super) fn numbers<'a>(cards: &'a [Card], name: &str) -> Option<BTreeMap<u32, &'a Arc<str>>> {
    let gpus = cards
        .iter()
        .filter(|it| it.resource.kind == ResourceKind::Gpu);
    let mut found = BTreeMap::new();
    for card in gpus {
        let number: u32 = card.resource.attribute(name)?.parse().ok()?;
        if found.insert(number, &card.resource.id).is_some() {
            return None;
        }
    }
    Some(found)
}
