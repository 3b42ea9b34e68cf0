-- Since when nodes were in which phase, as far as it was seen: what their GPUs could be used for at a moment
-- that is over. A phase holds until the next one of its node.
CREATE TABLE inventory_phase (
    lease   TEXT    NOT NULL, -- the server's that sees them
    cluster TEXT    NOT NULL,
    short   TEXT    NOT NULL, -- the node's name without its domain
    node    TEXT    NOT NULL,
    from_ms INTEGER NOT NULL,
    phase   TEXT    NOT NULL, -- analysis::inventory::Phase
    PRIMARY KEY (lease, cluster, short, node, from_ms)
) STRICT, WITHOUT ROWID;
CREATE INDEX inventory_phase_by_age ON inventory_phase (lease, from_ms);

-- What was told of nodes until now, in the words in which it was written.
INSERT INTO inventory_phase (lease, cluster, short, node, from_ms, phase)
    SELECT lease, cluster,
        CASE WHEN node GLOB '*[^0-9.]*' AND instr(node, '.') > 0
            THEN substr(node, 1, instr(node, '.') - 1) ELSE node END,
        node, at_ms,
        MAX(CASE WHEN what = 'is cordoned' THEN 'cordoned' WHEN what = 'is gone' THEN 'gone'
            WHEN what LIKE 'is not ready any more%' THEN 'not_ready' ELSE 'ready' END)
    FROM inventory_change
    WHERE what IN ('is ready', 'takes work again', 'is cordoned', 'is gone')
        OR what LIKE 'is not ready any more%'
    GROUP BY lease, cluster, node, at_ms;

-- Of time below a target: what was missing to it, milliseconds.
ALTER TABLE ledger_time ADD COLUMN lost_ms INTEGER NOT NULL DEFAULT 0;
