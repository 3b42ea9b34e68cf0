-- The nodes of a cluster from their first moment to their last, as the cluster tells them.
CREATE TABLE inventory_node (
    lease      TEXT    NOT NULL, -- the server's that sees them
    cluster    TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    billed_ms  INTEGER NOT NULL, -- since when it is billed
    ready_ms   INTEGER NOT NULL, -- when it was first ready with GPUs to give out; 0 before
    gone_ms    INTEGER NOT NULL, -- when it was seen to be gone; 0 before
    data       TEXT    NOT NULL, -- all of it, as JSON
    PRIMARY KEY (lease, cluster, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX inventory_node_by_end ON inventory_node (lease, gone_ms);

-- What happened to them.
CREATE TABLE inventory_change (
    lease   TEXT    NOT NULL,
    cluster TEXT    NOT NULL,
    at_ms   INTEGER NOT NULL,
    node    TEXT    NOT NULL,
    what    TEXT    NOT NULL, -- the end of a sentence that begins with the node's name
    PRIMARY KEY (lease, cluster, at_ms, node, what)
) STRICT, WITHOUT ROWID;
CREATE INDEX inventory_change_by_age ON inventory_change (lease, at_ms);
