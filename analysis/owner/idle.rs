//! Who bears what was free, nobody's and idle: a table of policies, `from,until,pool,borne_by,team,gpus`.
//!
//! `borne_by` is `platform`, `use` (teams in proportion to the time that they held of the pool), `quota` (in
//! proportion to the GPUs that a row of each team names) or `owner` (the team that reserved it).
//!
//! A pool is what one team can take from another ([`pool`]): `cluster/node pool`, where nobody tells node pools
//! `cluster/type of GPU`, and where nobody tells that either the cluster. A policy names a pool, or a cluster, which
//! then is one pool, or with `*` every pool by itself. Of several policies of a pool the one whose first row stands
//! first counts.

use std::collections::BTreeMap;

use super::{Owners, PLATFORM, check_team, is_within};
use crate::table::{self, TableError};

/// Columns of the table of idle policies.
pub const COLUMNS: [&str; 6] = ["from", "until", "pool", "borne_by", "team", "gpus"];

/// The pool of a node: by its node pool where that is known, else by the type of its GPUs, else its cluster.
pub fn pool(cluster: &str, node_pool: &str, gpu_model: &str) -> String {
    match [node_pool, gpu_model].into_iter().find(|it| !it.is_empty()) {
        Some(part) => format!("{cluster}/{part}"),
        None => cluster.to_owned(),
    }
}

/// Who bears what was free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdleTo {
    /// The platform.
    Platform,
    /// Teams in proportion to their use of the pool.
    Use,
    /// Teams in proportion to their quota, GPUs.
    Quota(BTreeMap<String, i64>),
    /// Whoever reserved it.
    Owner(String),
}

/// An idle policy of a pool, or of every one (`*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdlePolicy {
    /// From here, Unix milliseconds.
    pub from_ms: i64,
    /// Until here.
    pub until_ms: Option<i64>,
    /// The pool, a cluster, or `*`.
    pub pool: String,
    /// Who bears it.
    pub to: IdleTo,
}

impl IdlePolicy {
    /// What of a pool and those beside it is divided as one: all of the cluster that it names, else the pool; none
    /// where it says nothing of this pool.
    fn scope<'a>(&self, pool: &'a str) -> Option<&'a str> {
        if self.pool == "*" {
            return Some(pool);
        }
        let rest = pool.strip_prefix(&*self.pool)?;
        let is_it = rest.is_empty() || rest.starts_with('/');
        is_it.then(|| &pool[..self.pool.len()])
    }
}

impl Owners {
    /// Who bears what was free of a pool at a moment, and of what that is divided as one.
    pub fn idle_of<'a>(&self, pool: &'a str, at_ms: i64) -> (&'a str, &IdleTo) {
        let now = self.idle.iter();
        let mut now = now.filter(|it| is_within(at_ms, it.from_ms, it.until_ms));
        let found = now.find_map(|it| Some((it.scope(pool)?, &it.to)));
        found.unwrap_or((pool, &IdleTo::Platform))
    }

    /// Who answers for what is free in a pool: the team that reserved it, else the platform, also where teams bear
    /// its cost, because it is the platform that can give it out or back.
    pub fn keeper(&self, pool: &str, at_ms: i64) -> &str {
        match self.idle_of(pool, at_ms).1 {
            IdleTo::Owner(team) => team,
            IdleTo::Platform | IdleTo::Use | IdleTo::Quota(_) => PLATFORM,
        }
    }

    /// Reads a table of idle policies.
    ///
    /// # Errors
    /// When it is no such table; rows that cannot be used are in the findings.
    pub fn read_idle(text: &str) -> Result<Self, TableError> {
        let mut owners = Self::default();
        for row in table::read(text, &COLUMNS)? {
            let taken = policy(&row.fields).and_then(|it| owners.take(it));
            if let Err(why) = taken {
                owners.findings.push(format!("line {}: {why}", row.line));
            }
        }
        Ok(owners)
    }

    /// Takes in a row: a team's quota joins the policy that the first of its rows began.
    pub(super) fn take(&mut self, new: IdlePolicy) -> Result<(), String> {
        let is_same = |it: &&mut IdlePolicy| {
            (it.from_ms, it.until_ms, &it.pool) == (new.from_ms, new.until_ms, &new.pool)
        };
        let Some(known) = self.idle.iter_mut().find(is_same) else {
            self.idle.push(new);
            return Ok(());
        };
        let (IdleTo::Quota(known), IdleTo::Quota(quotas)) = (&mut known.to, new.to) else {
            return Err("another row says of this time and pool who bears it".to_owned());
        };
        for (team, gpus) in quotas {
            if known.contains_key(&team) {
                return Err(format!(
                    "`{team}` has a quota of this time and pool already"
                ));
            }
            known.insert(team, gpus);
        }
        Ok(())
    }
}

fn policy(fields: &[String]) -> Result<IdlePolicy, String> {
    let [from, until, pool, borne_by, team, gpus] = fields else {
        return Err("it has not six fields".to_owned());
    };
    let (from_ms, until_ms) = table::span(from, until).map_err(|why| why.to_string())?;
    if pool.is_empty() {
        return Err("`pool` is empty: `*` is every one".to_owned());
    }
    check_team(team)?;
    let to = match (borne_by.as_str(), team.as_str(), gpus.as_str()) {
        ("platform", "", "") => IdleTo::Platform,
        ("use", "", "") => IdleTo::Use,
        ("owner", team, "") if !team.is_empty() => IdleTo::Owner(team.to_owned()),
        ("quota", team, gpus) if !team.is_empty() => {
            let count = gpus.parse::<i64>().ok().filter(|it| *it > 0);
            let count = count.ok_or(format!("`{gpus}` is no number of GPUs above 0"))?;
            IdleTo::Quota(BTreeMap::from([(team.to_owned(), count)]))
        }
        ("platform" | "use", ..) => {
            return Err(format!("`{borne_by}` names neither team nor GPUs"));
        }
        ("owner", ..) => return Err("`owner` names a team and no GPUs".to_owned()),
        ("quota", ..) => return Err("`quota` names a team and its GPUs".to_owned()),
        _ => {
            return Err(format!(
                "`{borne_by}` is none of platform, use, quota, owner"
            ));
        }
    };
    Ok(IdlePolicy {
        from_ms,
        until_ms,
        pool: pool.clone(),
        to,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: &str) -> Owners {
        let text = format!("{}\n{rows}\n", COLUMNS.join(","));
        Owners::read_idle(&text).expect("a table")
    }

    #[test]
    fn a_pool_has_its_policy_from_a_date_until_a_date_and_rows_of_quotas_are_one() {
        let owners = read(
            "2026-01-01,2026-10-01,prod,use,,\n\
             2026-10-01,,prod,quota,science,48\n\
             2026-10-01,,prod,quota,vision,16\n\
             2026-01-01,,rented,owner,robots,\n\
             2026-01-01,,*,platform,,",
        );
        assert_eq!(owners.findings, [""; 0]);
        let to = |pool, at| owners.idle_of(pool, table::moment(at).expect("a date")).1;
        let quotas = BTreeMap::from([("science".to_owned(), 48), ("vision".to_owned(), 16)]);
        assert_eq!(to("prod", "2026-09-30"), &IdleTo::Use);
        assert_eq!(to("prod", "2026-10-01"), &IdleTo::Quota(quotas));
        assert_eq!(to("other", "2026-10-01"), &IdleTo::Platform);
        let keeper = |pool| owners.keeper(pool, table::moment("2026-10-01").expect("a date"));
        assert_eq!(
            [keeper("prod"), keeper("rented")],
            [super::super::PLATFORM, "robots"]
        );
    }

    #[test]
    fn a_pool_is_a_node_pool_else_a_type_of_gpu_else_a_cluster() {
        assert_eq!(pool("prod", "a3-spot", "H100"), "prod/a3-spot");
        assert_eq!(pool("prod", "", "H100"), "prod/H100");
        assert_eq!(pool("prod", "", ""), "prod");
    }

    #[test]
    fn a_policy_of_a_cluster_is_of_all_of_it_as_one_and_of_no_other_cluster() {
        let owners = read(
            "2026-01-01,,prod/a3,owner,robots,\n\
             2026-01-01,,prod,use,,\n\
             2026-01-01,,*,platform,,",
        );
        let at = table::moment("2026-10-01").expect("a date");
        let robots = IdleTo::Owner("robots".to_owned());
        for (pool, expected) in [
            ("prod/a3", ("prod/a3", &robots)),
            ("prod/a3-spot", ("prod", &IdleTo::Use)),
            ("prod", ("prod", &IdleTo::Use)),
            ("prod-eu/a3", ("prod-eu/a3", &IdleTo::Platform)),
        ] {
            assert_eq!(owners.idle_of(pool, at), expected, "{pool}");
        }
    }

    #[test]
    fn tables_together_are_as_one_table() {
        let mut owners = read("2026-10-01,,prod,quota,science,48");
        owners.join(read("2026-10-01,,prod,quota,vision,16"));
        assert_eq!(owners.findings, [""; 0]);
        let quotas = BTreeMap::from([("science".to_owned(), 48), ("vision".to_owned(), 16)]);
        let at = table::moment("2026-10-01").expect("a date");
        assert_eq!(owners.idle_of("prod", at).1, &IdleTo::Quota(quotas));
        owners.join(read("2026-10-01,,prod,use,,"));
        assert_eq!(
            owners.findings,
            ["idle policies: another row says of this time and pool who bears it"]
        );
    }

    #[test]
    fn rows_that_cannot_be_used_are_named() {
        for (row, why) in [
            ("soon,,prod,use,,", "`soon` is no date"),
            (
                "2026-02-01,2026-01-01,prod,use,,",
                "it ends before it begins",
            ),
            ("2026-01-01,,,use,,", "`pool` is empty: `*` is every one"),
            (
                "2026-01-01,,prod,fate,,",
                "`fate` is none of platform, use, quota, owner",
            ),
            (
                "2026-01-01,,prod,use,science,",
                "`use` names neither team nor GPUs",
            ),
            (
                "2026-01-01,,prod,owner,,",
                "`owner` names a team and no GPUs",
            ),
            (
                "2026-01-01,,prod,quota,science,0",
                "`0` is no number of GPUs above 0",
            ),
            (
                "2026-01-01,,prod,quota,,8",
                "`quota` names a team and its GPUs",
            ),
            (
                "2026-01-01,,prod,owner,unowned,",
                "no team can be called `unowned`: reports show under that name what is nobody's",
            ),
        ] {
            let owners = read(row);
            assert_eq!(owners.findings, [format!("line 2: {why}")], "{row}");
            assert!(owners.idle.is_empty(), "{row}");
        }
        let twice =
            read("2026-01-01,,prod,quota,a,8\n2026-01-01,,prod,quota,a,9\n2026-01-01,,prod,use,,");
        let expected = [
            "line 3: `a` has a quota of this time and pool already",
            "line 4: another row says of this time and pool who bears it",
        ];
        assert_eq!(twice.findings, expected);
    }
}
