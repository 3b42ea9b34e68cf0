//! Teams over their budgets: the open incidents that say so, with the money of the month as it was made last.

use std::cmp::Reverse;

use gpufleet_analysis::incident::{Family, Incident, Place};
use gpufleet_analysis::owner::Payer;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use crate::App;
use crate::money::budgets;
use crate::store::MoneyMonth;
use crate::words::incident::status;

/// A team that spent more in the month that runs than its budget has, or will by the month's forecast.
#[derive(Debug, Clone)]
pub struct OverBudget {
    /// The team, whose its budget is.
    pub team: String,
    /// The cluster that its budget names; none where it is of all live clusters together.
    pub cluster: Option<String>,
    /// A warning where it is over, information where it will be.
    pub severity: Severity,
    /// What is the case, in few words.
    pub what: String,
    /// What was spent so far, nano-units; none where that is not known, as before a month was made after a start.
    pub spent: Option<i64>,
    /// The budget, nano-units; none where that is not known.
    pub budget: Option<i64>,
    /// What the month will come to, nano-units; none before there was a whole day.
    pub forecast: Option<i64>,
    /// Since when.
    pub since: Timestamp,
    /// What to do.
    pub action: String,
    /// How its incident stands.
    pub status: String,
    /// Its incident.
    pub incident: Uuid,
}

/// What these open incidents say of budgets: those that are over first, then the oldest.
pub(super) fn over(app: &App, open: &[Incident], at: Timestamp) -> Vec<OverBudget> {
    let standings = app.money.standings();
    let standing = |place: &Place| {
        let mut all = standings.iter().flat_map(|it| &it.teams);
        all.find(|it| is_at(it, place))
    };
    let is_of_budget = |it: &&Incident| it.family == Family::Budget;
    let row = |it: &Incident| {
        let money = standing(&it.place);
        OverBudget {
            team: it.place.node.clone().unwrap_or_default(),
            cluster: budgets::cluster_of(&it.place.cluster).map(str::to_owned),
            severity: it.severity,
            what: it.what.clone(),
            spent: money.and_then(|it| it.spent),
            budget: money.and_then(|it| it.budget),
            forecast: money.and_then(|it| it.forecast),
            since: it.since,
            action: it.action.clone(),
            status: status(it, at),
            incident: it.id,
        }
    };
    let mut over: Vec<OverBudget> = open.iter().filter(is_of_budget).map(row).collect();
    over.sort_by_key(|it| (Reverse(it.severity), it.since));
    over
}

/// Whether this is how a team stands at the place of its budget.
fn is_at(standing: &MoneyMonth, place: &Place) -> bool {
    match &standing.payer {
        Some(Payer::Team(team)) => budgets::place(&standing.cluster, team) == *place,
        _ => false,
    }
}
