-- name: queue_load
-- What one queue holds, each count cut off at the cap, and since when its oldest due job waits.
-- $1 queue, $2 cap
--
-- Every part walks an index in its order and stops at the cap. The priorities are probed one by one, because the claim index
-- begins with them; running jobs are found by their claims, because no index of the hot table knows the status.
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
          AND j.status = 'pending' AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
        ORDER BY j.available_at, j.seq LIMIT $2
    ) w
    LIMIT $2
), scheduled AS MATERIALIZED (
    SELECT FROM p CROSS JOIN LATERAL (
        SELECT j.id FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at > holdfast.now()
          AND j.status = 'pending' AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
        ORDER BY j.available_at, j.seq LIMIT $2
    ) w
    LIMIT $2
), oldest AS MATERIALIZED (
    SELECT w.available_at
    FROM p CROSS JOIN LATERAL (
        SELECT j.available_at FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
          AND j.status = 'pending' AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
        ORDER BY j.available_at, j.seq LIMIT 1
    ) w
), running AS MATERIALIZED (
    SELECT FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    WHERE c.queue = $1 AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
    LIMIT $2
), held AS MATERIALIZED (
    SELECT FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NOT NULL
    ORDER BY w.task, w.version, w.available_at LIMIT $2
), quarantined AS MATERIALIZED (
    SELECT FROM holdfast.quarantine q WHERE q.queue = $1 LIMIT $2
)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM scheduled), (SELECT count(*) FROM running), (SELECT count(*) FROM held),
       (SELECT count(*) FROM quarantined), (SELECT extract(epoch FROM holdfast.now() - min(available_at))::float8 FROM oldest);

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

-- name: search_live
-- Live jobs from the newest id back, looking at so many rows and no more.
-- $1 before this id, $2 how many to look at, $3 queue, $4 task, $5 states, $6 limit
SELECT w.id
FROM (SELECT j.id, j.task,
             CASE WHEN j.id = ANY (ARRAY(SELECT q.id FROM holdfast.quarantine q)) THEN 'quarantined'
                  WHEN j.status = 'pending' AND j.available_at > holdfast.now() THEN 'scheduled' ELSE j.status END AS state
      FROM holdfast.work j
      WHERE ($1::uuid IS NULL OR j.id < $1) AND ($3::text IS NULL OR j.queue = $3)
      ORDER BY j.id DESC LIMIT $2) w
WHERE ($4::text IS NULL OR w.task = $4) AND ($5::text[] IS NULL OR w.state = ANY ($5))
ORDER BY w.id DESC LIMIT $6;

-- name: reach_live
-- The last id that a search of live jobs has looked at; no row: it has seen them all.
-- $1 before this id, $2 how many were looked at, $3 queue
SELECT j.id FROM holdfast.work j
WHERE ($1::uuid IS NULL OR j.id < $1) AND ($3::text IS NULL OR j.queue = $3)
ORDER BY j.id DESC OFFSET $2 - 1 LIMIT 1;

-- name: search_archive
-- Finished jobs from the newest id back, looking at so many rows and no more.
-- $1 before this id, $2 how many to look at, $3 queue, $4 task, $5 states, $6 limit
SELECT a.id
FROM (SELECT j.id, j.queue, j.task, j.status FROM holdfast.archive j
      WHERE ($1::uuid IS NULL OR j.id < $1) ORDER BY j.id DESC LIMIT $2) a
WHERE ($3::text IS NULL OR a.queue = $3) AND ($4::text IS NULL OR a.task = $4) AND ($5::text[] IS NULL OR a.status = ANY ($5))
ORDER BY a.id DESC LIMIT $6;

-- name: reach_archive
-- The last id that a search of the archive has looked at; no row: it has seen them all.
-- $1 before this id, $2 how many were looked at
SELECT j.id FROM holdfast.archive j WHERE ($1::uuid IS NULL OR j.id < $1) ORDER BY j.id DESC OFFSET $2 - 1 LIMIT 1;

-- name: search_dead
-- Dead letters from the newest id back, looking at so many rows and no more.
-- $1 before this id, $2 how many to look at, $3 queue, $4 task, $5 limit
SELECT d.id
FROM (SELECT j.id, j.queue, j.task FROM holdfast.dead_letters j
      WHERE ($1::uuid IS NULL OR j.id < $1) ORDER BY j.id DESC LIMIT $2) d
WHERE ($3::text IS NULL OR d.queue = $3) AND ($4::text IS NULL OR d.task = $4)
ORDER BY d.id DESC LIMIT $5;

-- name: reach_dead
-- The last id that a search of the dead letters has looked at; no row: it has seen them all.
-- $1 before this id, $2 how many were looked at
SELECT j.id FROM holdfast.dead_letters j WHERE ($1::uuid IS NULL OR j.id < $1) ORDER BY j.id DESC OFFSET $2 - 1 LIMIT 1;

-- name: search_running
-- Running jobs, found by the claims that hold them.
-- $1 before this id, $2 queue, $3 task, $4 limit
SELECT j.id
FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
CROSS JOIN LATERAL (SELECT w.task FROM holdfast.work w
                    WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
WHERE ($1::uuid IS NULL OR j.id < $1) AND ($2::text IS NULL OR c.queue = $2) AND ($3::text IS NULL OR w.task = $3)
  AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
ORDER BY j.id DESC LIMIT $4;

-- name: search_held
-- Held jobs, found by the index that has no others; of a great many, those at its beginning.
-- $1 before this id, $2 queue, $3 task, $4 limit, $5 how many to look at
SELECT h.id
FROM (SELECT w.id FROM holdfast.work w
      WHERE w.hold_reason IS NOT NULL AND ($2::text IS NULL OR w.queue = $2) AND ($3::text IS NULL OR w.task = $3)
      ORDER BY w.task, w.version, w.available_at LIMIT $5) h
WHERE ($1::uuid IS NULL OR h.id < $1)
ORDER BY h.id DESC LIMIT $4;

-- name: search_quarantined
-- Jobs left alone because they make claims or sweeps fail.
-- $1 before this id, $2 queue, $3 task, $4 limit
SELECT q.id
FROM holdfast.quarantine q
CROSS JOIN LATERAL (SELECT w.task FROM holdfast.work w WHERE w.queue = q.queue AND w.id = q.id OFFSET 0) w
WHERE ($1::uuid IS NULL OR q.id < $1) AND ($2::text IS NULL OR q.queue = $2) AND ($3::text IS NULL OR w.task = $3)
ORDER BY q.id DESC LIMIT $4;

-- name: summarize_jobs
-- The named jobs, wherever they are now, a line each.
-- $1 ids
SELECT id, queue, task, status, priority, attempts, max_attempts, created_at, available_at, claimed_by, lease_expires_at, completed_at,
       last_error, hold_reason
FROM holdfast.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id DESC;

-- name: show_job
-- One job, wherever it is now, with the server's timeline for its fence.
-- $1 id
SELECT id, queue, task, status, priority, attempts, max_attempts, created_at, available_at, claimed_by, lease_expires_at, completed_at,
       last_error, hold_reason, version, crashes, lease_generation, seq, partition_key, partition_bucket, payload::text, result::text,
       claimed_at, cancel_requested_at, tags, metadata::text, extract(epoch FROM lease_expires_at - holdfast.now())::float8,
       CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END
FROM holdfast.jobs WHERE id = $1;

-- name: show_errors
-- The newest failed attempts of a job, oldest of them first.
-- $1 id, $2 limit
SELECT * FROM (SELECT e.attempt, e.generation, e.at, e.worker, e.kind, e.message, e.trace FROM holdfast.errors e
               WHERE e.job_id = $1 ORDER BY e.at DESC LIMIT $2) newest
ORDER BY newest.at, newest.generation;

-- name: show_progress
-- How far a job said it was.
-- $1 id
SELECT p.fraction, p.message, p.at, p.generation FROM holdfast.progress p WHERE p.job_id = $1;

-- name: show_steps
-- What a job recorded with once().
-- $1 id, $2 limit
SELECT o.name, o.at FROM holdfast.once o WHERE o.job_id = $1 ORDER BY o.at, o.name LIMIT $2;

-- name: list_dead
-- Dead letters, the last to die first, looking at so many rows and no more.
-- $1 died before, $2 or then with a smaller id, $3 how many to look at, $4 queue, $5 task, $6 limit
SELECT d.id, d.queue, d.task, d.attempts, d.max_attempts, d.crashes, d.lease_generation, d.created_at, d.died_at,
       extract(epoch FROM holdfast.now() - d.died_at)::float8, d.last_error
FROM (SELECT * FROM holdfast.dead_letters l
      WHERE $1::timestamptz IS NULL OR (l.died_at <= $1 AND (l.died_at, l.id) < ($1, $2::uuid))
      ORDER BY l.died_at DESC, l.id DESC LIMIT $3) d
WHERE ($4::text IS NULL OR d.queue = $4) AND ($5::text IS NULL OR d.task = $5)
ORDER BY d.died_at DESC, d.id DESC LIMIT $6;

-- name: reach_list_dead
-- The last dead letter that a listing has looked at; no row: it has seen them all.
-- $1 died before, $2 or then with a smaller id, $3 how many were looked at
SELECT l.died_at, l.id FROM holdfast.dead_letters l
WHERE $1::timestamptz IS NULL OR (l.died_at <= $1 AND (l.died_at, l.id) < ($1, $2::uuid))
ORDER BY l.died_at DESC, l.id DESC OFFSET $3 - 1 LIMIT 1;

-- name: count_dead
-- How many dead letters there are, of one task or of all, up to the cap.
-- $1 task, $2 cap
SELECT count(*) FROM (SELECT FROM holdfast.dead_letters d WHERE ($1::text IS NULL OR d.task = $1) LIMIT $2) d;

-- name: redrive_begin
-- When a redrive starts: what dies again after this moment is not taken a second time.
SELECT holdfast.now();

-- name: lock_dead
-- Lock the named dead letters; says of each whether its queue is there.
-- $1 ids
SELECT d.id, d.queue, EXISTS (SELECT FROM holdfast.queues q WHERE q.name = d.queue)
FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]) ORDER BY d.id FOR UPDATE OF d;

-- name: lock_dead_batch
-- Lock the next dead letters of a redrive, in the order in which they died; says of each whether its queue is there.
-- $1 task, $2 died until, $3 died after, $4 or then with a greater id, $5 limit
SELECT d.id, d.queue, EXISTS (SELECT FROM holdfast.queues q WHERE q.name = d.queue), d.died_at
FROM holdfast.dead_letters d
WHERE ($1::text IS NULL OR d.task = $1) AND d.died_at <= $2
  AND ($3::timestamptz IS NULL OR (d.died_at >= $3 AND (d.died_at, d.id) > ($3, $4::uuid)))
ORDER BY d.died_at, d.id LIMIT $5
FOR UPDATE OF d SKIP LOCKED;

-- name: redrive
-- Dead letters go back to waiting with a fresh set of attempts. Generation and sequence are kept, so that every fence is higher than the last.
-- $1 ids
WITH gone AS (
    DELETE FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]) RETURNING *
)
INSERT INTO holdfast.work (id, seq, lease_generation, available_at, created_at, claimed_at, attempts, max_attempts, version, suspect, crashes,
                           priority, queue, status, task, partition_key, payload, last_error, tags, metadata, claim_token)
SELECT g.id, g.seq, g.lease_generation, holdfast.now(), g.created_at, holdfast.now(), 0, g.max_attempts, g.version, 0, 0,
       g.priority, g.queue, 'pending', g.task, g.partition_key, g.payload, g.last_error, g.tags, g.metadata,
       '00000000-0000-0000-0000-000000000000'
FROM gone g
RETURNING id;

-- name: list_workers
-- Workers, living ones first, with how many jobs each runs.
-- $1 those that are gone too?, $2 limit
SELECT v.id, v.host, v.pid, v.status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8, v.started_at, v.queues, v.concurrency,
       v.release, r.running
FROM (SELECT w.* FROM holdfast.workers w WHERE $1::boolean OR w.status <> 'gone'
      ORDER BY w.status = 'gone', w.last_seen_at DESC, w.id LIMIT $2) v
CROSS JOIN LATERAL (
    SELECT count(*) AS running FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    WHERE c.worker = v.id
) r
ORDER BY v.status = 'gone', v.last_seen_at DESC, v.id;
