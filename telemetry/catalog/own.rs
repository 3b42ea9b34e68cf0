//! The agent's own health, through the same catalog as everything else.

use super::{MetricId, Unit, counter, gauge, last, metrics};
use crate::identity::PartKind::{Reader, Reason, Stream};
use crate::identity::ResourceKind::{Gpu, Node};

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
    HOLDERS_ANSWER = last(540, "gpufleet_agent_holders_answer_flag", Node, Unit::Flag, "Whether the one who knows who holds GPUs answered when it was asked last: the kubelet, the Kubernetes API, Slurm.").part(Reader);
    HOLDERS_AGE = last(541, "gpufleet_agent_holders_age_seconds", Node, Unit::Seconds, "How long ago it answered last.").part(Reader);
    HOLDERS_UNKNOWN = last(542, "gpufleet_agent_holders_unknown", Node, Unit::Count, "GPUs and shares whose holder is not known, by reason: several share it as they are meant to, its processes cannot be seen, two pods have the whole of it, the kubelet was not heard, a device was given away that may be it.").part(Reason);
    HOLDERS_STRANGE_DEVICES = last(543, "gpufleet_agent_holders_strange_devices", Node, Unit::Count, "Devices that the kubelet gave to pods and that no GPU of this node is.");
    HOLDERS_PODS_LEFT_OUT = last(532, "gpufleet_agent_holders_pods_left_out", Node, Unit::Count, "Pods of this node that the agent has no room for: of those that hold a GPU nothing is known but their names.");
    PROBE_VERDICT = last(550, "gpufleet_agent_probe_verdict_code", Gpu, Unit::Code, "What the last probe of the GPU came to: 1 right and fast, 2 right and slow, 3 wrong, 4 could not measure.").slow();
    PROBE_AT = last(551, "gpufleet_agent_probe_timestamp_seconds", Gpu, Unit::Seconds, "When that was, Unix time.").slow();
    PROBE_MEMORY_RATE = last(552, "gpufleet_agent_probe_memory_bytes_per_second", Gpu, Unit::BytesPerSecond, "What the probe moved within the device memory, read and written.").slow();
    PROBE_TENSOR_RATE = last(553, "gpufleet_agent_probe_tensor_operations_per_second", Gpu, Unit::Count, "Operations a second of the tensor cores in the probe, in bf16, on cards without it in fp16, by mma.sync: newer cards can do more with other instructions.").slow();
    PROBE_TO_GPU = last(554, "gpufleet_agent_probe_pcie_to_gpu_bytes_per_second", Gpu, Unit::BytesPerSecond, "What the probe copied from the host to the GPU.").slow();
    PROBE_FROM_GPU = last(555, "gpufleet_agent_probe_pcie_from_gpu_bytes_per_second", Gpu, Unit::BytesPerSecond, "What the probe copied from the GPU to the host.").slow();
    PROBE_CONTEXT = last(556, "gpufleet_agent_probe_context_bytes", Gpu, Unit::Bytes, "Device memory that the probe's context took while it ran, its buffers left out.").slow();
    PROBE_SLOWEST_SM = last(557, "gpufleet_agent_probe_slowest_sm_ratio", Gpu, Unit::Ratio, "Speed of the slowest SM as a part of the middle one's.").slow();
    PROBE_GPU_TIME = last(558, "gpufleet_agent_probe_gpu_seconds", Gpu, Unit::Seconds, "How long the probe's kernels and copies ran on the GPU.").slow();
    PROBE_SM = last(559, "gpufleet_agent_probe_blamed_sm_code", Gpu, Unit::Code, "The number of the SM that the probe blames for wrong results, or for being slow; only while it blames one.").slow();
    PROBE_PEERS_RATE = last(560, "gpufleet_agent_probe_peers_bytes_per_second", Gpu, Unit::BytesPerSecond, "What the probe copied between the GPU and others of its node: the slower way, in the middle of up to three pairs, over the fastest kind of link.").slow();
    HOOKS_RANK_UNKNOWN = last(561, "gpufleet_agent_hooks_rank_unknown", Node, Unit::Count, "Training processes that have not said for five minutes which rank they are, those with the NCCL plugin alone among them: they are on no job's page before they do.");
    MISSING_READING = last(524, "gpufleet_agent_missing_reading_flag", Node, Unit::Flag, "Set to 1 for every reading that is missing, with the labels of the reading, the name of its metric and the reason. Only on /metrics: elsewhere the reading itself carries its reason.");
}

/// What the probe tells of a GPU.
pub const PROBE: &[super::Metric] = &[
    PROBE_VERDICT,
    PROBE_AT,
    PROBE_MEMORY_RATE,
    PROBE_TENSOR_RATE,
    PROBE_TO_GPU,
    PROBE_FROM_GPU,
    PROBE_CONTEXT,
    PROBE_SLOWEST_SM,
    PROBE_GPU_TIME,
    PROBE_SM,
    PROBE_PEERS_RATE,
];

/// Whether a metric is of the probe's last run: of then, not of now.
pub fn is_probed(metric: MetricId) -> bool {
    PROBE.iter().any(|it| it.id == metric)
}
