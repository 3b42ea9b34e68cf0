-- How many GPUs were waited for, hour by hour, of the time in which that was seen.
CREATE TABLE demand_hour (
    lease          TEXT    NOT NULL, -- the server's that sees it
    cluster        TEXT    NOT NULL,
    hour           INTEGER NOT NULL, -- hours since the Unix epoch
    seen_ms        INTEGER NOT NULL, -- for how long it was seen who waits
    waiting_gpu_ms INTEGER NOT NULL, -- GPUs that were waited for × time
    PRIMARY KEY (lease, cluster, hour)
) STRICT, WITHOUT ROWID;
