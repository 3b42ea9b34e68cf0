-- Servers of several clusters share one database, each with a lease of its own. What a server has
-- written says under which lease, and a server reads, computes and deletes only what is its own.
-- Rows that are there already belong to the lease that committed most; there was one as a rule.
CREATE TABLE lease_before AS
    SELECT COALESCE((SELECT lease FROM commit_log ORDER BY number DESC, lease LIMIT 1), 'gpufleet')
        AS name;

ALTER TABLE subject ADD COLUMN lease TEXT;
UPDATE subject SET lease = (SELECT name FROM lease_before);
ALTER TABLE subject ALTER COLUMN lease SET NOT NULL;
ALTER TABLE subject DROP CONSTRAINT subject_cluster_kind_resource_id_key;
ALTER TABLE subject ADD UNIQUE (lease, cluster, kind, resource_id);

ALTER TABLE agent_cursor ADD COLUMN lease TEXT;
UPDATE agent_cursor SET lease = (SELECT name FROM lease_before);
ALTER TABLE agent_cursor DROP CONSTRAINT agent_cursor_pkey;
ALTER TABLE agent_cursor ADD PRIMARY KEY (lease, agent, epoch, stream);

ALTER TABLE gap ADD COLUMN lease TEXT;
UPDATE gap SET lease = (SELECT name FROM lease_before);
ALTER TABLE gap DROP CONSTRAINT gap_pkey;
ALTER TABLE gap ADD PRIMARY KEY (lease, agent, epoch, stream, first);

ALTER TABLE foreign_mark ADD COLUMN lease TEXT;
UPDATE foreign_mark SET lease = (SELECT name FROM lease_before);
ALTER TABLE foreign_mark DROP CONSTRAINT foreign_mark_pkey;
ALTER TABLE foreign_mark ADD PRIMARY KEY (lease, series);

ALTER TABLE event ADD COLUMN lease TEXT;
UPDATE event SET lease = (SELECT name FROM lease_before);
ALTER TABLE event ALTER COLUMN lease SET NOT NULL;
DROP INDEX event_by_time;
CREATE INDEX event_by_time ON event (lease, at_ms, id);
DROP INDEX event_by_resource;
CREATE INDEX event_by_resource ON event (lease, cluster, resource_kind, resource_id, at_ms, id);

ALTER TABLE set_aside ADD COLUMN lease TEXT;
UPDATE set_aside SET lease = (SELECT name FROM lease_before);
ALTER TABLE set_aside ALTER COLUMN lease SET NOT NULL;

ALTER TABLE horizon ADD COLUMN lease TEXT;
UPDATE horizon SET lease = (SELECT name FROM lease_before);
ALTER TABLE horizon DROP CONSTRAINT horizon_pkey;
ALTER TABLE horizon ADD PRIMARY KEY (lease, name);

DROP TABLE lease_before;
