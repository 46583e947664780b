-- Delivery policy by endpoint: what the claim, the record and the publish read of it, and what they keep.

-- How long after its creation a delivery to it may be tried, in milliseconds; none: the publisher's.
ALTER TABLE twiceproof_endpoints ADD COLUMN horizon_ms BIGINT CHECK (horizon_ms > 0);
-- The first failure since it last answered 2xx.
ALTER TABLE twiceproof_endpoints ADD COLUMN failing_since BIGINT;
-- The circuit breaker: how often it opened in a row, until when it is open, how much may be under way while it comes back, and
-- until when its probe holds.
ALTER TABLE twiceproof_endpoints ADD COLUMN breaker_step BIGINT NOT NULL DEFAULT 0;
ALTER TABLE twiceproof_endpoints ADD COLUMN breaker_until BIGINT;
ALTER TABLE twiceproof_endpoints ADD COLUMN breaker_ramp BIGINT NOT NULL DEFAULT 0;
ALTER TABLE twiceproof_endpoints ADD COLUMN probe_until BIGINT;
-- It asked to be sent nothing before.
ALTER TABLE twiceproof_endpoints ADD COLUMN throttled_until BIGINT;
-- Where there is a rate limit: when the next delivery may be claimed, in microseconds.
ALTER TABLE twiceproof_endpoints ADD COLUMN next_free_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE twiceproof_tenants ADD COLUMN next_free_us BIGINT NOT NULL DEFAULT 0;
-- Claims know the tenant, not its organisation.
CREATE INDEX twiceproof_tenants_limited ON twiceproof_tenants (id) WHERE rate_limit IS NOT NULL;

-- As before, but that an endpoint's own horizon goes before the caller's.
-- Accepts an event in the caller's transaction and makes one delivery for each endpoint that takes it. Returns its id and
-- what became of it: 'accepted'; 'already_accepted', the uid came before with the same event; 'conflict', the uid belongs to
-- another event, which is the id that is returned. None of these fails the transaction. Values that break a rule do, with
-- SQLSTATE 22023: the same call will never be accepted. An uncommitted event with the same uid is waited for.
CREATE OR REPLACE FUNCTION twiceproof_publish(
    tenant text,
    event_type text,
    payload bytea,
    uid text DEFAULT NULL,
    content_type text DEFAULT 'application/json',
    channels text[] DEFAULT '{}',
    ordering_key text DEFAULT NULL,
    horizon interval DEFAULT '72 hours',
    OUT id text,
    OUT outcome text
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $body$
#variable_conflict use_column
DECLARE
    now_ms CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    deadline CONSTANT bigint := now_ms + floor(extract(epoch FROM horizon) * 1000)::bigint;
    hash CONSTANT bytea := sha256(payload);
    wanted text;
    minted CONSTANT text := twiceproof_new_id('msg_');
    twin record;
BEGIN
    IF tenant IS NULL OR tenant !~ '^[\x21-\x7e]{1,255}$' THEN
        RAISE EXCEPTION 'twiceproof: a tenant has 1 to 255 visible ASCII characters' USING ERRCODE = '22023';
    ELSIF event_type IS NULL OR length(event_type) > 255 OR event_type !~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' THEN
        RAISE EXCEPTION 'twiceproof: an event type is made of A-Z, a-z, 0-9, _ and -, in parts between dots'
            USING ERRCODE = '22023';
    ELSIF payload IS NULL OR length(payload) > 1048576 THEN
        RAISE EXCEPTION 'twiceproof: a payload has at most 1048576 bytes, this one has %', length(payload)
            USING ERRCODE = '22023';
    ELSIF uid !~ '^[\x21-\x7e]{1,255}$' OR ordering_key !~ '^[\x21-\x7e]{1,255}$' THEN
        RAISE EXCEPTION 'twiceproof: a uid and an ordering key have 1 to 255 visible ASCII characters'
            USING ERRCODE = '22023';
    ELSIF content_type IS NULL OR content_type !~ '^[\x20-\x7e]{3,255}$' OR content_type !~ '/'
        OR btrim(content_type) <> content_type THEN
        RAISE EXCEPTION 'twiceproof: a content type is a media type of visible ASCII characters' USING ERRCODE = '22023';
    ELSIF cardinality(channels) > 10 OR EXISTS (
        SELECT 1 FROM unnest(channels) AS channel WHERE channel IS NULL OR channel !~ '^[\x21-\x7e]{1,255}$') THEN
        RAISE EXCEPTION 'twiceproof: an event has at most 10 channels, each of 1 to 255 visible ASCII characters'
            USING ERRCODE = '22023';
    ELSIF horizon IS NULL OR deadline <= now_ms THEN
        RAISE EXCEPTION 'twiceproof: a horizon is longer than nothing' USING ERRCODE = '22023';
    END IF;
    SELECT '[' || coalesce(string_agg(to_json(channel)::text, ',' ORDER BY channel COLLATE "C"), '') || ']' INTO wanted
    FROM (SELECT DISTINCT channel FROM unnest(channels) AS channel) AS set;

    -- Twice, because what is in the way may be rolled back, or may have gone with its retention.
    FOR try IN 1..2 LOOP
        INSERT INTO twiceproof_events
            (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at)
        VALUES (twiceproof_publish.tenant, minted, twiceproof_publish.uid, twiceproof_publish.event_type,
            twiceproof_publish.content_type, twiceproof_publish.payload, hash, wanted,
            twiceproof_publish.ordering_key, now_ms)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            INSERT INTO twiceproof_deliveries
                (tenant, event, endpoint, state, state_reason, due_at, deadline_at, created_at)
            SELECT e.tenant, minted, e.id,
                CASE e.state WHEN 'enabled' THEN 'pending' ELSE 'parked' END,
                CASE e.state WHEN 'enabled' THEN NULL ELSE 'endpoint_disabled' END, now_ms,
                coalesce(now_ms + e.horizon_ms, deadline), now_ms
            FROM twiceproof_endpoints e
            WHERE e.tenant = twiceproof_publish.tenant
            AND (e.all_event_types = 1 OR EXISTS (
                SELECT 1 FROM twiceproof_endpoint_event_types t WHERE t.tenant = e.tenant AND t.endpoint = e.id
                AND t.event_type = twiceproof_publish.event_type))
            AND (e.channels = '[]' OR EXISTS (
                SELECT 1 FROM json_array_elements_text(e.channels::json) AS c
                WHERE c.value = ANY (twiceproof_publish.channels)))
            ORDER BY e.id;
            id := minted;
            outcome := 'accepted';
            RETURN;
        END IF;
        SELECT v.id, v.digest = hash AND v.event_type = twiceproof_publish.event_type
            AND v.content_type = twiceproof_publish.content_type AND v.channels = wanted
            AND v.ordering_key IS NOT DISTINCT FROM twiceproof_publish.ordering_key AS same
        INTO twin FROM twiceproof_events v
        WHERE v.tenant = twiceproof_publish.tenant AND v.uid = twiceproof_publish.uid;
        IF FOUND THEN
            id := twin.id;
            outcome := CASE WHEN twin.same THEN 'already_accepted' ELSE 'conflict' END;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'twiceproof: an event is in the way that cannot be seen; run the transaction again'
        USING ERRCODE = '40001';
END
$body$;
