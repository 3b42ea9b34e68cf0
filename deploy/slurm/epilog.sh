#!/bin/sh
# Slurm epilog: takes a job's line out of every file that prolog.sh wrote, and a file away that is
# empty then. It looks into all of them: after a restart of slurmd the list of the job's GPUs is gone.
#
# slurm.conf: Epilog=/usr/share/gpufleet/slurm/epilog.sh

# The agent reads what is written here, as user gpufleet; slurmd gives its scripts the umask 077.
umask 022
folder=${GPUFLEET_JOB_FOLDER:-/var/lib/gpufleet-jobs}
job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac

# As in prolog.sh: who writes a file has the folder's lock.
[ -d "$folder" ] && [ -r "$folder" ] || exit 0
exec 9<"$folder"
flock -w 5 9 2>/dev/null || :

for file in "$folder"/*; do
    [ -f "$file" ] && grep -qx "$job" "$file" || continue
    # Written beside it and renamed, so that a reader sees the whole old or the whole new file.
    next="$folder/.next.$job"
    if grep -vx "$job" "$file" >"$next" 2>/dev/null; then
        mv -f "$next" "$file"
    else
        rm -f "$file" "$next"
    fi
done
exit 0
