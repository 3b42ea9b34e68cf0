//! Who trains: job, run and rank, where a rank stands in the mesh, and what a run is made of.
//!
//! Job = (cluster, namespace, name, uid); the cluster is an attribute of every resource and no part
//! of an id. Run = (job, restart attempt), rank = (run, global rank).
//!
//! Limits: a name has at most [`MAX_NAME_BYTES`] bytes, an id at most [`MAX_ID_BYTES`].
//!
//! An id is its parts with `/` between them: `<namespace>/<name>/<uid>`, then `/<attempt>`, then
//! `/<rank>`. Bytes other than letters, digits and `-._:~` stand as `%XX`, so that any name of any
//! scheduler goes there and back. Namespace and uid may be empty (Slurm, a workstation).

mod fingerprint;

mod held;

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

pub use collectives::{CollectivesFrom, collective_id, collective_of};
pub use fingerprint::{
    MAX_FINGERPRINT_BYTES, MAX_FINGERPRINT_PARTS, fingerprint_attributes, fingerprint_of,
};
pub use held::{HIGHEST_S, Held, Highest, IN_A_ROW};
pub use phase::Phase;

/// Longest namespace, name or uid: what the shared memory has room for, and the longest name a
/// Kubernetes Job may have.
pub const MAX_NAME_BYTES: usize = 64;

/// Longest id of a rank: what OTLP takes as the id of a resource.
pub const MAX_ID_BYTES: usize = 256;

/// Longest that a process is taken to have started up before it said that it trains, nanoseconds. One that was there for
/// longer did other things before: a notebook, a worker that waited for work.
pub const MAX_START_UP_NS: i64 = 900_000_000_000;

/// Names of the attributes of training events.
pub mod attribute {
    /// The step it happened at; of an ending the last one.
    pub const STEP: &str = "step";
    /// How long it took, seconds.
    pub const SECONDS: &str = "seconds";
    /// When the process of a rank that came up began, Unix nanoseconds; absent where it did other things before.
    pub const BEGAN: &str = "process_began_ns";
    /// How a process ended: [`super::Ended`].
    pub const ENDED: &str = "ended";
    /// The exit status, where it is known.
    pub const EXIT_STATUS: &str = "exit_status";
    /// The signal that killed it, where it is known.
    pub const SIGNAL: &str = "signal";
    /// The step of the last checkpoint that was saved.
    pub const CHECKPOINT_STEP: &str = "checkpoint_step";
    /// The phase it was in.
    pub const PHASE: &str = "phase";
    /// An exception's type.
    pub const EXCEPTION: &str = "exception";
    /// An exception's first line.
    pub const EXCEPTION_MESSAGE: &str = "exception_message";
    /// The end of an exception's traceback.
    pub const TRACEBACK: &str = "traceback";
    /// A communicator, as NCCL numbers it.
    pub const COMMUNICATOR: &str = "communicator";
    /// The function of a collective: `AllReduce`.
    pub const FUNCTION: &str = "function";
    /// The sequence number of a collective on its communicator.
    pub const SEQUENCE: &str = "sequence";
    /// How long a collective has been in flight, seconds.
    pub const AGE: &str = "age";
    /// How many ranks a communicator has.
    pub const SIZE: &str = "size";
    /// Ranks in a collective, by their rank on its communicator: `0,1,3`; `…` behind the 32nd.
    pub const RANKS_IN: &str = "ranks_in";
    /// Ranks of the communicator that are known not to be in it, or that do not answer.
    pub const RANKS_NOT_IN: &str = "ranks_not_in";
    /// How many processes of its container, pod or job the kernel killed for want of memory while it was watched.
    pub const OOM_KILLS: &str = "oom_kills";
    /// Where a file lies, as the process sees it.
    pub const PATH: &str = "path";
    /// How large it is.
    pub const BYTES: &str = "bytes";
    /// Why there is none.
    pub const REASON: &str = "reason";
    /// How many steps.
    pub const STEPS: &str = "steps";
    /// The fingerprint's lines; the next ones are `fingerprint.2` and `fingerprint.3`.
    pub const FINGERPRINT: &str = "fingerprint";
}

/// A job within its cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// Its namespace; empty where the scheduler has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from another job of the same name; empty where nothing does.
    pub uid: String,
}

/// One attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    /// Of which job.
    pub job: JobId,
    /// Which attempt, counted from 0.
    pub attempt: u32,
}

/// One process of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RankId {
    /// Of which job.
    pub job: JobId,
    /// Of which attempt.
    pub attempt: u32,
    /// Its number among all ranks of the run.
    pub rank: u32,
}

/// Why a text is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// It has too many or too few parts.
    #[error("`{id}` is no id of a {what}: it has {found} parts instead of {expected}")]
    Parts {
        /// What was looked for.
        what: &'static str,
        /// The text.
        id: String,
        /// How many parts it has.
        found: usize,
        /// How many it should have.
        expected: usize,
    },
    /// The id as a whole is too long.
    #[error("an id of {bytes} bytes is longer than the {MAX_ID_BYTES} that an id may have")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// A name is empty, too long, or not written as this module writes it.
    #[error(
        "`{part}` is no name: 1 to {MAX_NAME_BYTES} bytes, others than letters, digits and -._:~ as %XX"
    )]
    Name {
        /// The part.
        part: String,
    },
    /// An attempt or rank is no number.
    #[error("`{part}` is no number of an attempt or a rank")]
    Number {
        /// The part.
        part: String,
    },
}

/// Whether an identity is more than what the process says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// The agent saw who the process is: its credentials, its cgroup, its pod.
    Proved,
    /// The process says so, and nobody on its node confirmed it. Never overrides what is proved.
    Claimed,
}

/// Who said where a rank stands in the mesh.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum MeshSource {
    /// Nobody.
    #[default]
    Unknown,
    /// The user's script.
    Given,
    /// Megatron's parallel state.
    Megatron,
    /// Torch's DeviceMesh.
    DeviceMesh,
    /// DeepSpeed's groups.
    Deepspeed,
    /// Inferred from which ranks share a communicator.
    Communicators,
}

/// A rank's place in one dimension: its coordinate and the size of the dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The coordinate, from 0.
    pub at: u32,
    /// The size of the dimension; 0 where it is not known.
    pub of: u32,
}

/// Where a rank stands. What is not known is none, and never 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Mesh {
    /// Data parallel.
    pub dp: Option<Place>,
    /// Pipeline stage.
    pub pp: Option<Place>,
    /// Tensor parallel.
    pub tp: Option<Place>,
    /// Context parallel.
    pub cp: Option<Place>,
    /// Expert parallel.
    pub ep: Option<Place>,
}

/// How a process said that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It did what it had to do.
    Finished,
    /// It was told to stop and did.
    Stopped,
    /// Of an exception that nobody caught.
    Exception,
    /// It went without a word: killed, or its node is gone.
    Vanished,
}

macro_rules! names {
    ($type:ty, $what:literal, $($variant:ident $name:literal),+) => {
        impl $type {
            #[doc = concat!("Every ", $what, ".")]
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name on the wire and on the page.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// The one with this name.
            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.name() == name)
            }
        }
    };
}

mod collectives;

mod phase;

names!(Trust, "degree of trust", Proved "proved", Claimed "claimed");
names!(MeshSource, "source", Unknown "unknown", Given "given", Megatron "megatron",
    DeviceMesh "device_mesh", Deepspeed "deepspeed", Communicators "communicators");
names!(Ended, "way to end", Finished "finished", Stopped "stopped", Exception "exception",
    Vanished "vanished");

impl JobId {
    /// The job with this id.
    ///
    /// # Errors
    /// What in the text is not an id.
    pub fn parse(id: &str) -> Result<Self, IdError> {
        let [namespace, name, uid] = parts("job", id)?;
        Self::of(namespace, name, uid)
    }

    fn of(namespace: &str, name: &str, uid: &str) -> Result<Self, IdError> {
        let named = |part: &str| {
            let wrong = || IdError::Name {
                part: part.to_owned(),
            };
            read_name(part).ok_or_else(wrong)
        };
        let job = Self {
            namespace: named(namespace)?,
            name: named(name)?,
            uid: named(uid)?,
        };
        match job.name.is_empty() {
            true => Err(IdError::Name { part: job.name }),
            false => Ok(job),
        }
    }
}

impl RunId {
    /// The run with this id.
    ///
    /// # Errors
    /// What in the text is not an id.
    pub fn parse(id: &str) -> Result<Self, IdError> {
        let [namespace, name, uid, attempt] = parts("run", id)?;
        Ok(Self {
            job: JobId::of(namespace, name, uid)?,
            attempt: read_number(attempt)?,
        })
    }
}

impl RankId {
    /// The rank with this id.
    ///
    /// # Errors
    /// What in the text is not an id.
    pub fn parse(id: &str) -> Result<Self, IdError> {
        let [namespace, name, uid, attempt, rank] = parts("rank", id)?;
        Ok(Self {
            job: JobId::of(namespace, name, uid)?,
            attempt: read_number(attempt)?,
            rank: read_number(rank)?,
        })
    }

    /// The run it belongs to.
    pub fn run(&self) -> RunId {
        RunId {
            job: self.job.clone(),
            attempt: self.attempt,
        }
    }

    /// The id as it travels, when it is one: [`RankId::parse`] reads it back.
    ///
    /// # Errors
    /// What of its names is too long or empty.
    pub fn checked(&self) -> Result<String, IdError> {
        let id = self.to_string();
        Self::parse(&id).map(|_| id)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(&self.namespace, formatter)?;
        formatter.write_char('/')?;
        write_name(&self.name, formatter)?;
        formatter.write_char('/')?;
        write_name(&self.uid, formatter)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.job, self.attempt)
    }
}

impl fmt::Display for RankId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.job, self.attempt, self.rank)
    }
}

fn parts<'a, const COUNT: usize>(
    what: &'static str,
    id: &'a str,
) -> Result<[&'a str; COUNT], IdError> {
    if id.len() > MAX_ID_BYTES {
        return Err(IdError::TooLong { bytes: id.len() });
    }
    let found: Vec<&str> = id.split('/').collect();
    <[&str; COUNT]>::try_from(found.as_slice()).map_err(|_| IdError::Parts {
        what,
        id: id.to_owned(),
        found: found.len(),
        expected: COUNT,
    })
}

/// Whether a byte stands in an id as it is.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'~')
}

fn write_name(name: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in name.bytes() {
        if is_plain(byte) {
            formatter.write_char(char::from(byte))?;
        } else {
            write!(formatter, "%{byte:02X}")?;
        }
    }
    Ok(())
}

/// The name a part stands for; none when [`write_name`] would not have written it so, because one
/// name has one id.
fn read_name(part: &str) -> Option<String> {
    let mut name = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            is_plain(*first).then(|| name.push(*first))?;
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        rest = after;
        let digits = std::str::from_utf8(digits).ok()?;
        let byte = u8::from_str_radix(digits, 16).ok()?;
        let is_ours = !is_plain(byte) && format!("{byte:02X}") == digits;
        is_ours.then(|| name.push(byte))?;
    }
    let name = String::from_utf8(name).ok()?;
    (name.len() <= MAX_NAME_BYTES).then_some(name)
}

fn read_number(part: &str) -> Result<u32, IdError> {
    let number = part.parse::<u32>().ok();
    let number = number.filter(|number| number.to_string() == part);
    number.ok_or_else(|| IdError::Number {
        part: part.to_owned(),
    })
}

impl Mesh {
    /// The dimensions by name, in the order they are written.
    pub const fn axes(&self) -> [(&'static str, Option<Place>); 5] {
        [
            ("dp", self.dp),
            ("pp", self.pp),
            ("tp", self.tp),
            ("cp", self.cp),
            ("ep", self.ep),
        ]
    }

    /// The mesh that [`fmt::Display`] wrote; what is not a place of a known dimension, or outside
    /// of it, is left unknown.
    pub fn parse(text: &str) -> Self {
        let mut mesh = Self::default();
        for word in text.split(' ') {
            let place = word.split_once('=').and_then(|(axis, place)| {
                let (at, of) = place.split_once('/').unwrap_or((place, "0"));
                let place = Place {
                    at: at.parse().ok()?,
                    of: of.parse().ok()?,
                };
                (place.of == 0 || place.at < place.of).then_some((axis, place))
            });
            match place {
                Some(("dp", place)) => mesh.dp = Some(place),
                Some(("pp", place)) => mesh.pp = Some(place),
                Some(("tp", place)) => mesh.tp = Some(place),
                Some(("cp", place)) => mesh.cp = Some(place),
                Some(("ep", place)) => mesh.ep = Some(place),
                _ => {}
            }
        }
        mesh
    }
}

/// `dp=3/8 pp=0/4`; a size that is not known is left out, and so is what is not known at all.
impl fmt::Display for Mesh {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (axis, place) in self.axes() {
            let Some(place) = place else { continue };
            write!(formatter, "{separator}{axis}={}", place.at)?;
            if place.of > 0 {
                write!(formatter, "/{}", place.of)?;
            }
            separator = " ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
