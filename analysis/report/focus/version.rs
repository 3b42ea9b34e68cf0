//! Which version of FOCUS a file is of, and which columns that has.

use super::COLUMNS;

/// What 1.3 has besides the [`COLUMNS`] of 1.2, of which it takes none away.
pub const COLUMNS_1_3: [&str; 8] = [
    "AllocatedMethodDetails",
    "AllocatedMethodId",
    "AllocatedResourceId",
    "AllocatedResourceName",
    "AllocatedTags",
    "ContractApplied",
    "HostProviderName",
    "ServiceProviderName",
];

/// A version that files are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// 1.2.
    #[default]
    V1_2,
    /// 1.3: what of a machine's charge each line has, and by what contract.
    V1_3,
}

impl Version {
    /// All of them, the oldest first.
    pub const ALL: [Self; 2] = [Self::V1_2, Self::V1_3];

    /// As it is asked for and told.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1_2 => "1.2",
            Self::V1_3 => "1.3",
        }
    }

    /// The version of this name; none where it is none of them.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Its columns in the order of their names.
    pub fn columns(self) -> Vec<&'static str> {
        let mut all = COLUMNS.to_vec();
        if self == Self::V1_3 {
            all.extend(COLUMNS_1_3);
            all.sort_unstable();
        }
        all
    }
}
