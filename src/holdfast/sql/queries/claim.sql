-- part: take
-- Mark rows as taken; which, says the line after this part. $1 queue, $3 token
--
-- The moment is asked for once: as a plain call it would be computed for every row.
, taken AS (
    UPDATE holdfast.work
    SET status = 'processing', hold_reason = NULL, claim_token = $3, claimed_at = (SELECT holdfast.now()), lease_generation = lease_generation + 1

-- part: taken
-- Write the claim that holds the lease of what was taken, and return what its owner needs.
-- with part: written
FROM taken
ORDER BY priority DESC, available_at, seq;

-- part: written
-- $1 queue, $2 worker, $3 token, $4 lease seconds
--
-- date_part(), not extract(), which computes with numeric: 0.4 us for every row.
    RETURNING id, lease_generation, seq, task, version, payload, partition_key, priority, attempts, max_attempts, crashes,
              available_at, metadata, cancel_requested_at, suspect, parent_id, group_id, follow_ups
), claim AS (
    INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
    SELECT $3, $1, $2, holdfast.now(),
           holdfast.now() + make_interval(secs => greatest((SELECT lease FROM holdfast.queues WHERE name = $1), $4::float8)), array_agg(id)
    FROM taken HAVING count(*) > 0
)
SELECT id::text, lease_generation, seq, task, version, payload::text, partition_key, priority, attempts, max_attempts,
       date_part('epoch', greatest(available_at, 'epoch')), -- a date no client can read would cost every worker its answer
       cancel_requested_at IS NOT NULL, suspect,
       CASE WHEN crashes <> 0 OR metadata IS NOT NULL OR parent_id IS NOT NULL OR group_id IS NOT NULL OR follow_ups IS NOT NULL
            THEN json_build_object('crashes', crashes, 'metadata', metadata::text, 'parent_id', parent_id, 'group_id', group_id)::text END,
       (SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || (extract(epoch FROM holdfast.now()) * 1000000)::bigint || ' ' || (SELECT count(*) FROM c))

-- part: bytes
-- The length of a payload as text, if it may be long; NULL for one inside its row, which has less than 2,000. Those are counted
-- by their headers alone.
CASE WHEN pg_column_size(j.payload) >= 2000 OR pg_column_compression(j.payload) IS NOT NULL THEN octet_length(j.payload::text) END AS bytes

-- name: claim
-- Take the first due jobs of a queue for a live worker, each priority from its low-water mark.
-- $1 queue, $2 worker, $3 token, $4 lease seconds, $5 limit, $6 priorities from high to low, $7 their marks: due at (NULL: from the
-- start), $8 limits that the claim is made within (queues.limited), $9 and of the marks the seq, $10 bytes of payload that are enough
--
-- A mark is a place in the index, not only a time: what one transaction enqueued is due at one moment, and with a time alone each claim
-- would pass all of it that is finished.
-- The lateral probes stop as soon as $5 rows are locked. The UPDATE gets the places of the rows, as an array: with a join, stale
-- statistics flip the plan to a sequential scan; with ids, each is looked up in an index once more.
-- A place cannot come to mean another row. It is one in this table alone, and this statement holds a lock on the very version that is
-- there: nobody updates it, neither pruning nor VACUUM touches it, so nobody else is written there. A row that somebody changed between
-- our snapshot and our lock was locked in its newer version, which our snapshot does not show: the UPDATE leaves it out, as if it were
-- locked still, and the next claim has it.
-- The payloads of the taken jobs come to $10 bytes and one job more at most, counted only if there is a long one. Jobs that were locked and not
-- taken wait for the next claim.
-- Of a job in claims of about 1,000: 2.8 buffers, 130 bytes of WAL, 5 to 6 us of the server (18.6, pg_stat_statements).
WITH c AS MATERIALIZED (
    SELECT w.place, w.bytes
    FROM unnest($6::int[], $7::timestamptz[], $9::bigint[]) AS p(priority, mark, mark_seq)
    CROSS JOIN LATERAL (
        SELECT j.ctid AS place,
-- with part: bytes
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority
          AND (j.available_at, j.seq) >= (coalesce(p.mark, '-infinity'), p.mark_seq) AND j.available_at <= holdfast.now()
          AND j.status = 'pending' AND j.suspect = 0
          AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
          AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
        ORDER BY j.available_at, j.seq
        LIMIT $5
        FOR NO KEY UPDATE SKIP LOCKED
    ) w
    WHERE EXISTS (SELECT FROM holdfast.workers WHERE id = $2 AND status = 'alive')
      AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND (paused_at IS NOT NULL OR limited > $8::int))
    LIMIT $5
)
-- with part: take
    WHERE queue = $1 AND ctid = ANY (CASE
        WHEN NOT EXISTS (SELECT FROM c WHERE c.bytes IS NOT NULL) THEN ARRAY(SELECT c.place FROM c)
        ELSE ARRAY(SELECT f.place FROM (SELECT c.place, sum(c.bytes) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM c) f
                   WHERE coalesce(f.before, 0) < $10::bigint) END)
-- with part: taken

-- name: claim_these
-- Take the named jobs, waiting or held, if they are due and still free.
-- $1 queue, $2 worker, $3 token, $4 lease seconds, $5 ids, $6 limits that the claim is made within, $7 bytes of payload that are enough
WITH c AS MATERIALIZED (
    SELECT j.id,
-- with part: bytes
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.id = ANY ($5::uuid[]) AND j.status IN ('pending', 'held') AND j.available_at <= holdfast.now()
      AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
      AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
      AND EXISTS (SELECT FROM holdfast.workers WHERE id = $2 AND status = 'alive')
      AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND (paused_at IS NOT NULL OR limited > $6::int))
      AND ((SELECT NOT EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = $1))
           OR (SELECT true FROM holdfast.key_holds h WHERE h.queue = $1 AND h.partition_key = j.partition_key AND (h.trial OR h.until > holdfast.now()) LIMIT 1) IS NULL)
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
-- with part: take
    WHERE queue = $1 AND id = ANY (ARRAY(
        SELECT f.id FROM (SELECT c.id, sum(c.bytes) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM c) f
        WHERE coalesce(f.before, 0) < $7::bigint))
-- with part: taken

-- name: scan_priorities
-- The priorities that occur in a queue, one index probe each, and always 0; beside each a moment before which, two seconds
-- from now, only a late commit can appear.
-- $1 queue
WITH RECURSIVE p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT priority, holdfast.now() - interval '2 seconds' FROM p WHERE priority IS NOT NULL
UNION
SELECT 0, holdfast.now() - interval '2 seconds';

-- name: claim_candidates
-- The ids a claim would look at, unlocked: what to search when a claim fails on one bad row.
-- $1 queue, $2 limit
SELECT j.id
FROM holdfast.work j
WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.available_at <= holdfast.now() AND j.status = 'pending' AND j.suspect = 0
  AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
  AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
ORDER BY j.priority DESC, j.available_at, j.seq
LIMIT $2;

-- name: find_suspects
-- Jobs that were in two processes that died.
-- $1 queue, $2 limit
SELECT j.id
FROM holdfast.work j
WHERE j.queue = $1 AND j.suspect > 0 AND j.status = 'pending' AND j.available_at <= holdfast.now()
  AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
  AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
  AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
ORDER BY j.available_at, j.seq
LIMIT $2;

-- name: find_held
-- Held jobs whose task and version this worker knows, but for those whose payload its signature has refused. In an ordered queue one that
-- somebody refused has to be the first of its key: put back behind others it would be taken by anybody, once they are done.
-- $1 queue, $2 tasks, $3 versions, $4 limit, $5 signatures, $6 ordered?
SELECT h.id
FROM unnest($2::text[], $3::int[], $5::text[]) AS k(task, version, signature)
CROSS JOIN LATERAL (
    SELECT j.id, j.available_at
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.hold_reason IS NOT NULL AND j.task = k.task AND j.version = k.version AND j.available_at <= holdfast.now()
      AND j.status = 'held'
      AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
      AND NOT EXISTS (SELECT FROM holdfast.misfits m WHERE m.job_id = j.id AND m.signature = k.signature AND m.available_at = j.available_at)
      AND NOT ($6::boolean AND EXISTS (SELECT FROM holdfast.misfits m WHERE m.job_id = j.id)
               AND EXISTS (SELECT FROM holdfast.work b WHERE b.queue = $1 AND b.partition_bucket = j.partition_bucket
                             AND b.partition_key = j.partition_key AND b.seq < j.seq))
    ORDER BY j.available_at
    LIMIT $4
) h
WHERE k.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
  AND NOT EXISTS (SELECT FROM holdfast.queues WHERE name = $1 AND paused_at IS NOT NULL)
ORDER BY h.available_at
LIMIT $4;

-- name: hold_unknown
-- Set aside due jobs of a task or version this worker does not know, so that they cost no later claim anything. What is not due costs
-- none, and a run that waits for a signal would not be woken any more.
-- $1 queue, $2 known 'task/version' texts, $3 how far to look
WITH RECURSIVE p(priority) AS (
    (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = $1 AND w.hold_reason IS NULL AND w.priority < p.priority
            ORDER BY w.priority DESC LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
), ahead AS MATERIALIZED (
    SELECT w.id, w.task, w.version
    FROM p CROSS JOIN LATERAL (
        SELECT j.id, j.task, j.version
        FROM holdfast.work j
        WHERE j.queue = $1 AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
          AND j.status = 'pending' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
        ORDER BY j.available_at, j.seq
        LIMIT $3
    ) w
    LIMIT $3
), c AS MATERIALIZED (
    SELECT j.id
    FROM holdfast.work j
    WHERE j.queue = $1 AND j.status = 'pending' AND j.available_at <= holdfast.now()   -- again: it may have been put away meanwhile
      AND j.id = ANY (ARRAY(SELECT id FROM ahead WHERE task || '/' || version <> ALL ($2::text[])))
    FOR NO KEY UPDATE SKIP LOCKED
), held AS (
    UPDATE holdfast.work
    SET status = 'held', hold_reason = 'no worker here knows ' || task || ' version ' || version
    WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM c))
    RETURNING id
)
SELECT count(*) FROM held;

-- name: quarantine
-- Leave a row alone that makes claims or sweeps fail.
-- $1 id, $2 queue, $3 reason
INSERT INTO holdfast.quarantine (id, queue, reason) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;
