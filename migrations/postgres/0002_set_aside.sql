-- Rows of any table that could not be read: taken out of the way and kept for inspection.
CREATE TABLE set_aside (
    id     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source TEXT    NOT NULL, -- the table it stood in
    place  TEXT    NOT NULL, -- which row of it
    data   BYTEA   NOT NULL, -- what could not be read
    error  TEXT    NOT NULL,
    at_ms  BIGINT NOT NULL   -- the time that the row was about
);
CREATE INDEX set_aside_by_time ON set_aside (at_ms);

INSERT INTO set_aside (source, place, data, error, at_ms)
    SELECT 'minute_row', 'minute ' || minute || ' of resource number ' || subject, data, error,
        minute * 60000
    FROM corrupt_row;
DROP TABLE corrupt_row;
