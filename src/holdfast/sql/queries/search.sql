-- name: search_window
-- The ids and times between which jobs of some age are, and the id below which everything was there before now.
-- $1 older than, $2 newer than, in seconds
--
-- An id begins with the time at which it was made, so an age is a place in every index of ids. created_at is when the statement began
-- that made the id: of a long one, up to a minute is allowed for. The clock of a test runs ahead of the one in the ids, never behind.
SELECT holdfast.now() - make_interval(secs => $1::float8), holdfast.now() - make_interval(secs => $2::float8),
       (SELECT encode(substr(int8send(floor(extract(epoch FROM t) * 1000)::bigint), 3) || decode(repeat('00', 10), 'hex'), 'hex')::uuid
        FROM (SELECT greatest(holdfast.now() - make_interval(secs => $1::float8) + interval '1 minute', 'epoch')) AS w(t) WHERE $1::float8 IS NOT NULL),
       (SELECT encode(substr(int8send(floor(extract(epoch FROM t) * 1000)::bigint), 3) || decode(repeat('00', 10), 'hex'), 'hex')::uuid
        FROM (SELECT greatest(statement_timestamp() - make_interval(secs => $2::float8), 'epoch')) AS w(t) WHERE $2::float8 IS NOT NULL),
       encode(substr(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 1), 3) || decode(repeat('00', 10), 'hex'), 'hex')::uuid;

-- name: search_live
-- Live jobs from the newest id back. Scans a bounded number of rows.
-- $1 below this id, $2 from this id on, $3 how many to look at, $4 limit,
-- $5 states, $6 queue, $7 task, $8 key, $9 tag, $10 error (a pattern), $11 created before, $12 created since,
-- $13 attempts at least, $14 and $15 a field of the payload by its path and its value as text, $16 only those that failed and wait for their next attempt
SELECT w.id, w.queue, w.state, CASE WHEN $10::text IS NOT NULL THEN w.last_error END
FROM (SELECT j.id, j.queue, j.task, j.partition_key, j.tags, j.last_error, j.created_at, j.attempts, j.payload, j.attempts > 0 AND j.available_at < '9999-01-01Z' AS backs_off,
             CASE WHEN j.id IN (SELECT q.id FROM holdfast.quarantine q) THEN 'quarantined'
                  WHEN j.status = 'pending' AND j.available_at > holdfast.now() THEN 'scheduled' ELSE j.status END AS state
      FROM holdfast.work j
      WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2) AND ($6::text IS NULL OR j.queue = $6)
      ORDER BY j.id DESC LIMIT $3) w
WHERE ($16::boolean IS NULL OR w.backs_off) AND ($5::text[] IS NULL OR w.state = ANY ($5)) AND ($7::text IS NULL OR w.task = $7) AND ($8::text IS NULL OR w.partition_key = $8)
  AND ($9::text IS NULL OR $9 = ANY (w.tags)) AND ($10::text IS NULL OR w.last_error ILIKE $10)
  AND ($11::timestamptz IS NULL OR w.created_at < $11) AND ($12::timestamptz IS NULL OR w.created_at >= $12)
  AND ($13::int IS NULL OR w.attempts >= $13)
  AND ($14::text[] IS NULL OR (jsonb_typeof(w.payload #> $14) NOT IN ('object', 'array') AND coalesce(w.payload #>> $14, 'null') = $15))
ORDER BY w.id DESC LIMIT $4;

-- name: reach_live
-- The last id that a search of live jobs has read; no row: it has read them all.
-- $1 below this id, $2 from this id on, $3 how many were read, $4 queue
SELECT j.id FROM holdfast.work j
WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2) AND ($4::text IS NULL OR j.queue = $4)
ORDER BY j.id DESC OFFSET $3 - 1 LIMIT 1;

-- name: search_these
-- Of the named live jobs those that fit, from the newest id back.
-- $1 below this id, $2 from this id on, $3 ids, $4 limit,
-- $5 states, $6 queue, $7 task, $8 key, $9 tag, $10 error (a pattern), $11 created before, $12 created since,
-- $13 attempts at least, $14 and $15 a field of the payload by its path and its value as text
SELECT w.id, w.queue, w.state, CASE WHEN $10::text IS NOT NULL THEN w.last_error END
FROM (SELECT j.id, j.queue, j.task, j.partition_key, j.tags, j.last_error, j.created_at, j.attempts, j.payload,
             CASE WHEN j.id IN (SELECT q.id FROM holdfast.quarantine q) THEN 'quarantined'
                  WHEN j.status = 'pending' AND j.available_at > holdfast.now() THEN 'scheduled' ELSE j.status END AS state
      FROM holdfast.work j
      WHERE j.id = ANY ($3::uuid[]) AND ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2)
        AND ($6::text IS NULL OR j.queue = $6)) w
WHERE ($5::text[] IS NULL OR w.state = ANY ($5)) AND ($7::text IS NULL OR w.task = $7) AND ($8::text IS NULL OR w.partition_key = $8)
  AND ($9::text IS NULL OR $9 = ANY (w.tags)) AND ($10::text IS NULL OR w.last_error ILIKE $10)
  AND ($11::timestamptz IS NULL OR w.created_at < $11) AND ($12::timestamptz IS NULL OR w.created_at >= $12)
  AND ($13::int IS NULL OR w.attempts >= $13)
  AND ($14::text[] IS NULL OR (jsonb_typeof(w.payload #> $14) NOT IN ('object', 'array') AND coalesce(w.payload #>> $14, 'null') = $15))
ORDER BY w.id DESC LIMIT $4;

-- name: running_ids
-- The jobs that claims say they hold.
-- $1 queue, $2 limit
SELECT j.id FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id) WHERE $1::text IS NULL OR c.queue = $1 LIMIT $2;

-- name: ids_of_worker
-- The jobs that a worker runs. Its claims name them also when they have ended, and another may have them by now.
-- $1 worker, $2 queue, $3 limit
SELECT j.id FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                    WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
WHERE c.worker = $1 AND ($2::text IS NULL OR c.queue = $2) LIMIT $3;

-- name: unclaimed_ids
-- Of the oldest jobs, of which a bounded number is scanned, those that say they run while no claim holds them. They were claimed once, so they
-- are among the oldest; people who edit the tables make them, the engine does not.
-- $1 queue, $2 how many to look at, $3 limit
SELECT w.id
FROM (SELECT j.id, j.status, j.claim_token FROM holdfast.work j WHERE $1::text IS NULL OR j.queue = $1 ORDER BY j.id LIMIT $2) w
WHERE w.status = 'processing' AND NOT EXISTS (SELECT FROM holdfast.claims c WHERE c.token = w.claim_token) LIMIT $3;

-- name: held_ids
-- The jobs that are set aside, found by the index that has no others.
-- $1 queue, $2 task, $3 limit
SELECT w.id FROM holdfast.work w
WHERE w.hold_reason IS NOT NULL AND ($1::text IS NULL OR w.queue = $1) AND ($2::text IS NULL OR w.task = $2)
ORDER BY w.task, w.version, w.available_at LIMIT $3;

-- name: quarantined_ids
-- The jobs that are left alone because they make claims or sweeps fail.
-- $1 queue, $2 limit
SELECT q.id FROM holdfast.quarantine q
CROSS JOIN LATERAL (SELECT FROM holdfast.work w WHERE w.queue = q.queue AND w.id = q.id OFFSET 0) w
WHERE $1::text IS NULL OR q.queue = $1 LIMIT $2;

-- name: search_archive
-- Finished jobs from the newest id back. Scans a bounded number of rows.
-- $1 below this id, $2 from this id on, $3 how many to look at, $4 limit,
-- $5 states, $6 queue, $7 task, $8 key, $9 tag, $10 error (a pattern), $11 created before, $12 created since,
-- $13 attempts at least, $14 and $15 a field of the payload by its path and its value as text, $16 the worker that had it last
SELECT a.id, a.queue, a.status, CASE WHEN $10::text IS NOT NULL THEN a.last_error END
FROM (SELECT j.id, j.queue, j.task, j.status, j.partition_key, j.tags, j.last_error, j.created_at, j.attempts, j.payload, j.claimed_by FROM holdfast.archive j
      WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2) ORDER BY j.id DESC LIMIT $3) a
WHERE ($5::text[] IS NULL OR a.status = ANY ($5)) AND ($6::text IS NULL OR a.queue = $6) AND ($7::text IS NULL OR a.task = $7)
  AND ($8::text IS NULL OR a.partition_key = $8) AND ($9::text IS NULL OR $9 = ANY (a.tags)) AND ($10::text IS NULL OR a.last_error ILIKE $10)
  AND ($11::timestamptz IS NULL OR a.created_at < $11) AND ($12::timestamptz IS NULL OR a.created_at >= $12)
  AND ($13::int IS NULL OR a.attempts >= $13) AND ($16::text IS NULL OR a.claimed_by = $16)
  AND ($14::text[] IS NULL OR (jsonb_typeof(a.payload #> $14) NOT IN ('object', 'array') AND coalesce(a.payload #>> $14, 'null') = $15))
ORDER BY a.id DESC LIMIT $4;

-- name: reach_archive
-- The last id that a search of the archive has read; no row: it has read them all.
-- $1 below this id, $2 from this id on, $3 how many were read
SELECT j.id FROM holdfast.archive j WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2)
ORDER BY j.id DESC OFFSET $3 - 1 LIMIT 1;

-- name: search_dead
-- Dead letters from the newest id back. Scans a bounded number of rows.
-- $1 below this id, $2 from this id on, $3 how many to look at, $4 limit,
-- $5 states, $6 queue, $7 task, $8 key, $9 tag, $10 error (a pattern), $11 created before, $12 created since,
-- $13 attempts at least, $14 and $15 a field of the payload by its path and its value as text, $16 the worker that had it last
SELECT d.id, d.queue, 'dead_letter', CASE WHEN $10::text IS NOT NULL THEN d.last_error END
FROM (SELECT j.id, j.queue, j.task, j.partition_key, j.tags, j.last_error, j.created_at, j.attempts, j.payload, j.claimed_by FROM holdfast.dead_letters j
      WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2) ORDER BY j.id DESC LIMIT $3) d
WHERE ($5::text[] IS NULL OR 'dead_letter' = ANY ($5)) AND ($6::text IS NULL OR d.queue = $6) AND ($7::text IS NULL OR d.task = $7)
  AND ($8::text IS NULL OR d.partition_key = $8) AND ($9::text IS NULL OR $9 = ANY (d.tags)) AND ($10::text IS NULL OR d.last_error ILIKE $10)
  AND ($11::timestamptz IS NULL OR d.created_at < $11) AND ($12::timestamptz IS NULL OR d.created_at >= $12)
  AND ($13::int IS NULL OR d.attempts >= $13) AND ($16::text IS NULL OR d.claimed_by = $16)
  AND ($14::text[] IS NULL OR (jsonb_typeof(d.payload #> $14) NOT IN ('object', 'array') AND coalesce(d.payload #>> $14, 'null') = $15))
ORDER BY d.id DESC LIMIT $4;

-- name: reach_dead
-- The last id that a search of the dead letters has read; no row: it has read them all.
-- $1 below this id, $2 from this id on, $3 how many were read
SELECT j.id FROM holdfast.dead_letters j WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::uuid IS NULL OR j.id >= $2)
ORDER BY j.id DESC OFFSET $3 - 1 LIMIT 1;
