//! What client and agent say to each other: one message each way, 32 bytes of four words.
//!
//! Client: `GPUFHELO`, version of these messages, version of the layout, size of the region; with it
//! the file, by SCM_RIGHTS. Agent: `GPUFREPL`, version of these messages, 0 for taken or the number of
//! a [`Refusal`], and then: of a refusal milliseconds to wait before trying again; of one that was taken what
//! the agent wants of the process, 0 or [`NO_PROBE`]. Then the socket stays open: its end tells each
//! side that the other is gone. A client whose region says that it takes them ([`TAKES_PROFILE`]) may be asked
//! for a profile: `GPUFPROF`, version of these messages, the number of the request, its steps or 0 when it is
//! withdrawn. What becomes of it stands in the region.

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

/// The bit of `header.takes` by which a client says that it captures profiles.
pub const TAKES_PROFILE: u64 = 1;

/// Most steps of a profile: its file and what it costs grow with them.
pub const MAX_PROFILE_STEPS: u64 = 10;

/// Bits of the number of a request: with the steps and a mark it is one word in the process.
pub const ASK_NUMBER_BITS: u32 = 55;

/// First word of a request for a profile.
const ASK: u64 = u64::from_le_bytes(*b"GPUFPROF");

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

/// An agent's request for a profile of the next steps, or its withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its number, of [`ASK_NUMBER_BITS`], not 0.
    pub number: u64,
    /// Steps, 1 to [`MAX_PROFILE_STEPS`]; 0: it is withdrawn.
    pub steps: u64,
}

impl Ask {
    /// As sent.
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        to_bytes([ASK, VERSION, self.number, self.steps])
    }

    /// What was received; `None` when it is no such message, or asks for what nobody may.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [magic, version, number, steps] = from_bytes(bytes)?;
        let is_good = (magic, version) == (ASK, VERSION)
            && (1..1 << ASK_NUMBER_BITS).contains(&number)
            && steps <= MAX_PROFILE_STEPS;
        is_good.then_some(Self { number, steps })
    }
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

    #[test]
    fn a_request_for_more_than_anyone_may_ask_for_is_none() {
        let check = |number, steps, is_one: bool| {
            let ask = Ask { number, steps };
            let read = Ask::from_bytes(&ask.to_bytes());
            assert_eq!(read, is_one.then_some(ask), "{ask:?}");
        };
        check(1, 10, true);
        check((1 << ASK_NUMBER_BITS) - 1, 0, true);
        check(1, 11, false);
        check(0, 3, false);
        check(1 << ASK_NUMBER_BITS, 3, false);
        let hello = Hello { layout: 1, size: 3 };
        assert_eq!(Ask::from_bytes(&hello.to_bytes()), None);
    }
}
