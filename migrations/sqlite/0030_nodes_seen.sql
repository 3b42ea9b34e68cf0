-- Of the time in which it was seen who waits, for how long the nodes were seen too. Of hours of before nobody wrote it
-- down: days of these alone do not count as looked at.
ALTER TABLE demand_hour ADD COLUMN nodes_seen_ms INTEGER NOT NULL DEFAULT 0;
