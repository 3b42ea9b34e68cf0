-- GPUs that have type and taints in common may be in different partitions of Slurm's: a job goes to one of these alone.
-- Hours of before are of no partition.
ALTER TABLE free_hour ADD COLUMN partitions TEXT NOT NULL DEFAULT '[]'; -- by name, as JSON
ALTER TABLE free_hour DROP CONSTRAINT free_hour_pkey;
ALTER TABLE free_hour ADD PRIMARY KEY (lease, cluster, hour, model, kept_for, partitions);
