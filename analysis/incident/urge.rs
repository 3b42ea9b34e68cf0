//! How much the action of an incident asks for, by its words: of several things that are wrong at one place with one
//! cause, what is to be done first is done for that which asks for most.
//!
//! Limits: words that name none of these ask for nothing under which a job could not go on.

/// What cannot be done under a running job, least first, each with the words by which it is known. An XID whose link is
/// to be looked at "before the GPU is reset" asks for no reset.
const ASKS: [(Urge, &[&str]); 4] = [
    (Urge::Diagnose, &["diagnosis"]),
    (Urge::Drain, &["drain"]),
    (Urge::Replace, &["card replaced"]),
    (Urge::Reboot, &["reboot", "restart the virtual machine"]),
];

/// What an action asks for, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urge {
    /// That somebody looks at it, or nothing.
    Look,
    /// A diagnosis, for which its job has to go.
    Diagnose,
    /// That its jobs go, for a reset mostly.
    Drain,
    /// Another card.
    Replace,
    /// A reboot: until then nothing is known of the rest.
    Reboot,
}

impl Urge {
    /// Of an action in words.
    pub(super) fn of(action: &str) -> Self {
        let action = action.to_lowercase();
        let is_it = |(_, words): &&(Self, &[&str])| words.iter().any(|it| action.contains(it));
        let most = ASKS.iter().rev().find(is_it);
        most.map_or(Self::Look, |it| it.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_asks_for_the_most_that_its_words_name() {
        for (action, expected) in [
            ("", Urge::Look),
            ("Keep an eye on it.", Urge::Look),
            (
                "See which link it is, and whether its peer says the same, before the GPU is reset.",
                Urge::Look,
            ),
            ("Run a diagnosis.", Urge::Diagnose),
            ("Drain its jobs and reset the GPU.", Urge::Drain),
            (
                "Drain the node and run a diagnosis of this GPU.",
                Urge::Drain,
            ),
            ("Have the card replaced.", Urge::Replace),
            ("Drain the node and reboot it.", Urge::Reboot),
            ("Restart the virtual machine.", Urge::Reboot),
        ] {
            assert_eq!(Urge::of(action), expected, "{action}");
        }
    }
}
