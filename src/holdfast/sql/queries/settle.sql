-- name: settle_finish
-- anywhere
-- Completed and cancelled jobs leave for the archive, or, completed where nothing is kept, for good. Answers one row: how many left; when that is
-- not all ($9), the places of those that did in the arrays; and their follow-ups, as JSON: [id, group, follow-ups]. Nothing else of theirs
-- reads the archive, so they are kept.
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 statuses (NULL: all completed), $6 results (NULL: all 'null'), $7 errors (NULL: none),
-- each the text of an array, $8 worker, $9 how many, $10 whether each is kept if it completed (NULL: as the queue says), the text of an array
--
-- `ok` locks each row under its full guard, pair by pair: ids and tokens as two sets would let a stale (X, T1) match
-- when the same worker holds X under T2. A row locked by someone else is skipped and told apart by settle_check.
WITH ok AS MATERIALIZED (
    SELECT d.n, d.id, d.status, d.result, d.error, d.keep
    FROM ROWS FROM (unnest($2::text::uuid[]), unnest($3::text::bigint[]), unnest($4::text::uuid[]), unnest($5::text::text[]),
                    unnest($6::text::text[]), unnest($7::text::text[]), unnest($10::text::boolean[]))
         WITH ORDINALITY AS d(id, generation, token, status, result, error, keep, n)
    CROSS JOIN LATERAL (
        SELECT w.id FROM holdfast.work w
        WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR UPDATE SKIP LOCKED
    ) w
), gone AS (
    DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM ok))
    RETURNING *
), kept AS (
    INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at, attempts,
                                  max_attempts, version, crashes, priority, queue, status, task, partition_key, payload, claimed_by,
                                  result, last_error, tags, metadata, parent_id, group_id, follow_ups)
    SELECT (SELECT holdfast.archive_slot(holdfast.now())), g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at,
           g.claimed_at, (SELECT holdfast.now()), least(g.attempts::bigint + 1, 2147483647)::int, g.max_attempts, g.version, g.crashes, g.priority, g.queue,
           coalesce(o.status, 'completed'), g.task, g.partition_key, g.payload, $8, CASE WHEN $6::text IS NULL THEN 'null' ELSE o.result::jsonb END,
           coalesce(o.error, g.last_error), g.tags, g.metadata, g.parent_id, g.group_id, g.follow_ups
    FROM gone g JOIN ok o ON o.id = g.id
    WHERE o.status <> 'completed' OR g.group_id IS NOT NULL OR g.follow_ups IS NOT NULL
       OR coalesce(o.keep, (SELECT q.keep_completed FROM holdfast.queues q WHERE q.name = $1), true)
)
SELECT ARRAY[count(*)::text, CASE WHEN count(*) < $9::int THEN (SELECT json_agg(n)::text FROM ok) END,
             (json_agg(json_build_array(id, group_id, follow_ups::text)) FILTER (WHERE group_id IS NOT NULL OR follow_ups IS NOT NULL))::text]
FROM gone;

-- part: plainly_done
-- Jobs that completed, with no result, and on which nothing hangs, leave. $1 queue, $2 ids, $3 generations as the text of an array, $4 tokens
--
-- BETWEEN, not =, which a planner may turn round: while the queue is short it would read all of it, and look for each row in the arrays. Where no
-- table may be scanned, this leaves no plan but a probe of the index for each job. So the plan can be kept: to make it took 0.5 ms of each batch.
    DELETE FROM holdfast.work w
    USING ROWS FROM (unnest($2::uuid[]), unnest($3::text::bigint[]), unnest($4::uuid[])) AS d(id, generation, token)
    WHERE w.queue = $1 AND w.id BETWEEN d.id AND d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
      AND w.group_id IS NULL AND w.follow_ups IS NULL
      AND (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL

-- name: settle_done
-- The quick way of settle_finish for most jobs there are: completed, with no result, and nothing hangs on them. Answers how many left, for the
-- archive or for good; when that is not all ($6), the id and generation of each that did, as JSON: a batch may hold two generations of one job. The rest is
-- for settle_finish.
-- $1 queue, $2 ids, $3 generations as the text of an array, $4 tokens, $5 worker, $6 how many, $7 whether they are kept (NULL: as the queue says)
--
-- For our own sessions alone, where no planner finds a sequential scan cheap, and by itself: nothing follows it in a transaction.
-- The DELETE is guarded pair by pair, and locks as it goes: locking first and then looking everything up again took 3 of 9 us.
-- So it may meet a row that somebody holds; then it gives up after a moment, before it has done anything.
-- Of a job in batches of 400: 8.8 buffers, 390 bytes of WAL, 6 to 9 us of the server (18.6, pg_stat_statements).
WITH gone AS (
-- with part: plainly_done
    RETURNING w.id, w.claim_token, w.seq, w.lease_generation, w.available_at, w.created_at, w.claimed_at, w.attempts, w.max_attempts, w.version,
              w.crashes, w.priority, w.queue, w.task, w.partition_key, w.payload, w.last_error, w.tags, w.metadata, w.parent_id
), kept AS (
    INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at, attempts,
                                  max_attempts, version, crashes, priority, queue, status, task, partition_key, payload, claimed_by,
                                  result, last_error, tags, metadata, parent_id)
    SELECT (SELECT holdfast.archive_slot(holdfast.now())), g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at,
           g.claimed_at, (SELECT holdfast.now()), least(g.attempts::bigint + 1, 2147483647)::int, g.max_attempts, g.version, g.crashes, g.priority,
           g.queue, 'completed', g.task, g.partition_key, g.payload, $5, 'null', g.last_error, g.tags, g.metadata, g.parent_id
    FROM gone g
    WHERE coalesce($7::boolean, (SELECT q.keep_completed FROM holdfast.queues q WHERE q.name = $1), true)
)
SELECT count(*), CASE WHEN count(*) < $6::int THEN json_agg(json_build_array(id, lease_generation))::text END FROM gone;

-- name: settle_dropped
-- settle_done where nothing is kept of them: then nothing but their ids leaves the table. Of a job in batches of 1,000: 3.4 us of the server, not 4.2.
-- $1 queue, $2 ids, $3 generations as the text of an array, $4 tokens, $5 how many
WITH gone AS (
-- with part: plainly_done
    RETURNING w.id, w.lease_generation
)
SELECT count(*), CASE WHEN count(*) < $5::int THEN json_agg(json_build_array(id, lease_generation))::text END FROM gone;

-- name: settle_one
-- anywhere
-- The quick way of settle_finish for one job that completed in the transaction of its handler, in its first attempt, and on which nothing hangs. Its
-- plan is kept, and the COMMIT follows it in the same message: so it does not answer that it ended none, it fails, with 'holdfast: not ours'. A row
-- that somebody holds is waited for. Planning settle_finish took 500 of the 970 us of the server that such a transaction cost (18.6).
-- $1 queue, $2 id, $3 generation, $4 token, $5 worker, $6 whether it is kept (NULL: as the queue says), $7 result
WITH gone AS (
    DELETE FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = $2::uuid AND w.lease_generation = $3::bigint AND w.claim_token = $4::uuid AND w.status = 'processing'
      AND w.follow_ups IS NULL AND w.group_id IS NULL
    RETURNING w.id, w.claim_token, w.seq, w.lease_generation, w.available_at, w.created_at, w.claimed_at, w.attempts, w.max_attempts, w.version,
              w.crashes, w.priority, w.queue, w.task, w.partition_key, w.payload, w.last_error, w.tags, w.metadata, w.parent_id
), kept AS (
    INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at, attempts,
                                  max_attempts, version, crashes, priority, queue, status, task, partition_key, payload, claimed_by,
                                  result, last_error, tags, metadata, parent_id)
    SELECT holdfast.archive_slot(holdfast.now()), g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at,
           g.claimed_at, holdfast.now(), least(1 + g.attempts::bigint, 2147483647)::int, g.max_attempts, g.version, g.crashes, g.priority,
           g.queue, 'completed', g.task, g.partition_key, g.payload, $5, $7::jsonb, g.last_error, g.tags, g.metadata, g.parent_id
    FROM gone g
    WHERE coalesce($6::boolean, (SELECT q.keep_completed FROM holdfast.queues q WHERE q.name = $1), true)
)
SELECT CASE WHEN count(*) <> 1 THEN ('holdfast: not ours ' || count(*)::text)::int END FROM gone;

-- name: settle_forget
-- anywhere
-- What jobs that have just ended left beside them: steps and progress.
-- $1 completed ones, $2 cancelled ones: their steps stay
WITH steps AS (
    DELETE FROM holdfast.once o WHERE o.job_id = ANY ($1::uuid[]) RETURNING 1
), reports AS (
    DELETE FROM holdfast.progress p WHERE p.job_id = ANY ($1::uuid[] || $2::uuid[]) RETURNING 1
)
SELECT ARRAY[((SELECT count(*) FROM steps) + (SELECT count(*) FROM reports))::text];

-- name: settle_fail
-- A failed attempt: back to waiting after its delay while attempts are left and its deadline has not passed, else to the dead letters. Decided here,
-- once. In a queue ordered by key the rest of the key continues (skip), or waits for the dead job, which stays where it is (block), or is parked.
-- A deadline counts from when the job was due before it first failed or was snoozed; a claim leaves available_at as it is.
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 delays, $6 final?, $7 kinds, $8 messages, $9 traces, $10 deadlines in seconds (NULL: none), $11 worker
WITH rule AS MATERIALIZED (
    SELECT on_dead_letter FROM holdfast.queues WHERE name = $1
), ok AS MATERIALIZED (
    SELECT d.n, d.id, d.generation, d.delay, d.kind, d.message, d.trace, w.attempt,
           v.gives_up_at, v.dies, v.dies AND (SELECT on_dead_letter FROM rule) = 'block' AS blocks,
           left(CASE WHEN d.message = '' THEN d.kind ELSE d.kind || ': ' || d.message END, 8192) AS summary
    FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::float8[], $6::boolean[], $7::text[], $8::text[], $9::text[], $10::float8[]) WITH ORDINALITY
         AS d(id, generation, token, delay, final, kind, message, trace, deadline, n)
    CROSS JOIN LATERAL (
        SELECT least(w.attempts::bigint + 1, 2147483647)::int AS attempt, w.max_attempts, coalesce(w.first_due, w.available_at) AS first_due
        FROM holdfast.work w
        WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR UPDATE SKIP LOCKED
    ) w
    CROSS JOIN LATERAL (
        SELECT u.gives_up_at, d.final OR w.attempt >= w.max_attempts OR coalesce(u.gives_up_at <= holdfast.now(), false) AS dies
        FROM (SELECT w.first_due + make_interval(secs => d.deadline) AS gives_up_at) u
    ) v
), logged AS (
    INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)
    SELECT id, $1, attempt, generation, holdfast.now(), $11, kind, message, trace FROM ok
), gone AS (
    DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM ok WHERE dies AND NOT blocks))
    RETURNING *
), parked AS (
    INSERT INTO holdfast.parked_keys (queue, partition_key, job_id, parked_at)
    SELECT $1, g.partition_key, g.id, holdfast.now() FROM gone g WHERE (SELECT on_dead_letter FROM rule) = 'park'
    ON CONFLICT DO NOTHING
), dead AS (
    INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts, max_attempts,
                                       version, crashes, priority, queue, task, partition_key, payload, claimed_by, last_error, tags, metadata,
                                       parent_id, group_id, follow_ups, gives_up_at)
    SELECT g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at, g.claimed_at, holdfast.now(), o.attempt, g.max_attempts,
           g.version, g.crashes, g.priority, g.queue, g.task, g.partition_key, g.payload, $11, o.summary, g.tags, g.metadata,
           g.parent_id, g.group_id, g.follow_ups, o.gives_up_at
    FROM gone g JOIN ok o ON o.id = g.id
    RETURNING id, group_id
), back AS (
    UPDATE holdfast.work w
    SET status = CASE WHEN (SELECT o.blocks FROM ok o WHERE o.id = w.id) THEN 'blocked' ELSE 'pending' END,
        hold_reason = CASE WHEN (SELECT o.blocks FROM ok o WHERE o.id = w.id) THEN 'a dead letter that its key waits for' END,
        suspect = 0, crashes = CASE WHEN (SELECT o.blocks FROM ok o WHERE o.id = w.id) THEN w.crashes ELSE 0 END, attempts = (SELECT o.attempt FROM ok o WHERE o.id = w.id),
        last_error = (SELECT o.summary FROM ok o WHERE o.id = w.id), first_due = coalesce(w.first_due, w.available_at),
        gives_up_at = CASE WHEN (SELECT bool_or(o.gives_up_at IS NOT NULL) FROM ok o) THEN (SELECT o.gives_up_at FROM ok o WHERE o.id = w.id) END,
        available_at = CASE WHEN w.cancel_requested_at IS NULL
                            THEN holdfast.now() + make_interval(secs => (SELECT o.delay FROM ok o WHERE o.id = w.id)) ELSE holdfast.now() END
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok WHERE blocks OR NOT dies))
    RETURNING w.id, w.status
)
SELECT ARRAY[o.n::text, CASE (SELECT on_dead_letter FROM rule) WHEN 'park' THEN 'parked' ELSE 'dead_letter' END, d.group_id::text]
FROM dead d JOIN ok o ON o.id = d.id
UNION ALL SELECT ARRAY[o.n::text, b.status, NULL] FROM back b JOIN ok o ON o.id = b.id;

-- name: settle_back
-- Snoozed, released and held jobs stay, and spend no attempt. One that somebody wants cancelled is not held: the next claim ends it.
-- The arguments for a job are found in one object: a search through `ok` for each row took a second for 1,000 of them.
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 delays (NULL: its place in the queue is kept), $6 reasons to hold (NULL: waiting)
WITH ok AS MATERIALIZED (
    SELECT d.n, d.id, d.delay, d.hold
    FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::float8[], $6::text[]) WITH ORDINALITY AS d(id, generation, token, delay, hold, n)
    CROSS JOIN LATERAL (
        SELECT w.id FROM holdfast.work w
        WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR NO KEY UPDATE SKIP LOCKED
    ) w
), said AS MATERIALIZED (
    SELECT jsonb_object_agg(o.id, jsonb_build_array(o.delay, o.hold)) AS of_job FROM ok o WHERE o.delay IS NOT NULL OR o.hold IS NOT NULL
), back AS (
    UPDATE holdfast.work w
    SET status = CASE WHEN w.cancel_requested_at IS NOT NULL OR (SELECT of_job FROM said) -> w.id::text ->> 1 IS NULL THEN 'pending' ELSE 'held' END,
        hold_reason = CASE WHEN w.cancel_requested_at IS NULL THEN (SELECT of_job FROM said) -> w.id::text ->> 1 END,
        suspect = CASE WHEN (SELECT of_job FROM said) -> w.id::text ->> 0 IS NULL THEN w.suspect ELSE 0 END,
        crashes = CASE WHEN (SELECT of_job FROM said) -> w.id::text ->> 0 IS NULL THEN w.crashes ELSE 0 END,
        first_due = CASE WHEN (SELECT of_job FROM said) -> w.id::text ->> 0 IS NULL THEN w.first_due ELSE coalesce(w.first_due, w.available_at) END,
        available_at = CASE WHEN w.cancel_requested_at IS NULL
                            THEN coalesce(holdfast.now() + make_interval(secs => ((SELECT of_job FROM said) -> w.id::text ->> 0)::float8), w.available_at)
                            ELSE w.available_at END
    WHERE w.queue = $1 AND w.id = ANY (ARRAY(SELECT id FROM ok))
    RETURNING w.id, w.status
)
SELECT ARRAY[o.n::text, b.status, NULL] FROM back b JOIN ok o ON o.id = b.id;

-- name: settle_check
-- anywhere
-- Why a settle touched no row: an earlier try had done it (then where the job went, and true), someone holds the row right now
-- (busy), or it is no longer ours (lost). Where completed jobs are not kept, one that is nowhere has ended, here or by a later owner (gone).
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 whether they are kept (NULL: as the queue says)
SELECT ARRAY[d.n::text, CASE WHEN w.status = 'processing' THEN 'busy' ELSE coalesce(w.status, a.status, l.status, g.status, 'lost') END,
             (coalesce(w.status <> 'processing', false) OR a.status IS NOT NULL OR l.status IS NOT NULL OR g.status IS NOT NULL)::text]
FROM ROWS FROM (unnest($2::uuid[]), unnest($3::bigint[]), unnest($4::uuid[]), unnest($5::boolean[]))
     WITH ORDINALITY AS d(id, generation, token, keep, n)
LEFT JOIN LATERAL (
    SELECT w.status FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token OFFSET 0
) w ON true
LEFT JOIN LATERAL (
    SELECT a.status FROM unnest(holdfast.archive_slots_of(d.id)) AS s(slot)
    CROSS JOIN LATERAL (
        SELECT a.status FROM holdfast.archive a
        WHERE a.slot = s.slot AND a.id = d.id AND a.lease_generation = d.generation AND a.claim_token = d.token OFFSET 0
    ) a
) a ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN EXISTS (SELECT FROM holdfast.parked_keys p WHERE p.queue = $1 AND p.partition_key = l.partition_key AND p.job_id = l.id)
                THEN 'parked' ELSE 'dead_letter' END AS status
    FROM holdfast.dead_letters l
    WHERE l.id = d.id AND l.lease_generation = d.generation AND l.claim_token = d.token OFFSET 0
) l ON true
LEFT JOIN LATERAL (
    SELECT 'gone' AS status
    WHERE NOT coalesce(d.keep, (SELECT q.keep_completed FROM holdfast.queues q WHERE q.name = $1), true)
      -- OFFSET: else a plan that is kept since the queue was empty reads all of it, to look the ids up in a hash table.
      AND NOT EXISTS (SELECT FROM holdfast.work o WHERE o.queue = $1 AND o.id = d.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM unnest(holdfast.archive_slots_of(d.id)) AS s(slot)
                      CROSS JOIN LATERAL (SELECT FROM holdfast.archive o WHERE o.slot = s.slot AND o.id = d.id OFFSET 0) o)
      AND NOT EXISTS (SELECT FROM holdfast.dead_letters o WHERE o.id = d.id OFFSET 0)
) g ON true;

-- name: lock_owned
-- anywhere
-- Wait for the row of an owned job and lock it; no row: it is not ours.
-- $1 queue, $2 id, $3 generation, $4 token
SELECT ARRAY[w.id::text] FROM holdfast.work w
WHERE w.queue = $1 AND w.id = $2 AND w.lease_generation = $3 AND w.claim_token = $4 AND w.status = 'processing'
FOR UPDATE;
