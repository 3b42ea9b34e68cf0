#!/usr/bin/env bash
# Breaks something in the demo fleet of `make up`, and says what.
#
#   scripts/demo_fault.sh [xid79|lost|hang|stall|thermal|slow|lowclock|slowlink|wrongnet|heal]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

fault="${1:-xid79}"
if ! runs simulator; then
    echo "demo-fault: the demo fleet does not run; start it with: make up" >&2
    exit 1
fi
curl -sS -X POST "http://$(cat "$run/simulator.address")/fault/$fault"
echo
