//! What an incident asks for, as a value: who makes a signal gives it beside the words of its action. Whether a node is
//! to be drained, and which of several actions is said first, goes by it and reads no words.

use serde::{Deserialize, Serialize};

use super::Incident;
use crate::health::Asks;

/// What mends a trouble, as far as its detector knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// That somebody looks at it, or nothing.
    Look,
    /// That a link, power or software is mended, while the GPU works.
    Repair,
    /// A diagnosis.
    Diagnose,
    /// That the jobs go.
    Drain,
    /// A reset of the GPU, for which its jobs go.
    Reset,
    /// Another card.
    Replace,
    /// A restart of the virtual machine.
    RestartVm,
    /// A reboot of the node.
    Reboot,
}

impl Remedy {
    /// Whether it cannot be done under a running job, so that its node is to be drained.
    pub const fn drains(self) -> bool {
        match self {
            Self::Look | Self::Repair | Self::Diagnose => false,
            Self::Drain | Self::Reset | Self::Replace | Self::RestartVm | Self::Reboot => true,
        }
    }

    /// Whether the trouble stands until that is done, and not only until it is not seen again.
    pub const fn is_owed(self) -> bool {
        matches!(
            self,
            Self::Repair | Self::Reset | Self::RestartVm | Self::Reboot
        )
    }

    /// How much it asks for: of several things that are wrong at one place with one cause, what is to be done first is
    /// done for that which asks for most.
    pub(super) const fn weight(self) -> u8 {
        match self {
            Self::Look | Self::Repair => 0,
            Self::Diagnose => 1,
            Self::Drain | Self::Reset => 2,
            Self::Replace => 3,
            // Until then nothing is known of the rest.
            Self::RestartVm | Self::Reboot => 4,
        }
    }
}

impl From<Asks> for Remedy {
    fn from(asks: Asks) -> Self {
        match asks {
            Asks::Nothing | Asks::Look => Self::Look,
            Asks::Repair => Self::Repair,
            Asks::Reset => Self::Reset,
            Asks::RestartVm => Self::RestartVm,
            Asks::Reboot => Self::Reboot,
        }
    }
}

impl Incident {
    /// How much its action asks for. Where that is not known it keeps its words for as long as they may be told.
    pub(super) fn weight(&self) -> u8 {
        self.remedy.map_or(u8::MAX, Remedy::weight)
    }
}
