#!/usr/bin/env bash
# Puts what tests/gpu/run.sh needs into target/gpu-pack.tar.gz: the agent (release, stripped), the package
# of the hooks, the plugin for NCCL, the suite. At most 64 MiB, so that it can be carried anywhere.
set -euo pipefail
cd "$(dirname "$0")/../.."

MOST_BYTES=$((64 << 20))
into=target/gpu-pack
rm -rf "$into"
mkdir -p "$into/bin" "$into/lib" "$into/wheels" "$into/docs" "$into/tests"
cargo build --release -p gpufleet-agent
install -s -m 755 target/release/gpufleet-agent "$into/bin/"
cargo build --profile plugin -p gpufleet-nccl-profiler
install -m 755 target/plugin/libgpufleet_nccl_profiler.so "$into/lib/libgpufleet-nccl-profiler.so"
scripts/hooks.sh wheel
python3 -m zipfile -e "$(ls -t target/wheels/*.whl | head -n 1)" "$into/wheels"
cp docs/metrics.md "$into/docs/"
cp -r tests/gpu "$into/tests/"
tar -C target -czf target/gpu-pack.tar.gz gpu-pack
bytes=$(stat -c %s target/gpu-pack.tar.gz)
echo "target/gpu-pack.tar.gz: $((bytes >> 20)) MiB"
[ "$bytes" -le "$MOST_BYTES" ] || { echo "over $((MOST_BYTES >> 20)) MiB" >&2; exit 1; }
