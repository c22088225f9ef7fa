-- part: limit_state
-- A queue, what runs of it and what its rate has left. The claims list no fewer jobs than run, so that their number is enough where it leaves
-- places for $2; else each job is looked up. A quarantined job is left out: its owner may be gone for good.
-- Tokens that are owed were given out at the rate of then. No more of them count than the rate of now brings in $3 seconds: a rate that was
-- lowered would stand still for as long as it needs to bring what the quicker one brought in a moment. At a rate that stays, none is forgiven.
-- $1 queue, $2 places that are enough (NULL: count what runs), $3 seconds for which jobs are claimed before their tokens are there
WITH q AS MATERIALIZED (
    SELECT * FROM holdfast.queues WHERE name = $1
), listed AS MATERIALIZED (
    SELECT c.worker, c.token, c.job_ids, cardinality(c.job_ids) AS jobs FROM holdfast.claims c WHERE c.queue = $1
), running AS MATERIALIZED (
    SELECT w.partition_key AS key
    FROM listed c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.partition_key FROM holdfast.work w
                        WHERE w.queue = $1 AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    WHERE EXISTS (SELECT FROM q WHERE q.key_concurrency IS NOT NULL
                  OR coalesce(q.concurrency - (SELECT sum(l.jobs) FROM listed l) < $2::int, q.concurrency IS NOT NULL))
      AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
), counted AS MATERIALIZED (
    SELECT CASE WHEN q.key_concurrency IS NULL AND q.concurrency - l.jobs >= $2::int THEN l.jobs
                ELSE (SELECT count(*) FROM running) END AS jobs, l.workers
    FROM q CROSS JOIN (SELECT coalesce(sum(l.jobs), 0) AS jobs, count(DISTINCT l.worker) AS workers FROM listed l) l
), tokens AS MATERIALIZED (
    SELECT least(q.burst, CASE WHEN l.refilled_at = '-infinity' THEN q.burst
                               ELSE greatest(l.tokens, -q.rate * $3::float8)
                                    + q.rate * greatest(extract(epoch FROM holdfast.now() - l.refilled_at)::float8, 0) END) AS left,
           q.rate IS NOT NULL AND l.refilled_at > holdfast.now() AS ahead
    FROM q CROSS JOIN LATERAL (SELECT l.tokens, l.refilled_at FROM holdfast.limits l WHERE l.queue = $1 ORDER BY l.number DESC LIMIT 1) l
)

-- part: key_bucket
-- The tokens of the key k.key of the queue q, as the last claim left them. Workers of the release before count in key_limits: then the
-- later of the two counts. $1 queue
    LEFT JOIN LATERAL (
        SELECT b.tokens, b.refilled_at
        FROM ((SELECT t.tokens, t.refilled_at FROM holdfast.key_tokens t WHERE t.queue = $1 AND t.partition_key = k.key ORDER BY t.number DESC LIMIT 1)
              UNION ALL
              SELECT o.tokens, o.refilled_at FROM holdfast.key_limits o WHERE o.queue = $1 AND o.partition_key = k.key) b
        WHERE q.key_rate IS NOT NULL
        ORDER BY b.refilled_at DESC, b.tokens LIMIT 1) l ON true

-- name: lock_limit
-- Hold the limits of a queue until the commit. No row: another worker claims at this moment, or did a moment ago.
-- The newest row is searched by itself: a scan that skips it when it is locked would continue through all earlier ones.
-- A session that is stopped while it holds them (a frozen process, a lost machine) loses them after two seconds: nobody else claims meanwhile.
-- $1 queue
SELECT queue, set_config('idle_in_transaction_session_timeout', CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
                             BETWEEN interval '1 millisecond' AND interval '2 seconds' THEN current_setting('idle_in_transaction_session_timeout') ELSE '2s' END, true)
FROM holdfast.limits
WHERE queue = $1 AND number = (SELECT l.number FROM holdfast.limits l WHERE l.queue = $1 ORDER BY l.number DESC LIMIT 1)
FOR UPDATE SKIP LOCKED;

-- name: allowance
-- How many jobs of a queue may be claimed now, and of each of these keys as well: what has a place, and a token that is there within $5 seconds.
-- Then in how many seconds a rate that allows none does, the same for each key; whether the clock was moved back since tokens were last counted;
-- how many of all this worker may take to wait for a slot: half of the places, with what it has no more than its part of them, and what the rate
-- brings in $5 seconds; and what the starts follow from: now, tokens and rate, tokens of each key and their rate.
-- Asked under lock_limit, in a statement of its own: what others claimed before is seen.
-- $1 queue, $2 places that are enough, $3 seconds for which anybody claims ahead, $4 keys, $5 seconds for which this claim does, $6 worker
-- with part: limit_state
, by_key AS MATERIALIZED (
    SELECT r.key, count(*) AS places FROM running r GROUP BY r.key
), keys AS MATERIALIZED (
    SELECT k.ord, coalesce(o.concurrency, q.key_concurrency) - coalesce(r.places, 0) AS places,
           CASE WHEN l.tokens IS NULL THEN q.key_burst
                ELSE least(q.key_burst, greatest(l.tokens, -q.key_rate * $3::float8)
                                        + q.key_rate * greatest(extract(epoch FROM holdfast.now() - l.refilled_at)::float8, 0)) END AS left,
           l.refilled_at > holdfast.now() AS ahead
    FROM q CROSS JOIN unnest($4::text[]) WITH ORDINALITY AS k(key, ord)
    LEFT JOIN by_key r ON r.key = k.key
-- with part: key_bucket
    LEFT JOIN LATERAL (SELECT o.concurrency FROM holdfast.key_rules o
                       WHERE q.key_concurrency IS NOT NULL AND o.queue = $1 AND o.partition_key = k.key OFFSET 0) o ON true
), whole AS MATERIALIZED (
    SELECT coalesce(q.concurrency - c.jobs, 1000000) AS places, t.left,
           coalesce(q.concurrency / greatest(c.workers + CASE WHEN m.jobs IS NULL THEN 1 ELSE 0 END, 1) - coalesce(m.jobs, 0), 1000000) AS part
    FROM q CROSS JOIN counted c CROSS JOIN tokens t CROSS JOIN (SELECT sum(l.jobs) AS jobs FROM listed l WHERE l.worker = $6) m
)
SELECT greatest(least(w.places, coalesce(floor(w.left + q.rate * $5::float8), 1000000)), 0)::int,
       ARRAY(SELECT greatest(least(coalesce(k.places, 1000000), coalesce(floor(k.left + q.key_rate * $5::float8), 1000000)), 0)::int FROM keys k ORDER BY k.ord),
       coalesce(greatest((1 - w.left) / q.rate - $5::float8 / 2, 0), 0)::float8,
       ARRAY(SELECT coalesce(greatest((1 - k.left) / q.key_rate - $5::float8 / 2, 0), 0)::float8 FROM keys k ORDER BY k.ord),
       (SELECT t.ahead FROM tokens t) OR coalesce((SELECT bool_or(k.ahead) FROM keys k), false),
       greatest(least(w.places / 2, w.part, floor(q.rate * $5::float8)), 0)::int,
       holdfast.now(), w.left, q.rate, ARRAY(SELECT k.left FROM keys k ORDER BY k.ord), q.key_rate
FROM q CROSS JOIN whole w;

-- name: trim_claims
-- Take jobs that are over out of these claims, and drop those that have no other: a limit counts the listed jobs first. The caller only
-- believes that they are over; the rows of the jobs decide.
-- A claim that is being renewed is left for another time: waiting here for several rows could end in a circle.
-- Tokens as arrays: a join may read the index from end to end, with all claims that are gone and that a long transaction keeps.
-- $1 tokens
WITH mine AS MATERIALIZED (
    SELECT c.token, c.queue, c.job_ids FROM holdfast.claims c WHERE c.token = ANY ($1::uuid[]) AND c.revoked_at IS NULL FOR UPDATE SKIP LOCKED
), still AS MATERIALIZED (
    SELECT m.token, ARRAY(SELECT j.id FROM unnest(m.job_ids) AS j(id)
                          CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                              WHERE w.queue = m.queue AND w.id = j.id AND w.claim_token = m.token AND w.status = 'processing' OFFSET 0) w) AS job_ids
    FROM mine m
), gone AS (
    DELETE FROM holdfast.claims c WHERE c.token = ANY (ARRAY(SELECT s.token FROM still s WHERE s.job_ids = '{}'))
)
UPDATE holdfast.claims c SET job_ids = (SELECT s.job_ids FROM still s WHERE s.token = c.token)
WHERE c.token = ANY (ARRAY(SELECT s.token FROM still s WHERE s.job_ids <> '{}'));

-- name: limit_use
-- How much of the limits of a queue is used: jobs that run, tokens left, in how many seconds the rate allows one, keys at their cap.
-- $1 queue, $2 NULL, $3 seconds for which jobs are claimed before their tokens are there
-- with part: limit_state
SELECT (SELECT c.jobs FROM counted c)::int, (SELECT t.left FROM tokens t)::float8,
       coalesce(greatest((1 - (SELECT t.left FROM tokens t)) / q.rate, 0), 0)::float8,
       (SELECT count(*) FROM (SELECT FROM running r GROUP BY r.key
                             HAVING count(*) >= coalesce((SELECT o.concurrency FROM holdfast.key_rules o WHERE o.queue = $1 AND o.partition_key = r.key), q.key_concurrency)) f)::int
FROM q;

-- name: lock_queue
-- Keep the rules of a queue as they are until the commit; was it made to be claimed key by key?
-- $1 queue
SELECT keyed FROM holdfast.queues WHERE name = $1 FOR NO KEY UPDATE;

-- name: mend_limits
-- The clock was moved back: tokens come again from now on, instead of when it has caught up. Under lock_limit.
-- $1 queue, $2 keys
WITH whole AS (
    UPDATE holdfast.limits SET refilled_at = holdfast.now()
    WHERE queue = $1 AND number = (SELECT l.number FROM holdfast.limits l WHERE l.queue = $1 ORDER BY l.number DESC LIMIT 1)
      AND refilled_at > holdfast.now()
), old AS (
    UPDATE holdfast.key_limits SET refilled_at = holdfast.now()
    WHERE queue = $1 AND partition_key = ANY ($2::text[]) AND refilled_at > holdfast.now()
)
UPDATE holdfast.key_tokens SET refilled_at = holdfast.now()
WHERE queue = $1 AND partition_key = ANY ($2::text[]) AND refilled_at > holdfast.now();

-- name: spend
-- Write down the tokens that are left once the jobs that were claimed have theirs, of the queue and of their keys. They may be fewer than none:
-- then the next start has to wait for that long too. Under lock_limit.
-- The tokens of a key are a row with the next number, as those of the queue. A key that was forgotten begins with the time as its number, so that
-- its earlier tokens are behind it in the index. Rows are named by their places: a plan that was made for few rows would read the whole table.
-- $1 queue, $2 tokens (NULL: it has no rate), $3 as of when, $4 keys, $5 tokens of each
WITH spent AS (
    DELETE FROM holdfast.limits
    WHERE queue = $1 AND number = (SELECT l.number FROM holdfast.limits l WHERE l.queue = $1 ORDER BY l.number DESC LIMIT 1)
      AND $2::float8 IS NOT NULL
    RETURNING number
), kept AS (
    INSERT INTO holdfast.limits (queue, tokens, refilled_at, number) SELECT $1, $2, $3, s.number + 1 FROM spent s
), keys AS MATERIALIZED (
    SELECT k.key, k.tokens, t.place, coalesce(t.number, 0) AS number
    FROM unnest($4::text[], $5::float8[]) AS k(key, tokens)
    LEFT JOIN LATERAL (SELECT t.ctid AS place, t.number FROM holdfast.key_tokens t WHERE t.queue = $1 AND t.partition_key = k.key ORDER BY t.number DESC LIMIT 1) t ON true
), gone AS (
    DELETE FROM holdfast.key_tokens WHERE ctid = ANY (ARRAY(SELECT k.place FROM keys k WHERE k.place IS NOT NULL))
), old AS (   -- where a worker of the release before counts, it has to see this too
    UPDATE holdfast.key_limits l SET tokens = k.tokens, refilled_at = $3
    FROM keys k
    WHERE l.partition_key = k.key AND l.ctid = ANY (ARRAY(
        SELECT o.place FROM keys k CROSS JOIN LATERAL (SELECT o.ctid AS place FROM holdfast.key_limits o WHERE o.queue = $1 AND o.partition_key = k.key OFFSET 0) o))
)
INSERT INTO holdfast.key_tokens (queue, partition_key, number, tokens, refilled_at)
SELECT $1, k.key, greatest(k.number + 1, (extract(epoch FROM $3::timestamptz) * 1000000)::bigint), k.tokens, $3 FROM keys k;

-- name: claim_shares
-- Take due jobs from these keys, at most that many of each, for a live worker.
-- $1 queue, $2 worker, $3 token, $4 lease seconds, $5 keys, $6 how many of each, $7 limit, $8 suspects instead of others?,
-- $9 limits that the claim is made within, $10 trials of held keys? They are locked, and one job of each is asked for.
--
-- Whether a key is held is asked only where the queue has a hold, and then by one probe for each key.
--
-- Compared as a row, here and below: with equalities a planner without statistics sorts a whole key to find its first job.
WITH c AS MATERIALIZED (
    SELECT w.id
    FROM (SELECT u.key, u.take, holdfast.bucket(u.key) AS bucket FROM unnest($5::text[], $6::int[]) AS u(key, take)
          WHERE ($10::boolean OR (SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
                 OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = u.key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL) OFFSET 0) k
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND (j.partition_bucket, j.partition_key, j.available_at) >= (k.bucket, k.key, '-infinity')
          AND (j.partition_bucket, j.partition_key, j.available_at) <= (k.bucket, k.key, holdfast.now())
          AND j.status = 'pending' AND (j.suspect > 0) = $8::boolean
          AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
          AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
        ORDER BY j.partition_bucket, j.partition_key, j.available_at, j.seq
        LIMIT k.take
        FOR NO KEY UPDATE SKIP LOCKED
    ) w
    WHERE EXISTS (SELECT FROM holdfast.workers WHERE id = $2 AND status = 'alive')
      AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND (paused_at IS NOT NULL OR limited > $9::int))
    LIMIT $7
)
-- with part: take
    WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM c))
-- with part: taken

-- name: scan_shares
-- Step from key to key through some buckets, from a place on, scanning a bounded number of keys: (keys read, bucket and key of the last one,
-- those that have a due job, its priority, and for how long it is due). As in scan_streams, one probe per key and per gap.
-- $1 queue, $2 buckets in ascending order (NULL: all), $3 and $4 after this bucket and key (NULL: from the start), $5 keys
WITH RECURSIVE step AS (
    (SELECT w.partition_bucket AS bucket, w.partition_key AS key
     FROM holdfast.work w
     WHERE w.queue = $1 AND w.hold_reason IS NULL AND (w.partition_bucket, w.partition_key, w.available_at)
           > (coalesce($3::int, 0), coalesce($4::text, ''), CASE WHEN $3::int IS NULL THEN '-infinity' ELSE 'infinity' END::timestamptz)
     ORDER BY w.partition_bucket, w.partition_key, w.available_at, w.seq LIMIT 1)
    UNION ALL
    SELECT n.*
    FROM (SELECT s.bucket, s.key, $2::int[] IS NULL OR ($2::int[])[width_bucket(s.bucket, $2::int[])] = s.bucket AS wanted FROM step s OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT w.partition_bucket, w.partition_key
        FROM holdfast.work w
        WHERE w.queue = $1 AND w.hold_reason IS NULL AND (w.partition_bucket, w.partition_key, w.available_at)
              > (CASE WHEN s.wanted THEN s.bucket ELSE ($2::int[])[width_bucket(s.bucket, $2::int[]) + 1] END,
                 CASE WHEN s.wanted THEN s.key ELSE '' END, CASE WHEN s.wanted THEN 'infinity' ELSE '-infinity' END::timestamptz)
        ORDER BY w.partition_bucket, w.partition_key, w.available_at, w.seq LIMIT 1
    ) n
), steps AS MATERIALIZED (
    SELECT s.* FROM step s WHERE $2::int[] IS NULL OR ($2::int[])[width_bucket(s.bucket, $2::int[])] = s.bucket LIMIT $5
), ready AS MATERIALIZED (
    SELECT s.key, h.priority, h.late
    FROM steps s
    CROSS JOIN LATERAL (
        SELECT w.priority, extract(epoch FROM holdfast.now() - w.available_at)::float8 AS late
        FROM holdfast.work w
        WHERE w.queue = $1 AND w.hold_reason IS NULL AND (w.partition_bucket, w.partition_key, w.available_at) >= (s.bucket, s.key, '-infinity')
          AND (w.partition_bucket, w.partition_key, w.available_at) <= (s.bucket, s.key, holdfast.now()) AND w.status = 'pending' AND w.suspect = 0
          AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
          AND w.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
        ORDER BY w.partition_bucket, w.partition_key, w.available_at, w.seq LIMIT 1
    ) h
    WHERE ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds k WHERE k.queue = $1))
           OR (SELECT true FROM holdfast.key_holds k WHERE k.queue = $1 AND k.partition_key = s.key AND (k.trial OR k.until > holdfast.now()) LIMIT 1) IS NULL)
    ORDER BY h.late DESC
), last AS MATERIALIZED (
    SELECT s.bucket, s.key FROM steps s ORDER BY s.bucket DESC, s.key DESC LIMIT 1
)
SELECT (SELECT count(*) FROM steps), (SELECT bucket FROM last), (SELECT key FROM last),
       ARRAY(SELECT key FROM ready), ARRAY(SELECT priority::int FROM ready), ARRAY(SELECT late FROM ready);

-- name: suspect_shares
-- The keys of jobs that were in two processes that died, each key as often as it has such jobs.
-- $1 queue, $2 limit
SELECT j.partition_key
FROM holdfast.work j
WHERE j.queue = $1 AND j.suspect > 0 AND j.status = 'pending' AND j.available_at <= holdfast.now()
  AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
  AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
  AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
  AND ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
       OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = j.partition_key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL)
ORDER BY j.available_at, j.seq
LIMIT $2;

-- name: share_head
-- The first job of a key that a claim would take.
-- $1 queue, $2 key, $3 suspects instead of others?
SELECT h.id
FROM (SELECT holdfast.bucket($2) AS bucket, $2::text AS key OFFSET 0) k
CROSS JOIN LATERAL (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = $1 AND w.hold_reason IS NULL AND (w.partition_bucket, w.partition_key, w.available_at) >= (k.bucket, k.key, '-infinity')
      AND (w.partition_bucket, w.partition_key, w.available_at) <= (k.bucket, k.key, holdfast.now()) AND w.status = 'pending'
      AND (w.suspect > 0) = $3::boolean AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
      AND w.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
    ORDER BY w.partition_bucket, w.partition_key, w.available_at, w.seq LIMIT 1
) h;

-- name: oldest_of_each
-- Of each priority: for how many seconds the first due job that nobody has waits.
-- $1 queue, $2 priorities, $3 their marks (NULL: from the start)
SELECT p.priority, j.waited
FROM unnest($2::int[], $3::timestamptz[]) AS p(priority, mark)
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM holdfast.now() - w.available_at)::float8 AS waited FROM holdfast.work w
    WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority = p.priority AND w.available_at >= coalesce(p.mark, '-infinity')
      AND w.available_at <= holdfast.now() AND w.status = 'pending' AND w.suspect = 0
      AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
      AND w.task <> ALL (ARRAY(SELECT t.task FROM holdfast.paused_tasks t))
    ORDER BY w.available_at, w.seq LIMIT 1
) j;

-- part: full_again
-- Of the bucket o: it is long full again, or nobody counts it any more.
          o.refilled_at < holdfast.now() - interval '1 minute'
          AND NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = o.queue AND q.key_rate IS NOT NULL
                          AND o.tokens + q.key_rate * extract(epoch FROM holdfast.now() - o.refilled_at)::float8 < q.key_burst)

-- name: prune_key_limits
-- Forget keys whose bucket is long full again. What workers of the release before counted goes with the last of them, where the tokens are newer.
-- $1 limit
WITH gone AS (
    DELETE FROM holdfast.key_tokens t
    WHERE (t.queue, t.partition_key, t.number) IN (
        SELECT o.queue, o.partition_key, o.number FROM holdfast.key_tokens o
        WHERE
-- with part: full_again
        ORDER BY o.refilled_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING 1
), old AS (
    DELETE FROM holdfast.key_limits l
    WHERE (l.queue, l.partition_key) IN (
        SELECT o.queue, o.partition_key FROM holdfast.key_limits o
        WHERE (
-- with part: full_again
          ) OR (EXISTS (SELECT FROM holdfast.key_tokens t WHERE t.queue = o.queue AND t.partition_key = o.partition_key AND t.refilled_at >= o.refilled_at)
                AND (SELECT NOT EXISTS (SELECT FROM holdfast.workers w WHERE w.status <> 'gone' AND w.signatures IS NULL)))
        ORDER BY o.refilled_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM old);

-- name: set_key_rules
-- Let that many jobs of each of these keys run at once (NULL: as many as of any other). Returns how many keys changed.
-- $1 queue, $2 keys, $3 concurrency
WITH gone AS (
    DELETE FROM holdfast.key_rules k WHERE $3::int IS NULL AND k.queue = $1 AND k.partition_key = ANY ($2::text[]) RETURNING 1
), made AS (
    INSERT INTO holdfast.key_rules AS k (queue, partition_key, concurrency)
    SELECT $1, u.key, $3::int FROM unnest($2::text[]) AS u(key) WHERE $3::int IS NOT NULL ORDER BY u.key
    ON CONFLICT (queue, partition_key) DO UPDATE SET concurrency = EXCLUDED.concurrency
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM made);

-- name: list_key_rules
-- Keys with a number of their own, in their order: (queue, key, jobs that run at once).
-- $1 queue (NULL: all), $2 keys (NULL: all), $3 limit
SELECT k.queue, k.partition_key, k.concurrency
FROM holdfast.key_rules k
WHERE ($1::text IS NULL OR k.queue = $1) AND ($2::text[] IS NULL OR k.partition_key = ANY ($2::text[]))
ORDER BY k.queue, k.partition_key LIMIT $3;
