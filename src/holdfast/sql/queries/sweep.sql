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
-- its process turns out to be there after all, it goes on leaving.
-- Nobody who is not alive sleeps.
-- $1 seconds
WITH fenced AS (
    UPDATE holdfast.workers w SET status = 'gone', ended = CASE w.status WHEN 'draining' THEN 'left' ELSE 'lost' END
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
-- `unsettled` counts what a dead process left behind over all its claims: if it is one, that job was alone.
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
), left_behind AS MATERIALIZED (
    SELECT v.id AS worker,
           (SELECT count(*)::int FROM holdfast.claims k CROSS JOIN LATERAL unnest(k.job_ids) AS j(id)
            CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                WHERE w.queue = k.queue AND w.id = j.id AND w.claim_token = k.token AND w.status = 'processing' OFFSET 0) w
            WHERE k.worker = v.id) AS unsettled
    FROM holdfast.workers v WHERE v.status = 'gone' AND v.id IN (SELECT worker FROM c)
)
UPDATE holdfast.claims k
SET revoked_at = holdfast.now(), unsettled = (SELECT l.unsettled FROM left_behind l WHERE l.worker = k.worker)
WHERE k.token = ANY (ARRAY(SELECT token FROM c))
RETURNING k.token;

-- name: disown
-- Revoke claims of one's own: their answer never arrived, so nobody runs their jobs.
-- $1 worker, $2 tokens
UPDATE holdfast.claims SET revoked_at = holdfast.now() WHERE worker = $1 AND token = ANY ($2::uuid[]) AND revoked_at IS NULL RETURNING token;

-- name: disowned_claim
-- A claim that was disowned and that no sweep has looked at yet.
-- $1 token
SELECT token, queue, worker, unsettled, job_ids FROM holdfast.claims WHERE token = $1 AND revoked_at IS NOT NULL;

-- name: revoked_claims
-- Revoked claims whose jobs are still to be taken back.
-- $1 limit
SELECT token, queue, worker, unsettled, job_ids FROM holdfast.claims WHERE revoked_at IS NOT NULL ORDER BY revoked_at, token LIMIT $1;

-- name: sweep_take
-- Take back jobs of a revoked claim. No attempt is spent. Jobs of a dead process become suspects, to be run in halving batches; one that
-- was alone in it too often is a dead letter.
-- $1 queue, $2 token, $3 ids, $4 unsettled (NULL: its process did not die), $5 most crashes
WITH rule AS MATERIALIZED (
    SELECT on_dead_letter FROM holdfast.queues WHERE name = $1
), ok AS MATERIALIZED (
    SELECT w.id, coalesce($4::int = 1 AND w.crashes::bigint + 1 >= $5::int, false) AS crasher,
           coalesce($4::int = 1 AND w.crashes::bigint + 1 >= $5::int AND (SELECT on_dead_letter FROM rule) = 'block', false) AS blocks
    FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = ANY ($3::uuid[]) AND w.claim_token = $2 AND w.status = 'processing'
      AND w.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
    ORDER BY w.id
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM ok WHERE crasher AND NOT blocks))
    RETURNING *
), parked AS (
    INSERT INTO holdfast.parked_keys (queue, partition_key, job_id, parked_at)
    SELECT $1, g.partition_key, g.id, holdfast.now() FROM gone g WHERE (SELECT on_dead_letter FROM rule) = 'park'
    ON CONFLICT DO NOTHING
), owner AS MATERIALIZED (
    SELECT worker FROM holdfast.claims WHERE token = $2
), logged AS (
    INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)
    SELECT w.id, $1, least(w.attempts::bigint + 1, 2147483647)::int, w.lease_generation, holdfast.now(), (SELECT worker FROM owner), 'ProcessDied',
           'the worker process died while it ran this job alone', ''
    FROM holdfast.work w WHERE $4::int = 1 AND w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok))
), dead AS (
    INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts, max_attempts,
                                       version, crashes, priority, queue, task, partition_key, payload, claimed_by, last_error, tags, metadata,
                                       parent_id, group_id, follow_ups)
    SELECT g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at, g.claimed_at, holdfast.now(), g.attempts, g.max_attempts,
           g.version, g.crashes + 1, g.priority, g.queue, g.task, g.partition_key, g.payload, (SELECT worker FROM owner),
           format('ProcessDied: the worker process died %s times while it ran this job alone', g.crashes + 1), g.tags, g.metadata,
           g.parent_id, g.group_id, g.follow_ups
    FROM gone g
    RETURNING id, group_id
), back AS (
    UPDATE holdfast.work w
    SET status = CASE WHEN w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks)) THEN 'blocked' ELSE 'pending' END,
        hold_reason = CASE WHEN w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks)) THEN 'a dead letter that its key waits for' END,
        last_error = CASE WHEN w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks))
                          THEN format('ProcessDied: the worker process died %s times while it ran this job alone', w.crashes + 1) ELSE w.last_error END,
        claim_token = '00000000-0000-0000-0000-000000000000',
        suspect = CASE WHEN $4::int IS NULL THEN w.suspect ELSE greatest(1, least(nullif(w.suspect, 0), $4::int) / 2) END,
        crashes = w.crashes + CASE WHEN $4::int = 1 THEN 1 ELSE 0 END
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks OR NOT crasher))
    RETURNING w.id, w.status
)
SELECT id, 'dead_letter', group_id FROM dead UNION ALL SELECT id, status, NULL FROM back;

-- name: sweep_finish
-- Drop a revoked claim row once no processing job refers to it. A job that was locked a moment ago keeps it for the next sweep;
-- a quarantined one is found in the quarantine.
-- $1 token
DELETE FROM holdfast.claims c
WHERE c.token = $1 AND c.revoked_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM unnest(c.job_ids) AS j(id)
                  CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                      WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
                  WHERE j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q)))
RETURNING token;
