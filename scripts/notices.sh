#!/usr/bin/env bash
# Prints which crates of others are in agent, server and client, one a line: name, version, licence.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo tree --locked --edges normal --prefix none --format '{p} {l}' \
    -p gpufleet-agent -p gpufleet-server -p gpufleet-cli |
    sed '/^$/d; / (\//d; s/ (\*)$//; s/ (proc-macro)//' | sort -u
