#!/usr/bin/env bash
# Makes target/package/gpufleet_VERSION_ARCH.deb and gpufleet-VERSION-ARCH.tar.gz of agent, server and client.
#
#   scripts/package.sh                 builds the release first (minutes)
#   scripts/package.sh --from FOLDER   takes the programs that are in FOLDER
#   scripts/package.sh --into FOLDER   puts the packages there
#
# The programs are refused when they need a newer C library than GLIBC_FLOOR: they would not start
# on the oldest machines that are to run them. The default is Debian 12's.
set -euo pipefail
cd "$(dirname "$0")/.."

floor=${GLIBC_FLOOR:-2.36}
programs=(gpufleet gpufleet-agent gpufleet-server)
from=
into=target/package
while [ $# -gt 0 ]; do
    case $1 in
    --from) from=$2 ;;
    --into) into=$2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
    shift 2
done

version=$(awk -F'"' '/^version = / {print $2; exit}' Cargo.toml)
arch=$(dpkg --print-architecture)
if [ -z "$from" ]; then
    cargo build --release --locked -p gpufleet-agent -p gpufleet-server -p gpufleet-cli \
        --bin gpufleet-agent --bin gpufleet-server --bin gpufleet
    from=target/release
fi

# needed_glibc FILE: the newest version of the C library that it asks for.
needed_glibc() {
    readelf --version-info --wide "$1" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -Vu | tail -1
}

newest=0
for program in "${programs[@]}"; do
    needs=$(needed_glibc "$from/$program")
    echo "package: $program needs glibc $needs (floor $floor)"
    if [ "$(printf '%s\n' "$needs" "$floor" | sort -V | tail -1)" != "$floor" ]; then
        echo "package: $program needs a newer C library than $floor: build on an older system" >&2
        exit 1
    fi
    newest=$(printf '%s\n' "$needs" "$newest" | sort -V | tail -1)
done

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
for program in "${programs[@]}"; do
    install -D -m 755 "$from/$program" "$tree/usr/bin/$program"
    strip --strip-debug "$tree/usr/bin/$program"
done
for side in agent server; do
    unit=gpufleet-$side.service
    install -D -m 644 "deploy/systemd/$unit" "$tree/lib/systemd/system/$unit"
done
install -D -m 644 deploy/systemd/gpufleet.sysusers "$tree/usr/lib/sysusers.d/gpufleet.conf"
install -D -m 755 -t "$tree/usr/share/gpufleet/slurm" deploy/slurm/prolog.sh deploy/slurm/epilog.sh deploy/slurm/probe.sh
install -D -m 644 -t "$tree/usr/share/gpufleet/alerts" alerts/kinds.toml alerts/alertmanager.yml alerts/prometheus.yml
install -D -m 644 -t "$tree/usr/share/gpufleet/alerts/rules" alerts/rules/*.yml
install -D -m 644 -t "$tree/usr/share/doc/gpufleet" docs/*.md docs/*.toml
install -D -m 644 -t "$tree/usr/share/doc/gpufleet/runbooks" docs/runbooks/*.md
install -D -m 644 -t "$tree/usr/share/doc/gpufleet" LICENSE
scripts/notices.sh >"$tree/usr/share/doc/gpufleet/THIRD-PARTY"
cat >"$tree/usr/share/doc/gpufleet/copyright" <<'COPYRIGHT'
gpufleet is under the Apache License 2.0: LICENSE in this folder, as /usr/share/common-licenses/Apache-2.0.
The crates of others that are in its programs are in THIRD-PARTY, with the texts of their licences.
COPYRIGHT
chmod 644 "$tree/usr/share/doc/gpufleet/THIRD-PARTY" "$tree/usr/share/doc/gpufleet/copyright"
for side in agent server; do
    install -D -m 640 "docs/$side.toml" "$tree/etc/gpufleet/$side.toml"
done

mkdir -p "$into"
name="gpufleet-$version-$arch"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$tree" \
    --transform "s,^\.,$name," -czf "$into/$name.tar.gz" .

mkdir "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: gpufleet
Version: $version
Architecture: $arch
Maintainer: gpufleet <gpufleet@gpufleet.example.org>
Section: admin
Priority: optional
Depends: libc6 (>= $newest), libgcc-s1
Recommends: ca-certificates
Description: GPU fleet telemetry: agent, server and client
 Tells what every GPU of a fleet did, second by second, for whom, and where the
 time went. The NVIDIA driver is not needed to install it.
CONTROL
printf '/etc/gpufleet/%s.toml\n' agent server >"$tree/DEBIAN/conffiles"
# What Debian's helpers write for a service that its owner enables. DPKG_ROOT is dpkg's own: the machine in a folder.
cat >"$tree/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
# The account, and the right of both programs to read their configs. Nothing is started: which of the
# two a machine runs is its owner's choice.
set -e
if [ "$1" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers /usr/lib/sysusers.d/gpufleet.conf
    elif ! getent passwd gpufleet >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/gpufleet --shell /usr/sbin/nologin gpufleet
    fi
    chown root:gpufleet "${DPKG_ROOT:-}/etc/gpufleet/agent.toml" "${DPKG_ROOT:-}/etc/gpufleet/server.toml"
    if [ -d "${DPKG_ROOT:-}/run/systemd/system" ]; then
        systemctl daemon-reload || :
        for unit in gpufleet-agent gpufleet-server; do
            # What a program does not accept of its config is for its owner to mend, and no reason for a package that is
            # half installed.
            systemctl try-restart "$unit" ||
                echo "gpufleet: $unit did not start again: journalctl -u $unit says why" >&2
        done
    fi
fi
POSTINST
cat >"$tree/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    if [ -d "${DPKG_ROOT:-}/run/systemd/system" ]; then
        systemctl stop gpufleet-agent gpufleet-server || :
    fi
    # While the units are still there, which say what enabling them made; it needs no systemd that runs.
    if command -v systemctl >/dev/null; then
        systemctl --quiet disable gpufleet-agent gpufleet-server || :
    fi
fi
PRERM
cat >"$tree/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
# What was measured stays in /var/lib/gpufleet, also when the package is purged.
set -e
if [ "$1" = remove ] && [ -d "${DPKG_ROOT:-}/run/systemd/system" ]; then
    systemctl daemon-reload || :
fi
POSTRM
chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm" "$tree/DEBIAN/postrm"
dpkg-deb --root-owner-group -Zgzip --build "$tree" "$into/gpufleet_${version}_$arch.deb" >/dev/null
echo "package: $into/gpufleet_${version}_$arch.deb, $into/$name.tar.gz"
