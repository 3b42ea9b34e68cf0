//! What is in no row and no sum because it is not measured, or not known whose it is, each with what mends that.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::identity::Origin;

use super::Look;
use super::training::Unrated;
use super::waste::{Kind, Waste};
use crate::words::text::counted;

/// Something that is not measured, or not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmeasured {
    /// What, in one sentence.
    pub what: String,
    /// What mends that.
    pub fix: &'static str,
    /// The page with the line that mends it.
    pub address: Option<&'static str>,
}

/// What is not measured in the clusters of an origin.
pub(super) fn of(
    look: &Look<'_>,
    origin: Origin,
    unrated: &BTreeMap<Origin, Unrated>,
    waste: &[Waste],
) -> Vec<Unmeasured> {
    let is_here = |cluster: &str| look.origin(cluster) == Some(origin);
    let found = look.found;
    let counts = look.view.counts(origin);
    let (blind, unknown) = (counts.unmeasured(), counts.holder_unknown);
    let unpriced = found.unpriced.iter().filter(|it| is_here(&it.0.cluster));
    let unpriced: usize = unpriced.map(|it| it.1.len()).sum();
    let unowned = found.unowned.iter().filter(|it| is_here(&it.0.0));
    // Of a card that two of them share once.
    let unowned = unowned.flat_map(|it| it.1.cards.iter().map(move |card| (&it.0.0, card)));
    let unowned = unowned.collect::<BTreeSet<_>>().len();
    let none = Unrated::default();
    let unrated = unrated.get(&origin).unwrap_or(&none);
    let is_unknown = |it: &&Waste| it.kind == Kind::FailedRun && it.day_cost.is_none();
    let failed = waste.iter().filter(is_unknown).count();
    let gpus = |count| counted(count, "GPU", "GPUs");
    let all = [
        one(
            blind,
            format!(
                "{} not measured: what they do is not known, and they are not called idle.",
                counted(blind, "GPU is", "GPUs are")
            ),
            "The page Health says what opens the eye.",
            Some("/health#silent"),
        ),
        one(
            unknown,
            format!(
                "{} measured, holder unknown: they are called neither idle nor anybody's.",
                counted(unknown, "GPU is", "GPUs are")
            ),
            "The page Health has the line that shows who holds them.",
            Some("/health#holders"),
        ),
        one(
            unpriced,
            format!("{} without a price: in no sum of money.", gpus(unpriced)),
            "The page Health has the line that gives them one.",
            Some("/health#prices"),
        ),
        one(
            unowned,
            format!("{} held by nobody's team.", gpus(unowned)),
            "The page Cost has the rule that names an owner.",
            Some("/cost#unowned"),
        ),
        one(
            unrated.count,
            format!(
                "{} not compared with a target of MFU: {}{}.",
                counted(unrated.count, "running job is", "running jobs are"),
                unrated.named.join(", "),
                match unrated.count - unrated.named.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                }
            ),
            "The job's page says what its MFU lacks: the FLOPs of a step, the type of its arithmetic, or the card's peak.",
            Some("/jobs"),
        ),
        one(
            failed,
            format!(
                "What {} cost is not known.",
                counted(failed, "job that broke off", "jobs that broke off")
            ),
            "A job that tells its steps and checkpoints to the hooks is priced.",
            Some("/health#hooks"),
        ),
        one(
            usize::from(!look.is_sized),
            "Who could do with fewer or smaller GPUs is not worked out yet.".to_owned(),
            "It is within minutes of the first look; the page Cost has it too.",
            Some("/cost"),
        ),
    ];
    all.into_iter().flatten().collect()
}

fn one(
    count: usize,
    what: String,
    fix: &'static str,
    address: Option<&'static str>,
) -> Option<Unmeasured> {
    (count > 0).then_some(Unmeasured { what, fix, address })
}
