-- How many GPUs were waited for, hour by hour, of the time in which that was seen.
CREATE TABLE demand_hour (
    lease          TEXT   NOT NULL, -- the server's that sees it
    cluster        TEXT   NOT NULL,
    hour           BIGINT NOT NULL, -- hours since the Unix epoch
    seen_ms        BIGINT NOT NULL, -- for how long it was seen who waits
    waiting_gpu_ms BIGINT NOT NULL, -- GPUs that were waited for × time
    PRIMARY KEY (lease, cluster, hour)
);
