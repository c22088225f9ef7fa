-- name: aside_heads
-- Keys of ordered queues whose first job is set aside, blocked ones first: (queue, key, why, job, task, since, until, note, jobs behind it).
-- $1 queue (NULL: all), $2 jobs set aside to look at in each queue, $3 limit, $4 cap of the jobs behind
--
-- Set-aside jobs have a separate index; whether one is the first of its key is one probe of the index of streams.
SELECT s.queue, s.partition_key, s.status, s.id, s.task,
       CASE s.status WHEN 'blocked' THEN coalesce((SELECT max(e.at) FROM holdfast.errors e WHERE e.job_id = s.id), s.claimed_at) ELSE s.available_at END,
       NULL::timestamptz, CASE s.status WHEN 'blocked' THEN s.last_error ELSE s.hold_reason END,
       (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = s.queue AND b.partition_bucket = s.partition_bucket
                                AND b.partition_key = s.partition_key AND b.seq > s.seq LIMIT $4) b)
FROM (SELECT w.*
      FROM holdfast.queues q
      CROSS JOIN LATERAL (
          SELECT j.queue, j.partition_bucket, j.partition_key, j.seq, j.id, j.task, j.status, j.hold_reason, j.last_error, j.available_at, j.claimed_at
          FROM holdfast.work j WHERE j.queue = q.name AND j.hold_reason IS NOT NULL
          ORDER BY j.task, j.version, j.available_at LIMIT $2
      ) w
      WHERE q.ordering = 'key' AND ($1::text IS NULL OR q.name = $1)
        AND w.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
        AND NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = w.queue AND p.partition_key = w.partition_key)
        AND NOT EXISTS (SELECT FROM holdfast.work f
                        WHERE f.queue = w.queue AND f.partition_bucket = w.partition_bucket AND f.partition_key = w.partition_key AND f.seq < w.seq OFFSET 0)
      ORDER BY w.status, w.claimed_at, w.seq LIMIT $3) s;

-- name: aside_more
-- Whether an ordered queue has more jobs set aside than are read.
-- $1 queue (NULL: all), $2 how many are read
SELECT EXISTS (SELECT FROM holdfast.queues q
               CROSS JOIN LATERAL (SELECT FROM holdfast.work j WHERE j.queue = q.name AND j.hold_reason IS NOT NULL
                                   ORDER BY j.task, j.version, j.available_at OFFSET $2 LIMIT 1) w
               WHERE q.ordering = 'key' AND ($1::text IS NULL OR q.name = $1));

-- name: parked_heads
-- Parked keys, the longest parked first; columns as of aside_heads.
-- $1 queue (NULL: all), $2 limit, $3 cap of the jobs behind, $4 key (NULL: all)
SELECT p.queue, p.partition_key, 'parked', p.job_id, d.task, p.parked_at, NULL::timestamptz,
       CASE WHEN d.id IS NULL THEN 'its dead letter was discarded or redriven' ELSE d.last_error END,
       (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = p.queue AND b.partition_bucket = holdfast.bucket(p.partition_key)
                                AND b.partition_key = p.partition_key LIMIT $3) b)
FROM (SELECT k.* FROM holdfast.parked_keys k WHERE ($1::text IS NULL OR k.queue = $1) AND ($4::text IS NULL OR k.partition_key = $4)
      ORDER BY k.parked_at, k.queue, k.partition_key LIMIT $2) p
LEFT JOIN holdfast.dead_letters d ON d.id = p.job_id
ORDER BY p.parked_at, p.queue, p.partition_key;

-- name: quarantined_heads
-- Keys of ordered queues whose first job is in quarantine; columns as of aside_heads.
-- $1 queue (NULL: all), $2 limit, $3 cap of the jobs behind
SELECT w.queue, w.partition_key, 'quarantined', w.id, w.task, x.at, NULL::timestamptz, x.reason,
       (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = w.queue AND b.partition_bucket = w.partition_bucket
                                AND b.partition_key = w.partition_key AND b.seq > w.seq LIMIT $3) b)
FROM holdfast.quarantine x
JOIN holdfast.queues q ON q.name = x.queue AND q.ordering = 'key' AND ($1::text IS NULL OR q.name = $1)
CROSS JOIN LATERAL (SELECT j.queue, j.partition_bucket, j.partition_key, j.seq, j.id, j.task FROM holdfast.work j
                    WHERE j.queue = x.queue AND j.id = x.id OFFSET 0) w
WHERE w.id = (SELECT f.id FROM holdfast.work f
              WHERE f.queue = w.queue AND f.partition_bucket = w.partition_bucket AND f.partition_key = w.partition_key ORDER BY f.seq LIMIT 1)
ORDER BY x.at, w.id LIMIT $2;

-- name: waiting_heads
-- Keys with jobs that wait behind a first one that is not due yet, the furthest ahead first; columns as of aside_heads.
-- $1 queue, $2 jobs to read of each priority, $3 limit, $4 cap of the jobs behind, $5 due later than that many seconds from now
WITH RECURSIVE p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
), ahead AS MATERIALIZED (
    SELECT w.*
    FROM p CROSS JOIN LATERAL (
        SELECT j.partition_bucket, j.partition_key, j.seq, j.id, j.task, j.attempts, j.last_error, j.available_at, j.created_at
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.status = 'pending'
          AND j.available_at > holdfast.now() + make_interval(secs => $5::float8)
          AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
        ORDER BY j.available_at DESC, j.seq DESC LIMIT $2
    ) w
)
SELECT $1::text, a.partition_key, CASE WHEN a.attempts > 0 THEN 'backing off' ELSE 'scheduled' END, a.id, a.task, a.created_at,
       least(a.available_at, '9999-01-01'), CASE WHEN a.attempts > 0 THEN a.last_error END,
       (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = a.partition_bucket
                                AND b.partition_key = a.partition_key AND b.seq > a.seq LIMIT $4) b)
FROM ahead a
WHERE a.id = (SELECT f.id FROM holdfast.work f
              WHERE f.queue = $1 AND f.partition_bucket = a.partition_bucket AND f.partition_key = a.partition_key ORDER BY f.seq LIMIT 1)
  AND EXISTS (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = a.partition_bucket
                AND b.partition_key = a.partition_key AND b.seq > a.seq)
  AND NOT EXISTS (SELECT FROM holdfast.parked_keys k WHERE k.queue = $1 AND k.partition_key = a.partition_key)
ORDER BY a.available_at DESC, a.seq LIMIT $3;

-- name: list_keys
-- Step from key to key of an ordered queue: (key, jobs up to the cap, first job, its task, its state, when it is due, note, parked at,
-- held until, which may be over where a trial is to come).
-- $1 queue, $2 after this key (NULL: from the start), $3 keys, $4 cap
WITH RECURSIVE k(bucket, key) AS (
    (SELECT w.partition_bucket, w.partition_key FROM holdfast.work w
     WHERE w.queue = $1 AND ($2::text IS NULL OR (w.partition_bucket, w.partition_key) > (holdfast.bucket($2), $2))
     ORDER BY w.partition_bucket, w.partition_key LIMIT 1)
    UNION ALL
    SELECT n.partition_bucket, n.partition_key
    FROM k CROSS JOIN LATERAL (
        SELECT w.partition_bucket, w.partition_key FROM holdfast.work w
        WHERE w.queue = $1 AND (w.partition_bucket, w.partition_key) > (k.bucket, k.key)
        ORDER BY w.partition_bucket, w.partition_key LIMIT 1
    ) n
), page AS MATERIALIZED (
    SELECT bucket, key FROM k LIMIT $3
)
SELECT s.key,
       (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = s.bucket AND b.partition_key = s.key LIMIT $4) b),
       h.id, h.task,
       CASE WHEN h.id IN (SELECT x.id FROM holdfast.quarantine x) THEN 'quarantined'
            WHEN h.status = 'pending' AND h.available_at > holdfast.now() THEN 'scheduled' ELSE h.status END,
       least(greatest(h.available_at, 'epoch'), '9999-01-01'), CASE h.status WHEN 'held' THEN h.hold_reason ELSE h.last_error END, p.parked_at,
       least(k.until, '9999-01-01')
FROM page s
CROSS JOIN LATERAL (SELECT w.id, w.task, w.status, w.available_at, w.hold_reason, w.last_error FROM holdfast.work w
                    WHERE w.queue = $1 AND w.partition_bucket = s.bucket AND w.partition_key = s.key ORDER BY w.seq LIMIT 1) h
LEFT JOIN holdfast.parked_keys p ON p.queue = $1 AND p.partition_key = s.key
LEFT JOIN holdfast.key_holds k ON k.queue = $1 AND k.partition_key = s.key AND (k.trial OR k.until > holdfast.now())
ORDER BY s.bucket, s.key;

-- name: stream_depth
-- How many live jobs a stream has, up to the cap.
-- $1 queue, $2 key, $3 cap
SELECT count(*) FROM (SELECT FROM holdfast.work w
                      WHERE w.queue = $1 AND w.partition_bucket = holdfast.bucket($2) AND w.partition_key = $2 LIMIT $3) w;

-- name: stream_front
-- The first jobs of a stream in their order: (id, sequence, task, state, attempts, most attempts, due, created, worker, note).
-- $1 queue, $2 key, $3 limit
SELECT w.id, w.seq, w.task,
       CASE WHEN w.id IN (SELECT x.id FROM holdfast.quarantine x) THEN 'quarantined'
            WHEN w.status = 'pending' AND w.available_at > holdfast.now() THEN 'scheduled' ELSE w.status END,
       w.attempts, w.max_attempts, least(greatest(w.available_at, 'epoch'), '9999-01-01'), w.created_at, c.worker,
       CASE w.status WHEN 'held' THEN w.hold_reason ELSE w.last_error END
FROM (SELECT * FROM holdfast.work j WHERE j.queue = $1 AND j.partition_bucket = holdfast.bucket($2) AND j.partition_key = $2 ORDER BY j.seq LIMIT $3) w
LEFT JOIN holdfast.claims c ON w.status = 'processing' AND c.token = w.claim_token
ORDER BY w.seq;

-- name: hot_keys
-- The keys that the oldest and the newest due jobs of a queue belong to, those with the most first: (key, jobs of it seen, jobs seen in all,
-- jobs of it up to the cap). The last is known only where there is an index by key.
-- $1 queue, $2 jobs to look at from each end of each priority, $3 limit, $4 cap
WITH RECURSIVE p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
), seen AS MATERIALIZED (
    SELECT w.id, w.key FROM p CROSS JOIN LATERAL (
        SELECT j.id, j.partition_key AS key FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
        ORDER BY j.available_at, j.seq LIMIT $2
    ) w
    UNION
    SELECT w.id, w.key FROM p CROSS JOIN LATERAL (
        SELECT j.id, j.partition_key AS key FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
        ORDER BY j.available_at DESC, j.seq DESC LIMIT $2
    ) w
), top AS MATERIALIZED (
    SELECT s.key, count(*) AS jobs FROM seen s WHERE s.key IS NOT NULL GROUP BY s.key ORDER BY count(*) DESC, s.key LIMIT $3
)
SELECT t.key, t.jobs, (SELECT count(*) FROM seen),
       CASE WHEN q.keyed THEN (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = holdfast.bucket(t.key)
                                                       AND b.partition_key = t.key LIMIT $4) b) END
FROM top t CROSS JOIN holdfast.queues q WHERE q.name = $1
ORDER BY t.jobs DESC, t.key;

-- name: recent_keys
-- Jobs that finished in the last minute by queue and key, those with the most first, read from the end of a slot.
-- $1 slot, $2 first block to read, $3 limit
SELECT a.queue, a.partition_key, count(*), sum(count(*)) OVER (PARTITION BY a.queue)::bigint
FROM holdfast.archive a
WHERE a.slot = $1 AND a.ctid >= format('(%s,0)', $2::bigint)::tid AND a.completed_at > holdfast.now() - interval '1 minute'
GROUP BY a.queue, a.partition_key ORDER BY 3 DESC LIMIT $3;

-- name: ordered_queues
-- The queues that are ordered by key.
SELECT name FROM holdfast.queues WHERE ordering = 'key' ORDER BY name;

-- name: lock_parked
-- Lock parked keys until the commit: (queue, key, the dead letter). One that was released meanwhile is left out.
-- $1 queues, $2 keys
SELECT p.queue, p.partition_key, p.job_id FROM holdfast.parked_keys p
WHERE (p.queue, p.partition_key) IN (SELECT u.queue, u.key FROM unnest($1::text[], $2::text[]) AS u(queue, key))
ORDER BY p.queue, p.partition_key FOR UPDATE;

-- name: unpark
-- Release parked keys: their jobs may be claimed again. A key that was parked again for another dead letter stays.
-- $1 queues, $2 keys, $3 dead letters
DELETE FROM holdfast.parked_keys p
WHERE (p.queue, p.partition_key, p.job_id) IN (SELECT u.queue, u.key, u.job FROM unnest($1::text[], $2::text[], $3::uuid[]) AS u(queue, key, job))
RETURNING p.job_id;

-- name: all_parked
-- Parked keys of queues that are there, up to a limit: (queue, key, the dead letter).
-- $1 queue (NULL: all), $2 limit
SELECT p.queue, p.partition_key, p.job_id FROM holdfast.parked_keys p
WHERE ($1::text IS NULL OR p.queue = $1) AND EXISTS (SELECT FROM holdfast.queues q WHERE q.name = p.queue)
ORDER BY p.queue, p.partition_key LIMIT $2;

-- name: all_blocked
-- Blocked jobs, up to a limit: (queue, key, job).
-- $1 queue (NULL: all), $2 jobs set aside to look at
SELECT w.queue, w.partition_key, w.id
FROM (SELECT j.queue, j.partition_key, j.id, j.status FROM holdfast.work j
      WHERE j.hold_reason IS NOT NULL AND ($1::text IS NULL OR j.queue = $1)
      ORDER BY j.task, j.version, j.available_at LIMIT $2) w
WHERE w.status = 'blocked' ORDER BY w.queue, w.partition_key;

-- name: blocked_of
-- The blocked jobs of these keys, among the first of each: (key, job).
-- $1 queue, $2 keys, $3 how many to look at
SELECT u.key, w.id
FROM unnest($2::text[]) AS u(key)
CROSS JOIN LATERAL (SELECT j.id, j.status FROM holdfast.work j
                    WHERE j.queue = $1 AND j.partition_bucket = holdfast.bucket(u.key) AND j.partition_key = u.key ORDER BY j.seq LIMIT $3) w
WHERE w.status = 'blocked';

-- name: unblock
-- Blocked jobs wait again in their place, due now, with a fresh set of attempts. The generation is kept.
-- $1 queue, $2 ids
UPDATE holdfast.work SET status = 'pending', hold_reason = NULL, attempts = 0, crashes = 0, suspect = 0, available_at = holdfast.now(),
    first_due = NULL, gives_up_at = NULL
WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status = 'blocked' RETURNING id;

-- name: bury_blocked
-- Blocked jobs become dead letters, and their keys continue without them.
-- $1 queue, $2 ids
WITH gone AS (
    DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status = 'blocked' RETURNING *
)
INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts, max_attempts,
                                   version, crashes, priority, queue, task, partition_key, payload, claimed_by, last_error, tags, metadata,
                                   parent_id, group_id, follow_ups, gives_up_at)
SELECT g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at, g.claimed_at, holdfast.now(), g.attempts, g.max_attempts,
       g.version, g.crashes, g.priority, g.queue, g.task, g.partition_key, g.payload,
       (SELECT e.worker FROM holdfast.errors e WHERE e.job_id = g.id ORDER BY e.at DESC LIMIT 1), g.last_error, g.tags, g.metadata,
       g.parent_id, g.group_id, g.follow_ups, g.gives_up_at
FROM gone g
RETURNING id, group_id;

-- name: set_on_dead_letter
-- What an ordered queue does with a key when one of its jobs fails for good, from now on. No row: it is like that already.
-- $1 queue, $2 policy
UPDATE holdfast.queues SET on_dead_letter = $2 WHERE name = $1 AND ordering = 'key' AND on_dead_letter <> $2 RETURNING name;

-- name: order_queue
-- Order an empty queue by key, or no longer; returns what is in the way.
-- $1 queue, $2 ordering, $3 on dead letter
SELECT holdfast.order_queue($1, $2, $3);
