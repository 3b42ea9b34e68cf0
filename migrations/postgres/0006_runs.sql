-- One attempt of a job. Its id stands for it in rank and step_block.
CREATE TABLE run (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease      TEXT   NOT NULL, -- whose it is, where several servers share a database
    cluster    TEXT   NOT NULL,
    job        TEXT   NOT NULL, -- telemetry::training::JobId
    attempt    BIGINT NOT NULL,
    started_ms BIGINT NOT NULL,
    heard_ms   BIGINT NOT NULL, -- a few minutes behind while it runs
    ended_ms   BIGINT,          -- null while it runs, or fell silent
    cause      TEXT,            -- analysis::ending::Cause; null while it is not judged
    facts      TEXT   NOT NULL, -- JSON: fingerprint, tags, plan, ending (server/runs/facts.rs)
    UNIQUE (lease, cluster, job, attempt)
);
CREATE INDEX run_by_start ON run (lease, started_ms, id);
CREATE INDEX run_by_heard ON run (lease, heard_ms, id);

-- One process of a run.
CREATE TABLE rank (
    run   BIGINT NOT NULL,
    rank  BIGINT NOT NULL,
    facts TEXT   NOT NULL, -- JSON: place, end, exception, last readings (server/runs/facts.rs)
    PRIMARY KEY (run, rank)
);

-- Ten minutes of a rank's steps.
CREATE TABLE step_block (
    bucket BIGINT NOT NULL, -- minutes since the Unix epoch / 10
    run    BIGINT NOT NULL,
    rank   BIGINT NOT NULL,
    data   BYTEA  NOT NULL, -- telemetry::steps
    PRIMARY KEY (bucket, run, rank)
);
-- Packed data does not compress.
ALTER TABLE step_block ALTER COLUMN data SET STORAGE EXTERNAL;
