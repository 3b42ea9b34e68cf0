#!/usr/bin/env bash
# Measures, and prints what docs/performance.md holds: figures with their spread.
#
#   scripts/bench.sh agent   [--short]   the agent against the stand-in driver
#   scripts/bench.sh training [--short]  the agent under 64 training processes, and 100 kills of it
#   scripts/bench.sh server  [--short]   the server under 10,000 simulated GPUs; Prometheus and
#                                        VictoriaMetrics with the same samples
#   scripts/bench.sh outage  [--short]   the server after an outage of 2 h of 1,000 agents
#   scripts/bench.sh detect  [--short]  a tick of the detectors over 100,000 GPUs (--gpus N)
#   scripts/bench.sh notify  [--short]   from an incident until its first message; a minute of trouble
#   scripts/bench.sh report  [--short]   a month of 10,000 GPUs as a report; SQLite and PostgreSQL
#   scripts/bench.sh replay              minutes of 2,000 GPUs, stored and replayed (--gpus N --minutes N)
#   scripts/bench.sh otlp                encoding and decoding alone
#   scripts/bench.sh runs                one run of 20,000 ranks: fold, judgement, page's map
#   scripts/bench.sh hooks               what a training process pays for a step record
#
# Builds with the release profile: several minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

what="${1:-}"
[ $# -gt 0 ] && shift
case "$what" in
agent | training | server | outage)
    [ "$what" = server ] && scripts/setup.sh test
    cargo build --release -p gpufleet-agent -p gpufleet-server -p gpufleet-standin-nvml -p gpufleet-tests \
        --bin gpufleet-agent --bin gpufleet-server --bin gpufleet-simulator --bin gpufleet-trainer --bin gpufleet-bench --lib \
        --features gpufleet-tests/bench
    target/release/gpufleet-bench "$what" "$@"
    ;;
detect | notify)
    cargo build --release -p gpufleet-tests --bin gpufleet-bench --features gpufleet-tests/bench
    target/release/gpufleet-bench "$what" "$@"
    ;;
report | replay)
    cargo build --release -p gpufleet-server -p gpufleet-tests --bin gpufleet-server --bin gpufleet-bench \
        --features gpufleet-tests/bench
    if [ -z "${GPUFLEET_TEST_POSTGRES:-}" ] && started="$(scripts/postgres.sh start)"; then
        eval "$started"
        trap 'scripts/postgres.sh stop' EXIT
    fi
    target/release/gpufleet-bench "$what" "$@"
    ;;
otlp)
    cargo bench -q -p gpufleet-telemetry --bench otlp
    ;;
runs)
    cargo bench -q -p gpufleet-server --bench runs
    ;;
hooks)
    cargo bench -q -p gpufleet-hooks-shm --bench step
    cargo build -q --profile plugin -p gpufleet-nccl-profiler
    cargo bench -q -p gpufleet-nccl-profiler --bench callback
    ;;
*)
    sed -n '2,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
