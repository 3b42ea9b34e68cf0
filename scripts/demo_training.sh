#!/usr/bin/env bash
# Real training on this machine's CPU under the server and agent of `make up`: PyTorch, some ranks
# over gloo, told by gpufleet's hooks. Prints where its page is, and runs until Ctrl-C.
#
#   scripts/demo_training.sh                                   three ranks
#   scripts/demo_training.sh --slow-rank 1                     one of them works longer
#   scripts/demo_training.sh --kill-rank 2 --kill-at-step 300  one kills itself
#   scripts/demo_training.sh --ranks 2 --steps 500             --ranks stands first
#
# Every other option is one of scripts/demo_training.py, which lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

ranks=3
if [ "${1:-}" = --ranks ]; then
    ranks=$2
    shift 2
fi
python=target/hooks/python/bin/python
workers=()

say() {
    echo "demo-training: $*"
}

# A port that nobody has, for torch's meeting point.
free_port() {
    "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

stop_ranks() {
    trap - EXIT INT TERM
    # kill fails where ranks have ended by themselves, as they do when one was killed: the rest is stopped.
    [ ${#workers[@]} -eq 0 ] || kill -TERM "${workers[@]}" 2>/dev/null || true
    wait
}

# start_rank RANK ARGUMENT...
start_rank() {
    local rank=$1
    shift
    env RANK="$rank" WORLD_SIZE="$ranks" LOCAL_RANK="$rank" LOCAL_WORLD_SIZE="$ranks" \
        MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
        GPUFLEET_JOB_NAMESPACE=demo GPUFLEET_JOB_NAME=demo-training GPUFLEET_JOB_UID="$job" GPUFLEET_ATTEMPT=0 \
        GPUFLEET_HOOKS_SOCKET="$hooks/hooks.sock" \
        "$python" scripts/demo_training.py --folder "$home" "$@" >>"$logs/training.log" 2>&1 &
    workers+=("$!")
}

# Where the server shows the job, from its list of jobs; nothing while that does not have it.
address_of_job() {
    "$python" -c "
import json, sys, urllib.parse
jobs = json.load(sys.stdin)['items']
ids = [job['job'] for job in jobs if job['job'].endswith('/$job')]
print('clusters/local/jobs/' + urllib.parse.quote(ids[0], safe='') if ids else '')"
}

# The page of the job, once the server has heard of it.
page() {
    local waited=0 jobs found
    while [ "$waited" -lt 60 ]; do
        # A server that is being restarted is asked again.
        if jobs=$(curl -sSf --max-time 5 "${address}api/v1/jobs?cluster=local" 2>>"$logs/training.log"); then
            found=$(address_of_job <<<"$jobs")
            if [ -n "$found" ]; then
                say "its page: $address$found"
                return
            fi
        fi
        sleep 1
        waited=$((waited + 1))
    done
    say "the server has not heard of it after 60 s; see $logs/training.log and $logs/agent.log" >&2
    exit 1
}

case " $* " in *" --help "*)
    sed -n '2,11s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
if ! runs server || ! runs agent; then
    say "server and agent do not run here yet: starting them as make up does"
    scripts/up.sh
fi
say "installing Debian's PyTorch and building the wheel, where they are not there"
scripts/hooks.sh install
address=$(cat "$run/address")
job=$(date +%s)
port=$(free_port)
trap stop_ranks EXIT
trap 'exit 130' INT TERM
for rank in $(seq 0 $((ranks - 1))); do start_rank "$rank" "$@"; done
say "$ranks ranks train; what they print is in $logs/training.log"
page
say "Ctrl-C ends it"
wait
