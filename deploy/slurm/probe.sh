#!/bin/sh
# Slurm prolog: probes the job's GPUs before it starts. A GPU with wrong results fails the prolog, which
# drains the node and gives the job to another; one that is slow, or of which nothing could be learned,
# lets it run. docs/probe.md says what the exit codes mean.
#
# slurm.conf: Prolog=/usr/share/gpufleet/slurm/probe.sh (as root, on the node, before the job).

case ${SLURM_JOB_GPUS:-} in '' | *[!0-9,-]*) exit 0 ;; esac

# `0,1` or `0-3`, as Slurm writes it.
gpus=$(printf '%s\n' "$SLURM_JOB_GPUS" | tr ',' '\n' | while IFS=- read -r from to; do
    [ -n "$from" ] || continue
    seq "$from" "${to:-$from}" | sed 's/^/--gpu /'
done)

# $gpus is options by words.
# shellcheck disable=SC2086
"${GPUFLEET_AGENT:-gpufleet-agent}" probe --gate $gpus
[ $? -ne 20 ]
