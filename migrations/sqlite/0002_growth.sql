-- What grows: each row that is moved or forgotten by itself is found by an index, whatever lies around it.

-- Waiting deliveries of one endpoint, to be parked with it.
CREATE INDEX twiceproof_deliveries_backoff_lane ON twiceproof_deliveries (tenant, endpoint) WHERE state = 'backoff';
-- Emptied keys, to be forgotten.
CREATE INDEX twiceproof_ledger_expired ON twiceproof_ledger (expires_at) WHERE state = 'expired';
-- Requests kept for review, to be forgotten.
CREATE INDEX twiceproof_conflicts_seen ON twiceproof_conflicts (last_seen_at);
