//! A run in one sentence: whether it goes on, how fast, who is slow and since when.

use gpufleet_analysis::straggler::{Silent, Verdict};
use gpufleet_telemetry::time::Timestamp;

use super::{Judged, Run, State};
use crate::pages::text;

/// Ranks named in the sentence; the map has them all.
const NAMED: usize = 3;

/// Why a run that stands has no pace and no finish.
pub const STANDS: &str = "it stands: no step came lately";

/// The sentence that stands above everything else.
pub fn sentence(run: &Run, now: Timestamp) -> String {
    match run.state(now) {
        State::Running => running(run, now),
        State::Silent { since } => format!(
            "Silent: nothing was heard of it since {} UTC, {}. Whether it runs is not known.",
            text::moment(since),
            text::ago(now, since)
        ),
        State::Ended { at } => {
            let when = text::moment(at);
            match &run.facts.ending {
                Some(ending) => format!("Ended at {when} UTC: {}", ending.sentence),
                None => format!("Ended at {when} UTC; why is being looked at."),
            }
        }
    }
}

fn running(run: &Run, now: Timestamp) -> String {
    let Some(judged) = &run.judged else {
        return match run.last_step() {
            Some(step) => format!("Runs, at step {step}; how fast is not known yet."),
            None => "Runs, and has not told a step yet.".to_owned(),
        };
    };
    if let Some(since) = run.stands_since(now) {
        return format!(
            "Stands: its ranks are heard, and no step came since step {} ended at {} UTC, {}.",
            text::grouped(judged.step as f64),
            text::moment(since),
            text::ago(now, since)
        );
    }
    let pace = text::pace(judged.step_ns as f64 / 1e9);
    let tokens = run.tokens_per_second();
    let tokens = tokens.map(|it| format!(", {} tokens/s", text::grouped(it.round())));
    let gone = run.members().filter(|(_, it)| it.facts.end.is_some());
    let gone = gone.count();
    let gone = match gone {
        0 => String::new(),
        gone => format!(
            " {} already ended.",
            text::counted(gone, "rank has", "ranks have")
        ),
    };
    format!(
        "Runs: {pace} a step{}, at step {}. {}{gone}",
        tokens.unwrap_or_default(),
        text::grouped(judged.step as f64),
        slow(run, judged)
    )
}

/// Who is slow, or why nobody is named.
fn slow(run: &Run, judged: &Judged) -> String {
    let Verdict {
        stragglers,
        stages,
        moving,
        silent,
    } = &judged.verdict;
    let named = stragglers.iter().take(NAMED).map(|it| {
        let node = run.ranks.get(&it.rank).map(|it| it.facts.node.as_str());
        let node = node.filter(|it| !it.is_empty());
        let node = node.map(|it| format!(" on {}", text::harmless(it, text::SHOWN_CHARACTERS)));
        let since = judged
            .since
            .get(&it.rank)
            .copied()
            .unwrap_or(judged.ended_at);
        format!(
            "Rank {}{} takes {:.2} × as long as its peers since {} UTC and makes the others wait.",
            it.rank,
            node.unwrap_or_default(),
            it.ratio,
            text::moment(since)
        )
    });
    let named: Vec<String> = named.collect();
    if !named.is_empty() {
        let more = stragglers.len() - named.len();
        let more = (more > 0).then(|| format!(" And {more} more."));
        return named.join(" ") + &more.unwrap_or_default();
    }
    if let Some(stage) = stages.first() {
        return format!(
            "No rank is slow; pipeline stage {} has {:.2} × the work of the others.",
            stage.stage, stage.ratio
        );
    }
    if let Some(moving) = moving {
        return format!(
            "No one rank is slow: the slowest keeps changing, {:.2} × its peers, which is the data.",
            moving.ratio
        );
    }
    match silent {
        None => "No rank is slower than its peers.".to_owned(),
        Some(why) => format!("Who is slow is not judged: {}.", not_judged(*why)),
    }
}

/// Why nobody is judged or blamed.
pub const fn not_judged(why: Silent) -> &'static str {
    match why {
        Silent::Starting => "too few steps since the start",
        Silent::NoPeers => "there is no other rank to compare with",
        Silent::RanksMissing => "half the ranks do not tell their steps",
        Silent::MeshUnknown => {
            "several look slow, and the run does not say which pipeline stage they are on"
        }
    }
}
