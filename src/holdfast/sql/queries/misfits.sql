-- name: settle_misfit
-- Payloads that do not fit this worker's signature: the jobs are set aside and spend no attempt, and the signature that refused each is
-- written down. One that somebody wants cancelled is not held: the next claim ends it.
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 reasons to hold, $6 errors, $7 signatures
--
-- A refusal that is there already is of a job that came back by another way: its time starts again.
WITH ok AS MATERIALIZED (
    SELECT d.n, d.id, d.hold, d.error, d.signature, w.available_at
    FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::text[]) WITH ORDINALITY
         AS d(id, generation, token, hold, error, signature, n)
    CROSS JOIN LATERAL (
        SELECT w.available_at FROM holdfast.work w
        WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR NO KEY UPDATE SKIP LOCKED
    ) w
), refused AS (
    INSERT INTO holdfast.misfits AS m (job_id, signature, queue, available_at, reason, at)
    SELECT o.id, o.signature, $1, o.available_at, o.error, holdfast.now() FROM ok o
    ON CONFLICT (job_id, signature) DO UPDATE SET available_at = excluded.available_at, reason = excluded.reason, at = excluded.at
), back AS (
    UPDATE holdfast.work w
    SET status = CASE WHEN w.cancel_requested_at IS NULL THEN 'held' ELSE 'pending' END,
        hold_reason = CASE WHEN w.cancel_requested_at IS NULL THEN (SELECT o.hold FROM ok o WHERE o.id = w.id) END
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok))
    RETURNING w.id, w.status
)
SELECT ARRAY[o.n::text, b.status, NULL] FROM back b JOIN ok o ON o.id = b.id;

-- name: queues_with_misfits
-- The queues of which a payload was refused longer ago than this.
-- $1 seconds
SELECT q.name FROM holdfast.queues q
WHERE EXISTS (SELECT FROM holdfast.misfits m WHERE m.queue = q.name AND m.at <= holdfast.now() - make_interval(secs => $1::float8))
ORDER BY q.name;

-- name: take_misfits
-- Take jobs whose payload every live signature of their task has refused, the last of them longer ago than this, to end them in the same
-- transaction. While nobody is there who knows the task, and while somebody is there who does not say its signature, they stay.
-- $1 queue, $2 seconds, $3 seconds after which a worker is late, $4 token, $5 limit
WITH refused AS MATERIALIZED (
    SELECT m.job_id, m.available_at, array_agg(m.signature) AS signatures, (array_agg(m.reason ORDER BY m.at DESC))[1] AS reason
    FROM holdfast.misfits m
    WHERE m.queue = $1
      AND m.job_id = ANY (ARRAY(SELECT o.job_id FROM holdfast.misfits o
                                WHERE o.queue = $1 AND o.at <= holdfast.now() - make_interval(secs => $2::float8)))
    GROUP BY m.job_id, m.available_at
    HAVING max(m.at) <= holdfast.now() - make_interval(secs => $2::float8)
), live AS MATERIALIZED (
    SELECT v.tasks, v.signatures FROM holdfast.workers v
    WHERE v.status = 'alive' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $3::float8) AND $1 = ANY (v.queues)
), c AS MATERIALIZED (
    SELECT j.id, r.reason
    FROM refused r
    CROSS JOIN LATERAL (SELECT w.id, w.task, w.version FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = r.job_id AND w.available_at = r.available_at AND w.status = 'held'
                          AND w.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
                        FOR NO KEY UPDATE SKIP LOCKED) j
    WHERE EXISTS (SELECT FROM live v WHERE v.signatures ->> (j.task || '/' || j.version) = ANY (r.signatures))
      AND NOT EXISTS (SELECT FROM live v
                      WHERE v.signatures ->> (j.task || '/' || j.version) <> ALL (r.signatures)
                         OR (v.signatures IS NULL AND j.task = ANY (v.tasks)))
    LIMIT $5
), taken AS (
    UPDATE holdfast.work w
    SET status = 'processing', hold_reason = NULL, claim_token = $4, claimed_at = holdfast.now(), lease_generation = w.lease_generation + 1
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM c))
    RETURNING w.id, w.lease_generation, w.task
)
SELECT t.id, t.lease_generation, t.task, c.reason FROM taken t JOIN c ON c.id = t.id;

-- name: forget_misfits
-- Which signatures refused these jobs is of no use any more.
-- $1 ids
DELETE FROM holdfast.misfits WHERE job_id = ANY ($1::uuid[]);

-- name: prune_misfits
-- Forget refusals of jobs that are no longer live. Looks at so many rows from a moment on, and
-- answers where it got to (NULL: the end) and how many went.
-- $1 retention days (not used: the job is gone), $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT m.ctid AS place, m.queue, m.job_id, m.at FROM holdfast.misfits m
    WHERE m.at > coalesce($3::timestamptz, '-infinity') AND $1::int IS NOT NULL
    ORDER BY m.at LIMIT $2
), gone AS (
    DELETE FROM holdfast.misfits x WHERE x.ctid = ANY (ARRAY(
        SELECT l.place FROM look l WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.job_id)))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(at) FROM look) END, (SELECT count(*) FROM gone);
