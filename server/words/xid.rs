//! XIDs in words: what happened, and apart from it what is to be done, by the name of the action in the agent's table
//! (`agent/read/nvml/xid_actions.toml`). The agent tells the name alone.
//!
//! What happened is said of the codes that break a card or its links, after NVIDIA's catalogue of XIDs.

use gpufleet_analysis::health::xid::is_of_nvlink;

/// What each action of the shipped table and each recovery action of the driver asks for.
const ACTIONS: [(&str, &str); 12] = [
    (
        "application_error",
        "The program did something wrong: mend it and start it again.",
    ),
    ("observe", "Nothing to do now: watch whether it comes back."),
    ("reset_gpu", "Drain the GPU's jobs and reset the GPU."),
    (
        "drain_and_reset",
        "Drain the GPU's jobs, then reset the GPU.",
    ),
    (
        "drain_peer_to_peer",
        "Stop the jobs that use it together with other GPUs; one that has it alone may go on.",
    ),
    ("reboot_node", "Drain the node and reboot it."),
    ("restart_vm", "Restart the virtual machine."),
    (
        "nvlink",
        "See which link it is, and whether its peer says the same, before the GPU is reset.",
    ),
    (
        "read_recovery_action",
        "Do what the driver asks for in its recovery action; XID 45 follows another one, which is the one to act on.",
    ),
    (
        "check_power",
        "Check that the card's auxiliary power is connected and enough.",
    ),
    (
        "update_software",
        "Driver and GPU firmware do not fit: bring them to versions that do.",
    ),
    (
        "check_uvm",
        "Check the state of the unified memory driver (nvidia-uvm).",
    ),
];

/// What an XID asks for by the name of its action; a name of a table of the user's own, or of another sender, is all that
/// there is to say.
pub fn asks(action: &str) -> String {
    let known = ACTIONS.iter().find(|(name, _)| *name == action);
    known.map_or_else(|| action.replace('_', " "), |it| it.1.to_owned())
}

/// What an XID of this code says of the card or its links, to go on behind its number; none of one that breaks neither.
pub const fn happened(code: u32) -> Option<&'static str> {
    Some(match code {
        48 => "the GPU's memory had an error that could not be corrected",
        62 => "the GPU's internal micro-controller stopped",
        64 => "a row of the GPU's memory could not be remapped",
        code if is_of_nvlink(code) => "an NVLink had an error",
        79 => "the GPU fell off the bus",
        95 => "an error of the GPU's memory could not be contained",
        119 => "the GPU's system processor (GSP) did not answer in time",
        120 => "the GPU's system processor (GSP) had an error",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What is written down of the driver: the agent's tests hold its table against it.
    const FACTS: &str = include_str!("../../telemetry/catalog/driver_facts.txt");

    #[test]
    fn every_action_of_the_agents_table_is_a_sentence() {
        let of = |line: &'static str| line.strip_prefix("xid ").or(line.strip_prefix("action "));
        let rows = FACTS.lines().filter_map(of);
        let names = rows.filter_map(|row| row.split(' ').next_back());
        let names: BTreeSet<&str> = names.filter(|it| *it != "-").collect();
        assert_eq!(names.len(), ACTIONS.len(), "{names:?}");
        for name in names {
            let text = asks(name);
            assert!(text.ends_with('.'), "{text}");
        }
    }

    #[test]
    fn a_name_that_is_not_in_the_table_stays_as_it_is() {
        for (action, expected) in [
            ("reboot_node", "Drain the node and reboot it."),
            ("page_the_night_shift", "page the night shift"),
            ("", ""),
        ] {
            assert_eq!(asks(action), expected);
        }
    }
}
