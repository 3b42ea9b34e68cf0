//! The commands that wait for an agent: each rides in a reply, until its result comes or its time is over.

use std::collections::VecDeque;

use gpufleet_telemetry::command::{ARGUMENT_GPU, ARGUMENT_RANK, Command};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

/// What a command may be about one of: of each, one at a time.
const ABOUT_ONE: [&str; 2] = [ARGUMENT_GPU, ARGUMENT_RANK];

/// Commands that may wait for one agent: one a GPU of a large node. The agent takes one a request.
pub const MAX_COMMANDS: usize = 16;

/// Why a command was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefused {
    /// No agent with this id has sent anything since the server started.
    #[error("no agent with this id has been heard of")]
    UnknownAgent,
    /// Too many commands wait already.
    #[error("{MAX_COMMANDS} commands wait for this agent already; it takes one with each request")]
    QueueFull,
    /// The command's time is over.
    #[error("the command has expired")]
    Expired,
    /// A command of the same id, or one about the same GPU or rank, waits already.
    #[error("a command for the same GPU or rank waits already: one at a time")]
    InFlight,
}

/// The commands that wait for one agent.
#[derive(Debug, Default)]
pub(super) struct Commands {
    waiting: VecDeque<Command>,
}

impl Commands {
    /// Queues a command for the next reply.
    pub(super) fn enqueue(
        &mut self,
        command: Command,
        now: Timestamp,
    ) -> Result<(), CommandRefused> {
        self.waiting.retain(|it| it.expires > now);
        if command.expires <= now {
            return Err(CommandRefused::Expired);
        }
        if self.waiting.len() >= MAX_COMMANDS {
            return Err(CommandRefused::QueueFull);
        }
        if self.waiting.iter().any(|it| is_the_same(it, &command)) {
            return Err(CommandRefused::InFlight);
        }
        self.waiting.push_back(command);
        Ok(())
    }

    /// The next command. It stays queued until its result comes or its time is over, and goes round
    /// to the others meanwhile: a reply can get lost, and an agent does an id only once.
    pub(super) fn next(&mut self, now: Timestamp) -> Option<Command> {
        self.waiting.retain(|it| it.expires > now);
        let command = self.waiting.pop_front()?;
        self.waiting.push_back(command.clone());
        Some(command)
    }

    /// Takes a command out because its result has come.
    pub(super) fn answered(&mut self, id: Uuid) {
        self.waiting.retain(|it| it.id != id);
    }
}

/// Whether both are one command, or are about one GPU or one rank; of the whole node there is one of an action.
fn is_the_same(one: &Command, other: &Command) -> bool {
    let about = |it: &Command, name: &str| it.arguments.get(name).cloned();
    let is_shared = |name: &&str| about(one, name).is_some_and(|it| about(other, name) == Some(it));
    let is_of_node = |it: &Command| ABOUT_ONE.iter().all(|name| about(it, name).is_none());
    one.id == other.id
        || ABOUT_ONE.iter().any(is_shared)
        || is_of_node(one) && is_of_node(other) && one.action == other.action
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(id: u128, about: (&str, &str), expires: i64) -> Command {
        Command {
            id: Uuid::from_u128(id),
            expires: Timestamp(expires),
            action: "probe_now".to_owned(),
            arguments: [(about.0.to_owned(), about.1.to_owned())].into(),
        }
    }

    #[test]
    fn a_command_is_given_until_it_is_answered_or_expires() {
        let mut commands = Commands::default();
        let now = Timestamp(10);
        assert_eq!(commands.enqueue(command(1, ("gpu", "a"), 20), now), Ok(()));
        assert_eq!(commands.enqueue(command(2, ("gpu", "b"), 30), now), Ok(()));
        assert_eq!(
            commands.enqueue(command(3, ("gpu", "a"), 30), now),
            Err(CommandRefused::InFlight)
        );
        assert_eq!(
            commands.enqueue(command(4, ("gpu", "c"), 10), now),
            Err(CommandRefused::Expired)
        );
        let mut given = |now| commands.next(Timestamp(now)).map(|it| it.id.as_u128());
        assert_eq!(
            [given(10), given(11), given(12)],
            [Some(1), Some(2), Some(1)]
        );
        assert_eq!(given(20), Some(2), "the first has expired");
        commands.answered(Uuid::from_u128(2));
        assert_eq!(commands.next(Timestamp(21)), None);
    }

    #[test]
    fn two_ranks_of_a_node_are_asked_at_once_and_each_but_once() {
        let mut commands = Commands::default();
        for (id, about, expected) in [
            (1, ("rank", "/llama//0/0"), Ok(())),
            (2, ("rank", "/llama//0/1"), Ok(())),
            (3, ("rank", "/llama//0/0"), Err(CommandRefused::InFlight)),
            (4, ("gpu", "a"), Ok(())),
            (5, ("depth", "long"), Ok(())),
            (6, ("depth", "short"), Err(CommandRefused::InFlight)),
        ] {
            let command = command(id, about, 20);
            assert_eq!(commands.enqueue(command, Timestamp(10)), expected, "{id}");
        }
    }
}
