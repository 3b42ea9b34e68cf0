-- Names of jobs sort by their bytes: here they do, PostgreSQL has to be told.
SELECT 1;
