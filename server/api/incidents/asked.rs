//! Which incidents a list is of: the parameters of `/incidents`, which the page of that name takes as well.

use gpufleet_analysis::incident::{Family, State};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::api::moments::span;
use crate::api::paging;
use crate::api::problem::Problem;
use crate::auth::Grant;
use crate::store::model::{IncidentFilter, IncidentPlace};

/// Which incidents. Where a severity, node, GPU or run is asked for a page may have few items or none, and a next one.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct IncidentsAsked {
    /// Only of this cluster, and of budgets that name it.
    pub cluster: Option<String>,
    /// Only of this family: `gpu_fault`, `heat`, `blind` and so on.
    pub family: Option<String>,
    /// `open` or `resolved`; without it both.
    pub state: Option<String>,
    /// Only those at least so bad: `info`, `warning` or `error`. A page may then have few items or none, and a next one.
    pub severity: Option<String>,
    /// Only those at this node: one that is about many places is found by each that is in its evidence. A page may then
    /// have few items or none, and a next one.
    pub node: Option<String>,
    /// Only those at this GPU, by its id. With `node` both have to be said of one place.
    pub gpu: Option<String>,
    /// Only those of this run or job: its id, or the job's `namespace/name` or name.
    #[param(example = "team/llama")]
    pub run: Option<String>,
    /// Only those that were not over before this moment, RFC 3339.
    #[param(format = DateTime)]
    pub from: Option<String>,
    /// Only those that began before this moment, RFC 3339.
    #[param(format = DateTime)]
    pub to: Option<String>,
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

impl IncidentsAsked {
    /// The same for the store and for what is in memory, of what a reader may see.
    ///
    /// # Errors
    /// When a word is none of those that are taken, a moment is none, `from` is not before `to`, or the cluster is none
    /// that the reader may see.
    pub fn filter(&self, grant: &Grant) -> Result<IncidentFilter, Problem> {
        let (from, to) = span(self.from.as_deref(), self.to.as_deref())?;
        Ok(IncidentFilter {
            cluster: Problem::of_cluster(grant, self.cluster.as_deref())?,
            family: self.family.as_deref().map(family).transpose()?,
            state: self.state.as_deref().map(state).transpose()?,
            resolved_since: None,
            from,
            to,
            severity: self.severity.as_deref().map(severity).transpose()?,
            node: self.node.clone(),
            gpu: self.gpu.clone(),
            run: self.run.clone(),
        })
    }

    /// Behind which place of the list to go on.
    ///
    /// # Errors
    /// When `after` is no cursor of it.
    pub fn before(&self) -> Result<Option<IncidentPlace>, Problem> {
        self.after.as_deref().map(place).transpose()
    }
}

fn family(name: &str) -> Result<Family, Problem> {
    Family::parse(name).ok_or_else(|| {
        let names = Family::ALL.map(Family::name).join(", ");
        Problem::bad(format_args!("family=“{name}”: it is one of {names}"))
    })
}

fn state(name: &str) -> Result<State, Problem> {
    match name {
        "open" => Ok(State::Open),
        "resolved" => Ok(State::Resolved),
        other => Err(Problem::bad(format_args!(
            "state=“{other}”: it is open or resolved"
        ))),
    }
}

fn severity(name: &str) -> Result<Severity, Problem> {
    Severity::parse(name).ok_or_else(|| {
        Problem::bad(format_args!(
            "severity=“{name}”: it is info, warning or error"
        ))
    })
}

/// A place in the list as a cursor.
pub(crate) fn cursor(place: IncidentPlace) -> String {
    paging::write_cursor(&[place.since.millis().to_string(), place.id.to_string()])
}

fn place(cursor: &str) -> Result<IncidentPlace, Problem> {
    let words = paging::read_cursor(cursor).unwrap_or_default();
    let parsed = match words.as_slice() {
        [millis, id] => millis.parse::<i64>().ok().zip(id.parse().ok()),
        _ => None,
    };
    let parsed = parsed.filter(|(millis, _)| millis.checked_mul(1_000_000).is_some());
    let (millis, id) = parsed.ok_or_else(|| {
        Problem::bad(
            "after: this is no cursor of this list; use the next of the answer before, as it is",
        )
    })?;
    Ok(IncidentPlace {
        since: Timestamp::from_millis(millis),
        id,
    })
}
