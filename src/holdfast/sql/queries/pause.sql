-- name: pause_queue
-- From the commit on nothing is claimed from the queue. No row: it is paused already, or does not exist.
-- $1 queue, $2 who
UPDATE holdfast.queues SET paused_at = holdfast.now(), paused_by = $2 WHERE name = $1 AND paused_at IS NULL RETURNING name;

-- name: resume_queue
-- No row: it is not paused, or does not exist, or is paused by another act.
-- $1 queue, $2 only if it was paused at this time or earlier (NULL: at any time), $3 by whom
UPDATE holdfast.queues SET paused_at = NULL, paused_by = NULL
WHERE name = $1 AND paused_at IS NOT NULL AND ($2::timestamptz IS NULL OR (paused_at <= $2 AND paused_by = $3::text)) RETURNING name;

-- name: queue_pause
-- Since when a queue is paused, and by whom. No row: there is no such queue.
-- $1 queue
SELECT paused_at, paused_by, extract(epoch FROM holdfast.now() - paused_at)::float8 FROM holdfast.queues WHERE name = $1;

-- name: pause_task
-- From the commit on nothing of the task is claimed. No row: it is paused already.
-- $1 task, $2 who
INSERT INTO holdfast.paused_tasks (task, paused_at, paused_by) VALUES ($1, holdfast.now(), $2) ON CONFLICT DO NOTHING RETURNING task;

-- name: resume_task
-- No row: it was not paused. Waits for a session that sets jobs of it aside at this moment; none does after the commit.
-- $1 task, $2 only if it was paused at this time or earlier (NULL: at any time), $3 by whom
DELETE FROM holdfast.paused_tasks
WHERE task = $1 AND NOT by_breaker AND ($2::timestamptz IS NULL OR (paused_at <= $2 AND paused_by = $3::text)) RETURNING task;

-- name: paused_tasks
-- The tasks that are paused. One that an operator and its breaker have paused is there twice.
SELECT task, paused_at, paused_by, extract(epoch FROM holdfast.now() - paused_at)::float8, by_breaker FROM holdfast.paused_tasks ORDER BY task, by_breaker;

-- name: queues_to_hold
-- The queues to look through for jobs of paused tasks: none while no task is paused.
SELECT q.name FROM holdfast.queues q WHERE EXISTS (SELECT FROM holdfast.paused_tasks) ORDER BY q.name;

-- name: hold_paused
-- Set aside due jobs of paused tasks at the front of a queue, so that they cost no later claim anything.
-- $1 queue, $2 how far to look
--
-- The rows of paused_tasks stay locked until the commit: a resume waits, and then finds every job that was set aside. Suspects stay:
-- a claim does not pass them, and out of their own index they would lose their isolation.
WITH RECURSIVE paused AS MATERIALIZED (
    SELECT t.task FROM holdfast.paused_tasks t FOR KEY SHARE
), p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND EXISTS (SELECT FROM paused)
     ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
), ahead AS MATERIALIZED (
    SELECT w.id, w.task
    FROM p CROSS JOIN LATERAL (
        SELECT j.id, j.task
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
          AND j.status = 'pending' AND j.suspect = 0
          AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
        ORDER BY j.available_at, j.seq
        LIMIT $2
    ) w
    LIMIT $2
), c AS MATERIALIZED (
    SELECT j.id
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.status = 'pending' AND j.suspect = 0
      AND j.id = ANY (ARRAY(SELECT a.id FROM ahead a WHERE a.task = ANY (ARRAY(SELECT t.task FROM paused t))))
    FOR NO KEY UPDATE SKIP LOCKED
), held AS (
    UPDATE holdfast.work
    SET status = 'held', hold_reason = 'task ' || task || ' is paused'
    WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM c))
    RETURNING id
)
SELECT count(*) FROM held;

-- name: queues_with_held
-- The queues that have jobs of a task set aside.
-- $1 task
SELECT q.name FROM holdfast.queues q
WHERE EXISTS (SELECT FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NOT NULL AND w.task = $1)
ORDER BY q.name;

-- name: release_paused
-- Put jobs that a pause set aside back to waiting, unless the task was paused again.
-- $1 queue, $2 task, $3 limit
WITH c AS MATERIALIZED (
    SELECT j.id
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.hold_reason IS NOT NULL AND j.task = $2 AND j.hold_reason = 'task ' || $2 || ' is paused'
      AND NOT EXISTS (SELECT FROM holdfast.paused_tasks t WHERE t.task = $2)
    ORDER BY j.task, j.version, j.available_at
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED
), back AS (
    UPDATE holdfast.work SET status = 'pending', hold_reason = NULL
    WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM c))
    RETURNING id
)
SELECT count(*) FROM back;

-- name: held_of_task
-- How many jobs of a task are set aside, up to the cap.
-- $1 task, $2 cap
SELECT count(*) FROM (SELECT FROM holdfast.work w WHERE w.hold_reason IS NOT NULL AND w.task = $1
                      ORDER BY w.task, w.version, w.available_at LIMIT $2) w;

-- name: known_tasks
-- The tasks that live workers know, and how many workers know each.
-- $1 seconds after which a worker no longer counts, $2 limit
SELECT t.task, count(*)
FROM holdfast.workers w CROSS JOIN LATERAL unnest(w.tasks) AS t(task)
WHERE w.status <> 'gone' AND w.last_seen_at > holdfast.now() - make_interval(secs => $1::float8)
GROUP BY t.task ORDER BY t.task LIMIT $2;
