-- What grows: each row that is moved or forgotten by itself is found by an index, whatever lies around it.

-- Waiting deliveries of one endpoint, to be parked with it.
CREATE INDEX twiceproof_deliveries_backoff_lane ON twiceproof_deliveries (tenant, endpoint) WHERE state = 'backoff';
-- Emptied keys, to be forgotten.
CREATE INDEX twiceproof_ledger_expired ON twiceproof_ledger (expires_at) WHERE state = 'expired';
-- Requests kept for review, to be forgotten.
CREATE INDEX twiceproof_conflicts_seen ON twiceproof_conflicts (last_seen_at);

-- Rows that changed are tidied up after a share of the table that stays small when the table does not: what has been
-- delivered leaves dead entries in the partial indexes that the claims walk, until a vacuum.
ALTER TABLE twiceproof_deliveries SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000);
ALTER TABLE twiceproof_deliveries SET (autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE twiceproof_events SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE twiceproof_attempts SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE twiceproof_ledger SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- Health is written into the same few rows all the time, in columns without an index: room to do it in place.
ALTER TABLE twiceproof_endpoints SET (fillfactor = 50);
