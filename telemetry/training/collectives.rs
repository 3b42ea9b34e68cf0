//! Where what is known of a rank's collectives comes from, or why nothing is; and what a part of their metrics is called.

use serde::{Deserialize, Serialize};

/// Where what is known of a rank's collectives comes from, or why nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectivesFrom {
    /// Our plugin: count, bytes, time on the GPU, what is in flight.
    Plugin = 1,
    /// Our plugin without times: with this NCCL they would cost too much, or were not asked for.
    PluginUntimed = 2,
    /// Our plugin asked for times and NCCL reports none: counts when enqueued.
    Silent = 3,
    /// NCCL's RAS service: how many of each function were begun.
    Ras = 4,
    /// The files of NCCL Inspector, NVIDIA's own plugin: count, bytes and time of each.
    Inspector = 5,
    /// There are none: one rank is alone.
    OneRank = 10,
    /// The plugin is switched off.
    SwitchedOff = 11,
    /// The plugin is set and NCCL has not loaded it: before the first communicator, or it cannot be.
    NotLoaded = 12,
    /// Another plugin has NCCL's one place for one, and RAS is of no help.
    OtherPlugin = 13,
    /// No plugin is set, and RAS is not asked.
    NotAsked = 14,
    /// RAS will be asked within a minute.
    NotYet = 15,
    /// RAS listens in another network namespace, which the agent does not or may not enter.
    OtherNamespace = 16,
    /// Nobody answers for RAS: no NCCL since 2.24, or it is switched off.
    NoAnswer = 17,
    /// NCCL before 2.28.7 answers with a text that has no counts.
    OldNccl = 18,
    /// NCCL answers and does not know this process: the port is another job's, or another user's.
    NotInAnswer = 19,
}

names!(
    CollectivesFrom,
    "source of collectives and reason for none",
    Plugin "plugin",
    PluginUntimed "plugin_untimed",
    Silent "silent",
    Ras "ras",
    Inspector "inspector",
    OneRank "one_rank",
    SwitchedOff "switched_off",
    NotLoaded "not_loaded",
    OtherPlugin "other_plugin",
    NotAsked "not_asked",
    NotYet "not_yet",
    OtherNamespace "other_network_namespace",
    NoAnswer "no_answer",
    OldNccl "old_nccl",
    NotInAnswer "not_in_answer"
);

impl CollectivesFrom {
    /// The number in its metric.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The one with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|it| it.number() == number)
    }
}

/// The id of the part of a rank's metrics that is about one function on one communicator: the communicator's hash as
/// 16 hexadecimal digits, a slash, and the function as NCCL calls it.
pub fn collective_id(communicator: u64, function: &str) -> String {
    format!("{communicator:016x}/{function}")
}

/// Communicator and function of such an id; none of another.
pub fn collective_of(id: &str) -> Option<(u64, &str)> {
    let (communicator, function) = id.rsplit_once('/')?;
    Some((u64::from_str_radix(communicator, 16).ok()?, function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_collective_says_its_communicator_and_function_again() {
        let id = collective_id(0xab, "AllReduce");
        assert_eq!(id, "00000000000000ab/AllReduce");
        assert_eq!(collective_of(&id), Some((0xab, "AllReduce")));
        for other in ["AllReduce", "xyz/AllReduce", "/AllReduce"] {
            assert_eq!(collective_of(other), None, "{other}");
        }
    }
}
