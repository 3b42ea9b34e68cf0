-- One attempt of a job. Its id stands for it in rank and step_block.
CREATE TABLE run (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    lease      TEXT    NOT NULL, -- whose it is, where several servers share a database
    cluster    TEXT    NOT NULL,
    job        TEXT    NOT NULL, -- telemetry::training::JobId
    attempt    INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    heard_ms   INTEGER NOT NULL, -- a few minutes behind while it runs
    ended_ms   INTEGER,          -- null while it runs, or fell silent
    cause      TEXT,             -- analysis::ending::Cause; null while it is not judged
    facts      TEXT    NOT NULL, -- JSON: fingerprint, tags, plan, ending (server/runs/facts.rs)
    UNIQUE (lease, cluster, job, attempt)
) STRICT;
CREATE INDEX run_by_start ON run (lease, started_ms, id);
CREATE INDEX run_by_heard ON run (lease, heard_ms, id);

-- One process of a run.
CREATE TABLE rank (
    run   INTEGER NOT NULL,
    rank  INTEGER NOT NULL,
    facts TEXT    NOT NULL, -- JSON: place, end, exception, last readings (server/runs/facts.rs)
    PRIMARY KEY (run, rank)
) STRICT, WITHOUT ROWID;

-- Ten minutes of a rank's steps. With a rowid, so that SQLite fills the pages on which long rows go on.
CREATE TABLE step_block (
    bucket INTEGER NOT NULL, -- minutes since the Unix epoch / 10
    run    INTEGER NOT NULL,
    rank   INTEGER NOT NULL,
    data   BLOB    NOT NULL, -- telemetry::steps
    PRIMARY KEY (bucket, run, rank)
) STRICT;
