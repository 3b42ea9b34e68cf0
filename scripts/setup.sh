#!/usr/bin/env bash
# Installs what is missing on a Debian machine, and says what.
#
#   scripts/setup.sh build    what `make up` needs: a C compiler, curl
#   scripts/setup.sh test     the real components that the tests run against
#   scripts/setup.sh hooks    Debian's PyTorch, for the tests of the hooks
#
# Run as root or as somebody who may sudo. Installs nothing that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/later.sh
. scripts/later.sh

want_build() {
    need gcc gcc
    # gcc only recommends the C library's headers, and nothing links without them.
    [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
    need make make
    need curl curl
}

want_test() {
    want_build
    need prometheus prometheus
    need promtool prometheus
    need amtool prometheus-alertmanager
    need chromium chromium
    need chromedriver chromium-driver
    need faketime faketime
    need python3 python3
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing+=(postgresql)
    # Debian splits venv off python3; a Python from elsewhere brings its own.
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
}

# Debian's Python and nobody else's: its torch is built for it.
want_hooks() {
    want_build
    [ -e /usr/lib/python3/dist-packages/torch ] || missing+=(python3-torch)
    /usr/bin/python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3 python3-venv)
}

# need COMMAND PACKAGE
need() {
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

install_missing() {
    if [ ${#missing[@]} -eq 0 ]; then
        echo "setup: every Debian package that is needed is there"
        return
    fi
    local packages=()
    mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: please install: ${packages[*]} (no apt-get on this machine)" >&2
        exit 1
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "setup: run as root, once: apt-get install -y ${packages[*]}" >&2
            exit 1
        }
        as_root=(sudo)
    fi
    echo "setup: installing with apt-get: ${packages[*]}"
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get install -y -q --no-install-recommends "${packages[@]}")
    forbid_starting_services "${as_root[@]}"
    "${install[@]}" || {
        echo "setup: refreshing the package lists"
        "${as_root[@]}" apt-get update -q
        "${install[@]}"
    }
    allow_starting_services "${as_root[@]}"
}

# Debian starts a server when it installs one, unless /usr/sbin/policy-rc.d says no. The tests start
# their own on free ports, so nothing is to run on the user's machine for them. A policy that is
# there already is the user's, and stays.
policy=/usr/sbin/policy-rc.d
policy_is_ours=no

forbid_starting_services() { # SUDO...
    [ -e "$policy" ] && return
    printf '#!/bin/sh\nexit 101\n' | "$@" tee "$policy" >/dev/null
    "$@" chmod 755 "$policy"
    policy_is_ours=yes
    # shellcheck disable=SC2064 # what is sudo now is meant, not later
    trap "$* rm -f $policy" EXIT
}

allow_starting_services() { # SUDO...
    [ "$policy_is_ours" = yes ] || return 0
    "$@" rm -f "$policy"
    trap - EXIT
}

# The OpenTelemetry SDK of Python, as a foreign sender: in a folder of our own, not in the system.
install_python() {
    local venv=target/test-python
    if "$venv/bin/python" -c 'import opentelemetry.sdk, opentelemetry.exporter.otlp.proto.grpc, opentelemetry.exporter.otlp.proto.http' >/dev/null 2>&1; then
        echo "setup: Python's opentelemetry SDK is there ($venv)"
        return
    fi
    echo "setup: installing Python's opentelemetry SDK into $venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -r scripts/test-requirements.txt
}

# later SUITE PROGRAM...: programs of a later Debian's packages of the same names, into target/tools.
later() {
    local suite=$1 tools=target/tools home program fetched=yes
    shift
    for program in "$@"; do [ -x "$tools/$program" ] || fetched=no; done
    if [ $fetched = yes ]; then
        echo "setup: $* of Debian $suite: there ($tools)"
        return
    fi
    echo "setup: fetching $* of Debian $suite into $tools"
    home=$PWD/$tools/$suite
    unpack_later "$suite" "$home" "$@" || return
    for program in "$@"; do cp "$home/files/usr/bin/$program" "$tools/$program"; done
    rm -rf "$home"
}

# VictoriaMetrics takes OTLP from 1.92 on, and Debian 12 has 1.79. The rules are to hold for Prometheus 3 as
# well, which only Debian's unstable branch has: what comes from there may be away for a while, and then
# the tests say what they did not run.
install_later() {
    later trixie victoria-metrics || {
        echo "setup: VictoriaMetrics could not be fetched: is Debian's mirror reachable?" >&2
        exit 1
    }
    later sid promtool ||
        echo "setup: the promtool of Prometheus 3 could not be fetched: what is tested with it is NOT RUN"
    install_promtool_2_42
}

# The oldest Prometheus that the rules are for is Debian 12's; on a later Debian it is fetched.
install_promtool_2_42() {
    local tools=target/tools home
    if { promtool --version 2>&1 || true; } | grep -q 'version 2\.42\.'; then
        echo "setup: promtool 2.42 is this Debian's own"
        return
    fi
    if [ -x "$tools/promtool-2.42" ]; then
        echo "setup: promtool 2.42 is there ($tools)"
        return
    fi
    echo "setup: fetching the promtool of Debian bookworm into $tools"
    home=$PWD/$tools/bookworm
    unpack_later bookworm "$home" prometheus && cp "$home/files/usr/bin/promtool" "$tools/promtool-2.42" ||
        echo "setup: promtool 2.42 could not be fetched: what is tested with it is NOT RUN"
    rm -rf "$home"
}

# axe-core, which looks in Chromium whether pages can be used by everybody: one file of its package. npm only
# fetches it; no Node runs in a test. The sum is the registry's own, so that a mirror gives the same.
axe_version=4.14.1
axe_sum=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5

install_axe() {
    local tools=target/tools home
    if grep -qs "^/\*! axe v$axe_version\$" "$tools/axe.min.js"; then
        echo "setup: axe-core $axe_version is there ($tools)"
        return
    fi
    echo "setup: fetching axe-core $axe_version into $tools"
    rm -f "$tools/axe.min.js"
    home=$PWD/$tools/axe
    rm -rf "$home"
    mkdir -p "$home"
    fetch_axe "$home" && mv "$home/package/axe.min.js" "$tools/" ||
        echo "setup: axe-core could not be fetched (it takes npm): whether pages can be used by everybody is NOT RUN"
    rm -rf "$home"
}

fetch_axe() { # FOLDER
    local package=axe-core-$axe_version.tgz
    npm pack --silent --pack-destination "$1" "axe-core@$axe_version" >/dev/null &&
        echo "$axe_sum  $1/$package" | sha512sum --check --quiet &&
        tar -xzf "$1/$package" -C "$1" package/axe.min.js
}

missing=()
case "${1:-}" in
build)
    want_build
    install_missing
    ;;
test)
    want_test
    install_missing
    install_later
    install_axe
    install_python
    ;;
hooks)
    want_hooks
    install_missing
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust with rustup, then run this again" >&2
    exit 1
fi
