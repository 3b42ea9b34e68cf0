#!/usr/bin/env bash
# Gives the API what nobody would ask for: schemathesis makes requests from the API's own description, good and
# bad ones, to a server of its own with the demo fleet. Fails where an answer is an error of the server, has
# a status or a shape that is not described, or takes longer than 10 s.
#
#   scripts/schemathesis.sh [REQUESTS OF AN OPERATION] [SEED]
#
# Installs schemathesis into target/schemathesis, as scripts/schemathesis-requirements.txt has it.
set -euo pipefail
cd "$(dirname "$0")/.."

requests=${1:-200}
seed=${2:-1}
venv=target/schemathesis
wanted=scripts/schemathesis-requirements.txt
if ! cmp -s "$wanted" "$venv/installed.txt"; then
    echo "schemathesis: installing it into $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/installed.txt"
fi

cargo build --workspace --bins
GPUFLEET_PROGRAMS=target/debug
GPUFLEET_HOME=$(mktemp -d)/gpufleet
GPUFLEET_HISTORY_HOURS=2
export GPUFLEET_PROGRAMS GPUFLEET_HOME GPUFLEET_HISTORY_HOURS
trap 'scripts/down.sh >/dev/null; rm -rf "$(dirname "$GPUFLEET_HOME")"' EXIT
scripts/up.sh
address=$(cat "$GPUFLEET_HOME/run/address")
echo "schemathesis: waiting until the demo fleet has its jobs and an incident"
for _ in $(seq 600); do
    [[ $(curl -s "${address}api/v1/jobs") == *llama-70b* ]] && break
    sleep 0.2
done
scripts/demo_fault.sh xid79

"$venv/bin/schemathesis" run "${address}api/v1/openapi.json" --no-color --seed "$seed" \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples "$requests" --max-response-time 10 --request-timeout 30 \
    --generation-database none --continue-on-failure
grep -c '' "$GPUFLEET_HOME/logs/server.log" | sed 's/^/schemathesis: lines in the log of the server: /'
! grep -E 'panicked| ERROR ' "$GPUFLEET_HOME/logs/server.log"
