-- Who held GPUs: all that is known of each holder, under a hash of it.
CREATE TABLE holder (
    lease       TEXT    NOT NULL,
    number      INTEGER NOT NULL, -- analysis::owner::Holder::number; the holder of ledger_time
    description TEXT    NOT NULL, -- JSON
    met_ms      INTEGER NOT NULL,
    PRIMARY KEY (lease, number)
) STRICT, WITHOUT ROWID;

-- A day (UTC) of one GPU or share, packed: what is left of its ledger hours when those are gone, and
-- what reports of a month are made from. It says all that a report needs, because its resource is
-- forgotten before it is.
CREATE TABLE ledger_day (
    day         INTEGER NOT NULL, -- days since the Unix epoch
    subject     INTEGER NOT NULL,
    lease       TEXT    NOT NULL,
    cluster     TEXT    NOT NULL,
    data        BLOB    NOT NULL, -- server/store/days.rs
    computed_ms INTEGER NOT NULL,
    PRIMARY KEY (day, subject)
) STRICT, WITHOUT ROWID;

-- Days whose hours changed since they were put together. mark is a new random number with every
-- change, so that a change meanwhile is not lost.
CREATE TABLE ledger_day_dirty (
    day     INTEGER NOT NULL,
    subject INTEGER NOT NULL,
    mark    INTEGER NOT NULL,
    due_ms  INTEGER NOT NULL, -- not to be put together before
    PRIMARY KEY (day, subject)
) STRICT, WITHOUT ROWID;
INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
    SELECT DISTINCT hour / 24, subject, 0, 0 FROM ledger_hour;

-- Tables of prices, owners, budgets and invoices, as they were imported: what is wrong with a row is
-- named by its line.
CREATE TABLE money_table (
    lease       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    content     TEXT    NOT NULL,
    imported_ms INTEGER NOT NULL,
    PRIMARY KEY (lease, name)
) STRICT, WITHOUT ROWID;
