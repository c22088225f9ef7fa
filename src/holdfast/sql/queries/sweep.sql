-- name: sweep_begin
-- Whose turn it is to sweep, decided by the clock in the row: at most one sweep per interval, no lock to be held by a stranger.
-- After a gap in sweeping (an outage), living owners get time to renew first.
-- $1 interval, $2 gap, $3 grace, all in seconds. Answers: may sweep now? NULL: somebody holds the row, for so long that it cannot
-- be told from an outage, and the asker must count the grace itself.
WITH turn AS MATERIALIZED (
    SELECT only_row FROM holdfast.engine
    WHERE last_sweep_at <= holdfast.now() - make_interval(secs => $1::float8)
    FOR NO KEY UPDATE SKIP LOCKED
), begun AS (
    UPDATE holdfast.engine e
    SET last_sweep_at = holdfast.now(),
        grace_until = CASE WHEN e.last_sweep_at < holdfast.now() - make_interval(secs => $2::float8)
                           THEN holdfast.now() + make_interval(secs => $3::float8) ELSE e.grace_until END
    WHERE e.only_row = (SELECT only_row FROM turn)
    RETURNING e.grace_until <= holdfast.now() AS free
)
SELECT coalesce((SELECT free FROM begun),
                -- Somebody holds the row for long: sweeping is safe without it.
                (SELECT CASE WHEN e.last_sweep_at > holdfast.now() - make_interval(secs => 5 * $1::float8) OR e.grace_until > holdfast.now() THEN false
                             WHEN e.last_sweep_at > holdfast.now() - make_interval(secs => $2::float8) THEN true END FROM holdfast.engine e));

-- name: fence_workers
-- A worker not heard of for too long is gone, for good: an identity never comes back. One that was draining counts as having left: when
-- its process turns out to be alive, it continues to leave. `fenced_at` says that its jobs were lost to a silence.
-- A worker that is not alive does not sleep.
-- $1 seconds
WITH fenced AS (
    UPDATE holdfast.workers w
    SET status = 'gone', ended = CASE w.status WHEN 'draining' THEN 'left' ELSE 'lost' END, fenced_at = holdfast.now()
    WHERE w.id = ANY (ARRAY(SELECT v.id FROM holdfast.workers v
                            WHERE v.status <> 'gone' AND v.last_seen_at < holdfast.now() - make_interval(secs => $1::float8)
                            ORDER BY v.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING w.id
), woken AS (
    DELETE FROM holdfast.sleepers s
    WHERE s.worker IN (SELECT f.id FROM fenced f)
       OR NOT EXISTS (SELECT FROM holdfast.workers v WHERE v.id = s.worker AND v.status = 'alive')
)
SELECT id FROM fenced;

-- name: revoke_expired
-- Revoke claims whose lease ran out, and those of workers that are gone: from here on they cannot be renewed.
-- $1 limit
WITH due AS MATERIALIZED (
    SELECT c.token FROM holdfast.claims c WHERE c.lease_expires_at < holdfast.now() AND c.revoked_at IS NULL
    UNION
    SELECT c.token FROM holdfast.workers v JOIN holdfast.claims c ON c.worker = v.id WHERE v.status = 'gone' AND c.revoked_at IS NULL
), c AS MATERIALIZED (
    SELECT c.token, c.worker FROM holdfast.claims c
    WHERE c.token = ANY (ARRAY(SELECT token FROM due)) AND c.revoked_at IS NULL
      AND (c.lease_expires_at < holdfast.now() OR EXISTS (SELECT FROM holdfast.workers v WHERE v.id = c.worker AND v.status = 'gone'))
    ORDER BY c.worker, c.token LIMIT $1
    FOR NO KEY UPDATE OF c SKIP LOCKED
)
UPDATE holdfast.claims k SET revoked_at = holdfast.now()
WHERE k.token = ANY (ARRAY(SELECT token FROM c))
RETURNING k.token;

-- name: disown
-- Revoke claims of one's own: their answer never arrived, so nobody runs their jobs.
-- $1 worker, $2 tokens
UPDATE holdfast.claims SET revoked_at = holdfast.now() WHERE worker = $1 AND token = ANY ($2::uuid[]) AND revoked_at IS NULL RETURNING token;

-- name: disowned_claim
-- A claim that was disowned and that no sweep has handled yet.
-- $1 token
SELECT worker, queue, ARRAY[token], job_ids FROM holdfast.claims WHERE token = $1 AND revoked_at IS NOT NULL;

-- name: revoked_claims
-- Revoked claims by worker and queue, with those of their jobs that are still to be taken back.
-- $1 limit
WITH c AS MATERIALIZED (
    SELECT c.token, c.queue, c.worker, c.job_ids FROM holdfast.claims c WHERE c.revoked_at IS NOT NULL ORDER BY c.revoked_at, c.token LIMIT $1
), unsettled AS MATERIALIZED (
    SELECT c.worker, c.queue, w.id
    FROM c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.id FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
)
SELECT c.worker, c.queue, array_agg(c.token ORDER BY c.token),
       ARRAY(SELECT u.id FROM unsettled u WHERE u.worker = c.worker AND u.queue = c.queue ORDER BY u.id)
FROM c GROUP BY c.worker, c.queue ORDER BY c.worker, c.queue;

-- name: sweep_take
-- Take back jobs of revoked claims of one worker in one queue. No attempt is spent. When the worker fell silent, each job that it had counts
-- a death: after the first it runs again like any other, after the second it is a suspect, which runs apart. A suspect that was in more than
-- $5 deaths is a dead letter.
-- `silent` locks the worker: one that turns up alive (take_back_blame) comes either before, and nothing is counted, or after, and finds
-- in `blamed` what was. Nobody waits for that lock: in doubt nothing is counted. A claim that was revoked before the worker was fenced ran no job in the process that fell silent.
-- $1 queue, $2 tokens, $3 ids, $4 worker, $5 most crashes
WITH rule AS MATERIALIZED (
    SELECT on_dead_letter FROM holdfast.queues WHERE name = $1
), silent AS MATERIALIZED (
    SELECT v.id, v.fenced_at, CASE WHEN v.death IS NULL THEN 'WorkerSilent' ELSE 'ProcessDied' END AS kind,
           coalesce(v.death, 'the worker that had this job fell silent: its process died, stands still or cannot reach the database') AS said,
           CASE WHEN v.death IS NULL THEN 'fell silent' ELSE 'died: ' || v.death END AS last
    FROM holdfast.workers v WHERE v.id = $4 AND v.fenced_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED
), counted AS MATERIALIZED (
    SELECT c.token FROM holdfast.claims c JOIN silent s ON c.revoked_at >= s.fenced_at WHERE c.token = ANY ($2::uuid[])
), expired AS MATERIALIZED (   -- its worker was heard of, and did not renew it; of what it disowned nobody ran anything
    SELECT c.token, c.lease_expires_at FROM holdfast.claims c
    WHERE c.token = ANY ($2::uuid[]) AND c.lease_expires_at < c.revoked_at AND c.token NOT IN (SELECT k.token FROM counted k)
), locked AS MATERIALIZED (
    SELECT w.id, w.claim_token = ANY (ARRAY(SELECT token FROM counted)) AS counts, w.suspect > 0 AND w.crashes >= $5::int AS spent
    FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = ANY ($3::uuid[]) AND w.claim_token = ANY ($2::uuid[]) AND w.status = 'processing'
      AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
    ORDER BY w.id
    FOR UPDATE SKIP LOCKED
), ok AS MATERIALIZED (
    SELECT l.id, l.counts, l.counts AND l.spent AS crasher, l.counts AND l.spent AND (SELECT on_dead_letter FROM rule) = 'block' AS blocks FROM locked l
), blame AS (
    UPDATE holdfast.workers v SET blamed = coalesce(v.blamed, '{}') || ARRAY(SELECT id FROM ok WHERE counts)
    WHERE v.id IN (SELECT id FROM silent) AND EXISTS (SELECT FROM ok WHERE counts)
), gone AS (
    DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM ok WHERE crasher AND NOT blocks))
    RETURNING *
), parked AS (
    INSERT INTO holdfast.parked_keys (queue, partition_key, job_id, parked_at)
    SELECT $1, g.partition_key, g.id, holdfast.now() FROM gone g WHERE (SELECT on_dead_letter FROM rule) = 'park'
    ON CONFLICT DO NOTHING
), logged AS (
    INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)
    SELECT w.id, $1, least(w.attempts::bigint + 1, 2147483647)::int, w.lease_generation, holdfast.now(), $4, s.kind, s.said, ''
    FROM silent s CROSS JOIN holdfast.work w WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok WHERE counts))
    UNION ALL
    SELECT w.id, $1, least(w.attempts::bigint + 1, 2147483647)::int, w.lease_generation, holdfast.now(), $4, 'LeaseLost',
           format('the lease ran out at %s UTC and was not renewed: the worker that had this job is fenced from it',
                  to_char(x.lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')), ''
    FROM holdfast.work w JOIN expired x ON x.token = w.claim_token WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok))
), dead AS (
    INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts, max_attempts,
                                       version, crashes, priority, queue, task, partition_key, payload, claimed_by, last_error, tags, metadata,
                                       parent_id, group_id, follow_ups)
    SELECT g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at, g.claimed_at, holdfast.now(), g.attempts, g.max_attempts,
           g.version, least(g.crashes::bigint + 1, 2147483647)::int, g.priority, g.queue, g.task, g.partition_key, g.payload, $4,
           (SELECT format('%s: processes that had this job died or fell silent %s times; the last one %s', s.kind, g.crashes::bigint + 1, s.last)
            FROM silent s),
           g.tags, g.metadata, g.parent_id, g.group_id, g.follow_ups
    FROM gone g
    RETURNING id, group_id
), back AS (
    UPDATE holdfast.work w
    SET status = CASE WHEN w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks)) THEN 'blocked' ELSE 'pending' END,
        hold_reason = CASE WHEN w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks)) THEN 'a dead letter that its key waits for' END,
        last_error = CASE WHEN w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks))
                          THEN (SELECT format('%s: processes that had this job died or fell silent %s times; the last one %s', s.kind,
                                              w.crashes::bigint + 1, s.last) FROM silent s) ELSE w.last_error END,
        claim_token = '00000000-0000-0000-0000-000000000000',
        suspect = CASE WHEN w.crashes > 0 AND w.claim_token = ANY (ARRAY(SELECT token FROM counted)) THEN 1 ELSE w.suspect END,
        crashes = least(w.crashes::bigint + CASE WHEN w.claim_token = ANY (ARRAY(SELECT token FROM counted)) THEN 1 ELSE 0 END, 2147483647)::int
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks OR NOT crasher))
    RETURNING w.id, w.status
)
SELECT id, 'dead_letter', group_id FROM dead UNION ALL SELECT id, status, NULL FROM back;

-- name: sweep_finish
-- Drop revoked claim rows once no processing job refers to them. A job that was locked a moment ago keeps its row for the next sweep;
-- a quarantined one is found in the quarantine.
-- $1 tokens
DELETE FROM holdfast.claims c
WHERE c.token = ANY ($1::uuid[]) AND c.revoked_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM unnest(c.job_ids) AS j(id)
                  CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                      WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
                  WHERE j.id NOT IN (SELECT q.id FROM holdfast.quarantine q))
RETURNING token;

-- name: take_back_blame
-- A fenced worker is alive: its process was stopped, or was cut off. The deaths that were counted against its jobs were none.
-- Answers the jobs by queue, each with whether it is a dead letter of a silence, to be redriven.
-- $1 worker
WITH back AS MATERIALIZED (
    SELECT v.id, coalesce(v.blamed, '{}') AS blamed FROM holdfast.workers v WHERE v.id = $1 AND v.fenced_at IS NOT NULL FOR NO KEY UPDATE
), heard AS (
    UPDATE holdfast.workers v SET fenced_at = NULL, blamed = NULL WHERE v.id IN (SELECT id FROM back)
), corrected AS (
    UPDATE holdfast.errors e
    SET kind = 'WorkerFrozen', message = 'the worker that had this job was stopped or cut off, and came back: this counts no death'
    WHERE e.job_id = ANY ((SELECT blamed FROM back)::uuid[]) AND e.worker = $1 AND e.kind = 'WorkerSilent'
    RETURNING e.queue, e.job_id
), buried AS (
    UPDATE holdfast.dead_letters d SET crashes = greatest(d.crashes - 1, 0)
    WHERE d.id = ANY ((SELECT blamed FROM back)::uuid[]) RETURNING d.id, d.last_error LIKE 'WorkerSilent:%' AS by_silence
)
SELECT c.queue, c.job_id, c.job_id IN (SELECT b.id FROM buried b WHERE b.by_silence) FROM corrected c;

-- name: clear_blamed
-- The current owners of these jobs keep them: one death less, and no suspicion that rests on it. One that is blocked because of a silence waits again.
-- $1 queue, $2 ids
UPDATE holdfast.work w
SET crashes = greatest(w.crashes - 1, 0), suspect = CASE WHEN w.crashes <= 2 THEN 0 ELSE w.suspect END,
    status = CASE WHEN w.status = 'blocked' AND w.last_error LIKE 'WorkerSilent:%' THEN 'pending' ELSE w.status END,
    hold_reason = CASE WHEN w.status = 'blocked' AND w.last_error LIKE 'WorkerSilent:%' THEN NULL ELSE w.hold_reason END
WHERE w.queue = $1 AND w.id = ANY ($2::uuid[]);
