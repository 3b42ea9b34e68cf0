//! Quotas: how many GPUs a team may hold, from a date until a date, in one cluster or in all live ones together.

use std::collections::BTreeMap;

use gpufleet_analysis::owner::check_team;
use gpufleet_analysis::table;

use super::{Span, overlaps, whose};

/// Columns of the table; a row without a cluster is of all live clusters together.
pub(super) const QUOTAS: [&str; 5] = ["from", "until", "cluster", "team", "gpus"];

/// A team's quota in a stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    span: Span,
    /// Of this cluster; empty of all live ones together.
    pub cluster: String,
    team: String,
    gpus: i64,
}

impl Quota {
    /// The cluster and the team that it names, of which the first may be empty; none where it is over.
    pub(in crate::money) fn named(&self, at_ms: i64) -> Option<[&str; 2]> {
        let named = [self.cluster.as_str(), self.team.as_str()];
        self.span.ends_after(at_ms).then_some(named)
    }
}

/// Reads a table of quotas; what cannot be used is told.
pub fn quotas(text: &str) -> (Vec<Quota>, Vec<String>) {
    let rows = match table::read(text, &QUOTAS) {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for row in rows {
        match quota(&row.fields) {
            Ok(quota) => {
                let late = quota.span.begins_late();
                findings.extend(late.map(|why| format!("line {}: {why}", row.line)));
                found.push(quota);
            }
            Err(why) => findings.push(format!("line {}: {why}", row.line)),
        }
    }
    (found, findings)
}

fn quota(fields: &[String]) -> Result<Quota, String> {
    let [from, until, cluster, team, gpus] = fields else {
        return Err("it has not as many fields as columns".to_owned());
    };
    if team.is_empty() {
        return Err("`team` is empty".to_owned());
    }
    check_team(team)?;
    let number: u32 = gpus
        .parse()
        .map_err(|_| format!("`{gpus}` is no number of GPUs"))?;
    Ok(Quota {
        span: Span::read(from, until)?,
        cluster: cluster.clone(),
        team: team.clone(),
        gpus: i64::from(number),
    })
}

/// How many GPUs each team may hold in the month that begins here, in one cluster or in all live ones together; the
/// first quota that holds counts.
pub fn quotas_at(quotas: &[Quota], cluster: Option<&str>, month_ms: i64) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    let of = cluster.unwrap_or_default();
    let holds = |it: &&Quota| it.cluster == of && it.span.holds_at(month_ms);
    for quota in quotas.iter().filter(holds) {
        found.entry(quota.team.clone()).or_insert(quota.gpus);
    }
    found
}

/// That quotas of a team in the same clusters overlap in time, one sentence for each.
pub fn overlapping_quotas(quotas: &[Quota]) -> Vec<String> {
    let of = |it: &Quota| whose(&[("cluster", it.cluster.as_str()), ("team", it.team.as_str())]);
    overlaps("quotas", quotas.iter().map(|it| (of(it), it.span)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_hold_in_their_time_and_cluster_and_what_is_wrong_is_named() {
        let text = "from,until,cluster,team,gpus\n\
            2026-01-01,2026-11-01,,science,64\n\
            2026-11-01,,,science,96\n\
            2026-01-01,,prod,science,32\n\
            soon,,,a,1\n2026-01-01,,,,1\n2026-01-01,,,a,-1\n2026-01-01,,,a,1.5\n\
            2026-01-01,,,nobody,8\n";
        let (found, findings) = quotas(text);
        let at = |cluster, month| {
            let month = table::moment(month).expect("a date");
            quotas_at(&found, cluster, month).get("science").copied()
        };
        assert_eq!(at(None, "2026-10-01"), Some(64));
        assert_eq!(at(None, "2026-11-01"), Some(96));
        assert_eq!(at(Some("prod"), "2026-11-01"), Some(32));
        assert_eq!(
            (at(Some("other"), "2026-11-01"), at(None, "2025-12-01")),
            (None, None)
        );
        let expected = [
            "line 5: `soon` is no date",
            "line 6: `team` is empty",
            "line 7: `-1` is no number of GPUs",
            "line 8: `1.5` is no number of GPUs",
            "line 9: no team can be called `nobody`: reports show under that name what is nobody's",
        ];
        assert_eq!(findings, expected);
        assert_eq!(
            overlapping_quotas(&found),
            [""; 0],
            "of all and of one cluster"
        );
        let twice = "from,until,cluster,team,gpus\n\
            2026-01-01,2026-11-01,,science,64\n2026-10-31,,,science,1\n";
        let (found, findings) = quotas(twice);
        assert_eq!(
            findings,
            ["line 3: it begins within 2026-10, so it counts from 2026-11 on"]
        );
        assert_eq!(
            overlapping_quotas(&found),
            [
                "quotas: rows for team `science` overlap from 2026-10-31T00:00:00Z: the first of them counts"
            ]
        );
    }
}
