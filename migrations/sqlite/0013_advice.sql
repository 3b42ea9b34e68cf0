-- Advice that was given, and what became of it (analysis/taken.rs).
CREATE TABLE advice (
    lease    TEXT    NOT NULL,
    number   INTEGER NOT NULL,
    cluster  TEXT    NOT NULL,
    first_ms INTEGER NOT NULL, -- when it was first given
    until_ms INTEGER NOT NULL, -- when it was last given, changed or saved anything
    is_over  INTEGER NOT NULL, -- 1: nothing moves it any more
    data     TEXT    NOT NULL, -- JSON
    PRIMARY KEY (lease, number)
) STRICT;
CREATE INDEX advice_until ON advice (lease, until_ms);
