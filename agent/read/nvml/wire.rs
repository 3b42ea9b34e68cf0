//! What parent and child say to each other: postcard messages, each behind its length.
//!
//! A frame is a 32-bit length in little endian and that many bytes; none is longer than
//! [`MAX_FRAME_BYTES`], because one frame carries at most one GPU: some 60 samples, 18 links,
//! [`super::processes::MAX_PROCESSES`] processes and 7 shares stay under half of it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use gpufleet_telemetry::sample::{Missing, Sample};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest frame either side takes.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;

/// From parent to child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToChild {
    /// The first message: load the library and find the GPUs.
    Start(Start),
    /// Read every GPU once.
    Round,
}

/// How a child is to begin.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Start {
    /// The library; empty for the loader's own.
    pub library_path: String,
    /// The one GPU to touch, for a child that only looks whether it answers again.
    pub only: Option<u32>,
    /// GPUs not to touch.
    pub without: Vec<u32>,
    /// Whether to wait for XIDs; not so soon after a wait that hung.
    pub xids: bool,
}

/// From child to parent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromChild {
    /// The library is loaded.
    Ready(LibraryFacts),
    /// The library cannot be used; the child ends.
    Failed(Failure),
    /// A GPU gave a handle and said who it is. Told before it is read, so that a GPU that hangs from
    /// the start has its name too.
    Known(u32, Box<GpuFacts>),
    /// One GPU was read.
    Gpu(Box<GpuAnswer>),
    /// The round is over.
    Done(Done),
}

/// What the library says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LibraryFacts {
    /// The kernel driver's version.
    pub driver_version: String,
    /// The library's version.
    pub nvml_version: String,
    /// The highest CUDA version, `13.0`.
    pub cuda_version: String,
    /// How many GPUs it lists.
    pub count: u32,
}

/// Why the library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason that samples will carry.
    pub missing: Missing,
    /// What happened, and the way out.
    pub why: String,
}

/// One GPU in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuAnswer {
    /// Its NVML index.
    pub index: u32,
    /// Whether it could be reached; not, and there is nothing else.
    pub outcome: Result<(), Missing>,
    /// What was read of the whole.
    pub samples: Vec<Sample>,
    /// What was read of its MIG instances.
    pub shares: Vec<ShareAnswer>,
    /// Why its XIDs are not waited for.
    pub xids_missing: Option<Missing>,
}

/// What is known of a GPU from its first handle on. Empty strings are unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuFacts {
    /// The product name.
    pub name: String,
    /// The UUID.
    pub uuid: String,
    /// The serial number.
    pub serial: String,
    /// The PCI address, `00000000:53:00.0`.
    pub pci_address: String,
    /// The minor number of its device file.
    pub minor: Option<u32>,
    /// The CUDA compute capability, `9.0`.
    pub compute_capability: String,
    /// The VBIOS's version.
    pub vbios: String,
    /// The NVLink fabric it has joined, and its clique there.
    pub fabric: Option<(String, u32)>,
}

/// One MIG instance in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareAnswer {
    /// Its UUID, `MIG-…`.
    pub uuid: String,
    /// Its profile, `1g.10gb`.
    pub profile: String,
    /// Its GPU instance id.
    pub gpu_instance: u32,
    /// The number of its profile and its first memory slice; none where the driver does not say.
    pub placement: Option<(u32, u32)>,
    /// Its compute slices and those of the whole card.
    pub slices: (u32, u32),
    /// What was read of it.
    pub samples: Vec<Sample>,
}

/// The end of a round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Done {
    /// How many GPUs the library lists now, where it was asked.
    pub count: Option<u32>,
    /// XIDs since the last round.
    pub xids: Vec<XidSeen>,
    /// XIDs that found the queue full.
    pub xids_dropped: u64,
}

/// One XID as the driver told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidSeen {
    /// The GPU's index.
    pub index: u32,
    /// The code.
    pub code: u64,
    /// The GPU instance it is about, under MIG.
    pub gpu_instance: Option<u32>,
    /// When it came, on the clock both processes share.
    pub seen_ns: u64,
}

/// Writes one message.
///
/// # Errors
/// The other side is gone, or the message is longer than a frame may be.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!(
            "a message of {length} bytes is longer than a frame of {MAX_FRAME_BYTES}"
        )));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    to.write_all(&frame)
}

/// The child's side: waits for one message; none when the parent is gone.
///
/// # Errors
/// The socket failed, or the bytes are not a message.
pub fn receive<T: DeserializeOwned>(from: &mut UnixStream) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = checked(u32::from_le_bytes(length))?;
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    postcard::from_bytes(&body)
        .map(Some)
        .map_err(io::Error::other)
}

/// Takes one whole message off the front of what was received so far.
///
/// # Errors
/// The bytes are not a message.
pub fn take<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(length) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let end = 4 + checked(u32::from_le_bytes(*length))?;
    let Some(body) = buffer.get(4..end) else {
        return Ok(None);
    };
    let message = postcard::from_bytes(body).map_err(io::Error::other)?;
    buffer.drain(..end);
    Ok(Some(message))
}

fn checked(length: u32) -> io::Result<usize> {
    let length = length as usize;
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!(
            "a frame of {length} bytes is announced, {MAX_FRAME_BYTES} are allowed"
        )));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cut_anywhere_is_waited_for_and_then_whole() {
        let mut bytes = Vec::new();
        let done = FromChild::Done(Done {
            count: Some(8),
            ..Done::default()
        });
        send(&mut bytes, &done).expect("a vector takes everything");
        let whole = bytes.len();
        for cut in 0..whole {
            let mut part = bytes[..cut].to_vec();
            assert_eq!(take::<FromChild>(&mut part).expect("no error yet"), None);
        }
        bytes.push(9);
        assert_eq!(take(&mut bytes).expect("a message"), Some(done));
        assert_eq!(bytes, [9], "what follows the message stays");
    }

    #[test]
    fn a_frame_longer_than_the_limit_is_refused_before_it_is_stored() {
        let mut bytes = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes().to_vec();
        assert!(take::<FromChild>(&mut bytes).is_err());
    }
}
