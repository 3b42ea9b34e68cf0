//! Which runbook helps with an incident: by its kind, and for broken GPUs by what is broken. The table
//! alerts/kinds.toml has the same pages; a test holds the two against each other.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Incident};

use super::own;

/// The page of links, and of runs, that the network makes slow.
const NETWORK: &str = "network";

/// The page of readers that fail and of readings that are refused.
const READER: &str = "reader-fails";

/// The name of the page in docs/runbooks.
pub fn of(incident: &Incident) -> &'static str {
    if own::is_own(&incident.place) {
        return own::runbook(&incident.place);
    }
    match incident.family {
        Family::Blind if incident.is_of_readers() => READER,
        Family::GpuFault => gpu_fault(&incident.what),
        Family::Link | Family::Slower if incident.cause == Cause::Network => NETWORK,
        family => usual(family),
    }
}

/// The page of a kind of trouble where nothing more is known.
pub const fn usual(family: Family) -> &'static str {
    match family {
        Family::Blind => "agent-down",
        Family::GpuFault => "gpu-lost",
        Family::Memory => "gpu-memory",
        Family::Heat => "heat",
        Family::Power => "power",
        Family::Link => "link",
        Family::Hang => "training-hang",
        Family::Straggler => "straggler",
        Family::Training => "training-numbers",
        Family::Slower => "host-slow",
        Family::Leak => "host-memory",
        Family::Stalled => "stalled",
        Family::Idle => "idle",
        Family::Offender => "repeat-offender",
        Family::Budget => "budget",
    }
}

/// The words are those of server/detect/gpus.rs.
fn gpu_fault(what: &str) -> &'static str {
    match what {
        // The XIDs of a GPU that is gone.
        "XID 79" | "XID 151" => usual(Family::GpuFault),
        it if it.contains("XID") => "xid",
        it if it.contains("memory") => "gpu-memory",
        it if it.contains("driver call") => "driver-hang",
        it if it.contains("driver asks") => "recovery-action",
        _ => usual(Family::GpuFault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_trouble_has_a_page_that_is_there_and_stands_in_the_table() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let table = std::fs::read_to_string(format!("{root}/alerts/kinds.toml"));
        let table: toml::Table = table
            .expect("the table is there")
            .parse()
            .expect("it is TOML");
        let kinds = table["kind"].as_array().expect("it has kinds");
        let stands = |family: &str, page: &str| {
            let is = |it: &toml::Value, key: &str, value: &str| it[key].as_str() == Some(value);
            kinds
                .iter()
                .any(|it| is(it, "incident", family) && is(it, "runbook", page))
        };
        let mut pages: Vec<(Family, &str)> = Family::ALL.map(|it| (it, usual(it))).to_vec();
        for what in [
            "XID 79",
            "XID 48",
            "memory errors that could not be corrected",
            "a driver call does not return",
            "the driver asks to reset the GPU",
            "lost",
        ] {
            pages.push((Family::GpuFault, gpu_fault(what)));
        }
        pages.extend([Family::Link, Family::Slower].map(|it| (it, NETWORK)));
        pages.push((Family::Blind, READER));
        let own = ["ingest", "channel x", "incidents"].map(|it| own::runbook(&own::place(it)));
        pages.extend(own.map(|page| (Family::Blind, page)));
        for (family, page) in pages {
            let file = format!("{root}/docs/runbooks/{page}.md");
            assert!(std::path::Path::new(&file).exists(), "{file}");
            assert!(stands(family.name(), page), "{} {page}", family.name());
        }
    }
}
