#!/usr/bin/env bash
# Stops what `make up` started and removes its data. Leaves the build in target/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

if [ ! -d "$home" ]; then
    echo "down: nothing to stop: there is no $home here"
    exit 0
fi
one_at_a_time
stop_all
rm -rf "$home"
echo "down: everything is stopped and $home is removed"
