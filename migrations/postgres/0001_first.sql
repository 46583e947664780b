-- The first schema. Times are milliseconds since the Unix epoch, ids and states are text, bodies are raw bytes.
-- Every unique index below the organisation starts with the tenant; `seq` gives the order.

CREATE TABLE twiceproof_organisations (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL,
    created_at  BIGINT NOT NULL
);

CREATE TABLE twiceproof_tenants (
    organisation TEXT COLLATE "C" NOT NULL,
    id           TEXT COLLATE "C" NOT NULL,
    uid          TEXT COLLATE "C",
    name         TEXT COLLATE "C" NOT NULL,
    created_at   BIGINT NOT NULL,
    PRIMARY KEY (organisation, id)
);
CREATE UNIQUE INDEX twiceproof_tenants_uid ON twiceproof_tenants (organisation, uid) WHERE uid IS NOT NULL;

CREATE TABLE twiceproof_event_types (
    organisation TEXT COLLATE "C" NOT NULL,
    name         TEXT COLLATE "C" NOT NULL,
    description  TEXT COLLATE "C" NOT NULL DEFAULT '',
    archived     BIGINT NOT NULL DEFAULT 0 CHECK (archived IN (0, 1)),
    created_at   BIGINT NOT NULL,
    PRIMARY KEY (organisation, name)
);

-- Worker processes: one row for each incarnation.
CREATE TABLE twiceproof_workers (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    started_at   BIGINT NOT NULL,
    heartbeat_at BIGINT NOT NULL
);

CREATE TABLE twiceproof_endpoints (
    tenant          TEXT COLLATE "C" NOT NULL,
    id              TEXT COLLATE "C" NOT NULL,
    uid             TEXT COLLATE "C",
    url             TEXT COLLATE "C" NOT NULL,
    description     TEXT COLLATE "C" NOT NULL DEFAULT '',
    state           TEXT COLLATE "C" NOT NULL CHECK (state IN ('enabled', 'disabled')),
    state_reason    TEXT COLLATE "C",
    all_event_types BIGINT NOT NULL CHECK (all_event_types IN (0, 1)),
    timeout_ms      BIGINT NOT NULL CHECK (timeout_ms > 0),
    slots           BIGINT NOT NULL CHECK (slots > 0),
    last_success_at BIGINT,
    last_failure_at BIGINT,
    failures_in_row BIGINT NOT NULL DEFAULT 0,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX twiceproof_endpoints_uid ON twiceproof_endpoints (tenant, uid) WHERE uid IS NOT NULL;

CREATE TABLE twiceproof_endpoint_event_types (
    tenant     TEXT COLLATE "C" NOT NULL,
    endpoint   TEXT COLLATE "C" NOT NULL,
    event_type TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, endpoint, event_type)
);
CREATE INDEX twiceproof_endpoint_event_types_type ON twiceproof_endpoint_event_types (tenant, event_type, endpoint);

CREATE TABLE twiceproof_endpoint_secrets (
    tenant     TEXT COLLATE "C" NOT NULL,
    endpoint   TEXT COLLATE "C" NOT NULL,
    key_id     TEXT COLLATE "C" NOT NULL,
    secret     BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    PRIMARY KEY (tenant, endpoint, key_id)
);

CREATE TABLE twiceproof_events (
    seq          BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant       TEXT COLLATE "C" NOT NULL,
    id           TEXT COLLATE "C" NOT NULL,
    uid          TEXT COLLATE "C",
    event_type   TEXT COLLATE "C" NOT NULL,
    content_type TEXT COLLATE "C" NOT NULL,
    payload      BYTEA NOT NULL,
    digest       BYTEA NOT NULL,
    channels     TEXT COLLATE "C" NOT NULL DEFAULT '[]',
    ordering_key TEXT COLLATE "C",
    created_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX twiceproof_events_id ON twiceproof_events (tenant, id);
CREATE UNIQUE INDEX twiceproof_events_uid ON twiceproof_events (tenant, uid) WHERE uid IS NOT NULL;

-- One event owed to one endpoint. The row is the queue.
CREATE TABLE twiceproof_deliveries (
    seq         BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant      TEXT COLLATE "C" NOT NULL,
    event       TEXT COLLATE "C" NOT NULL,
    endpoint    TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL CHECK (state IN ('pending', 'backoff', 'leased', 'parked', 'delivered', 'dead')),
    state_reason TEXT COLLATE "C",
    due_at      BIGINT NOT NULL,
    deadline_at BIGINT NOT NULL,
    attempts    BIGINT NOT NULL DEFAULT 0,
    token       BIGINT NOT NULL DEFAULT 0,
    lease_owner TEXT COLLATE "C",
    lease_until BIGINT NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL,
    final_at    BIGINT
);
CREATE UNIQUE INDEX twiceproof_deliveries_key ON twiceproof_deliveries (tenant, event, endpoint);
CREATE INDEX twiceproof_deliveries_pending ON twiceproof_deliveries (endpoint, seq) WHERE state = 'pending';
CREATE INDEX twiceproof_deliveries_backoff ON twiceproof_deliveries (due_at) WHERE state = 'backoff';
CREATE INDEX twiceproof_deliveries_leased ON twiceproof_deliveries (lease_until) WHERE state = 'leased';
CREATE INDEX twiceproof_deliveries_parked ON twiceproof_deliveries (tenant, endpoint, seq) WHERE state = 'parked';

CREATE TABLE twiceproof_attempts (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant     TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    event      TEXT COLLATE "C" NOT NULL,
    endpoint   TEXT COLLATE "C" NOT NULL,
    number     BIGINT NOT NULL,
    token      BIGINT NOT NULL,
    outcome    TEXT COLLATE "C" NOT NULL CHECK (outcome IN ('delivered', 'refused', 'not_sent', 'unknown')),
    late       BIGINT NOT NULL DEFAULT 0 CHECK (late IN (0, 1)),
    status     BIGINT,
    error      TEXT COLLATE "C",
    response   BYTEA,
    started_at BIGINT NOT NULL,
    ended_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX twiceproof_attempts_id ON twiceproof_attempts (tenant, id);
CREATE INDEX twiceproof_attempts_delivery ON twiceproof_attempts (tenant, event, endpoint, seq);

-- The ledger: which keys were processed, and what was answered.
CREATE TABLE twiceproof_ledger (
    tenant              TEXT COLLATE "C" NOT NULL,
    scope               TEXT COLLATE "C" NOT NULL,
    key                 TEXT COLLATE "C" NOT NULL,
    state               TEXT COLLATE "C" NOT NULL CHECK (state IN ('claimed', 'done', 'expired')),
    key_rule            TEXT COLLATE "C" NOT NULL DEFAULT '',
    parameters          TEXT COLLATE "C",
    digest              BYTEA NOT NULL,
    fingerprint         BYTEA NOT NULL,
    fingerprint_version BIGINT NOT NULL,
    outcome_status      BIGINT,
    outcome_headers     TEXT COLLATE "C",
    outcome_body        BYTEA,
    request_headers     TEXT COLLATE "C",
    request_body        BYTEA,
    token               BIGINT NOT NULL DEFAULT 0,
    lease_owner         TEXT COLLATE "C",
    lease_until         BIGINT NOT NULL DEFAULT 0,
    first_seen_at       BIGINT NOT NULL,
    done_at             BIGINT,
    expires_at          BIGINT NOT NULL,
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX twiceproof_ledger_expiry ON twiceproof_ledger (expires_at) WHERE state = 'done';

-- Requests that used a known key with another payload: kept for review, never applied by themselves.
CREATE TABLE twiceproof_conflicts (
    tenant          TEXT COLLATE "C" NOT NULL,
    scope           TEXT COLLATE "C" NOT NULL,
    key             TEXT COLLATE "C" NOT NULL,
    digest          BYTEA NOT NULL,
    request_headers TEXT COLLATE "C" NOT NULL,
    request_body    BYTEA NOT NULL,
    state           TEXT COLLATE "C" NOT NULL CHECK (state IN ('open', 'released', 'dropped')),
    seen_count      BIGINT NOT NULL DEFAULT 1,
    first_seen_at   BIGINT NOT NULL,
    last_seen_at    BIGINT NOT NULL,
    PRIMARY KEY (tenant, scope, key, digest)
);
CREATE INDEX twiceproof_conflicts_open ON twiceproof_conflicts (tenant, first_seen_at) WHERE state = 'open';

-- How the keys of a scope are built; versions are never edited.
CREATE TABLE twiceproof_key_rules (
    tenant     TEXT COLLATE "C" NOT NULL,
    scope      TEXT COLLATE "C" NOT NULL,
    version    BIGINT NOT NULL,
    rule       TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, scope, version)
);
