-- From when to when nodes were there, for what they cost: one that was made anew under its name has a life
-- of its own.
CREATE TABLE inventory_life (
    lease     TEXT    NOT NULL, -- the server's that sees them
    cluster   TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    billed_ms BIGINT  NOT NULL, -- since when it is billed
    gone_ms   BIGINT  NOT NULL, -- until when; 0 while it is there
    data      TEXT    NOT NULL, -- all of it, as JSON
    PRIMARY KEY (lease, cluster, name, billed_ms)
);
CREATE INDEX inventory_life_by_end ON inventory_life (lease, gone_ms);
INSERT INTO inventory_life (lease, cluster, name, billed_ms, gone_ms, data)
    SELECT lease, cluster, name, billed_ms, gone_ms, data FROM inventory_node;

-- Up to when the nodes of a cluster were seen.
CREATE TABLE inventory_seen (
    lease   TEXT    NOT NULL,
    cluster TEXT    NOT NULL,
    seen_ms BIGINT  NOT NULL,
    PRIMARY KEY (lease, cluster)
);
