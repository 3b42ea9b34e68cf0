//! What NCCL says of a running job when it is asked: its RAS service, which needs no plugin.
//!
//! Every NCCL since 2.24 answers on localhost:28028 (or NCCL_RAS_ADDR) in lines of text. One process
//! answers for the whole job. Since 2.28.7 it can answer in JSON, which has every rank with how many
//! collectives it began; before, a text for people, of which the table of communicators and the named
//! problems are taken. Only status is asked for: nothing changes in the job. Here is the conversation and
//! the two forms; [`reach`] is the way there, [`standing`] what two answers say together, and the reader of
//! training processes asks.

mod listener;

pub mod reach;

pub mod standing;

mod text;

use std::collections::BTreeMap;
use std::io::{Read, Write};

use serde::Deserialize;

pub use listener::understands as understands_list;
pub use text::{Group, Problem, Summary, summary};

/// Where NCCL listens, in the network namespace of the job.
pub const ADDRESS: &str = "127.0.0.1:28028";

/// Seconds NCCL may take to gather the answers of its ranks; its own default. What it has by then it
/// tells, with those that did not answer.
const GATHER_SECONDS: u64 = 5;

/// Longest line of the conversation before the answer.
const LONGEST_LINE: usize = 256;

/// Longest answer: 600 bytes a rank and communicator, so ten thousand ranks in five of them each.
const LONGEST_ANSWER: u64 = 32 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RasError {
    /// The connection broke, or nothing came in time.
    #[error("NCCL's RAS service does not answer")]
    Connection(#[from] std::io::Error),
    /// Whatever listens there is not NCCL.
    #[error("`{0}` is not what NCCL's RAS service says")]
    Protocol(String),
    /// More than any job's answer.
    #[error("the answer has more than {LONGEST_ANSWER} bytes")]
    TooLong,
    /// JSON that is not NCCL's.
    #[error("the answer is not NCCL's JSON")]
    Json(#[from] serde_json::Error),
}

/// What NCCL answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Since 2.28.7: every communicator and rank.
    Status(Status),
    /// Before: what its text says.
    Summary(Summary),
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Status {
    /// NCCL's version: `2.28.7`.
    #[serde(default)]
    pub nccl_version: String,
    /// Its communicators.
    pub communicators: Vec<Communicator>,
    /// How the gathering went.
    #[serde(default)]
    pub ras: Gathering,
}

/// How the gathering went.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
pub struct Gathering {
    /// How long it took.
    #[serde(default)]
    pub collection_time_sec: f64,
    /// Processes that did not answer in time.
    #[serde(default)]
    pub timeouts_count: u64,
}

/// A communicator.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Communicator {
    /// NCCL's hash of it, as our plugin has it too.
    #[serde(deserialize_with = "hash")]
    pub hash: u64,
    /// Ranks in it.
    pub size: u64,
    /// Those that answered.
    #[serde(default)]
    pub ranks: Vec<Rank>,
    /// Those that did not.
    #[serde(default)]
    pub missing_ranks: Vec<MissingRank>,
}

/// Where a rank runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Place {
    /// Rank in the communicator.
    pub rank: u64,
    /// Address of its node.
    #[serde(default)]
    pub host: String,
    /// Process, in its own pid namespace.
    #[serde(default)]
    pub pid: i64,
    /// Number of its GPU for CUDA.
    #[serde(default)]
    pub cuda_dev: i64,
    /// Number of its GPU for NVML.
    #[serde(default)]
    pub nvml_dev: i64,
}

/// A rank that answered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Rank {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// How it is.
    #[serde(default)]
    pub status: RankStatus,
    /// How many of each function it began. Over time: a count that stands while another rank's has
    /// gone on is the rank that the others wait for.
    #[serde(default)]
    pub collective_counts: BTreeMap<String, u64>,
}

/// How a rank is. Results are NCCL's numbers, 0 for success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct RankStatus {
    /// Result of its initialisation.
    pub init_state: i64,
    /// Result of what went on by itself.
    pub async_error: i64,
    /// The program has finalized the communicator.
    pub finalize_called: bool,
    /// It is being destroyed.
    pub destroy_flag: bool,
    /// It was aborted.
    pub abort_flag: bool,
}

/// A rank that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MissingRank {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What NCCL makes of it.
    #[serde(default)]
    pub status: MissingStatus,
}

/// What NCCL makes of a rank that did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct MissingStatus {
    /// Its process does not answer.
    pub unresponsive: bool,
    /// Its process is taken for dead.
    pub considered_dead: bool,
}

fn hash<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    let digits = text.strip_prefix("0x").unwrap_or(&text);
    u64::from_str_radix(digits, 16).map_err(serde::de::Error::custom)
}

/// Asks over a connection that has time-outs of its own, longer than NCCL may take to gather.
///
/// # Errors
/// What answers is not NCCL, or says more than any job has to say.
pub fn ask(mut stream: impl Read + Write) -> Result<Answer, RasError> {
    let hello = say(&mut stream, "CLIENT PROTOCOL 2")?;
    if !hello.starts_with("SERVER PROTOCOL ") {
        return Err(RasError::Protocol(hello));
    }
    let taken = say(&mut stream, &format!("TIMEOUT {GATHER_SECONDS}"))?;
    if taken != "OK" {
        return Err(RasError::Protocol(taken));
    }
    // An older one does not know the command, and says so.
    let is_json = say(&mut stream, "SET FORMAT json")? == "OK";
    stream.write_all(b"VERBOSE STATUS\n")?;
    let mut answer = Vec::new();
    let mut limited = stream.take(LONGEST_ANSWER + 1);
    limited.read_to_end(&mut answer)?;
    if answer.len() as u64 > LONGEST_ANSWER {
        return Err(RasError::TooLong);
    }
    match is_json {
        true => Ok(Answer::Status(status(&answer)?)),
        false => Ok(Answer::Summary(summary(&String::from_utf8_lossy(&answer)))),
    }
}

/// The state of a job, from NCCL's JSON.
///
/// # Errors
/// It is not NCCL's.
pub fn status(json: &[u8]) -> Result<Status, serde_json::Error> {
    serde_json::from_slice(json)
}

/// Says a line and reads the one that comes back.
fn say(stream: &mut (impl Read + Write), line: &str) -> Result<String, RasError> {
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    // One by one: what comes after the line is the next answer's.
    while answer.len() < LONGEST_LINE {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        answer.extend(byte);
    }
    let text = String::from_utf8_lossy(&answer);
    Ok(text.trim_end().replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// As NCCL 2.28.7 and later write it, two ranks of which one is missing.
    const JSON: &str = r#"{
      "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
      "timestamp": "2026-11-21 16:00:00", "communicators_count": 1,
      "communicators": [
        { "hash": "0xcf264af53edbe986", "secondary_hash": "0x1:0x2", "size": 2,
          "ranks_count": 1, "missing_ranks_count": 1,
          "ranks": [
            { "rank": 0, "host": "172.16.64.210", "pid": 301, "cuda_dev": 0, "nvml_dev": 4,
              "status": { "init_state": 0, "async_error": 0, "finalize_called": false,
                          "destroy_flag": false, "abort_flag": true },
              "collective_counts": { "Broadcast": 1, "AllReduce": 6650 } }
          ],
          "missing_ranks": [
            { "rank": 1, "host": "172.16.64.211", "pid": 302, "cuda_dev": 1, "nvml_dev": 5,
              "status": { "unresponsive": true, "considered_dead": false } }
          ] }
      ],
      "ras": { "collection_time_sec": 5.003, "timeouts_count": 1 }
    }"#;

    /// Answers as the service does, line by line, then with `answer`; returns what it was told.
    fn serve(mut stream: UnixStream, knows_json: bool, answer: &[u8]) -> Vec<String> {
        let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
        let mut told = Vec::new();
        while let Some(Ok(line)) = lines.next() {
            told.push(line.clone());
            let reply: &[u8] = match line.split(' ').next() {
                Some("CLIENT") => b"SERVER PROTOCOL 2\n",
                Some("TIMEOUT") => b"OK\n",
                Some("SET") if knows_json => b"OK\n",
                Some("SET") => b"ERROR: Unknown command\n",
                _ => answer,
            };
            // Who asks goes away from an answer that is too long.
            let _gone = stream.write_all(reply);
            if line.ends_with("STATUS") {
                let _gone = stream.shutdown(Shutdown::Both);
            }
        }
        told
    }

    fn asked(knows_json: bool, answer: &[u8]) -> (Result<Answer, RasError>, Vec<String>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        thread::scope(|scope| {
            let server = scope.spawn(|| serve(theirs, knows_json, answer));
            let answer = ask(ours);
            (answer, server.join().expect("it answers"))
        })
    }

    #[test]
    fn a_new_nccl_tells_every_rank() {
        let (answer, told) = asked(true, JSON.as_bytes());
        let Ok(Answer::Status(status)) = answer else {
            panic!("no status: {answer:?}");
        };
        assert_eq!(
            told,
            [
                "CLIENT PROTOCOL 2",
                "TIMEOUT 5",
                "SET FORMAT json",
                "VERBOSE STATUS"
            ]
        );
        assert_eq!(status.nccl_version, "2.28.9");
        assert_eq!(status.ras.timeouts_count, 1);
        let communicator = &status.communicators[0];
        assert_eq!(
            (communicator.hash, communicator.size),
            (0xcf26_4af5_3edb_e986, 2)
        );
        let rank = &communicator.ranks[0];
        assert_eq!(
            (rank.place.rank, rank.place.pid, rank.place.nvml_dev),
            (0, 301, 4)
        );
        assert!(rank.status.abort_flag && !rank.status.finalize_called);
        assert_eq!(rank.collective_counts["AllReduce"], 6650);
        let missing = &communicator.missing_ranks[0];
        assert_eq!(
            (missing.place.rank, missing.place.host.as_str()),
            (1, "172.16.64.211")
        );
        assert!(missing.status.unresponsive && !missing.status.considered_dead);
    }

    #[test]
    fn an_old_nccl_is_read_as_text() {
        let (answer, _told) = asked(false, b"NCCL version 2.25.1 compiled with CUDA 12.8\n");
        let Ok(Answer::Summary(summary)) = answer else {
            panic!("no summary: {answer:?}");
        };
        assert_eq!(summary.nccl_version, "2.25.1");
    }

    #[test]
    fn what_is_not_nccl_is_refused_by_name() {
        let refused = |text: &'static [u8]| {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            theirs.write_all(text).expect("it takes it");
            theirs.shutdown(Shutdown::Write).expect("it ends");
            ask(ours).expect_err("it is not NCCL").to_string()
        };
        assert_eq!(
            refused(b"HTTP/1.1 400 Bad\x07 Request\r\n"),
            "`HTTP/1.1 400 Bad  Request` is not what NCCL's RAS service says"
        );
        assert_eq!(refused(b""), "NCCL's RAS service does not answer");
        // A line that never ends is not read for ever.
        assert!(refused(&[b'x'; 1000]).contains("is not what NCCL"));
        let (answer, _told) = asked(true, b"{}");
        assert!(matches!(answer, Err(RasError::Json(_))), "{answer:?}");
    }

    #[test]
    fn an_answer_without_end_is_given_up() {
        let endless = vec![b' '; LONGEST_ANSWER as usize + 1];
        let (answer, _told) = asked(true, &endless);
        assert!(matches!(answer, Err(RasError::TooLong)), "{answer:?}");
    }
}
