//! What is known of a model server (vLLM, SGLang, TGI, Triton): tokens, latencies, queue, cache.

use super::{Unit, counter, gauge, metrics};
use crate::identity::ResourceKind::Endpoint;

metrics! {
    PROMPT_TOKENS = counter(400, "gpufleet_serving_prompt_tokens_total", Endpoint, Unit::Count, "Prompt tokens processed.").in_minutes();
    GENERATED_TOKENS = counter(401, "gpufleet_serving_generated_tokens_total", Endpoint, Unit::Count, "Tokens generated.").in_minutes();
    REQUESTS = counter(402, "gpufleet_serving_requests_total", Endpoint, Unit::Count, "Requests finished.");
    QUEUED = gauge(403, "gpufleet_serving_requests_queued", Endpoint, Unit::Count, "Requests waiting.");
    RUNNING = gauge(404, "gpufleet_serving_requests_running", Endpoint, Unit::Count, "Requests in work.");
    CACHE_USED = gauge(405, "gpufleet_serving_kv_cache_used_ratio", Endpoint, Unit::Ratio, "Share of the KV cache in use.");
    TTFT_P50 = gauge(410, "gpufleet_serving_time_to_first_token_p50_seconds", Endpoint, Unit::Seconds, "Median time to the first token since the last reading.");
    TTFT_P99 = gauge(411, "gpufleet_serving_time_to_first_token_p99_seconds", Endpoint, Unit::Seconds, "The 99th percentile of the time to the first token since the last reading.");
    TPOT_P50 = gauge(412, "gpufleet_serving_time_per_output_token_p50_seconds", Endpoint, Unit::Seconds, "Median time per output token since the last reading.");
    TPOT_P99 = gauge(413, "gpufleet_serving_time_per_output_token_p99_seconds", Endpoint, Unit::Seconds, "The 99th percentile of the time per output token since the last reading.");
}
