-- Silences by pattern: until when nobody is told of what matches.
CREATE TABLE silence (
    lease    TEXT   NOT NULL,
    id       BYTEA  NOT NULL,
    until_ms BIGINT NOT NULL,
    data     TEXT   NOT NULL, -- JSON
    PRIMARY KEY (lease, id)
);
