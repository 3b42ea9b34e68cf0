#!/usr/bin/env bash
# Puts what tests/gpu/run.sh needs into target/gpu-pack.tar.gz: the agent (release, stripped), the package
# of the hooks, the plugin for NCCL, the suite. At most 64 MiB, so that it can be carried anywhere.
#
#   tests/gpu/pack.sh                                builds all of it and packs it
#   tests/gpu/pack.sh lay INTO AGENT PLUGIN WHEEL    only puts what was built where the suite looks for it; - is none
set -euo pipefail
given=()
for it in "$@"; do
    # Relative to where it was called.
    [[ $it == lay || $it == - ]] || it=$(realpath -m "$it")
    given+=("$it")
done
set -- "${given[@]}"
cd "$(dirname "$0")/../.."

MOST_BYTES=$((64 << 20))

lay() { # INTO AGENT PLUGIN WHEEL
    mkdir -p "$1/bin" "$1/lib" "$1/docs" "$1/tests"
    cp --reflink=auto "$2" "$1/bin/gpufleet-agent"
    [ "$3" = - ] || install -m 755 "$3" "$1/lib/libgpufleet-nccl-profiler.so"
    [ "$4" = - ] || python3 -m zipfile -e "$4" "$1/wheels"
    cp docs/metrics.md "$1/docs/"
    cp -r tests/gpu "$1/tests/"
}

if [ "${1:-}" = lay ]; then
    shift
    lay "$@"
    exit
fi
cargo build --release -p gpufleet-agent
cargo build --profile plugin -p gpufleet-nccl-profiler
scripts/hooks.sh wheel
into=target/gpu-pack
rm -rf "$into"
lay "$into" target/release/gpufleet-agent target/plugin/libgpufleet_nccl_profiler.so "$(ls -t target/wheels/*.whl | head -n 1)"
strip "$into/bin/gpufleet-agent"
tar -C target -czf target/gpu-pack.tar.gz gpu-pack
bytes=$(stat -c %s target/gpu-pack.tar.gz)
echo "target/gpu-pack.tar.gz: $((bytes >> 20)) MiB"
[ "$bytes" -le "$MOST_BYTES" ] || { echo "over $((MOST_BYTES >> 20)) MiB" >&2; exit 1; }
