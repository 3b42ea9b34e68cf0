#!/bin/sh
# Slurm prolog: probes the job's GPUs before it starts. A GPU with wrong results fails the prolog, which
# drains the node and gives the job to another; one that is slow, or of which nothing could be learned,
# lets it run. docs/probe.md says what the exit codes mean.
#
# slurm.conf: Prolog=/usr/share/gpufleet/slurm/probe.sh (as root, on the node, before the job).

case ${SLURM_JOB_GPUS:-} in '' | *[!0-9,-]*) exit 0 ;; esac

# The UUID of the GPU with this device file: Slurm's number for it is the device file's, and what the probe takes for one
# is the driver's own, which may be another GPU. As in prolog.sh.
uuid() {
    cat "${GPUFLEET_NVIDIA_GPUS:-/proc/driver/nvidia/gpus}"/*/information 2>/dev/null |
        awk -F ':[ \t]*' -v minor="$1" '
            { sub(/[ \t]+$/, "", $2) }
            $1 == "GPU UUID" { uuid = $2 }
            $1 == "Device Minor" && $2 == minor && uuid ~ /^GPU-[0-9a-f-]+$/ { print uuid }
            $1 == "Device Minor" { uuid = "" }' 2>/dev/null
}

# `0,1` or `0-3`, as Slurm writes it. A GPU of which the driver tells no UUID is not probed: another one is not the job's.
gpus=$(printf '%s\n' "$SLURM_JOB_GPUS" | tr ',' '\n' | while IFS=- read -r from to; do
    [ -n "$from" ] || continue
    for gpu in $(seq "$from" "${to:-$from}"); do
        id=$(uuid "$gpu")
        case $id in
            GPU-*) printf -- '--gpu %s\n' "$id" ;;
            *) echo "probe.sh: the driver tells no UUID of /dev/nvidia$gpu, which is not probed" >&2 ;;
        esac
    done
done)

# Without a GPU the probe would take every one of the node.
[ -n "$gpus" ] || exit 0

# $gpus is options by words.
# shellcheck disable=SC2086
"${GPUFLEET_AGENT:-gpufleet-agent}" probe --gate $gpus
[ $? -ne 20 ]
