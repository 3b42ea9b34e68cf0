-- Who changed what through pages and API. Written before the change is made.
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    lease  TEXT   NOT NULL,
    at_ms  INTEGER NOT NULL,
    who    TEXT   NOT NULL, -- the person that a trusted proxy names, or the role of the token
    peer   TEXT   NOT NULL, -- the address that it came from
    action TEXT   NOT NULL,
    target TEXT   NOT NULL, -- what is changed
    detail TEXT   NOT NULL  -- JSON
) STRICT;
CREATE INDEX audit_by_time ON audit (lease, at_ms, id);
