-- When in an hour its time is, JSON: [[from, until], …], seconds of the hour; empty of a whole hour, and of hours of
-- before, of which nobody wrote it down.
ALTER TABLE ledger_hour ADD COLUMN spans TEXT NOT NULL DEFAULT '';
