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
SELECT * FROM holdfast.webhook_begin($1::uuid[], $2::boolean[]);

-- name: webhook_settle
-- What attempts ended with; returns what is to be done. $1 rows, $2 seconds of failures after which an endpoint is disabled, $3 the header that has the tenant
SELECT * FROM holdfast.webhook_settle($1::text::jsonb, $2::float8, $3::text);

-- name: webhook_create
-- anywhere
-- Make an endpoint; returns it as JSON. $1 the endpoint, $2 its secret
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
-- A new secret; returns what came of it. $1 tenant, $2 id, $3 the secret, $4 seconds that the others go on
SELECT ARRAY[holdfast.webhook_rotate($1::text, $2::text::uuid, $3::text::jsonb, $4::float8)];

-- name: webhook_deliveries
-- Deliveries of a tenant, the newest first. $1 tenant, $2 endpoint (NULL: any), $3 status (NULL: any), $4 before this id (NULL: from the newest), $5 limit
SELECT d.id, d.endpoint_id, d.event_id, d.event_type, d.cause, d.status, d.reason, d.next_attempt_at, d.created_at
FROM holdfast.webhook_deliveries d
WHERE d.tenant = $1::text AND ($2::uuid IS NULL OR d.endpoint_id = $2::uuid) AND ($3::text IS NULL OR d.status = $3::text)
  AND ($4::uuid IS NULL OR d.id < $4::uuid)
ORDER BY d.id DESC LIMIT $5::int;

-- name: webhook_attempts
-- The attempts of deliveries, in their order. $1 deliveries
SELECT a.delivery_id, a.n, a.at, a.url, a.address, a.status, a.error, a.detail, a.ms, a.request_head, a.response_head, a.response_body
FROM holdfast.webhook_attempts a WHERE a.delivery_id = ANY ($1::uuid[]) ORDER BY a.delivery_id, a.n;

-- name: set_webhook_retention
-- How long attempts and ended deliveries are kept. $1 days
UPDATE holdfast.webhook_settings s SET retention_days = $1::int WHERE s.retention_days <> $1::int RETURNING 1;

-- name: empty_webhook_slots
-- Remove what is past retention. $1 most rows
SELECT holdfast.empty_webhook_slots($1::int);
