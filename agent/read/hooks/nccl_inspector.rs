//! The files of NCCL Inspector, NVIDIA's own profiler plugin: a JSON object a line, one a collective.
//!
//! Which folder a job writes to is its own choice (NCCL_INSPECTOR_DUMP_DIR); [`follow`] finds it.

pub mod follow;

use serde::Deserialize;

/// Longest line: a plain one has 500 bytes, a verbose one has 200 for each of 64 channels more.
const LONGEST_LINE: usize = 64 * 1024;

/// A collective as the plugin measured it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Record {
    /// On which communicator.
    pub header: Header,
    /// Where and when.
    pub metadata: Metadata,
    /// What.
    #[serde(rename = "coll_perf")]
    pub performance: Performance,
}

/// The communicator.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Header {
    /// NCCL's hash of it in hexadecimal, equal on all ranks.
    pub id: String,
    /// The rank in it.
    pub rank: u64,
    /// Ranks in it.
    pub n_ranks: u64,
    /// Nodes it spans.
    #[serde(default, rename = "nnodes")]
    pub nodes: u64,
}

/// Where and when.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Metadata {
    /// The node.
    #[serde(default)]
    pub hostname: String,
    /// The process, in its own pid namespace.
    #[serde(default)]
    pub pid: i64,
    /// When the line was written, Unix microseconds; 0 not said.
    #[serde(default)]
    pub dump_timestamp_us: i64,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Performance {
    /// `AllReduce`.
    pub coll: String,
    /// NCCL's number of it, equal on all ranks.
    pub coll_sn: u64,
    /// Bytes.
    pub coll_msg_size_bytes: u64,
    /// How long, microseconds.
    pub coll_exec_time_us: u64,
    /// `kernel_gpu` is the GPU's own time, `kernel_cpu` and `collective_cpu` are what the process saw;
    /// empty where it is not said.
    #[serde(default)]
    pub coll_timing_source: String,
    /// Bus bandwidth, GB/s (10⁹).
    #[serde(default)]
    pub coll_busbw_gbs: f64,
}

/// Why a line is not taken.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// No line of the plugin's is that long.
    #[error("a line has {0} bytes, more than {LONGEST_LINE}")]
    TooLong(usize),
    /// Not the plugin's JSON: also the last line of a file that is being written.
    #[error("a line is not NCCL Inspector's")]
    Json(#[from] serde_json::Error),
    /// A rank past the communicator's end.
    #[error("rank {rank} of {ranks} cannot be")]
    Rank {
        /// What it says.
        rank: u64,
        /// Of how many.
        ranks: u64,
    },
}

/// One line.
///
/// # Errors
/// It is not the plugin's, or says what cannot be.
pub fn record(line: &str) -> Result<Record, LineError> {
    if line.len() > LONGEST_LINE {
        return Err(LineError::TooLong(line.len()));
    }
    let record: Record = serde_json::from_str(line)?;
    let (rank, ranks) = (record.header.rank, record.header.n_ranks);
    if rank >= ranks {
        return Err(LineError::Rank { rank, ranks });
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},
        "metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"profiler_plugin",
        "dump_timestamp_us":1748030377748202,"hostname":"node-7","pid":1639453},
        "coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,
        "coll_exec_time_us":61974,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":277.210914,
        "coll_busbw_gbs":485.119099,"event_trace_sn":{"coll_start_sn":1}}}"#;

    #[test]
    fn a_line_is_a_collective() {
        let record = record(LINE).expect("a line");
        assert_eq!((record.header.rank, record.header.nodes), (2, 1));
        assert_eq!(
            (record.metadata.hostname.as_str(), record.metadata.pid),
            ("node-7", 1_639_453)
        );
        let performance = record.performance;
        assert_eq!(
            (performance.coll.as_str(), performance.coll_sn),
            ("AllReduce", 1407)
        );
        assert_eq!(performance.coll_msg_size_bytes, 17_179_869_184);
        assert_eq!(performance.coll_timing_source, "kernel_gpu");
        // Bytes over time, times 2(n-1)/n: the plugin's own figure.
        let seconds = performance.coll_exec_time_us as f64 / 1e6;
        let bandwidth = performance.coll_msg_size_bytes as f64 / seconds / 1e9 * 14.0 / 8.0;
        assert!(
            (bandwidth - performance.coll_busbw_gbs).abs() < 0.01,
            "{bandwidth}"
        );
    }

    #[test]
    fn an_older_line_lacks_what_is_newer() {
        let without = LINE.replace(r#""coll_timing_source":"kernel_gpu","#, "");
        let record = record(&without).expect("a line");
        assert_eq!(record.performance.coll_timing_source, "");
    }

    #[test]
    fn a_line_that_cannot_be_is_refused() {
        let refused = |line: &str| record(line).expect_err("it is refused").to_string();
        assert_eq!(refused(&LINE[..200]), "a line is not NCCL Inspector's");
        assert_eq!(refused(""), "a line is not NCCL Inspector's");
        let beyond = LINE.replace(r#""rank":2"#, r#""rank":8"#);
        assert_eq!(refused(&beyond), "rank 8 of 8 cannot be");
        let negative = LINE.replace("61974", "-1");
        assert_eq!(refused(&negative), "a line is not NCCL Inspector's");
        let long = format!("{}{}", " ".repeat(LONGEST_LINE), LINE);
        assert!(refused(&long).starts_with("a line has"));
    }
}
