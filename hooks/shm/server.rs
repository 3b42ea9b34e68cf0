//! The agent's side of the way: listens, takes regions within limits, says who came and who left.
//!
//! One thread of the agent calls [`Listener::turn`] again and again. A client that is silent, sends
//! garbage or connects a thousand times costs its own group its places, and nobody else's.

mod connection;
mod peer;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::process::{monotonic_ns, unix_ns};
use crate::reader::Reader;
use crate::wire::{Ask, Refusal};

pub use peer::{Peer, cgroup};

use connection::{Connection, Heard};

/// Connections that wait in the kernel until a turn takes them.
const BACKLOG: i32 = 1024;

/// Connections taken in one turn, so that those who are there are heard in between.
const TAKEN_A_TURN: usize = 64;

/// Nanoseconds in one second.
const SECOND_NS: u64 = 1_000_000_000;

/// Bounds of what clients may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Regions in all: four times 64 processes, the most of a node; each maps 320 KiB.
    pub clients: usize,
    /// Connections of one group: 8 GPUs with a process each, two regions a process, and as many
    /// again that are being replaced.
    pub per_group: usize,
    /// Connections taken a second: each costs about 50 µs, so a flood takes 3 % of a core at most.
    pub connections_per_second: u64,
    /// Messages of one client in a second: it needs one in all.
    pub messages_per_second: u64,
    /// How long a client may be silent before its first message.
    pub silence: Duration,
    /// When a refused client may come again.
    pub retry_after: Duration,
    /// Whether clients are told to probe nothing from inside.
    pub is_probe_off: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 256,
            per_group: 32,
            connections_per_second: 500,
            messages_per_second: 10,
            silence: Duration::from_secs(2),
            retry_after: Duration::from_secs(30),
            is_probe_off: false,
        }
    }
}

/// The number of a connection, never used again by one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A client whose region was taken.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: ClientId,
    /// Who it is, as the kernel says.
    pub peer: Peer,
    /// Its region. It stays readable when the client has left, whatever became of it.
    pub reader: Reader,
}

/// Why a client left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The process ended.
    Ended,
    /// It closed the connection and lives.
    Closed,
    /// It connected again with the same region.
    Replaced,
    /// It sent more messages than anyone needs to.
    Messages,
}

/// What happened in a turn.
#[derive(Debug)]
pub enum Event {
    /// A client's region was taken.
    Joined(Box<Client>),
    /// A client left.
    Left {
        /// Which.
        id: ClientId,
        /// Why.
        reason: Leaving,
        /// When that was seen, Unix nanoseconds. Those that were seen together have the same moment: which of them
        /// was first nobody knows.
        at: i64,
    },
    /// A connection was refused.
    Refused {
        /// Why.
        reason: Refusal,
        /// Who it was; `None` when that cannot be seen.
        peer: Option<Peer>,
    },
}

/// Tells the group of a process, by its id.
pub type GroupOf = Box<dyn Fn(i32) -> String + Send>;

/// The agent's end of the socket.
pub struct Listener {
    socket: OwnedFd,
    limits: Limits,
    group_of: GroupOf,
    connections: BTreeMap<ClientId, Connection>,
    next_id: u64,
    second: u64,
    taken_this_second: u64,
}

impl Listener {
    /// Listens at `path`. A socket that a dead agent left there is replaced.
    ///
    /// # Errors
    /// Another agent listens there, or the folder cannot be written.
    pub fn bind(path: &Path, limits: Limits, group_of: GroupOf) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let new = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let address = SocketAddrUnix::new(path)?;
        match connect(new()?, &address) {
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) => fs::remove_file(path)?,
            Ok(()) | Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => return Err(error.into()),
        }
        let socket = new()?;
        bind(&socket, &address)?;
        // Training processes have users of their own, and connecting needs the right to write.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        listen(&socket, BACKLOG)?;
        Ok(Self {
            socket,
            limits,
            group_of,
            connections: BTreeMap::new(),
            next_id: 0,
            second: 0,
            taken_this_second: 0,
        })
    }

    /// Connections there are, joined or not yet.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Asks a client for a profile, or withdraws that. Only of one whose region says that it takes it: an older
    /// one would not know the message. One that has left or does not read hears nothing.
    pub fn ask(&self, id: ClientId, ask: Ask) {
        if let Some(connection) = self.connections.get(&id) {
            connection.ask(ask);
        }
    }

    /// Waits up to `timeout` for something to happen, and says what did.
    ///
    /// # Errors
    /// The kernel does not wait for so many files, or takes no connection any more.
    pub fn turn(&mut self, timeout: Duration) -> io::Result<Vec<Event>> {
        let (ready, accepts) = self.wait(timeout)?;
        let at = unix_ns();
        let mut events = Vec::new();
        for id in ready {
            self.hear(id, at, &mut events);
        }
        self.end_the_silent(&mut events);
        if accepts {
            self.accept(&mut events)?;
        }
        Ok(events)
    }

    /// Which connections have something to say, and whether there are new ones.
    fn wait(&mut self, timeout: Duration) -> io::Result<(Vec<ClientId>, bool)> {
        let second = monotonic_ns() / SECOND_NS;
        if second != self.second {
            (self.second, self.taken_this_second) = (second, 0);
        }
        let may_accept = self.taken_this_second < self.limits.connections_per_second;
        let listens = if may_accept {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut files = vec![PollFd::new(&self.socket, listens)];
        for connection in self.connections.values() {
            files.push(PollFd::new(&connection.socket, PollFlags::IN));
            files.push(PollFd::new(&connection.process, PollFlags::IN));
        }
        // Woken at least once a second: for the silent, and to take connections again.
        let timeout = timeout.min(Duration::from_secs(1));
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match poll(&mut files, Some(&timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((Vec::new(), false)),
            Err(error) => return Err(error.into()),
        }
        let is_ready = |file: &PollFd<'_>| !file.revents().is_empty();
        let accepts = files.first().is_some_and(is_ready);
        let pairs = files.get(1..).unwrap_or_default().chunks_exact(2);
        let ready = self.connections.keys().zip(pairs);
        let ready = ready.filter(|(_, pair)| pair.iter().any(is_ready));
        Ok((ready.map(|(id, _)| *id).collect(), accepts))
    }

    /// One connection has something to say, which was seen at this moment.
    fn hear(&mut self, id: ClientId, at: i64, events: &mut Vec<Event>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.hear(&self.limits) {
            Heard::Nothing => {}
            Heard::Region(reader, session) => {
                let peer = connection.peer.clone();
                connection.join(session, self.limits.is_probe_off);
                self.leave_older(id, session, at, events);
                events.push(Event::Joined(Box::new(Client { id, peer, reader })));
            }
            Heard::Refuse(reason) => self.refuse(id, reason, events),
            Heard::Left(reason) => {
                if let Some(gone) = self.connections.remove(&id)
                    && gone.session.is_some()
                {
                    events.push(Event::Left { id, reason, at });
                }
            }
        }
    }

    /// The same region of the same process came again: what it came with before is over.
    fn leave_older(&mut self, id: ClientId, session: u128, at: i64, events: &mut Vec<Event>) {
        let Some(newer) = self.connections.get(&id) else {
            return;
        };
        let who = (newer.peer.pid, newer.peer.start_ticks, Some(session));
        let is_older = |it: &Connection| (it.peer.pid, it.peer.start_ticks, it.session) == who;
        let older = self.connections.iter();
        let older = older.filter(|(other, it)| **other != id && is_older(it));
        let older: Vec<_> = older.map(|(other, _)| *other).collect();
        for id in older {
            self.connections.remove(&id);
            let reason = Leaving::Replaced;
            events.push(Event::Left { id, reason, at });
        }
    }

    fn refuse(&mut self, id: ClientId, reason: Refusal, events: &mut Vec<Event>) {
        if let Some(connection) = self.connections.remove(&id) {
            connection::refuse(&connection.socket, reason, self.limits.retry_after);
            let peer = Some(connection.peer);
            events.push(Event::Refused { reason, peer });
        }
    }

    /// Ends connections that never said anything.
    fn end_the_silent(&mut self, events: &mut Vec<Event>) {
        let now = monotonic_ns();
        let longest = self.limits.silence.as_nanos() as u64;
        let is_silent =
            |it: &Connection| it.session.is_none() && now.saturating_sub(it.since_ns) > longest;
        let silent = self.connections.iter().filter(|(_, it)| is_silent(it));
        let silent: Vec<_> = silent.map(|(id, _)| *id).collect();
        for id in silent {
            self.refuse(id, Refusal::Silent, events);
        }
    }

    fn accept(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        for _ in 0..TAKEN_A_TURN {
            if self.taken_this_second >= self.limits.connections_per_second {
                break;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::CONNABORTED) => continue,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // No file is left for it: tried again in the next second, not in a busy loop.
                    self.taken_this_second = self.limits.connections_per_second;
                    let reason = Refusal::Clients;
                    events.push(Event::Refused { reason, peer: None });
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            self.taken_this_second += 1;
            self.admit(socket, events);
        }
        Ok(())
    }

    /// A new connection: within the limits it is heard, else it is told why not.
    fn admit(&mut self, socket: OwnedFd, events: &mut Vec<Event>) {
        let Some((peer, process)) = peer::of(&socket, &self.group_of) else {
            let reason = Refusal::Invisible;
            connection::refuse(&socket, reason, self.limits.retry_after);
            events.push(Event::Refused { reason, peer: None });
            return;
        };
        let of_group = self.connections.values();
        let of_group = of_group.filter(|it| it.peer.group == peer.group).count();
        let reason = if of_group >= self.limits.per_group {
            Refusal::Group
        } else if self.connections.len() >= self.limits.clients {
            Refusal::Clients
        } else {
            let id = ClientId(self.next_id);
            self.next_id += 1;
            let connection = Connection::new(socket, process, peer);
            self.connections.insert(id, connection);
            return;
        };
        connection::refuse(&socket, reason, self.limits.retry_after);
        let peer = Some(peer);
        events.push(Event::Refused { reason, peer });
    }
}
