-- Servers of several clusters share one database, each with a lease of its own. What a server has
-- written says under which lease, and a server reads, computes and deletes only what is its own.
-- Rows that are there already belong to the lease that committed most; there was one as a rule.
CREATE TABLE lease_before AS
    SELECT COALESCE((SELECT lease FROM commit_log ORDER BY number DESC, lease LIMIT 1), 'gpufleet')
        AS name;

-- SQLite changes keys only by making the table anew; what refers to it goes first.
CREATE TABLE seen_before AS SELECT subject, last_seen_ms FROM subject_seen;
DROP TABLE subject_seen;

CREATE TABLE subject_new (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    lease         TEXT    NOT NULL,
    cluster       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    attributes    TEXT    NOT NULL, -- JSON object of strings
    parent        TEXT,             -- the GPU that a share is a part of
    agent         BLOB,             -- UUID; null for foreign OTLP
    first_seen_ms INTEGER NOT NULL,
    UNIQUE (lease, cluster, kind, resource_id)
) STRICT;
INSERT INTO subject_new
    SELECT id, (SELECT name FROM lease_before), cluster, kind, resource_id, attributes, parent,
        agent, first_seen_ms
    FROM subject;
DROP TABLE subject;
ALTER TABLE subject_new RENAME TO subject;
CREATE INDEX subject_by_parent ON subject (cluster, parent) WHERE parent IS NOT NULL;

CREATE TABLE subject_seen (
    subject      INTEGER PRIMARY KEY REFERENCES subject (id),
    last_seen_ms INTEGER NOT NULL
) STRICT;
INSERT INTO subject_seen SELECT subject, last_seen_ms FROM seen_before;
DROP TABLE seen_before;

CREATE TABLE agent_cursor_new (
    lease              TEXT    NOT NULL,
    agent              BLOB    NOT NULL,
    epoch              BLOB    NOT NULL,
    stream             TEXT    NOT NULL,
    seq                INTEGER NOT NULL,
    clock_offset_nanos INTEGER NOT NULL, -- ns: a resend must be shifted by exactly the same
    seen_ms            INTEGER NOT NULL,
    first_seen_ms      INTEGER NOT NULL,
    PRIMARY KEY (lease, agent, epoch, stream)
) STRICT, WITHOUT ROWID;
INSERT INTO agent_cursor_new
    SELECT (SELECT name FROM lease_before), agent, epoch, stream, seq, clock_offset_nanos, seen_ms,
        first_seen_ms
    FROM agent_cursor;
DROP TABLE agent_cursor;
ALTER TABLE agent_cursor_new RENAME TO agent_cursor;

CREATE TABLE gap_new (
    lease   TEXT    NOT NULL,
    agent   BLOB    NOT NULL,
    epoch   BLOB    NOT NULL,
    stream  TEXT    NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL,
    PRIMARY KEY (lease, agent, epoch, stream, first)
) STRICT, WITHOUT ROWID;
INSERT INTO gap_new
    SELECT (SELECT name FROM lease_before), agent, epoch, stream, first, last, seen_ms FROM gap;
DROP TABLE gap;
ALTER TABLE gap_new RENAME TO gap;

CREATE TABLE foreign_mark_new (
    lease        TEXT    NOT NULL,
    series       BLOB    NOT NULL,
    newest_nanos INTEGER NOT NULL, -- ns: points are compared with it
    PRIMARY KEY (lease, series)
) STRICT, WITHOUT ROWID;
INSERT INTO foreign_mark_new
    SELECT (SELECT name FROM lease_before), series, newest_nanos FROM foreign_mark;
DROP TABLE foreign_mark;
ALTER TABLE foreign_mark_new RENAME TO foreign_mark;

ALTER TABLE event ADD COLUMN lease TEXT NOT NULL DEFAULT '';
UPDATE event SET lease = (SELECT name FROM lease_before);
DROP INDEX event_by_time;
CREATE INDEX event_by_time ON event (lease, at_ms, id);
DROP INDEX event_by_resource;
CREATE INDEX event_by_resource ON event (lease, cluster, resource_kind, resource_id, at_ms, id);

ALTER TABLE set_aside ADD COLUMN lease TEXT NOT NULL DEFAULT '';
UPDATE set_aside SET lease = (SELECT name FROM lease_before);

CREATE TABLE horizon_new (
    lease TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (lease, name)
) STRICT;
INSERT INTO horizon_new SELECT (SELECT name FROM lease_before), name, value FROM horizon;
DROP TABLE horizon;
ALTER TABLE horizon_new RENAME TO horizon;

DROP TABLE lease_before;
