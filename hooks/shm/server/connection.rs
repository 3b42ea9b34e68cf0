//! One connection, from its first message to its end.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

use super::{Leaving, Limits, Peer, SECOND_NS};
use crate::layout::{SIZE_BYTES, VERSION};
use crate::process::{monotonic_ns, unix_ns};
use crate::reader::{ReadError, Reader};
use crate::wire::{Ask, Hello, MESSAGE_BYTES, Refusal, Reply};

/// A connection.
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// The process, readable when it has ended. The socket alone does not tell: a forked child may
    /// still hold it.
    pub(super) process: OwnedFd,
    pub(super) peer: Peer,
    /// When it was taken.
    pub(super) since_ns: u64,
    /// The random number of its region; `None` before that came.
    pub(super) session: Option<u128>,
    second: u64,
    messages: u64,
}

/// What a connection had to say.
pub(super) enum Heard {
    /// Nothing that matters.
    Nothing,
    /// Its region, and that one's random number.
    Region(Reader, u128),
    /// Something that is refused.
    Refuse(Refusal),
    /// It is over.
    Left(Leaving),
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, process: OwnedFd, peer: Peer) -> Self {
        Self {
            socket,
            process,
            peer,
            since_ns: monotonic_ns(),
            session: None,
            second: 0,
            messages: 0,
        }
    }

    /// Its region was taken: says so, and whether it is not to probe.
    pub(super) fn join(&mut self, session: u128, is_probe_off: bool) {
        self.session = Some(session);
        let taken = Reply {
            refusal: None,
            retry_after_ms: 0,
            is_probe_off,
        };
        say(&self.socket, &taken.to_bytes());
    }

    /// Asks for a profile, once its region was taken.
    pub(super) fn ask(&self, ask: Ask) {
        if self.session.is_some() {
            say(&self.socket, &ask.to_bytes());
        }
    }

    /// One message, or the end.
    pub(super) fn hear(&mut self, limits: &Limits) -> Heard {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut files,
            flags,
        );
        // Whatever files came are taken here, so that none stays open unseen.
        let mut received = files.drain().filter_map(|it| match it {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = received.by_ref().flatten().next();
        drop(received);
        let length = match message {
            Ok(message) if message.bytes > 0 => message.bytes,
            Ok(_) => return Heard::Left(self.how_it_left()),
            Err(Errno::AGAIN | Errno::INTR) if self.has_ended() => {
                return Heard::Left(Leaving::Ended);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::Left(self.how_it_left()),
        };
        if self.is_too_much(limits) {
            return match self.session {
                Some(_) => Heard::Left(Leaving::Messages),
                None => Heard::Refuse(Refusal::Messages),
            };
        }
        if self.session.is_some() {
            // There is nothing else to say yet: it is from a newer client.
            return Heard::Nothing;
        }
        let Some(hello) = bytes.get(..length).and_then(Hello::from_bytes) else {
            return Heard::Refuse(Refusal::Message);
        };
        if hello.layout != VERSION {
            return Heard::Refuse(Refusal::Version);
        }
        if hello.size != SIZE_BYTES as u64 {
            return Heard::Refuse(Refusal::Region);
        }
        file.map_or(Heard::Refuse(Refusal::Message), region)
    }

    fn is_too_much(&mut self, limits: &Limits) -> bool {
        let second = monotonic_ns() / SECOND_NS;
        if second != self.second {
            (self.second, self.messages) = (second, 0);
        }
        self.messages += 1;
        self.messages > limits.messages_per_second
    }

    fn has_ended(&self) -> bool {
        let mut files = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn how_it_left(&self) -> Leaving {
        if self.has_ended() {
            Leaving::Ended
        } else {
            Leaving::Closed
        }
    }
}

/// The file that a client sent, when it is a region.
fn region(file: OwnedFd) -> Heard {
    let Ok(reader) = Reader::new(file) else {
        return Heard::Refuse(Refusal::Region);
    };
    match reader.header(unix_ns()) {
        Ok(header) => Heard::Region(reader, header.session),
        Err(ReadError::Version(_)) => Heard::Refuse(Refusal::Version),
        Err(_) => Heard::Refuse(Refusal::Region),
    }
}

/// Tells a client that its region is not taken.
pub(super) fn refuse(socket: &OwnedFd, refusal: Refusal, retry_after: Duration) {
    let refused = Reply {
        refusal: Some(refusal),
        retry_after_ms: retry_after.as_millis() as u64,
        is_probe_off: false,
    };
    say(socket, &refused.to_bytes());
}

/// One that does not read has no more to hear.
fn say(socket: &OwnedFd, message: &[u8; MESSAGE_BYTES]) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _sent = send(socket, message, flags);
}
