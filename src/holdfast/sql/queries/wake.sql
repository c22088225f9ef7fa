-- name: wake
-- Jobs of these queues are due, each after its delay: wake sleeping workers.
-- $1 queues, $2 delays (NULL: now)
SELECT ARRAY[holdfast.wake($1::text[], NULL, $2::float8[])::text];

-- name: fall_asleep
-- A worker that is alive wants notifications from the commit on. False: it was fenced, or drains.
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
-- A worker does not want to be woken for these queues any more.
-- $1 worker, $2 queues (NULL: all)
DELETE FROM holdfast.sleepers WHERE worker = $1 AND ($2::text[] IS NULL OR queue = ANY ($2::text[]));

-- part: due
-- When the next jobs of these queues are due that a worker of these tasks may take, one row at most for each priority and each task.
-- $1 queues, $2 tasks, $3 versions, $4 seconds until it looks again, $5 signatures
--
-- One index probe for each priority, and a read of the first 50 held jobs of each task. If none of those is for this worker, the jobs
-- behind them are left to find_held, which an awake worker calls within its share of time: about once a minute this reports that
-- there is something due. The list of queues stands beside each name so that
-- the other partitions are left out when the statement is planned.
--
-- A job of a key that is held, parked or blocked, or whose first job waits, is due when its key is free. This reads the keys of the first 100
-- jobs that are due, of the last 100, and of the first 100 that will be. If all due jobs are of such keys, the claim before has read those
-- between, and about once a minute they are read again; if all future ones are, the last of them gives the time of the next read.
q AS MATERIALIZED (
    SELECT n.name, n.keyed, n.ordering FROM holdfast.queues n WHERE n.name = ANY ($1::text[]) AND n.paused_at IS NULL
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
    FROM p JOIN q ON q.name = p.queue AND NOT q.keyed CROSS JOIN LATERAL (
        SELECT j.available_at FROM holdfast.work j
        WHERE j.queue = p.queue AND j.queue = ANY ($1::text[]) AND j.hold_reason IS NULL AND j.priority = p.priority
          AND j.available_at <= holdfast.now() + make_interval(secs => $4::float8) AND j.status = 'pending'
          AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
          AND j.task <> ALL (ARRAY(SELECT x.task FROM holdfast.paused_tasks x))
        ORDER BY j.available_at, j.seq LIMIT 1
    ) w
    UNION ALL
    SELECT w.available_at
    FROM p JOIN q ON q.name = p.queue AND q.keyed
    CROSS JOIN LATERAL (VALUES ('-infinity'::timestamptz, holdfast.now(), 200),
                               (holdfast.now(), holdfast.now() + make_interval(secs => $4::float8), 100)) AS s(after, until, many)
    CROSS JOIN LATERAL (
        SELECT coalesce(min(k.at) FILTER (WHERE k.at <= holdfast.now() + make_interval(secs => $4::float8)),
                        CASE WHEN coalesce(sum(k.jobs), 0) < s.many THEN NULL
                             WHEN s.after > '-infinity' THEN max(k.last)
                             WHEN random() < $4::float8 / 60 THEN holdfast.now() END) AS available_at
        FROM (
            SELECT greatest(g.first, h.free_at, x.free_at, f.free_at) AS at, g.last, g.jobs
            FROM (SELECT i.partition_bucket, i.partition_key, min(i.available_at) AS first, max(i.available_at) AS last, count(*) AS jobs
                  FROM ((SELECT j.partition_bucket, j.partition_key, j.available_at FROM holdfast.work j
                        WHERE j.queue = p.queue AND j.queue = ANY ($1::text[]) AND j.hold_reason IS NULL AND j.priority = p.priority
                          AND j.available_at > s.after AND j.available_at <= s.until AND j.status = 'pending'
                          AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
                          AND j.task <> ALL (ARRAY(SELECT x.task FROM holdfast.paused_tasks x))
                        ORDER BY j.available_at, j.seq LIMIT 100)
                        UNION ALL
                        (SELECT j.partition_bucket, j.partition_key, j.available_at FROM holdfast.work j
                        WHERE j.queue = p.queue AND j.queue = ANY ($1::text[]) AND j.hold_reason IS NULL AND j.priority = p.priority
                          AND s.after = '-infinity' AND j.available_at <= s.until AND j.status = 'pending'
                          AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
                          AND j.task <> ALL (ARRAY(SELECT x.task FROM holdfast.paused_tasks x))
                        ORDER BY j.available_at DESC, j.seq DESC LIMIT 100)) i
                  GROUP BY i.partition_bucket, i.partition_key) g
            LEFT JOIN LATERAL (SELECT CASE WHEN o.trial AND o.trial_token IS NOT NULL AND NOT o.decided
                                                AND NOT EXISTS (SELECT FROM holdfast.work t WHERE t.queue = p.queue AND t.queue = ANY ($1::text[]) AND t.id = o.trial_id
                                                                  AND (t.claim_token <> o.trial_token OR (t.status <> 'processing' AND t.available_at <= t.claimed_at)))
                                           THEN 'infinity' ELSE o.until END AS free_at
                               FROM holdfast.key_holds o WHERE o.queue = p.queue AND o.partition_key = g.partition_key OFFSET 0) h ON true
            LEFT JOIN LATERAL (SELECT 'infinity'::timestamptz AS free_at FROM holdfast.parked_keys o
                               WHERE q.ordering = 'key' AND o.queue = p.queue AND o.partition_key = g.partition_key OFFSET 0) x ON true
            LEFT JOIN LATERAL (SELECT CASE WHEN o.hold_reason IS NOT NULL OR o.id IN (SELECT x.id FROM holdfast.quarantine x) THEN 'infinity'
                                           WHEN o.status = 'pending' THEN o.available_at END AS free_at
                               FROM holdfast.work o
                               WHERE q.ordering = 'key' AND o.queue = p.queue AND o.queue = ANY ($1::text[])
                                 AND o.partition_bucket = g.partition_bucket AND o.partition_key = g.partition_key
                               ORDER BY o.seq LIMIT 1) f ON true
        ) k
    ) w
    WHERE w.available_at IS NOT NULL
    UNION ALL
    SELECT h.available_at
    FROM q CROSS JOIN unnest($2::text[], $3::int[], $5::text[]) AS k(task, version, signature)
    CROSS JOIN LATERAL (
        SELECT coalesce(min(f.available_at) FILTER (WHERE f.status = 'held' AND m.job_id IS NULL AND f.id NOT IN (SELECT x.id FROM holdfast.quarantine x)),
                        CASE WHEN count(*) >= 50 AND random() < $4::float8 / 60 THEN holdfast.now() END) AS available_at
        FROM (SELECT j.id, j.status, j.available_at FROM holdfast.work j
              WHERE j.queue = q.name AND j.queue = ANY ($1::text[]) AND j.hold_reason IS NOT NULL AND j.task = k.task AND j.version = k.version
                AND j.available_at <= holdfast.now() + make_interval(secs => $4::float8)
              ORDER BY j.available_at LIMIT 50) f
        LEFT JOIN LATERAL (SELECT o.job_id FROM holdfast.misfits o
                           WHERE o.job_id = f.id AND o.signature = k.signature AND o.available_at = f.available_at OFFSET 0) m ON true
    ) h
    WHERE k.task <> ALL (ARRAY(SELECT x.task FROM holdfast.paused_tasks x))
)

-- name: next_due
-- In how many seconds the next job of these queues is due that this worker may take (0 or less: now; NULL: not before it looks again),
-- and how many workers sleep in that one of them where most do: at most that many are woken for the same job.
-- $1 queues, $2 tasks, $3 versions, $4 seconds until it looks again, $5 signatures
WITH RECURSIVE
-- with part: due
SELECT extract(epoch FROM min(due.available_at) - holdfast.now())::float8,
       (SELECT coalesce(max(a.sleepers), 0) FROM unnest($1::text[]) AS u(queue)
        CROSS JOIN LATERAL (SELECT a.sleepers FROM holdfast.asleep a WHERE a.queue = u.queue ORDER BY a.number DESC LIMIT 1) a)
FROM due;

-- name: pulse
-- All questions of a sleeping worker, in one statement: it reports that it is alive, and learns what the next claim would find, whether
-- there is something to sweep or to tidy. No row: it is not alive.
-- $1 queues (empty: not now), $2 tasks, $3 versions, $4 seconds until it looks again, $5 signatures, $6 worker, $7 queues it sleeps in, $8 interval of sweeps,
-- $9 gap, $10 grace (as in sweep_begin), $11 seconds after which a worker is fenced, $12 seconds between two tidyings, with a group to retry $13,
-- $14 seconds after which a payload that every signature refused is a dead letter, $15 queues whose ring it is in, and the parameters of the
-- questions that services of shapes ask
--
-- The reads come first and the row is written after them: under an old snapshot a read may take long, and the heartbeat of the renewing
-- thread must never wait for it. With it an idle worker sends 0.4 statements a second, separately it was 6.8. Returns (due in, asleep, sweep?, tidy?,
-- the seats of live workers, as ring_seats has them, and an answer to each question); sweep NULL: ask sweep_begin.
WITH RECURSIVE
-- with part: due
, look AS MATERIALIZED (
    SELECT extract(epoch FROM min(due.available_at) - holdfast.now())::float8 AS due_in FROM due
), beat AS (
    UPDATE holdfast.workers w SET last_seen_at = holdfast.now() FROM look WHERE w.id = $6 AND w.status = 'alive' RETURNING look.due_in
), turn AS MATERIALIZED (
    SELECT only_row FROM holdfast.engine
    WHERE last_sweep_at <= holdfast.now() - make_interval(secs => $8::float8) AND EXISTS (SELECT FROM beat)
    FOR NO KEY UPDATE SKIP LOCKED
), begun AS (
    UPDATE holdfast.engine e
    SET last_sweep_at = holdfast.now(),
        grace_until = CASE WHEN e.last_sweep_at < holdfast.now() - make_interval(secs => $9::float8)
                           THEN holdfast.now() + make_interval(secs => $10::float8) ELSE e.grace_until END
    WHERE e.only_row = (SELECT only_row FROM turn)
    RETURNING e.grace_until <= holdfast.now() AS free
)
SELECT b.due_in,
       (SELECT coalesce(max(a.sleepers), 0) FROM unnest($7::text[]) AS u(queue)
        CROSS JOIN LATERAL (SELECT a.sleepers FROM holdfast.asleep a WHERE a.queue = u.queue ORDER BY a.number DESC LIMIT 1) a),
       CASE (SELECT free FROM begun)
           WHEN true THEN EXISTS (SELECT FROM holdfast.workers v
                                  WHERE v.status <> 'gone' AND v.id <> $6 AND v.last_seen_at < holdfast.now() - make_interval(secs => $11::float8))
                       OR EXISTS (SELECT FROM holdfast.claims c WHERE c.lease_expires_at < holdfast.now())
                       OR EXISTS (SELECT FROM holdfast.claims c WHERE c.revoked_at IS NOT NULL)
                       OR EXISTS (SELECT FROM holdfast.claims c JOIN holdfast.workers v ON v.id = c.worker WHERE v.status = 'gone')
                       OR EXISTS (SELECT FROM holdfast.sleepers s
                                  WHERE NOT EXISTS (SELECT FROM holdfast.workers v WHERE v.id = s.worker AND v.status = 'alive'))
                       OR EXISTS (SELECT FROM holdfast.paused_tasks)
                       OR EXISTS (SELECT FROM holdfast.breakers k WHERE k.put_back)
                       OR EXISTS (SELECT FROM holdfast.misfits m WHERE m.at <= holdfast.now() - make_interval(secs => $14::float8))
           WHEN false THEN false
           ELSE CASE WHEN e.last_sweep_at > holdfast.now() - make_interval(secs => 5 * $8::float8) THEN false END
       END,
       e.last_tidy_at <= holdfast.now() - make_interval(secs => CASE WHEN EXISTS (SELECT FROM holdfast.groups g WHERE g.fault IS NOT NULL)
                                                                     THEN $13::float8 ELSE $12::float8 END),
       ARRAY(SELECT s.queue || ' ' || s.seat || ' ' || s.worker FROM holdfast.seats s JOIN holdfast.workers v ON v.id = s.worker
             WHERE s.queue = ANY ($15::text[]) AND v.status = 'alive'
               AND (v.last_seen_at > holdfast.now() - make_interval(secs => $11::float8) OR s.worker = $6)
             ORDER BY s.queue, s.seat)
-- with questions
FROM beat b CROSS JOIN holdfast.engine e;

-- name: say_it
-- A notification to ourselves: does it come back?
-- $1 channel
SELECT pg_notify($1, '');
