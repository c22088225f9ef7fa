-- name: claim_streams
-- Take a gapless run from the front of each of these streams, for a live worker.
-- $1 queue, $2 worker, $3 token, $4 lease seconds, $5 keys, $6 most jobs of a key, $7 suspects too?, $8 limits that the
-- claim is made within, $9 bytes of payload that are enough, $10 trials of held keys? They are locked, and one job of each is asked for. $11 most jobs
--
-- `front` has the first jobs of a key by seq, whatever their status; `free` those of them that are ready and that nobody holds, read
-- again under their lock. A run ends at the first job of the front that is not free: what is behind it has to wait, also when somebody
-- took, held or ended it between the two looks. A filter by status in `front` would step over it. A job that commits later has a
-- higher seq, so nothing can appear before what was seen.
-- Rows are identified by their places, as in `claim`: ids would be looked up in an index twice more. One that somebody changed between our
-- snapshot and our lock was locked in its newer version, which is in another place: the run ends there, as at one that is locked still.
-- Mostly all of the front is free, and no run has to be cut.
-- The answer is in no order: the client sorts the first jobs of the keys. Sorting all jobs took 0.4 us of each.
-- `IN` is a hashed lookup for each row of the front. `= ANY (ARRAY(...))` would search the whole array for each of them.
-- Where there are long payloads, the first job of each key comes before the second of any.
-- The jobs of all keys together are bounded, which cuts the run of one key and leaves the keys behind it. A row that somebody changed between
-- our snapshot and our lock is checked again, and each such check reads the whole list of places: 5,000 of 20,000 took two seconds.
WITH front AS MATERIALIZED (
    SELECT k.number AS key, j.place, j.seq
    FROM (SELECT u.key, u.number FROM unnest($5::text[]) WITH ORDINALITY AS u(key, number)
          WHERE NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = u.key)
            AND ($10::boolean OR (SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
                 OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = u.key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL) OFFSET 0) k
    CROSS JOIN LATERAL (
        SELECT w.ctid AS place, w.seq FROM holdfast.work w
        WHERE w.queue = $1 AND w.partition_bucket = holdfast.bucket(k.key) AND w.partition_key = k.key
        ORDER BY w.seq LIMIT $6
    ) j
    WHERE EXISTS (SELECT FROM holdfast.workers WHERE id = $2 AND status = 'alive')
      AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND (paused_at IS NOT NULL OR limited > $8::int))
    LIMIT $11::bigint
), free AS MATERIALIZED (
    SELECT j.ctid AS place,
-- with part: bytes
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.ctid = ANY (ARRAY(SELECT place FROM front))
      AND j.status = 'pending' AND j.available_at <= (SELECT holdfast.now()) AND (j.suspect = 0 OR $7::boolean)
      AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
      AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
    FOR NO KEY UPDATE SKIP LOCKED
), gaps AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM front f WHERE f.place NOT IN (SELECT place FROM free)) AS found
), c AS NOT MATERIALIZED (
    SELECT f.place, f.key, f.seq FROM front f WHERE NOT (SELECT found FROM gaps)
    UNION ALL
    SELECT r.place, r.key, r.seq
    FROM (SELECT f.place, f.key, f.seq, bool_and(f.place IN (SELECT place FROM free)) OVER (PARTITION BY f.key ORDER BY f.seq) AS gapless
          FROM front f) r
    WHERE r.gapless AND (SELECT found FROM gaps)
)
-- with part: take
    WHERE queue = $1 AND ctid = ANY (CASE
        WHEN NOT EXISTS (SELECT FROM free f WHERE f.bytes IS NOT NULL) THEN ARRAY(SELECT c.place FROM c)
        ELSE ARRAY(SELECT f.place
                   FROM (SELECT p.place, sum(l.bytes) OVER (ORDER BY p.turn, p.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                         FROM (SELECT c.place, c.seq, row_number() OVER (PARTITION BY c.key ORDER BY c.seq) AS turn FROM c) p
                         JOIN free l ON l.place = p.place) f
                   WHERE coalesce(f.before, 0) < $9::bigint) END)
-- with part: written
FROM taken;

-- name: due_streams
-- The keys of waiting jobs that are due, from a mark on in claim order, scanning a bounded number of rows of each priority: per priority
-- (priority, rows seen, when and which seq the last of them is due, keys in the order met).
-- $1 queue, $2 priorities, $3 their marks: due after, $4 or then with a greater seq, $5 rows, $6 buckets in ascending order (NULL: all)
--
-- A row is passed once per worker, whether or not its job can be taken: a stream 100,000 deep costs a few looks and then nothing.
SELECT p.priority, s.seen, s.last_at, s.last_seq, s.keys
FROM unnest($2::int[], $3::timestamptz[], $4::bigint[]) AS p(priority, mark, mark_seq)
CROSS JOIN LATERAL (
    WITH seen AS MATERIALIZED (
        SELECT j.partition_key, j.available_at, j.seq, j.status = 'pending' AND ($6::int[] IS NULL OR ($6::int[])[width_bucket(j.partition_bucket, $6::int[])] = j.partition_bucket) AS wanted
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority
          AND (j.available_at, j.seq) > (p.mark, p.mark_seq) AND j.available_at <= holdfast.now()
        ORDER BY j.available_at, j.seq LIMIT $5
    )
    SELECT (SELECT count(*) FROM seen) AS seen, l.available_at AS last_at, l.seq AS last_seq,
           ARRAY(SELECT f.partition_key FROM seen f WHERE f.wanted GROUP BY f.partition_key
                 HAVING ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
                        OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = f.partition_key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL)
                 ORDER BY min(f.available_at), min(f.seq)) AS keys
    FROM (SELECT f.available_at, f.seq FROM seen f ORDER BY f.available_at DESC, f.seq DESC LIMIT 1) l
) s;

-- name: scan_streams
-- Step from key to key through some buckets, from a place on, scanning a bounded number of keys: (keys read, bucket and key of the last one,
-- those whose first job is ready, the priorities of those jobs, and for how long each is due). One index probe per key, however deep it
-- is, and one per gap between wanted buckets.
-- $1 queue, $2 buckets in ascending order (NULL: all), $3 and $4 after this bucket and key (NULL: from the start), $5 keys, $6 suspects too?
--
-- The first row after (bucket, key, the greatest seq) is the first job of the next key. Compared as a row: with an equality on the bucket
-- a planner without statistics sorts what is behind the key instead of walking the index.
WITH RECURSIVE step AS (
    (SELECT w.partition_bucket AS bucket, w.partition_key AS key, w.id, w.status, w.suspect, w.task, w.priority, w.available_at
     FROM holdfast.work w
     WHERE w.queue = $1 AND (w.partition_bucket, w.partition_key, w.seq)
           > (coalesce($3::int, 0), coalesce($4::text, ''), CASE WHEN $3::int IS NULL THEN -1 ELSE 9223372036854775807 END)
     ORDER BY w.partition_bucket, w.partition_key, w.seq LIMIT 1)
    UNION ALL
    SELECT n.*
    FROM (SELECT s.bucket, s.key, $2::int[] IS NULL OR ($2::int[])[width_bucket(s.bucket, $2::int[])] = s.bucket AS wanted FROM step s OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT w.partition_bucket, w.partition_key, w.id, w.status, w.suspect, w.task, w.priority, w.available_at
        FROM holdfast.work w
        WHERE w.queue = $1 AND (w.partition_bucket, w.partition_key, w.seq)
              > (CASE WHEN s.wanted THEN s.bucket ELSE ($2::int[])[width_bucket(s.bucket, $2::int[]) + 1] END,
                 CASE WHEN s.wanted THEN s.key ELSE '' END, CASE WHEN s.wanted THEN 9223372036854775807 ELSE -1 END)
        ORDER BY w.partition_bucket, w.partition_key, w.seq LIMIT 1
    ) n
), heads AS MATERIALIZED (
    SELECT s.* FROM step s WHERE $2::int[] IS NULL OR ($2::int[])[width_bucket(s.bucket, $2::int[])] = s.bucket LIMIT $5
), ready AS MATERIALIZED (
    SELECT h.key, h.priority, extract(epoch FROM holdfast.now() - h.available_at)::float8 AS late
    FROM heads h
    WHERE h.status = 'pending' AND h.available_at <= holdfast.now() AND (h.suspect = 0 OR $6::boolean)
      AND h.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
      AND h.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
      AND NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = h.key)
      AND ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds k WHERE k.queue = $1))
           OR (SELECT true FROM holdfast.key_holds k WHERE k.queue = $1 AND k.partition_key = h.key AND (k.trial OR k.until > holdfast.now()) LIMIT 1) IS NULL)
    ORDER BY h.priority DESC, h.available_at
), last AS MATERIALIZED (
    SELECT h.bucket, h.key FROM heads h ORDER BY h.bucket DESC, h.key DESC LIMIT 1
)
SELECT (SELECT count(*) FROM heads), (SELECT bucket FROM last), (SELECT key FROM last),
       ARRAY(SELECT key FROM ready), ARRAY(SELECT priority::int FROM ready), ARRAY(SELECT late FROM ready);

-- name: suspect_streams
-- The keys whose first job was in two processes that died.
-- $1 queue, $2 limit
SELECT j.partition_key
FROM holdfast.work j
WHERE j.queue = $1 AND j.suspect > 0 AND j.status = 'pending' AND j.available_at <= holdfast.now()
  AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
  AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
  AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = j.partition_key)
  AND ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
       OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = j.partition_key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL)
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
-- Put held jobs back to waiting, in their place, as far as they are due and nobody holds them; returns their keys.
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
