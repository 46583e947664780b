-- The dispatcher as a service: what its API keeps of tenants, event types, endpoints and attempts beside the first schema.

ALTER TABLE twiceproof_tenants ADD COLUMN metadata TEXT COLLATE "C" NOT NULL DEFAULT '{}';
-- Deliveries per second, over all of the tenant's endpoints.
ALTER TABLE twiceproof_tenants ADD COLUMN rate_limit BIGINT CHECK (rate_limit > 0);
ALTER TABLE twiceproof_tenants ADD COLUMN updated_at BIGINT NOT NULL DEFAULT 0;

ALTER TABLE twiceproof_event_types ADD COLUMN schemas TEXT COLLATE "C";
ALTER TABLE twiceproof_event_types ADD COLUMN feature_flag TEXT COLLATE "C";
ALTER TABLE twiceproof_event_types ADD COLUMN deprecated BIGINT NOT NULL DEFAULT 0 CHECK (deprecated IN (0, 1));
ALTER TABLE twiceproof_event_types ADD COLUMN guarantee TEXT COLLATE "C" NOT NULL DEFAULT 'at_least_once'
    CHECK (guarantee IN ('at_least_once', 'at_most_once'));
ALTER TABLE twiceproof_event_types ADD COLUMN updated_at BIGINT NOT NULL DEFAULT 0;

-- A sorted JSON array; '[]': events of all channels, and those without one.
ALTER TABLE twiceproof_endpoints ADD COLUMN channels TEXT COLLATE "C" NOT NULL DEFAULT '[]';
-- A JSON object of the headers that its owner wants to see. Values may be credentials.
ALTER TABLE twiceproof_endpoints ADD COLUMN headers TEXT COLLATE "C" NOT NULL DEFAULT '{}';
ALTER TABLE twiceproof_endpoints ADD COLUMN metadata TEXT COLLATE "C" NOT NULL DEFAULT '{}';
-- Deliveries per second.
ALTER TABLE twiceproof_endpoints ADD COLUMN rate_limit BIGINT CHECK (rate_limit > 0);
-- A JSON object: what differs from the worker's own schedule, horizon and rules.
ALTER TABLE twiceproof_endpoints ADD COLUMN policy TEXT COLLATE "C" NOT NULL DEFAULT '{}';
-- A JSON object: names of the signature headers, and signatures of other styles beside them.
ALTER TABLE twiceproof_endpoints ADD COLUMN signing TEXT COLLATE "C" NOT NULL DEFAULT '{}';

-- The payload was taken away before its time; digest and length of nothing stay.
ALTER TABLE twiceproof_events ADD COLUMN expunged_at BIGINT;

-- A delivery that was sent again by hand goes back to this if that fails.
ALTER TABLE twiceproof_deliveries ADD COLUMN resume_state TEXT COLLATE "C" CHECK (resume_state IN ('backoff', 'delivered', 'dead'));
ALTER TABLE twiceproof_deliveries ADD COLUMN resume_reason TEXT COLLATE "C";
ALTER TABLE twiceproof_deliveries ADD COLUMN resume_due_at BIGINT;
-- What one endpoint was owed, in the order of the events.
CREATE INDEX twiceproof_deliveries_endpoint ON twiceproof_deliveries (tenant, endpoint, event);

ALTER TABLE twiceproof_attempts ADD COLUMN by_hand BIGINT NOT NULL DEFAULT 0 CHECK (by_hand IN (0, 1));
-- Where the time went, in milliseconds since the start; the end is `ended_at`.
ALTER TABLE twiceproof_attempts ADD COLUMN resolved_ms BIGINT;
ALTER TABLE twiceproof_attempts ADD COLUMN connected_ms BIGINT;
ALTER TABLE twiceproof_attempts ADD COLUMN answered_ms BIGINT;
-- What was tried at one endpoint.
CREATE INDEX twiceproof_attempts_endpoint ON twiceproof_attempts (tenant, endpoint, id);
