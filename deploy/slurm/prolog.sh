#!/bin/sh
# Slurm prolog: writes which job holds which GPU, one file a GPU named by its number, one job id a
# line, in the folder that dcgm-exporter calls its HPC job mapping. dcgm-exporter and
# gpufleet's agent read it.
#
# slurm.conf: Prolog=/usr/share/gpufleet/slurm/prolog.sh (as root, on the node, before the job).
# A prolog that fails drains the node, so this one never fails: a job is worth more than its name.

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

# A GPU that jobs share has a line for each of them.
for gpu in $(expand "${SLURM_JOB_GPUS:-}"); do
    written=$(stat -c %Y "$folder/$gpu" 2>/dev/null)
    [ "${written:-0}" -ge "${started:-0}" ] || rm -f "$folder/$gpu"
    grep -qx "$job" "$folder/$gpu" 2>/dev/null && continue
    printf '%s\n' "$job" 2>/dev/null >>"$folder/$gpu" || :
done
exit 0
