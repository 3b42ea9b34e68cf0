-- What a final hour was changed by: the hour as it was when it became final, plus its corrections,
-- is the hour as it stands. Written in the transaction that replaces the hour.
CREATE TABLE ledger_correction (
    hour          BIGINT  NOT NULL,
    subject       BIGINT  NOT NULL,
    number        BIGINT  NOT NULL, -- which restatement of the hour, 1 is the first
    holder        BIGINT  NOT NULL,
    state         BIGINT  NOT NULL,
    reason        BIGINT  NOT NULL,
    time_ms       BIGINT  NOT NULL, -- to be added; below 0 what is taken away
    cost_nano_usd BIGINT ,          -- to be added; null: without a price before or after
    computed_ms   BIGINT  NOT NULL,
    why           TEXT    NOT NULL,
    PRIMARY KEY (hour, subject, number, holder, state, reason)
);

-- Why an hour is to be computed, as bits: store::restate::Why.
ALTER TABLE ledger_dirty ADD COLUMN why BIGINT NOT NULL DEFAULT 0;
