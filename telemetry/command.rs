//! What a server may ask of an agent. A command rides in a reply, as JSON in one header.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::time::Timestamp;

/// Longest command in bytes of JSON: it travels in a header, and 8 KiB is all that proxies pass.
pub const MAX_COMMAND_BYTES: usize = 4_096;

/// Run the outside probe on a GPU; argument [`ARGUMENT_GPU`]. Older agents say `not_built_in`.
pub const PROBE_NOW: &str = "probe_now";
/// Let go of NVML, so that a driver reload or a GPU reset can go ahead.
pub const RELEASE_NVML: &str = "release_nvml";
/// Take NVML again.
pub const ACQUIRE_NVML: &str = "acquire_nvml";
/// Read the configuration file again.
pub const REREAD_CONFIG: &str = "reread_config";
/// Have a training process capture a profile of its next steps; arguments [`ARGUMENT_GPU`] or
/// [`ARGUMENT_RANK`], and [`ARGUMENT_STEPS`]. An agent that was built before it says `not_built_in`.
pub const CAPTURE_PROFILE: &str = "capture_profile";

/// Every action that this version knows.
pub const ACTIONS: [&str; 5] = [
    PROBE_NOW,
    RELEASE_NVML,
    ACQUIRE_NVML,
    REREAD_CONFIG,
    CAPTURE_PROFILE,
];

/// The argument with the id of the GPU that a command is about.
pub const ARGUMENT_GPU: &str = "gpu";

/// The argument with the id of the rank that a command is about, `<job>/<attempt>/<rank>`.
pub const ARGUMENT_RANK: &str = "rank";

/// The argument with how many steps a profile is to have, 1 to [`MAX_PROFILE_STEPS`].
pub const ARGUMENT_STEPS: &str = "steps";

/// Steps of a profile where nobody says how many.
pub const PROFILE_STEPS: u64 = 3;

/// Most steps of a profile: its file and what it costs grow with them.
pub const MAX_PROFILE_STEPS: u64 = 10;

/// The steps that a command asks for.
///
/// # Errors
/// In words, where it is no number of steps that a profile may have.
pub fn profile_steps(arguments: &BTreeMap<String, String>) -> Result<u64, String> {
    let Some(asked) = arguments.get(ARGUMENT_STEPS) else {
        return Ok(PROFILE_STEPS);
    };
    let steps = asked.parse().ok();
    let steps = steps.filter(|it| (1..=MAX_PROFILE_STEPS).contains(it));
    steps.ok_or_else(|| format!("arguments.steps=“{asked}”: it is 1 to {MAX_PROFILE_STEPS}"))
}

/// One command. Its result comes back as an event `command_result` with its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Its id: an agent that is given it twice does it once.
    pub id: Uuid,
    /// After this it is not to be done any more.
    pub expires: Timestamp,
    /// What to do, one of [`ACTIONS`]. Text and not an enum, so that an older agent can read a
    /// command that it does not know and say so.
    pub action: String,
    /// What the action needs to know, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_a_profile_are_bounded_and_three_where_nobody_says() {
        let check = |said: Option<&str>, expected: Option<u64>| {
            let said = said.map(|it| (ARGUMENT_STEPS.to_owned(), it.to_owned()));
            let arguments = said.into_iter().collect();
            assert_eq!(profile_steps(&arguments).ok(), expected, "{arguments:?}");
        };
        check(None, Some(3));
        check(Some("1"), Some(1));
        check(Some("10"), Some(10));
        for wrong in ["0", "11", "-1", "two", ""] {
            check(Some(wrong), None);
        }
    }

    #[test]
    fn an_action_of_a_newer_server_can_still_be_read() {
        let text = r#"{"id":"67e55044-10b1-426f-9247-bb680e5fe0c8","expires":5,"action":"dance"}"#;
        let command: Command = serde_json::from_str(text).expect("valid");
        assert_eq!(
            (command.action.as_str(), command.expires),
            ("dance", Timestamp(5))
        );
    }
}
