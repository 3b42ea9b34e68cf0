-- The ledger asks of each hour which runs stood still in it: incidents of one family that are open, or ended after it began.
CREATE INDEX incident_by_family ON incident (lease, family, resolved_ms);
