-- GPUs that have type and taints in common may be in different partitions of Slurm's: a job goes to one of these alone.
-- Hours of before are of no partition. SQLite changes no primary key in place.
CREATE TABLE free_hour_by_partition (
    lease      TEXT NOT NULL, -- the server's that sees it
    cluster    TEXT NOT NULL,
    hour       INTEGER NOT NULL, -- hours since the Unix epoch
    model      TEXT NOT NULL, -- as the cluster names the type; empty where it does not
    kept_for   TEXT NOT NULL, -- taints, as JSON
    partitions TEXT NOT NULL, -- by name, as JSON
    no_demand  INTEGER NOT NULL, -- nobody waited who could have them
    fragmented INTEGER NOT NULL, -- who waited needed more than was free in one place
    reserved   INTEGER NOT NULL, -- who waited did not tolerate the taints
    PRIMARY KEY (lease, cluster, hour, model, kept_for, partitions)
) STRICT, WITHOUT ROWID;
INSERT INTO free_hour_by_partition
    SELECT lease, cluster, hour, model, kept_for, '[]', no_demand, fragmented, reserved FROM free_hour;
DROP TABLE free_hour;
ALTER TABLE free_hour_by_partition RENAME TO free_hour;
