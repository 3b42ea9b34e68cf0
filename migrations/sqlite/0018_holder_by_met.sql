-- The holders of whom no day is left are found by when one was last noted.
CREATE INDEX holder_by_met ON holder (lease, met_ms);
