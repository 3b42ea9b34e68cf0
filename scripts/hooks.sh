#!/usr/bin/env bash
# Builds the Python package of the hooks and runs it on real PyTorch.
#
#   scripts/hooks.sh setup      Debian's torch and a folder with maturin: target/hooks/python
#   scripts/hooks.sh install    the same and the package in it, as it is now
#   scripts/hooks.sh test       lints, the wheel, its tests
#   scripts/hooks.sh bench      what it costs
#   scripts/hooks.sh wheel      a release wheel in target/wheels
#   scripts/hooks.sh adapters   the tests with PyPI's torch, Transformers, Lightning, Accelerate, DeepSpeed
#                               and JAX (4 GB, minutes); GPUFLEET_ADAPTERS names a folder with some of them
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="$PWD/target/hooks"
venv=target/hooks/python
crate=hooks/python

# Debian's Python, because Debian's torch is built for it.
setup() {
    scripts/setup.sh hooks
    [ -x "$venv/bin/maturin" ] && return
    /usr/bin/python3 -m venv --system-site-packages "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check 'maturin>=1.7,<2'
}

# build PROFILE: a wheel in target/hooks/wheels, installed into the folder.
build() {
    rm -f target/hooks/wheels/*.whl
    "$venv/bin/maturin" build --locked --profile "$1" -m "$crate/Cargo.toml" -i "$venv/bin/python" -o target/hooks/wheels
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-index --force-reinstall \
        target/hooks/wheels/*.whl
}

# What the probe meets instead of CUDA's driver. Beside the wheel: built alone it has other features of its dependencies
# than with the workspace, and in target/ each of the two would have the other, and all that needs it, built anew.
# `make test` has built it and names it.
standin() {
    [ -n "${GPUFLEET_STANDIN_CUDA:-}" ] && return
    cargo build -q --locked --profile fast -p gpufleet-standin-cuda
    export GPUFLEET_STANDIN_CUDA="$CARGO_TARGET_DIR/fast/libgpufleet_standin_cuda.so"
}

# Whatever is tested is what was installed: no test finds the package in the source tree.
tests() { # PYTHON FOLDER
    PYTHONPATH="$crate/tests" "$1" -m unittest discover -s "$2" -t "$2"
}

case "${1:-}" in
setup)
    setup
    ;;
install)
    setup
    build fast
    ;;
test)
    cargo fmt --manifest-path "$crate/Cargo.toml" --check
    # The profile of the wheel, so that what both need is checked once.
    cargo clippy --manifest-path "$crate/Cargo.toml" --locked --profile fast -- -D warnings
    build fast
    standin
    tests "$venv/bin/python" "$crate/tests"
    ;;
bench)
    setup
    build release
    "$venv/bin/python" "$crate/benches/bench.py"
    ;;
wheel)
    setup
    "$venv/bin/maturin" build --locked --release -m "$crate/Cargo.toml" -i "$venv/bin/python" -o target/wheels
    ;;
adapters)
    setup
    build fast
    newest=${GPUFLEET_ADAPTERS:-target/hooks/newest}
    [ -x "$newest/bin/python" ] || python3 -m venv "$newest"
    "$newest/bin/python" -m pip install -q --disable-pip-version-check torch transformers accelerate lightning jax setuptools
    # Its set-up looks at the torch that is there; what it would compile it compiles when it is used.
    DS_BUILD_OPS=0 "$newest/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation deepspeed
    "$newest/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-index --force-reinstall \
        target/hooks/wheels/*.whl
    "$newest/bin/python" -c '
from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in
        ("torch", "transformers", "lightning", "accelerate", "deepspeed", "jax")), sep=", ")'
    standin
    tests "$newest/bin/python" "$crate/tests"
    tests "$newest/bin/python" "$crate/tests/adapters"
    ;;
*)
    sed -n '4,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
