//! Warm standbys: what is held and idle by design, from a date until a date, such as replicas of a service that wait for
//! traffic or for a failure.

use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::table;

use super::Span;

/// Columns of the table; an empty cluster, namespace or job is every one.
pub(super) const STANDBY: [&str; 5] = ["from", "until", "cluster", "namespace", "job"];

/// Everything that is a standby.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standby(Vec<Row>);

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    span: Span,
    cluster: String,
    namespace: String,
    job: String,
}

impl Standby {
    /// These rows, of all tables.
    pub const fn new(rows: Vec<Row>) -> Self {
        Self(rows)
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a holder of GPUs of a cluster is one at a moment.
    pub fn has(&self, cluster: &str, holder: &Holder, at_ms: i64) -> bool {
        let is_of = |named: &str, has: &str| named.is_empty() || named == has;
        self.0.iter().any(|it| {
            it.span.holds_at(at_ms)
                && is_of(&it.cluster, cluster)
                && is_of(&it.namespace, &holder.namespace)
                && (is_of(&it.job, &holder.job) || holder.is_called(&it.job))
        })
    }
}

/// Reads a table of standbys; what cannot be used is told.
pub fn standby(text: &str) -> (Vec<Row>, Vec<String>) {
    let rows = match table::read(text, &STANDBY) {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for row in rows {
        match read(&row.fields) {
            Ok(standby) => found.push(standby),
            Err(why) => findings.push(format!("line {}: {why}", row.line)),
        }
    }
    (found, findings)
}

fn read(fields: &[String]) -> Result<Row, String> {
    let [from, until, cluster, namespace, job] = fields else {
        return Err("it has not as many fields as columns".to_owned());
    };
    if namespace.is_empty() && job.is_empty() {
        return Err("`namespace` and `job` are empty: everything would be a standby".to_owned());
    }
    Ok(Row {
        span: Span::read(from, until)?,
        cluster: cluster.clone(),
        namespace: namespace.clone(),
        job: job.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_what_a_row_names_in_its_time_and_what_is_wrong_is_named() {
        let text = "from,until,cluster,namespace,job\n\
            2026-01-01,2026-11-01,prod,chat,spare\n\
            2026-01-01,,,batch,\n\
            2026-01-01,,,,deployment:ml/warm\n\
            2026-01-01,,prod,,\nsoon,,,a,b\n";
        let (rows, findings) = standby(text);
        let all = Standby::new(rows);
        let has = |cluster: &str, namespace: &str, job: &str, month: &str| {
            let holder = Holder {
                namespace: namespace.to_owned(),
                job: job.to_owned(),
                ..Holder::default()
            };
            all.has(cluster, &holder, table::moment(month).expect("a date"))
        };
        assert!(has("prod", "chat", "deployment:chat/spare", "2026-10-01"));
        assert!(
            !has("prod", "chat", "deployment:chat/spare", "2026-11-01"),
            "it is over"
        );
        assert!(
            !has("lab", "chat", "spare", "2026-10-01"),
            "another cluster"
        );
        assert!(!has("prod", "chat", "front", "2026-10-01"), "another job");
        assert!(has("lab", "batch", "any", "2026-12-01"));
        assert!(has("lab", "ml", "deployment:ml/warm", "2026-12-01"));
        assert!(
            !has("lab", "ml", "", "2026-12-01"),
            "a holder without a job"
        );
        assert!(!Standby::default().has("lab", &Holder::default(), 0));
        let expected = [
            "line 5: `namespace` and `job` are empty: everything would be a standby",
            "line 6: `soon` is no date",
        ];
        assert_eq!(findings, expected);
    }
}
