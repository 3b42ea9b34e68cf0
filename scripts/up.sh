#!/usr/bin/env bash
# Builds gpufleet and starts it on this machine: server on SQLite, agent, and where there is no GPU
# a simulated fleet. Run it again at any time: it stops what runs, keeps the data, starts anew.
#
#   GPUFLEET_WEB_PORT, GPUFLEET_GRPC_PORT, GPUFLEET_HTTP_PORT, GPUFLEET_AGENT_PORT, GPUFLEET_CONTROL_PORT
#       ports to begin looking from (8080, 4317, 4318, 9410; 9430 where the demo fleet takes faults)
#   GPUFLEET_CAPTURE         the capture that is played back; none is none
#   GPUFLEET_HISTORY_HOURS   of the demo fleet (24)
#   GPUFLEET_HOME, GPUFLEET_PROGRAMS   as in common.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

say() {
    echo "up: $*"
}

# next_port WANTED: the first free port from it on.
next_port() {
    local port=$1
    while port_is_taken "$port" || [[ " ${taken[*]} " == *" $port "* ]]; do port=$((port + 1)); done
    taken+=("$port")
    [ "$port" = "$1" ] || say "port $1 is taken: using $port" >&2
    chosen=$port
}

announce() {
    say "this builds the server and the agent (about 5 minutes the first time on 2 cores,"
    say "seconds afterwards) and starts them on 127.0.0.1. It installs a C compiler and curl if"
    say "they are missing, and nothing else. Everything it makes is in $home and"
    say "$here/target; \`make down\` stops it and removes $home."
}

build() {
    [ -z "${GPUFLEET_PROGRAMS:-}" ] || return 0
    cargo build --profile fast -p gpufleet-server -p gpufleet-agent -p gpufleet-cli -p gpufleet-tests \
        --bin gpufleet-server --bin gpufleet-agent --bin gpufleet --bin gpufleet-simulator
}

has_gpu() {
    [ -e /dev/nvidia0 ] || [ -e /dev/nvidiactl ]
}

# The capture of a real H200 under load, where the machine has it: played back beside the live
# readings by the same agent, in a cluster of its own.
capture=${GPUFLEET_CAPTURE:-../shared/data/real/nvidia_gpu_exporter/linux-x86_64__nvidia-h200__590.48.01__load.metrics.gz}

recorded_section() {
    [ -f "$capture" ] || return 0
    cat <<TOML
[recorded]
files = ["$(realpath "$capture")"]
node = "h200-capture"
cluster = "recorded"
repeat = true
TOML
}

# Where training processes of this machine find the agent: `make demo-training` does.
hooks_section() {
    local socket=$hooks/hooks.sock
    if [ ${#socket} -gt 107 ]; then
        say "$socket is too long a name for a socket: no training process is heard; use a shorter folder" >&2
        return
    fi
    cat <<TOML
[hooks]
socket_path = "$socket"
TOML
}

start_agent() {
    cat >"$home/agent.toml" <<TOML
[node]
cluster = "local"
name = "$(hostname)"
state_folder = "$home/agent"

[listen]
address = "127.0.0.1:$agent_port"

[ship]
endpoint = "http://127.0.0.1:$grpc_port"

$(hooks_section)

$(recorded_section)
TOML
    start agent "$programs/gpufleet-agent" --config "$home/agent.toml"
    answers agent "http://127.0.0.1:$agent_port/"
    if grep -q '^\[recorded\]' "$home/agent.toml"; then
        shown+=("a real H200 as it was captured (RECORDED)")
    else
        say "no capture of a real H200 is here ($capture): none is shown"
    fi
}

# What `make demo-training` computes on has a price too: about what a cloud takes for a CPU core.
start_server() {
    start server "$programs/gpufleet-server" \
        --set "web.listen=127.0.0.1:$web_port" \
        --set "ingest.grpc_listen=127.0.0.1:$grpc_port" \
        --set "ingest.http_listen=127.0.0.1:$http_port" \
        --set "ingest.spool_dir=$home/server-spool" \
        --set "detect.gpu_hour_usd={ 'local/CPU' = '0.05' }" \
        --set "store.url=sqlite:$home/server.db"
    answers server "http://127.0.0.1:$web_port/api/v1/health"
}

start_simulator() {
    next_port "${GPUFLEET_CONTROL_PORT:-9430}"
    local hours=${GPUFLEET_HISTORY_HOURS:-24}
    start simulator "$programs/gpufleet-simulator" \
        --endpoint "http://127.0.0.1:$grpc_port" --history-hours "$hours" \
        --state "$home/simulator" --control "127.0.0.1:$chosen"
    echo "127.0.0.1:$chosen" >"$run/simulator.address"
    shown+=("the demo fleet: 64 GPUs, $hours h of history, a training job (SIMULATED); the history fills in within a minute")
}

# Whatever ends this script before everything runs (a key, a port, a full disk): nothing of it is
# left running. Its own children are stopped by id too: one may not have its pid file yet.
not_started() {
    trap - EXIT INT TERM
    set +e
    say "not started; stopping what was" >&2
    stop_all
    local child
    for child in $(jobs -p); do kill -KILL -- "-$child" 2>/dev/null || kill -KILL "$child" 2>/dev/null; done
    rm -rf "$run"
}

if ! is_made && ! is_empty; then
    say "$home has other things in it, and make down would remove them: choose an empty folder" >&2
    exit 1
fi
announce
scripts/setup.sh build
build
one_at_a_time
touch "$marker"
mkdir -p "$run" "$logs" "$hooks"
trap not_started EXIT
trap 'exit 130' INT TERM
stop_all
taken=()
shown=("this machine, live: node $(hostname)")
next_port "${GPUFLEET_WEB_PORT:-8080}" && web_port=$chosen
next_port "${GPUFLEET_GRPC_PORT:-4317}" && grpc_port=$chosen
next_port "${GPUFLEET_HTTP_PORT:-4318}" && http_port=$chosen
next_port "${GPUFLEET_AGENT_PORT:-9410}" && agent_port=$chosen
start_server
start_agent
if has_gpu; then
    say "a GPU is there: the demo fleet stays off"
else
    start_simulator
fi
# The simulator makes its history before it answers: that it is not gone after a second is all that
# can be said of it now.
sleep 1
for name in server agent simulator; do
    [ ! -f "$run/$name.pid" ] || must_run "$name"
done
echo "http://127.0.0.1:$web_port/" >"$run/address"
trap - EXIT INT TERM
echo
say "open http://127.0.0.1:$web_port/ and see:"
for line in "${shown[@]}"; do say "  - $line"; done
say "agents ship to 127.0.0.1:$grpc_port (OTLP/gRPC); any OTLP sender to 127.0.0.1:$http_port too"
say "this node's metrics for Prometheus: http://127.0.0.1:$agent_port/metrics"
has_gpu || say "break something: make demo-fault FAULT=xid79 (or lost, hang, stall, thermal, slow, lowclock, slowlink, wrongnet, heal)"
say "at the prompt: $programs/gpufleet --server http://127.0.0.1:$web_port status (or gpus --idle, jobs)"
say "logs: $logs; stop and remove all of it: make down"
