-- Silences by pattern: until when nobody is told of what matches.
CREATE TABLE silence (
    lease    TEXT    NOT NULL,
    id       BLOB    NOT NULL,
    until_ms INTEGER NOT NULL,
    data     TEXT    NOT NULL, -- JSON
    PRIMARY KEY (lease, id)
) STRICT;
