-- name: once_get
-- What this job recorded under a name.
-- $1 job, $2 name
SELECT result::text FROM holdfast.once WHERE job_id = $1 AND name = $2;

-- name: once_put
-- Record a result under a name, if this attempt still owns the job. The share lock keeps a taker out until it is written.
-- $1 queue, $2 id, $3 generation, $4 token, $5 name, $6 result
WITH mine AS MATERIALIZED (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = $2 AND w.lease_generation = $3 AND w.claim_token = $4 AND w.status = 'processing'
    FOR SHARE
)
INSERT INTO holdfast.once AS o (job_id, queue, name, result, at)
SELECT id, $1, $5, $6::text::jsonb, holdfast.now() FROM mine
ON CONFLICT (job_id, name) DO UPDATE SET at = o.at
RETURNING o.result::text;

-- name: guard
-- anywhere
-- Prove ownership inside the caller's transaction and hold it to the commit; remember the fence of the resource.
-- $1 queue, $2 id, $3 generation, $4 token, $5 resource, $6 stream, $7 fence
WITH mine AS MATERIALIZED (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = $2 AND w.lease_generation = $3 AND w.claim_token = $4 AND w.status = 'processing'
    FOR SHARE
)
INSERT INTO holdfast.fences AS f (resource, stream, queue, job_id, fence, at)
SELECT $5, $6, $1, $2, $7, holdfast.now() FROM mine
ON CONFLICT (resource, stream) DO UPDATE SET fence = EXCLUDED.fence, at = EXCLUDED.at, queue = EXCLUDED.queue, job_id = EXCLUDED.job_id WHERE f.fence <= EXCLUDED.fence
RETURNING ARRAY[f.fence];

-- name: count_crash
-- The process that ran this job alone died: one more death, which its owner knows of and lives. The dead letter that it may become is logged
-- as it is settled.
-- $1 queue, $2 id, $3 generation, $4 token, $5 most crashes, $6 worker, $7 message, $8 trace
WITH counted AS (
    UPDATE holdfast.work w SET crashes = least(w.crashes::bigint + 1, 2147483647)::int, suspect = greatest(w.suspect, 1)
    WHERE w.queue = $1 AND w.id = $2 AND w.lease_generation = $3 AND w.claim_token = $4 AND w.status = 'processing'
    RETURNING w.id, w.queue, w.attempts, w.lease_generation, w.crashes
), logged AS (
    INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)
    SELECT c.id, c.queue, least(c.attempts::bigint + 1, 2147483647)::int, c.lease_generation, holdfast.now(), $6, 'ProcessDied', $7, $8
    FROM counted c WHERE c.crashes < $5::int
)
SELECT crashes FROM counted;

-- name: progress
-- How far running jobs are, of those still owned. An older attempt never overwrites a newer one.
-- $1 ids, $2 queues, $3 generations, $4 fractions, $5 messages, $6 tokens
--
-- The lock keeps a settle from ending the job, and from removing its progress, before the report is written: one that came after it would
-- stay. A job that somebody ends at this moment is left out: the thread that renews leases must not wait for a handler's transaction.
WITH mine AS MATERIALIZED (
    SELECT d.id, d.queue, d.generation, d.fraction, d.message
    FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::float8[], $5::text[], $6::uuid[]) AS d(id, queue, generation, fraction, message, token)
    CROSS JOIN LATERAL (
        SELECT w.id FROM holdfast.work w
        WHERE w.queue = d.queue AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR KEY SHARE SKIP LOCKED
    ) w
)
INSERT INTO holdfast.progress AS p (job_id, queue, generation, fraction, message, at)
SELECT m.id, m.queue, m.generation, m.fraction, m.message, holdfast.now() FROM mine m
ORDER BY m.id
ON CONFLICT (job_id) DO UPDATE SET generation = EXCLUDED.generation, fraction = EXCLUDED.fraction, message = EXCLUDED.message, at = EXCLUDED.at
WHERE p.generation <= EXCLUDED.generation;
