-- What of a row's money is not told, and why; empty where all is: an amount that no column holds is null and said
-- here, and so is what of the month's time could not be read.
ALTER TABLE money_day ADD COLUMN untold TEXT NOT NULL DEFAULT '';
ALTER TABLE money_month ADD COLUMN untold TEXT NOT NULL DEFAULT '';

-- Why GPUs were free that have type and taints in common: the minutes of an hour in which it was for each reason, one
-- bit each, the first minute the lowest. A minute with no bit: it is not known, or was not one of these.
CREATE TABLE free_hour (
    lease      TEXT NOT NULL, -- the server's that sees it
    cluster    TEXT NOT NULL,
    hour       BIGINT NOT NULL, -- hours since the Unix epoch
    model      TEXT NOT NULL, -- as the cluster names the type; empty where it does not
    kept_for   TEXT NOT NULL, -- taints, as JSON
    no_demand  BIGINT NOT NULL, -- nobody waited who could have them
    fragmented BIGINT NOT NULL, -- who waited needed more than was free in one place
    reserved   BIGINT NOT NULL, -- who waited did not tolerate the taints
    PRIMARY KEY (lease, cluster, hour, model, kept_for)
);
