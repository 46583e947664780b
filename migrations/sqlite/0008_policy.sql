-- Delivery policy by endpoint: what the claim, the record and the publish read of it, and what they keep.

-- How long after its creation a delivery to it may be tried, in milliseconds; none: the publisher's.
ALTER TABLE twiceproof_endpoints ADD COLUMN horizon_ms INTEGER CHECK (horizon_ms > 0);
-- The first failure since it last answered 2xx.
ALTER TABLE twiceproof_endpoints ADD COLUMN failing_since INTEGER;
-- The circuit breaker: how often it opened in a row, until when it is open, how much may be under way while it comes back, and
-- until when its probe holds.
ALTER TABLE twiceproof_endpoints ADD COLUMN breaker_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE twiceproof_endpoints ADD COLUMN breaker_until INTEGER;
ALTER TABLE twiceproof_endpoints ADD COLUMN breaker_ramp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE twiceproof_endpoints ADD COLUMN probe_until INTEGER;
-- It asked to be sent nothing before.
ALTER TABLE twiceproof_endpoints ADD COLUMN throttled_until INTEGER;
-- Where there is a rate limit: when the next delivery may be claimed, in microseconds.
ALTER TABLE twiceproof_endpoints ADD COLUMN next_free_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE twiceproof_tenants ADD COLUMN next_free_us INTEGER NOT NULL DEFAULT 0;
-- Claims know the tenant, not its organisation.
CREATE INDEX twiceproof_tenants_limited ON twiceproof_tenants (id) WHERE rate_limit IS NOT NULL;
