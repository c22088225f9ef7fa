-- name: enqueue
-- anywhere
-- Write jobs in the caller's transaction; returns their ids, in order, and where not all of them are new, after that for each whether it
-- is, and then its conflict. One row: to decode ten thousand takes a client longer than to send the jobs.
-- $1..$17 as in holdfast.enqueue_many, the payloads as the literal of an array: a driver takes 10 us to quote one. Of the others a list of
-- one stands for all jobs: to send and to read the same value ten thousand times took both sides longer than to write the rows.
SELECT array_agg(e.id::text ORDER BY e.ordinal)
       || CASE WHEN bool_and(e.created) THEN '{}' ELSE array_agg(e.created::text ORDER BY e.ordinal) || array_agg(e.conflict ORDER BY e.ordinal) END
FROM (SELECT p.payloads, ARRAY[cardinality(p.payloads)] AS n FROM (SELECT $2::text::text[] AS payloads OFFSET 0) p) s
CROSS JOIN LATERAL holdfast.enqueue_many(
    CASE WHEN cardinality($1::text[]) = 1 THEN array_fill(($1::text[])[1], s.n) ELSE $1::text[] END,
    s.payloads,
    CASE WHEN cardinality($3::text[]) = 1 THEN array_fill(($3::text[])[1], s.n) ELSE $3::text[] END,
    CASE WHEN cardinality($4::int[]) = 1 THEN array_fill(($4::int[])[1], s.n) ELSE $4::int[] END,
    CASE WHEN cardinality($5::text[]) = 1 THEN array_fill(($5::text[])[1], s.n) ELSE $5::text[] END,
    CASE WHEN cardinality($6::int[]) = 1 THEN array_fill(($6::int[])[1], s.n) ELSE $6::int[] END,
    CASE WHEN cardinality($7::int[]) = 1 THEN array_fill(($7::int[])[1], s.n) ELSE $7::int[] END,
    CASE WHEN cardinality($8::timestamptz[]) = 1 THEN array_fill(($8::timestamptz[])[1], s.n) ELSE $8::timestamptz[] END,
    CASE WHEN cardinality($9::float8[]) = 1 THEN array_fill(($9::float8[])[1], s.n) ELSE $9::float8[] END,
    CASE WHEN cardinality($10::text[]) = 1 THEN array_fill(($10::text[])[1], s.n) ELSE $10::text[] END,
    CASE WHEN cardinality($11::float8[]) = 1 THEN array_fill(($11::float8[])[1], s.n) ELSE $11::float8[] END,
    CASE WHEN cardinality($12::text[]) = 1 THEN array_fill(($12::text[])[1], s.n) ELSE $12::text[] END,
    CASE WHEN cardinality($13::text[]) = 1 THEN array_fill(($13::text[])[1], s.n) ELSE $13::text[] END,
    CASE WHEN cardinality($14::text[]) = 1 THEN array_fill(($14::text[])[1], s.n) ELSE $14::text[] END,
    CASE WHEN cardinality($15::uuid[]) = 1 THEN array_fill(($15::uuid[])[1], s.n) ELSE $15::uuid[] END,
    CASE WHEN cardinality($16::uuid[]) = 1 THEN array_fill(($16::uuid[])[1], s.n) ELSE $16::uuid[] END,
    CASE WHEN cardinality($17::text[]) = 1 THEN array_fill(($17::text[])[1], s.n) ELSE $17::text[] END) e;

-- name: enqueue_one
-- anywhere
-- Write one job without an idempotency key, a replace key and follow-ups in the caller's transaction; returns as `enqueue` does.
-- $1 task, $2 payload, $3 queue, $4 key, $5 priority, $6 time, $7 delay, $8 attempts, $9 version, $10 tags (the literal of an array), $11 metadata,
-- $12 parent, all of them texts
SELECT ARRAY[r.id::text, r.created::text, r.conflict]
FROM holdfast.enqueue($1::text, $2::text::jsonb, $3::text, $4::text, $5::text::int, $6::text::timestamptz, make_interval(secs => $7::text::float8),
                      max_attempts => $8::text::int, version => $9::text::int, tags => $10::text::text[], metadata => $11::text::jsonb,
                      parent => $12::text::uuid, quiet => true) r;

-- name: job_status
-- What became of a job, in one snapshot.
-- $1 id, $2 queue
SELECT CASE w.status WHEN 'blocked' THEN 'dead_letter' ELSE 'waiting' END AS state, NULL::text, w.last_error, w.attempts FROM holdfast.work w WHERE w.queue = $2 AND w.id = $1
UNION ALL
SELECT a.* FROM unnest(holdfast.archive_slots_of($1)) AS s(slot) -- slot by slot: an array would probe all of them
CROSS JOIN LATERAL (SELECT a.status, a.result::text, a.last_error, a.attempts FROM holdfast.archive a
                    WHERE a.slot = s.slot AND a.id = $1 OFFSET 0) a
UNION ALL
SELECT 'dead_letter', NULL, d.last_error, d.attempts FROM holdfast.dead_letters d WHERE d.id = $1;

-- name: lock_live
-- Wait for the row of a live job and lock it; returns whether it is running, no row: there is no such live job.
-- $1 queue, $2 id
SELECT status = 'processing' FROM holdfast.work WHERE queue = $1 AND id = $2 FOR UPDATE;

-- name: cancel_waiting
-- Jobs that are not running leave for the archive as cancelled; returns which, and the groups they were in.
-- $1 queue, $2 ids, $3 reason
WITH gone AS (
    DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status <> 'processing'
    RETURNING *
), freed AS (
    DELETE FROM holdfast.quarantine q WHERE q.id = ANY ($2::uuid[]) AND q.id IN (SELECT id FROM gone)
)
INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at, attempts,
                              max_attempts, version, crashes, priority, queue, status, task, partition_key, payload, claimed_by,
                              result, last_error, tags, metadata, parent_id, group_id, follow_ups)
SELECT holdfast.archive_slot(holdfast.now()), g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at, g.claimed_at,
       holdfast.now(), g.attempts, g.max_attempts, g.version, g.crashes, g.priority, g.queue, 'cancelled',
       g.task, g.partition_key, g.payload, NULL, NULL, coalesce(nullif($3, ''), g.last_error), g.tags, g.metadata, g.parent_id, g.group_id, g.follow_ups
FROM gone g
RETURNING id, group_id;

-- name: request_cancel
-- Ask the owners of running jobs to stop; they learn so with their next heartbeat. Answers those that were not asked before.
-- $1 queue, $2 ids
UPDATE holdfast.work SET cancel_requested_at = holdfast.now()
WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status = 'processing' AND cancel_requested_at IS NULL RETURNING id;

-- name: locate
-- The queue of a live job.
-- $1 id
SELECT queue FROM holdfast.work WHERE id = $1;

-- name: queue_names
-- The queues there are.
SELECT name FROM holdfast.queues ORDER BY name;

-- name: describe_server
-- What a process checks before it relies on the server. The commit setting is the one that the role and database give to all sessions,
-- not the one our own session was raised to.
SELECT current_setting('server_version_num')::int, to_regclass('holdfast.migrations') IS NOT NULL,
       current_setting('fsync'), (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
       coalesce(nullif(current_setting('synchronous_standby_names'), ''), '-');

-- name: schema_version
-- The newest migration applied, and the newest one that code must know to run on all of them. A database that is to be upgraded
-- has no column needs_code yet, and this is asked there too.
SELECT max(m.number), max(coalesce((to_jsonb(m) ->> 'needs_code')::int, m.number)) FROM holdfast.migrations m;
