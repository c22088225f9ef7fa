-- name: workflow_start
-- anywhere
-- $1 workflow, $2 input, $3 id, $4 version, $5 queue, $6 if_exists, $7 seconds of delay, $8 seconds of timeout, $9 priority, $10 tags, $11 metadata
SELECT ARRAY[s.run_id::text, s.created::text, s.conflict]
FROM holdfast.workflow_start($1::text, $2::text::jsonb, $3::text, $4::int, $5::text, $6::text, make_interval(secs => $7::float8),
                             make_interval(secs => $8::float8), $9::int, $10::text::text[], $11::text::jsonb, true) s;

-- name: workflow_start_with_signal
-- anywhere
-- The same, and what became of a signal to that run: the functions see what was written before them in this statement.
-- $12 name, $13 payload, $14 idempotency key
SELECT ARRAY[s.run_id::text, s.created::text, s.conflict,
             CASE WHEN s.conflict IS NULL THEN holdfast.workflow_signal($1::text, $3::text, $12::text, $13::text::jsonb, $14::text) END]
FROM holdfast.workflow_start($1::text, $2::text::jsonb, $3::text, $4::int, $5::text, $6::text, make_interval(secs => $7::float8),
                             make_interval(secs => $8::float8), $9::int, $10::text::text[], $11::text::jsonb, true) s;

-- name: workflow_start_many
-- anywhere
-- Runs of one workflow with the same options. Run, whether it is new, and conflict of each, in their order.
-- $1 workflow, $2 inputs, $3 ids, $4 version, $5 queue, $6 if_exists, $7 seconds of delay, $8 seconds of timeout, $9 priority, $10 tags, $11 metadata
SELECT ARRAY[s.run_id::text, s.created::text, s.conflict]
FROM holdfast.workflow_start_many($1::text, $2::text::text[]::jsonb[], $3::text::text[], $4::int, $5::text, $6::text, make_interval(secs => $7::float8),
                                  make_interval(secs => $8::float8), $9::int, $10::text::text[], $11::text::jsonb, true) s
ORDER BY s.ordinal;

-- name: workflow_signal
-- anywhere
-- $1 workflow, $2 id, $3 name, $4 payload, $5 idempotency key
SELECT ARRAY[holdfast.workflow_signal($1::text, $2::text, $3::text, $4::text::jsonb, $5::text)];

-- name: workflow_cancel
-- anywhere
-- $1 workflow, $2 id, $3 reason
SELECT ARRAY[holdfast.workflow_cancel($1::text, $2::text, $3::text)];

-- name: workflow_look
-- anywhere
-- $1 workflow, $2 id
SELECT ARRAY[r.run_id::text, r.state, r.shown::text, r.result::text, r.error::text] FROM holdfast.workflow_result($1::text, $2::text) r;

-- name: workflow_act
-- An operator's: pause, resume or terminate.
-- $1 which, $2 workflow, $3 id, $4 reason
SELECT CASE $1::text WHEN 'pause' THEN holdfast.workflow_pause($2, $3) WHEN 'resume' THEN holdfast.workflow_resume($2, $3)
                     ELSE holdfast.workflow_terminate($2, $3, $4) END;

-- name: workflow_record
-- Write what runs have ready. Each entry is one run and one claim with its rows; all of its rows are written or none. Returns the moment, and how many rows were
-- written; when that is not all ($18), the run and key of each that was.
-- $1 queue; of entries: $2 ids, $3 generations, $4 tokens, $5 what their code says of itself (NULL: nothing new); of rows: $6 the place of the entry, $7 keys,
-- $8 kinds, $9 outcomes, $10 ordinals, $11 results, $12 errors, $13 attempts, $14 began, $15 hashes of the input, $16 linked, $17 when they ended, if not now; $18 how many rows
--
-- FOR SHARE keeps the sweep from taking the job back before this commits. Nobody is waited for: what somebody holds is told apart by workflow_check.
WITH ok AS MATERIALIZED (
    SELECT d.n, d.id, d.generation, d.shown
    FROM ROWS FROM (unnest($2::uuid[]), unnest($3::text::bigint[]), unnest($4::uuid[]), unnest($5::text::text[])) WITH ORDINALITY AS d(id, generation, token, shown, n)
    CROSS JOIN LATERAL (
        SELECT w.id FROM holdfast.work w
        WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing'
        FOR SHARE SKIP LOCKED
    ) w
    WHERE CASE WHEN d.shown IS NULL THEN true
               ELSE (SELECT true FROM holdfast.workflow_runs r WHERE r.id = d.id FOR NO KEY UPDATE SKIP LOCKED) END
), put AS (
    INSERT INTO holdfast.workflow_steps AS s (run_id, generation, ordinal, attempts, began_at, ended_at, key, kind, outcome, input_hash, result, error, linked)
    SELECT o.id, o.generation, r.ordinal, r.attempts, coalesce(to_timestamp(r.began), (SELECT holdfast.now())), coalesce(r.ended, (SELECT holdfast.now())), r.key, r.kind,
           r.outcome, decode(r.input_hash, 'hex'), r.result::jsonb, r.error::jsonb, r.linked
    FROM ROWS FROM (unnest($6::text::int[]), unnest($7::text::text[]), unnest($8::text::text[]), unnest($9::text::text[]), unnest($10::text::int[]),
                    unnest($11::text::text[]), unnest($12::text::text[]), unnest($13::text::int[]), unnest($14::text::float8[]), unnest($15::text::text[]),
                    unnest($16::text::uuid[]), unnest($17::text::timestamptz[])) WITH ORDINALITY
         AS r(entry, key, kind, outcome, ordinal, result, error, attempts, began, input_hash, linked, ended, place)
    JOIN ok o ON o.n = r.entry
    ORDER BY r.place
    ON CONFLICT (run_id, key) DO UPDATE
    SET generation = EXCLUDED.generation, attempts = EXCLUDED.attempts, ended_at = EXCLUDED.ended_at, outcome = EXCLUDED.outcome, result = EXCLUDED.result,
        error = EXCLUDED.error, n = EXCLUDED.n, linked = coalesce(EXCLUDED.linked, s.linked)
    WHERE s.outcome IN ('retrying', 'calling')
    RETURNING s.run_id, s.key
), said AS (
    UPDATE holdfast.workflow_runs r SET shown = o.shown::jsonb FROM ok o WHERE r.id = o.id AND o.shown IS NOT NULL
)
SELECT holdfast.now(), count(*), CASE WHEN count(*) < $18::int THEN (SELECT json_agg(json_build_array(p.run_id, p.key))::text FROM put p) END,
       (SELECT json_agg(o.n)::text FROM ok o WHERE o.shown IS NOT NULL)
FROM put;

-- name: workflow_check
-- Why rows were not written: recorded (by this very generation, and when), busy (somebody holds the job, or the run), or lost.
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 keys, $6 outcomes, $7 attempts
SELECT CASE WHEN s.generation = d.generation THEN 'recorded' WHEN s.generation IS NOT NULL THEN 'lost' WHEN w.id IS NOT NULL THEN 'busy' ELSE 'lost' END, s.ended_at
FROM ROWS FROM (unnest($2::uuid[]), unnest($3::text::bigint[]), unnest($4::uuid[]), unnest($5::text::text[]), unnest($6::text::text[]), unnest($7::text::int[])) WITH ORDINALITY
     AS d(id, generation, token, key, outcome, attempts, n)
LEFT JOIN LATERAL (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing' OFFSET 0
) w ON true
LEFT JOIN LATERAL (
    SELECT s.generation, s.ended_at FROM holdfast.workflow_steps s
    WHERE s.run_id = d.id AND s.key = d.key
      AND (s.outcome NOT IN ('retrying', 'calling') OR (s.generation = d.generation AND s.outcome = d.outcome AND s.attempts = d.attempts)) OFFSET 0
) s ON true
ORDER BY d.n;

-- name: workflow_decide
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 keys, $6 ordinals, $7 kinds, $8 names, $9 untils, $10 began, $11 cancellable, $12 rows beside, each as JSON
SELECT x.answer, x.outcome, x.result, x.error, x.attempts, x.linked, x.generation, x.at
FROM ROWS FROM (unnest($2::uuid[]), unnest($3::text::bigint[]), unnest($4::uuid[]), unnest($5::text::text[]), unnest($6::text::int[]), unnest($7::text::text[]),
                unnest($8::text::text[]), unnest($9::timestamptz[]), unnest($10::text::float8[]), unnest($11::text::boolean[]), unnest($12::text::text[])) WITH ORDINALITY
     AS d(id, generation, token, key, ordinal, kind, name, until, began, cancellable, made, n)
CROSS JOIN LATERAL holdfast.workflow_decide($1, d.id, d.generation, d.token, d.key, d.ordinal, d.kind, d.name, d.until, d.began, d.cancellable, d.made::jsonb) x
ORDER BY d.n;

-- name: workflow_child_end
-- How a child has ended, by a message that was taken.
-- $1 run, $2 name of the message
SELECT s.payload->>'outcome', (s.payload->'result')::text, nullif(s.payload->'error', 'null')::text
FROM holdfast.workflow_signals s WHERE s.run_id = $1::uuid AND s.name = $2 AND s.taken_by IS NOT NULL ORDER BY s.seq LIMIT 1;

-- name: workflow_receive
-- $1 queue, $2 id, $3 generation, $4 token, $5 key, $6 ordinal, $7 name, $8 began, $9 rows beside, as JSON
SELECT r.answer, r.result, r.at FROM holdfast.workflow_receive($1, $2::uuid, $3::bigint, $4::uuid, $5, $6::int, $7, $8::float8, $9::text::jsonb) r;

-- name: workflow_suspend
-- $1 queue, $2 ids, $3 generations, $4 tokens, $5 the names of each as JSON, $6 untils, $7 cancellable
SELECT s.answer FROM holdfast.workflow_suspend($1, $2::uuid[], $3::text::bigint[], $4::uuid[], $5::text::jsonb, $6::timestamptz[], $7::text::boolean[]) s ORDER BY s.ordinal;

-- name: workflow_at_work
-- Steps of runs that run for a while, as their owners report regularly. A report of an older owner comes too late.
-- $1 runs, $2 generations, $3 eras, $4 steps; NULL: none is any more
WITH given AS MATERIALIZED (
    SELECT g.* FROM ROWS FROM (unnest($1::uuid[]), unnest($2::bigint[]), unnest($3::int[]), unnest($4::text::text[])) AS g(run_id, generation, era, steps)
), over AS (
    DELETE FROM holdfast.workflow_at_work a USING given g WHERE g.steps IS NULL AND a.run_id = g.run_id AND a.generation <= g.generation
)
INSERT INTO holdfast.workflow_at_work AS a (run_id, generation, era, steps)
SELECT g.run_id, g.generation, g.era, g.steps::jsonb FROM given g WHERE g.steps IS NOT NULL ORDER BY g.run_id
ON CONFLICT (run_id) DO UPDATE SET generation = excluded.generation, era = excluded.era, steps = excluded.steps WHERE a.generation <= excluded.generation;

-- name: workflow_failed
-- Attempts of steps that failed, among the errors of their run's job. What an owner says that has lost the run is left out.
-- $1 ids, $2 queues, $3 generations, $4 tokens, $5 attempts, $6 when, $7 workers, $8 kinds, $9 messages, $10 traces
INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)
SELECT d.id, d.queue, d.attempt, d.generation, to_timestamp(d.at), d.worker, d.kind, d.message, d.trace
FROM ROWS FROM (unnest($1::uuid[]), unnest($2::text[]), unnest($3::text::bigint[]), unnest($4::uuid[]), unnest($5::text::int[]), unnest($6::float8[]), unnest($7::text[]),
                unnest($8::text[]), unnest($9::text[]), unnest($10::text[])) WITH ORDINALITY
     AS d(id, queue, generation, token, attempt, at, worker, kind, message, trace, n)
CROSS JOIN LATERAL (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = d.queue AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing' OFFSET 0
) w
ORDER BY d.n;

-- name: workflow_compensates
-- A run begins to compensate, or continues after that: for people who look at it. It waits for no lock; if the run is locked, nothing is written.
-- $1 queue, $2 id, $3 generation, $4 token, $5 the state from now on, $6 the state before
WITH ok AS MATERIALIZED (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = $2::uuid AND w.lease_generation = $3::bigint AND w.claim_token = $4::uuid AND w.status = 'processing'
    FOR SHARE SKIP LOCKED
), run AS MATERIALIZED (
    SELECT r.id FROM ok o JOIN holdfast.workflow_runs r ON r.id = o.id WHERE r.ended_at IS NULL FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE holdfast.workflow_runs r SET state = $5::text FROM run WHERE r.id = run.id AND r.state = $6::text;

-- name: workflow_changed
-- News for runs that rest, or run: how many messages are unread, the last of them, and whether a cancel or a pause was requested, and why.
-- $1 ids
SELECT r.id::text, coalesce(s.unread, 0), coalesce(s.last, 0), r.cancel_requested_at IS NOT NULL OR coalesce(r.deadline <= holdfast.now(), false), r.paused_at IS NOT NULL,
       CASE WHEN r.cancel_requested_at IS NOT NULL THEN nullif(r.cancel_reason, '') WHEN r.deadline <= holdfast.now() THEN 'its timeout is over' END
FROM unnest($1::uuid[]) AS d(id)
JOIN holdfast.workflow_runs r ON r.id = d.id
LEFT JOIN LATERAL (SELECT count(*) AS unread, max(s.seq) AS last FROM holdfast.workflow_signals s WHERE s.run_id = d.id AND s.taken_by IS NULL OFFSET 0) s ON true;

-- name: workflow_histories
-- What claims of these runs find: a row for each record in the order in which they were written, and one for a run without any.
-- $1 ids
SELECT r.id::text, r.key, r.version, r.era, r.era_at, r.cancel_requested_at IS NOT NULL OR coalesce(r.deadline <= holdfast.now(), false), r.state, r.ended_at IS NOT NULL, r.seed,
       CASE WHEN r.cancel_requested_at IS NOT NULL THEN nullif(r.cancel_reason, '') WHEN r.deadline <= holdfast.now() THEN 'its timeout is over' END,
       r.paused_at IS NOT NULL, s.key, s.kind, s.outcome, s.ordinal, s.result::text, s.error::text, s.attempts, date_part('epoch', s.began_at), s.input_hash, s.linked, s.generation, s.ended_at
FROM unnest($1::uuid[]) AS d(id)
JOIN holdfast.workflow_runs r ON r.id = d.id
LEFT JOIN LATERAL (SELECT s.* FROM holdfast.workflow_steps s WHERE s.run_id = d.id ORDER BY s.n OFFSET 0) s ON true;

-- name: workflow_reopen
-- $1 id
SELECT holdfast.workflow_reopen($1::uuid);

-- name: workflow_child
-- $1 queue, $2 id, $3 generation, $4 token, $5 row as JSON, $6 workflow, $7 input, $8 key, $9 version, $10 its queue, $11 on_cancel
SELECT c.answer, c.child, c.at
FROM holdfast.workflow_child($1, $2::uuid, $3::bigint, $4::uuid, $5::text::jsonb, $6, $7::text::jsonb, $8, $9::int, $10::text, $11) c;

-- name: workflow_call
-- $1 queue, $2 id, $3 generation, $4 token, $5 row as JSON, $6 jobs, $7 a list of results?, $8 how many of them at once
SELECT holdfast.workflow_call($1, $2::uuid, $3::bigint, $4::uuid, $5::text::jsonb, $6::text::jsonb, $7::boolean, $8::int);

-- name: workflow_publish
-- $1 queue, $2 id, $3 generation, $4 token, $5 rows as JSON, $6 events as JSON, $7 what its code says of itself (NULL: nothing new)
SELECT p.answer, p.at FROM holdfast.workflow_publish($1, $2::uuid, $3::bigint, $4::uuid, $5::text::jsonb, $6::text::jsonb, $7::text::jsonb) p;

-- name: workflow_begin_era
-- $1 queue, $2 id, $3 generation, $4 token, $5 the era that ends, $6 input, $7 keys of records with a signal that no code has seen
SELECT e.answer, e.at FROM holdfast.workflow_begin_era($1, $2::uuid, $3::bigint, $4::uuid, $5::int, $6::text::jsonb, $7::text[]) e;

-- name: workflow_lock
-- anywhere
-- In the transaction of a step, before its function: lock the job, and see whether the step is recorded already.
-- $1 queue, $2 id, $3 generation, $4 token, $5 key
SELECT ARRAY[holdfast.workflow_own($1::text, $2::uuid, $3::bigint, $4::uuid, true),
             (SELECT s.generation::text FROM holdfast.workflow_steps s WHERE s.run_id = $2::uuid AND s.key = $5::text)];

-- name: workflow_put
-- anywhere
-- $1 id, $2 generation, $3 rows as JSON
SELECT ARRAY[holdfast.workflow_put($1::uuid, $2::bigint, $3::text::jsonb)::text, holdfast.now()::text];

-- name: workflow_stored
-- One record, as the history has it.
-- $1 id, $2 key
SELECT s.key, s.kind, s.outcome, s.ordinal, s.result::text, s.error::text, s.attempts, date_part('epoch', s.began_at), s.input_hash, s.linked, s.generation, s.ended_at
FROM holdfast.workflow_steps s WHERE s.run_id = $1::uuid AND s.key = $2;

-- name: workflow_end
-- $1 ids, $2 states, $3 results, $4 errors
SELECT holdfast.workflow_end($1::uuid[], $2::text::text[], $3::text::text[], $4::text::text[]);

-- name: workflow_last
-- Ends runs, as workflow_end, with records that go with the end of their run's job, in its transaction: that they are their
-- owner's is seen there. The records are written first: the function folds them with the others.
-- $1 to $4 as above, $5 ids, $6 generations, $7 rows of each as JSON
WITH put AS (
    INSERT INTO holdfast.workflow_steps AS s (run_id, generation, ordinal, attempts, began_at, ended_at, key, kind, outcome, input_hash, result, error, linked)
    SELECT u.id, u.generation, r.ordinal, r.attempts, coalesce(to_timestamp(r.began), (SELECT holdfast.now())), coalesce(r.ended, (SELECT holdfast.now())), r.key, r.kind, r.outcome,
           decode(r.input_hash, 'hex'), r.result::jsonb, r.error::jsonb, r.linked
    FROM ROWS FROM (unnest($5::uuid[]), unnest($6::text::bigint[]), unnest($7::text::text[])) WITH ORDINALITY AS u(id, generation, made, n)
    CROSS JOIN LATERAL jsonb_to_recordset((u.made::jsonb)->'rows')
        AS r(ordinal int, attempts int, began float8, ended timestamptz, key text, kind text, outcome text, input_hash text, result text, error text, linked uuid)
    ORDER BY u.n
    ON CONFLICT (run_id, key) DO UPDATE
    SET generation = EXCLUDED.generation, attempts = EXCLUDED.attempts, ended_at = EXCLUDED.ended_at, outcome = EXCLUDED.outcome, result = EXCLUDED.result,
        error = EXCLUDED.error, n = EXCLUDED.n, linked = coalesce(EXCLUDED.linked, s.linked)
    WHERE s.outcome IN ('retrying', 'calling')
    RETURNING s.run_id
)
SELECT holdfast.workflow_end($1::uuid[], $2::text::text[], $3::text::text[], $4::text::text[]) FROM (SELECT count(*) FROM put) AS written;

-- name: workflow_mark
-- Runs whose code diverged from their history: they wait, held, for other code.
-- $1 ids, $2 errors
UPDATE holdfast.workflow_runs r SET state = 'diverged', error = u.error::jsonb
FROM unnest($1::uuid[], $2::text::text[]) AS u(id, error) WHERE r.id = u.id AND r.ended_at IS NULL;

-- name: workflow_lost
-- $1 how many, $2 seconds since the last look
SELECT l.ended, l.looked FROM holdfast.workflow_settle_lost($1::int, make_interval(secs => $2::float8)) l;

-- name: workflow_seen
-- The workflows that this worker has.
-- $1 workflows, $2 versions, $3 queues, $4 inputs
INSERT INTO holdfast.workflow_types AS t (workflow, version, queue, input, seen_at)
SELECT u.workflow, u.version, u.queue, u.input::jsonb, holdfast.now() FROM unnest($1::text[], $2::int[], $3::text[], $4::text[]) AS u(workflow, version, queue, input)
ORDER BY u.workflow, u.version
ON CONFLICT (workflow, version) DO UPDATE SET queue = EXCLUDED.queue, input = EXCLUDED.input, seen_at = EXCLUDED.seen_at;

-- name: empty_workflow_slots
-- $1 how many rows
SELECT holdfast.empty_workflow_slots($1);
