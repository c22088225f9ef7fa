-- Webhooks --------------------------------------------------------------------------------------------------------
--
-- The story of one delivery
--
--   webhook_fan_out()  in the transaction that moves the position of the follower: a row of webhook_deliveries and a job, with the same id, for
--                      each endpoint that wants the event. The body stays in the log; the row says where.
--   webhook_begin()    before each attempt: everything about it as it is now. An endpoint with a rate gives its token here.
--   webhook_settle()   in the transaction that settles the job: the attempt, what became of the delivery, the health of its endpoint.
--   webhook_ended()    a job that ended without its handler (a dead letter after deaths, cancelled, discarded) ends its delivery too: every reader of
--                      the delivery sees that at once, and webhook_settle_lost() writes it.
--
-- No settle waits for a lock that a user's own transaction may hold (an endpoint that is changed or removed): verbs of endpoints lock
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
    changed         xid8 NOT NULL DEFAULT pg_current_xact_id()   -- a reader of the endpoints asks later for changes that its snapshot did not show
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

-- The hot row of an endpoint. Without a foreign key: removing an endpoint would lock it until the commit.
CREATE TABLE holdfast.webhook_health (
    endpoint_id       uuid PRIMARY KEY,
    failing_since     timestamptz,              -- nothing but failures since then
    last_failure_at   timestamptz,
    failed_deliveries int NOT NULL DEFAULT 0,   -- different ones, since then
    last_success_at   timestamptz,              -- to within ten seconds, while nothing fails
    window_at         timestamptz,              -- when the failures began that count for the breaker
    window_failures   int NOT NULL DEFAULT 0,   -- without a success since
    openings          int NOT NULL DEFAULT 0,   -- of the breaker, since a success
    open_until        timestamptz,
    trial_id          uuid,                     -- of an endpoint in order: the delivery that is tried, while others wait until open_until
    reported          smallint NOT NULL DEFAULT 0,   -- days after which a failing endpoint was reported: 0, 1 or 3
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

-- Declarations in the code of the workers.
CREATE TABLE holdfast.webhook_settings (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    retention_days int NOT NULL DEFAULT 30 CHECK (retention_days BETWEEN 1 AND 30),   -- of attempts, and of deliveries that ended
    disable_after  float8 NOT NULL DEFAULT 432000 CHECK (disable_after > 0),           -- seconds of nothing but failures
    tenant_header  text NOT NULL DEFAULT 'tenant',                                     -- of events that are published here
    looked_at      timestamptz NOT NULL DEFAULT '-infinity',   -- when somebody last looked for deliveries whose job is gone,
    reached        jsonb                                       -- and the last of them that was looked at: endpoint, created_at, id
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

-- Deliveries and their jobs, for pairs of an endpoint and an event. An endpoint that is not active gets none, and no event twice. A redelivery of
-- what a key is parked for releases the key. Returns how many there are now.
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
    IF made_by = 'redelivery' THEN   -- what a key is parked for comes in its old place, and the key goes on behind it
        WITH freed AS (
            DELETE FROM holdfast.parked_keys p
            USING unnest(endpoints, event_ids, keys) AS u(endpoint, event_id, key), holdfast.webhook_deliveries d
            WHERE p.queue = 'webhooks_ordered' AND p.partition_key = holdfast.webhook_key(u.endpoint, u.key, u.event_id) AND d.id = p.job_id
              AND d.endpoint_id = u.endpoint AND d.event_id = u.event_id
            RETURNING holdfast.webhook_waiting(u.endpoint, u.event_id) AS id, (SELECT l.seq FROM holdfast.dead_letters l WHERE l.id = p.job_id) AS seq
        )
        UPDATE holdfast.work w SET seq = f.seq FROM freed f WHERE w.queue = 'webhooks_ordered' AND w.id = f.id AND f.seq IS NOT NULL;
    END IF;
    IF made > 0 THEN
        PERFORM holdfast.wake(ARRAY['webhooks', 'webhooks_ordered']);
    END IF;
    RETURN made;
END $$;

-- What attempts need to know, all of it as it is now: one row for each delivery that there is. `wait`: seconds until an endpoint with a rate may
-- get a request; 0: this one has its token. `busy`: an endpoint in order has as many requests as it may; of others a claim takes no more.
-- `place`: the claim under which one of such an endpoint has its place. `knows`: the caller has the event. `over`, `over_places`: requests of the
-- caller's that have ended, though their jobs are not settled yet; without a place, one of these deliveries that was begun before and not sent.
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
        -- A token that was not used goes back before another is taken: a request spends one, however often it is begun.
        next := greatest(next - make_interval(secs => (SELECT count(*) FROM unnest(over, over_places) AS o(id, token)
                                                       WHERE o.token IS NULL AND o.id = ANY (item.ids)) / item.rate), at);
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

-- Jobs of an endpoint may be claimed again, whichever of our holds is on their keys: the reason of a hold begins with `why`.
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

-- Jobs of an endpoint that wait for a later attempt run now: they find it disabled or gone, and end. Locked ones are left.
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

-- How the job of a delivery ended without its handler: what the delivery is because of it, and why. No row: it has not ended. STABLE: it
-- sees what the statement sees that found the delivery pending.
CREATE FUNCTION holdfast.webhook_ended(delivery uuid) RETURNS TABLE (status text, reason text, crashes int, queue text, key text)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    job record;
BEGIN
    SELECT w.status, w.last_error, w.crashes, w.queue, w.partition_key INTO job FROM holdfast.work w
    WHERE w.queue IN ('webhooks', 'webhooks_ordered') AND w.id = delivery;
    IF NOT FOUND THEN
        SELECT 'dead' AS status, d.last_error, d.crashes, d.queue, d.partition_key INTO job FROM holdfast.dead_letters d WHERE d.id = delivery;
    ELSIF job.status <> 'blocked' THEN
        RETURN;
    END IF;
    IF job.status IS NOT NULL THEN
        RETURN QUERY SELECT 'failed', 'its job was given up: ' || left(job.last_error, 1000), job.crashes, job.queue, job.partition_key;
        RETURN;
    END IF;
    RETURN QUERY SELECT 'cancelled', 'its job was cancelled', a.crashes, a.queue, a.partition_key
                 FROM unnest(holdfast.archive_slots_of(delivery)) AS s(slot)
                 CROSS JOIN LATERAL (SELECT x.* FROM holdfast.archive x WHERE x.slot = s.slot AND x.id = delivery OFFSET 0) a LIMIT 1;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'cancelled', 'its job was discarded', 0, 'webhooks', NULL::text;
    END IF;
END $$;

-- Ends deliveries whose job has ended without its handler. One search for all workers: the first one after `every` seconds has
-- the turn, and reads `most` pending deliveries from where that stopped, and those whose job died of late. Returns what webhook_settle()
-- does, and how many were ended (`ended`, in `seconds`).
CREATE FUNCTION holdfast.webhook_settle_lost(most int, every interval)
    RETURNS TABLE (what text, endpoint uuid, queue text, key text, seconds float8, reason text, trial boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
#variable_conflict use_column
DECLARE
    turn record;
    lost record;
BEGIN
    SELECT (s.reached->>'endpoint')::uuid AS endpoint, (s.reached->>'created_at')::timestamptz AS created_at, (s.reached->>'id')::uuid AS id INTO turn
    FROM holdfast.webhook_settings s WHERE s.looked_at <= holdfast.now() - every FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH looked AS MATERIALIZED (
        SELECT d.endpoint_id, d.created_at, d.id FROM holdfast.webhook_deliveries d
        WHERE d.status = 'pending' AND (turn.id IS NULL OR (d.endpoint_id, d.created_at, d.id) > (turn.endpoint, turn.created_at, turn.id))
        ORDER BY d.endpoint_id, d.created_at, d.id LIMIT most
    ), buried AS MATERIALIZED (
        SELECT d.endpoint_id, d.id FROM (SELECT x.id FROM holdfast.dead_letters x WHERE x.died_at > holdfast.now() - interval '10 minutes' ORDER BY x.died_at DESC LIMIT most) l
        CROSS JOIN LATERAL (SELECT x.endpoint_id, x.id FROM holdfast.webhook_deliveries x WHERE x.id = l.id AND x.status = 'pending' OFFSET 0) d
    )
    SELECT (SELECT jsonb_build_object('endpoint', k.endpoint_id, 'created_at', k.created_at, 'id', k.id) FROM looked k
            ORDER BY k.endpoint_id DESC, k.created_at DESC, k.id DESC OFFSET 0 LIMIT 1) AS last,
           (SELECT count(*) FROM looked) AS number, count(*) AS ended,
           jsonb_agg(jsonb_build_object('delivery', f.id, 'endpoint', f.endpoint_id, 'queue', j.queue, 'key', j.key, 'kind', 'dropped', 'outcome', j.status,
                                        'reason', j.reason, 'crashes', j.crashes)) AS rows
    INTO lost
    FROM (SELECT k.endpoint_id, k.id FROM looked k UNION SELECT b.endpoint_id, b.id FROM buried b) f CROSS JOIN LATERAL holdfast.webhook_ended(f.id) j;
    UPDATE holdfast.webhook_settings s SET looked_at = holdfast.now(), reached = CASE WHEN lost.number = most THEN lost.last END;   -- behind the last one it begins again
    IF lost.ended > 0 THEN
        RETURN QUERY SELECT * FROM holdfast.webhook_settle(lost.rows);
        RETURN QUERY SELECT 'ended', NULL::uuid, NULL::text, NULL::text, lost.ended::float8, NULL::text, false;
    END IF;
END $$;

-- A delivery that ended, and whose job somebody put back, waits again; returns whether it does. One that was cancelled with its endpoint does not: its job
-- did not end with it, and ends now.
CREATE FUNCTION holdfast.webhook_reopen(delivery uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    UPDATE holdfast.webhook_deliveries d SET status = 'pending', reason = NULL, settled_at = NULL, crashes = 0, refused = 0
    WHERE d.id = delivery AND d.status IN ('failed', 'cancelled') AND coalesce(d.reason, '') NOT LIKE 'endpoint disabled: %';
    RETURN FOUND;
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

-- A new secret. Existing ones stay valid for `overlap` seconds. Returns 'rotated', 'unknown': the tenant has no such endpoint, or 'many': five
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

-- Empties days of the ring of attempts that are past retention. A day that the ring has come round to before anybody tidied up loses its old rows
-- one at a time. Deliveries that ended go as well, and the rows of removed endpoints. Returns how many slots or rows went.
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
REVOKE ALL ON FUNCTION holdfast.webhook_fan_out, holdfast.webhook_key, holdfast.webhook_shown, holdfast.webhook_limit, holdfast.note_endpoint_change, holdfast.webhook_begin, holdfast.webhook_lift, holdfast.webhook_hurry, holdfast.webhook_disable, holdfast.webhook_settle, holdfast.webhook_ended, holdfast.webhook_settle_lost, holdfast.webhook_reopen,
    holdfast.webhook_create, holdfast.webhook_add_secret, holdfast.webhook_get, holdfast.webhook_list, holdfast.webhook_update, holdfast.webhook_delete,
    holdfast.webhook_rotate, holdfast.empty_webhook_slots FROM PUBLIC;

-- Webhooks: redelivery and portal ---------------------------------------------------------------------------------------
--
-- Every request of a tenant goes through functions that get the tenant as an argument, and see the rows of that tenant alone. Their callers
-- need no right on a table.

-- Redeliveries of an event, beside the one that its event caused.
CREATE INDEX webhook_deliveries_again ON holdfast.webhook_deliveries (endpoint_id, event_id) WHERE cause <> 'event';

-- A range of the log that is delivered to one endpoint once more. A worker takes a piece at a time, at the pace of the range.
CREATE TABLE holdfast.webhook_ranges (
    id            uuid PRIMARY KEY,
    endpoint_id   uuid NOT NULL REFERENCES holdfast.webhook_endpoints ON DELETE CASCADE,
    tenant        text COLLATE "C" NOT NULL,
    choice        text NOT NULL CHECK (choice IN ('failed', 'missing', 'all')),
    tenant_header text,                 -- which header says whose an event is; NULL: none does
    position      bigint NOT NULL,      -- all up to here is done
    seq           bigint NOT NULL,
    until         bigint NOT NULL,
    rate          float8 CHECK (rate > 0),   -- deliveries in a second; NULL: as many as the endpoint takes
    next_at       timestamptz NOT NULL,
    made          int NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL
);
CREATE INDEX webhook_ranges_due ON holdfast.webhook_ranges (next_at);
CREATE INDEX webhook_ranges_tenant ON holdfast.webhook_ranges (tenant);
CREATE INDEX webhook_ranges_endpoint ON holdfast.webhook_ranges (endpoint_id);

-- What tenants asked for with an idempotency key, and what the reply was. The reply to a new endpoint has its secret in it: it is sealed as that is.
CREATE TABLE holdfast.webhook_requests (
    tenant     text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 256),
    digest     bytea NOT NULL CHECK (octet_length(digest) = 32),   -- of what was asked for
    status     int NOT NULL,
    key_id     text,
    reply      bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX webhook_requests_created ON holdfast.webhook_requests (created_at);

-- How much each tenant may write just now.
CREATE TABLE holdfast.webhook_writes (
    tenant  text COLLATE "C" PRIMARY KEY,
    next_at timestamptz NOT NULL   -- when the token after the last one is there
) WITH (fillfactor = 50);

-- The log is kept for ranges that have not ended, too, up to its limits.
CREATE OR REPLACE FUNCTION holdfast.held_log_position() RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT least((SELECT min(s.position) FROM holdfast.subscriptions s WHERE s.hold AND s.status <> 'expired'),
                       (SELECT min(f.position) - 1 FROM holdfast.event_failures f WHERE f.kind <> 'skipped'),
                       (SELECT d.position - 1 FROM holdfast.webhook_deliveries d WHERE d.status = 'pending' ORDER BY d.position LIMIT 1),
                       (SELECT min(r.position) FROM holdfast.webhook_ranges r),
                       9223372036854775807) $$;

-- A delivery as verbs return it, with its attempts where they are asked for. One whose job is gone has ended, before anybody has written it.
CREATE FUNCTION holdfast.webhook_delivery_shown(d holdfast.webhook_deliveries, tried boolean) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT jsonb_build_object('id', d.id, 'endpoint_id', d.endpoint_id, 'event_id', d.event_id, 'event_type', d.event_type, 'url', d.url, 'cause', d.cause,
                                    'status', coalesce(j.status, d.status), 'reason', coalesce(j.reason, d.reason), 'attempts', d.attempts, 'last_status', d.last_status,
                                    'last_error', d.last_error, 'next_attempt_at', CASE WHEN j.status IS NULL THEN d.next_attempt_at END, 'created_at', d.created_at,
                                    'settled_at', d.settled_at, 'position', d.position,
                                    'tried', CASE WHEN tried THEN coalesce((SELECT jsonb_agg(to_jsonb(a) - 'slot' - 'delivery_id' ORDER BY a.n)
                                                                           FROM holdfast.webhook_attempts a WHERE a.delivery_id = d.id), '[]') END)
          FROM (SELECT 1) one LEFT JOIN LATERAL (SELECT e.status, e.reason FROM holdfast.webhook_ended(d.id) e WHERE d.status = 'pending') j ON true $$;

-- Deliveries of a tenant, the newest first.
CREATE FUNCTION holdfast.webhook_deliveries_of(tenant text, endpoint uuid, status text, before uuid, most int, tried boolean) RETURNS SETOF jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
BEGIN
    IF endpoint IS NULL THEN
        RETURN QUERY
        SELECT holdfast.webhook_delivery_shown(d, tried) FROM holdfast.webhook_deliveries d
        WHERE d.tenant = webhook_deliveries_of.tenant AND d.id < coalesce(before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          AND (webhook_deliveries_of.status IS NULL OR d.status = webhook_deliveries_of.status)
          AND (webhook_deliveries_of.status IS DISTINCT FROM 'pending' OR NOT EXISTS (SELECT FROM holdfast.webhook_ended(d.id))) ORDER BY d.tenant, d.id DESC LIMIT most;
    ELSE
        RETURN QUERY
        SELECT holdfast.webhook_delivery_shown(d, tried) FROM holdfast.webhook_deliveries d
        WHERE d.endpoint_id = endpoint AND d.tenant = webhook_deliveries_of.tenant AND d.id < coalesce(before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          AND (webhook_deliveries_of.status IS NULL OR d.status = webhook_deliveries_of.status)
          AND (webhook_deliveries_of.status IS DISTINCT FROM 'pending' OR NOT EXISTS (SELECT FROM holdfast.webhook_ended(d.id))) ORDER BY d.endpoint_id, d.id DESC LIMIT most;
    END IF;
END $$;

-- One delivery of a tenant with its attempts; NULL: the tenant has none of this id.
CREATE FUNCTION holdfast.webhook_delivery(tenant text, delivery uuid) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT holdfast.webhook_delivery_shown(d, true) FROM holdfast.webhook_deliveries d WHERE d.tenant = webhook_delivery.tenant AND d.id = delivery $$;

-- Endpoints of all tenants, for operators.
CREATE FUNCTION holdfast.webhook_all(after uuid, most int) RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT holdfast.webhook_shown(e) FROM holdfast.webhook_endpoints e WHERE after IS NULL OR e.id > after ORDER BY e.id LIMIT most $$;

-- What stands beside an endpoint: its health, its secrets without their values, its ranges, how many deliveries wait (1,000 at most are counted).
CREATE FUNCTION holdfast.webhook_details(tenant text, endpoint uuid) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT jsonb_build_object(
              'health', (SELECT jsonb_build_object('failing_since', h.failing_since, 'last_failure_at', h.last_failure_at, 'failed_deliveries', h.failed_deliveries,
                                                   'last_success_at', h.last_success_at, 'open_until', h.open_until, 'last_error', h.last_error)
                         FROM holdfast.webhook_health h WHERE h.endpoint_id = e.id),
              'secrets', coalesce((SELECT jsonb_agg(jsonb_build_object('id', s.id, 'scheme', s.scheme, 'public_key', s.public_key, 'key_id', s.key_id,
                                                                       'created_at', s.created_at, 'expires_at', s.expires_at) ORDER BY s.created_at DESC)
                                   FROM holdfast.webhook_secrets s WHERE s.endpoint_id = e.id AND (s.expires_at IS NULL OR s.expires_at > holdfast.now())), '[]'),
              'ranges', coalesce((SELECT jsonb_agg(jsonb_build_object('id', r.id, 'only', r.choice, 'position', r.position, 'until', r.until, 'made', r.made,
                                                                      'rate', r.rate, 'created_at', r.created_at) ORDER BY r.created_at)
                                  FROM holdfast.webhook_ranges r WHERE r.endpoint_id = e.id), '[]'),
              'waiting', (SELECT count(*) FROM (SELECT FROM holdfast.webhook_deliveries d WHERE d.endpoint_id = e.id AND d.status = 'pending' LIMIT 1000) w))
          FROM holdfast.webhook_endpoints e WHERE e.tenant = webhook_details.tenant AND e.id = endpoint $$;

-- Whether another delivery of an event to an endpoint waits, and its job with it; of it, or NULL.
CREATE FUNCTION holdfast.webhook_waiting(endpoint uuid, event uuid) RETURNS uuid
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT d.id FROM (
              SELECT a.id, a.status FROM holdfast.webhook_deliveries a WHERE a.endpoint_id = endpoint AND a.event_id = event AND a.cause = 'event'
              UNION ALL
              SELECT b.id, b.status FROM holdfast.webhook_deliveries b WHERE b.endpoint_id = endpoint AND b.event_id = event AND b.cause <> 'event') d
          WHERE d.status = 'pending' AND NOT EXISTS (SELECT FROM holdfast.webhook_ended(d.id)) LIMIT 1 $$;

-- Delivers an event once more to where it was to go, by a delivery of its own: the endpoint's address and secrets are those of now, the id of
-- the message stays. Returns what came of it as `outcome`: made, with the `delivery`; unknown: the tenant has no such delivery; ping; no_endpoint;
-- inactive, with the `status` of the endpoint; waits, with the `delivery` that does; gone: the log has no such event, with the numbers.
CREATE FUNCTION holdfast.webhook_redeliver(tenant text, delivery uuid, attempts int, ordered_attempts int) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    d     holdfast.webhook_deliveries;
    e     holdfast.webhook_endpoints;
    v     record;
    other uuid;
BEGIN
    SELECT * INTO d FROM holdfast.webhook_deliveries x WHERE x.tenant = webhook_redeliver.tenant AND x.id = delivery;
    IF NOT FOUND THEN
        RETURN '{"outcome": "unknown"}';
    ELSIF d.cause = 'ping' THEN
        RETURN '{"outcome": "ping"}';
    END IF;
    SELECT * INTO e FROM holdfast.webhook_endpoints x WHERE x.id = d.endpoint_id AND x.tenant = webhook_redeliver.tenant FOR NO KEY UPDATE;   -- one redelivery at a time
    IF NOT FOUND THEN
        RETURN '{"outcome": "no_endpoint"}';
    ELSIF e.status <> 'active' THEN
        RETURN jsonb_build_object('outcome', 'inactive', 'status', e.status, 'endpoint', e.id);
    END IF;
    other := holdfast.webhook_waiting(e.id, d.event_id);
    IF other IS NOT NULL THEN
        RETURN jsonb_build_object('outcome', 'waits', 'delivery', other);
    END IF;
    SELECT x.seq, x.created_at, x.key, x.type INTO v FROM holdfast.events x WHERE x.slot = d.event_slot AND x.seq = d.event_seq AND x.id = d.event_id;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('outcome', 'gone', 'position', d.position, 'start', (SELECT l.start_pos FROM holdfast.event_log l));
    END IF;
    PERFORM holdfast.webhook_fan_out(ARRAY[e.id], ARRAY[d.event_id], ARRAY[v.seq], ARRAY[v.created_at], ARRAY[d.position], ARRAY[v.type], ARRAY[v.key],
                                     ARRAY[NULL::text], attempts, ordered_attempts, 'redelivery');
    RETURN jsonb_build_object('outcome', 'made', 'delivery', holdfast.webhook_waiting(e.id, d.event_id));
END $$;

-- A message that says nothing, sent once, whatever the status of the endpoint. Its key is its own: no hold of the endpoint stops it. Returns what
-- came of it as `outcome`: made, with the `delivery`; unknown: the tenant has no such endpoint; no_queue: it was not made yet.
CREATE FUNCTION holdfast.webhook_ping(tenant text, endpoint uuid) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at   timestamptz := holdfast.now();
    made uuid;
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = 'webhooks') THEN
        RETURN '{"outcome": "no_queue", "queue": "webhooks"}';
    END IF;
    INSERT INTO holdfast.webhook_deliveries AS d (id, endpoint_id, tenant, event_id, event_type, url, cause, created_at, next_attempt_at)
    SELECT holdfast.uuid7(), e.id, e.tenant, holdfast.uuid7(), 'webhook.ping', e.url, 'ping', at, at
    FROM holdfast.webhook_endpoints e WHERE e.tenant = webhook_ping.tenant AND e.id = endpoint
    RETURNING d.id INTO made;
    IF made IS NULL THEN
        RETURN '{"outcome": "unknown"}';
    END IF;
    INSERT INTO holdfast.work (id, queue, task, payload, partition_key, max_attempts, available_at, created_at, claimed_at, claim_token, seq)
    VALUES (made, 'webhooks', 'holdfast.webhook', jsonb_build_object('endpoint', endpoint, 'event', (SELECT d.event_id FROM holdfast.webhook_deliveries d WHERE d.id = made)),
            'ping:' || made, 1, at, at, at, '00000000-0000-0000-0000-000000000000', nextval('holdfast.work_seq'));
    PERFORM holdfast.wake(ARRAY['webhooks']);
    RETURN jsonb_build_object('outcome', 'made', 'delivery', made);
END $$;

-- Events of a piece of the log that are to be delivered to an endpoint once more: of its tenant, of types that it wants now, none that waits for
-- it already. failed: none of its deliveries arrived; missing: there was none; all: whatever became of it. The last row (id NULL) says how far was looked.
CREATE FUNCTION holdfast.webhook_chosen(endpoint uuid, choice text, tenant_header text, after bigint, after_seq bigint, most int, up_to bigint)
    RETURNS TABLE (pos bigint, seq bigint, id uuid, type text, key text, created_at timestamptz)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
BEGIN
    RETURN QUERY
    SELECT r.pos, r.seq, r.id, r.type, r.key, r.created_at
    FROM holdfast.webhook_endpoints e
    CROSS JOIN LATERAL holdfast.read_events(after, after_seq, most, 67108864, ARRAY(
        SELECT replace(replace(replace(replace(u.one, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%') FROM unnest(e.events) AS u(one)), 0, 1, up_to) r
    LEFT JOIN LATERAL (
        SELECT count(*) AS n, bool_or(d.status = 'delivered') AS arrived, bool_or(d.status = 'pending' AND NOT EXISTS (SELECT FROM holdfast.webhook_ended(d.id))) AS waits
        FROM (SELECT a.id, a.status FROM holdfast.webhook_deliveries a WHERE a.endpoint_id = e.id AND a.event_id = r.id AND a.cause = 'event'
              UNION ALL
              SELECT b.id, b.status FROM holdfast.webhook_deliveries b WHERE b.endpoint_id = e.id AND b.event_id = r.id AND b.cause <> 'event') d) d ON r.id IS NOT NULL
    WHERE e.id = endpoint
      AND (r.id IS NULL
           OR (CASE choice WHEN 'failed' THEN d.n > 0 AND NOT d.arrived AND NOT d.waits
                           WHEN 'missing' THEN d.n = 0 AND r.headers::jsonb->>tenant_header = e.tenant
                           ELSE coalesce(NOT d.waits, true) AND r.headers::jsonb->>tenant_header = e.tenant END));
END $$;

-- How many such events there are in a range.
CREATE FUNCTION holdfast.webhook_range_count(endpoint uuid, choice text, tenant_header text, after bigint, up_to bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at    bigint := after;
    seq   bigint := holdfast.event_seq_at(after);
    found record;
    total bigint := 0;
BEGIN
    WHILE at < up_to LOOP
        SELECT count(c.id) AS n, max(c.pos) FILTER (WHERE c.id IS NULL) AS pos, max(c.seq) FILTER (WHERE c.id IS NULL) AS seq INTO found
        FROM holdfast.webhook_chosen(endpoint, choice, tenant_header, at, seq, 2000, up_to) c;
        EXIT WHEN found.pos IS NULL OR found.pos <= at;
        total := total + found.n;
        at := found.pos;
        seq := found.seq;
    END LOOP;
    RETURN total;
END $$;

-- Begins the redelivery of a range: after a position, or since a time, up to another one (NULL: the end of the log). Returns what came of it as
-- `outcome`: begun, or counted where nothing is to be done, with the `count`; unknown; inactive; gone: the log begins later, with the numbers; many: the
-- tenant has as many as it may (`most`; NULL: any number).
CREATE FUNCTION holdfast.webhook_range_begin(tenant text, endpoint uuid, choice text, tenant_header text, after bigint, since timestamptz, up_to bigint, until timestamptz,
                                             rate float8, most int, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    now    timestamptz := holdfast.now();
    e      holdfast.webhook_endpoints;
    start  bigint;
    first  timestamptz;
    last   bigint;
    total  bigint;
    made   uuid;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast webhook ranges ' || tenant, 0));
    SELECT * INTO e FROM holdfast.webhook_endpoints x WHERE x.tenant = webhook_range_begin.tenant AND x.id = endpoint FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN '{"outcome": "unknown"}';
    ELSIF e.status <> 'active' AND NOT dry_run THEN
        RETURN jsonb_build_object('outcome', 'inactive', 'status', e.status, 'endpoint', e.id);
    END IF;
    SELECT l.start_pos, coalesce((SELECT g.last_pos FROM holdfast.event_pages g ORDER BY g.last_pos DESC LIMIT 1), l.start_pos) INTO start, last FROM holdfast.event_log l;
    SELECT min(g.at) INTO first FROM holdfast.event_pages g;
    IF after IS NULL THEN
        IF start > 0 AND (first IS NULL OR since < first) THEN
            RETURN jsonb_build_object('outcome', 'gone', 'start', start, 'first', first);
        END IF;
        after := coalesce(holdfast.event_position_at(since), last);
    ELSIF after < start THEN
        RETURN jsonb_build_object('outcome', 'gone', 'start', start, 'first', first, 'after', after);
    END IF;
    up_to := least(coalesce(up_to, holdfast.event_position_at(until), last), last);
    total := holdfast.webhook_range_count(endpoint, choice, tenant_header, after, up_to);
    IF dry_run OR total = 0 THEN
        RETURN jsonb_build_object('outcome', 'counted', 'count', total, 'after', after, 'until', up_to);
    ELSIF most IS NOT NULL AND (SELECT count(*) FROM holdfast.webhook_ranges r WHERE r.tenant = webhook_range_begin.tenant) >= most THEN
        RETURN jsonb_build_object('outcome', 'many', 'most', most);
    END IF;
    INSERT INTO holdfast.webhook_ranges AS r (id, endpoint_id, tenant, choice, tenant_header, position, seq, until, rate, next_at, created_at)
    VALUES (holdfast.uuid7(), e.id, e.tenant, choice, tenant_header, after, holdfast.event_seq_at(after), up_to, rate, now, now) RETURNING r.id INTO made;
    RETURN jsonb_build_object('outcome', 'begun', 'count', total, 'after', after, 'until', up_to, 'range', made);
END $$;

-- One piece of the range that is due first. Returns its id, how many deliveries were made, whether it ended, and how many events were gone before it
-- came to them; or no row, when none is due. A range waits while its endpoint is not active, or has more deliveries waiting than it can take.
CREATE FUNCTION holdfast.webhook_range_step(attempts int, ordered_attempts int, most int) RETURNS TABLE (range uuid, endpoint uuid, made int, ended boolean, gone bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    now   timestamptz := holdfast.now();
    r     holdfast.webhook_ranges;
    e     holdfast.webhook_endpoints;
    page  record;
    size  int;
    start bigint := (SELECT l.start_pos FROM holdfast.event_log l);
BEGIN
    SELECT x.* INTO r FROM holdfast.webhook_ranges x WHERE x.next_at <= now ORDER BY x.next_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT x.* INTO e FROM holdfast.webhook_endpoints x WHERE x.id = r.endpoint_id;
    made := 0;
    gone := greatest(start - r.position, 0);
    IF gone > 0 THEN
        r.position := start;
        r.seq := holdfast.event_seq_at(start);
    END IF;
    IF e.status IS DISTINCT FROM 'active' THEN
        r.next_at := now + interval '5 seconds';
    ELSIF (SELECT count(*) FROM (SELECT FROM holdfast.webhook_deliveries d WHERE d.endpoint_id = e.id AND d.status = 'pending' LIMIT 1000) w) >= 1000 THEN
        r.next_at := now + interval '1 second';
    ELSIF r.position < r.until THEN
        size := least(most, greatest(1, floor(r.rate / 4))::int);
        WITH c AS MATERIALIZED (
            SELECT c.*, row_number() OVER (ORDER BY c.pos, c.id NULLS LAST) AS nth FROM holdfast.webhook_chosen(e.id, r.choice, r.tenant_header, r.position, r.seq, most, r.until) c
        ), k AS (
            SELECT * FROM c WHERE c.id IS NOT NULL AND c.nth <= size
        )
        SELECT array_agg(k.id ORDER BY k.pos) AS ids, array_agg(k.seq ORDER BY k.pos) AS seqs, array_agg(k.created_at ORDER BY k.pos) AS times,
               array_agg(k.pos ORDER BY k.pos) AS positions, array_agg(k.type ORDER BY k.pos) AS types, array_agg(k.key ORDER BY k.pos) AS keys, count(*)::int AS n,
               (SELECT count(*) FROM c WHERE c.id IS NOT NULL) > count(*) AS cut, max(k.pos) AS pos, max(k.seq) AS seq,
               (SELECT c.pos FROM c WHERE c.id IS NULL) AS far, (SELECT c.seq FROM c WHERE c.id IS NULL) AS far_seq
        INTO page FROM k;
        IF page.n > 0 THEN
            made := holdfast.webhook_fan_out(array_fill(e.id, ARRAY[page.n]), page.ids, page.seqs, page.times, page.positions, page.types, page.keys,
                                             array_fill(NULL::text, ARRAY[page.n]), attempts, ordered_attempts, 'redelivery');
        END IF;
        IF page.cut THEN
            r.position := page.positions[page.n];
            r.seq := page.seqs[page.n];
        ELSE
            r.seq := coalesce(page.far_seq, r.seq);
            r.position := coalesce(page.far, r.until);
        END IF;
        r.next_at := now + make_interval(secs => coalesce(made / r.rate, 0));
    END IF;
    ended := r.position >= r.until;
    IF ended THEN
        DELETE FROM holdfast.webhook_ranges x WHERE x.id = r.id;
    ELSE
        UPDATE holdfast.webhook_ranges x SET position = r.position, seq = r.seq, next_at = r.next_at, made = x.made + webhook_range_step.made WHERE x.id = r.id;
    END IF;
    range := r.id;
    endpoint := r.endpoint_id;
    RETURN NEXT;
END $$;

-- The earlier request of a tenant with this key: (status, key_id, reply) as JSON, or {"differs": true}; NULL: there is none, or it is too old. A caller waits
-- for a concurrent one with the same key.
CREATE FUNCTION holdfast.webhook_request(tenant text, key text, digest bytea, keep interval) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    q holdfast.webhook_requests;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast webhook request ' || tenant || ' ' || key, 0));
    SELECT * INTO q FROM holdfast.webhook_requests x WHERE x.tenant = webhook_request.tenant AND x.key = webhook_request.key AND x.created_at > holdfast.now() - keep;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF q.digest <> webhook_request.digest THEN
        RETURN '{"differs": true}';
    END IF;
    RETURN jsonb_build_object('status', q.status, 'key_id', q.key_id, 'reply', encode(q.reply, 'base64'));
END $$;

CREATE FUNCTION holdfast.webhook_replied(tenant text, key text, digest bytea, status int, key_id text, reply bytea) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ INSERT INTO holdfast.webhook_requests AS q (tenant, key, digest, status, key_id, reply, created_at) VALUES ($1, $2, $3, $4, $5, $6, holdfast.now())
          ON CONFLICT (tenant, key) DO UPDATE SET digest = EXCLUDED.digest, status = EXCLUDED.status, key_id = EXCLUDED.key_id, reply = EXCLUDED.reply,
              created_at = EXCLUDED.created_at $$;

-- Takes one of a tenant's writes, of which there are `most` in a minute. Returns for how many seconds there is none; 0: it was taken, or the request
-- with this key was made before.
CREATE FUNCTION holdfast.webhook_write(tenant text, most int, key text) RETURNS float8
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    at   timestamptz := holdfast.now();
    step interval := make_interval(secs => 60.0 / most);
    next timestamptz;
BEGIN
    IF EXISTS (SELECT FROM holdfast.webhook_requests q WHERE q.tenant = webhook_write.tenant AND q.key = webhook_write.key) THEN
        RETURN 0;
    END IF;
    INSERT INTO holdfast.webhook_writes AS w (tenant, next_at) VALUES (webhook_write.tenant, at)
    ON CONFLICT ON CONSTRAINT webhook_writes_pkey DO UPDATE SET next_at = greatest(w.next_at, at) RETURNING w.next_at INTO next;
    IF next > at + step * (most - 1) THEN
        RETURN extract(epoch FROM next - at - step * (most - 1));
    END IF;
    UPDATE holdfast.webhook_writes w SET next_at = next + step WHERE w.tenant = webhook_write.tenant;
    RETURN 0;
END $$;

-- How many endpoints a tenant has. Nobody creates another one meanwhile: the caller locks the tenant to the end of the transaction.
CREATE FUNCTION holdfast.webhook_count(tenant text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast webhook endpoints ' || tenant, 0));
    RETURN (SELECT count(*) FROM holdfast.webhook_endpoints e WHERE e.tenant = webhook_count.tenant);
END $$;

-- The types that webhooks send, each with the schema of its newest version, where that is stored.
CREATE FUNCTION holdfast.webhook_event_types() RETURNS SETOF jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT DISTINCT ON (t.name) jsonb_build_object('type', t.name, 'version', t.version, 'schema', t.writer) FROM holdfast.event_types t
          WHERE t.name LIKE ANY (SELECT replace(replace(replace(replace(u.one, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')
                                 FROM holdfast.subscriptions s CROSS JOIN LATERAL unnest(s.patterns) AS u(one) WHERE s.name = 'webhooks')
          ORDER BY t.name, t.version DESC $$;

-- Secrets and headers that another key sealed than this one, or none: (endpoint, secret; NULL: its headers, key_id, sealed). Their endpoints are locked.
CREATE FUNCTION holdfast.webhook_unsealed(key_id text, most int) RETURNS TABLE (endpoint uuid, secret uuid, sealed_by text, sealed bytea)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RETURN QUERY
    WITH e AS MATERIALIZED (
        SELECT x.id FROM holdfast.webhook_endpoints x
        WHERE (x.headers IS NOT NULL AND x.headers_key_id IS DISTINCT FROM webhook_unsealed.key_id)
           OR EXISTS (SELECT FROM holdfast.webhook_secrets s WHERE s.endpoint_id = x.id AND s.key_id IS DISTINCT FROM webhook_unsealed.key_id)
        ORDER BY x.id LIMIT most FOR NO KEY UPDATE
    )
    SELECT s.endpoint_id, s.id, s.key_id, s.sealed FROM e JOIN holdfast.webhook_secrets s ON s.endpoint_id = e.id WHERE s.key_id IS DISTINCT FROM webhook_unsealed.key_id
    UNION ALL
    SELECT x.id, NULL, x.headers_key_id, x.headers FROM e JOIN holdfast.webhook_endpoints x ON x.id = e.id
    WHERE x.headers IS NOT NULL AND x.headers_key_id IS DISTINCT FROM webhook_unsealed.key_id;
END $$;

CREATE FUNCTION holdfast.webhook_sealed(endpoint uuid, secret uuid, key_id text, sealed bytea) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF secret IS NULL THEN
        UPDATE holdfast.webhook_endpoints e SET headers = webhook_sealed.sealed, headers_key_id = webhook_sealed.key_id WHERE e.id = endpoint;
    ELSE
        UPDATE holdfast.webhook_secrets s SET sealed = webhook_sealed.sealed, key_id = webhook_sealed.key_id WHERE s.endpoint_id = endpoint AND s.id = secret;
    END IF;
END $$;

-- Forgets requests after their time, and tenants that have not written for an hour.
CREATE FUNCTION holdfast.prune_webhook_requests(keep interval, most int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    n int;
    m int;
BEGIN
    DELETE FROM holdfast.webhook_requests q WHERE q.ctid = ANY (ARRAY(
        SELECT x.ctid FROM holdfast.webhook_requests x WHERE x.created_at < holdfast.now() - greatest(keep, interval '1 day') ORDER BY x.created_at LIMIT most));
    GET DIAGNOSTICS n = ROW_COUNT;
    DELETE FROM holdfast.webhook_writes w WHERE w.ctid = ANY (ARRAY(
        SELECT x.ctid FROM holdfast.webhook_writes x WHERE x.next_at < holdfast.now() - interval '1 hour' LIMIT most));
    GET DIAGNOSTICS m = ROW_COUNT;
    RETURN n + m;
END $$;
REVOKE ALL ON FUNCTION holdfast.webhook_deliveries_of, holdfast.webhook_delivery, holdfast.webhook_all, holdfast.webhook_details, holdfast.webhook_redeliver, holdfast.webhook_ping,
    holdfast.webhook_range_begin, holdfast.webhook_range_step, holdfast.webhook_request, holdfast.webhook_replied, holdfast.webhook_write, holdfast.webhook_count,
    holdfast.webhook_event_types, holdfast.webhook_unsealed, holdfast.webhook_sealed, holdfast.prune_webhook_requests,
    holdfast.webhook_delivery_shown, holdfast.webhook_waiting, holdfast.webhook_chosen, holdfast.webhook_range_count FROM PUBLIC;
