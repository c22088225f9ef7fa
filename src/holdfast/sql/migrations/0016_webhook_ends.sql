-- holdfast: expand (needs code >= 1)
-- A delivery of a webhook ends however its job does: also when that is buried, cancelled or discarded without its handler. A redelivery of what a key is
-- parked for takes its place.

ALTER TABLE holdfast.webhook_settings
    ADD COLUMN looked_at timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN reached jsonb;

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

-- Ends deliveries whose job has ended without its handler. One look for all workers: whoever comes when `every` has passed since the last one has
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

-- Deliveries and their jobs, for pairs of an endpoint and an event. An endpoint that is not active gets none, and no event twice. A redelivery of
-- what a key is parked for releases the key. Returns how many there are now.
CREATE OR REPLACE FUNCTION holdfast.webhook_fan_out(
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

-- A delivery as verbs return it, with its attempts where they are asked for. One whose job is gone has ended, before anybody has written it.
CREATE OR REPLACE FUNCTION holdfast.webhook_delivery_shown(d holdfast.webhook_deliveries, tried boolean) RETURNS jsonb
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
CREATE OR REPLACE FUNCTION holdfast.webhook_deliveries_of(tenant text, endpoint uuid, status text, before uuid, most int, tried boolean) RETURNS SETOF jsonb
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

-- Whether another delivery of an event to an endpoint waits, and its job with it; of it, or NULL.
CREATE OR REPLACE FUNCTION holdfast.webhook_waiting(endpoint uuid, event uuid) RETURNS uuid
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT d.id FROM (
              SELECT a.id, a.status FROM holdfast.webhook_deliveries a WHERE a.endpoint_id = endpoint AND a.event_id = event AND a.cause = 'event'
              UNION ALL
              SELECT b.id, b.status FROM holdfast.webhook_deliveries b WHERE b.endpoint_id = endpoint AND b.event_id = event AND b.cause <> 'event') d
          WHERE d.status = 'pending' AND NOT EXISTS (SELECT FROM holdfast.webhook_ended(d.id)) LIMIT 1 $$;

-- Events of a piece of the log that are to be delivered to an endpoint once more: of its tenant, of types that it wants now, none that waits for
-- it already. failed: none of its deliveries arrived; missing: there was none; all: whatever became of it. The last row (id NULL) says how far was looked.
CREATE OR REPLACE FUNCTION holdfast.webhook_chosen(endpoint uuid, choice text, tenant_header text, after bigint, after_seq bigint, most int, up_to bigint)
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

REVOKE ALL ON FUNCTION holdfast.webhook_ended, holdfast.webhook_settle_lost, holdfast.webhook_reopen FROM PUBLIC;
