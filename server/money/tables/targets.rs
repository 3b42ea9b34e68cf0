//! Targets of one's own: by how much activity time is efficient, from a date until a date, for a job, a team, or all.
//!
//! A job's own goes before its team's, that before those of everybody, and all of them before what is shipped; the
//! first of those whose measure is told of a minute counts. MFU is not told by the minute: no time is held against it,
//! but a run as a whole is, on page Today.

use gpufleet_analysis::owner::{Holder, Owners, Payer};
use gpufleet_analysis::states::{Measure, Target};
use gpufleet_analysis::{money, table};

use super::{Span, overlaps, whose};

/// Columns of the table; an empty cluster, team or job is every one.
pub(super) const TARGETS: [&str; 7] = [
    "from", "until", "cluster", "team", "job", "measure", "least",
];

/// What may be aimed at.
const MEASURES: [(&str, Option<Measure>); 3] = [
    ("tensor_active", Some(Measure::TensorActive)),
    ("sm_active", Some(Measure::SmActive)),
    ("mfu", None),
];

/// Millionths of one.
const WHOLE: i64 = 1_000_000;

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
    /// None: MFU, of a run as a whole.
    measure: Option<Measure>,
    least_millionths: i64,
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
        let its = self.rows_of(cluster, holder, at_ms);
        let its = its.filter_map(|it| {
            let least = it.least_millionths;
            it.measure.map(|measure| Target { measure, least })
        });
        its.collect()
    }

    /// The MFU that a run of a holder of GPUs of a cluster is to reach, a share of 1; none where no row says one.
    pub fn mfu(&self, cluster: &str, holder: &Holder, at_ms: i64) -> Option<f64> {
        let mut its = self.rows_of(cluster, holder, at_ms);
        let nearest = its.find(|it| it.measure.is_none())?;
        Some(nearest.least_millionths as f64 / WHOLE as f64)
    }

    /// The rows for a holder at a moment, the nearest first.
    fn rows_of<'a>(
        &'a self,
        cluster: &'a str,
        holder: &'a Holder,
        at_ms: i64,
    ) -> impl Iterator<Item = &'a Row> {
        // Whose it is takes all owner rules: where no row names a team nobody asks.
        let names_team = self.rows.iter().any(|it| !it.team.is_empty());
        let payer = names_team.then(|| self.owners.payer(cluster, holder, at_ms));
        let is_of = |named: &str, has: &str| named.is_empty() || named == has;
        self.rows.iter().filter(move |it| {
            it.span.holds_at(at_ms)
                && is_of(&it.cluster, cluster)
                && is_of(&it.team, payer.as_ref().map_or("", Payer::name))
                && (is_of(&it.job, &holder.job) || holder.is_called(&it.job))
        })
    }

    /// That rows for the same overlap in time, one sentence for each of these.
    pub fn overlaps(&self) -> Vec<String> {
        let rows = self.rows.iter();
        let rows = rows.map(|it| (format!("{} by {}", it.whose(), it.measure()), it.span));
        overlaps("targets", rows)
    }

    /// Cluster and team of each row that is not over, which may be empty.
    pub(in crate::money) fn named(&self, at_ms: i64) -> impl Iterator<Item = [&str; 2]> {
        let rows = self.rows.iter().filter(move |it| it.span.ends_after(at_ms));
        rows.map(|it| [it.cluster.as_str(), it.team.as_str()])
    }
}

impl Row {
    /// Whose time is held to it.
    fn whose(&self) -> String {
        whose(&[
            ("cluster", self.cluster.as_str()),
            ("team", self.team.as_str()),
            ("job", self.job.as_str()),
        ])
    }

    /// Its measure as tables have it.
    fn measure(&self) -> &'static str {
        let known = MEASURES.iter().find(|it| it.1 == self.measure);
        known.map_or("", |it| it.0)
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
    let known = MEASURES.iter().find(|it| it.0 == measure);
    let measure = known.map(|it| it.1).ok_or_else(|| {
        let all = MEASURES.map(|it| it.0).join(", ");
        format!("the measure `{measure}` is none of {all}")
    })?;
    let share = money::parse(least).map_err(|error| format!("`{least}` {error}"))?;
    let least_millionths = share / NANO_PER_MILLIONTH;
    if !(1..=WHOLE).contains(&least_millionths) {
        return Err(format!("`{least}` is no share above 0 and up to 1"));
    }
    Ok(Row {
        span: Span::read(from, until)?,
        cluster: cluster.clone(),
        team: team.clone(),
        job: job.clone(),
        measure,
        least_millionths,
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
    fn a_teams_target_is_of_what_the_rules_of_each_cluster_charge_to_it() {
        let rules = "from,until,kind,key,value,team,cluster\n\
            2026-01-01,,namespace,,ml,science,\n2026-01-01,,namespace,,ml,vision,prod\n";
        let text = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,,,science,,sm_active,0.5\n2026-01-01,,,vision,,sm_active,0.4\n";
        let owners = Owners::read(rules).expect("a table");
        let targets = Targets::new(&owners, targets(text).0);
        let holder = Holder {
            namespace: "ml".to_owned(),
            ..Holder::default()
        };
        let at_ms = table::moment("2026-11-01").expect("a date");
        for (cluster, least) in [("lab", 500_000), ("prod", 400_000)] {
            let found = targets.of(cluster, &holder, at_ms);
            let found: Vec<_> = found.iter().map(|it| it.least).collect();
            assert_eq!(found, [least], "{cluster}");
        }
    }

    #[test]
    fn the_mfu_of_a_run_has_rows_of_its_own_that_no_time_is_held_against() {
        let text = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,,,,,mfu,0.35\n\
            2026-01-01,,,,tune,mfu,0.25\n\
            2026-01-01,,,,tune,sm_active,0.5\n";
        let (rows, findings) = targets(text);
        assert_eq!(findings, [""; 0]);
        let targets = Targets::new(&Owners::default(), rows);
        let mfu = |job: &str| {
            let job = job.to_owned();
            let holder = Holder {
                job,
                ..Holder::default()
            };
            targets.mfu(
                "prod",
                &holder,
                table::moment("2026-11-01").expect("a date"),
            )
        };
        assert_eq!(
            (mfu("jobset:ml/tune"), mfu("jobset:ml/train")),
            (Some(0.25), Some(0.35))
        );
        assert_eq!(Targets::default().mfu("prod", &Holder::default(), 0), None);
        assert_eq!(
            of(text, "prod", "jobset:ml/tune", "2026-11-01"),
            [(Measure::SmActive, 500_000)]
        );
    }

    #[test]
    fn rows_for_the_same_that_overlap_are_told_once_and_those_that_follow_one_another_are_not() {
        let text = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,2026-03-01,,,,sm_active,0.5\n\
            2026-03-01,,,,,sm_active,0.6\n\
            2026-01-01,,,,,tensor_active,0.4\n\
            2026-05-01,2026-06-01,prod,science,,sm_active,0.5\n\
            2026-01-01,,prod,science,,sm_active,0.4\n\
            2026-07-01,,prod,science,,sm_active,0.3\n";
        let (rows, findings) = targets(text);
        assert_eq!(findings, [""; 0]);
        let found = Targets::new(&Owners::default(), rows).overlaps();
        assert_eq!(
            found,
            [
                "targets: rows for cluster `prod`, team `science` by sm_active overlap from 2026-05-01T00:00:00Z: the first of them counts"
            ]
        );
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let text = "from,until,cluster,team,job,measure,least\n\
            2026-01-01,,,a,,speed,0.4\n\
            2026-01-01,,,a,,sm_active,0\n2026-01-01,,,a,,sm_active,40\nsoon,,,a,,sm_active,0.4\n";
        let expected = [
            "line 2: the measure `speed` is none of tensor_active, sm_active, mfu",
            "line 3: `0` is no share above 0 and up to 1",
            "line 4: `40` is no share above 0 and up to 1",
            "line 5: `soon` is no date",
        ];
        assert_eq!(targets(text).1, expected);
    }
}
