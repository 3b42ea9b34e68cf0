#!/bin/sh
# Makes the probe's PTX of probe/kernels/*.cu, or checks that it is as committed and that ptxas
# takes it for every card. Needs no GPU and no driver: NVIDIA's compiler comes from PyPI.
#
#   scripts/ptx.sh setup    the compiler into target/cuda (a download of 130 MB)
#   scripts/ptx.sh make     write the PTX anew
#   scripts/ptx.sh check    compile again, compare, assemble for sm_75 to sm_121
#
# The command, for each file: nvcc -ptx -arch=compute_XX -O3, and then a lower .version, so that older
# drivers take it. 7.0 is CUDA 11.0's, 8.4 CUDA 12.4's, the first with fp8.
set -eu
cd "$(dirname "$0")/.."

# The newest compiler writes other code than the one before it: one version, so that it can be compared.
CUDA=13.5.37
KERNELS=probe/kernels
VENV=target/cuda
# Which file for which oldest card, in which version of PTX.
FILES="base:75:7.0 mma_sm80:80:7.0 mma_sm89:89:8.4"
CARDS="75 80 86 87 88 89 90 100 103 110 120 121"

tools() {
    find "$PWD/$VENV" -type d -path '*/nvidia/cu13/bin' 2>/dev/null | head -n 1
}

compile() { # into the folder $1
    bin=$(tools)
    [ -x "$bin/nvcc" ] || { echo "no compiler: scripts/ptx.sh setup" >&2; exit 3; }
    for file in $FILES; do
        name=${file%%:*} version=${file##*:}
        card=${file#*:} card=${card%:*}
        "$bin/nvcc" -ptx -arch="compute_$card" -O3 -o "$1/$name.ptx.new" "$KERNELS/$name.cu"
        # What the compiler says of itself and of its options differs from build to build.
        sed -e '/^\/\//d' -e "s/^\.version .*/.version $version/" "$1/$name.ptx.new" >"$1/$name.ptx"
        rm "$1/$name.ptx.new"
    done
}

case "${1:-}" in
setup)
    [ -n "$(tools)" ] && exit 0
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install -q --disable-pip-version-check "nvidia-cuda-nvcc==$CUDA" \
        "nvidia-cuda-runtime==$CUDA" "nvidia-cuda-crt==$CUDA" "nvidia-nvvm==$CUDA" nvidia-cuda-cccl
    ;;
make)
    compile "$KERNELS"
    ;;
check)
    folder=$(mktemp -d)
    trap 'rm -r "$folder"' EXIT
    compile "$folder"
    bin=$(tools)
    for file in $FILES; do
        name=${file%%:*} oldest=${file#*:} oldest=${oldest%:*}
        cmp "$folder/$name.ptx" "$KERNELS/$name.ptx" || {
            echo "$KERNELS/$name.ptx is not what its source makes: scripts/ptx.sh make" >&2
            exit 1
        }
        for card in $CARDS; do
            [ "$card" -lt "$oldest" ] && continue
            "$bin/ptxas" -arch="sm_$card" -o /dev/null "$KERNELS/$name.ptx"
            echo "$name sm_$card assembled"
        done
    done
    ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
