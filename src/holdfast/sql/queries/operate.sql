-- name: queue_load
-- The jobs of one queue, each count cut off at the cap, the age of its oldest due job, and whether it is paused.
-- $1 queue, $2 cap, $3 cap of those that are not due: scheduled, suspended, held
--
-- Every part walks an index in its order and stops at the cap. The priorities are probed separately, because the claim index
-- begins with them; running jobs are found by their claims, because no index of the hot table knows the status. A claim of a busy
-- worker lists thousands of jobs that are finished: as one array they cost a page of the index for a few hundred of them (since 17),
-- while ids that are looked up one by one cost three pages each.
WITH RECURSIVE p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
), due AS MATERIALIZED (
    SELECT w.available_at
    FROM p CROSS JOIN LATERAL (
        SELECT j.available_at FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
          AND j.status = 'pending' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
        ORDER BY j.available_at, j.seq LIMIT $2
    ) w
    LIMIT $2
), scheduled AS MATERIALIZED (
    SELECT FROM p CROSS JOIN LATERAL (
        SELECT j.id FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at > holdfast.now()
          AND j.available_at < '9999-01-01Z' AND j.status = 'pending' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
        ORDER BY j.available_at, j.seq LIMIT $3
    ) w
    LIMIT $3
), suspended AS MATERIALIZED (   -- due when something happens
    SELECT FROM p CROSS JOIN LATERAL (
        SELECT j.id FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at >= '9999-01-01Z' AND j.status = 'pending'
        ORDER BY j.available_at, j.seq LIMIT $3
    ) w
    LIMIT $3
), oldest AS MATERIALIZED (
    SELECT w.available_at
    FROM p CROSS JOIN LATERAL (
        SELECT j.available_at FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
          AND j.status = 'pending' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
        ORDER BY j.available_at, j.seq LIMIT 1
    ) w
), running AS MATERIALIZED (
    SELECT FROM holdfast.claims c
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = ANY (c.job_ids) AND w.claim_token = c.token AND w.status = 'processing'
                          AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q) OFFSET 0) w
    WHERE c.queue = $1
    LIMIT $2
), held AS MATERIALIZED (
    SELECT w.status FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NOT NULL
    ORDER BY w.task, w.version, w.available_at LIMIT $3
), quarantined AS MATERIALIZED (
    SELECT FROM holdfast.quarantine q
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w WHERE w.queue = $1 AND w.id = q.id OFFSET 0) w
    WHERE q.queue = $1 LIMIT $2
), parked AS MATERIALIZED (
    SELECT FROM holdfast.parked_keys k WHERE k.queue = $1 LIMIT $2
)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM scheduled), (SELECT count(*) FROM running), (SELECT count(*) FROM held),
       (SELECT count(*) FROM quarantined), (SELECT count(*) FROM parked), (SELECT count(*) FROM suspended), (SELECT count(*) FROM held WHERE status = 'blocked'),
       (SELECT extract(epoch FROM holdfast.now() - min(available_at))::float8 FROM oldest),
       q.ordering, q.on_dead_letter, q.lease, q.paused_at, q.paused_by, extract(epoch FROM holdfast.now() - q.paused_at)::float8
FROM holdfast.queues q WHERE q.name = $1;

-- name: queue_leases
-- The queues there are, with the lease each was made with.
SELECT name, lease FROM holdfast.queues ORDER BY name;

-- name: dead_load
-- Dead letters per queue, of the newest ones up to the cap.
-- $1 cap
SELECT d.queue, count(*)
FROM (SELECT l.queue FROM holdfast.dead_letters l ORDER BY l.died_at DESC LIMIT $1) d
GROUP BY d.queue ORDER BY d.queue;

-- name: worker_load
-- Workers by status; `late` are those that should have been heard of by now.
-- $1 seconds after which a worker is late, $2 cap
SELECT CASE WHEN w.status <> 'gone' AND w.last_seen_at < holdfast.now() - make_interval(secs => $1::float8) THEN 'late' ELSE w.status END, count(*)
FROM (SELECT v.status, v.last_seen_at FROM holdfast.workers v LIMIT $2) w
GROUP BY 1;

-- name: archive_tail
-- The archive slots that hold the last minute, and how many blocks each has.
SELECT s.slot, pg_relation_size(format('holdfast.archive_%s', lpad(s.slot::text, 2, '0'))::regclass) / current_setting('block_size')::bigint
FROM (SELECT DISTINCT holdfast.archive_slot(holdfast.now() - make_interval(secs => n)) FROM (VALUES (0), (60)) AS ago(n)) AS s(slot);

-- name: recent_finished
-- Jobs that finished in the last minute, read from the end of a slot: (how many, seconds since the oldest row read).
-- $1 slot, $2 first block to read
SELECT count(*) FILTER (WHERE a.completed_at > holdfast.now() - interval '1 minute'),
       extract(epoch FROM holdfast.now() - min(a.completed_at))::float8
FROM holdfast.archive a
WHERE a.slot = $1 AND a.ctid >= format('(%s,0)', $2::bigint)::tid;

-- name: prefer_indexes
-- For this transaction: walk an index in its order instead of sorting a table of unknown size. Before 18 that makes plans look
-- so dear that they would be compiled, for longer than they run.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);

-- name: prefer_kept_plans
-- The same for what is asked again and again, once for each queue: to plan it takes three times as long as to run it.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'auto', true);

-- name: read_only
-- For this transaction: it can change nothing.
SET TRANSACTION READ ONLY;

-- name: list_workers
-- Workers, living ones first, with how many jobs each runs.
-- $1 those that are gone too?, $2 limit, $3 count what they run?
SELECT v.id, v.host, v.pid, v.status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8, v.started_at, v.queues, v.concurrency,
       v.release, r.running, r.running::float8 / greatest(v.concurrency, 1), v.metadata ->> 'holdfast', coalesce(v.metadata -> 'labels', '{}')::text,
       v.vitals
FROM (SELECT w.* FROM holdfast.workers w WHERE $1::boolean OR w.status <> 'gone'
      ORDER BY w.status = 'gone', w.last_seen_at DESC, w.id LIMIT $2) v
CROSS JOIN LATERAL (
    SELECT count(*) AS running FROM holdfast.claims c
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = ANY (c.job_ids) AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    WHERE c.worker = v.id AND $3::boolean
) r
ORDER BY v.status = 'gone', v.last_seen_at DESC, v.id;
