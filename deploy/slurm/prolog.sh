#!/bin/sh
# Slurm prolog: writes which job holds which GPU, one job id a line, in the folder that dcgm-exporter calls
# its HPC job mapping. Each GPU has a file named by Slurm's number for it, which dcgm-exporter and
# gpufleet's agent read, and one named by its UUID where the driver tells it, which the agent believes first:
# the number is that of the device file, and not always the driver's own.
#
# slurm.conf: Prolog=/usr/share/gpufleet/slurm/prolog.sh (as root, on the node, before the job).
# A prolog that fails drains the node, so this one never fails: a job is worth more than its name.

# The agent reads what is written here, as user gpufleet; slurmd gives its scripts the umask 077.
umask 022
folder=${GPUFLEET_JOB_FOLDER:-/var/lib/gpufleet-jobs}
job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac
mkdir -p "$folder" 2>/dev/null || exit 0

# `0,1` or `0-3`, as Slurm writes it.
expand() {
    printf '%s\n' "$1" | tr ',' '\n' | while IFS=- read -r from to; do
        case $from$to in '' | *[!0-9]*) continue ;; esac
        seq "$from" "${to:-$from}"
    done
}

# When the machine started: no epilog ran for the jobs of before.
started=$(awk '$1 == "btime" { print $2 }' /proc/stat 2>/dev/null)

# Jobs that share a GPU begin and end at the same time, and an epilog writes the file anew. Who cannot have
# the lock in 5 s goes on without it.
[ -r "$folder" ] || exit 0
exec 9<"$folder"
flock -w 5 9 2>/dev/null || :

# The UUID of the GPU with this device file. Asked of /proc: nvidia-smi waits for a GPU that hangs.
uuid() {
    cat "${GPUFLEET_NVIDIA_GPUS:-/proc/driver/nvidia/gpus}"/*/information 2>/dev/null |
        awk -F ':[ \t]*' -v minor="$1" '
            { sub(/[ \t]+$/, "", $2) }
            $1 == "GPU UUID" { uuid = $2 }
            $1 == "Device Minor" && $2 == minor && uuid ~ /^GPU-[0-9a-f-]+$/ { print uuid }
            $1 == "Device Minor" { uuid = "" }' 2>/dev/null
}

# A GPU that jobs share has a line for each of them.
note() {
    written=$(stat -c %Y "$folder/$1" 2>/dev/null)
    [ "${written:-0}" -ge "${started:-0}" ] || rm -f "$folder/$1"
    grep -qx "$job" "$folder/$1" 2>/dev/null && return
    printf '%s\n' "$job" 2>/dev/null >>"$folder/$1" || :
}

for gpu in $(expand "${SLURM_JOB_GPUS:-}"); do
    note "$gpu"
    for id in $(uuid "$gpu"); do
        note "$id"
    done
done
exit 0
