-- The first schema. Times are milliseconds since the Unix epoch, ids and states are text, bodies are raw bytes.
-- Every unique index below the organisation starts with the tenant; `seq` is SQLite's rowid and gives the order.

CREATE TABLE twiceproof_organisations (
    id          TEXT NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL,
    created_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE twiceproof_tenants (
    organisation TEXT NOT NULL,
    id           TEXT NOT NULL,
    uid          TEXT,
    name         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (organisation, id)
) STRICT;
CREATE UNIQUE INDEX twiceproof_tenants_uid ON twiceproof_tenants (organisation, uid) WHERE uid IS NOT NULL;

CREATE TABLE twiceproof_event_types (
    organisation TEXT NOT NULL,
    name         TEXT NOT NULL,
    description  TEXT NOT NULL DEFAULT '',
    archived     INTEGER NOT NULL DEFAULT 0 CHECK (archived IN (0, 1)),
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (organisation, name)
) STRICT;

-- Worker processes: one row for each incarnation.
CREATE TABLE twiceproof_workers (
    id           TEXT NOT NULL PRIMARY KEY,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL
) STRICT;

CREATE TABLE twiceproof_endpoints (
    tenant          TEXT NOT NULL,
    id              TEXT NOT NULL,
    uid             TEXT,
    url             TEXT NOT NULL,
    description     TEXT NOT NULL DEFAULT '',
    state           TEXT NOT NULL CHECK (state IN ('enabled', 'disabled')),
    state_reason    TEXT,
    all_event_types INTEGER NOT NULL CHECK (all_event_types IN (0, 1)),
    timeout_ms      INTEGER NOT NULL CHECK (timeout_ms > 0),
    slots           INTEGER NOT NULL CHECK (slots > 0),
    last_success_at INTEGER,
    last_failure_at INTEGER,
    failures_in_row INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT;
CREATE UNIQUE INDEX twiceproof_endpoints_uid ON twiceproof_endpoints (tenant, uid) WHERE uid IS NOT NULL;

CREATE TABLE twiceproof_endpoint_event_types (
    tenant     TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    event_type TEXT NOT NULL,
    PRIMARY KEY (tenant, endpoint, event_type)
) STRICT;
CREATE INDEX twiceproof_endpoint_event_types_type ON twiceproof_endpoint_event_types (tenant, event_type, endpoint);

CREATE TABLE twiceproof_endpoint_secrets (
    tenant     TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    secret     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (tenant, endpoint, key_id)
) STRICT;

CREATE TABLE twiceproof_events (
    seq          INTEGER NOT NULL PRIMARY KEY,
    tenant       TEXT NOT NULL,
    id           TEXT NOT NULL,
    uid          TEXT,
    event_type   TEXT NOT NULL,
    content_type TEXT NOT NULL,
    payload      BLOB NOT NULL,
    digest       BLOB NOT NULL,
    channels     TEXT NOT NULL DEFAULT '[]',
    ordering_key TEXT,
    created_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX twiceproof_events_id ON twiceproof_events (tenant, id);
CREATE UNIQUE INDEX twiceproof_events_uid ON twiceproof_events (tenant, uid) WHERE uid IS NOT NULL;

-- One event owed to one endpoint. The row is the queue.
CREATE TABLE twiceproof_deliveries (
    seq         INTEGER NOT NULL PRIMARY KEY,
    tenant      TEXT NOT NULL,
    event       TEXT NOT NULL,
    endpoint    TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'backoff', 'leased', 'parked', 'delivered', 'dead')),
    state_reason TEXT,
    due_at      INTEGER NOT NULL,
    deadline_at INTEGER NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    token       INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_until INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    final_at    INTEGER
) STRICT;
CREATE UNIQUE INDEX twiceproof_deliveries_key ON twiceproof_deliveries (tenant, event, endpoint);
CREATE INDEX twiceproof_deliveries_pending ON twiceproof_deliveries (endpoint, seq) WHERE state = 'pending';
CREATE INDEX twiceproof_deliveries_backoff ON twiceproof_deliveries (due_at) WHERE state = 'backoff';
CREATE INDEX twiceproof_deliveries_leased ON twiceproof_deliveries (lease_until) WHERE state = 'leased';
CREATE INDEX twiceproof_deliveries_parked ON twiceproof_deliveries (tenant, endpoint, seq) WHERE state = 'parked';

CREATE TABLE twiceproof_attempts (
    seq        INTEGER NOT NULL PRIMARY KEY,
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    event      TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    number     INTEGER NOT NULL,
    token      INTEGER NOT NULL,
    outcome    TEXT NOT NULL CHECK (outcome IN ('delivered', 'refused', 'not_sent', 'unknown')),
    late       INTEGER NOT NULL DEFAULT 0 CHECK (late IN (0, 1)),
    status     INTEGER,
    error      TEXT,
    response   BLOB,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX twiceproof_attempts_id ON twiceproof_attempts (tenant, id);
CREATE INDEX twiceproof_attempts_delivery ON twiceproof_attempts (tenant, event, endpoint, seq);

-- The ledger: which keys were processed, and what was answered.
CREATE TABLE twiceproof_ledger (
    tenant              TEXT NOT NULL,
    scope               TEXT NOT NULL,
    key                 TEXT NOT NULL,
    state               TEXT NOT NULL CHECK (state IN ('claimed', 'done', 'expired')),
    key_rule            TEXT NOT NULL DEFAULT '',
    parameters          TEXT,
    digest              BLOB NOT NULL,
    fingerprint         BLOB NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    outcome_status      INTEGER,
    outcome_headers     TEXT,
    outcome_body        BLOB,
    request_headers     TEXT,
    request_body        BLOB,
    token               INTEGER NOT NULL DEFAULT 0,
    lease_owner         TEXT,
    lease_until         INTEGER NOT NULL DEFAULT 0,
    first_seen_at       INTEGER NOT NULL,
    done_at             INTEGER,
    expires_at          INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, key)
) STRICT;
CREATE INDEX twiceproof_ledger_expiry ON twiceproof_ledger (expires_at) WHERE state = 'done';

-- Requests that used a known key with another payload: kept for review, never applied by themselves.
CREATE TABLE twiceproof_conflicts (
    tenant          TEXT NOT NULL,
    scope           TEXT NOT NULL,
    key             TEXT NOT NULL,
    digest          BLOB NOT NULL,
    request_headers TEXT NOT NULL,
    request_body    BLOB NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('open', 'released', 'dropped')),
    seen_count      INTEGER NOT NULL DEFAULT 1,
    first_seen_at   INTEGER NOT NULL,
    last_seen_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, key, digest)
) STRICT;
CREATE INDEX twiceproof_conflicts_open ON twiceproof_conflicts (tenant, first_seen_at) WHERE state = 'open';

-- How the keys of a scope are built; versions are never edited.
CREATE TABLE twiceproof_key_rules (
    tenant     TEXT NOT NULL,
    scope      TEXT NOT NULL,
    version    INTEGER NOT NULL,
    rule       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, version)
) STRICT;
