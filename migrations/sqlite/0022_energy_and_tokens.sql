-- What was drawn in the time of an hour, and for how much of that it is known. Hours that were computed before
-- say nothing of it.
ALTER TABLE ledger_time ADD COLUMN energy_mj INTEGER; -- millijoules; null: not told, which is not 0
ALTER TABLE ledger_time ADD COLUMN metered_ms INTEGER NOT NULL DEFAULT 0;

-- What a model server did in an hour, of the time in which its counters told it.
CREATE TABLE served_hour (
    hour             INTEGER NOT NULL, -- hours since the Unix epoch
    subject          INTEGER NOT NULL, -- the endpoint
    prompt_tokens    INTEGER,          -- null: not told
    generated_tokens INTEGER NOT NULL,
    told_ms          INTEGER NOT NULL, -- for how long generated tokens were told, above 0
    PRIMARY KEY (subject, hour)
) STRICT, WITHOUT ROWID;
CREATE INDEX served_hour_age ON served_hour (hour, subject);
