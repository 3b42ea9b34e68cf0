-- Charts and Today ask what happened of one kind in a time.
CREATE INDEX event_by_kind ON event (lease, kind, at_ms, id);
-- Resources sort by their bytes, as on SQLite: so the ranks of one run are a range of the index of resources, whatever order
-- of words the database was made with.
ALTER TABLE event ALTER COLUMN resource_id TYPE TEXT COLLATE "C";
