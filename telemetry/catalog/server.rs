//! The server's own health. Its endpoint serves these; labels stand in the help text.

use super::{Unit, counter, gauge, last, metrics};
use crate::identity::ResourceKind::Node;

metrics! {
    REQUESTS = counter(600, "gpufleet_server_requests_total", Node, Unit::Count, "Requests of agents taken in or refused, by outcome.");
    POINTS = counter(601, "gpufleet_server_points_total", Node, Unit::Count, "Points folded.");
    POINTS_REJECTED = counter(602, "gpufleet_server_points_rejected_total", Node, Unit::Count, "Points, attributes and events of requests left out because they say nothing that can be kept, by reason.");
    POINTS_DROPPED = counter(603, "gpufleet_server_points_dropped_total", Node, Unit::Count, "Points and events that were understood and left out all the same, by reason: too old, come twice, over a limit.");
    ROWS_LEFT_OUT = counter(604, "gpufleet_server_rows_left_out_total", Node, Unit::Count, "Minute rows left out of the record, by reason (too_late: their minute is no longer kept).");
    SAMPLE_AGE_AT_COMMIT = gauge(605, "gpufleet_server_sample_age_at_commit_seconds", Node, Unit::Seconds, "Age of the fresh samples of the last commit when they became durable, the oldest of each resource, 99th percentile over the resources.");
    COMMIT_DURATION = gauge(610, "gpufleet_server_commit_duration_seconds", Node, Unit::Seconds, "How long the last commit took.");
    COMMITS = counter(611, "gpufleet_server_commits_total", Node, Unit::Count, "Commits tried, by outcome (success, failure).");
    LAST_COMMIT = last(612, "gpufleet_server_last_commit_timestamp_seconds", Node, Unit::Seconds, "When the last commit succeeded, Unix time.");
    UNCOMMITTED_BYTES = last(613, "gpufleet_server_uncommitted_bytes", Node, Unit::Bytes, "Memory of what is folded and not yet committed, by lane (live, backfill).");
    UNREADABLE_ROWS = counter(614, "gpufleet_server_unreadable_rows_total", Node, Unit::Count, "Rows of the database that could not be read and were set aside, by table.");
    AGENTS = last(620, "gpufleet_server_agents", Node, Unit::Count, "Agents heard of, by state (live, silent).");
    RESOURCES = last(621, "gpufleet_server_resources", Node, Unit::Count, "Resources in memory, live, recorded and simulated together.");
    LEADS = last(622, "gpufleet_server_leads", Node, Unit::Count, "One while this server has the right to write, 0 while it is a standby and takes nothing.");
    JOB_LAST_SUCCESS = last(623, "gpufleet_server_job_last_success_timestamp_seconds", Node, Unit::Seconds, "When a background job last did its work without an error, Unix time, by job. Absent before the first time.");
    JOB_FAILURES = counter(624, "gpufleet_server_job_failures_total", Node, Unit::Count, "Rounds of a background job that failed or waited too long for the database, by job.");
    SPOOL_BYTES = last(625, "gpufleet_server_spool_bytes", Node, Unit::Bytes, "Bytes of the server's own spool on its disk, where requests of others than agents are made durable.");
    DISK_FREE = last(626, "gpufleet_server_disk_free_bytes", Node, Unit::Bytes, "Bytes that may still be written to a disk of the server, by what lies there (spool, database). No database where it is a server of its own.");
    REFUSED = counter(627, "gpufleet_server_refused_total", Node, Unit::Count, "Requests and connections that a door refused, by door (grpc, http, web) and reason (no_token, forbidden, too_large, content_type, invalid, busy, unavailable, too_slow, tls).");
    CLOCK_AHEAD = last(628, "gpufleet_server_clock_ahead_seconds", Node, Unit::Seconds, "How far the server's clock is ahead of those of most of its agents, below 0 behind; 0 while they agree within 5 s. Absent with fewer than three agents, or while they differ from one another.");
    FILES_REFUSED = last(629, "gpufleet_server_files_refused", Node, Unit::Count, "One while the token files have changed and cannot be used, and those of before stay good; 0 else.");
    HEARTBEAT = last(630, "gpufleet_server_heartbeat_timestamp_seconds", Node, Unit::Seconds, "When the active server last had nothing overdue to make durable, Unix time. A commit that fails or hangs leaves it behind. Alert rules stay quiet while it is fresh.");
    MEMORY = last(632, "gpufleet_server_memory_bytes", Node, Unit::Bytes, "Resident memory of the server.");
    CPU = counter(633, "gpufleet_server_cpu_seconds_total", Node, Unit::Seconds, "CPU time of the server.");
    INCIDENTS = last(634, "gpufleet_server_incidents", Node, Unit::Count, "Open incidents, by family (gpu_fault, heat, blind, …) and whether somebody acknowledged them.");
    INCIDENTS_LEFT_OUT = counter(635, "gpufleet_server_incidents_left_out_total", Node, Unit::Count, "Incidents that were not opened because as many as the server keeps are.");
    DETECT_DURATION = last(636, "gpufleet_server_detect_duration_seconds", Node, Unit::Seconds, "How long the last tick of the detectors took.");
    DETECT_LAST = last(637, "gpufleet_server_detect_last_timestamp_seconds", Node, Unit::Seconds, "When the detectors last judged the fleet, Unix time.");
    DETECT_GPUS = last(638, "gpufleet_server_detect_gpus", Node, Unit::Count, "GPUs that the detectors judged at their last tick.");
    HTTP_REQUESTS = counter(641, "gpufleet_server_http_requests_total", Node, Unit::Count, "Requests for pages and the API, by route and status class.");

    GPUS = last(650, "gpufleet_server_gpus", Node, Unit::Count, "GPUs by cluster, origin and state. Sum over live ones only: recorded and simulated GPUs are no part of the fleet.");
    NODES = last(651, "gpufleet_server_nodes", Node, Unit::Count, "Nodes by cluster, origin and whether they report or are silent.");
    GPU_STATE = last(652, "gpufleet_server_gpu_state", Node, Unit::Count, "Always 1; the labels say which state the GPU is in and why.");
    GPU_OBSERVED = last(653, "gpufleet_server_gpu_observed", Node, Unit::Count, "One while the GPU is measured and answers, 0 while nothing is known of it.");
    GPU_HELD = last(654, "gpufleet_server_gpu_held", Node, Unit::Count, "One while someone holds the GPU, 0 while nobody does; absent while that is not known.");
    GPU_LAST_SAMPLE_AGE = last(655, "gpufleet_server_gpu_last_sample_age_seconds", Node, Unit::Seconds, "Age of the newest sample of the GPU.");
    GPU_IDENTITY = last(656, "gpufleet_server_gpu_identity", Node, Unit::Count, "Always 1; the labels say what the GPU is: index, model, reader.");
    GPUS_LEFT_OUT = last(657, "gpufleet_server_gpus_left_out", Node, Unit::Count, "GPUs without series here, by reason: too many, or a name too long for a label.");
}
