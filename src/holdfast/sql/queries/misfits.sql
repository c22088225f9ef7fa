-- name: settle_misfit
-- Payloads that do not fit this worker's signature: the jobs are set aside and spend no attempt, and the signature that refused each is
-- written down. One that somebody wants cancelled is not held: the next claim ends it.
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 reasons to hold, $6 errors, $7 signatures, $8 whether only newer code can take it
--
-- A refusal that is there already is of a job that came back by another way: its time starts again.
WITH ok AS MATERIALIZED (
    SELECT d.n, d.id, d.hold, d.error, d.signature, d.newer, w.available_at
    FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::boolean[]) WITH ORDINALITY
         AS d(id, generation, token, hold, error, signature, newer, n)
    CROSS JOIN LATERAL (
        SELECT w.available_at FROM holdfast.work w
        WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR NO KEY UPDATE SKIP LOCKED
    ) w
), refused AS (
    INSERT INTO holdfast.misfits AS m (job_id, signature, queue, available_at, reason, at, newer)
    SELECT o.id, o.signature, $1, o.available_at, o.error, holdfast.now(), o.newer FROM ok o
    ON CONFLICT (job_id, signature) DO UPDATE
    SET available_at = excluded.available_at, reason = excluded.reason, at = excluded.at, newer = excluded.newer
), back AS (
    UPDATE holdfast.work w
    SET status = CASE WHEN w.cancel_requested_at IS NULL THEN 'held' ELSE 'pending' END,
        hold_reason = CASE WHEN w.cancel_requested_at IS NULL THEN (SELECT o.hold FROM ok o WHERE o.id = w.id) END
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok))
    RETURNING w.id, w.status
)
SELECT ARRAY[o.n::text, b.status, NULL] FROM back b JOIN ok o ON o.id = b.id;

-- name: misfits_begin
-- Whose turn it is to look for payloads that every signature refused, over all workers; nobody else looks for that many seconds.
-- $1 seconds
WITH turn AS MATERIALIZED (
    SELECT only_row FROM holdfast.engine WHERE misfits_at <= holdfast.now() FOR NO KEY UPDATE SKIP LOCKED
), begun AS (
    UPDATE holdfast.engine e SET misfits_at = holdfast.now() + make_interval(secs => $1::float8)
    WHERE e.only_row = (SELECT only_row FROM turn)
    RETURNING 1
)
SELECT EXISTS (SELECT FROM begun);

-- name: misfits_done
-- The look is over: the next one in that many seconds.
-- $1 seconds
UPDATE holdfast.engine e SET misfits_at = holdfast.now() + make_interval(secs => $1::float8)
WHERE e.only_row = (SELECT only_row FROM holdfast.engine FOR NO KEY UPDATE SKIP LOCKED);

-- name: queues_with_misfits
-- The queues of which a payload was refused longer ago than this.
-- $1 seconds
SELECT q.name FROM holdfast.queues q
WHERE EXISTS (SELECT FROM holdfast.misfits m WHERE m.queue = q.name AND m.at <= holdfast.now() - make_interval(secs => $1::float8))
ORDER BY q.name;

-- name: old_misfits
-- The next refusals of a queue that are older than this, from a place on: (job, when).
-- $1 queue, $2 seconds, $3 and $4 when and of which job the last one was (NULL: from the start), $5 limit
SELECT m.job_id, m.at FROM holdfast.misfits m
WHERE (m.queue, m.at, m.job_id) > ($1, coalesce($3::timestamptz, '-infinity'), coalesce($4::uuid, '00000000-0000-0000-0000-000000000000'))
  AND (m.queue, m.at) <= ($1, holdfast.now() - make_interval(secs => $2::float8))
ORDER BY m.queue, m.at, m.job_id LIMIT $5;

-- name: take_misfits
-- Of these jobs, take those whose payload every live signature of their task has refused, the last of them longer ago than this, to end them
-- in the same transaction. They stay while no live worker knows the task, and while one of those that do reports no signature;
-- and so do those for which all report that newer code is needed.
-- Only jobs that are taken are locked: most looks find none.
-- $1 queue, $2 seconds, $3 seconds after which a worker is late, $4 token, $5 ids
WITH refused AS MATERIALIZED (
    SELECT m.job_id, m.available_at, array_agg(m.signature) AS signatures, (array_agg(m.reason ORDER BY m.at DESC))[1] AS reason
    FROM holdfast.misfits m
    WHERE m.job_id = ANY ($5::uuid[])
    GROUP BY m.job_id, m.available_at
    HAVING max(m.at) <= holdfast.now() - make_interval(secs => $2::float8) AND NOT bool_and(m.newer)
), live AS MATERIALIZED (
    SELECT v.tasks, v.signatures FROM holdfast.workers v
    WHERE v.status = 'alive' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $3::float8) AND $1 = ANY (v.queues)
), hopeless AS MATERIALIZED (
    SELECT r.job_id, r.available_at, r.reason
    FROM refused r
    CROSS JOIN LATERAL (SELECT w.task, w.version FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = r.job_id AND w.available_at = r.available_at AND w.status = 'held' OFFSET 0) j
    WHERE EXISTS (SELECT FROM live v WHERE v.signatures ->> (j.task || '/' || j.version) = ANY (r.signatures))
      AND NOT EXISTS (SELECT FROM live v
                      WHERE v.signatures ->> (j.task || '/' || j.version) <> ALL (r.signatures)
                         OR (v.signatures IS NULL AND j.task = ANY (v.tasks)))
      AND r.job_id NOT IN (SELECT q.id FROM holdfast.quarantine q)
), c AS MATERIALIZED (
    SELECT j.id, h.reason
    FROM hopeless h
    CROSS JOIN LATERAL (SELECT w.id FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = h.job_id AND w.available_at = h.available_at AND w.status = 'held'
                        FOR NO KEY UPDATE SKIP LOCKED) j
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
-- Forget refusals of jobs that are no longer live. Scans a bounded number of rows from a moment on, and
-- returns where it got to (NULL: the end) and how many went.
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
