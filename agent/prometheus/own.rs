//! gpufleet's own names: every metric of the catalog that has a newest reading.
//!
//! Labels: `cluster`, `node`, then of a GPU `gpu` (index), `uuid`, `model`; of a share also `parent`
//! and `mig_profile`; of a model server `endpoint` and `model`; then the part's label. `origin` only
//! when the data is not live. A reading that is missing is not a line of its metric but one of
//! `gpufleet_agent_missing_reading_flag{metric,reason}`: missing is never zero.

use std::fmt::Write;

use gpufleet_telemetry::catalog::{self, Kind, Metric, own};
use gpufleet_telemetry::identity::{Origin, Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;

use super::text::{escape_help, escape_label};
use crate::sample::{Latest, LatestValue};

/// Writes everything, metric by metric, because the format wants a metric's lines together.
pub(super) fn encode(latest: &Latest, out: &mut String) {
    let labels: Vec<String> = latest
        .resources
        .iter()
        .map(|it| resource_labels(&it.resource))
        .collect();
    let mut lines: Vec<(&LatestValue, &str)> = latest
        .resources
        .iter()
        .zip(&labels)
        .flat_map(|(it, labels)| it.values.iter().map(|value| (value, labels.as_str())))
        .collect();
    lines.sort_by_key(|(value, _)| value.metric);
    let mut missing: Vec<(&'static Metric, &LatestValue, &str, Missing)> = Vec::new();
    let mut headed = None;
    for (value, labels) in lines {
        let Some(metric) = catalog::by_id(value.metric) else {
            continue;
        };
        // Evidence by second is for the server's minute rows; its bits say nothing to a scraper. And
        // the list of what is missing is made here, whatever a recording may say.
        if metric.kind == Kind::SecondBits || metric.id == own::MISSING_READING.id {
            continue;
        }
        match value.reading {
            Ok(number) => {
                if headed != Some(metric.id) {
                    headed = Some(metric.id);
                    head(metric, out);
                }
                series(out, metric.name, labels, value.part.as_ref(), &[]);
                let _ = writeln!(out, " {number}");
            }
            Err(reason) => missing.push((metric, value, labels, reason)),
        }
    }
    if !missing.is_empty() {
        head(&own::MISSING_READING, out);
    }
    for (metric, value, labels, reason) in missing {
        let why = [("metric", metric.name), ("reason", reason.name())];
        let name = own::MISSING_READING.name;
        series(out, name, labels, value.part.as_ref(), &why);
        out.push_str(" 1\n");
    }
}

fn head(metric: &Metric, out: &mut String) {
    let name = metric.name;
    let help = escape_help(metric.help);
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge | Kind::Last | Kind::SecondBits => "gauge",
    };
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Name and labels of one line.
fn series(out: &mut String, name: &str, labels: &str, part: Option<&Part>, more: &[(&str, &str)]) {
    out.push_str(name);
    out.push('{');
    out.push_str(labels);
    let part = part.map(|part| (part.kind.label(), part.id.as_ref()));
    let mut comma = if labels.is_empty() { "" } else { "," };
    for (label, value) in part.iter().chain(more) {
        let _ = write!(out, "{comma}{label}=\"{}\"", escape_label(value));
        comma = ",";
    }
    out.push('}');
}

fn resource_labels(resource: &Resource) -> String {
    let mut labels = String::with_capacity(256);
    let mut push = |name: &str, value: Option<&str>| {
        let Some(value) = value else { return };
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = write!(labels, "{comma}{name}=\"{}\"", escape_label(value));
    };
    let attribute = |name| resource.attribute(name);
    push("cluster", attribute(attribute::CLUSTER));
    push("node", attribute(attribute::NODE));
    match resource.kind {
        ResourceKind::Node => {}
        ResourceKind::Gpu => {
            push("gpu", attribute(attribute::GPU_INDEX));
            push("uuid", Some(&resource.id));
            push("model", attribute(attribute::GPU_MODEL));
        }
        ResourceKind::Share => {
            push("gpu", attribute(attribute::GPU_INDEX));
            push("uuid", Some(&resource.id));
            push("model", attribute(attribute::GPU_MODEL));
            push("parent", attribute(attribute::PARENT));
            push("mig_profile", attribute(attribute::MIG_PROFILE));
        }
        ResourceKind::Endpoint => {
            push("endpoint", Some(&resource.id));
            push("model", attribute(attribute::MODEL_NAME));
        }
        ResourceKind::Rank => {
            push("job", attribute(attribute::JOB));
            push("attempt", attribute(attribute::ATTEMPT));
            push("rank", attribute(attribute::RANK));
            push("uuid", attribute(attribute::GPU_ID));
        }
    }
    if resource.origin() != Origin::Live {
        push("origin", Some(resource.origin().name()));
    }
    labels
}
