-- holdfast: expand (needs code >= 1)
-- Endpoints of webhooks, and what is delivered to them. Nothing of it is used by the release before.

-- Webhooks --------------------------------------------------------------------------------------------------------
--
-- The story of one delivery
--
--   webhook_fan_out()  in the transaction that moves the position of the follower: a row of webhook_deliveries and a job, with the same id, for
--                      each endpoint that wants the event. The body stays in the log; the row says where.
--   webhook_begin()    before each attempt: everything about it as it is now. An endpoint with a rate gives its token here.
--   webhook_settle()   in the transaction that settles the job: the attempt, what became of the delivery, the health of its endpoint.
--
-- What a user's own transaction may hold open (an endpoint that is changed or removed) is waited for by no settle: verbs of endpoints lock
-- the endpoint alone, and a settle that finds it locked leaves it to the next failure.

CREATE TABLE holdfast.webhook_endpoints (
    id              uuid PRIMARY KEY,
    tenant          text COLLATE "C" NOT NULL CHECK (octet_length(tenant) BETWEEN 1 AND 200),
    url             text NOT NULL CHECK (octet_length(url) BETWEEN 1 AND 2048),
    events          text[] NOT NULL CHECK (cardinality(events) BETWEEN 1 AND 100),   -- types, where * stands for anything
    ordered         boolean NOT NULL DEFAULT false,
    scheme          text NOT NULL DEFAULT 'v1' CHECK (scheme IN ('v1', 'v1a')),
    rate            float8 CHECK (rate > 0),           -- requests in a second; NULL: as many as there are
    burst           int CHECK (burst > 0),
    concurrency     int NOT NULL DEFAULT 10 CHECK (concurrency BETWEEN 1 AND 1000),   -- requests at once, over all workers
    headers         bytea,                             -- further headers of each request: JSON, sealed
    headers_key_id  text,
    description     text NOT NULL DEFAULT '',
    status          text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'disabled')),
    disabled_reason text,
    disabled_at     timestamptz,
    enabled_at      timestamptz,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    version         int NOT NULL DEFAULT 1,
    changed         xid8 NOT NULL DEFAULT pg_current_xact_id()   -- who has read the endpoints before asks for what that snapshot did not show
);
CREATE INDEX webhook_endpoints_tenant ON holdfast.webhook_endpoints (tenant, id);
CREATE INDEX webhook_endpoints_changed ON holdfast.webhook_endpoints (changed);

CREATE FUNCTION holdfast.note_endpoint_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    NEW.changed := pg_current_xact_id();
    NEW.version := OLD.version + 1;
    NEW.updated_at := holdfast.now();
    RETURN NEW;
END $$;
CREATE TRIGGER note_change BEFORE UPDATE ON holdfast.webhook_endpoints FOR EACH ROW EXECUTE FUNCTION holdfast.note_endpoint_change();

-- At most five of an endpoint count at a time. A signature by each is sent, that of the newest first.
CREATE TABLE holdfast.webhook_secrets (
    id          uuid PRIMARY KEY,
    endpoint_id uuid NOT NULL REFERENCES holdfast.webhook_endpoints ON DELETE CASCADE,
    scheme      text NOT NULL,
    key_id      text,              -- of the key that sealed it; NULL: it is stored bare
    sealed      bytea NOT NULL,
    public_key  text,              -- v1a: what receivers check with
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz        -- NULL: it is the one in use
);
CREATE INDEX webhook_secrets_endpoint ON holdfast.webhook_secrets (endpoint_id, created_at);

-- The hot row of an endpoint. Without a foreign key: whoever removes an endpoint would lock it until the commit.
CREATE TABLE holdfast.webhook_health (
    endpoint_id       uuid PRIMARY KEY,
    failing_since     timestamptz,              -- nothing but failures since then
    last_failure_at   timestamptz,
    failed_deliveries int NOT NULL DEFAULT 0,   -- different ones, since then
    last_success_at   timestamptz,              -- to within ten seconds, while nothing fails
    window_at         timestamptz,              -- when the failures began that count for the breaker
    window_failures   int NOT NULL DEFAULT 0,   -- without a success in between
    openings          int NOT NULL DEFAULT 0,   -- of the breaker, since a success
    open_until        timestamptz,
    trial_id          uuid,                     -- of an endpoint in order: the delivery that is tried, while others wait until open_until
    reported          smallint NOT NULL DEFAULT 0,   -- days after which it was said that it fails: 0, 1 or 3
    last_error        text,
    next_at           timestamptz,              -- of an endpoint with a rate: when the token after the last one is there
    at_work           uuid[] NOT NULL DEFAULT '{}',   -- of an endpoint in order: deliveries that were let go,
    at_work_tokens    uuid[] NOT NULL DEFAULT '{}'    -- each under the claim of its job: one that is not processed under it any more does not count
) WITH (fillfactor = 50);

CREATE TABLE holdfast.webhook_deliveries (
    id              uuid PRIMARY KEY,           -- of its job, too
    endpoint_id     uuid NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    event_id        uuid NOT NULL,
    event_slot      smallint,                   -- where the log has the event; NULL: it is not from the log
    event_seq       bigint,
    position        bigint,
    event_type      text NOT NULL,
    event_key       text,
    url             text NOT NULL,              -- as it was then
    cause           text NOT NULL DEFAULT 'event' CHECK (cause IN ('event', 'redelivery', 'ping')),
    status          text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'failed', 'cancelled')),
    reason          text,                       -- why it failed for good, or was cancelled
    attempts        int NOT NULL DEFAULT 0,
    refused         int NOT NULL DEFAULT 0,     -- how often in a row its address was refused
    crashes         int NOT NULL DEFAULT 0,     -- processes that died with it and are among the attempts, since an attempt last ended
    last_status     int,
    last_error      text,
    last_attempt_at timestamptz,
    next_attempt_at timestamptz,
    created_at      timestamptz NOT NULL,
    settled_at      timestamptz
) WITH (fillfactor = 70);
-- However often an event is read: one delivery to each endpoint.
CREATE UNIQUE INDEX webhook_deliveries_once ON holdfast.webhook_deliveries (endpoint_id, event_id) WHERE cause = 'event';
CREATE INDEX webhook_deliveries_endpoint ON holdfast.webhook_deliveries (endpoint_id, id);
CREATE INDEX webhook_deliveries_tenant ON holdfast.webhook_deliveries (tenant, id);
CREATE INDEX webhook_deliveries_pending ON holdfast.webhook_deliveries (position) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_waiting ON holdfast.webhook_deliveries (endpoint_id, created_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_settled ON holdfast.webhook_deliveries (settled_at) WHERE status <> 'pending';

-- Every attempt, in a ring of 32 day slots as the archive is. A day goes by TRUNCATE.
CREATE TABLE holdfast.webhook_attempts (
    slot          smallint NOT NULL,
    delivery_id   uuid NOT NULL,
    n             int NOT NULL,
    at            timestamptz NOT NULL,   -- when it ended
    url           text NOT NULL,
    address       text,                   -- that was dialled
    status        int,
    error         text,                   -- unknown: its process died, and nobody knows whether the request was sent
    detail        text,
    ms            int,
    request_head  jsonb,
    response_head jsonb,
    response_body text
) PARTITION BY LIST (slot);
DO $do$
BEGIN
    FOR slot IN 0..31 LOOP
        EXECUTE format('CREATE TABLE holdfast.webhook_attempts_%s PARTITION OF holdfast.webhook_attempts FOR VALUES IN (%s)
            WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000)', lpad(slot::text, 2, '0'), slot);
        EXECUTE format('CREATE INDEX webhook_attempts_%1$s_delivery ON holdfast.webhook_attempts_%1$s (delivery_id)', lpad(slot::text, 2, '0'));
    END LOOP;
END $do$;

-- What the code of the workers declares.
CREATE TABLE holdfast.webhook_settings (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    retention_days int NOT NULL DEFAULT 30 CHECK (retention_days BETWEEN 1 AND 30),   -- of attempts, and of deliveries that ended
    disable_after  float8 NOT NULL DEFAULT 432000 CHECK (disable_after > 0),           -- seconds of nothing but failures
    tenant_header  text NOT NULL DEFAULT 'tenant'                                      -- of events that are published here
);
INSERT INTO holdfast.webhook_settings DEFAULT VALUES;

-- The log is kept for deliveries that have not ended, up to its limits.
CREATE OR REPLACE FUNCTION holdfast.held_log_position() RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT least((SELECT min(s.position) FROM holdfast.subscriptions s WHERE s.hold AND s.status <> 'expired'),
                       (SELECT min(f.position) - 1 FROM holdfast.event_failures f WHERE f.kind <> 'skipped'),
                       (SELECT d.position - 1 FROM holdfast.webhook_deliveries d WHERE d.status = 'pending' ORDER BY d.position LIMIT 1),
                       9223372036854775807) $$;

-- The key of a job of an endpoint that wants its events in order.
CREATE FUNCTION holdfast.webhook_key(endpoint uuid, event_key text, event_id uuid) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT endpoint::text || ':' || CASE WHEN octet_length(event_key) > 400 THEN encode(sha256(convert_to(event_key, 'UTF8')), 'hex')
                                               ELSE coalesce(event_key, event_id::text) END $$;

-- Deliveries and their jobs, for pairs of an endpoint and an event. An endpoint that is not active gets none, and no event twice. Returns how
-- many there are now.
CREATE FUNCTION holdfast.webhook_fan_out(
    endpoints uuid[], event_ids uuid[], seqs bigint[], times timestamptz[], positions bigint[], types text[], keys text[], metadatas text[],
    max_attempts int, ordered_attempts int, made_by text DEFAULT 'event')
    RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    AS $$
DECLARE
    at     timestamptz := holdfast.now();
    traces jsonb := (SELECT jsonb_object_agg(v.id, v.metadata) FROM unnest(event_ids, metadatas) AS v(id, metadata) WHERE v.metadata IS NOT NULL);
    made   int;
BEGIN
    PERFORM holdfast.lock_streams('webhooks_ordered', ARRAY(
        SELECT holdfast.webhook_key(e.id, u.key, u.event_id) FROM unnest(endpoints, event_ids, keys) AS u(endpoint, event_id, key)
        JOIN holdfast.webhook_endpoints e ON e.id = u.endpoint AND e.ordered AND e.status = 'active'));
    WITH made AS (
        INSERT INTO holdfast.webhook_deliveries AS d (id, endpoint_id, tenant, event_id, event_slot, event_seq, position, event_type, event_key, url, cause,
                                                      created_at, next_attempt_at)
        SELECT holdfast.uuid7(), e.id, e.tenant, u.event_id, holdfast.archive_slot(u.time), u.seq, u.position, u.type, u.key, e.url, made_by, at, at
        FROM unnest(endpoints, event_ids, seqs, times, positions, types, keys) AS u(endpoint, event_id, seq, time, position, type, key)
        JOIN holdfast.webhook_endpoints e ON e.id = u.endpoint AND e.status = 'active'
        ON CONFLICT (endpoint_id, event_id) WHERE cause = 'event' DO NOTHING
        RETURNING d.id, d.endpoint_id, d.event_id, d.position, d.event_key
    )
    INSERT INTO holdfast.work (id, queue, task, payload, partition_key, max_attempts, available_at, created_at, claimed_at, claim_token, seq, metadata)
    SELECT j.id, CASE WHEN j.ordered THEN 'webhooks_ordered' ELSE 'webhooks' END, 'holdfast.webhook',
           jsonb_build_object('endpoint', j.endpoint_id, 'event', j.event_id),
           CASE WHEN j.ordered THEN holdfast.webhook_key(j.endpoint_id, j.event_key, j.event_id) ELSE j.endpoint_id::text END,
           CASE WHEN j.ordered THEN ordered_attempts ELSE webhook_fan_out.max_attempts END, at, at, at,
           '00000000-0000-0000-0000-000000000000', nextval('holdfast.work_seq'), (traces->>(j.event_id::text))::jsonb
    FROM (SELECT m.*, e.ordered FROM made m JOIN holdfast.webhook_endpoints e ON e.id = m.endpoint_id
          ORDER BY m.position, m.endpoint_id) j;
    GET DIAGNOSTICS made = ROW_COUNT;
    IF made > 0 THEN
        PERFORM holdfast.wake(ARRAY['webhooks', 'webhooks_ordered']);
    END IF;
    RETURN made;
END $$;

-- What attempts need to know, all of it as it is now: one row for each delivery that there is. `wait`: seconds until an endpoint with a rate may
-- get a request; 0: this one has its token. `busy`: an endpoint in order has as many requests as it may; of others a claim takes no more.
-- `place`: the claim under which one of such an endpoint has its place. `knows`: the caller has the event. `over`, `over_places`: requests of the
-- caller's that have ended, though their jobs are not settled yet.
CREATE FUNCTION holdfast.webhook_begin(deliveries uuid[], knows boolean[], over uuid[], over_places uuid[])
    RETURNS TABLE (delivery uuid, status text, cause text, event_id uuid, event_type text, endpoint_status text, url text, busy boolean, place uuid, headers bytea,
                   headers_key_id text, secret_ids uuid[], secret_keys text[], secrets bytea[], refused int, open_for float8, wait float8, found boolean, version int, key text,
                   "time" timestamptz, event_headers text, data text, "position" bigint, seq bigint, era int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    at     timestamptz := holdfast.now();
    item   record;
    next   timestamptz;
    waits  jsonb := '{}';
    ids    uuid[];
    tokens uuid[];
    crowd  uuid[] := '{}';
    spot   smallint;
BEGIN
    -- Deliveries are looked up one by one (OFFSET 0): a plan of the time when there were few would read all that wait.
    -- Places and tokens, in the order of endpoints: two of us never wait for each other in a circle.
    FOR item IN SELECT e.id, e.rate, coalesce(e.burst, greatest(1, ceil(e.rate)))::int AS burst, e.ordered, e.concurrency, array_agg(d.id ORDER BY d.cause = 'ping', d.id) AS ids
                FROM unnest(deliveries) AS u(id)
                CROSS JOIN LATERAL (SELECT x.id, x.endpoint_id, x.status, x.cause FROM holdfast.webhook_deliveries x WHERE x.id = u.id OFFSET 0) d
                JOIN holdfast.webhook_endpoints e ON e.id = d.endpoint_id AND (e.rate IS NOT NULL OR e.ordered) AND e.status = 'active' AND d.status = 'pending'
                GROUP BY e.id ORDER BY e.id LOOP
        INSERT INTO holdfast.webhook_health AS h (endpoint_id, next_at) VALUES (item.id, at)
        ON CONFLICT (endpoint_id) DO UPDATE SET next_at = greatest(h.next_at, at) RETURNING h.next_at INTO next;
        IF item.ordered THEN
            -- Under the lock of its row, in a statement of its own: what others let go before is seen. What is over makes room.
            SELECT array_agg(w.id), array_agg(w.claim_token) INTO ids, tokens
            FROM holdfast.webhook_health h CROSS JOIN LATERAL unnest(h.at_work, h.at_work_tokens) AS a(id, token)
            CROSS JOIN LATERAL (SELECT x.id, x.claim_token FROM holdfast.work x
                                WHERE x.queue = 'webhooks_ordered' AND x.id = a.id AND x.claim_token = a.token AND x.status = 'processing' OFFSET 0) w
            WHERE h.endpoint_id = item.id AND a.id <> ALL (item.ids)
              AND NOT EXISTS (SELECT FROM unnest(over, over_places) AS o(id, token) WHERE o.id = a.id AND o.token = a.token);
            crowd := crowd || item.ids[greatest(item.concurrency - coalesce(cardinality(ids), 0), 0) + 1:];
            item.ids := item.ids[:greatest(item.concurrency - coalesce(cardinality(ids), 0), 0)];
            SELECT coalesce(ids, '{}') || coalesce(array_agg(x.id), '{}'), coalesce(tokens, '{}') || coalesce(array_agg(x.claim_token), '{}') INTO ids, tokens
            FROM unnest(item.ids) AS u(id)
            CROSS JOIN LATERAL (SELECT x.id, x.claim_token FROM holdfast.work x WHERE x.queue = 'webhooks_ordered' AND x.id = u.id OFFSET 0) x;
            UPDATE holdfast.webhook_health h SET at_work = ids, at_work_tokens = tokens WHERE h.endpoint_id = item.id;
        END IF;
        CONTINUE WHEN item.rate IS NULL;
        FOR n IN 1..cardinality(item.ids) LOOP
            IF next > at + make_interval(secs => (item.burst - 1) / item.rate) THEN
                waits := waits || jsonb_build_object(item.ids[n]::text, extract(epoch FROM next - at) - (item.burst - 1) / item.rate);
            ELSE
                next := next + make_interval(secs => 1 / item.rate);
            END IF;
        END LOOP;
        UPDATE holdfast.webhook_health h SET next_at = next WHERE h.endpoint_id = item.id;
    END LOOP;
    -- The pause of an endpoint in order is over: one delivery is tried, whatever its key; the others wait for what becomes of it.
    -- They wait a second at a time: one that began before the trial ended may hold its key after that, and nobody would lift it.
    FOR item IN SELECT e.id, (array_agg(d.id ORDER BY d.position, d.id))[1] AS first
                FROM unnest(deliveries) AS u(id)
                CROSS JOIN LATERAL (SELECT x.id, x.endpoint_id, x.status, x.cause, x.position FROM holdfast.webhook_deliveries x WHERE x.id = u.id OFFSET 0) d
                JOIN holdfast.webhook_endpoints e ON e.id = d.endpoint_id AND e.ordered AND e.status = 'active' AND d.status = 'pending' AND d.cause <> 'ping'
                JOIN holdfast.webhook_health h ON h.endpoint_id = e.id AND h.openings > 0 AND h.open_until <= at
                GROUP BY e.id ORDER BY e.id LOOP
        UPDATE holdfast.webhook_health h SET trial_id = item.first, open_until = at + interval '5 minutes'
        WHERE h.endpoint_id = item.id AND h.openings > 0 AND h.open_until <= at;
    END LOOP;
    -- Slot by slot of the log, mostly one: a plan that gets the slot as a value opens the table of that day alone, and not all 32.
    FOR spot IN SELECT DISTINCT coalesce(d.event_slot, -1) FROM unnest(deliveries) AS u(id)
                CROSS JOIN LATERAL (SELECT x.event_slot FROM holdfast.webhook_deliveries x WHERE x.id = u.id OFFSET 0) d LOOP
        RETURN QUERY
        SELECT d.id, d.status, d.cause, d.event_id, d.event_type, e.status, e.url, d.id = ANY (crowd), p.token, e.headers, e.headers_key_id, s.ids, s.keys, s.sealed,
               d.refused, CASE WHEN h.trial_id = d.id THEN 0 ELSE coalesce(least(greatest(extract(epoch FROM h.open_until - at)::float8, 0), CASE WHEN h.trial_id IS NOT NULL THEN 1 END), 0) END, coalesce((waits->>d.id::text)::float8, 0),
               v.id IS NOT NULL OR u.knows, v.version, v.key, v.created_at, v.headers::text, v.data::text, d.position, d.event_seq, (SELECT l.era FROM holdfast.event_log l)
        FROM unnest(deliveries, webhook_begin.knows) AS u(id, knows)
        CROSS JOIN LATERAL (SELECT x.* FROM holdfast.webhook_deliveries x WHERE x.id = u.id AND coalesce(x.event_slot, -1) = spot OFFSET 0) d
        LEFT JOIN holdfast.webhook_endpoints e ON e.id = d.endpoint_id
        LEFT JOIN holdfast.webhook_health h ON h.endpoint_id = d.endpoint_id
        LEFT JOIN LATERAL (SELECT a.token FROM unnest(h.at_work, h.at_work_tokens) AS a(id, token) WHERE e.ordered AND a.id = d.id LIMIT 1) p ON true
        LEFT JOIN LATERAL (SELECT array_agg(k.id ORDER BY k.created_at DESC, k.id) AS ids, array_agg(k.key_id ORDER BY k.created_at DESC, k.id) AS keys,
                                  array_agg(k.sealed ORDER BY k.created_at DESC, k.id) AS sealed
                           FROM holdfast.webhook_secrets k
                           WHERE k.endpoint_id = d.endpoint_id AND (k.expires_at IS NULL OR k.expires_at > at)) s ON true
        LEFT JOIN LATERAL (SELECT x.* FROM holdfast.events x
                           WHERE NOT u.knows AND x.slot = spot AND x.seq = d.event_seq AND x.id = d.event_id LIMIT 1) v ON true;
    END LOOP;
END $$;

-- Jobs of an endpoint may be claimed again, whatever of ours holds their keys: `why` is what the reason begins with.
CREATE FUNCTION holdfast.webhook_lift(endpoint uuid, why text DEFAULT 'webhook') RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    DELETE FROM holdfast.key_holds k
    WHERE k.reason LIKE why || '%' AND ((k.queue = 'webhooks' AND k.partition_key = endpoint::text)
                                        OR (k.queue = 'webhooks_ordered' AND k.partition_key LIKE endpoint::text || ':%'));
    IF FOUND THEN
        PERFORM holdfast.wake(ARRAY['webhooks', 'webhooks_ordered']);
    END IF;
END $$;

-- Jobs of an endpoint that wait for a later attempt come now: they find it disabled or gone, and end. What somebody holds is left.
CREATE FUNCTION holdfast.webhook_hurry(endpoint uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at timestamptz := holdfast.now();
BEGIN
    UPDATE holdfast.work w SET available_at = at
    WHERE w.queue IN ('webhooks', 'webhooks_ordered') AND w.status = 'pending' AND w.id IN (
        SELECT x.id FROM holdfast.webhook_deliveries d JOIN holdfast.work x ON x.id = d.id
        WHERE d.endpoint_id = endpoint AND d.status = 'pending' AND d.cause <> 'ping'
          AND x.queue IN ('webhooks', 'webhooks_ordered') AND x.status = 'pending' AND x.available_at > at
        ORDER BY x.id FOR NO KEY UPDATE OF x SKIP LOCKED);
    IF FOUND THEN
        PERFORM holdfast.wake(ARRAY['webhooks', 'webhooks_ordered']);
    END IF;
END $$;

-- Disables an endpoint, unless somebody is changing it just now: then the next failure does it. What waits for it is cancelled. True: it is disabled.
CREATE FUNCTION holdfast.webhook_disable(endpoint uuid, why text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    e  holdfast.webhook_endpoints;
    at timestamptz := holdfast.now();
BEGIN
    SELECT * INTO e FROM holdfast.webhook_endpoints x WHERE x.id = endpoint AND x.status <> 'disabled' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE holdfast.webhook_endpoints x SET status = 'disabled', disabled_reason = why, disabled_at = at WHERE x.id = endpoint;
    PERFORM holdfast.webhook_hurry(endpoint);
    UPDATE holdfast.webhook_deliveries d SET status = 'cancelled', reason = 'endpoint disabled: ' || why, settled_at = at, next_attempt_at = NULL
    WHERE d.id IN (SELECT p.id FROM holdfast.webhook_deliveries p WHERE p.endpoint_id = endpoint AND p.status = 'pending' ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED);
    PERFORM holdfast.webhook_lift(endpoint);   -- their jobs end as soon as they find it disabled
    PERFORM holdfast.publish('holdfast.webhook.disabled', jsonb_build_object('endpoint', e.id, 'tenant', e.tenant, 'url', e.url, 'reason', why),
                             headers => (SELECT jsonb_build_object(s.tenant_header, e.tenant) FROM holdfast.webhook_settings s));
    RETURN true;
END $$;

-- What attempts ended with: their rows, what became of their deliveries, the health of their endpoints. Returns what the caller has to do: keys
-- to hold or to lift, and what to report (opened, closed, failing, disabled).
--
-- Of each row: delivery, endpoint, queue and key of the job; kind: delivered, failed, unknown (it was cut short), or without an attempt:
-- waits, dropped; outcome and reason of a delivery that ends; disable: why its endpoint is disabled; hold: seconds for which its key is held (-1: until
-- somebody lifts it); delay: seconds to the next attempt; crashes of the job; and the attempt itself.
CREATE FUNCTION holdfast.webhook_settle(rows jsonb)
    RETURNS TABLE (what text, endpoint uuid, queue text, key text, seconds float8, reason text, trial boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    AS $$
#variable_conflict use_column
DECLARE
    at       timestamptz := holdfast.now();
    item     record;
    h        holdfast.webhook_health;
    held_for float8;
    days     int;
    given    holdfast.webhook_settings;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);   -- a settle waits for nobody: what is locked is settled a moment later
    SELECT * INTO given FROM holdfast.webhook_settings;
    -- The endpoints whose row changes, in order. Most successes change none.
    INSERT INTO holdfast.webhook_health AS n (endpoint_id)
    SELECT DISTINCT (r->>'endpoint')::uuid FROM jsonb_array_elements(rows) r WHERE r->>'kind' IN ('failed', 'delivered') ORDER BY 1
    ON CONFLICT DO NOTHING;
    PERFORM FROM holdfast.webhook_health n
    WHERE n.endpoint_id IN (SELECT (r->>'endpoint')::uuid FROM jsonb_array_elements(rows) r WHERE r->>'kind' = 'failed'
                            UNION SELECT m.endpoint_id FROM holdfast.webhook_health m
                                  WHERE m.endpoint_id IN (SELECT (r->>'endpoint')::uuid FROM jsonb_array_elements(rows) r WHERE r->>'kind' = 'delivered')
                                    AND (m.failing_since IS NOT NULL OR m.window_failures > 0 OR m.openings > 0 OR m.last_success_at IS NULL
                                         OR m.last_success_at < at - interval '10 seconds'))
    ORDER BY n.endpoint_id FOR NO KEY UPDATE;

    FOR item IN
        WITH r AS MATERIALIZED (
            SELECT * FROM jsonb_to_recordset(rows) AS x(delivery uuid, endpoint uuid, queue text, key text, kind text, why text, disable text)
        ), t AS MATERIALIZED (
            SELECT r.*, d.last_attempt_at,
                   EXISTS (SELECT FROM holdfast.key_holds k WHERE k.queue = r.queue AND k.partition_key = r.key AND k.trial AND NOT k.decided AND k.trial_id = r.delivery) AS tried
            FROM r LEFT JOIN holdfast.webhook_deliveries d ON d.id = r.delivery
        )
        SELECT t.endpoint AS id, count(*) FILTER (WHERE t.kind = 'delivered') AS successes, count(*) FILTER (WHERE t.kind = 'failed') AS failures,
               count(*) FILTER (WHERE t.kind = 'failed' AND (m.failing_since IS NULL OR t.last_attempt_at IS NULL OR t.last_attempt_at < m.failing_since)) AS fresh,
               bool_or(t.tried OR coalesce(m.trial_id = t.delivery AND t.kind IN ('delivered', 'failed', 'dropped'), false)) AS tried, max(t.why) FILTER (WHERE t.kind = 'failed') AS error, max(t.disable) AS disable,
               array_agg(DISTINCT t.queue || E'\n' || t.key) FILTER (WHERE t.kind = 'failed') AS failed_keys,
               array_agg(DISTINCT t.queue || E'\n' || t.key) FILTER (WHERE t.tried) AS tried_keys
        FROM t LEFT JOIN holdfast.webhook_health m ON m.endpoint_id = t.endpoint
        GROUP BY t.endpoint   -- one that is well, as it was a moment ago, needs nothing
        HAVING bool_or(t.tried OR t.kind <> 'delivered' OR m.failing_since IS NOT NULL OR m.window_failures > 0 OR m.openings > 0 OR m.trial_id IS NOT NULL
                       OR m.last_success_at IS NULL OR m.last_success_at < at - interval '10 seconds')
        ORDER BY t.endpoint
    LOOP
        SELECT * INTO h FROM holdfast.webhook_health n WHERE n.endpoint_id = item.id;
        IF item.successes > 0 THEN
            IF h.openings > 0 OR item.tried THEN
                RETURN QUERY SELECT 'lift', item.id, k.queue, k.partition_key, NULL::float8, NULL::text, false FROM holdfast.key_holds k
                             WHERE k.reason LIKE 'webhook breaker%'
                               AND ((k.queue = 'webhooks' AND k.partition_key = item.id::text)
                                    OR (k.queue = 'webhooks_ordered' AND k.partition_key LIKE item.id::text || ':%'));
                IF h.openings > 0 THEN
                    RETURN QUERY SELECT 'closed', item.id, NULL::text, NULL::text, NULL::float8, NULL::text, false;
                END IF;
            END IF;
            UPDATE holdfast.webhook_health n
            SET failing_since = NULL, failed_deliveries = 0, last_success_at = at, window_at = NULL, window_failures = 0, openings = 0, open_until = NULL,
                trial_id = NULL, reported = 0, last_error = NULL
            WHERE n.endpoint_id = item.id
              AND (n.failing_since IS NOT NULL OR n.window_failures > 0 OR n.openings > 0 OR n.last_success_at IS NULL OR n.last_success_at < at - interval '10 seconds');
        ELSIF item.failures > 0 THEN
            IF h.window_at IS NULL OR h.window_at < at - interval '60 seconds' THEN
                h.window_at := at;
                h.window_failures := 0;
            END IF;
            h.window_failures := h.window_failures + item.failures;
            h.failing_since := coalesce(h.failing_since, at);
            h.failed_deliveries := h.failed_deliveries + item.fresh;
            held_for := NULL;
            IF item.tried OR (h.openings > 0 AND h.open_until <= at) OR (h.openings = 0 AND h.window_failures >= 5) THEN
                held_for := least(30 * 2 ^ least(h.openings, 10), 900);
                h.openings := h.openings + 1;
                h.open_until := at + make_interval(secs => held_for);
                RETURN QUERY SELECT 'hold', item.id, split_part(u.one, E'\n', 1), substr(u.one, strpos(u.one, E'\n') + 1), held_for,
                                    format('webhook breaker: %s failures, the last one: %s', h.window_failures, item.error), u.one LIKE E'webhooks\n%'
                             FROM unnest(item.failed_keys) AS u(one);
                RETURN QUERY SELECT 'opened', item.id, NULL::text, NULL::text, held_for, item.error, false;
            END IF;
            days := CASE WHEN h.failing_since <= at - interval '3 days' THEN 3 WHEN h.failing_since <= at - interval '1 day' THEN 1 ELSE 0 END;
            IF item.disable IS NULL AND h.failed_deliveries >= 3 AND h.failing_since <= at - make_interval(secs => given.disable_after) THEN
                item.disable := 'failing';
            ELSIF item.disable IS NULL AND days > h.reported THEN
                h.reported := days;
                PERFORM holdfast.publish('holdfast.webhook.failing', jsonb_build_object('endpoint', e.id, 'tenant', e.tenant, 'url', e.url, 'since', h.failing_since,
                                             'days', days, 'error', item.error), headers => jsonb_build_object(given.tenant_header, e.tenant))
                FROM holdfast.webhook_endpoints e WHERE e.id = item.id;
                RETURN QUERY SELECT 'failing', item.id, NULL::text, NULL::text, days::float8, item.error, false;
            END IF;
            UPDATE holdfast.webhook_health n
            SET failing_since = h.failing_since, last_failure_at = at, failed_deliveries = h.failed_deliveries, window_at = h.window_at,
                window_failures = h.window_failures, openings = h.openings, open_until = h.open_until, reported = h.reported, last_error = item.error,
                trial_id = CASE WHEN NOT item.tried THEN h.trial_id END
            WHERE n.endpoint_id = item.id;
        ELSIF item.tried THEN   -- it was the trial, and nobody knows more than before
            UPDATE holdfast.webhook_health n SET trial_id = NULL, open_until = at WHERE n.endpoint_id = item.id AND h.trial_id IS NOT NULL;
            RETURN QUERY SELECT 'lift', item.id, k.queue, k.partition_key, NULL::float8, NULL::text, false FROM holdfast.key_holds k
                         WHERE h.trial_id IS NOT NULL AND k.reason LIKE 'webhook breaker%' AND k.queue = 'webhooks_ordered' AND k.partition_key LIKE item.id::text || ':%';
            RETURN QUERY SELECT 'hold', item.id, split_part(u.one, E'\n', 1), substr(u.one, strpos(u.one, E'\n') + 1), 0.2::float8, 'webhook breaker: another trial'::text, true
                         FROM unnest(item.tried_keys) AS u(one);
        END IF;
    END LOOP;

    INSERT INTO holdfast.webhook_attempts (slot, delivery_id, n, at, url, error)
    SELECT holdfast.archive_slot(at), r.delivery, d.attempts + k, at, coalesce(r.url, d.url), 'unknown'
    FROM jsonb_to_recordset(rows) AS r(delivery uuid, crashes int, url text) JOIN holdfast.webhook_deliveries d ON d.id = r.delivery
    CROSS JOIN LATERAL generate_series(1, r.crashes - d.crashes) k;
    INSERT INTO holdfast.webhook_attempts (slot, delivery_id, n, at, url, address, status, error, detail, ms, request_head, response_head, response_body)
    SELECT holdfast.archive_slot(at), r.delivery, d.attempts + greatest(r.crashes - d.crashes, 0) + 1, at, r.url, r.address, r.status, r.error, r.detail, r.ms,
           r.request, r.response, r.body
    FROM jsonb_to_recordset(rows) AS r(delivery uuid, kind text, crashes int, url text, address text, status int, error text, detail text, ms int, request jsonb, response jsonb, body text)
    JOIN holdfast.webhook_deliveries d ON d.id = r.delivery
    WHERE r.kind IN ('delivered', 'failed', 'unknown');

    UPDATE holdfast.webhook_deliveries d
    SET attempts = d.attempts + greatest(r.crashes - d.crashes, 0) + r.is_attempt::int,
        crashes = CASE WHEN r.is_attempt THEN 0 ELSE r.crashes END,
        refused = CASE WHEN NOT r.is_attempt THEN d.refused WHEN r.error = 'refused_address' THEN d.refused + 1 ELSE 0 END,
        last_status = CASE WHEN r.is_attempt THEN r.status ELSE d.last_status END,
        last_error = CASE WHEN r.is_attempt THEN r.error ELSE d.last_error END,
        last_attempt_at = CASE WHEN r.is_attempt THEN at ELSE d.last_attempt_at END,
        status = CASE WHEN r.outcome IS NULL OR (d.status <> 'pending' AND r.outcome <> 'delivered') THEN d.status ELSE r.outcome END,
        reason = CASE WHEN r.outcome IS NULL OR (d.status <> 'pending' AND r.outcome <> 'delivered') THEN d.reason ELSE r.reason END,
        settled_at = CASE WHEN r.outcome IS NULL OR (d.status <> 'pending' AND r.outcome <> 'delivered') THEN d.settled_at ELSE at END,
        next_attempt_at = CASE WHEN r.outcome IS NULL AND d.status = 'pending' THEN at + make_interval(secs => r.delay) END
    FROM (SELECT x.*, x.kind IN ('delivered', 'failed', 'unknown') AS is_attempt
          FROM jsonb_to_recordset(rows) AS x(delivery uuid, kind text, crashes int, status int, error text, outcome text, reason text, delay float8)) r
    WHERE d.id = r.delivery;

    RETURN QUERY   -- what the peer, the rate, a pause or the worker asked for
    SELECT 'hold', r.endpoint, r.queue, r.key, CASE WHEN r.hold >= 0 THEN r.hold END, r.held, false
    FROM jsonb_to_recordset(rows) AS r(endpoint uuid, queue text, key text, hold float8, held text) WHERE r.hold IS NOT NULL;

    FOR item IN SELECT r.endpoint AS id, max(r.disable) AS why FROM jsonb_to_recordset(rows) AS r(endpoint uuid, disable text)
                WHERE r.disable IS NOT NULL GROUP BY r.endpoint
                UNION ALL SELECT n.endpoint_id, 'failing' FROM holdfast.webhook_health n
                WHERE n.endpoint_id IN (SELECT (r->>'endpoint')::uuid FROM jsonb_array_elements(rows) r WHERE r->>'kind' = 'failed' AND r->>'disable' IS NULL)
                  AND n.failed_deliveries >= 3 AND n.failing_since <= at - make_interval(secs => given.disable_after) ORDER BY 1
    LOOP
        IF holdfast.webhook_disable(item.id, item.why) THEN
            RETURN QUERY SELECT 'disabled', item.id, NULL::text, NULL::text, NULL::float8, item.why, false;
        END IF;
    END LOOP;
END $$;

-- An endpoint as its verbs return it, and nothing that is sealed.
CREATE FUNCTION holdfast.webhook_shown(e holdfast.webhook_endpoints) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT to_jsonb(e) - 'headers' - 'headers_key_id' - 'changed' $$;

-- How many of an endpoint run at once, as a claim counts it; 0: it is gone.
CREATE FUNCTION holdfast.webhook_limit(endpoint uuid, most int) RETURNS void
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
    AS $$ DELETE FROM holdfast.key_rules k WHERE most = 0 AND k.queue = 'webhooks' AND k.partition_key = endpoint::text;
          INSERT INTO holdfast.key_rules AS k (queue, partition_key, concurrency) SELECT 'webhooks', endpoint::text, most WHERE most > 0
          ON CONFLICT (queue, partition_key) DO UPDATE SET concurrency = EXCLUDED.concurrency WHERE k.concurrency <> EXCLUDED.concurrency $$;

-- Makes an endpoint and its first secret. Texts of base64: headers of the endpoint, sealed of the secret.
CREATE FUNCTION holdfast.webhook_create(spec jsonb, secret jsonb) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at timestamptz := holdfast.now();
    e  holdfast.webhook_endpoints;
BEGIN
    INSERT INTO holdfast.webhook_endpoints AS n (id, tenant, url, events, ordered, scheme, rate, burst, concurrency, headers, headers_key_id, description, created_at, updated_at)
    VALUES ((spec->>'id')::uuid, spec->>'tenant', spec->>'url', ARRAY(SELECT jsonb_array_elements_text(spec->'events')), (spec->>'ordered')::boolean, spec->>'scheme',
            (spec->>'rate')::float8, (spec->>'burst')::int, (spec->>'concurrency')::int, decode(spec->>'headers', 'base64'), spec->>'headers_key_id',
            coalesce(spec->>'description', ''), at, at)
    RETURNING n.* INTO e;
    INSERT INTO holdfast.webhook_health (endpoint_id) VALUES (e.id);
    PERFORM holdfast.webhook_limit(e.id, e.concurrency);
    PERFORM holdfast.webhook_add_secret(e.id, secret, at);
    RETURN holdfast.webhook_shown(e);
END $$;

CREATE FUNCTION holdfast.webhook_add_secret(endpoint uuid, secret jsonb, at timestamptz) RETURNS void
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
    AS $$ INSERT INTO holdfast.webhook_secrets (id, endpoint_id, scheme, key_id, sealed, public_key, created_at)
          VALUES ((secret->>'id')::uuid, endpoint, secret->>'scheme', secret->>'key_id', decode(secret->>'sealed', 'base64'), secret->>'public_key', at) $$;

-- One endpoint of a tenant; NULL: the tenant has none of this id.
CREATE FUNCTION holdfast.webhook_get(tenant text, endpoint uuid) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT holdfast.webhook_shown(e) FROM holdfast.webhook_endpoints e WHERE e.tenant = webhook_get.tenant AND e.id = endpoint $$;

CREATE FUNCTION holdfast.webhook_list(tenant text, after uuid, most int) RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT holdfast.webhook_shown(e) FROM holdfast.webhook_endpoints e
          WHERE e.tenant = webhook_list.tenant AND (after IS NULL OR e.id > after) ORDER BY e.id LIMIT most $$;

-- Changes what is in `changes`. Returns the endpoint; NULL: the tenant has none of this id. An endpoint that was disabled is tried with one job
-- before the others, and not more than once in five minutes: then the text 'soon'.
CREATE FUNCTION holdfast.webhook_update(tenant text, endpoint uuid, changes jsonb) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at  timestamptz := holdfast.now();
    old holdfast.webhook_endpoints;
    e   holdfast.webhook_endpoints;
BEGIN
    SELECT * INTO old FROM holdfast.webhook_endpoints x WHERE x.tenant = webhook_update.tenant AND x.id = endpoint FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    e := old;
    e.url := coalesce(changes->>'url', old.url);
    e.description := coalesce(changes->>'description', old.description);
    e.concurrency := coalesce((changes->>'concurrency')::int, old.concurrency);
    e.status := coalesce(changes->>'status', old.status);
    IF changes ? 'events' THEN e.events := ARRAY(SELECT jsonb_array_elements_text(changes->'events')); END IF;
    IF changes ? 'rate' THEN e.rate := (changes->>'rate')::float8; e.burst := (changes->>'burst')::int; END IF;
    IF changes ? 'headers' THEN e.headers := decode(changes->>'headers', 'base64'); e.headers_key_id := changes->>'headers_key_id'; END IF;
    IF e.status = 'disabled' AND old.status <> 'disabled' THEN
        e.disabled_at := at;
        e.disabled_reason := 'by hand';
        PERFORM holdfast.webhook_lift(endpoint);
        PERFORM holdfast.webhook_hurry(endpoint);   -- their jobs end as soon as they find it disabled
    ELSIF e.status <> 'disabled' AND old.status = 'disabled' THEN
        IF old.enabled_at > at - interval '5 minutes' THEN
            RETURN '"soon"';
        END IF;
        e.disabled_at := NULL;
        e.disabled_reason := NULL;
        e.enabled_at := at;
        INSERT INTO holdfast.key_holds AS k (queue, partition_key, until, trial, held_at, reason)
        VALUES ('webhooks', endpoint::text, at, true, at, 'webhook breaker: it was disabled')
        ON CONFLICT (queue, partition_key) DO UPDATE SET until = EXCLUDED.until, trial = true, decided = true, held_at = at, reason = EXCLUDED.reason;
        UPDATE holdfast.webhook_health h SET openings = 1, open_until = at, trial_id = NULL WHERE old.ordered AND h.endpoint_id = endpoint AND h.openings = 0;
    END IF;
    IF e.status = 'active' AND old.status = 'paused' THEN
        PERFORM holdfast.webhook_lift(endpoint, 'webhook paused');
    END IF;
    UPDATE holdfast.webhook_endpoints x
    SET url = e.url, description = e.description, concurrency = e.concurrency, status = e.status, events = e.events, rate = e.rate, burst = e.burst,
        headers = e.headers, headers_key_id = e.headers_key_id, disabled_at = e.disabled_at, disabled_reason = e.disabled_reason, enabled_at = e.enabled_at
    WHERE x.id = endpoint RETURNING x.* INTO e;
    PERFORM holdfast.webhook_limit(e.id, e.concurrency);
    IF e.concurrency > old.concurrency THEN
        PERFORM holdfast.wake(ARRAY['webhooks', 'webhooks_ordered']);
    END IF;
    RETURN holdfast.webhook_shown(e);
END $$;

-- Its jobs end as soon as they find it gone.
CREATE FUNCTION holdfast.webhook_delete(tenant text, endpoint uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    DELETE FROM holdfast.webhook_endpoints e WHERE e.tenant = webhook_delete.tenant AND e.id = endpoint;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM holdfast.webhook_limit(endpoint, 0);
    PERFORM holdfast.webhook_lift(endpoint);
    PERFORM holdfast.webhook_hurry(endpoint);
    RETURN true;
END $$;

-- A new secret. Those that are there go on for `overlap` seconds. Returns 'rotated', 'unknown': the tenant has no such endpoint, or 'many': five
-- are in use already.
CREATE FUNCTION holdfast.webhook_rotate(tenant text, endpoint uuid, secret jsonb, overlap float8) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at timestamptz := holdfast.now();
BEGIN
    PERFORM FROM holdfast.webhook_endpoints e WHERE e.tenant = webhook_rotate.tenant AND e.id = endpoint FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    DELETE FROM holdfast.webhook_secrets s WHERE s.endpoint_id = endpoint AND s.expires_at <= at;
    UPDATE holdfast.webhook_secrets s SET expires_at = least(s.expires_at, at + make_interval(secs => overlap)) WHERE s.endpoint_id = endpoint;
    IF (SELECT count(*) FROM holdfast.webhook_secrets s WHERE s.endpoint_id = endpoint AND s.expires_at > at) >= 5 THEN
        RETURN 'many';
    END IF;
    DELETE FROM holdfast.webhook_secrets s WHERE s.endpoint_id = endpoint AND s.expires_at <= at;
    PERFORM holdfast.webhook_add_secret(endpoint, secret, at);
    RETURN 'rotated';
END $$;

-- Empty the slots of another ring of 32 days, tables `<ring>_00` to `<ring>_31` with a time `at`: as above, and with at most `most` rows deleted where a
-- slot is in use again. Returns how many rows or slots went. Called by functions of shapes, with their owner's rights.
CREATE FUNCTION holdfast.empty_day_slots(ring text, kept int, most int) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
    AS $$
DECLARE
    today  date := (holdfast.now() AT TIME ZONE 'UTC')::date;
    before timestamptz := (today - kept)::timestamp AT TIME ZONE 'UTC';
    leaf   text;
    oldest timestamptz;
    gone   int := 0;
    n      int;
BEGIN
    FOR slot IN 0..31 LOOP
        leaf := format('holdfast.%I', ring || '_' || lpad(slot::text, 2, '0'));
        EXECUTE format('SELECT t.at FROM %s t LIMIT 1', leaf) INTO oldest;
        CONTINUE WHEN oldest IS NULL OR oldest >= before;
        IF EXISTS (SELECT FROM generate_series(-kept, 1) d WHERE holdfast.archive_slot((today + d)::timestamp AT TIME ZONE 'UTC') = slot) THEN
            EXECUTE format('DELETE FROM %1$s t WHERE t.ctid = ANY (ARRAY(SELECT o.ctid FROM %1$s o WHERE o.at < $1 LIMIT $2))', leaf) USING before, most;
            GET DIAGNOSTICS n = ROW_COUNT;
        ELSE
            EXECUTE format('TRUNCATE %s', leaf);
            n := 1;
        END IF;
        gone := gone + n;
    END LOOP;
    RETURN gone;
END $$;
REVOKE ALL ON FUNCTION holdfast.empty_day_slots FROM PUBLIC;

-- Empties days of the ring of attempts that are past retention. A day that the ring has come round to before anybody tidied up loses its old rows
-- one by one. Deliveries that ended go as well, and what is left of endpoints that are gone. Returns how many slots or rows went.
CREATE FUNCTION holdfast.empty_webhook_slots(most int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
    AS $$
DECLARE
    kept int := (SELECT s.retention_days FROM holdfast.webhook_settings s);
    gone int;
    n    int;
BEGIN
    gone := holdfast.empty_day_slots('webhook_attempts', kept, most);
    DELETE FROM holdfast.webhook_deliveries d
    WHERE d.id IN (SELECT o.id FROM holdfast.webhook_deliveries o
                   WHERE o.status <> 'pending' AND o.settled_at < holdfast.now() - make_interval(days => kept) ORDER BY o.settled_at LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS n = ROW_COUNT;
    DELETE FROM holdfast.webhook_health h WHERE NOT EXISTS (SELECT FROM holdfast.webhook_endpoints e WHERE e.id = h.endpoint_id)
        AND NOT EXISTS (SELECT FROM holdfast.webhook_deliveries d WHERE d.endpoint_id = h.endpoint_id AND d.status = 'pending');
    RETURN gone + n;
END $$;
REVOKE ALL ON FUNCTION holdfast.webhook_fan_out, holdfast.webhook_key, holdfast.webhook_shown, holdfast.webhook_limit, holdfast.note_endpoint_change, holdfast.webhook_begin, holdfast.webhook_lift, holdfast.webhook_hurry, holdfast.webhook_disable, holdfast.webhook_settle,
    holdfast.webhook_create, holdfast.webhook_add_secret, holdfast.webhook_get, holdfast.webhook_list, holdfast.webhook_update, holdfast.webhook_delete,
    holdfast.webhook_rotate, holdfast.empty_webhook_slots FROM PUBLIC;

-- Roles that were given rights by hand, or by the script of the release before: who runs jobs may deliver, who looks may look at this too, but for
-- secrets.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            ('INSERT', 'claims', 'EXECUTE ON FUNCTION holdfast.webhook_fan_out, holdfast.webhook_begin, holdfast.webhook_settle, holdfast.empty_webhook_slots'),
            ('INSERT', 'claims', 'SELECT ON holdfast.webhook_deliveries, holdfast.webhook_attempts, holdfast.webhook_health, holdfast.webhook_settings'),
            ('INSERT', 'claims', 'UPDATE ON holdfast.webhook_settings'),
            ('INSERT', 'claims', 'SELECT (id, tenant, url, events, ordered, rate, concurrency, status, disabled_reason, disabled_at, created_at, version, changed) ON holdfast.webhook_endpoints'),
            ('INSERT', 'claims', 'SELECT (id, endpoint_id, scheme, key_id, created_at, expires_at) ON holdfast.webhook_secrets'),
            ('SELECT', 'jobs',   'SELECT ON holdfast.webhook_deliveries, holdfast.webhook_attempts, holdfast.webhook_health, holdfast.webhook_settings'),
            ('SELECT', 'jobs',   'SELECT (id, tenant, url, events, ordered, scheme, rate, burst, concurrency, headers_key_id, description, status, disabled_reason, disabled_at, enabled_at, created_at, updated_at, version, changed) ON holdfast.webhook_endpoints'),
            ('SELECT', 'jobs',   'SELECT (id, endpoint_id, scheme, key_id, public_key, created_at, expires_at) ON holdfast.webhook_secrets')
        ) AS n(had, before, rights)
        JOIN pg_class c ON c.relnamespace = 'holdfast'::regnamespace AND c.relname = n.before
        CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE had.privilege_type = n.had AND had.grantee <> c.relowner
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;
