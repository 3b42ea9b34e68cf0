//! The choices at the top of the dashboards: what they offer, and a query with each of them where it takes one at a time,
//! which Grafana puts in as it stands.

use std::collections::BTreeSet;

use gpufleet_tests::harness::wait;
use serde_json::Value;

use super::{CHOSEN, DATA_LIMIT, Dashboards, REAL, put_in};
use crate::peers::Peer;

/// What one can be made of: the values that a label has on series.
#[derive(Clone)]
pub(super) struct Choice {
    /// As queries name it, such as `$one_job`.
    name: String,
    label: String,
    series: String,
}

/// Those of a dashboard.
pub(super) fn of(dashboard: &Value) -> Vec<Choice> {
    let list = dashboard["templating"]["list"].as_array();
    let made = list.into_iter().flatten().filter_map(|it| {
        let query = it["query"]["query"].as_str()?;
        let inside = query.strip_prefix("label_values(");
        let inside = inside.and_then(|it| it.strip_suffix(')'));
        let (series, label) = inside
            .and_then(|it| it.rsplit_once(", "))
            .unwrap_or_else(|| panic!("{query} asks for the values of no label"));
        Some(Choice {
            name: format!("${}", it["name"].as_str()?),
            label: label.to_owned(),
            series: series.to_owned(),
        })
    });
    made.collect()
}

/// A query with every value of what it takes one of at a time, as that is offered for this cluster.
pub(super) fn each(
    query: &str,
    choices: &[Choice],
    (peer, cluster): (&Peer, &str),
    chosen: &[(&str, &str)],
) -> Vec<String> {
    let in_cluster = |text: &str| text.replace("$one_cluster", cluster);
    let query = in_cluster(query);
    let is_taken = |it: &&Choice| it.name.starts_with("$one_") && query.contains(&it.name);
    let taken = choices.iter().filter(is_taken);
    taken.fold(vec![query.clone()], |queries, choice| {
        let series = put_in(&in_cluster(&choice.series), chosen);
        let values = peer.label_values(&choice.label, &series);
        let with = |value: &String| {
            let with = queries.iter().map(|it| it.replace(&choice.name, value));
            with.collect::<Vec<_>>()
        };
        values.iter().flat_map(with).collect()
    })
}

/// That every choice has values.
pub(super) fn are_offered(prometheus: &Peer, dashboards: &Dashboards) {
    let all = dashboards.iter().flat_map(|(_, it)| of(it));
    let asked = all.map(|it| {
        let series = put_in(&it.series, &[&REAL[..], &CHOSEN].concat());
        (it.label, series)
    });
    let mut choices: BTreeSet<(String, String)> = asked.collect();
    assert!(choices.len() > 5, "only {} choices", choices.len());
    wait::until("there is something to choose", DATA_LIMIT, || {
        choices.retain(|(label, series)| prometheus.label_values(label, series).is_empty());
        eprintln!("nothing to choose from yet: {choices:?}");
        choices.is_empty().then_some(())
    });
}
