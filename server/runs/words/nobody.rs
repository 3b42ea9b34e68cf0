//! What makes a run wait and is of no one rank: a stage with more work, a part of a stage, the data. None of it has a
//! price.

use gpufleet_analysis::straggler::{Silent, Unnamed, Verdict};

use crate::words::Said;

/// Why.
const UNPRICED: &str = " It has no price: how long a step would take without it is not known.";

/// What it is, where there is any.
pub(super) fn words(verdict: &Verdict) -> Option<Said> {
    let said = if let Some(stage) = verdict.stages.first() {
        let (beside, machines) = match verdict.silent {
            Some(Silent::NoPeers) => ("Each rank is alone on its stage", "its machine is slow"),
            _ => (
                "No rank is slow beside those of its stage",
                "all of its machines are slow",
            ),
        };
        Said::from(format!(
            "{beside}; pipeline stage {} takes {:.2} × as long as the others: it has more work, or {machines}.",
            stage.stage, stage.ratio
        ))
    } else if let Some(parted) = verdict.parted.first() {
        let slow = format!(
            "No one rank is named: {} of the {} ranks of pipeline stage {} take {:.2} × as long as the rest, ",
            parted.slow, parted.of, parted.stage, parted.ratio
        );
        Said::from(slow).and(unnamed(parted.unnamed)).and(".")
    } else {
        let moving = verdict.moving.as_ref()?;
        Said::from(format!(
            "No one rank is slow: the slowest keeps changing, {:.2} × its peers, which is the data.",
            moving.ratio
        ))
    };
    Some(said.and(UNPRICED))
}

/// Why none of many ranks is named that are slow alike: the end of a sentence.
fn unnamed(why: Unnamed) -> Said {
    let why = match why {
        Unnamed::SameData => {
            "and so do the other stages that compute the same data: it is the data, or machines that hold all of its \
             stages"
        }
        Unnamed::HostsUnknown => {
            return Said::open(
                "silent",
                "and it is not known which machines they are on: it is the machines or how the work is split",
            );
        }
        Unnamed::BesideFast => {
            "and ranks of the rest are on the same machines: it is how the stage's work is split"
        }
        Unnamed::SamePart => {
            "and they hold the same part of each sequence: it is how sequences are cut over the ranks of context \
             parallelism"
        }
        Unnamed::Alone => {
            "and not each has another of them on its machine: it is the machines or how the work is split"
        }
    };
    why.into()
}
