-- name: claim_streams
-- Take a gapless run from the front of each of these streams, for a living worker.
-- $1 queue, $2 worker, $3 token, $4 lease seconds, $5 keys, $6 most jobs of a key, $7 suspects too?
--
-- `front` has the first jobs of a key by seq, whatever their status; `free` those of them that are ready and that nobody holds, looked at
-- again under their lock. A run ends at the first job of the front that is not free: what is behind it has to wait, also when somebody
-- took, held or ended it between the two looks. A filter by status in `front` would step over it. A job that commits later has a
-- higher seq, so nothing can appear before what was seen.
WITH front AS MATERIALIZED (
    SELECT k.key, j.id, j.seq
    FROM unnest($5::text[]) AS k(key)
    CROSS JOIN LATERAL (
        SELECT w.id, w.seq FROM holdfast.work w
        WHERE w.queue = $1 AND w.partition_bucket = holdfast.bucket(k.key) AND w.partition_key = k.key
        ORDER BY w.seq LIMIT $6
    ) j
    WHERE EXISTS (SELECT FROM holdfast.workers WHERE id = $2 AND status = 'alive')
      AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = k.key)
), free AS MATERIALIZED (
    SELECT j.id
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.id = ANY (ARRAY(SELECT id FROM front))
      AND j.status = 'pending' AND j.available_at <= holdfast.now() AND (j.suspect = 0 OR $7::boolean)
      AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
      AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
    FOR NO KEY UPDATE SKIP LOCKED
), c AS MATERIALIZED (
    SELECT r.id
    FROM (SELECT f.id, bool_and(f.id = ANY (ARRAY(SELECT id FROM free))) OVER (PARTITION BY f.key ORDER BY f.seq) AS gapless FROM front f) r
    WHERE r.gapless
)
-- with part: take

-- name: due_streams
-- The keys of waiting jobs that are due, from a mark on in claim order, looking at so many rows of each priority: per priority
-- (priority, rows seen, when and which seq the last of them is due, keys in the order met).
-- $1 queue, $2 priorities, $3 their marks: due after, $4 or then with a greater seq, $5 rows, $6 buckets (NULL: all)
--
-- A row is passed once per worker, whether or not its job can be taken: a stream 100,000 deep costs a few looks and then nothing.
SELECT p.priority, s.seen, s.last_at, s.last_seq, s.keys
FROM unnest($2::int[], $3::timestamptz[], $4::bigint[]) AS p(priority, mark, mark_seq)
CROSS JOIN LATERAL (
    WITH seen AS MATERIALIZED (
        SELECT j.partition_key, j.available_at, j.seq, j.status = 'pending' AND ($6::int[] IS NULL OR j.partition_bucket = ANY ($6::int[])) AS wanted
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority
          AND (j.available_at, j.seq) > (p.mark, p.mark_seq) AND j.available_at <= holdfast.now()
        ORDER BY j.available_at, j.seq LIMIT $5
    )
    SELECT (SELECT count(*) FROM seen) AS seen, l.available_at AS last_at, l.seq AS last_seq,
           ARRAY(SELECT f.partition_key FROM seen f WHERE f.wanted GROUP BY f.partition_key ORDER BY min(f.available_at), min(f.seq)) AS keys
    FROM (SELECT f.available_at, f.seq FROM seen f ORDER BY f.available_at DESC, f.seq DESC LIMIT 1) l
) s;

-- name: scan_streams
-- Step from key to key through some buckets, from a place on, looking at so many keys: (keys looked at, the last one, those whose
-- first job is ready, the priorities of those jobs, and for how long each is due). Costs what the keys are many, not the jobs.
-- $1 queue, $2 buckets in order, $3 after this key in the first of them (NULL: from its start), $4 keys, $5 suspects too?
WITH steps AS MATERIALIZED (
    SELECT b.bucket, s.key
    FROM unnest($2::int[]) WITH ORDINALITY AS b(bucket, ord)
    CROSS JOIN LATERAL (
        WITH RECURSIVE k(key) AS (
            (SELECT w.partition_key FROM holdfast.work w
             WHERE w.queue = $1 AND w.partition_bucket = b.bucket AND (b.ord > 1 OR $3::text IS NULL OR w.partition_key > $3)
             ORDER BY w.partition_key LIMIT 1)
            UNION ALL
            SELECT (SELECT w.partition_key FROM holdfast.work w
                    WHERE w.queue = $1 AND w.partition_bucket = b.bucket AND w.partition_key > k.key ORDER BY w.partition_key LIMIT 1)
            FROM k WHERE k.key IS NOT NULL
        )
        SELECT key FROM k WHERE key IS NOT NULL
    ) s
    LIMIT $4
), ready AS MATERIALIZED (
    SELECT s.key, h.priority, h.late
    FROM steps s
    CROSS JOIN LATERAL (
        SELECT w.id, w.status, w.suspect, w.task, w.priority, w.available_at, extract(epoch FROM holdfast.now() - w.available_at)::float8 AS late
        FROM holdfast.work w WHERE w.queue = $1 AND w.partition_bucket = s.bucket AND w.partition_key = s.key ORDER BY w.seq LIMIT 1
    ) h
    WHERE h.status = 'pending' AND h.available_at <= holdfast.now() AND (h.suspect = 0 OR $5::boolean)
      AND h.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
      AND h.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
      AND NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = s.key)
    ORDER BY h.priority DESC, h.available_at
)
SELECT (SELECT count(*) FROM steps), (SELECT s.bucket FROM steps s OFFSET greatest((SELECT count(*) FROM steps) - 1, 0) LIMIT 1),
       (SELECT s.key FROM steps s OFFSET greatest((SELECT count(*) FROM steps) - 1, 0) LIMIT 1),
       ARRAY(SELECT key FROM ready), ARRAY(SELECT priority::int FROM ready), ARRAY(SELECT late FROM ready);

-- name: suspect_streams
-- The keys whose first job was in a process that died, with how many of such jobs may run together.
-- $1 queue, $2 limit
SELECT j.partition_key, j.suspect
FROM holdfast.work j
WHERE j.queue = $1 AND j.suspect > 0 AND j.status = 'pending' AND j.available_at <= holdfast.now()
  AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
  AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
  AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = j.partition_key)
  AND j.seq = (SELECT w.seq FROM holdfast.work w
               WHERE w.queue = $1 AND w.partition_bucket = j.partition_bucket AND w.partition_key = j.partition_key ORDER BY w.seq LIMIT 1)
ORDER BY j.available_at, j.seq
LIMIT $2;

-- name: stream_head
-- The first job of a stream.
-- $1 queue, $2 key
SELECT w.id FROM holdfast.work w
WHERE w.queue = $1 AND w.partition_bucket = holdfast.bucket($2) AND w.partition_key = $2 ORDER BY w.seq LIMIT 1;

-- name: unhold
-- Put held jobs back to waiting, in their place, as far as they are due and nobody holds them; answers their keys.
-- $1 queue, $2 ids
WITH c AS MATERIALIZED (
    SELECT j.id FROM holdfast.work j
    WHERE j.queue = $1 AND j.id = ANY ($2::uuid[]) AND j.status = 'held' AND j.available_at <= holdfast.now()
      AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE holdfast.work SET status = 'pending', hold_reason = NULL
WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM c))
RETURNING partition_key;
