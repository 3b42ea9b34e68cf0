//! Targets of one's own: by how much activity time is efficient, from a date until a date, for a job, a team, or all.
//!
//! A job's own goes before its team's, that before those of everybody, and all of them before what is shipped; the
//! first of those whose measure is told of a minute counts. MFU is not told by the minute, so it is no measure here.

use gpufleet_analysis::owner::{Holder, Owners};
use gpufleet_analysis::states::{Measure, Target};
use gpufleet_analysis::{money, table};

use super::Span;

/// Columns of the table; an empty cluster, team or job is every one.
pub(super) const TARGETS: [&str; 7] = [
    "from", "until", "cluster", "team", "job", "measure", "least",
];

/// Nano-units of a millionth.
const NANO_PER_MILLIONTH: i64 = 1_000;

/// What time is held against, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    owners: Owners,
    /// Those of jobs first, then those of teams.
    rows: Vec<Row>,
}

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    span: Span,
    cluster: String,
    team: String,
    job: String,
    target: Target,
}

impl Targets {
    /// These rows, of all tables in their order, with whose a holder is.
    pub fn new(owners: &Owners, mut rows: Vec<Row>) -> Self {
        // Stable: within each the order of the tables stays.
        rows.sort_by_key(|it| (it.job.is_empty(), it.team.is_empty(), it.cluster.is_empty()));
        Self {
            owners: owners.clone(),
            rows,
        }
    }

    /// What is aimed at by a holder of GPUs of a cluster at a moment, the nearest first.
    pub fn of(&self, cluster: &str, holder: &Holder, at_ms: i64) -> Vec<Target> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let payer = self.owners.payer(holder, at_ms);
        let is_of = |named: &str, has: &str| named.is_empty() || named == has;
        let is_its = |it: &&Row| {
            it.span.holds_at(at_ms)
                && is_of(&it.cluster, cluster)
                && is_of(&it.team, payer.name())
                && (is_of(&it.job, &holder.job) || holder.is_called(&it.job))
        };
        let its = self.rows.iter().filter(is_its);
        its.map(|it| it.target).collect()
    }
}

/// Reads a table of targets; what cannot be used is told.
pub fn targets(text: &str) -> (Vec<Row>, Vec<String>) {
    let rows = match table::read(text, &TARGETS) {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for row in rows {
        match target(&row.fields) {
            Ok(target) => found.push(target),
            Err(why) => findings.push(format!("line {}: {why}", row.line)),
        }
    }
    (found, findings)
}

fn target(fields: &[String]) -> Result<Row, String> {
    let [from, until, cluster, team, job, measure, least] = fields else {
        return Err("it has not as many fields as columns".to_owned());
    };
    let measure = match measure.as_str() {
        "tensor_active" => Measure::TensorActive,
        "sm_active" => Measure::SmActive,
        "mfu" => {
            return Err(
                "MFU is not told by the minute: tensor_active and sm_active are".to_owned(),
            );
        }
        other => {
            return Err(format!(
                "the measure `{other}` is none of tensor_active, sm_active"
            ));
        }
    };
    let share = money::parse(least).map_err(|error| format!("`{least}` {error}"))?;
    let least_millionths = share / NANO_PER_MILLIONTH;
    if !(1..=1_000_000).contains(&least_millionths) {
        return Err(format!("`{least}` is no share above 0 and up to 1"));
    }
    Ok(Row {
        span: Span::read(from, until)?,
        cluster: cluster.clone(),
        team: team.clone(),
        job: job.clone(),
        target: Target {
            measure,
            least: least_millionths,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "from,until,kind,key,value,team\n2026-01-01,,namespace,,ml,science\n";

    fn of(text: &str, cluster: &str, job: &str, at: &str) -> Vec<(Measure, i64)> {
        let owners = Owners::read(RULES).expect("a table");
        let (rows, findings) = targets(text);
        assert_eq!(findings, [""; 0]);
        let holder = Holder {
            job: job.to_owned(),
            namespace: job.split_once(':').map_or("", |it| &it.1[..2]).to_owned(),
            ..Holder::default()
        };
        let at_ms = table::moment(at).expect("a date");
        let found = Targets::new(&owners, rows).of(cluster, &holder, at_ms);
        found.iter().map(|it| (it.measure, it.least)).collect()
    }

    #[test]
    fn a_jobs_own_goes_before_its_teams_and_that_before_everybodys() {
        let text = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,,,,,sm_active,0.5\n\
            2026-01-01,2026-11-01,,science,,tensor_active,0.45\n\
            2026-11-01,,,science,,tensor_active,0.4\n\
            2026-01-01,,prod,,train,tensor_active,0.2\n";
        let (tensor, sm) = (Measure::TensorActive, Measure::SmActive);
        let everybodys = (sm, 500_000);
        let october = |cluster, job| of(text, cluster, job, "2026-10-10");
        assert_eq!(
            october("prod", "jobset:ml/train"),
            [(tensor, 200_000), (tensor, 450_000), everybodys]
        );
        assert_eq!(
            october("lab", "jobset:ml/train"),
            [(tensor, 450_000), everybodys]
        );
        assert_eq!(october("prod", "jobset:web/chat"), [everybodys]);
        assert_eq!(
            of(text, "lab", "jobset:ml/other", "2026-11-01"),
            [(tensor, 400_000), everybodys]
        );
        assert_eq!(of(text, "lab", "jobset:ml/other", "2025-11-01"), []);
        assert_eq!(Targets::default().of("lab", &Holder::default(), 0), []);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let text = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,,,a,,mfu,0.4\n2026-01-01,,,a,,speed,0.4\n\
            2026-01-01,,,a,,sm_active,0\n2026-01-01,,,a,,sm_active,40\nsoon,,,a,,sm_active,0.4\n";
        let expected = [
            "line 2: MFU is not told by the minute: tensor_active and sm_active are",
            "line 3: the measure `speed` is none of tensor_active, sm_active",
            "line 4: `0` is no share above 0 and up to 1",
            "line 5: `40` is no share above 0 and up to 1",
            "line 6: `soon` is no date",
        ];
        assert_eq!(targets(text).1, expected);
    }
}
