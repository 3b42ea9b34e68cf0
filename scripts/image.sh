#!/usr/bin/env bash
# Builds the container image gpufleet:VERSION by deploy/Dockerfile.
#
#   scripts/image.sh                   with docker where its engine answers, else with buildah (a package of Debian's)
#   scripts/image.sh check [FOLDER]    looks whether the Dockerfile's steps work, where no registry of images is reached:
#                                      buildah takes each of them, on base images that are made here of Debian's packages,
#                                      with the programs of FOLDER (target/release) where the first stage compiles them.
#                                      Then what is in the image is looked at and run.
#
# Base images are named as in the Dockerfile and kept nowhere. The check needs root, debootstrap and buildah;
# IMAGE_ROOT=FOLDER takes a tree that debootstrap made before.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/bare_debian.sh

version=$(awk -F'"' '/^version = / {print $2; exit}' Cargo.toml)
programs=(gpufleet gpufleet-agent gpufleet-server)
# Where the programs look for whom to trust.
authorities=/etc/ssl/certs/ca-certificates.crt

build() {
    if docker version >/dev/null 2>&1; then
        docker build -f deploy/Dockerfile -t "gpufleet:$version" .
    elif command -v buildah >/dev/null; then
        buildah bud -f deploy/Dockerfile -t "gpufleet:$version" .
    else
        echo "image: no docker engine answers, and there is no buildah (apt-get install buildah)" >&2
        exit 1
    fi
}

# ours ARGUMENTS: buildah with a storage of its own, which goes with the folder it lies in.
ours() {
    buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}

# base IMAGE TREE: makes an image of a tree, under the name that the Dockerfile has.
base() {
    local container
    container=$(ours from scratch)
    ours add --quiet "$container" "$2" / >/dev/null
    ours config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    ours commit --quiet "$container" "docker.io/library/$1" >/dev/null
    ours rm "$container" >/dev/null
}

# images: the images that the Dockerfile begins its stages with, one a line.
images() {
    awk '$1 == "FROM" {print $2}' deploy/Dockerfile
}

check() {
    local from container image program said text
    from=$(realpath "${1:-target/release}")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    tree=${IMAGE_ROOT:-$work/tree}
    if [ -z "${IMAGE_ROOT:-}" ]; then
        bare_debian "$tree"
    fi
    for image in $(images); do
        base "$image" "$tree"
    done
    # The first one compiles: a cargo that wants what the Dockerfile is to ask for, and has it. Rust's image has
    # Debian's ca-certificates, which the bare tree has not: here they are this machine's.
    image=$(images | head -1)
    mkdir -p "$work/with/usr/local/bin" "$work/with/programs" "$work/with/etc/ssl/certs"
    install -m 644 "$authorities" "$work/with$authorities"
    for program in "${programs[@]}"; do
        install -m 755 "$from/$program" "$work/with/programs/"
    done
    cat >"$work/with/usr/local/bin/cargo" <<'CARGO'
#!/bin/sh
set -e
test -f Cargo.lock && test -f server/main.rs
case "$*" in
"build --release --locked "*) ;;
"tree --locked "*)
    source=${CARGO_HOME:-$HOME/.cargo}/registry/src/here/a-crate-1.0.0
    mkdir -p "$source" && echo "the text" >"$source/LICENSE"
    echo "a-crate v1.0.0 MIT" && exit
    ;;
*) echo "cargo $*: not what the image is built by" >&2 && exit 1 ;;
esac
mkdir -p target/release
while [ $# -gt 0 ]; do
    if [ "$1" = --bin ]; then cp "/programs/$2" target/release/; fi
    shift
done
CARGO
    chmod 755 "$work/with/usr/local/bin/cargo"
    container=$(ours from --pull-never "docker.io/library/$image")
    ours add --quiet "$container" "$work/with" / >/dev/null
    ours commit --quiet "$container" "docker.io/library/$image" >/dev/null
    ours rm "$container" >/dev/null

    ours bud --isolation chroot --pull-never -f deploy/Dockerfile -t "gpufleet:$version" .
    container=$(ours from --pull-never "localhost/gpufleet:$version")
    said=$(ours inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Cmd}}' "$container")
    [ "$said" = "65532:65532 [gpufleet-agent]" ] || { echo "image: it runs as and what: $said" >&2 && exit 1; }
    for program in "${programs[@]}"; do
        said=$(ours run --isolation chroot "$container" -- "$program" --version)
        echo "image: $said"
        [[ $said == *"$version"* ]] || exit 1
    done
    said=$(ours run --isolation chroot "$container" -- id -u)
    [ "$said" = 65532 ] || { echo "image: it runs as $said" >&2 && exit 1; }
    ours run --isolation chroot "$container" -- gpufleet-agent --print-default-config >/dev/null
    ours run --isolation chroot "$container" -- grep -q 'BEGIN CERTIFICATE' "$authorities" ||
        { echo "image: nobody's certificate can be trusted in it: $authorities" >&2 && exit 1; }
    for text in LICENSE THIRD-PARTY; do
        ours run --isolation chroot "$container" -- test -s "/usr/share/doc/gpufleet/$text" ||
            { echo "image: it says nothing of licences: $text" >&2 && exit 1; }
    done
    ours run --isolation chroot "$container" -- grep -qx 'the text' /usr/share/doc/gpufleet/THIRD-PARTY ||
        { echo "image: it has no texts of licences" >&2 && exit 1; }
    for left in /source /usr/local/cargo /programs; do
        ours run --isolation chroot "$container" -- test ! -e "$left" ||
            { echo "image: what it was built from is in it: $left" >&2 && exit 1; }
    done
    echo "image: every step of deploy/Dockerfile works but the compiling, which took the programs of $from"
}

case ${1:-build} in
build) build ;;
check) check "${2:-}" ;;
*) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
