-- Servers before this wrote down from when on all runs are kept only when they deleted some after they had learned
-- to. What was deleted earlier left a trace: nothing is older than the oldest run or event that is left, though there
-- were GPUs. Before that nobody knows how often Spot was preempted, which is not never.
INSERT INTO horizon (lease, name, value)
SELECT s.lease, 'runs', COALESCE(k.since, s.until_ms)
FROM (
    SELECT o.lease AS lease, MIN(o.first_seen_ms) AS since_ms, MAX(n.last_seen_ms) AS until_ms
    FROM subject o JOIN subject_seen n ON n.subject = o.id GROUP BY o.lease
) s
LEFT JOIN (
    SELECT x.lease AS lease, MIN(x.at_ms) AS since FROM (
        SELECT lease, at_ms FROM event UNION ALL SELECT lease, heard_ms AS at_ms FROM run
    ) x GROUP BY x.lease
) k ON k.lease = s.lease
WHERE COALESCE(k.since, s.until_ms) > s.since_ms + 86400000
ON CONFLICT (lease, name) DO NOTHING;

-- By which version of the server an hour was computed (major × 1,000,000 + minor × 1,000 + patch); 0 is one before
-- this was written down. A final hour that another version computes again may differ by its rules too.
ALTER TABLE ledger_hour ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
