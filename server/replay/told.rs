//! What came of a replay, as a person reads it and as JSON.

use std::fmt::Write as _;

use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;

use super::unable::Unable;
use super::{MAX_INCIDENTS, Replayed};
use crate::api::incidents::{IncidentKnown, known};
use crate::view::FleetView;
use crate::words::incident::{evidence, place_words, price};
use crate::words::text;

/// Most pieces of evidence of an incident that are written.
const EVIDENCE: usize = 4;

/// Most characters of what was read in one piece of evidence.
const SHOWN: usize = 240;

/// How a person reads it.
pub fn text(replayed: &Replayed) -> String {
    let mut out = String::new();
    let (ticks, tick_s) = replayed.ticks;
    let gpus = text::counted(replayed.most.gpus, "GPU", "GPUs");
    let nodes = text::counted(replayed.most.nodes, "node", "nodes");
    line(
        &mut out,
        &format!(
            "Replayed {}: {} to {} UTC, {gpus} on {nodes}, {ticks} ticks of {tick_s} s.",
            replayed.what,
            text::moment(replayed.from),
            text::moment(replayed.until)
        ),
    );
    for note in &replayed.notes {
        line(&mut out, note);
    }
    line(&mut out, "");
    match replayed.incidents.len() {
        0 => line(&mut out, "Nothing would have fired."),
        1 => line(&mut out, "1 incident would have opened:"),
        count => line(&mut out, &format!("{count} incidents would have opened:")),
    }
    for (place, incident) in replayed.incidents.iter().enumerate() {
        line(&mut out, "");
        one(&mut out, incident, &replayed.currency);
        if let Some(then) = &replayed.then {
            let said = match then.also.get(place) {
                Some(true) => "it opened then as well",
                _ => "it did not open then",
            };
            field(&mut out, "then", said);
        }
    }
    if replayed.left_out > 0 {
        let more = replayed.left_out;
        line(&mut out, "");
        line(
            &mut out,
            &format!("{more} more, beyond {MAX_INCIDENTS}, are not told."),
        );
    }
    if let Some(then) = replayed.then.as_ref().filter(|it| !it.only.is_empty()) {
        line(&mut out, "");
        line(
            &mut out,
            "Opened then, and not here: kept quiet by this configuration, or not to be seen in this data (below):",
        );
        for incident in &then.only {
            line(&mut out, "");
            one(&mut out, incident, &replayed.currency);
        }
    }
    unable(&mut out, &replayed.unable);
    out
}

fn one(out: &mut String, incident: &Incident, currency: &str) {
    let family = incident.family.name().replace('_', " ");
    let what = text::harmless(&incident.what, text::SHOWN_CHARACTERS);
    line(
        out,
        &format!("{family}, {}: {what}", incident.severity.name()),
    );
    let nowhere = FleetView::default();
    let place = text::harmless(&place_words(&incident.place, &nowhere), SHOWN);
    let cluster = text::harmless(&incident.place.cluster, text::SHOWN_CHARACTERS);
    let places = match incident.places {
        0 | 1 => String::new(),
        places => format!(", {places} places"),
    };
    field(out, "where", &format!("{place}, cluster {cluster}{places}"));
    field(out, "since", &text::moment(incident.since));
    if let Some(at) = incident.opened_at {
        field(out, "opened", &text::moment(at));
    }
    let until = incident.resolved_at.map(text::moment);
    field(
        out,
        "until",
        until.as_deref().unwrap_or("it was not over at the end"),
    );
    field(out, "cause", incident.cause.words());
    for it in incident.evidence.iter().take(EVIDENCE) {
        let said = evidence(&it.what, &it.readings);
        field(out, "read", &text::harmless(&said, SHOWN));
    }
    field(out, "lost", &price(incident, currency));
}

fn unable(out: &mut String, unable: &[Unable]) {
    line(out, "");
    if unable.is_empty() {
        line(out, "Every detector could run on this data.");
        return;
    }
    line(out, "Could not run on this data:");
    for it in unable {
        let family = it.family.replace('_', " ");
        line(out, &format!("  {family}, {}: {}", it.detector, it.why));
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn field(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "  {name:<7}{text}");
}

/// It as JSON.
#[derive(Debug, Serialize)]
struct Told<'a> {
    what: &'a str,
    from: String,
    until: String,
    ticks: u64,
    tick_seconds: u32,
    gpus: usize,
    nodes: usize,
    notes: &'a [String],
    incidents: Vec<Fired>,
    left_out: u64,
    /// Null where it is not known what opened then.
    only_then: Option<Vec<IncidentKnown>>,
    unable: Vec<Lacking<'a>>,
}

#[derive(Debug, Serialize)]
struct Fired {
    #[serde(flatten)]
    incident: IncidentKnown,
    /// Whether it opened then as well; null where that is not known.
    also_then: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Lacking<'a> {
    family: &'a str,
    detector: &'a str,
    why: &'a str,
}

/// How a program reads it: JSON, in the words of the API.
pub fn json(replayed: &Replayed) -> String {
    let moment = |at: Timestamp| text::rfc3339(at);
    let also = |place: usize| {
        let then = replayed.then.as_ref()?;
        then.also.get(place).copied()
    };
    let known = |it: &Incident| known(it, it.owner.clone(), replayed.until, &replayed.currency);
    let incidents = replayed.incidents.iter().enumerate();
    let told = Told {
        what: &replayed.what,
        from: moment(replayed.from),
        until: moment(replayed.until),
        ticks: replayed.ticks.0,
        tick_seconds: replayed.ticks.1,
        gpus: replayed.most.gpus,
        nodes: replayed.most.nodes,
        notes: &replayed.notes,
        incidents: incidents
            .map(|(place, it)| Fired {
                incident: known(it),
                also_then: also(place),
            })
            .collect(),
        left_out: replayed.left_out,
        only_then: replayed.then.as_ref().map(|then| {
            let only = then.only.iter();
            only.map(known).collect()
        }),
        unable: replayed
            .unable
            .iter()
            .map(|it| Lacking {
                family: it.family,
                detector: it.detector,
                why: &it.why,
            })
            .collect(),
    };
    let mut text = serde_json::to_string_pretty(&told).expect("texts, numbers and lists are JSON");
    text.push('\n');
    text
}
