#!/usr/bin/env bash
# Real training on this machine's CPU under the server and agent of `make up`: PyTorch, some ranks
# over gloo, told by gpufleet's hooks. Prints where its page is, and runs until Ctrl-C.
#
#   scripts/demo_training.sh                                   three ranks
#   scripts/demo_training.sh --slow-rank 1                     one of them waits longer for its data
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

say() {
    echo "demo-training: $*"
}

# A port that nobody has, for torch's meeting point; none of those that the system gives to who connects, because torch
# takes it seconds later.
free_port() {
    "$python" -c '
import contextlib, random, socket
while True:
    port = random.randrange(12_000, 32_000)
    with socket.socket() as attempt, contextlib.suppress(OSError):
        attempt.bind(("127.0.0.1", port))
        print(port)
        break'
}

# bash knows each of them from the moment it starts it. Some may have ended by themselves, as they do when one was killed.
stop_ranks() {
    trap - EXIT INT TERM
    local rank
    for rank in $(jobs -p); do kill -TERM "$rank" 2>/dev/null || true; done
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
}

# Where the server shows the job, from its list of jobs; nothing while that does not have it.
address_of_job() {
    "$python" -c "
import json, sys, urllib.parse
jobs = json.load(sys.stdin)['items']
ids = [job['job'] for job in jobs if job['job'].endswith('/$job')]
print('clusters/local/jobs/' + urllib.parse.quote(ids[0], safe='') if ids else '')"
}

# The page of the job, once the server has heard of it. Importing torch takes many seconds on a busy machine; of ranks
# that have ended nothing more comes after a while.
page() {
    local waited=0 ended=0 jobs found
    while [ "$waited" -lt 300 ] && [ "$ended" -lt 30 ]; do
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
        [ -n "$(jobs -rp)" ] || ended=$((ended + 1))
    done
    say "the server has not heard of it after $waited s; see $logs/agent.log and the last lines of $logs/training.log:" >&2
    tail -n 15 "$logs/training.log" >&2
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
# Who has built the programs has the package as well.
if [ -z "${GPUFLEET_PROGRAMS:-}" ] || [ ! -x "$python" ]; then
    say "installing Debian's PyTorch and building the wheel, where they are not there"
    scripts/hooks.sh install
fi
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
say "its ranks have ended; its page says why"
