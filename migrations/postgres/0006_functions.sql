-- Publishing from any language, in the caller's own transaction, by the same rules as the library: see the guide to SQL.
-- The functions look up tables where they were installed, whatever the caller's search_path says.

-- A new id: the prefix, then 4 bytes of seconds since 2014-05-13, a byte of milliseconds in steps of 4, and 15 random bytes, as
-- 27 digits of base 62.
CREATE FUNCTION twiceproof_new_id(prefix text) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $body$
DECLARE
    digits CONSTANT text := '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
    millis CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1400000000000;
    -- Bytes 6 and 8 of a random UUID have fixed bits; these are others.
    random CONSTANT bytea := substring(uuid_send(gen_random_uuid()) FROM 1 FOR 6)
        || substring(uuid_send(gen_random_uuid()) FROM 10 FOR 7) || substring(uuid_send(gen_random_uuid()) FROM 1 FOR 2);
    number numeric;
    rest numeric;
    id text := '';
BEGIN
    number := (millis / 1000)::numeric * 256 + (millis % 1000) / 4;
    FOR i IN 0..14 LOOP
        number := number * 256 + get_byte(random, i);
    END LOOP;
    FOR i IN 1..27 LOOP
        rest := mod(number, 62);
        id := substr(digits, rest::int + 1, 1) || id;
        number := div(number, 62);
    END LOOP;
    RETURN prefix || id;
END
$body$;

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
                CASE e.state WHEN 'enabled' THEN NULL ELSE 'endpoint_disabled' END, now_ms, deadline, now_ms
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

-- Tells workers that there is work: call it after the commit. It is a hint; without it they find the work by polling, within
-- half a second. Inside a transaction it would make its commit wait for all others that say something.
CREATE FUNCTION twiceproof_wake() RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $body$
    SELECT pg_notify('twiceproof_' || relnamespace, '') FROM pg_class WHERE oid = to_regclass('twiceproof_deliveries')
$body$;
