-- name: one_snapshot
-- First in a transaction: every later statement sees the same moment, and nothing can be written.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: explain_job
-- One job, wherever it is now, with what the view of all jobs leaves out: its own status, whether it is a suspect, its claim.
-- $1 id
SELECT j.status, w.status, j.queue, j.task, j.version, j.priority, j.attempts, j.max_attempts, coalesce(w.suspect, 0), j.lease_generation, j.seq,
       least(greatest(j.available_at, 'epoch'), '9999-01-01'), j.completed_at, j.result::text, j.last_error, j.hold_reason, j.cancel_requested_at,
       c.token IS NOT NULL, coalesce(c.worker, j.claimed_by), c.lease_expires_at, c.revoked_at IS NOT NULL, holdfast.now(),
       coalesce(w.gives_up_at, (SELECT d.gives_up_at FROM holdfast.dead_letters d WHERE d.id = $1))
FROM holdfast.jobs j
LEFT JOIN LATERAL (SELECT w.status, w.suspect, w.claim_token, w.gives_up_at FROM holdfast.work w WHERE w.queue = j.queue AND w.id = $1 OFFSET 0) w ON true
LEFT JOIN LATERAL (SELECT c.* FROM holdfast.claims c WHERE w.status = 'processing' AND c.token = w.claim_token OFFSET 0) c ON true
WHERE j.id = $1;

-- name: explain_rules
-- Whether the queue and the task are paused, whether the queue is known, and until when sweeps wait after an outage.
-- $1 queue, $2 task
SELECT q.name IS NOT NULL, q.paused_at, q.paused_by, t.paused_at, t.paused_by, greatest(e.grace_until, 'epoch'), b.state, b.opened_at, b.retry_at,
       b.last_error
FROM (VALUES (1)) AS one(row)
LEFT JOIN holdfast.queues q ON q.name = $1
LEFT JOIN holdfast.paused_tasks t ON t.task = $2 AND NOT t.by_breaker
LEFT JOIN holdfast.breakers b ON b.task = $2 AND b.state <> 'closed'
LEFT JOIN holdfast.engine e ON e.only_row;

-- name: explain_error
-- The last failed attempt of a job.
-- $1 id
SELECT e.attempt, e.generation, e.at FROM holdfast.errors e WHERE e.job_id = $1 ORDER BY e.at DESC LIMIT 1;

-- name: explain_moved
-- Whether somebody changed when the job runs, as far as the newest entries of the audit tell.
-- $1 id, $2 entries
SELECT count(*) FROM (SELECT a.action, a.selection FROM holdfast.audit a ORDER BY a.id DESC LIMIT $2) a
WHERE a.action = 'jobs edit' AND a.selection->>'id' = $1::uuid::text AND a.selection->'changed' ? 'available_at';

-- name: explain_workers
-- Workers that are not gone: whether they know a task, and how much each runs.
-- $1 task, $2 limit, $3 version
SELECT v.id, v.status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8, v.queues, $1 = ANY (v.tasks), v.tasks[1:20],
       cardinality(v.tasks), v.concurrency, v.release, r.running, v.signatures ->> ($1 || '/' || $3::int)
FROM (SELECT w.* FROM holdfast.workers w WHERE w.status <> 'gone' ORDER BY w.last_seen_at DESC, w.id LIMIT $2) v
CROSS JOIN LATERAL (
    SELECT count(*) AS running FROM holdfast.claims c
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = ANY (c.job_ids) AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    WHERE c.worker = v.id
) r
ORDER BY v.last_seen_at DESC, v.id;

-- name: explain_misfits
-- The signatures that refused the payload of a job that is set aside, the last one first: (signature, seconds ago, why, only newer
-- code can take it).
-- $1 queue, $2 id
SELECT m.signature, extract(epoch FROM holdfast.now() - m.at)::float8, m.reason, m.newer
FROM holdfast.misfits m
CROSS JOIN LATERAL (SELECT w.available_at FROM holdfast.work w WHERE w.queue = $1 AND w.id = $2 AND w.status = 'held' OFFSET 0) w
WHERE m.job_id = $2 AND m.available_at = w.available_at ORDER BY m.at DESC, m.signature;

-- name: explain_stream
-- The stream of a live job in a queue ordered by key: (key, since when it is parked, for which dead letter, jobs before this one up to the
-- cap, then of the first job: id, state, when it is due, since when it stands so, why it is set aside, last error, worker).
-- $1 queue, $2 id, $3 cap
SELECT w.partition_key, p.parked_at, p.job_id,
       (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = w.partition_bucket
                                AND b.partition_key = w.partition_key AND b.seq < w.seq LIMIT $3) b),
       h.id, CASE WHEN h.id IN (SELECT x.id FROM holdfast.quarantine x) THEN 'quarantined'
                  WHEN h.status = 'pending' AND h.available_at > holdfast.now() THEN 'scheduled' ELSE h.status END,
       least(greatest(h.available_at, 'epoch'), '9999-01-01'),
       coalesce(CASE WHEN h.status = 'blocked' THEN (SELECT max(e.at) FROM holdfast.errors e WHERE e.job_id = h.id) END, h.claimed_at),
       coalesce((SELECT x.reason FROM holdfast.quarantine x WHERE x.id = h.id), h.hold_reason), h.last_error,
       (SELECT c.worker FROM holdfast.claims c WHERE h.status = 'processing' AND c.token = h.claim_token)
FROM holdfast.queues q
CROSS JOIN LATERAL (SELECT j.partition_bucket, j.partition_key, j.seq FROM holdfast.work j WHERE j.queue = $1 AND j.id = $2 OFFSET 0) w
CROSS JOIN LATERAL (SELECT j.* FROM holdfast.work j WHERE j.queue = $1 AND j.partition_bucket = w.partition_bucket
                      AND j.partition_key = w.partition_key ORDER BY j.seq LIMIT 1) h
LEFT JOIN holdfast.parked_keys p ON p.queue = $1 AND p.partition_key = w.partition_key
WHERE q.name = $1 AND q.ordering = 'key';

-- name: explain_affinity
-- The key of a live job in a queue with affinity: (key, its bucket, the seats that are taken in the ring, by whom each). No row where there is none.
-- $1 queue, $2 id
SELECT w.partition_key, holdfast.bucket(w.partition_key), ARRAY(SELECT s.seat FROM holdfast.seats s WHERE s.queue = $1 ORDER BY s.seat),
       ARRAY(SELECT s.worker FROM holdfast.seats s WHERE s.queue = $1 ORDER BY s.seat)
FROM holdfast.queues q
CROSS JOIN LATERAL (SELECT j.partition_key FROM holdfast.work j WHERE j.queue = $1 AND j.id = $2 OFFSET 0) w
WHERE q.name = $1 AND q.affinity = 'key' AND w.partition_key IS NOT NULL;

-- name: explain_limits
-- The limits of the queue and the key of a live job, no row where there are none: (most that run, how many do, rate, seconds until it allows
-- one, key, then the same of the key, whether it has a number of its own).
-- $1 queue, $2 id, $3 seconds for which jobs are claimed before their tokens are there
WITH q AS MATERIALIZED (
    SELECT * FROM holdfast.queues WHERE name = $1 AND limited > 0
), running AS MATERIALIZED (
    SELECT r.partition_key AS key
    FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.partition_key FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) r
    WHERE c.queue = $1 AND EXISTS (SELECT FROM q) AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
)
SELECT q.concurrency, (SELECT count(*) FROM running)::int, q.rate,
       coalesce(greatest((1 - least(q.burst, CASE WHEN t.refilled_at = '-infinity' THEN q.burst
                                             ELSE greatest(t.tokens, -q.rate * $3::float8)
                                                  + q.rate * greatest(extract(epoch FROM holdfast.now() - t.refilled_at)::float8, 0) END)) / q.rate, 0), 0)::float8,
       k.key, CASE WHEN q.key_concurrency IS NOT NULL THEN coalesce(o.concurrency, q.key_concurrency) END, (SELECT count(*) FROM running r WHERE r.key = k.key)::int, q.key_rate,
       coalesce(greatest((1 - CASE WHEN l.tokens IS NULL THEN q.key_burst
                               ELSE least(q.key_burst, greatest(l.tokens, -q.key_rate * $3::float8)
                                          + q.key_rate * greatest(extract(epoch FROM holdfast.now() - l.refilled_at)::float8, 0)) END) / q.key_rate, 0), 0)::float8,
       o.concurrency IS NOT NULL
FROM q
CROSS JOIN LATERAL (SELECT j.partition_key AS key FROM holdfast.work j WHERE j.queue = $1 AND j.id = $2 OFFSET 0) k
LEFT JOIN holdfast.limits t ON t.queue = $1
-- with part: key_bucket
LEFT JOIN holdfast.key_rules o ON o.queue = $1 AND o.partition_key = k.key;

-- name: explain_ahead
-- How many due jobs a claim would take before this one, counted along the claim index up to the cap. Priorities are probed one by
-- one: what is scheduled ahead at a higher priority is not walked through.
-- $1 queue, $2 priority, $3 available at, $4 sequence, $5 cap
WITH RECURSIVE p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority > $2::int
)
SELECT count(*)
FROM (SELECT FROM p CROSS JOIN LATERAL (
          SELECT j.id FROM holdfast.work j
          WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
            AND (p.priority > $2::int OR (j.available_at <= $3::timestamptz AND (j.available_at, j.seq) < ($3::timestamptz, $4::bigint)))
            AND j.status = 'pending' AND j.suspect = 0
            AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
            AND j.task <> ALL (ARRAY(SELECT t.task FROM holdfast.paused_tasks t))
          ORDER BY j.available_at, j.seq LIMIT $5
      ) w
      WHERE p.priority >= $2::int
      LIMIT $5) ahead;
