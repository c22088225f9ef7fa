-- name: hold_keys
-- Hold keys of a queue, or renew their holds; returns those that are held so from now on. The trial of a hold that
-- is renewed stays known: the next one waits until it is over.
-- $1 queue, $2 keys, $3 seconds (NULL: until they are lifted), $4 reason, $5 one trial first?, $6 leave holds that last longer?
INSERT INTO holdfast.key_holds AS h (queue, partition_key, until, trial, held_at, reason)
SELECT q.name, u.key, coalesce(holdfast.now() + make_interval(secs => $3::float8), 'infinity'), $5::boolean, holdfast.now(), $4::text
FROM holdfast.queues q CROSS JOIN (SELECT DISTINCT d.key FROM unnest($2::text[]) AS d(key)) u
WHERE q.name = $1
ORDER BY u.key
ON CONFLICT (queue, partition_key) DO UPDATE
SET until = EXCLUDED.until, trial = EXCLUDED.trial, held_at = EXCLUDED.held_at, reason = EXCLUDED.reason, decided = true
WHERE NOT $6::boolean OR EXCLUDED.until > h.until
RETURNING h.partition_key;

-- name: lift_keys
-- Let keys be claimed again; returns those that were held. With a claim: only holds whose trial was claimed by it, and that nobody renewed since.
-- $1 queue, $2 keys, $3 token of the claim (NULL: whatever holds them)
WITH found AS MATERIALIZED (
    SELECT h.partition_key FROM holdfast.key_holds h
    WHERE h.queue = $1 AND h.partition_key = ANY ($2::text[]) AND ($3::uuid IS NULL OR (h.trial_token = $3::uuid AND NOT h.decided))
    ORDER BY h.partition_key FOR UPDATE
)
DELETE FROM holdfast.key_holds h
WHERE h.queue = $1 AND h.partition_key IN (SELECT f.partition_key FROM found f)
RETURNING h.partition_key;

-- name: list_holds
-- The holds of keys, those that end first before the others: (queue, key, until, since, reason, trial?, the job that was claimed as its trial,
-- how that one stands: running, returned, over, or NULL, and jobs of the key up to the cap; of a fair queue without those set aside).
-- $1 queue (NULL: all), $2 key (NULL: all), $3 limit, $4 cap, $5 also those that are over?
SELECT h.queue, h.partition_key, least(h.until, '9999-01-01'), h.held_at, h.reason, h.trial, h.trial_id,
       CASE WHEN h.trial_token IS NULL OR h.decided THEN NULL
            WHEN w.id IS NULL THEN 'over'
            WHEN w.status = 'processing' AND w.claim_token = h.trial_token THEN 'running'
            WHEN w.claim_token <> h.trial_token OR w.available_at <= w.claimed_at THEN 'returned'
            ELSE 'over' END,
       CASE WHEN q.ordering = 'key'
            THEN (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = h.queue AND b.partition_bucket = holdfast.bucket(h.partition_key)
                                          AND b.partition_key = h.partition_key LIMIT $4) b)
            ELSE (SELECT count(*) FROM (SELECT FROM holdfast.work b WHERE b.queue = h.queue AND b.partition_bucket = holdfast.bucket(h.partition_key)
                                          AND b.partition_key = h.partition_key AND b.hold_reason IS NULL LIMIT $4) b) END
FROM (SELECT k.* FROM holdfast.key_holds k
      WHERE ($1::text IS NULL OR k.queue = $1) AND ($2::text IS NULL OR k.partition_key = $2) AND ($5::boolean OR k.trial OR k.until > holdfast.now())
      ORDER BY k.until, k.queue, k.partition_key LIMIT $3) h
JOIN holdfast.queues q ON q.name = h.queue
LEFT JOIN LATERAL (SELECT j.id, j.status, j.claim_token, j.available_at, j.claimed_at FROM holdfast.work j
                   WHERE j.queue = h.queue AND j.id = h.trial_id OFFSET 0) w ON true
ORDER BY h.until, h.queue, h.partition_key;

-- name: hold_news
-- A claiming worker's questions about the holds of its queue: (now, whether there are any, in how many seconds the next one ends, whether
-- a trial may be due, keys whose hold ended since a moment).
-- $1 queue, $2 since (NULL: now), $3 most keys
SELECT holdfast.now(), EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1),
       (SELECT extract(epoch FROM h.until - holdfast.now())::float8 FROM holdfast.key_holds h
        WHERE h.queue = $1 AND h.until > holdfast.now() AND h.until < holdfast.now() + interval '1 day' ORDER BY h.until LIMIT 1),
       EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1 AND h.trial AND h.until <= holdfast.now()),
       ARRAY(SELECT h.partition_key FROM holdfast.key_holds h
             WHERE h.queue = $1 AND h.until > coalesce($2::timestamptz, holdfast.now()) AND h.until <= holdfast.now() AND NOT h.trial
             ORDER BY h.until LIMIT $3);

-- name: due_trials
-- Holds that have come to their end and wait for a trial, from a place on: (until, key, token of the trial before, whether one may be
-- claimed: there is a job for it, and no trial runs or waits for a decision).
-- $1 queue, $2 after this end, $3 and key, $4 limit, $5 ordered?, $6 suspects instead of others?
--
-- A trial whose job came back without having ended is given again: its worker died, or it was handed back before it ran. Its claim is no
-- longer on the job then, or the job is due as it was when it was claimed; a failure or a snooze makes it due later.
SELECT h.until, h.partition_key, h.trial_token,
       CASE WHEN h.trial_token IS NULL THEN true
            WHEN h.decided THEN NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = $1 AND w.id = h.trial_id AND w.claim_token = h.trial_token
                                              AND w.status = 'processing')
            ELSE EXISTS (SELECT FROM holdfast.work w WHERE w.queue = $1 AND w.id = h.trial_id
                           AND (w.claim_token <> h.trial_token OR (w.status <> 'processing' AND w.available_at <= w.claimed_at))) END
       AND CASE WHEN $5::boolean
                THEN coalesce((SELECT f.status = 'pending' AND f.available_at <= holdfast.now() AND (f.suspect > 0) = $6::boolean
                               FROM (SELECT w.status, w.available_at, w.suspect FROM holdfast.work w
                                     WHERE w.queue = $1 AND w.partition_bucket = holdfast.bucket(h.partition_key) AND w.partition_key = h.partition_key
                                     ORDER BY w.seq LIMIT 1) f), false)
                ELSE EXISTS (SELECT FROM holdfast.work w
                             WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.partition_bucket = holdfast.bucket(h.partition_key)
                               AND w.partition_key = h.partition_key AND w.available_at <= holdfast.now() AND w.status = 'pending'
                               AND (w.suspect > 0) = $6::boolean) END
FROM (SELECT k.* FROM holdfast.key_holds k
      WHERE k.queue = $1 AND k.trial AND k.until <= holdfast.now() AND (k.until, k.partition_key) > (coalesce($2::timestamptz, '-infinity'), coalesce($3::text, ''))
      ORDER BY k.until, k.partition_key LIMIT $4) h
ORDER BY h.until, h.partition_key;

-- name: lock_trials
-- Hold these holds until the commit, if nobody claimed a trial since they were read, and nobody renewed them; returns their keys.
-- $1 queue, $2 keys, $3 the tokens that were seen
--
-- Only the row of the hold is asked: what is read of other rows here may be older than the lock.
SELECT h.partition_key
FROM holdfast.key_holds h JOIN unnest($2::text[], $3::uuid[]) AS u(key, token) ON u.key = h.partition_key
WHERE h.queue = $1 AND h.trial AND h.until <= holdfast.now() AND h.trial_token IS NOT DISTINCT FROM u.token
ORDER BY h.partition_key
FOR UPDATE OF h SKIP LOCKED;

-- name: mark_trials
-- These jobs are the trials of their keys. Under lock_trials.
-- $1 queue, $2 keys, $3 jobs, $4 token
UPDATE holdfast.key_holds h SET trial_id = u.job, trial_token = $4, decided = false
FROM unnest($2::text[], $3::uuid[]) AS u(key, job) WHERE h.queue = $1 AND h.partition_key = u.key;

-- name: explain_hold
-- The hold on the key of a live job: (key, until, since, reason, whether it is over, trial?, its trial, how that one stands as in list_holds).
-- $1 queue, $2 id
SELECT h.partition_key, least(h.until, '9999-01-01'), h.held_at, h.reason, h.until <= holdfast.now(), h.trial, h.trial_id,
       CASE WHEN h.trial_token IS NULL OR h.decided THEN NULL
            WHEN t.id IS NULL THEN 'over'
            WHEN t.status = 'processing' AND t.claim_token = h.trial_token THEN 'running'
            WHEN t.claim_token <> h.trial_token OR t.available_at <= t.claimed_at THEN 'returned'
            ELSE 'over' END
FROM (SELECT j.partition_key FROM holdfast.work j WHERE j.queue = $1 AND j.id = $2 OFFSET 0) w
JOIN holdfast.key_holds h ON h.queue = $1 AND h.partition_key = w.partition_key AND (h.trial OR h.until > holdfast.now())
LEFT JOIN LATERAL (SELECT j.id, j.status, j.claim_token, j.available_at, j.claimed_at FROM holdfast.work j
                   WHERE j.queue = $1 AND j.id = h.trial_id OFFSET 0) t ON true;

-- name: prune_holds
-- Forget holds that ended a while ago. One that waits for its trial stays.
-- $1 limit
WITH gone AS (
    DELETE FROM holdfast.key_holds h
    WHERE (h.queue, h.partition_key) IN (
        SELECT o.queue, o.partition_key FROM holdfast.key_holds o
        WHERE NOT o.trial AND o.until < holdfast.now() - interval '5 minutes' ORDER BY o.until LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: holds_keys
-- Whether a queue is made to be claimed key by key, whatever its limits are: a row, or none.
-- $1 queue
SELECT true FROM holdfast.queues WHERE name = $1 AND (fair OR ordering = 'key');

-- name: undecided_trials
-- Holds whose trial has ended, and that nobody lifted or renewed: (queue, key, end of the hold, reason, the job that was tried). The owner of the
-- key decides when the trial ends, so those whose hold ended a moment ago are left out.
-- $1 limit
SELECT h.queue, h.partition_key, h.until, h.reason, h.trial_id
FROM holdfast.key_holds h
LEFT JOIN LATERAL (SELECT j.id, j.status, j.claim_token, j.available_at, j.claimed_at FROM holdfast.work j
                   WHERE j.queue = h.queue AND j.id = h.trial_id OFFSET 0) w ON true
WHERE h.trial AND NOT h.decided AND h.trial_token IS NOT NULL AND h.until < holdfast.now() - interval '5 minutes'
  AND (w.id IS NULL OR (w.status <> 'processing' AND w.claim_token = h.trial_token AND w.available_at > w.claimed_at))
ORDER BY h.until, h.queue, h.partition_key
LIMIT $1;
