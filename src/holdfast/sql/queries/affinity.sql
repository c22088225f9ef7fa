-- part: of_priority
-- The due jobs of one priority from its mark on, in claim order. $1 queue, $13 seconds for which they have to be due
            FROM holdfast.work j
            WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority
              AND (j.available_at, j.seq) >= (coalesce(p.mark, '-infinity'), p.mark_seq)
              AND j.available_at <= least(holdfast.now() - make_interval(secs => $13::float8), p.until)
              AND j.status = 'pending' AND j.suspect = 0
              AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
              AND j.task <> ALL (ARRAY(SELECT t.task FROM holdfast.paused_tasks t))
            ORDER BY j.available_at, j.seq

-- name: claim_mine
-- Take the first due jobs of some buckets of a queue for a live worker, each priority from its mark. Those of other buckets are passed: a
-- bounded number of rows in each priority.
-- $1 queue, $2 worker, $3 token, $4 lease seconds, $5 limit, $6 priorities from high to low, $7 their marks: due at (NULL: from the start), $8 limits
-- that the claim is made within, $9 and of the marks the seq, $10 bytes of payload that are enough, $11 a bit for each bucket (NULL: all of them),
-- $12 rows to pass in each priority, $13 seconds for which a job has to be due, $14 due until then at the latest, of each priority (NULL: whenever),
-- $15 every job without a key too?
-- A bucket of 0 may be one that nobody filled in, as receivers and the release before do: then it is computed.
--
-- The last column is NULL if $5 were found, and else says: the moment, how many were found, and after a semicolon where the bound was in the priorities
-- that reached it, 'priority microseconds seq', comma between. Times are microseconds since 1970. Where nothing was taken one row comes, with that alone.
-- Rows are identified by their places, as in `claim`. Rows that another session has locked, or changed since our snapshot, are left out: `c` counts
-- them, so that the claimer knows.
-- A job of another bucket that is passed costs 0.55 us of the server, one that is claimed 7 (18.6, on a busy machine).
WITH c AS MATERIALIZED (
    SELECT s.place
    FROM unnest($6::int[], $7::timestamptz[], $9::bigint[], $14::timestamptz[]) AS p(priority, mark, mark_seq, until)
    CROSS JOIN LATERAL (
        SELECT n.place FROM (
            SELECT j.ctid AS place,
                   $11::bytea IS NULL OR ($15::boolean AND j.partition_key IS NULL)
                   OR get_bit($11::bytea, CASE WHEN j.partition_key IS NULL THEN (j.seq & 1023)::int WHEN j.partition_bucket = 0 THEN holdfast.bucket(j.partition_key)
                                                 ELSE j.partition_bucket END) = 1 AS mine
-- with part: of_priority
            LIMIT $12
        ) n
        WHERE n.mine
    ) s
    WHERE EXISTS (SELECT FROM holdfast.workers WHERE id = $2 AND status = 'alive')
      AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND (paused_at IS NOT NULL OR limited > $8::int))
    LIMIT $5
), free AS MATERIALIZED (
    SELECT j.ctid AS place, j.priority, j.available_at, j.seq,
-- with part: bytes
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.ctid = ANY (ARRAY(SELECT c.place FROM c)) AND j.status = 'pending'
    FOR NO KEY UPDATE SKIP LOCKED
)
-- with part: take
    WHERE queue = $1 AND ctid = ANY (CASE
        WHEN NOT EXISTS (SELECT FROM free f WHERE f.bytes IS NOT NULL) THEN ARRAY(SELECT f.place FROM free f)
        ELSE ARRAY(SELECT f.place
                   FROM (SELECT l.place, sum(l.bytes) OVER (ORDER BY l.priority DESC, l.available_at, l.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                         FROM free l) f
                   WHERE coalesce(f.before, 0) < $10::bigint) END)
-- with part: written
       , (SELECT (date_part('epoch', holdfast.now()) * 1000000)::bigint || ' ' || f.found || ';' || coalesce(b.bounds, '')
          FROM (SELECT count(*) AS found FROM c) f
          CROSS JOIN LATERAL (
            SELECT string_agg(p.priority || ' ' || (date_part('epoch', greatest(e.available_at, 'epoch')) * 1000000)::bigint || ' ' || e.seq, ',') AS bounds
            FROM unnest($6::int[], $7::timestamptz[], $9::bigint[], $14::timestamptz[]) AS p(priority, mark, mark_seq, until)
            CROSS JOIN LATERAL (
            SELECT j.available_at, j.seq
-- with part: of_priority
            OFFSET $12 - 1 LIMIT 1
            ) e
            WHERE f.found < $5
          ) b
          WHERE f.found < $5)
FROM (VALUES (1)) AS one(row) LEFT JOIN taken ON true
ORDER BY priority DESC, available_at, seq;
