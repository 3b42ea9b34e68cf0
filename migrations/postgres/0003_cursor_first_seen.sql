-- When an epoch was first heard: what an older epoch of the same agent still had to send is older.
-- Of epochs that are there already it is not known; the last time is later, so it is safe.
ALTER TABLE agent_cursor ADD COLUMN first_seen_ms BIGINT NOT NULL DEFAULT 0;
UPDATE agent_cursor SET first_seen_ms = seen_ms;
