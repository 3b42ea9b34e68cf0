//! Where teams stand to their budgets in the month that runs, as [`super::daily`] made it last; and where a team that
//! is over its budget is said to be.
//!
//! Limits: live clusters.

use gpufleet_analysis::incident::Place;
use gpufleet_telemetry::identity::Origin;

use crate::store::MoneyMonth;

/// The cluster of budgets of all live clusters together. A name with a blank is nobody's cluster.
const CLUSTER: &str = "team budgets";

/// What stands before the cluster that a budget names.
const OF_ONE: &str = "team budgets of ";

/// Where live teams that have a budget stand in a month.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standings {
    /// The month, as `2026-11`.
    pub month: String,
    /// One for each team and cluster that its budget is of.
    pub teams: Vec<MoneyMonth>,
}

impl Standings {
    /// Those among the standings of a month that have a budget.
    pub fn of(month: String, all: Vec<MoneyMonth>) -> Self {
        let mut teams = all;
        teams.retain(|it| it.origin == Origin::Live && it.budget.is_some());
        Self { month, teams }
    }
}

/// What stands as the cluster of budgets that name this one or, where it is empty, none.
pub fn of_cluster(cluster: &str) -> String {
    match cluster {
        "" => CLUSTER.to_owned(),
        cluster => format!("{OF_ONE}{cluster}"),
    }
}

/// The cluster that budgets name whose places are in the cluster of this name; none where they name none, and of
/// places that are no budget's.
pub fn cluster_of(name: &str) -> Option<&str> {
    name.strip_prefix(OF_ONE)
}

/// Where a team is over its budget, of one cluster or, where that is empty, of all live ones together.
pub fn place(cluster: &str, team: &str) -> Place {
    Place::node(&of_cluster(cluster), team)
}

/// Whether a place is that of a team and its budget: what stands there as a node is a team.
pub fn is_one(place: &Place) -> bool {
    place.cluster == CLUSTER || cluster_of(&place.cluster).is_some()
}

/// A team with what it spent, what its month will come to, and its budget.
#[cfg(test)]
pub(crate) fn made(
    team: &str,
    spent: Option<i64>,
    forecast: Option<i64>,
    budget: i64,
) -> MoneyMonth {
    use gpufleet_analysis::owner::Payer;
    let nano = |it: i64| it * 1_000_000_000;
    MoneyMonth {
        scope: String::new(),
        origin: Origin::Live,
        cluster: String::new(),
        payer: Some(Payer::Team(team.to_owned())),
        currency: "USD".to_owned(),
        gpu_millis: 3_600_000,
        spent: spent.map(nano),
        unpriced_millis: 0,
        forecast: forecast.map(nano),
        budget: Some(nano(budget)),
        gone_on_day: None,
        goodput: None,
        goodput_gpu_millis: 0,
        untold: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::address;

    #[test]
    fn live_teams_with_a_budget_stand_and_have_a_place_that_is_no_nodes() {
        let with = made("science", Some(1), None, 5);
        let without = MoneyMonth {
            budget: None,
            ..with.clone()
        };
        let simulated = MoneyMonth {
            origin: Origin::Simulated,
            ..with.clone()
        };
        let month = "2026-11".to_owned();
        let standings = Standings::of(month, vec![without, simulated, with.clone()]);
        assert_eq!(standings.teams, [with]);
        let (all, one) = (place("", "science"), place("prod", "science"));
        assert!(is_one(&all) && is_one(&one) && !all.overlaps(&one));
        assert!(!is_one(&Place::node("prod", "science")));
        let clusters = [&all, &one].map(|it| cluster_of(&it.cluster));
        assert_eq!(clusters, [None, Some("prod")]);
        assert_eq!(address::place(&one), "/cost");
    }
}
