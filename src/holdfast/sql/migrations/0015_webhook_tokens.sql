-- holdfast: expand (needs code >= 1)
-- A delivery that is begun twice, because it waited for its slot, spends one token of its endpoint's rate.

-- What attempts need to know, all of it as it is now: one row for each delivery that there is. `wait`: seconds until an endpoint with a rate may
-- get a request; 0: this one has its token. `busy`: an endpoint in order has as many requests as it may; of others a claim takes no more.
-- `place`: the claim under which one of such an endpoint has its place. `knows`: the caller has the event. `over`, `over_places`: requests of the
-- caller's that have ended, though their jobs are not settled yet; without a place, one of these deliveries that was begun before and not sent.
CREATE OR REPLACE FUNCTION holdfast.webhook_begin(deliveries uuid[], knows boolean[], over uuid[], over_places uuid[])
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
