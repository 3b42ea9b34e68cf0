-- The record of what every GPU did. Times are ms since the Unix epoch in UTC, minutes and hours
-- count since the Unix epoch, durations are ms, money is nano-USD; a column that differs says so.

-- A resource: node, GPU, share of a GPU, model server. Its id stands for it everywhere else.
CREATE TABLE subject (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    attributes    TEXT    NOT NULL, -- JSON object of strings
    parent        TEXT,             -- the GPU that a share is a part of
    agent         BYTEA,             -- UUID; null for foreign OTLP
    first_seen_ms BIGINT NOT NULL,
    UNIQUE (cluster, kind, resource_id)
);
CREATE INDEX subject_by_parent ON subject (cluster, parent) WHERE parent IS NOT NULL;

-- Apart from subject, so that hearing of 10,000 resources rewrites 50 pages and not 2,000.
CREATE TABLE subject_seen (
    subject      BIGINT PRIMARY KEY REFERENCES subject (id),
    last_seen_ms BIGINT NOT NULL
);

-- How far each stream of each spool is folded.
CREATE TABLE agent_cursor (
    agent              BYTEA   NOT NULL,
    epoch              BYTEA   NOT NULL,
    stream             TEXT    NOT NULL,
    seq                BIGINT NOT NULL,
    clock_offset_nanos BIGINT NOT NULL, -- ns: a resend must be shifted by exactly the same
    seen_ms            BIGINT NOT NULL,
    PRIMARY KEY (agent, epoch, stream)
);

-- Seqs that a sender gave up.
CREATE TABLE gap (
    agent   BYTEA   NOT NULL,
    epoch   BYTEA   NOT NULL,
    stream  TEXT    NOT NULL,
    first   BIGINT NOT NULL,
    last    BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL,
    PRIMARY KEY (agent, epoch, stream, first)
);

-- How far foreign series have been seen.
CREATE TABLE foreign_mark (
    series       BYTEA   PRIMARY KEY,
    newest_nanos BIGINT NOT NULL -- ns: points are compared with it
);

-- One minute of one resource, packed. By minute first: a commit writes one stretch of pages.
CREATE TABLE minute_row (
    minute  BIGINT NOT NULL,
    subject BIGINT NOT NULL,
    data    BYTEA   NOT NULL,
    PRIMARY KEY (minute, subject)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- Each row is rewritten two or three times in its minute, so vacuum comes early; and packed data
-- does not compress.
ALTER TABLE minute_row ALTER COLUMN data SET STORAGE EXTERNAL;

-- Ten minutes of one resource: seconds of evidence as numbers, aggregates packed like a minute's.
CREATE TABLE minute10_row (
    bucket         BIGINT NOT NULL, -- minutes since the Unix epoch / 10
    subject        BIGINT NOT NULL,
    observed_s     BIGINT NOT NULL,
    active_s       BIGINT NOT NULL,
    stalled_s      BIGINT NOT NULL,
    held_s         BIGINT NOT NULL,
    holder_known_s BIGINT NOT NULL,
    data           BYTEA   NOT NULL,
    PRIMARY KEY (bucket, subject)
);

-- A minute row that could not be read, taken out of the way and kept for inspection.
CREATE TABLE corrupt_row (
    minute  BIGINT NOT NULL,
    subject BIGINT NOT NULL,
    data    BYTEA   NOT NULL,
    error   TEXT    NOT NULL,
    mark    BIGINT NOT NULL, -- as in ledger_dirty
    PRIMARY KEY (minute, subject, mark)
);

-- Hours whose minutes changed since they were last computed. mark is a new random number
-- with every change, so that a change during the computation is not lost.
CREATE TABLE ledger_dirty (
    hour    BIGINT NOT NULL,
    subject BIGINT NOT NULL,
    mark    BIGINT NOT NULL,
    due_ms  BIGINT NOT NULL, -- not to be computed before
    PRIMARY KEY (hour, subject)
);

-- One hour of one GPU or share; its time is in ledger_time.
CREATE TABLE ledger_hour (
    hour          BIGINT NOT NULL,
    subject       BIGINT NOT NULL,
    total_ms      BIGINT NOT NULL, -- the sum of its ledger_time
    is_final      BIGINT NOT NULL, -- 0 or 1
    carry         TEXT    NOT NULL, -- JSON: what the next hour must know; empty while the hour runs
    computed_ms   BIGINT NOT NULL,
    PRIMARY KEY (hour, subject)
);

-- Where the time of an hour went: by holder (0 while not known), state and reason.
CREATE TABLE ledger_time (
    hour          BIGINT NOT NULL,
    subject       BIGINT NOT NULL,
    holder        BIGINT NOT NULL,
    state         BIGINT NOT NULL, -- analysis::ledger::State::code
    reason        BIGINT NOT NULL, -- analysis::ledger::Reason::code
    time_ms       BIGINT NOT NULL,
    cost_nano_usd BIGINT,          -- null: no price, which is not 0
    PRIMARY KEY (hour, subject, holder, state, reason)
);

-- What happened.
CREATE TABLE event (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms         BIGINT NOT NULL,
    cluster       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    severity      TEXT    NOT NULL,
    resource_kind TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    agent         BYTEA,
    message       TEXT    NOT NULL,
    attributes    TEXT    NOT NULL -- JSON object of strings
);
CREATE INDEX event_by_time ON event (at_ms, id);
CREATE INDEX event_by_resource ON event (cluster, resource_kind, resource_id, at_ms, id);

-- Who writes. A commit with another token than this is refused.
CREATE TABLE lease (
    name       TEXT    PRIMARY KEY,
    token      BIGINT NOT NULL,
    holder     TEXT    NOT NULL,
    expires_ms BIGINT NOT NULL
);

-- The newest commit of each lease, read back after an error to learn whether it happened.
CREATE TABLE commit_log (
    lease        TEXT    PRIMARY KEY,
    number       BIGINT NOT NULL,
    token        BIGINT NOT NULL
);

-- The first minute that is still kept: older data that comes late is not taken in, because its hour
-- could no longer be computed from all of its minutes.
CREATE TABLE horizon (
    name  TEXT    PRIMARY KEY,
    value BIGINT NOT NULL
);
