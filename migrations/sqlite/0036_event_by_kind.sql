-- Charts and Today ask what happened of one kind in a time.
CREATE INDEX event_by_kind ON event (lease, kind, at_ms, id);
-- SQLite was never told what is in the table, and takes any condition for as rare as another: it looked for the events of one
-- GPU, or of one kind, among all of their time. So: one lease has all of them, some kinds share them, a resource has few. The
-- first line makes the table of such figures, the last one reads them.
ANALYZE sqlite_schema;
DELETE FROM sqlite_stat1 WHERE tbl = 'event';
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('event', 'event_by_time', '1000000 1000000 2 1'),
    ('event', 'event_by_kind', '1000000 1000000 30000 2 1'),
    ('event', 'event_by_resource', '1000000 1000000 500000 200000 20 2 1');
ANALYZE sqlite_schema;
