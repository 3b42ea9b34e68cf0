#!/usr/bin/env bash
# Runs the harness of the profiler plugin for NCCL under AddressSanitizer, leaks included, in target/asan (minutes). Where
# the toolchain has no runtime of it for this machine, it says NOT RUN.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
folder=$(rustc --print target-libdir --target "$host")
if ! compgen -G "$folder/librustc-*_rt.asan.a" >/dev/null; then
    echo "NOT RUN: the plugin's harness under AddressSanitizer: the toolchain has no runtime of it in $folder"
    exit
fi
# The runtime comes with the toolchain, its switch counts as unstable. The plugin takes what it calls of it from the
# program, which so has to offer its symbols.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Clink-arg=-rdynamic" CARGO_TARGET_DIR=target/asan
exec cargo test -p gpufleet-nccl-profiler --target "$host" --test harness
