//! Teams and clusters that tables name and nobody is known to be: of a budget for `sience` nothing is ever spent, and
//! neither it nor the budget of a cluster `prd` would ever be over.
//!
//! Limit: [`MAX_OF_ONE`] of each table; the others are counted.

use std::collections::BTreeSet;

use gpufleet_analysis::owner::{IdlePolicy, IdleTo, Named, PLATFORM, Payer};

use super::Terms;

/// Most of one table that are told: one that was exported for another fleet has a stranger in every row.
const MAX_OF_ONE: usize = 50;

/// A table whose rows name teams and clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// What time is held to.
    Targets,
    /// What teams may spend.
    Budgets,
    /// How many GPUs they may hold.
    Quotas,
    /// Who bears what was free.
    Idle,
    /// Whose what is held is.
    Owners,
}

/// A name in a table that nobody is known to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Where it stands.
    pub table: Table,
    /// What is wrong with it, in a sentence.
    pub said: String,
    /// Whether it may be right all the same.
    pub is_perhaps: bool,
}

impl Table {
    const ALL: [Self; 5] = [
        Self::Targets,
        Self::Budgets,
        Self::Quotas,
        Self::Idle,
        Self::Owners,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Targets => "targets",
            Self::Budgets => "budgets",
            Self::Quotas => "quotas",
            Self::Idle => "idle policies",
            Self::Owners => "owner rules",
        }
    }

    /// What becomes of rows for a cluster of which nothing is heard, for a team that at most a value names, and for one that
    /// no rule can name.
    const fn ends(self) -> [&'static str; 3] {
        match self {
            Self::Targets => [
                "; only its time is held to them",
                "; only what a label, a queue or an account names so is held to them",
                ": nobody is held to them, but for what is told of with that owner",
            ],
            Self::Budgets => [
                ": nothing is spent of them",
                "; only what a label, a queue or an account names so is spent of them",
                ": nothing is spent of them, but for what is told of with that owner",
            ],
            Self::Quotas => [
                ": nothing is held of them",
                "; only what a label, a queue or an account names so is held of them",
                ": nothing is held of them, but for what is told of with that owner",
            ],
            Self::Idle => [
                "; only what is free there is divided by them",
                "; only where a label, a queue or an account names it so it bears anything else",
                ": it bears nothing else, but for what is told of with that owner",
            ],
            // Their teams are what those of the others are looked for among.
            Self::Owners => ["; only what is held there is by them", "", ""],
        }
    }

    /// Whether a cluster of which nothing is heard may be meant: what is not bounded by its rows is by others.
    const fn has_others(self) -> bool {
        matches!(self, Self::Targets | Self::Idle | Self::Owners)
    }
}

impl Terms {
    /// What rows name that hold at a moment, or will, and that nobody is known to be, table by table. `is_known` says whether
    /// there is a cluster of this name.
    pub fn strangers(&self, is_known: impl Fn(&str) -> bool, at_ms: i64) -> Vec<Stranger> {
        let of_table = |table: Table| {
            let mut all = self.strangers_of(table, &is_known, at_ms);
            let more = all.len().saturating_sub(MAX_OF_ONE);
            all.truncate(MAX_OF_ONE);
            all.extend((more > 0).then(|| Stranger {
                table,
                said: format!(
                    "{}: and {more} names more that nobody is known to have",
                    table.name()
                ),
                is_perhaps: false,
            }));
            all
        };
        Table::ALL.into_iter().flat_map(of_table).collect()
    }

    fn strangers_of(
        &self,
        table: Table,
        is_known: &impl Fn(&str) -> bool,
        at_ms: i64,
    ) -> Vec<Stranger> {
        let named = self.named(table, at_ms);
        let all = |at: usize| -> BTreeSet<&str> {
            let names = named.iter().map(|it| it[at]);
            names.filter(|it| !it.is_empty()).collect()
        };
        let (name, [of_cluster, perhaps, no]) = (table.name(), table.ends());
        let is_there = |place: &str| match table {
            Table::Idle => has_cluster(place, is_known),
            _ => is_known(place),
        };
        let place = match table {
            Table::Idle => "the cluster of a pool",
            _ => "a cluster",
        };
        let mut found = Vec::new();
        for cluster in all(0).into_iter().filter(|it| !is_there(it)) {
            found.push(Stranger {
                table,
                said: format!("{name}: nothing is heard of {place} {cluster:?}{of_cluster}"),
                is_perhaps: table.has_others(),
            });
        }
        for team in all(1) {
            let (is_perhaps, end) = match self.named_as(table, team, at_ms) {
                Named::Yes => continue,
                Named::Perhaps => (true, perhaps),
                Named::No => (false, no),
            };
            found.push(Stranger {
                table,
                said: format!("{name}: no owner rule has a team {team:?}{end}"),
                is_perhaps,
            });
        }
        found
    }

    /// Cluster, or pool, and team of each row that is not over; either may be empty.
    fn named(&self, table: Table, at_ms: i64) -> Vec<[&str; 2]> {
        let ends_later = |it: &&IdlePolicy| it.until_ms.is_none_or(|until| at_ms < until);
        match table {
            Table::Targets => self.targets.named(at_ms).collect(),
            Table::Budgets => {
                let budgets = self.budgets.iter();
                budgets.filter_map(|it| it.named(at_ms)).collect()
            }
            Table::Quotas => {
                let quotas = self.quotas.iter();
                quotas.filter_map(|it| it.named(at_ms)).collect()
            }
            Table::Idle => {
                let policies = self.owners.idle.iter().filter(ends_later);
                policies.flat_map(of_policy).collect()
            }
            Table::Owners => {
                let clusters = self.owners.clusters(at_ms).into_iter();
                clusters.map(|it| [it, ""]).collect()
            }
        }
    }

    /// Whether a team can be one of this table: whoever owns a commitment spends without an owner rule.
    fn named_as(&self, table: Table, team: &str, at_ms: i64) -> Named {
        let owns = || {
            let mut all = self.book.commitments().iter();
            all.any(|it| it.owner == team && at_ms < it.until_ms)
        };
        let is_one = match table {
            // Time that no rule names is `unowned`, and may have a target.
            Table::Targets => team == Payer::Unowned.name(),
            Table::Budgets => team == PLATFORM || owns(),
            Table::Quotas | Table::Owners => false,
            Table::Idle => team == PLATFORM,
        };
        match is_one {
            true => Named::Yes,
            false => self.owners.names(team, at_ms),
        }
    }
}

/// The pool and each team of an idle policy.
fn of_policy(policy: &IdlePolicy) -> Vec<[&str; 2]> {
    let pool = match policy.pool.as_str() {
        "*" => "",
        pool => pool,
    };
    match &policy.to {
        IdleTo::Platform | IdleTo::Use => vec![[pool, ""]],
        IdleTo::Owner(team) => vec![[pool, team.as_str()]],
        IdleTo::Quota(quotas) => quotas.keys().map(|team| [pool, team.as_str()]).collect(),
    }
}

/// Whether there is the cluster of a pool, whose name begins with that.
fn has_cluster(pool: &str, is_known: impl Fn(&str) -> bool) -> bool {
    let mut ends = pool.match_indices('/').map(|it| it.0).chain([pool.len()]);
    ends.any(|end| is_known(&pool[..end]))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::table;

    use super::*;
    use crate::money::CostConfig;
    use crate::money::terms::Sources;

    const RULES: &str = "from,until,kind,key,value,team\n2026-01-01,,namespace,,ml,science\n";

    /// What is said of these tables, and whether it is perhaps right, in a fleet of the cluster `prod`.
    fn said(tables: &[&str]) -> Vec<(String, bool)> {
        let files = tables.iter().enumerate();
        let files = files.map(|(number, text)| (format!("{number}.csv"), Ok((*text).to_owned())));
        let terms = Terms::of(Sources {
            cost: CostConfig {
                team_labels: Vec::new(),
                ..CostConfig::default()
            },
            files: files.collect(),
            ..Sources::default()
        });
        assert_eq!(terms.findings, [""; 0]);
        let at_ms = table::moment("2026-11-01").expect("a date");
        let found = terms.strangers(|it| it == "prod", at_ms);
        found
            .into_iter()
            .map(|it| (it.said, it.is_perhaps))
            .collect()
    }

    #[test]
    fn clusters_and_teams_that_nobody_is_known_to_be_are_told() {
        let targets = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,,prod,science,,sm_active,0.5\n\
            2026-01-01,,,unowned,,sm_active,0.5\n\
            2026-01-01,,prdo,sciense,,sm_active,0.5\n\
            2026-01-01,2026-02-01,gone,gone,,sm_active,0.5\n";
        let cluster =
            "targets: nothing is heard of a cluster \"prdo\"; only its time is held to them";
        let team = "targets: no owner rule has a team \"sciense\": nobody is held to them, but for what is told of with that owner";
        let expected = [(cluster.to_owned(), true), (team.to_owned(), false)];
        assert_eq!(said(&[RULES, targets]), expected);
        // A label may name it.
        let by_label = format!("{RULES}2026-01-01,,pod_label,team,*,\n");
        assert!(said(&[&by_label, targets]).iter().all(|it| it.1));
    }

    #[test]
    fn budgets_and_quotas_that_nothing_is_ever_held_against_are_told() {
        let budgets = "from,until,cluster,team,amount,currency\n\
            2026-10-01,,,sience,50000,USD\n2026-10-01,,prd,science,50000,USD\n\
            2026-10-01,,,platform,5,USD\n2026-10-01,,,ads,5,USD\n\
            2026-01-01,2026-02-01,gone,gone,5,USD\n";
        // Whoever owns a commitment spends what nobody used of it.
        let commitments = "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n\
            c1,a3-highgpu-8g,here,1,commitment_3y,USD,40,2026-01-01,2029-01-01,ads\n";
        let quotas = "from,until,cluster,team,gpus\n2026-10-01,,prd,sience,8\n";
        let expected = [
            "budgets: nothing is heard of a cluster \"prd\": nothing is spent of them",
            "budgets: no owner rule has a team \"sience\": nothing is spent of them, but for what is told of with that owner",
            "quotas: nothing is heard of a cluster \"prd\": nothing is held of them",
            "quotas: no owner rule has a team \"sience\": nothing is held of them, but for what is told of with that owner",
        ];
        let expected = expected.map(|it| (it.to_owned(), false));
        assert_eq!(said(&[RULES, budgets, commitments, quotas]), expected);
    }

    #[test]
    fn idle_policies_of_pools_of_a_known_cluster_are_and_others_are_told() {
        let policies = "from,until,pool,borne_by,team,gpus\n\
            2026-10-01,,prod/a3,owner,science,\n2026-10-01,,prod,quota,sience,8\n\
            2026-10-01,,prdo/a3,use,,\n2026-10-01,,*,owner,platform,\n";
        let cluster = "idle policies: nothing is heard of the cluster of a pool \"prdo/a3\"; only what is free there is divided by them";
        let team = "idle policies: no owner rule has a team \"sience\": it bears nothing else, but for what is told of with that owner";
        let expected = [(cluster.to_owned(), true), (team.to_owned(), false)];
        assert_eq!(said(&[RULES, policies]), expected);
    }

    #[test]
    fn of_a_table_of_strangers_some_are_told_and_the_others_counted() {
        let row = |number: usize| format!("2026-10-01,,,team-{number},8\n");
        let rows: String = (0..MAX_OF_ONE + 3).map(row).collect();
        let all = said(&[&format!("from,until,cluster,team,gpus\n{rows}")]);
        assert_eq!(all.len(), MAX_OF_ONE + 1);
        let last = "quotas: and 3 names more that nobody is known to have";
        assert_eq!(all.last(), Some(&(last.to_owned(), false)));
    }
}
