//! The server's own health. Its endpoint serves these; labels stand in the help text.

use super::{Unit, counter, gauge, last, metrics};
use crate::identity::ResourceKind::Node;

metrics! {
    REQUESTS = counter(600, "gpufleet_server_requests_total", Node, Unit::Count, "OTLP requests taken in or refused, by protocol (grpc, http), signal (metrics, logs) and outcome.");
    POINTS = counter(601, "gpufleet_server_points_total", Node, Unit::Count, "Points folded, by lane (live, backfill, foreign).");
    POINTS_REJECTED = counter(602, "gpufleet_server_points_rejected_total", Node, Unit::Count, "Points, attributes and events left out, by reason.");
    EVENTS = counter(603, "gpufleet_server_events_total", Node, Unit::Count, "Events taken in, by kind.");
    FOLD_LAG = gauge(604, "gpufleet_server_fold_lag_seconds", Node, Unit::Seconds, "Age of the newest point of a live request when it was folded, the greatest since the last reading.");
    SAMPLE_AGE_AT_COMMIT = gauge(605, "gpufleet_server_sample_age_at_commit_seconds", Node, Unit::Seconds, "Age of live samples when the last commit made them durable, by quantile (0.5, 0.99, 1).");
    COMMIT_DURATION = gauge(610, "gpufleet_server_commit_duration_seconds", Node, Unit::Seconds, "How long the last commit took.");
    COMMITS = counter(611, "gpufleet_server_commits_total", Node, Unit::Count, "Commits tried, by outcome (success, failure, fenced).");
    LAST_COMMIT = last(612, "gpufleet_server_last_commit_timestamp_seconds", Node, Unit::Seconds, "When the last commit succeeded, Unix time.");
    UNCOMMITTED_BYTES = last(613, "gpufleet_server_uncommitted_bytes", Node, Unit::Bytes, "Memory of what is folded and not yet committed, by lane (live, backfill).");
    LEDGER_DIRTY_HOURS = last(614, "gpufleet_server_ledger_rows_dirty", Node, Unit::Count, "Ledger hours that wait to be computed again.");
    LEDGER_HOURS_COMPUTED = counter(615, "gpufleet_server_ledger_rows_computed_total", Node, Unit::Count, "Ledger hours computed, the first time or again.");
    RETENTION_DELETED = counter(616, "gpufleet_server_retention_deleted_total", Node, Unit::Count, "Rows deleted because their time was over, by table.");
    STORE_BYTES = last(617, "gpufleet_server_store_bytes", Node, Unit::Bytes, "Size of the database.");
    AGENTS = last(620, "gpufleet_server_agents", Node, Unit::Count, "Agents heard of, by state (live, silent).");
    RESOURCES = last(621, "gpufleet_server_resources", Node, Unit::Count, "Resources in memory, by kind and origin (live, recorded, simulated).");
    FOREIGN_SPOOL_BYTES = last(622, "gpufleet_server_foreign_spool_bytes", Node, Unit::Bytes, "Bytes of foreign OTLP that are acknowledged and not yet folded and committed.");
    GAP_REQUESTS = counter(623, "gpufleet_server_gap_requests_total", Node, Unit::Count, "Requests that agents gave up and will never send.");
    AGENT_CONFLICTS = counter(624, "gpufleet_server_agent_conflicts_total", Node, Unit::Count, "Times that two processes sent under one agent id.");
    FOREIGN_DOUBLES = counter(625, "gpufleet_server_foreign_doubles_total", Node, Unit::Count, "Foreign points dropped because they were not newer than the last of their series.");
    HEARTBEAT = last(630, "gpufleet_server_heartbeat_timestamp_seconds", Node, Unit::Seconds, "When the active server last finished its round, Unix time. Alert rules stay quiet while it is fresh.");
    ACTIVE = last(631, "gpufleet_server_active_flag", Node, Unit::Flag, "Whether this server holds the lease and folds.");
    MEMORY = last(632, "gpufleet_server_memory_bytes", Node, Unit::Bytes, "Resident memory of the server.");
    CPU = counter(633, "gpufleet_server_cpu_seconds_total", Node, Unit::Seconds, "CPU time of the server.");
    COMMANDS = counter(640, "gpufleet_server_commands_total", Node, Unit::Count, "Commands for agents, by outcome.");
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
