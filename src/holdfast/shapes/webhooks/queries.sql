-- name: webhook_registry
-- Endpoints that changed since a snapshot, with those that are not active now: (snapshot, id, tenant, events, active?). One row at least.
-- $1 snapshot (NULL: every endpoint that is active)
SELECT pg_current_snapshot()::text, e.id, e.tenant, e.events, e.status = 'active'
FROM (SELECT 1) AS one(row) LEFT JOIN holdfast.webhook_endpoints e
  ON CASE WHEN $1::text IS NULL THEN e.status = 'active'
          ELSE e.changed >= pg_snapshot_xmin($1::text::pg_snapshot) AND NOT pg_visible_in_snapshot(e.changed, $1::text::pg_snapshot) END;

-- name: webhook_fan_out
-- Deliveries and their jobs; returns how many. $1 endpoints, $2 ids of events, $3 seqs, $4 times, $5 positions, $6 types, $7 keys, $8 metadata,
-- $9 most attempts, $10 the same of endpoints in order
SELECT holdfast.webhook_fan_out($1::uuid[], $2::uuid[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::int, $10::int);

-- name: webhook_begin
-- What attempts need to know. $1 deliveries, $2 whether the caller has the event of each
SELECT * FROM holdfast.webhook_begin($1::uuid[], $2::boolean[], $3::uuid[], $4::uuid[]);

-- name: webhook_settle
-- What attempts ended with; returns what is to be done. $1 rows
SELECT * FROM holdfast.webhook_settle($1::text::jsonb);

-- name: webhook_lost
-- End deliveries whose job ended without its handler; returns what is to be done. $1 most rows to look at, $2 seconds between two looks of all workers
SELECT * FROM holdfast.webhook_settle_lost($1::int, make_interval(secs => $2::float8));

-- name: webhook_stale_holds
-- Holds of ours that nobody lifts: (queue, key). They were written after their endpoint was continued, lost its rate or was deleted, or are of a
-- ping. $1 most
SELECT k.queue, k.partition_key
FROM holdfast.key_holds k LEFT JOIN holdfast.webhook_endpoints e
  ON e.id = CASE WHEN k.partition_key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(:|$)' THEN left(k.partition_key, 36)::uuid END
WHERE k.queue IN ('webhooks', 'webhooks_ordered') AND k.reason LIKE 'webhook %' AND (k.trial OR k.until > holdfast.now())
  AND (e.id IS NULL OR (k.reason LIKE 'webhook paused%' AND e.status <> 'paused') OR (k.reason LIKE 'webhook rate%' AND e.rate IS NULL))
LIMIT $1;

-- name: webhook_reopen
-- A delivery that ended, and whose job runs again, waits again; returns whether it does. $1 id
SELECT holdfast.webhook_reopen($1::uuid);

-- name: webhook_create
-- anywhere
-- Create an endpoint; returns it as JSON. $1 the endpoint, $2 its secret
SELECT ARRAY[holdfast.webhook_create($1::text::jsonb, $2::text::jsonb)::text];

-- name: webhook_get
-- anywhere
-- An endpoint of a tenant as JSON, or NULL. $1 tenant, $2 id
SELECT ARRAY[holdfast.webhook_get($1::text, $2::text::uuid)::text];

-- name: webhook_list
-- anywhere
-- Endpoints of a tenant as JSON, in the order of their ids. $1 tenant, $2 after this id (NULL: from the first), $3 limit
SELECT array_agg(l.endpoint::text) FROM holdfast.webhook_list($1::text, $2::text::uuid, $3::int) AS l(endpoint);

-- name: webhook_update
-- anywhere
-- Change an endpoint; returns it as JSON, NULL, or the text soon. $1 tenant, $2 id, $3 changes
SELECT ARRAY[holdfast.webhook_update($1::text, $2::text::uuid, $3::text::jsonb)::text];

-- name: webhook_delete
-- anywhere
-- Remove an endpoint. $1 tenant, $2 id
SELECT ARRAY[holdfast.webhook_delete($1::text, $2::text::uuid)::text];

-- name: webhook_rotate
-- anywhere
-- A new secret; returns the result. $1 tenant, $2 id, $3 the secret, $4 seconds for which the others stay valid
SELECT ARRAY[holdfast.webhook_rotate($1::text, $2::text::uuid, $3::text::jsonb, $4::float8)];

-- name: set_webhooks
-- The declaration of the code. $1 days that attempts and ended deliveries are kept, $2 seconds of failures after which an endpoint is disabled,
-- $3 the header of an event that names its tenant
UPDATE holdfast.webhook_settings s SET retention_days = $1::int, disable_after = $2::float8, tenant_header = $3::text
WHERE (s.retention_days, s.disable_after, s.tenant_header) IS DISTINCT FROM ($1::int, $2::float8, $3::text) RETURNING 1;

-- name: empty_webhook_slots
-- Remove what is past retention. $1 most rows
SELECT holdfast.empty_webhook_slots($1::int);

-- name: webhook_all
-- Endpoints of all tenants as JSON, in the order of their ids. $1 after this id (NULL: from the first), $2 limit
SELECT l.endpoint::text FROM holdfast.webhook_all($1::uuid, $2::int) AS l(endpoint);

-- name: webhook_details
-- What stands beside an endpoint, as JSON, or NULL. $1 tenant, $2 id
SELECT holdfast.webhook_details($1::text, $2::uuid)::text;

-- name: webhook_ids_between
-- Some ids of endpoints in a range of ids.
-- $1 the lowest id, $2 the highest, $3 limit
SELECT e.id FROM holdfast.webhook_endpoints e WHERE e.id BETWEEN $1::uuid AND $2::uuid ORDER BY e.id LIMIT $3;

-- name: webhook_delivery_ids_between
-- Some ids of deliveries in a range of ids.
-- $1 the lowest id, $2 the highest, $3 limit
SELECT d.id FROM holdfast.webhook_deliveries d WHERE d.id BETWEEN $1::uuid AND $2::uuid ORDER BY d.id LIMIT $3;

-- name: webhook_tenant_of
-- Whose an endpoint is, for operators. $1 id
SELECT (SELECT e.tenant FROM holdfast.webhook_endpoints e WHERE e.id = $1::uuid);

-- name: webhook_tenant_of_delivery
-- Whose a delivery is, for operators. $1 id
SELECT (SELECT d.tenant FROM holdfast.webhook_deliveries d WHERE d.id = $1::uuid);

-- name: webhook_deliveries_of
-- Deliveries of a tenant as JSON, the newest first. $1 tenant, $2 endpoint (NULL: any), $3 status (NULL: any), $4 before this id, $5 limit,
-- $6 with attempts?
SELECT l.delivery::text FROM holdfast.webhook_deliveries_of($1::text, $2::uuid, $3::text, $4::uuid, $5::int, $6::boolean) AS l(delivery);

-- name: webhook_delivery
-- A delivery of a tenant with its attempts, as JSON, or NULL. $1 tenant, $2 id
SELECT holdfast.webhook_delivery($1::text, $2::uuid)::text;

-- name: webhook_ping
-- Send a message that says nothing; returns what came of it. $1 tenant, $2 endpoint
SELECT holdfast.webhook_ping($1::text, $2::uuid)::text;

-- name: webhook_redeliver
-- Deliver an event once more; returns what came of it. $1 tenant, $2 delivery, $3 most attempts, $4 the same of endpoints in order
SELECT holdfast.webhook_redeliver($1::text, $2::uuid, $3::int, $4::int)::text;

-- name: webhook_range_begin
-- Deliver a range once more, or count it; returns what came of it. $1 tenant, $2 endpoint, $3 which, $4 the header with the tenant, $5 after this position,
-- $6 or since, $7 up to this position, $8 or until, $9 in a second, $10 most ranges of the tenant, $11 only count?
SELECT holdfast.webhook_range_begin($1::text, $2::uuid, $3::text, $4::text, $5::bigint, $6::timestamptz, $7::bigint, $8::timestamptz, $9::float8, $10::int, $11::boolean)::text;

-- name: webhook_range_step
-- One piece of the range that is due first. $1 most attempts, $2 the same of endpoints in order, $3 most deliveries
SELECT s.range, s.endpoint, s.made, s.ended, s.gone FROM holdfast.webhook_range_step($1::int, $2::int, $3::int) s;

-- name: webhook_range_next
-- Seconds until a range is due; NULL: there is none.
SELECT (SELECT extract(epoch FROM min(r.next_at) - holdfast.now())::float8 FROM holdfast.webhook_ranges r);

-- name: webhook_count
-- How many endpoints a tenant has; nobody makes another one before the commit. $1 tenant
SELECT holdfast.webhook_count($1::text);

-- name: webhook_request
-- The reply to a key, or that it was used for another request, as JSON, or NULL. $1 tenant, $2 key, $3 digest, $4 how long it is kept
SELECT holdfast.webhook_request($1::text, $2::text, $3::bytea, $4::interval)::text;

-- name: webhook_replied
-- Keep a reply. $1 tenant, $2 key, $3 digest, $4 status, $5 the key that sealed it, $6 the reply
SELECT holdfast.webhook_replied($1::text, $2::text, $3::bytea, $4::int, $5::text, $6::bytea);

-- name: webhook_write
-- Take one of a tenant's writes; returns for how many seconds there is none. $1 tenant, $2 most in a minute, $3 the key of the request
SELECT holdfast.webhook_write($1::text, $2::int, $3::text);

-- name: webhook_event_types
-- The types that webhooks send, as JSON, with the schema of the newest version.
SELECT t.found::text FROM holdfast.webhook_event_types() AS t(found);

-- name: prune_webhook_requests
-- Forget replies after their time. $1 how long they are kept, $2 most rows
SELECT holdfast.prune_webhook_requests($1::interval, $2::int);

-- name: webhook_unsealed
-- Secrets and headers that are not sealed by this key, of some endpoints, which are locked. $1 key, $2 most endpoints
SELECT u.endpoint, u.secret, u.sealed_by, u.sealed FROM holdfast.webhook_unsealed($1::text, $2::int) u;

-- name: webhook_sealed
-- Store a newly sealed value. $1 endpoint, $2 secret (NULL: its headers), $3 key, $4 sealed
SELECT holdfast.webhook_sealed($1::uuid, $2::uuid, $3::text, $4::bytea);

-- name: webhook_health
-- For metrics: (pending deliveries up to 10000, seconds of the oldest, endpoints by status as JSON, failing ones). Costs the same however many there are.
SELECT (SELECT count(*) FROM (SELECT FROM holdfast.webhook_deliveries d WHERE d.status = 'pending' LIMIT 10000) p),
       coalesce((SELECT extract(epoch FROM holdfast.now() - d.created_at)::float8 FROM holdfast.webhook_deliveries d
                 WHERE d.status = 'pending' ORDER BY d.position LIMIT 1), 0),
       (SELECT jsonb_object_agg(s.status, s.n) FROM (SELECT e.status, count(*) AS n FROM (SELECT x.status FROM holdfast.webhook_endpoints x LIMIT 10000) e
                                                     GROUP BY e.status) s),
       (SELECT count(*) FROM (SELECT h.failing_since FROM holdfast.webhook_health h LIMIT 10000) h WHERE h.failing_since IS NOT NULL);

-- name: webhook_troubled
-- For the doctor: endpoints in trouble, the oldest trouble first: (id, tenant, status, why, seconds). $1 seconds of nothing but failures, $2 most
(SELECT e.id, e.tenant, e.status, h.last_error, extract(epoch FROM holdfast.now() - h.failing_since)::float8 AS seconds
 FROM holdfast.webhook_health h JOIN holdfast.webhook_endpoints e ON e.id = h.endpoint_id
 WHERE e.status = 'active' AND h.failing_since <= holdfast.now() - make_interval(secs => $1::float8) ORDER BY h.failing_since LIMIT $2::int)
UNION ALL
(SELECT e.id, e.tenant, e.status, e.disabled_reason, extract(epoch FROM holdfast.now() - coalesce(e.disabled_at, e.updated_at))::float8 AS seconds
 FROM holdfast.webhook_endpoints e WHERE e.status <> 'active' ORDER BY coalesce(e.disabled_at, e.updated_at) LIMIT $2::int);

-- name: webhook_sealing_keys
-- For the doctor: how many secrets in use each key has sealed; NULL: they are bare.
SELECT s.key_id, count(*)::int FROM holdfast.webhook_secrets s WHERE s.expires_at IS NULL OR s.expires_at > holdfast.now() GROUP BY s.key_id ORDER BY 1;
