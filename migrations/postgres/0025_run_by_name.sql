-- Names of jobs sort by their bytes, as on SQLite: so those of one name are a range of the index of names, whatever
-- order of words the database was made with.
ALTER TABLE run ALTER COLUMN job TYPE TEXT COLLATE "C";
