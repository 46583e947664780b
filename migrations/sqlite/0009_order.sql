-- Deliveries in the order of a key, that expire, or that are made at most once; fan-outs that are too wide for one transaction.
-- The table is made anew because SQLite cannot change a CHECK.

CREATE TABLE twiceproof_deliveries_new (
    seq           INTEGER NOT NULL PRIMARY KEY,
    tenant        TEXT NOT NULL,
    event         TEXT NOT NULL,
    endpoint      TEXT NOT NULL,
    -- 'blocked': it waits for an earlier one with its ordering key. Without a reason nobody has looked yet whether there is one.
    state         TEXT NOT NULL
        CHECK (state IN ('pending', 'backoff', 'leased', 'parked', 'blocked', 'delivered', 'dead')),
    state_reason  TEXT,
    due_at        INTEGER NOT NULL,
    deadline_at   INTEGER NOT NULL,
    attempts      INTEGER NOT NULL DEFAULT 0,
    token         INTEGER NOT NULL DEFAULT 0,
    lease_owner   TEXT,
    lease_until   INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL,
    final_at      INTEGER,
    resume_state  TEXT CHECK (resume_state IN ('backoff', 'delivered', 'dead')),
    resume_reason TEXT,
    resume_due_at INTEGER,
    -- Of its event; those of one endpoint with the same key are made one after another.
    ordering_key  TEXT,
    -- Of its event: from then on it is not sent any more.
    expires_at    INTEGER,
    -- 1: what may have been sent is not sent again.
    at_most_once  INTEGER NOT NULL DEFAULT 0 CHECK (at_most_once IN (0, 1))
) STRICT;
INSERT INTO twiceproof_deliveries_new
    (seq, tenant, event, endpoint, state, state_reason, due_at, deadline_at, attempts, token, lease_owner, lease_until,
     created_at, final_at, resume_state, resume_reason, resume_due_at)
SELECT seq, tenant, event, endpoint, state, state_reason, due_at, deadline_at, attempts, token, lease_owner, lease_until,
     created_at, final_at, resume_state, resume_reason, resume_due_at
FROM twiceproof_deliveries;
DROP TABLE twiceproof_deliveries;
ALTER TABLE twiceproof_deliveries_new RENAME TO twiceproof_deliveries;

CREATE UNIQUE INDEX twiceproof_deliveries_key ON twiceproof_deliveries (tenant, event, endpoint);
CREATE INDEX twiceproof_deliveries_pending ON twiceproof_deliveries (endpoint, seq) WHERE state = 'pending';
CREATE INDEX twiceproof_deliveries_backoff ON twiceproof_deliveries (due_at) WHERE state = 'backoff';
CREATE INDEX twiceproof_deliveries_leased ON twiceproof_deliveries (lease_until) WHERE state = 'leased';
CREATE INDEX twiceproof_deliveries_parked ON twiceproof_deliveries (tenant, endpoint, seq) WHERE state = 'parked';
CREATE INDEX twiceproof_deliveries_backoff_lane ON twiceproof_deliveries (tenant, endpoint) WHERE state = 'backoff';
CREATE INDEX twiceproof_deliveries_endpoint ON twiceproof_deliveries (tenant, endpoint, event);
-- What waits behind others, by key; what is to be looked at first; and the one of each key that is not behind any.
CREATE INDEX twiceproof_deliveries_blocked ON twiceproof_deliveries (tenant, endpoint, ordering_key, seq)
    WHERE state = 'blocked';
CREATE INDEX twiceproof_deliveries_unplaced ON twiceproof_deliveries (seq) WHERE state = 'blocked' AND state_reason IS NULL;
CREATE INDEX twiceproof_deliveries_heads ON twiceproof_deliveries (tenant, endpoint, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('pending', 'backoff', 'leased', 'parked');
-- What is to expire.
CREATE INDEX twiceproof_deliveries_expiry ON twiceproof_deliveries (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('pending', 'backoff', 'parked');

ALTER TABLE twiceproof_events ADD COLUMN expires_at INTEGER;
CREATE INDEX twiceproof_event_types_at_most_once ON twiceproof_event_types (name) WHERE guarantee = 'at_most_once';
-- Whose an event type is: fan-outs know the tenant, not its organisation.
CREATE INDEX twiceproof_tenants_id ON twiceproof_tenants (id);

-- An event of a tenant with many endpoints, on its way to them.
CREATE TABLE twiceproof_fan_outs (
    seq            INTEGER NOT NULL PRIMARY KEY,
    tenant         TEXT NOT NULL,
    event          TEXT NOT NULL,
    -- Endpoints up to this one have their deliveries.
    after_endpoint TEXT NOT NULL DEFAULT '',
    deadline_at    INTEGER NOT NULL,
    created_at     INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX twiceproof_fan_outs_event ON twiceproof_fan_outs (tenant, event);
CREATE INDEX twiceproof_fan_outs_turn ON twiceproof_fan_outs (tenant, seq);
