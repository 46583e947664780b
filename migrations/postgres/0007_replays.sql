-- Sending much of the past again to one endpoint, a piece at a time.
CREATE TABLE twiceproof_replays (
    tenant      TEXT COLLATE "C" NOT NULL,
    id          TEXT COLLATE "C" NOT NULL,
    endpoint    TEXT COLLATE "C" NOT NULL,
    -- 'failed': what is dead; 'missing': what the endpoint would have got and never was to get; 'everything': both, and what
    -- was delivered.
    what        TEXT COLLATE "C" NOT NULL CHECK (what IN ('failed', 'missing', 'everything')),
    state       TEXT COLLATE "C" NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
    -- Events with ids between these; the first moves on.
    from_event  TEXT COLLATE "C" NOT NULL,
    until_event TEXT COLLATE "C" NOT NULL,
    -- The most per second.
    rate_limit  BIGINT CHECK (rate_limit > 0),
    sent        BIGINT NOT NULL DEFAULT 0,
    -- When the next piece may be sent.
    due_at      BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX twiceproof_replays_running ON twiceproof_replays (due_at) WHERE state = 'running';
CREATE INDEX twiceproof_replays_endpoint ON twiceproof_replays (tenant, endpoint, id);
