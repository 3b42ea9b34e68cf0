#!/usr/bin/env bash
# Installs the .deb on a Debian 12 that has nothing but its base, runs what is in it, and removes it.
#
#   scripts/try_package.sh FILE.deb
#
# Needs root and debootstrap; IMAGE_ROOT=FOLDER takes a copy of a tree that debootstrap made before.
set -euo pipefail

. "$(dirname "$0")/bare_debian.sh"

package=${1:?which package}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
if [ -n "${IMAGE_ROOT:-}" ]; then
    cp -a "$IMAGE_ROOT/." "$tree/"
else
    bare_debian "$tree"
fi
cp "$package" "$tree/package.deb"
chroot "$tree" sh -euc '
    dpkg -i /package.deb >/dev/null
    id gpufleet >/dev/null
    for program in gpufleet gpufleet-agent gpufleet-server; do "$program" --version; done
    for side in agent server; do
        test "$(stat -c %U:%G:%a /etc/gpufleet/$side.toml)" = root:gpufleet:640
        "gpufleet-$side" --check-config --config "/etc/gpufleet/$side.toml"
    done
    for text in LICENSE THIRD-PARTY copyright; do test -s "/usr/share/doc/gpufleet/$text"; done
    dpkg -r gpufleet >/dev/null
    test ! -e /usr/bin/gpufleet-agent && test -e /etc/gpufleet/agent.toml'
echo "package: $package installs on a bare Debian 12, its programs run there, and it goes"
