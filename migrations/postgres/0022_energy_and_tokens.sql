-- What was drawn in the time of an hour, and for how much of that it is known. Hours that were computed before
-- say nothing of it.
ALTER TABLE ledger_time ADD COLUMN energy_mj BIGINT; -- millijoules; null: not told, which is not 0
ALTER TABLE ledger_time ADD COLUMN metered_ms BIGINT NOT NULL DEFAULT 0;

-- What a model server did in an hour, of the time in which its counters told it.
CREATE TABLE served_hour (
    hour             BIGINT NOT NULL, -- hours since the Unix epoch
    subject          BIGINT NOT NULL, -- the endpoint
    prompt_tokens    BIGINT,          -- null: not told
    generated_tokens BIGINT NOT NULL,
    told_ms          BIGINT NOT NULL, -- for how long generated tokens were told, above 0
    PRIMARY KEY (subject, hour)
);
CREATE INDEX served_hour_age ON served_hour (hour, subject);
