-- name: wake
-- Jobs of these queues are due, each after its delay: tell whoever sleeps there.
-- $1 queues, $2 delays (NULL: now)
SELECT ARRAY[holdfast.wake($1::text[], NULL, $2::float8[])::text];

-- name: fall_asleep
-- A worker that is alive wants to be told from the commit on. False: it was fenced, or drains.
-- $1 worker, $2 queues, $3 seconds after which it looks by itself
--
-- The lock keeps a fence from missing these rows.
WITH me AS MATERIALIZED (
    SELECT w.id FROM holdfast.workers w WHERE w.id = $1 AND w.status = 'alive' FOR SHARE
), entered AS (
    INSERT INTO holdfast.sleepers (queue, worker, poll)
    SELECT q.queue, me.id, $3::float8 FROM me CROSS JOIN unnest($2::text[]) AS q(queue)
    ON CONFLICT (queue, worker) DO NOTHING
)
SELECT EXISTS (SELECT FROM me);

-- name: get_up
-- A worker does not want to be told any more.
-- $1 worker
DELETE FROM holdfast.sleepers WHERE worker = $1;

-- name: next_due
-- In how many seconds the next job of these queues is due that this worker may take (0 or less: now; NULL: not before it looks again),
-- and how many workers sleep here.
-- $1 queues, $2 tasks, $3 versions, $4 seconds until it looks again
--
-- One index probe for each priority, and one for each task that jobs may be held of. The list of queues stands beside each name so that
-- the other partitions are left out when the statement is planned.
WITH RECURSIVE q AS MATERIALIZED (
    SELECT n.name FROM holdfast.queues n WHERE n.name = ANY ($1::text[]) AND n.paused_at IS NULL
), p(queue, priority) AS (
    SELECT q.name, (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.queue = ANY ($1::text[]) AND w.hold_reason IS NULL
                    ORDER BY w.priority DESC LIMIT 1)
    FROM q
    UNION ALL
    SELECT p.queue, (SELECT w.priority FROM holdfast.work w WHERE w.queue = p.queue AND w.queue = ANY ($1::text[]) AND w.hold_reason IS NULL
                       AND w.priority < p.priority ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
), due AS (
    SELECT w.available_at
    FROM p CROSS JOIN LATERAL (
        SELECT j.available_at FROM holdfast.work j
        WHERE j.queue = p.queue AND j.queue = ANY ($1::text[]) AND j.hold_reason IS NULL AND j.priority = p.priority
          AND j.available_at <= holdfast.now() + make_interval(secs => $4::float8) AND j.status = 'pending'
          AND j.id <> ALL (ARRAY(SELECT x.id FROM holdfast.quarantine x))
          AND j.task <> ALL (ARRAY(SELECT x.task FROM holdfast.paused_tasks x))
        ORDER BY j.available_at, j.seq LIMIT 1
    ) w
    UNION ALL
    SELECT h.available_at
    FROM q CROSS JOIN unnest($2::text[], $3::int[]) AS k(task, version)
    CROSS JOIN LATERAL (
        SELECT j.available_at FROM holdfast.work j
        WHERE j.queue = q.name AND j.queue = ANY ($1::text[]) AND j.hold_reason IS NOT NULL AND j.task = k.task AND j.version = k.version
          AND j.available_at <= holdfast.now() + make_interval(secs => $4::float8) AND j.status = 'held'
          AND j.id <> ALL (ARRAY(SELECT x.id FROM holdfast.quarantine x))
        ORDER BY j.available_at LIMIT 1
    ) h
    WHERE k.task <> ALL (ARRAY(SELECT x.task FROM holdfast.paused_tasks x))
)
SELECT extract(epoch FROM min(due.available_at) - holdfast.now())::float8,
       (SELECT count(DISTINCT s.worker) FROM holdfast.sleepers s WHERE s.queue = ANY ($1::text[]))
FROM due;

-- name: say_it
-- A notification to ourselves: does it come back?
-- $1 channel
SELECT pg_notify($1, '');
