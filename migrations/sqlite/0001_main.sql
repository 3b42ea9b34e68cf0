-- The record of what every GPU did. Times are ms since the Unix epoch in UTC, minutes and hours
-- count since the Unix epoch, durations are ms, money is nano-USD; a column that differs says so.

-- A resource: node, GPU, share of a GPU, model server. Its id stands for it everywhere else.
CREATE TABLE subject (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    cluster       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    attributes    TEXT    NOT NULL, -- JSON object of strings
    parent        TEXT,             -- the GPU that a share is a part of
    agent         BLOB,             -- UUID; null for foreign OTLP
    first_seen_ms INTEGER NOT NULL,
    UNIQUE (cluster, kind, resource_id)
) STRICT;
CREATE INDEX subject_by_parent ON subject (cluster, parent) WHERE parent IS NOT NULL;

-- Apart from subject, so that hearing of 10,000 resources rewrites 50 pages and not 2,000.
CREATE TABLE subject_seen (
    subject      INTEGER PRIMARY KEY REFERENCES subject (id),
    last_seen_ms INTEGER NOT NULL
) STRICT;

-- How far each stream of each spool is folded.
CREATE TABLE agent_cursor (
    agent              BLOB    NOT NULL,
    epoch              BLOB    NOT NULL,
    stream             TEXT    NOT NULL,
    seq                INTEGER NOT NULL,
    clock_offset_nanos INTEGER NOT NULL, -- ns: a resend must be shifted by exactly the same
    seen_ms            INTEGER NOT NULL,
    PRIMARY KEY (agent, epoch, stream)
) STRICT, WITHOUT ROWID;

-- Seqs that a sender gave up.
CREATE TABLE gap (
    agent   BLOB    NOT NULL,
    epoch   BLOB    NOT NULL,
    stream  TEXT    NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL,
    PRIMARY KEY (agent, epoch, stream, first)
) STRICT, WITHOUT ROWID;

-- How far foreign series have been seen.
CREATE TABLE foreign_mark (
    series       BLOB    PRIMARY KEY,
    newest_nanos INTEGER NOT NULL -- ns: points are compared with it
) STRICT, WITHOUT ROWID;

-- One minute of one resource, packed. By minute first: a commit writes one stretch of pages.
CREATE TABLE minute_row (
    minute  INTEGER NOT NULL,
    subject INTEGER NOT NULL,
    data    BLOB    NOT NULL,
    PRIMARY KEY (minute, subject)
) STRICT, WITHOUT ROWID;

-- Ten minutes of one resource: seconds of evidence as numbers, aggregates packed like a minute's.
CREATE TABLE minute10_row (
    bucket         INTEGER NOT NULL, -- minutes since the Unix epoch / 10
    subject        INTEGER NOT NULL,
    observed_s     INTEGER NOT NULL,
    active_s       INTEGER NOT NULL,
    stalled_s      INTEGER NOT NULL,
    held_s         INTEGER NOT NULL,
    holder_known_s INTEGER NOT NULL,
    data           BLOB    NOT NULL,
    PRIMARY KEY (bucket, subject)
) STRICT, WITHOUT ROWID;

-- A minute row that could not be read, taken out of the way and kept for inspection.
CREATE TABLE corrupt_row (
    minute  INTEGER NOT NULL,
    subject INTEGER NOT NULL,
    data    BLOB    NOT NULL,
    error   TEXT    NOT NULL,
    mark    INTEGER NOT NULL, -- as in ledger_dirty
    PRIMARY KEY (minute, subject, mark)
) STRICT, WITHOUT ROWID;

-- Hours whose minutes changed since they were last computed. mark is a new random number
-- with every change, so that a change during the computation is not lost.
CREATE TABLE ledger_dirty (
    hour    INTEGER NOT NULL,
    subject INTEGER NOT NULL,
    mark    INTEGER NOT NULL,
    due_ms  INTEGER NOT NULL, -- not to be computed before
    PRIMARY KEY (hour, subject)
) STRICT, WITHOUT ROWID;

-- One hour of one GPU or share; its time is in ledger_time.
CREATE TABLE ledger_hour (
    hour          INTEGER NOT NULL,
    subject       INTEGER NOT NULL,
    total_ms      INTEGER NOT NULL, -- the sum of its ledger_time
    is_final      INTEGER NOT NULL, -- 0 or 1
    carry         TEXT    NOT NULL, -- JSON: what the next hour must know; empty while the hour runs
    computed_ms   INTEGER NOT NULL,
    PRIMARY KEY (hour, subject)
) STRICT, WITHOUT ROWID;

-- Where the time of an hour went: by holder (0 while not known), state and reason.
CREATE TABLE ledger_time (
    hour          INTEGER NOT NULL,
    subject       INTEGER NOT NULL,
    holder        INTEGER NOT NULL,
    state         INTEGER NOT NULL, -- analysis::ledger::State::code
    reason        INTEGER NOT NULL, -- analysis::ledger::Reason::code
    time_ms       INTEGER NOT NULL,
    cost_nano_usd INTEGER,          -- null: no price, which is not 0
    PRIMARY KEY (hour, subject, holder, state, reason)
) STRICT, WITHOUT ROWID;

-- What happened.
CREATE TABLE event (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms         INTEGER NOT NULL,
    cluster       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    severity      TEXT    NOT NULL,
    resource_kind TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    agent         BLOB,
    message       TEXT    NOT NULL,
    attributes    TEXT    NOT NULL -- JSON object of strings
) STRICT;
CREATE INDEX event_by_time ON event (at_ms, id);
CREATE INDEX event_by_resource ON event (cluster, resource_kind, resource_id, at_ms, id);

-- Who writes. A commit with another token than this is refused.
CREATE TABLE lease (
    name       TEXT    PRIMARY KEY,
    token      INTEGER NOT NULL,
    holder     TEXT    NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;

-- The newest commit of each lease, read back after an error to learn whether it happened.
CREATE TABLE commit_log (
    lease        TEXT    PRIMARY KEY,
    number       INTEGER NOT NULL,
    token        INTEGER NOT NULL
) STRICT;

-- The first minute that is still kept: older data that comes late is not taken in, because its hour
-- could no longer be computed from all of its minutes.
CREATE TABLE horizon (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;
