-- name: note_breaker
-- Count how attempts of a task ended.
-- $1 task, $2 whether one succeeded, $3 how many failed after the last success, $4 claims that succeeded, $5 claims that failed,
-- $6 last error, $7 to $10 the breaker: failures, within, cooldown, cap
SELECT holdfast.note_breaker($1, $2, $3, $4::uuid[], $5::uuid[], $6, $7, $8::float8, $9::float8, $10::float8);

-- name: close_breaker
-- Let the task run again. False: its breaker was closed, or it has none.
-- $1 task
SELECT holdfast.close_breaker($1);

-- name: close_unwatched
-- Close the breakers of tasks that are declared without one now: nobody would try a job of them any more.
-- $1 tasks
WITH shut AS MATERIALIZED (SELECT b.task FROM holdfast.breakers b WHERE b.task = ANY ($1::text[]) AND b.state <> 'closed')
SELECT s.task FROM shut s WHERE holdfast.close_breaker(s.task);

-- name: breakers_due
-- Tasks of which one job may be tried now. Unlocked: a first check before one under the lock.
-- $1 tasks
SELECT b.task
FROM holdfast.breakers b
WHERE b.task = ANY ($1::text[]) AND b.state <> 'closed' AND b.retry_at <= holdfast.now()
  AND NOT EXISTS (SELECT FROM holdfast.paused_tasks p WHERE p.task = b.task AND NOT p.by_breaker)
  AND NOT EXISTS (SELECT FROM holdfast.work w
                  WHERE w.queue = b.trial_queue AND w.id = b.trial_id AND w.claim_token = b.trial_token AND w.status = 'processing')
ORDER BY b.retry_at;

-- name: find_trial
-- One due job of a task and its key: set aside, or of a process that died. In an ordered queue only the first of a stream will do.
-- $1 queue, $2 task, $3 versions, $4 whether such a suspect will do, $5 ordered?
SELECT f.id, f.partition_key
FROM (
    SELECT h.id, h.partition_key, h.available_at, 1 AS choice
    FROM unnest($3::int[]) AS k(version)
    CROSS JOIN LATERAL (
        SELECT j.id, j.partition_key, j.available_at FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NOT NULL AND j.task = $2 AND j.version = k.version AND j.available_at <= holdfast.now()
          AND j.status = 'held' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
          AND NOT EXISTS (SELECT FROM holdfast.misfits m WHERE m.job_id = j.id)   -- such a trial would never reach the handler
          AND NOT ($5::boolean AND EXISTS (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = j.partition_bucket
                                           AND b.partition_key = j.partition_key AND b.seq < j.seq))
          AND ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
               OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = j.partition_key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL)
        ORDER BY j.available_at LIMIT 1
    ) h
  UNION ALL
    SELECT s.id, s.partition_key, s.available_at, 2
    FROM (
        SELECT j.id, j.partition_key, j.available_at FROM holdfast.work j
        WHERE j.queue = $1 AND j.suspect > 0 AND j.status = 'pending' AND j.task = $2 AND j.version = ANY ($3::int[])
          AND j.available_at <= holdfast.now() AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q) AND $4
          AND ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
               OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = j.partition_key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL)
        ORDER BY j.available_at, j.seq LIMIT 1
    ) s
) f
WHERE NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
ORDER BY f.choice, f.available_at LIMIT 1;

-- name: lock_breaker
-- The breaker, locked, if a job of its task may be tried. Whether a trial runs is asked next, by a statement of its own: only that
-- one sees a trial that another worker began while this one waited for its snapshot.
-- $1 task
SELECT b.task FROM holdfast.breakers b
WHERE b.task = $1 AND b.state <> 'closed' AND b.retry_at <= holdfast.now()
FOR UPDATE SKIP LOCKED;

-- name: trial_runs
-- Whether the trial of a half-open breaker is still in processing.
-- $1 task
SELECT b.task FROM holdfast.breakers b
JOIN holdfast.work w ON w.queue = b.trial_queue AND w.id = b.trial_id AND w.claim_token = b.trial_token AND w.status = 'processing'
WHERE b.task = $1;

-- name: lift_breaker
-- For the rest of this transaction, and for it alone, the task is not paused by its breaker.
-- $1 task
DELETE FROM holdfast.paused_tasks WHERE task = $1 AND by_breaker;

-- name: begin_trial
-- The task is paused again, but for the job that was taken ($3 NULL: none was).
-- $1 task, $2 queue, $3 id, $4 token
WITH paused AS (
    INSERT INTO holdfast.paused_tasks (task, paused_at, paused_by, by_breaker)
    SELECT b.task, b.opened_at, 'its breaker', true FROM holdfast.breakers b WHERE b.task = $1
)
UPDATE holdfast.breakers SET state = 'half_open', trial_queue = $2, trial_id = $3, trial_token = $4 WHERE task = $1 AND $3::uuid IS NOT NULL;

-- name: breakers_to_put_back
-- Tasks whose breaker closed, and whose jobs are still set aside.
SELECT task FROM holdfast.breakers WHERE put_back ORDER BY task;

-- name: breaker_put_back
-- $1 task
UPDATE holdfast.breakers SET put_back = false WHERE task = $1 AND put_back;

-- name: list_breakers
-- Every breaker that is not closed or has counted failures.
-- $1 limit
SELECT b.task, b.state, cardinality(b.failed_at), b.opened_at, b.retry_at, extract(epoch FROM holdfast.now() - b.opened_at)::float8,
       extract(epoch FROM b.retry_at - holdfast.now())::float8, b.trials, b.trial_id, b.last_error
FROM holdfast.breakers b WHERE b.state <> 'closed' OR b.failed_at <> '{}' ORDER BY b.task LIMIT $1;
