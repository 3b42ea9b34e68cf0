#!/usr/bin/env bash
# Stops what `make up` started and removes its data. Leaves the build in target/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

if [ ! -d "$home" ]; then
    echo "down: nothing to stop: there is no $home here"
    exit 0
fi
if ! is_made && ! is_empty; then
    echo "down: $home is not what make up made (it has no ${marker##*/}), so nothing of it is removed" >&2
    exit 1
fi
one_at_a_time
stop_all
rm -rf "$home"
echo "down: everything is stopped and $home is removed"
