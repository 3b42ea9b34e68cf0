//! The open incidents as series: that each is open, since when, and what it has lost so far. What they are for is
//! Grafana's: marks on every chart, and tables of what is wrong now.
//!
//! Labels: `id`, `family`, `severity`, `what`, `cluster` and `origin` always; `node`, `gpu` (its id), `namespace`,
//! `job`, `attempt`, `rank` and `team` where they are known. A label that has no value is left out. A job is its whole id,
//! `namespace/name/uid`, as on the series of agents that a chart has beside them; one that tells no run is its name alone.
//!
//! What it has lost is left out where that was not measured: that is not 0.
//!
//! Limits: four series an incident at most, and as many incidents as are kept ([`MAX_INCIDENTS`], 1,000). So 4,000 series at
//! most at a time; each incident's are its own, and end with it. A label is cut at [`LABEL_BYTES`]: the id tells them
//! apart all the same.

use std::fmt::Write as _;

use gpufleet_analysis::incident::Incident;
#[cfg(doc)]
use gpufleet_analysis::incident::MAX_INCIDENTS;
use gpufleet_telemetry::catalog::{Metric, server};

use super::{LABEL_BYTES, label, write_head};
use crate::fleet::naming::origin_of;
use crate::money::budgets;
use crate::notify::own::is_own;
use crate::words::incident::run_of;

/// One thing that is told of an incident; none where it is not known.
type Tells = fn(&Incident) -> Option<f64>;

/// What is told of each.
const SERIES: [(Metric, Tells); 4] = [
    (server::INCIDENT_OPEN, |_| Some(1.0)),
    (server::INCIDENT_SINCE, |it| Some(it.since.0 as f64 / 1e9)),
    (server::INCIDENT_LOST_TIME, |it| {
        Some(it.lost_known()?.gpu_seconds())
    }),
    (server::INCIDENT_LOST_USD, |it| {
        Some(it.lost_known()?.nano_usd()? as f64 / 1e9)
    }),
];

/// Writes the series of these incidents.
pub(super) fn write(out: &mut String, open: &[Incident]) {
    let labelled: Vec<(&Incident, String)> = open.iter().map(|it| (it, labels(it))).collect();
    for (metric, tells) in &SERIES {
        write_head(out, metric);
        for (incident, labels) in &labelled {
            if let Some(value) = tells(incident) {
                let _ = writeln!(out, "{}{{{labels}}} {value}", metric.name);
            }
        }
    }
}

fn labels(incident: &Incident) -> String {
    let place = incident.place_and_run();
    let run = run_of(&place).map(|it| it.run);
    let job = run.as_ref().map(|it| it.job.to_string());
    let job = job.as_deref().or(place.run.as_deref());
    let (id, rank) = (incident.id.to_string(), place.rank.map(|it| it.to_string()));
    let attempt = run.as_ref().map(|it| it.attempt.to_string());
    // What is wrong with gpufleet itself has a name there, and a budget its team's: neither is a node's.
    let is_nodes = !is_own(&place) && !budgets::is_one(&place);
    let mut labels = String::with_capacity(320);
    for (name, value) in [
        ("id", Some(id.as_str())),
        ("family", Some(incident.family.name())),
        ("severity", Some(incident.severity.name())),
        ("what", Some(&incident.what)),
        ("cluster", Some(&place.cluster)),
        ("origin", Some(origin_of(&place.cluster).name())),
        ("node", place.node.as_deref().filter(|_| is_nodes)),
        ("gpu", place.gpu.as_deref()),
        ("namespace", run.as_ref().map(|it| &*it.job.namespace)),
        ("job", job),
        ("attempt", attempt.as_deref()),
        ("rank", rank.as_deref()),
        ("team", incident.owner.as_deref()),
    ] {
        let Some(value) = value.filter(|it| !it.is_empty()) else {
            continue;
        };
        if !labels.is_empty() {
            labels.push(',');
        }
        label(
            &mut labels,
            name,
            &value[..value.floor_char_boundary(LABEL_BYTES)],
        );
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::fixture;

    fn text(open: &[Incident]) -> String {
        let mut out = String::new();
        write(&mut out, open);
        out
    }

    fn line<'a>(text: &'a str, metric: &Metric) -> &'a str {
        let start = format!("{}{{", metric.name);
        let mut lines = text.lines().filter(|line| line.starts_with(&start));
        let line = lines.next().unwrap_or_default();
        assert_eq!(
            lines.next(),
            None,
            "one incident has one series of a metric"
        );
        line
    }

    #[test]
    fn an_open_incident_says_what_it_is_where_and_whose() {
        let mut incident = fixture::incident(7);
        incident.place.cluster = "prod".to_owned();
        incident.place.run = Some("ml/llm-70b/uid-1/2".to_owned());
        incident.place.rank = Some(3);
        incident.owner = Some("vision".to_owned());
        let text = text(std::slice::from_ref(&incident));
        let open = line(&text, &server::INCIDENT_OPEN);
        for part in [
            format!("id=\"{}\"", incident.id),
            format!("family=\"{}\"", incident.family.name()),
            format!("what=\"{}\"", incident.what),
            "cluster=\"prod\"".to_owned(),
            "origin=\"live\"".to_owned(),
            "namespace=\"ml\"".to_owned(),
            "job=\"ml/llm-70b/uid-1\"".to_owned(),
            "attempt=\"2\"".to_owned(),
            "rank=\"3\"".to_owned(),
            "team=\"vision\"".to_owned(),
        ] {
            assert!(open.contains(&part), "{part}: {open}");
        }
        assert!(open.ends_with(" 1"), "{open}");
        incident.place.run = Some("jobset:ml/llm-70b".to_owned());
        let named = self::text(std::slice::from_ref(&incident));
        let job = "job=\"jobset:ml/llm-70b\"";
        let open = line(&named, &server::INCIDENT_OPEN);
        assert!(open.contains(job) && !open.contains("attempt="), "{open}");
        let since = format!(" {}", incident.since.0 as f64 / 1e9);
        let told = line(&text, &server::INCIDENT_SINCE);
        assert!(told.ends_with(&since), "{told}");
    }

    #[test]
    fn what_is_not_known_of_an_incident_is_no_label_and_no_price_no_zero() {
        let mut incident = fixture::incident(7);
        incident.place = gpufleet_analysis::incident::Place {
            cluster: "demo".to_owned(),
            ..Default::default()
        };
        incident.evidence.clear();
        incident.owner = None;
        let losing = gpufleet_analysis::lost::Losing::gpus(2, None);
        incident
            .lost
            .add(fixture::START, fixture::after(10), &losing);
        let text = text(&[incident]);
        for name in ["node", "gpu", "job", "attempt", "rank", "team"] {
            assert!(!text.contains(&format!(",{name}=")), "{name}: {text}");
        }
        assert!(text.contains("origin=\"simulated\""), "{text}");
        assert!(line(&text, &server::INCIDENT_LOST_TIME).ends_with(" 20"));
        assert_eq!(line(&text, &server::INCIDENT_LOST_USD), "");
    }

    #[test]
    fn a_team_over_its_budget_is_no_node() {
        let mut incident = fixture::incident(7);
        incident.place = budgets::place("", "science");
        incident.owner = Some("science".to_owned());
        incident.evidence.clear();
        let text = text(&[incident]);
        let open = line(&text, &server::INCIDENT_OPEN);
        assert!(open.contains("team=\"science\""), "{open}");
        assert!(!open.contains("node="), "{open}");
    }

    #[test]
    fn a_hostile_name_neither_ends_a_line_nor_is_longer_than_a_label() {
        let mut incident = fixture::incident(7);
        incident.what = format!("\"}} 1\n{}", "é".repeat(LABEL_BYTES));
        let text = text(&[incident]);
        let open = line(&text, &server::INCIDENT_OPEN);
        assert!(open.contains("what=\"\\\"} 1\\né"), "{open}");
        assert!(open.len() < 3 * LABEL_BYTES, "{open}");
        // Head and line of each metric that has a value, and nothing else.
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("gpufleet_server_incident_")), "{text}");
    }
}
