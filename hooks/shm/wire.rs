//! What client and agent say to each other: one message each way, 32 bytes of four words.
//!
//! Client: `GPUFHELO`, version of these messages, version of the layout, size of the region; with it
//! the file, by SCM_RIGHTS. Agent: `GPUFREPL`, version of these messages, 0 for taken or the number of
//! a [`Refusal`], and then: of a refusal milliseconds to wait before trying again; of one that was taken what
//! the agent wants of the process, 0 or [`NO_PROBE`]. Then the socket stays open and silent: its end tells each
//! side that the other is gone.

/// Where the agent listens, unless the environment says otherwise.
pub const SOCKET: &str = "/run/gpufleet/hooks.sock";

/// The variable that names another place.
pub const SOCKET_VARIABLE: &str = "GPUFLEET_HOOKS_SOCKET";

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 32;

/// Version of the messages.
const VERSION: u64 = 1;

/// The agent wants no probe inside the process.
pub const NO_PROBE: u64 = 1;

/// First word of a client's message.
const HELLO: u64 = u64::from_le_bytes(*b"GPUFHELO");

/// First word of the agent's.
const REPLY: u64 = u64::from_le_bytes(*b"GPUFREPL");

crate::words::words! {
    /// Why the agent does not take a region.
    Refusal {
        /// The message is none that it knows, or there is no file with it.
        Message = 1 "message",
        /// The layout is newer than the agent.
        Version = 2 "version",
        /// The file is not sealed, or has another size, or is no region.
        Region = 3 "region",
        /// The agent has as many clients as it takes.
        Clients = 4 "clients",
        /// The client's group (its cgroup: a container) has as many as it may have.
        Group = 5 "group",
        /// The agent cannot see the process: it does not share the host's pid namespace.
        Invisible = 6 "invisible",
        /// No message came in time.
        Silent = 7 "silent",
        /// More messages than anyone needs to send.
        Messages = 8 "messages",
    }
}

/// A client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Version of the region's layout.
    pub layout: u64,
    /// Size of the region, bytes.
    pub size: u64,
}

/// The agent's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Why not; `None` when the region was taken.
    pub refusal: Option<Refusal>,
    /// How long to wait before trying again, where it was not.
    pub retry_after_ms: u64,
    /// Whether the process is not to probe its GPU, where it was.
    pub is_probe_off: bool,
}

impl Hello {
    /// As sent.
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        to_bytes([HELLO, VERSION, self.layout, self.size])
    }

    /// What was received; `None` when it is no such message.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [magic, version, layout, size] = from_bytes(bytes)?;
        ((magic, version) == (HELLO, VERSION)).then_some(Self { layout, size })
    }
}

impl Reply {
    /// As sent.
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let last = match self.refusal {
            Some(_) => self.retry_after_ms,
            None => NO_PROBE * u64::from(self.is_probe_off),
        };
        let refusal = self.refusal.map_or(0, Refusal::number);
        to_bytes([REPLY, VERSION, refusal, last])
    }

    /// What was received; `None` when it is no such message.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [magic, version, refusal, last] = from_bytes(bytes)?;
        let refusal = match refusal {
            0 => None,
            // A newer agent may have reasons that this client does not know.
            other => Some(Refusal::from_number(other).unwrap_or(Refusal::Message)),
        };
        ((magic, version) == (REPLY, VERSION)).then_some(Self {
            refusal,
            retry_after_ms: if refusal.is_some() { last } else { 0 },
            is_probe_off: refusal.is_none() && last & NO_PROBE != 0,
        })
    }
}

fn to_bytes(words: [u64; 4]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> Option<[u64; 4]> {
    let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
    let mut words = [0; 4];
    for (word, place) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*place);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_and_anything_else_is_none() {
        let hello = Hello { layout: 1, size: 7 };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        assert_eq!(Reply::from_bytes(&hello.to_bytes()), None);
        let reply = Reply {
            refusal: Some(Refusal::Group),
            retry_after_ms: 5,
            is_probe_off: false,
        };
        assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
        for is_probe_off in [false, true] {
            let taken = Reply {
                refusal: None,
                retry_after_ms: 0,
                is_probe_off,
            };
            assert_eq!(Reply::from_bytes(&taken.to_bytes()), Some(taken));
        }
        assert_eq!(Hello::from_bytes(&reply.to_bytes()), None);
        assert_eq!(Hello::from_bytes(&hello.to_bytes()[..31]), None);
        assert_eq!(Hello::from_bytes(&[]), None);
    }
}
