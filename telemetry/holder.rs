//! Who holds a GPU, and why that is not known, as the text of the attributes `HOLDER` and
//! `HOLDER_UNKNOWN`.
//!
//! A holder is a pod, a Slurm job, else the user of a process with a compute context.

use std::fmt;

use crate::otlp::limits::MAX_LABEL_BYTES;

/// Who holds a GPU or a share of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// `pod:<namespace>/<name>`.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// `slurm:<job id>`.
    Slurm(u64),
    /// `process:<user>/<name>`.
    Process {
        /// The user's name, or number where the machine has no name for it.
        user: String,
        /// The program's name.
        name: String,
    },
}

/// Why the holder is not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unknown {
    /// Several hold all of it by turns: a shared claim, jobs or users side by side.
    Shared,
    /// Replicas of a time-sliced GPU are held, and how many there are is not known: whoever holds one holds not all of
    /// it.
    PartHeld,
    /// Processes are on it, or a Slurm job has it, and it cannot be seen whose it is.
    Unnamed,
    /// Two hold the whole of it, which cannot be.
    ClaimedTwice,
    /// Who would know was not heard for too long.
    NotHeard,
    /// Something was given away on this node, and it is not known whether that is this.
    Unplaced,
}

impl Holder {
    /// The holder that this text names.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let two = || {
            let (first, second) = rest.split_once('/')?;
            let is_whole = !first.is_empty() && !second.is_empty();
            is_whole.then(|| (first.to_owned(), second.to_owned()))
        };
        match kind {
            "pod" => two().map(|(namespace, name)| Self::Pod { namespace, name }),
            "process" => two().map(|(user, name)| Self::Process { user, name }),
            "slurm" => rest.parse().ok().map(Self::Slurm),
            _ => None,
        }
    }
}

impl fmt::Display for Holder {
    /// Cut where it would be too long for an attribute: it would be left out as a whole.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Pod { namespace, name } => format!("pod:{namespace}/{name}"),
            Self::Slurm(job) => format!("slurm:{job}"),
            Self::Process { user, name } => format!("process:{user}/{name}"),
        };
        formatter.write_str(cut(&text))
    }
}

impl Unknown {
    const ALL: [Self; 6] = [
        Self::Shared,
        Self::PartHeld,
        Self::Unnamed,
        Self::ClaimedTwice,
        Self::NotHeard,
        Self::Unplaced,
    ];

    /// The word before the colon.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::PartHeld => "part_held",
            Self::Unnamed => "unnamed",
            Self::ClaimedTwice => "claimed_twice",
            Self::NotHeard => "not_heard",
            Self::Unplaced => "unplaced",
        }
    }

    /// Whether somebody certainly holds it, only not who.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Shared | Self::Unnamed)
    }

    /// As text, with the words that say more.
    pub fn text(self, words: &str) -> String {
        cut(&format!("{}: {words}", self.name())).to_owned()
    }

    /// The reason in such a text, and its words.
    pub fn parse(text: &str) -> Option<(Self, &str)> {
        let (name, words) = text.split_once(": ")?;
        let found = Self::ALL.into_iter().find(|it| it.name() == name)?;
        Some((found, words))
    }
}

/// As much of a text as an attribute may have.
pub fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LABEL_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_was_written_and_nothing_else_is_one() {
        for text in [
            "pod:team-a/llm-0",
            "slurm:4711",
            "process:ada/python3",
            "process:1000/a/b",
        ] {
            let holder = Holder::parse(text);
            assert_eq!(holder.map(|it| it.to_string()).as_deref(), Some(text));
        }
        for text in ["", "pod:", "pod:a", "pod:/a", "pod:a/", "slurm:x", "x:a/b"] {
            assert_eq!(Holder::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_too_long_for_an_attribute_is_cut_and_not_left_out() {
        let holder = Holder::Pod {
            namespace: "a".repeat(63),
            name: "ö".repeat(200),
        };
        let text = holder.to_string();
        assert!((MAX_LABEL_BYTES - 1..=MAX_LABEL_BYTES).contains(&text.len()));
        assert!(text.starts_with("pod:aaa"));
    }

    #[test]
    fn a_reason_is_read_as_it_was_written_and_says_whether_somebody_is_there() {
        for reason in Unknown::ALL {
            let text = reason.text("why: that");
            assert_eq!(Unknown::parse(&text), Some((reason, "why: that")));
        }
        let held = Unknown::ALL.map(Unknown::is_held);
        assert_eq!(held, [true, false, true, false, false, false]);
        assert_eq!(Unknown::parse("else: x"), None);
    }
}
