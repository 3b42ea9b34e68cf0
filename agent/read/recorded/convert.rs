//! Captures as recordings: the text of an exporter, or the XML of `nvidia-smi -q -x`. One sample
//! each, and shown as that.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::sample::ResourceSamples;

use super::format::{Header, Round, VERSION};
use super::nvidia_smi_xml;
use crate::read::exporter::table::Table;
use crate::read::exporter::{map::Mapper, text};

/// The node's name in recordings: the real one is nobody's business.
pub const SCRUBBED_NODE: &str = "recorded";

/// The header of a capture: nobody knows when it was taken.
pub fn header() -> Header {
    Header {
        gpufleet_recording: VERSION,
        taken_at_seconds: None,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        node: SCRUBBED_NODE.to_owned(),
    }
}

/// The one round of a capture.
///
/// # Errors
/// When it is neither XML of nvidia-smi nor text that a table reads.
pub fn capture(text: &str, tables: &[Table]) -> Result<Round, String> {
    let start = text.trim_start();
    let (reader, resources) = if start.starts_with("<?xml") || start.starts_with("<nvidia_smi_log")
    {
        (
            "nvidia-smi".to_owned(),
            nvidia_smi_xml::read(text, SCRUBBED_NODE)?,
        )
    } else {
        exporter(text, tables)?
    };
    Ok(Round {
        at_ns: 0,
        reader,
        resources,
        events: Vec::new(),
    })
}

fn exporter(text: &str, tables: &[Table]) -> Result<(String, Vec<ResourceSamples>), String> {
    let body = text::parse(text);
    let mut mapper = Mapper::new(tables.to_vec().into(), SCRUBBED_NODE, "endpoint");
    let mapped = mapper.map(&body.series);
    if mapped.resources.is_empty() {
        let first = body.refusals.first().map(|it| format!("; {it}"));
        return Err(format!(
            "no table reads it: {} series unknown, {} that do not say whose they are, {} lines refused{}",
            mapped.unknown,
            mapped.unplaced,
            body.refused,
            first.unwrap_or_default()
        ));
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let resources = mapped.resources.into_iter().map(|mapped| {
        *counts.entry(mapped.table).or_default() += 1;
        ResourceSamples {
            resource: Arc::new(mapped.resource),
            samples: mapped.samples,
        }
    });
    let resources = resources.collect();
    let reader = counts.into_iter().max_by_key(|(_, count)| *count);
    let reader = reader.map(|(table, _)| format!("exporter:{table}"));
    Ok((reader.unwrap_or_default(), resources))
}
