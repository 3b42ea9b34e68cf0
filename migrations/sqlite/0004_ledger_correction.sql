-- What a final hour was changed by: the hour as it was when it became final, plus its corrections,
-- is the hour as it stands. Written in the transaction that replaces the hour.
CREATE TABLE ledger_correction (
    hour          INTEGER NOT NULL,
    subject       INTEGER NOT NULL,
    number        INTEGER NOT NULL, -- which restatement of the hour, 1 is the first
    holder        INTEGER NOT NULL,
    state         INTEGER NOT NULL,
    reason        INTEGER NOT NULL,
    time_ms       INTEGER NOT NULL, -- to be added; below 0 what is taken away
    cost_nano_usd INTEGER,          -- to be added; null: without a price before or after
    computed_ms   INTEGER NOT NULL,
    why           TEXT    NOT NULL,
    PRIMARY KEY (hour, subject, number, holder, state, reason)
) STRICT, WITHOUT ROWID;

-- Why an hour is to be computed, as bits: store::restate::Why.
ALTER TABLE ledger_dirty ADD COLUMN why INTEGER NOT NULL DEFAULT 0;
