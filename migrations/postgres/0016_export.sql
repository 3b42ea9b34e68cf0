-- How far the record is pushed to others: the last minute that went whole, by way.
CREATE TABLE export_cursor (
    lease  TEXT   NOT NULL,
    way    TEXT   NOT NULL, -- remote_write
    minute BIGINT NOT NULL, -- minutes since the Unix epoch
    PRIMARY KEY (lease, way)
);
