-- Deliveries in the order of a key, that expire, or that are made at most once; fan-outs that are too wide for one transaction.

-- 'blocked': it waits for an earlier one with its ordering key. Without a reason nobody has looked yet whether there is one.
-- What is stored has one of the old states, so it is not read.
ALTER TABLE twiceproof_deliveries DROP CONSTRAINT twiceproof_deliveries_state_check;
ALTER TABLE twiceproof_deliveries ADD CONSTRAINT twiceproof_deliveries_state_check
    CHECK (state IN ('pending', 'backoff', 'leased', 'parked', 'blocked', 'delivered', 'dead')) NOT VALID;
-- Of its event; those of one endpoint with the same key are made one after another.
ALTER TABLE twiceproof_deliveries ADD COLUMN ordering_key TEXT COLLATE "C";
-- Of its event: from then on it is not sent any more.
ALTER TABLE twiceproof_deliveries ADD COLUMN expires_at BIGINT;
-- 1: what may have been sent is not sent again.
ALTER TABLE twiceproof_deliveries ADD COLUMN at_most_once BIGINT NOT NULL DEFAULT 0 CHECK (at_most_once IN (0, 1));

-- What waits behind others, by key; what is to be looked at first; and the one of each key that is not behind any.
CREATE INDEX twiceproof_deliveries_blocked ON twiceproof_deliveries (tenant, endpoint, ordering_key, seq)
    WHERE state = 'blocked';
CREATE INDEX twiceproof_deliveries_unplaced ON twiceproof_deliveries (seq) WHERE state = 'blocked' AND state_reason IS NULL;
CREATE INDEX twiceproof_deliveries_heads ON twiceproof_deliveries (tenant, endpoint, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('pending', 'backoff', 'leased', 'parked');
-- What is to expire.
CREATE INDEX twiceproof_deliveries_expiry ON twiceproof_deliveries (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('pending', 'backoff', 'parked');

ALTER TABLE twiceproof_events ADD COLUMN expires_at BIGINT;
CREATE INDEX twiceproof_event_types_at_most_once ON twiceproof_event_types (name) WHERE guarantee = 'at_most_once';
-- Whose an event type is: fan-outs know the tenant, not its organisation.
CREATE INDEX twiceproof_tenants_id ON twiceproof_tenants (id);

-- An event of a tenant with many endpoints, on its way to them.
CREATE TABLE twiceproof_fan_outs (
    seq            BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant         TEXT COLLATE "C" NOT NULL,
    event          TEXT COLLATE "C" NOT NULL,
    -- Endpoints up to this one have their deliveries.
    after_endpoint TEXT COLLATE "C" NOT NULL DEFAULT '',
    deadline_at    BIGINT NOT NULL,
    created_at     BIGINT NOT NULL
);
CREATE UNIQUE INDEX twiceproof_fan_outs_event ON twiceproof_fan_outs (tenant, event);
CREATE INDEX twiceproof_fan_outs_turn ON twiceproof_fan_outs (tenant, seq);

DROP FUNCTION twiceproof_publish(text, text, bytea, text, text, text[], text, interval);

-- As before, and with ordering keys, expiry, event types that are sent at most once, and tenants with many endpoints.
-- Accepts an event in the caller's transaction and makes one delivery for each endpoint that takes it. Returns its id and
-- what became of it: 'accepted'; 'already_accepted', the uid came before with the same event; 'conflict', the uid belongs to
-- another event, which is the id that is returned. None of these fails the transaction. Values that break a rule do, with
-- SQLSTATE 22023: the same call will never be accepted. An uncommitted event with the same uid is waited for.
CREATE FUNCTION twiceproof_publish(
    tenant text,
    event_type text,
    payload bytea,
    uid text DEFAULT NULL,
    content_type text DEFAULT 'application/json',
    channels text[] DEFAULT '{}',
    ordering_key text DEFAULT NULL,
    horizon interval DEFAULT '72 hours',
    expires_at timestamptz DEFAULT NULL,
    OUT id text,
    OUT outcome text
) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $body$
#variable_conflict use_column
DECLARE
    now_ms CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    deadline CONSTANT bigint := now_ms + floor(extract(epoch FROM horizon) * 1000)::bigint;
    expires_ms CONSTANT bigint := floor(extract(epoch FROM expires_at) * 1000)::bigint;
    hash CONSTANT bytea := sha256(payload);
    is_wide bool;
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

    -- Whoever publishes with this key next has to wait for the end of this transaction: the order is that of the commits.
    IF ordering_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(twiceproof_publish.tenant || ' ' || twiceproof_publish.ordering_key, 1)
            # 'twiceproof_events'::regclass::oid::bigint);
    END IF;

    -- Twice, because what is in the way may be rolled back, or may have gone with its retention.
    FOR try IN 1..2 LOOP
        INSERT INTO twiceproof_events
            (tenant, id, uid, event_type, content_type, payload, digest, channels, ordering_key, created_at,
             expires_at)
        VALUES (twiceproof_publish.tenant, minted, twiceproof_publish.uid, twiceproof_publish.event_type,
            twiceproof_publish.content_type, twiceproof_publish.payload, hash, wanted,
            twiceproof_publish.ordering_key, now_ms, expires_ms)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            SELECT count(*) > 500 INTO is_wide FROM (
                SELECT 1 FROM twiceproof_endpoints e WHERE e.tenant = twiceproof_publish.tenant LIMIT 501) few;
            IF is_wide OR (twiceproof_publish.ordering_key IS NOT NULL AND EXISTS (
                SELECT 1 FROM twiceproof_fan_outs f WHERE f.tenant = twiceproof_publish.tenant)) THEN
                INSERT INTO twiceproof_fan_outs (tenant, event, deadline_at, created_at)
                VALUES (twiceproof_publish.tenant, minted, deadline, now_ms);
            ELSE
                INSERT INTO twiceproof_deliveries
                    (tenant, event, endpoint, state, state_reason, due_at, deadline_at, created_at, ordering_key,
                     expires_at, at_most_once)
                SELECT e.tenant, minted, e.id,
                    CASE WHEN twiceproof_publish.ordering_key IS NOT NULL THEN 'blocked'
                        WHEN e.state = 'enabled' THEN 'pending' ELSE 'parked' END,
                    CASE WHEN twiceproof_publish.ordering_key IS NULL AND e.state <> 'enabled'
                        THEN 'endpoint_disabled' END, now_ms,
                    coalesce(now_ms + e.horizon_ms, deadline), now_ms, twiceproof_publish.ordering_key, expires_ms,
                    CASE WHEN EXISTS (
                        SELECT 1 FROM twiceproof_event_types y
                        WHERE y.name = twiceproof_publish.event_type AND y.guarantee = 'at_most_once'
                        AND y.organisation = coalesce(
                            (SELECT min(o.organisation) FROM twiceproof_tenants o WHERE o.id = e.tenant),
                            'org_000000000000000000000000000'))
                        THEN 1 ELSE 0 END
                FROM twiceproof_endpoints e
                WHERE e.tenant = twiceproof_publish.tenant
                AND (e.all_event_types = 1 OR EXISTS (
                    SELECT 1 FROM twiceproof_endpoint_event_types t WHERE t.tenant = e.tenant AND t.endpoint = e.id
                    AND t.event_type = twiceproof_publish.event_type))
                AND (e.channels = '[]' OR EXISTS (
                    SELECT 1 FROM json_array_elements_text(e.channels::json) AS c
                    WHERE c.value = ANY (twiceproof_publish.channels)))
                ORDER BY e.id;
            END IF;
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
