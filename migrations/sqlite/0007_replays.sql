-- Sending much of the past again to one endpoint, a piece at a time.
CREATE TABLE twiceproof_replays (
    tenant      TEXT NOT NULL,
    id          TEXT NOT NULL,
    endpoint    TEXT NOT NULL,
    -- 'failed': what is dead; 'missing': what the endpoint would have got and never was to get; 'everything': both, and what
    -- was delivered.
    what        TEXT NOT NULL CHECK (what IN ('failed', 'missing', 'everything')),
    state       TEXT NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
    -- Events with ids between these; the first moves on.
    from_event  TEXT NOT NULL,
    until_event TEXT NOT NULL,
    -- The most per second.
    rate_limit  INTEGER CHECK (rate_limit > 0),
    sent        INTEGER NOT NULL DEFAULT 0,
    -- When the next piece may be sent.
    due_at      INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT;
CREATE INDEX twiceproof_replays_running ON twiceproof_replays (due_at) WHERE state = 'running';
CREATE INDEX twiceproof_replays_endpoint ON twiceproof_replays (tenant, endpoint, id);
