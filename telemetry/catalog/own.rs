//! The agent's own health, through the same catalog as everything else.

use super::{Unit, counter, gauge, last, metrics};
use crate::identity::PartKind::{Reader, Reason, Stream};
use crate::identity::ResourceKind::Node;

metrics! {
    READER_DURATION = gauge(500, "gpufleet_agent_reader_duration_seconds", Node, Unit::Seconds, "How long the reader's last round took.").part(Reader).with_max();
    READER_SUCCESS = last(501, "gpufleet_agent_reader_success_flag", Node, Unit::Flag, "Whether the reader's last round succeeded.").part(Reader);
    READER_LAST_SUCCESS = last(502, "gpufleet_agent_reader_last_success_timestamp_seconds", Node, Unit::Seconds, "When the reader last succeeded, Unix time.").part(Reader);
    READER_FAILURES = counter(503, "gpufleet_agent_reader_failures_total", Node, Unit::Count, "Rounds in which the reader failed or ran out of time.").part(Reader);
    SPOOL_BYTES = last(510, "gpufleet_agent_spool_bytes", Node, Unit::Bytes, "Bytes waiting in the spool.").part(Stream);
    SPOOL_AGE = last(511, "gpufleet_agent_spool_oldest_age_seconds", Node, Unit::Seconds, "Age of the oldest request that is not durable on the server.").part(Stream);
    SPOOL_DROPPED = counter(512, "gpufleet_agent_spool_dropped_total", Node, Unit::Count, "Requests given up because the spool was full or corrupt.").part(Stream);
    SHIPPED = counter(513, "gpufleet_agent_shipped_total", Node, Unit::Count, "Requests acknowledged by the server.").part(Stream);
    SHIP_FAILURES = counter(514, "gpufleet_agent_ship_failures_total", Node, Unit::Count, "Attempts to ship that failed.").part(Stream);
    AGENT_MEMORY = last(520, "gpufleet_agent_memory_bytes", Node, Unit::Bytes, "Proportional memory (PSS) of the agent and its children.").slow();
    AGENT_CPU = counter(521, "gpufleet_agent_cpu_seconds_total", Node, Unit::Seconds, "CPU time of the agent and its children.");
    NVML_CHILD_RESTARTS = counter(522, "gpufleet_agent_nvml_child_restarts_total", Node, Unit::Count, "Times the process that talks to the driver was replaced.");
    FOREIGN_DCGM = last(523, "gpufleet_agent_foreign_dcgm_names_flag", Node, Unit::Flag, "Whether the endpoint this reader scrapes serves dcgm-exporter's names. Then the agent leaves them out of its own /metrics unless told otherwise, so that no sum doubles.").part(Reader);
    HOOKS_PROCESSES = last(525, "gpufleet_agent_hooks_processes", Node, Unit::Count, "Training processes that share memory with the agent.");
    HOOKS_REFUSED = counter(526, "gpufleet_agent_hooks_refused_total", Node, Unit::Count, "What training processes said or asked for and was refused, by reason: a connection beyond the limits, garbage, a number that cannot be, the identity of another rank.").part(Reason);
    LEFT_OUT = counter(527, "gpufleet_agent_left_out_total", Node, Unit::Count, "What readers returned and the agent left out, by reason: samples of a resource or series beyond its limit or of a metric that it does not know, events beyond the limit of one flush.").part(Reason);
    SHIP_REFUSALS = counter(528, "gpufleet_agent_ship_refusals_total", Node, Unit::Count, "Attempts to ship that failed, by reason: the server unreachable, TLS, a token that is missing (401) or not allowed (403), a request that is too large (413).").part(Reason);
    SPOOL_WRITABLE = last(529, "gpufleet_agent_spool_writable_flag", Node, Unit::Flag, "Whether the spool took what it was last given. While it does not, what is sampled is lost: most likely the disk is full.");
    MISSING_READING = last(524, "gpufleet_agent_missing_reading_flag", Node, Unit::Flag, "Set to 1 for every reading that is missing, with the labels of the reading, the name of its metric and the reason. Only on /metrics: elsewhere the reading itself carries its reason.");
}
