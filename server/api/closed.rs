//! What a parameter takes that is one of a few words, and in which forms a report is there, written into the document in one
//! place, from what reads them: a word that is new is described, and a client made of the document knows it.
//!
//! `state` of `/gpus` is none of them: it may be several words with commas between them.

use clap::ValueEnum;
use gpufleet_analysis::incident::{Family, State};
use gpufleet_analysis::report::focus::Version;
use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::{Origin, ResourceKind};
use serde_json::Value;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, OpenApi, RefOr, Schema};

use super::jobs;
use crate::money::report::{Form, What};
use crate::runs::order::Order;

/// Where the routes of reports begin; behind it is what is reported.
const REPORTS: &str = "/api/v1/reports/";

/// Says of every route what its parameters take, and of reports in which forms they are there.
pub fn describe(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let report = path.strip_prefix(REPORTS);
        let report = report.and_then(|it| What::from_str(it, false).ok());
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            match report {
                Some(what) => describe_report(operation, what),
                None => describe_list(operation, path),
            }
        }
    }
}

fn describe_report(operation: &mut Operation, what: What) {
    let forms: Vec<Form> = what.forms().collect();
    takes(operation, "format", words(&forms));
    takes(operation, "basis", words(what.bases()));
    takes(operation, "focus_version", Version::ALL.map(Version::name));
    let answer = operation.responses.responses.get_mut("200");
    let Some(RefOr::T(answer)) = answer else {
        return;
    };
    for form in forms {
        let kind = form.media_type().split(';').next().unwrap_or_default();
        let shape = || RefOr::T(ContentBuilder::new().build());
        answer.content.entry(kind.to_owned()).or_insert_with(shape);
    }
}

fn describe_list(operation: &mut Operation, path: &str) {
    let severities = Severity::ALL.map(Severity::name);
    takes(operation, "origin", Origin::ALL.map(Origin::name));
    takes(operation, "severity", severities);
    match path {
        "/api/v1/incidents" => {
            takes(operation, "family", Family::ALL.map(Family::name));
            let states = [State::Open, State::Resolved];
            takes(operation, "state", states.map(State::name));
        }
        "/api/v1/events" => {
            takes(operation, "kind", EventKind::ALL.map(EventKind::name));
            let kinds = ResourceKind::ALL.map(ResourceKind::name);
            takes(operation, "resource_kind", kinds);
        }
        "/api/v1/jobs" => {
            takes(operation, "state", jobs::STATES);
            takes(operation, "sort", Order::ALL.map(Order::name));
        }
        _ => {}
    }
}

/// As they are asked for.
fn words<T: ValueEnum>(values: &[T]) -> Vec<String> {
    let words = values.iter().filter_map(ValueEnum::to_possible_value);
    words.map(|it| it.get_name().to_owned()).collect()
}

/// Says that a parameter takes these words alone; nothing where the route does not have it.
fn takes<W: Into<Value>>(
    operation: &mut Operation,
    name: &str,
    words: impl IntoIterator<Item = W>,
) {
    let all = operation.parameters.iter_mut().flatten();
    let named = all.filter_map(|it| match it {
        RefOr::T(it) if it.name == name => it.schema.as_mut(),
        _ => None,
    });
    let words: Vec<Value> = words.into_iter().map(Into::into).collect();
    for schema in named {
        if let RefOr::T(Schema::Object(schema)) = schema {
            schema.enum_values = Some(words.clone());
        }
    }
}
