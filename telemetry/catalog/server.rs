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
    UNCOMMITTED_LIMIT = last(694, "gpufleet_server_uncommitted_limit_bytes", Node, Unit::Bytes, "Memory that may wait for a commit before agents are told to wait, by lane (live: fleet.live_bytes, backfill: fleet.backfill_bytes).");
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
    FILES_REFUSED = last(629, "gpufleet_server_files_refused", Node, Unit::Count, "One while token or TLS files have changed and cannot be used, and those of before stay good; 0 else.");
    HEARTBEAT = last(630, "gpufleet_server_heartbeat_timestamp_seconds", Node, Unit::Seconds, "When the active server last had nothing overdue to make durable, Unix time. A commit that fails or hangs leaves it behind. Alert rules stay quiet while it is fresh.");
    MEMORY = last(632, "gpufleet_server_memory_bytes", Node, Unit::Bytes, "Resident memory of the server.");
    CPU = counter(633, "gpufleet_server_cpu_seconds_total", Node, Unit::Seconds, "CPU time of the server.");
    INCIDENTS = last(634, "gpufleet_server_incidents", Node, Unit::Count, "Open incidents, by family (gpu_fault, heat, blind, …) and whether somebody acknowledged them.");
    INCIDENT_OPEN = last(695, "gpufleet_server_incident_open", Node, Unit::Count, "Always 1, one series for each open incident; the labels say what is wrong and where: id, family, severity, what, cluster, origin, and where they are known node, gpu (its id), namespace, job (its id as on the series of training), attempt, rank, team. 1,000 incidents at most; each has series of its own, which end with it.");
    INCIDENT_SINCE = last(696, "gpufleet_server_incident_since_timestamp_seconds", Node, Unit::Seconds, "When the trouble of an open incident began, Unix time; the labels of gpufleet_server_incident_open.");
    INCIDENT_LOST_TIME = last(697, "gpufleet_server_incident_lost_gpu_seconds", Node, Unit::Seconds, "GPU time that an open incident has lost so far; the labels of gpufleet_server_incident_open.");
    INCIDENT_LOST_USD = last(698, "gpufleet_server_incident_lost_usd", Node, Unit::Count, "What that time cost, in cost.currency, as far as it has a price; absent where none of it has one. The labels of gpufleet_server_incident_open.");
    INCIDENTS_LEFT_OUT = counter(635, "gpufleet_server_incidents_left_out_total", Node, Unit::Count, "Incidents that were not opened because as many as the server keeps are.");
    DETECT_DURATION = last(636, "gpufleet_server_detect_duration_seconds", Node, Unit::Seconds, "How long the last tick of the detectors took.");
    DETECT_LAST = last(637, "gpufleet_server_detect_last_timestamp_seconds", Node, Unit::Seconds, "When the detectors last judged the fleet, Unix time.");
    DETECT_GPUS = last(638, "gpufleet_server_detect_gpus", Node, Unit::Count, "GPUs that the detectors judged at their last tick.");
    HTTP_REQUESTS = counter(641, "gpufleet_server_http_requests_total", Node, Unit::Count, "Requests for pages and the API, by route and status class.");
    LIVE_STREAMS = last(693, "gpufleet_server_live_streams", Node, Unit::Count, "Pages that are open and told of news as it comes (server-sent events on /live), of 256 at most. Pages beyond ask every 10 s instead; those refused are in gpufleet_server_http_requests_total, route /live, status class 4xx and 5xx.");

    NOTIFICATIONS = counter(670, "gpufleet_server_notifications_total", Node, Unit::Count, "Attempts to tell people, by channel and outcome (delivered, retried, refused).");
    NOTIFY_WAITING = last(671, "gpufleet_server_notify_waiting", Node, Unit::Count, "Messages to people that could have gone out and have not, by channel.");
    NOTIFY_OLDEST = last(672, "gpufleet_server_notify_oldest_seconds", Node, Unit::Seconds, "For how long the oldest of the messages that wait does, by channel; 0 while none waits.");
    NOTIFY_LAST_SUCCESS = last(673, "gpufleet_server_notify_last_success_timestamp_seconds", Node, Unit::Seconds, "When a message last got through, Unix time, by channel. Absent before the first one since the start.");
    NOTIFY_FAILURES = last(674, "gpufleet_server_notify_failures_in_a_row", Node, Unit::Count, "Attempts that failed since the last message that got through, by channel.");
    NOTIFY_REFUSED = last(675, "gpufleet_server_notify_refused", Node, Unit::Count, "Messages about what is so that the receiver will not take, which are not sent again before somebody mends what is wrong, by channel.");
    NOTIFY_FOLDED = counter(676, "gpufleet_server_notify_folded_total", Node, Unit::Count, "Incidents told in one message for all, because there were too many for messages of their own, by channel.");
    NOTIFY_DELAY = last(677, "gpufleet_server_notify_delay_seconds", Node, Unit::Seconds, "How long the last first message of a group took to get through, from the opening of its incident, by channel. Absent before the first one since the start.");
    NOTIFY_HEARTBEAT = last(678, "gpufleet_server_notify_heartbeat_timestamp_seconds", Node, Unit::Seconds, "When the heartbeat to the service outside last got through, Unix time; 0 before the first. Absent where none is configured.");

    REMOTE_WRITE_SAMPLES = counter(680, "gpufleet_server_remote_write_samples_total", Node, Unit::Count, "Samples pushed by remote write, by outcome (taken; refused: the target will not have them, and they are not sent again).");
    REMOTE_WRITE_FAILURES = counter(681, "gpufleet_server_remote_write_failures_total", Node, Unit::Count, "Messages of remote write that did not get through and are sent again.");
    REMOTE_WRITE_SKIPPED = counter(682, "gpufleet_server_remote_write_skipped_total", Node, Unit::Count, "Minutes that are not pushed because the target was away for longer than remote_write.max_age_h.");
    REMOTE_WRITE_LEFT_OUT = counter(683, "gpufleet_server_remote_write_left_out_total", Node, Unit::Count, "Resources that were left out of a pushed minute because a name of theirs is too long for a label.");
    REMOTE_WRITE_BEHIND = last(684, "gpufleet_server_remote_write_behind_seconds", Node, Unit::Seconds, "How far the end of the newest minute that was pushed lies behind, by this server or the one before it. Absent until the server has looked where it goes on.");

    CLOUD_MONITORING_SAMPLES = counter(685, "gpufleet_server_cloud_monitoring_samples_total", Node, Unit::Count, "Samples written to Cloud Monitoring, by outcome: taken, or why not: refused (a rule of its own), denied, failed (on its side), sent_again (after an answer that did not come: it has them), descriptor (it does not take what the metric is), kind (the metric is not one of such a resource), too_many (counters beyond those that are followed). None of them is sent again.");
    CLOUD_MONITORING_FAILURES = counter(686, "gpufleet_server_cloud_monitoring_failures_total", Node, Unit::Count, "Requests to Cloud Monitoring that did not get through and are sent again.");
    CLOUD_MONITORING_SKIPPED = counter(687, "gpufleet_server_cloud_monitoring_skipped_total", Node, Unit::Count, "Minutes that are not written because Cloud Monitoring was away for longer than cloud_monitoring.max_age_h.");
    CLOUD_MONITORING_LEFT_OUT = counter(688, "gpufleet_server_cloud_monitoring_left_out_total", Node, Unit::Count, "Resources that were left out of a written minute because a name of theirs is too long for a label.");
    CLOUD_MONITORING_BEHIND = last(689, "gpufleet_server_cloud_monitoring_behind_seconds", Node, Unit::Seconds, "How far the end of the newest minute that was written lies behind, by this server or the one before it. Absent until the server has looked where it goes on.");
    CLOUD_MONITORING_SERIES = last(690, "gpufleet_server_cloud_monitoring_series", Node, Unit::Count, "Series that the newest minute was written to. Absent before the first.");
    CLOUD_MONITORING_MONTH = last(691, "gpufleet_server_cloud_monitoring_month_bytes", Node, Unit::Bytes, "What Cloud Monitoring bills for a month of as many series, at one point each cloud_monitoring.every_minutes. Absent before the first minute.");
    CLOUD_MONITORING_COST = last(692, "gpufleet_server_cloud_monitoring_month_usd", Node, Unit::Count, "What that costs in dollars at the prices in cloud_monitoring, without what is free. Absent before the first minute, and where the price is 0: then it is not known.");

    GPUS = last(650, "gpufleet_server_gpus", Node, Unit::Count, "GPUs by cluster, origin and state. Sum over live ones only: recorded and simulated GPUs are no part of the fleet.");
    NODES = last(651, "gpufleet_server_nodes", Node, Unit::Count, "Nodes by cluster, origin and whether they report or are silent.");
    GPU_STATE = last(652, "gpufleet_server_gpu_state", Node, Unit::Count, "Always 1; the labels say which state the GPU is in and why.");
    GPU_OBSERVED = last(653, "gpufleet_server_gpu_observed", Node, Unit::Count, "One while the GPU is measured and answers, 0 while nothing is known of it.");
    GPU_HELD = last(654, "gpufleet_server_gpu_held", Node, Unit::Count, "One while someone holds the GPU, 0 while nobody does; absent while that is not known.");
    GPU_LAST_SAMPLE_AGE = last(655, "gpufleet_server_gpu_last_sample_age_seconds", Node, Unit::Seconds, "Age of the newest sample of the GPU.");
    GPU_IDENTITY = last(656, "gpufleet_server_gpu_identity", Node, Unit::Count, "Always 1; the labels say what the GPU is: index, model, reader.");
    GPUS_LEFT_OUT = last(657, "gpufleet_server_gpus_left_out", Node, Unit::Count, "GPUs without series here, by reason: too many, or a name too long for a label.");
    STEPS_LEFT_OUT = counter(658, "gpufleet_server_steps_left_out_total", Node, Unit::Count, "Steps of training runs that were taken in and not stored, by reason (run_unknown: nobody knows their run; too_many: their rank told more in ten minutes than is kept).");
}
