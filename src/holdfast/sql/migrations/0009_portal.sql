-- holdfast: expand (needs code >= 1)
-- Webhooks: redelivery and portal ---------------------------------------------------------------------------------------
--
-- Everything that a tenant asks for goes through functions that are given the tenant, and see the rows of that tenant alone. Who may call them
-- needs no right on a table.

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

-- A delivery as verbs return it, with its attempts where they are asked for.
CREATE FUNCTION holdfast.webhook_delivery_shown(d holdfast.webhook_deliveries, tried boolean) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT jsonb_build_object('id', d.id, 'endpoint_id', d.endpoint_id, 'event_id', d.event_id, 'event_type', d.event_type, 'url', d.url, 'cause', d.cause,
                                    'status', d.status, 'reason', d.reason, 'attempts', d.attempts, 'last_status', d.last_status, 'last_error', d.last_error,
                                    'next_attempt_at', d.next_attempt_at, 'created_at', d.created_at, 'settled_at', d.settled_at, 'position', d.position,
                                    'tried', CASE WHEN tried THEN coalesce((SELECT jsonb_agg(to_jsonb(a) - 'slot' - 'delivery_id' ORDER BY a.n)
                                                                           FROM holdfast.webhook_attempts a WHERE a.delivery_id = d.id), '[]') END) $$;

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
          AND (webhook_deliveries_of.status IS NULL OR d.status = webhook_deliveries_of.status) ORDER BY d.tenant, d.id DESC LIMIT most;
    ELSE
        RETURN QUERY
        SELECT holdfast.webhook_delivery_shown(d, tried) FROM holdfast.webhook_deliveries d
        WHERE d.endpoint_id = endpoint AND d.tenant = webhook_deliveries_of.tenant AND d.id < coalesce(before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
          AND (webhook_deliveries_of.status IS NULL OR d.status = webhook_deliveries_of.status) ORDER BY d.endpoint_id, d.id DESC LIMIT most;
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

-- Whether another delivery of an event to an endpoint waits; of it, or NULL.
CREATE FUNCTION holdfast.webhook_waiting(endpoint uuid, event uuid) RETURNS uuid
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT d.id FROM (
              SELECT a.id, a.status FROM holdfast.webhook_deliveries a WHERE a.endpoint_id = endpoint AND a.event_id = event AND a.cause = 'event'
              UNION ALL
              SELECT b.id, b.status FROM holdfast.webhook_deliveries b WHERE b.endpoint_id = endpoint AND b.event_id = event AND b.cause <> 'event') d
          WHERE d.status = 'pending' LIMIT 1 $$;

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
        SELECT count(*) AS n, bool_or(d.status = 'delivered') AS arrived, bool_or(d.status = 'pending') AS waits
        FROM (SELECT a.status FROM holdfast.webhook_deliveries a WHERE a.endpoint_id = e.id AND a.event_id = r.id AND a.cause = 'event'
              UNION ALL
              SELECT b.status FROM holdfast.webhook_deliveries b WHERE b.endpoint_id = e.id AND b.event_id = r.id AND b.cause <> 'event') d) d ON r.id IS NOT NULL
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

-- What a tenant asked for before with this key: (status, key_id, reply) as JSON, or {"differs": true}; NULL: nothing, or too long ago. Whoever asks waits
-- for whoever asks with the same key.
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

-- How many endpoints a tenant has. Nobody makes another one meanwhile: whoever asks holds the tenant to the end of the transaction.
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
