#!/usr/bin/env bash
# Takes the pictures of README.md anew: docs/today.png, fleet.png and job.png, of the demo fleet of `make up` four minutes
# after one of its GPUs became slow. Needs Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

if [ ! -f "$run/address" ]; then
    echo "pictures: the demo fleet does not run; start it with: make up" >&2
    exit 1
fi
address=$(cat "$run/address")
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT

# picture NAME HEIGHT PATH
picture() {
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" \
        --window-size="1280,$2" --screenshot="docs/$1.png" "${address%/}$3" 2>/dev/null
}

scripts/demo_fault.sh slow
sleep 240
picture today 1300 /
picture fleet 900 /fleet
picture job 1500 '/find?q=llama-70b-pretrain'
