-- Incidents, open and over, each as the server that judged it wrote it last.
CREATE TABLE incident (
    lease       TEXT    NOT NULL, -- the server's that judges it
    id          BLOB    NOT NULL, -- a UUID, for ever
    cluster     TEXT    NOT NULL,
    family      TEXT    NOT NULL,
    state       TEXT    NOT NULL, -- open or resolved
    since_ms    INTEGER NOT NULL, -- when the trouble began
    resolved_ms INTEGER NOT NULL, -- when it was over; 0 while it is open
    data        TEXT    NOT NULL, -- all of it, as JSON
    PRIMARY KEY (lease, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX incident_by_time ON incident (lease, since_ms, id);
CREATE INDEX incident_by_end ON incident (lease, resolved_ms);
