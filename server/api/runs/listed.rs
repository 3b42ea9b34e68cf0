//! A run as a list has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::runs::{Run, RunFacts, RunKey, State, words};
use crate::words::text;

/// An attempt of a job, as a list has it.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunKnown {
    /// The cluster it runs in.
    pub cluster: Arc<str>,
    /// The job's id: namespace, name and uid with `/` between them.
    pub job: String,
    /// The job's name.
    pub name: String,
    /// Which attempt, counted from 0.
    pub attempt: u32,
    /// `live`, `recorded` or `simulated`.
    pub origin: &'static str,
    /// `running`, `silent` or `ended`.
    pub state: &'static str,
    /// How it stands in one sentence.
    pub sentence: String,
    /// When its first rank came up; none while nobody said.
    #[schema(format = DateTime)]
    pub started: Option<String>,
    /// When anything of it was last heard.
    #[schema(format = DateTime)]
    pub heard: String,
    /// When it ended; none while it runs, or fell silent.
    #[schema(format = DateTime)]
    pub ended: Option<String>,
    /// Why it ended, for example `exception`; none before that was judged.
    pub cause: Option<String>,
    /// How many ranks it says it has; none where it does not say.
    pub world: Option<u32>,
    /// The tags its user gave it.
    pub tags: BTreeMap<String, String>,
    /// How many more tags it told, beyond what is kept.
    pub tags_left_out: usize,
}

/// What a list has of a run, of which these incidents are open; their money is in this currency.
pub(in crate::api) fn known(
    key: &RunKey,
    run: &Run,
    open: &[Incident],
    now: Timestamp,
    currency: &str,
) -> RunKnown {
    let sentence = words::sentence(run, open, now, currency);
    stands(key, &run.facts, run.state(now), sentence)
}

/// The same of a run that stands so, in this sentence.
pub(in crate::api) fn stands(
    key: &RunKey,
    facts: &RunFacts,
    state: State,
    sentence: String,
) -> RunKnown {
    let ended = match state {
        State::Ended { at } => Some(text::rfc3339(at)),
        State::Running | State::Silent { .. } => None,
    };
    RunKnown {
        cluster: Arc::clone(&key.cluster),
        job: key.run.job.to_string(),
        name: key.run.job.name.clone(),
        attempt: key.run.attempt,
        origin: facts.origin.name(),
        state: state.name(),
        sentence,
        started: facts.started.map(text::rfc3339),
        heard: text::rfc3339(facts.heard),
        ended,
        cause: facts.cause().map(str::to_owned),
        world: (facts.world > 0).then_some(facts.world),
        tags: facts.tags.clone(),
        tags_left_out: facts.tags_left_out,
    }
}
