//! What is wrong with agents: those that are silent, whose readers fail, that cannot keep or ship what
//! they read, that are old, or whose clocks are off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::ledger::Reason;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::Origin;

use super::gather::Places;
use super::{Finding, Look, Looked, Place, others};
use crate::fleet::LiveAgent;
use crate::fleet::sender_clock::TOLERATED;
use crate::inventory::Source;
use crate::today::blind;
use crate::words;
use crate::words::text::{self, counted, grouped};

/// Longest name of others in a sentence.
const SHOWN: usize = text::SHOWN_CHARACTERS;

/// Nodes that are not heard.
pub(super) fn silent(look: &Look<'_>) -> Looked {
    let mut places = Places::default();
    for cluster in look.view.of(Origin::Live) {
        for node in &cluster.nodes {
            if let Some(since) = node.silent_since {
                let name = (Arc::clone(&cluster.name), Arc::clone(&node.name));
                places.add(&name, node.gpus.len(), Some(since));
            }
        }
    }
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let why = words::reason(Reason::NoSample);
    let what = format!(
        "{} silent",
        counted(places.nodes.len(), "node is", "nodes are")
    );
    let found = Finding::new(Severity::Error, "state-no_sample", what)
        .missing(format!(
            "What {} do since then; their time is not measured, and not called idle",
            counted(places.gpus(), "GPU", "GPUs")
        ))
        .fix(why.map_or("", |why| why.fix))
        .line("systemctl status gpufleet-agent; gpufleet-agent doctor")
        .on(&places);
    Ok(vec![found])
}

/// Nodes with GPUs of which the cluster tells, and no agent.
pub(super) fn none(look: &Look<'_>) -> Looked {
    others::nodes(look)?;
    let source = look.app.inventory.source();
    let blind = blind::without_agent(look.app, look.bound, look.view);
    if blind.is_empty() {
        return Ok(Vec::new());
    }
    let gpus = blind.iter().map(|it| it.node.gpus);
    let gpus = gpus.fold(0, u32::saturating_add) as usize;
    let what = format!(
        "{} no agent",
        counted(blind.len(), "node with GPUs has", "nodes with GPUs have")
    );
    // They have no pages of their own: nothing is known of them here.
    let places = blind.iter().map(|it| Place {
        name: text::harmless(&it.node.name, SHOWN),
        address: None,
    });
    let line = match source {
        Source::Kubernetes(_) => "kubectl -n gpufleet describe daemonset gpufleet-agent",
        _ => "systemctl status gpufleet-agent",
    };
    let found = Finding::new(Severity::Error, "no_agent", what)
        .missing(format!(
            "What {} do; their time is not measured, and not called idle",
            counted(gpus, "GPU", "GPUs")
        ))
        .fix(blind::no_agent_fix(source))
        .line(line)
        .since(blind.iter().map(|it| it.first_seen).min())
        .at(places);
    Ok(vec![Finding { gpus, ..found }])
}

/// Readers whose last round failed.
pub(super) fn readers(look: &Look<'_>) -> Looked {
    let finding = |(reader, places): (&Arc<str>, &Places)| {
        let name = text::harmless(reader, SHOWN);
        let what = format!(
            "Reader {name} fails on {}",
            counted(places.nodes.len(), "node", "nodes")
        );
        Finding::new(Severity::Warning, format!("reader-{reader}"), what)
            .missing(format!("Everything that {name} alone reads"))
            .fix(
                "The node's page has its error; the doctor on the node has the line that mends it.",
            )
            .line("gpufleet-agent doctor")
            .on(places)
    };
    Ok(look.seen.readers.iter().map(finding).collect())
}

/// Agents that cannot keep what they read, or are behind.
pub(super) fn spools(look: &Look<'_>) -> Looked {
    let mut all = Vec::new();
    let seen = &look.seen;
    let agents = |places: &Places| counted(places.nodes.len(), "agent", "agents");
    if !seen.unwritable.is_empty() {
        let what = format!("The spool of {} takes nothing", agents(&seen.unwritable));
        let found = Finding::new(Severity::Error, "spool-unwritable", what)
            .missing("What is sampled while it is so is lost")
            .fix("Most likely the node's disk is full, or the folder belongs to somebody else.")
            .line("df -h /var/lib/gpufleet; ls -ld /var/lib/gpufleet")
            .on(&seen.unwritable);
        all.push(found);
    }
    if !seen.behind.is_empty() {
        let what = format!("{} more than a minute behind", are(&seen.behind, "agent"));
        let found = Finding::new(Severity::Warning, "spool-behind", what)
            .missing("The minutes since then; nothing is lost, they are still being sent")
            .fix("If it lasts, look at the network between node and server: the agent's log says why it cannot ship.")
            .line("journalctl -u gpufleet-agent --since -10min")
            .on(&seen.behind);
        all.push(found);
    }
    let (places, count) = &seen.given_up;
    if !places.is_empty() {
        let what = format!(
            "{} gave up {} requests since they started, because the spool was full or corrupt",
            agents(places),
            grouped(*count)
        );
        let found = Finding::new(Severity::Warning, "spool-given-up", what)
            .missing("What was in them, for good: those minutes are not measured")
            .fix("Give the spool room for the longest outage: spool.limit_mib and spool.limit_hours of the agent's configuration.")
            .on(places);
        all.push(found);
    }
    Ok(all)
}

fn are(places: &Places, one: &str) -> String {
    let many = format!("{one}s are");
    counted(places.nodes.len(), &format!("{one} is"), &many)
}

/// What agents leave out.
pub(super) fn limits(look: &Look<'_>) -> Looked {
    let seen = &look.seen;
    let mut all = Vec::new();
    for (kind, of, fix) in [
        (
            "left-out",
            &seen.left_out,
            "Fewer series from the exporters of the node, or a newer agent for metrics that this one does not know.",
        ),
        (
            "hooks-refused",
            &seen.hooks_refused,
            "docs/hooks.md has the limits; a process that sends garbage has another version of the package than the agent knows.",
        ),
    ] {
        for (reason, (places, count)) in of {
            let who = match kind {
                "left-out" => "readers returned",
                _ => "training processes said",
            };
            let what = format!(
                "{} left out {} of what {who} since they started: {}",
                counted(places.nodes.len(), "agent", "agents"),
                grouped(*count),
                text::harmless(reason, SHOWN).replace('_', " ")
            );
            let id = format!("{kind}-{reason}");
            let found = Finding::new(Severity::Info, id, what)
                .missing("What was left out")
                .fix(fix)
                .on(places);
            all.push(found);
        }
    }
    Ok(all)
}

/// Agents of another version than this server.
pub(super) fn versions(look: &Look<'_>) -> Looked {
    let agents = look.agents()?;
    let own = env!("CARGO_PKG_VERSION");
    let mut by_version: BTreeMap<Arc<str>, Places> = BTreeMap::new();
    for agent in agents {
        if is_older(&agent.version, own) != Some(false) {
            let node = (Arc::clone(&agent.cluster), Arc::clone(&agent.node));
            let gpus = look.seen.heard.get(&node).copied().unwrap_or(0);
            let of = by_version.entry(Arc::clone(&agent.version)).or_default();
            of.add(&node, gpus, None);
        }
    }
    let finding = |(version, places): (Arc<str>, Places)| {
        let who = are(&places, "agent");
        let what = match version.is_empty() {
            true => format!("{who} without a version"),
            false => format!(
                "{who} of version {}, this server is {own}",
                text::harmless(&version, SHOWN)
            ),
        };
        Finding::new(Severity::Info, format!("version-{version}"), what)
            .missing("What newer agents read and tell")
            .fix("Update the agents: the server takes those of two minor versions back.")
            .on(&places)
    };
    Ok(by_version.into_iter().map(finding).collect())
}

/// Whether a version is older than another; none when one of them is none.
fn is_older(version: &str, than: &str) -> Option<bool> {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        let plain = text.split(['-', '+']).next()?;
        plain.split('.').map(|it| it.parse().ok()).collect()
    };
    Some(numbers(version)? < numbers(than)?)
}

/// Agents whose clocks are off.
pub(super) fn clocks(look: &Look<'_>) -> Looked {
    let mut places = Places::default();
    let mut most = 0;
    for agent in look.agents()? {
        let off = agent.clock_offset_nanos.saturating_abs();
        if off > TOLERATED {
            let node = (Arc::clone(&agent.cluster), Arc::clone(&agent.node));
            let gpus = look.seen.heard.get(&node).copied().unwrap_or(0);
            places.add(&node, gpus, None);
            most = most.max(off);
        }
    }
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let what = format!(
        "The clock of {} off, by up to {}",
        are(&places, "node"),
        text::span(most / 1_000_000)
    );
    let found = Finding::new(Severity::Warning, "clocks", what)
        .missing("Nothing: times are shifted by what the clock was off at the start of an epoch; over an hour the data waits")
        .fix("Mend NTP on the node.")
        .line("timedatectl; chronyc tracking")
        .on(&places);
    Ok(vec![found])
}

/// GPUs that two agents report.
pub(super) fn twice(look: &Look<'_>) -> Looked {
    let places = &look.seen.twice;
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let what = format!(
        "{} reported by two agents",
        counted(places.gpus(), "GPU is", "GPUs are")
    );
    let found = Finding::new(Severity::Warning, "twice", what)
        .missing("Nothing, as long as both are right: what the second sends is left out")
        .fix("Stop one of the two, for example the systemd unit beside a DaemonSet.")
        .line("systemctl disable --now gpufleet-agent")
        .on(places);
    Ok(vec![found])
}

/// GPUs whose data comes from another sender.
pub(super) fn foreign(look: &Look<'_>) -> Looked {
    let places = &look.seen.foreign;
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let what = format!(
        "{} reported by OTLP without an agent",
        counted(places.gpus(), "GPU is", "GPUs are")
    );
    let found = Finding::new(Severity::Info, "foreign", what)
        .missing("Who holds them, what the sender leaves out, and seconds: what it says is taken as claimed")
        .fix("Run the agent on the node; its readings go before those of others.")
        .on(places);
    Ok(vec![found])
}

impl Look<'_> {
    /// Agents of live clusters that the reader may see and that were heard since the start.
    fn agents(&self) -> Result<Vec<LiveAgent>, String> {
        let live = self.view.of(Origin::Live);
        let live: BTreeSet<&str> = live.map(|it| &*it.name).collect();
        let mut agents = self.app.fleet.agents();
        agents.retain(|it| live.contains(&*it.cluster));
        match agents.is_empty() {
            true => Err("no agent was heard since this server started".to_owned()),
            false => Ok(agents),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_older_by_its_numbers_and_not_by_its_letters() {
        for (version, than, expected) in [
            ("0.9.0", "0.10.0", Some(true)),
            ("0.10.0", "0.9.9", Some(false)),
            ("1.2.3", "1.2.3", Some(false)),
            ("1.2.3-rc1", "1.2.3", Some(false)),
            ("", "1.0.0", None),
            ("one", "1.0.0", None),
        ] {
            assert_eq!(is_older(version, than), expected, "{version} {than}");
        }
    }
}
