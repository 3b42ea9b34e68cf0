//! An incident in words: where it is, what it costs, what shows it.

use gpufleet_analysis::cause::Reading;
use gpufleet_analysis::incident::{Incident, Place};
use gpufleet_telemetry::catalog::{self, Unit};
use gpufleet_telemetry::training::RunId;

use super::text::{self, dollars};
use crate::runs::RunKey;
use crate::view::FleetView;

/// The run that a place names.
pub(crate) fn run_of(place: &Place) -> Option<RunKey> {
    Some(RunKey {
        cluster: place.cluster.as_str().into(),
        run: RunId::parse(place.run.as_deref()?).ok()?,
    })
}

/// Where an incident is, as people say it: a run by its job's name, because its whole id is long and on its
/// own page.
pub(crate) fn place_words(place: &Place, view: &FleetView) -> String {
    let cluster = &place.cluster;
    let of_node = match (&place.node, &place.gpu) {
        (Some(node), Some(gpu)) => {
            let index = view.node(cluster, node).and_then(|(_, it)| {
                let found = it.gpus.iter().find(|it| *it.key.id == **gpu)?;
                found.index
            });
            let gpu = index.map_or_else(|| gpu.clone(), |it| it.to_string());
            format!("GPU {gpu} of {node}")
        }
        (Some(node), None) => node.clone(),
        (None, _) => format!("cluster {cluster}"),
    };
    let job = run_of(place).map(|it| it.run.job.name);
    match (job.as_ref().or(place.run.as_ref()), place.rank) {
        (Some(run), Some(rank)) => format!("rank {rank} of {run} on {of_node}"),
        (Some(run), None) => format!("{run} on {of_node}"),
        (None, _) => of_node,
    }
}

/// What an incident costs an hour, in words.
pub(crate) fn costs(incident: &Incident) -> String {
    let losing = &incident.losing;
    match losing.nano_usd_per_hour() {
        _ if losing.milli_gpus == 0 => "costs nothing that is known".to_owned(),
        Some(nano) => format!("costs {}/h", dollars(nano)),
        None => format!("costs {}, without a price", text::gpus(losing.milli_gpus)),
    }
}

/// What an incident has cost, in words.
pub(crate) fn lost(incident: &Incident) -> String {
    let hours = match incident.lost.gpu_seconds() / 3_600.0 {
        // A little is not nothing.
        hours if hours > 0.0 && hours < 0.01 => "under 0.01".to_owned(),
        hours if hours >= 1_000.0 => text::grouped(hours.round()),
        hours => format!("{hours:.2}"),
    };
    match incident.lost.nano_usd() {
        Some(nano) if incident.lost.is_priced() => {
            format!("{hours} GPU-hours, {}", dollars(nano))
        }
        Some(nano) => format!("{hours} GPU-hours, at least {}", dollars(nano)),
        None => format!("{hours} GPU-hours, without a price"),
    }
}

/// A piece of evidence in words.
pub(crate) fn evidence(what: &str, readings: &[Reading]) -> String {
    let what = text::harmless(what, text::SHOWN_CHARACTERS);
    match readings {
        [] => what,
        _ => format!("{what}, {}", measured(readings)),
    }
}

/// What was read, beside what is usual.
pub(crate) fn measured(readings: &[Reading]) -> String {
    let one = |reading: &Reading| {
        let unit = unit(&reading.unit);
        let value = text::quantity(unit, reading.value);
        let usual = reading.usual.map(|it| text::quantity(unit, it));
        let usual = usual.map_or_else(String::new, |it| format!(" (usual {it})"));
        format!("{} {value}{usual}", reading.name)
    };
    readings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The unit with this suffix.
fn unit(suffix: &str) -> Unit {
    let known = catalog::all().find(|it| it.unit.suffix() == Some(suffix));
    known.map_or(Unit::Count, |it| it.unit)
}
