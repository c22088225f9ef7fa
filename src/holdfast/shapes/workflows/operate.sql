-- What operators ask of workflows, and the test kit.

-- part: workflow_view
-- A run as an operator sees it: `r` is the run, `w` its job. What it waits for counts only while it lies where it lay down.
       r.id, r.workflow, r.key, r.version, r.queue,
       CASE WHEN r.ended_at IS NOT NULL THEN r.state WHEN r.paused_at IS NOT NULL THEN 'paused'
            WHEN r.state = 'diverged' AND w.status = 'held' THEN 'diverged' WHEN r.state = 'compensating' THEN 'compensating'
            WHEN w.status = 'pending' AND w.lease_generation = r.asleep THEN 'suspended' ELSE 'open' END AS state,
       r.era, r.created_at, r.ended_at, r.deadline,
       CASE WHEN w.lease_generation = r.asleep AND w.status = 'pending' THEN r.waits END,
       CASE WHEN w.lease_generation = r.asleep AND w.status = 'pending' THEN least(r.wake_at, '9999-01-01Z') END,
       r.cancel_requested_at, r.cancel_reason, r.paused_at, r.parent_id, r.parent_key, r.tags, r.shown::text, r.result::text, r.error::text, r.replaced_by,
       w.status, w.hold_reason, w.lease_generation, least(w.available_at, '9999-01-01Z'),
       (SELECT c.worker FROM holdfast.claims c WHERE w.status = 'processing' AND c.token = w.claim_token),
       (SELECT count(*) FROM holdfast.workflow_signals s WHERE s.run_id = r.id AND s.taken_by IS NULL AND s.name !~ ':'), holdfast.now(),
       r.forked_from, r.forked_key

-- part: workflow_job
LEFT JOIN LATERAL (SELECT w.status, w.hold_reason, w.lease_generation, w.available_at, w.claim_token FROM holdfast.work w
                   WHERE w.queue = r.queue AND w.id = r.id AND r.ended_at IS NULL OFFSET 0) w ON true

-- name: workflow_find
-- Runs of this id: by their own uuid, or what they were started with, in any workflow that there is or in one. The newest of each.
-- $1 uuid, $2 key, $3 workflow
WITH RECURSIVE names(workflow) AS (
    (SELECT r.workflow FROM holdfast.workflow_runs r WHERE r.replaced_by IS NULL AND $3::text IS NULL ORDER BY r.workflow LIMIT 1)
    UNION ALL
    SELECT (SELECT r.workflow FROM holdfast.workflow_runs r WHERE r.replaced_by IS NULL AND r.workflow > n.workflow ORDER BY r.workflow LIMIT 1)
    FROM names n WHERE n.workflow IS NOT NULL
), found AS MATERIALIZED (
    SELECT r.id FROM holdfast.workflow_runs r WHERE r.id = $1::uuid AND ($3::text IS NULL OR r.workflow = $3)
    UNION
    SELECT k.id FROM (SELECT n.workflow FROM names n WHERE n.workflow IS NOT NULL UNION SELECT $3 WHERE $3 IS NOT NULL) n
    CROSS JOIN LATERAL (SELECT r.id FROM holdfast.workflow_runs r WHERE r.workflow = n.workflow AND r.key = $2::text AND r.replaced_by IS NULL OFFSET 0) k
)
SELECT
-- with part: workflow_view
FROM found f JOIN holdfast.workflow_runs r ON r.id = f.id
-- with part: workflow_job
ORDER BY r.workflow, r.id;

-- name: workflow_list
-- Runs, the newest first, of those before a place: of the next $4 rows those that fit.
-- $1 workflow, $2 states, $3 the place: a run's id, $4 rows to look at, $5 how many
SELECT v.* FROM (
    SELECT
-- with part: workflow_view
    FROM (SELECT r.* FROM holdfast.workflow_runs r WHERE r.id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') ORDER BY r.id DESC LIMIT $4::int) r
-- with part: workflow_job
    WHERE ($1::text IS NULL OR r.workflow = $1)
    ORDER BY r.id DESC OFFSET 0
) v
WHERE $2::text[] IS NULL OR v.state = ANY ($2::text[])
LIMIT $5::int;

-- name: workflow_open
-- Open runs with their input, in the order of their ids.
-- $1 workflow, $2 the id after which to begin, $3 how many
SELECT r.id, r.workflow, r.version, r.key, w.payload::text
FROM holdfast.workflow_runs r
CROSS JOIN LATERAL (SELECT w.payload FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id OFFSET 0) w
WHERE r.ended_at IS NULL AND ($1::text IS NULL OR r.workflow = $1) AND r.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY r.id LIMIT $3::int;

-- name: workflow_list_end
-- The last of the next $2 rows; none: there are fewer.
-- $1 the place, $2 rows to look at
SELECT r.id FROM holdfast.workflow_runs r WHERE r.id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') ORDER BY r.id DESC OFFSET $2::int - 1 LIMIT 1;

-- name: workflow_timeline
-- What a run recorded, in all its eras, in the order in which it was written: of an open era from its steps, of a folded one from the history.
-- $1 run
SELECT s.era, s.key, s.kind, s.outcome, s.ordinal, s.began_at, s.ended_at, s.attempts, s.generation, s.result::text, s.error::text, s.linked
FROM (
    SELECT r.era, p.* FROM holdfast.workflow_runs r JOIN holdfast.workflow_steps p ON p.run_id = r.id WHERE r.id = $1::uuid
    UNION ALL
    SELECT h.era, p.*
    FROM holdfast.workflow_history h CROSS JOIN LATERAL jsonb_array_elements(h.steps) AS e(row)
    CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_steps, e.row || jsonb_build_object('run_id', h.run_id)) p
    WHERE h.run_id = $1::uuid
) s
ORDER BY s.era, s.n;

-- name: workflow_messages
-- The signals that were sent to a run, oldest first. Ours, about children and called jobs, are left out.
-- $1 run
SELECT s.name, s.payload::text, substr(s.idempotency_key, 6), s.sent_at, s.taken_by
FROM (
    SELECT p.* FROM holdfast.workflow_signals p WHERE p.run_id = $1::uuid
    UNION ALL
    SELECT p.*
    FROM holdfast.workflow_history h CROSS JOIN LATERAL jsonb_array_elements(h.signals) AS e(row)
    CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_signals, e.row || jsonb_build_object('run_id', h.run_id)) p
    WHERE h.run_id = $1::uuid
) s
WHERE s.name !~ ':'
ORDER BY s.seq;

-- name: workflow_hold
-- Lock a run until the end of the transaction: it neither ends nor is restarted before. Returns its state if it has ended.
-- $1 run
SELECT CASE WHEN r.ended_at IS NOT NULL THEN r.state END FROM holdfast.workflow_runs r WHERE r.id = $1::uuid FOR NO KEY UPDATE;

-- name: workflow_take_up
-- A run that parted from its code is to be tried again, by whatever code workers have now: as long as it lies where it was looked at.
-- $1 queue, $2 run, $3 generation, $4 keys of records that lose their place: they are no longer in the way of code that does not ask for them
WITH job AS (
    UPDATE holdfast.work w SET status = 'pending', hold_reason = NULL, attempts = 0, crashes = 0, suspect = 0, available_at = holdfast.now()
    WHERE w.queue = $1 AND w.id = $2::uuid AND w.status = 'held' AND w.lease_generation = $3::bigint RETURNING w.id
), step AS (
    UPDATE holdfast.workflow_steps s SET ordinal = NULL FROM job WHERE s.run_id = job.id AND s.key = ANY ($4::text[])
), run AS (
    UPDATE holdfast.workflow_runs r SET state = 'open', error = NULL FROM job WHERE r.id = job.id AND r.ended_at IS NULL
)
SELECT job.id FROM job;

-- name: workflow_input
-- $1 queue, $2 run
SELECT w.payload::text FROM holdfast.work w WHERE w.queue = $1 AND w.id = $2::uuid;

-- name: workflow_forget_failures
-- Of an open run: the failures that its records end with are forgotten, so that those steps are made again.
-- $1 run
DELETE FROM holdfast.workflow_steps s
WHERE s.run_id = $1::uuid AND s.outcome = 'failed'
  AND s.n > coalesce((SELECT max(o.n) FROM holdfast.workflow_steps o WHERE o.run_id = $1::uuid AND o.outcome <> 'failed'), 0)
RETURNING s.key;

-- name: workflow_reopen_now
-- $1 run
SELECT holdfast.workflow_reopen($1::uuid);

-- name: workflow_open_children
-- Of the children that a run started with these keys, those that have not ended.
-- $1 run, $2 keys
SELECT c.parent_key FROM holdfast.workflow_runs c WHERE c.parent_id = $1::uuid AND c.parent_key = ANY ($2::text[]) AND c.ended_at IS NULL ORDER BY c.parent_key;

-- name: workflow_fork
-- $1 run, $2 the keys of what it is given, $3 the key from which on it is made again, $4 id, $5 version
SELECT f.run_id, f.conflict FROM holdfast.workflow_fork($1::uuid, $2::text[], $3, $4::text, $5::int) f;
