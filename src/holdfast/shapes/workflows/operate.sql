-- Operators' questions about workflows, and those of the test kit.

-- part: workflow_view
-- A run as an operator sees it: `r` is the run, `w` its job. Its waits count only while its job is as it was when it was put away.
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

-- part: workflow_listed
-- The rows that a page looks at, the newest first: ids begin with the time, by another clock than ours, so the first of them are a minute too many.
looked AS (
    SELECT r.id, r.workflow, r.queue, r.state, r.tags, r.created_at, r.ended_at, r.paused_at, r.asleep FROM holdfast.workflow_runs r
    WHERE r.id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      AND r.id >= coalesce(rpad(lpad(to_hex((extract(epoch FROM holdfast.now() - make_interval(secs => $2::float8 + 60)) * 1000)::bigint), 12, '0'), 32, '0')::uuid,
                           '00000000-0000-0000-0000-000000000000')
    ORDER BY r.id DESC LIMIT $3::int
)

-- part: workflow_listed_wrong
-- Of those alone that have an error: every run that failed, was cancelled, terminated or set aside. They have an index of their own.
looked AS (
    SELECT r.id, r.workflow, r.queue, r.state, r.tags, r.created_at, r.ended_at, r.paused_at, r.asleep FROM holdfast.workflow_runs r
    WHERE r.id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      AND r.id >= coalesce(rpad(lpad(to_hex((extract(epoch FROM holdfast.now() - make_interval(secs => $2::float8 + 60)) * 1000)::bigint), 12, '0'), 32, '0')::uuid,
                           '00000000-0000-0000-0000-000000000000')
      AND r.error IS NOT NULL
    ORDER BY r.id DESC LIMIT $3::int
)

-- part: workflow_fitting
, found AS MATERIALIZED (
    SELECT r.id FROM looked r
    LEFT JOIN LATERAL (SELECT w.status, w.lease_generation FROM holdfast.work w WHERE $6::text[] IS NOT NULL AND w.queue = r.queue AND w.id = r.id AND r.ended_at IS NULL OFFSET 0) w ON true
    WHERE ($5::text IS NULL OR r.workflow = $5) AND ($7::text IS NULL OR $7 = ANY (r.tags))
      AND ($2::float8 IS NULL OR r.created_at >= holdfast.now() - make_interval(secs => $2::float8))
      AND ($6::text[] IS NULL OR CASE WHEN r.ended_at IS NOT NULL THEN r.state WHEN r.paused_at IS NOT NULL THEN 'paused'
               WHEN r.state = 'diverged' AND w.status = 'held' THEN 'diverged' WHEN r.state = 'compensating' THEN 'compensating'
               WHEN w.status = 'pending' AND w.lease_generation = r.asleep THEN 'suspended' ELSE 'open' END = ANY ($6::text[]))
    LIMIT $4::int
)

-- name: workflow_list
-- Runs, the newest first, before a place: the matching ones of the next $3 rows. The shown details are read only for those.
-- $1 the place: a run's id, $2 seconds since it was started at most, $3 rows to look at, $4 how many, $5 workflow, $6 states, $7 tag
WITH
-- with part: workflow_listed
-- with part: workflow_fitting
SELECT
-- with part: workflow_view
FROM found f JOIN holdfast.workflow_runs r ON r.id = f.id
-- with part: workflow_job
ORDER BY r.id DESC;

-- name: workflow_list_wrong
-- The same of those that have an error.
-- $1 the place, $2 seconds since it was started at most, $3 rows to look at, $4 how many, $5 workflow, $6 states, $7 tag
WITH
-- with part: workflow_listed_wrong
-- with part: workflow_fitting
SELECT
-- with part: workflow_view
FROM found f JOIN holdfast.workflow_runs r ON r.id = f.id
-- with part: workflow_job
ORDER BY r.id DESC;

-- name: workflow_list_end
-- The last of the rows that a page reads; none: there are fewer, so there are no more.
-- $1 the place, $2 seconds since they were started, $3 rows to look at
WITH
-- with part: workflow_listed
SELECT r.id FROM looked r ORDER BY r.id DESC OFFSET $3::int - 1 LIMIT 1;

-- name: workflow_list_wrong_end
-- The same of those that have an error.
-- $1 the place, $2 seconds since they were started, $3 rows to look at
WITH
-- with part: workflow_listed_wrong
SELECT r.id FROM looked r ORDER BY r.id DESC OFFSET $3::int - 1 LIMIT 1;

-- name: workflow_open
-- Open runs with their input, in the order of their ids.
-- $1 workflow, $2 the id after which to begin, $3 how many
SELECT r.id, r.workflow, r.version, r.key, w.payload::text
FROM holdfast.workflow_runs r
CROSS JOIN LATERAL (SELECT w.payload FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id OFFSET 0) w
WHERE r.ended_at IS NULL AND ($1::text IS NULL OR r.workflow = $1) AND r.id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY r.id LIMIT $3::int;

-- name: workflow_timeline
-- The records of a run, in all its eras, in the order in which they were written: of an open era from its steps, of a folded one from the history: what had
-- not ended there lost. After them the steps that its owner reports as running.
-- $1 run
WITH owner AS MATERIALIZED (   -- the last one; of those before nothing is kept
    SELECT w.lease_generation, c.worker FROM holdfast.workflow_runs r JOIN holdfast.work w ON w.queue = r.queue AND w.id = r.id
    JOIN holdfast.claims c ON c.token = w.claim_token AND w.status = 'processing' WHERE r.id = $1::uuid
    UNION ALL SELECT d.lease_generation, d.claimed_by FROM holdfast.dead_letters d WHERE d.id = $1::uuid
    UNION ALL SELECT a.lease_generation, a.claimed_by FROM holdfast.archive a WHERE a.slot = ANY (holdfast.archive_slots_of($1::uuid)) AND a.id = $1::uuid
)
SELECT s.era, s.key, s.kind, CASE WHEN s.folded AND s.outcome IN ('calling', 'retrying') THEN 'cancelled' ELSE s.outcome END, s.ordinal, s.began_at, s.ended_at, s.attempts, s.generation,
       (SELECT o.worker FROM owner o WHERE o.lease_generation = s.generation LIMIT 1), s.result::text, s.error::text, s.linked
FROM (
    SELECT false AS folded, r.era, p.* FROM holdfast.workflow_runs r JOIN holdfast.workflow_steps p ON p.run_id = r.id WHERE r.id = $1::uuid
    UNION ALL
    SELECT true, h.era, p.*
    FROM holdfast.workflow_history h CROSS JOIN LATERAL jsonb_array_elements(h.steps) AS e(row)
    CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_steps, e.row || jsonb_build_object('run_id', h.run_id)) p
    WHERE h.run_id = $1::uuid
    UNION ALL
    SELECT false, a.era, p.*
    FROM holdfast.workflow_at_work a JOIN holdfast.workflow_runs r ON r.id = a.run_id AND r.era = a.era AND r.ended_at IS NULL
    JOIN holdfast.work w ON w.queue = r.queue AND w.id = r.id AND w.status = 'processing' AND w.lease_generation = a.generation
    CROSS JOIN LATERAL jsonb_array_elements(a.steps) AS e(row)
    CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_steps, e.row || jsonb_build_object(
        'generation', a.generation, 'outcome', 'running', 'began_at', to_timestamp((e.row->>'began')::float8))) p
    WHERE a.run_id = $1::uuid
      AND NOT EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id = a.run_id AND s.key = p.key AND s.outcome <> 'retrying')
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
-- A run that diverged from its code is tried again, by the current code of workers: if its job is unchanged since it was read.
-- $1 queue, $2 run, $3 generation, $4 keys of records that lose their place: they no longer block code that does not ask for them
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

-- name: workflow_drop_signal
-- A signal that code cannot take is dropped, and its key may be sent again. The call that took it is asked again, and whatever else it took is unread again.
-- $1 run, $2 the key of that call, $3 which of those that it took
WITH bad AS MATERIALIZED (
    SELECT s.seq, s.idempotency_key FROM holdfast.workflow_signals s WHERE s.run_id = $1::uuid AND s.taken_by = $2 ORDER BY s.seq OFFSET $3::int - 1 LIMIT 1
), others AS (
    UPDATE holdfast.workflow_signals s SET taken_by = NULL FROM bad b WHERE s.run_id = $1::uuid AND s.taken_by = $2 AND s.seq <> b.seq
), record AS (
    DELETE FROM holdfast.workflow_steps s USING bad WHERE s.run_id = $1::uuid AND s.key = $2
), key AS (
    DELETE FROM holdfast.workflow_signal_keys k USING bad b WHERE k.run_id = $1::uuid AND k.idempotency_key = b.idempotency_key
)
DELETE FROM holdfast.workflow_signals s USING bad b WHERE s.run_id = $1::uuid AND s.seq = b.seq RETURNING s.name;

-- name: workflow_leave_out
-- A run that was forked does not get the signal for which the old one was set aside.
-- $1 the new run, $2 the old one, $3 the key of the call that took it there, $4 which of those that it took
DELETE FROM holdfast.workflow_signals s
WHERE s.run_id = $1::uuid AND s.taken_by IS NULL AND s.seq = (SELECT o.seq FROM holdfast.workflow_signals o WHERE o.run_id = $2::uuid AND o.taken_by = $3 ORDER BY o.seq OFFSET $4::int - 1 LIMIT 1)
RETURNING s.name;

-- name: workflow_retrying
-- $1 run
SELECT s.key, s.attempts, s.error::text FROM holdfast.workflow_steps s WHERE s.run_id = $1::uuid AND s.outcome = 'retrying' ORDER BY s.n LIMIT 5;

-- part: workflow_oldest
-- Open runs, the oldest first: at most $1 jobs of each queue that workflows have are read.
oldest AS MATERIALIZED (
    SELECT r.id, r.workflow, r.key, r.version, r.queue, r.created_at, r.parent_id, r.on_cancel, r.cancel_requested_at, r.paused_at, r.waits, r.asleep, r.state, r.era,
           w.status, w.lease_generation, w.available_at
    FROM (SELECT t.queue FROM holdfast.workflow_types t UNION SELECT 'workflows') q
    CROSS JOIN LATERAL (SELECT w.id, w.status, w.lease_generation, w.available_at FROM holdfast.work w WHERE w.queue = q.queue ORDER BY w.id LIMIT $1::int) w
    JOIN holdfast.workflow_runs r ON r.id = w.id AND r.ended_at IS NULL
)

-- name: workflow_lost_runs
-- Of the oldest runs ($1 rows are read), those that are open and have no job.
-- $1 how many
SELECT r.id, r.workflow, r.key, 'lost'
FROM (SELECT r.* FROM holdfast.workflow_runs r ORDER BY r.id LIMIT $1::int) r
WHERE r.ended_at IS NULL AND r.created_at < holdfast.now() - interval '1 minute'
  AND NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id OFFSET 0)
ORDER BY r.id LIMIT 100;

-- name: workflow_stuck
-- Runs that sleep without anything that could wake them, or though it is there.
-- $1 how many
WITH
-- with part: workflow_oldest
SELECT s.id, s.workflow, s.key, CASE WHEN u.there THEN 'it has unread messages that it waits for' ELSE 'it waits for nothing that is open' END
FROM oldest s
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM holdfast.workflow_signals g WHERE g.run_id = s.id AND g.taken_by IS NULL AND g.name = ANY (s.waits)) AS there) u
WHERE s.status = 'pending' AND s.lease_generation = s.asleep AND s.available_at > holdfast.now() AND s.paused_at IS NULL
  AND (u.there OR (s.available_at >= '9999-01-01Z' AND NOT EXISTS (
      SELECT FROM unnest(s.waits) AS w(name)
      WHERE w.name !~ '^(child|call):'
         OR EXISTS (SELECT FROM holdfast.workflow_runs c WHERE c.parent_id = s.id AND 'child:' || c.parent_key = w.name AND c.ended_at IS NULL)
         OR EXISTS (SELECT FROM holdfast.workflow_steps p JOIN holdfast.workflow_runs c ON c.id = p.linked   -- that somebody else has started
                    WHERE p.run_id = s.id AND p.key = substr(w.name, 7) AND w.name ~ '^child:' AND c.ended_at IS NULL)
         OR EXISTS (SELECT FROM holdfast.workflow_calls c WHERE c.run_id = s.id AND 'call:' || c.key = w.name))))
ORDER BY s.id LIMIT 100;

-- name: workflow_orphans
-- Open runs that were to end with the run that started them, and were not asked to though that has ended.
-- $1 how many
WITH
-- with part: workflow_oldest
SELECT c.id, c.workflow, c.key, 'its parent ' || c.parent_id || ' has ended'
FROM oldest c
WHERE c.parent_id IS NOT NULL AND c.on_cancel = 'cancel' AND c.cancel_requested_at IS NULL
  AND NOT EXISTS (SELECT FROM holdfast.workflow_runs p WHERE p.id = c.parent_id AND p.ended_at IS NULL)
ORDER BY c.id LIMIT 100;

-- name: workflow_torn
-- Runs whose rows contradict each other: a record under a claim that was never given, a signal taken by a record that is not there, an era that was folded and
-- continues, or records and a job that are there after the end. A job that an operator brought back opens a run that failed or was cancelled again.
-- $1 how many
WITH
-- with part: workflow_oldest
SELECT t.id, t.workflow, t.key, t.trouble
FROM (
    SELECT o.id, o.workflow, o.key, CASE
               WHEN EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id = o.id AND s.generation > o.lease_generation)
                   THEN 'it has a record of a claim that was never given'
               WHEN EXISTS (SELECT FROM holdfast.workflow_signals g WHERE g.run_id = o.id AND g.taken_by IS NOT NULL AND g.name !~ ':'
                            AND NOT EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id = o.id AND s.key = g.taken_by))
                   THEN 'a signal was taken by a record that is not there'
               WHEN EXISTS (SELECT FROM holdfast.workflow_history h WHERE h.run_id = o.id AND h.era = o.era)
                   THEN 'its era was folded, and continues'
           END AS trouble
    FROM oldest o
    UNION ALL
    SELECT r.id, r.workflow, r.key, CASE
               WHEN EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id = r.id) THEN 'it has ended, and has records that were not folded'
               WHEN r.state IN ('completed', 'terminated') AND EXISTS (SELECT FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id OFFSET 0)
                   THEN 'it has ended, and has a job'
           END
    FROM (SELECT e.* FROM holdfast.workflow_runs e ORDER BY e.id LIMIT $1::int) r WHERE r.ended_at IS NOT NULL
) t
WHERE t.trouble IS NOT NULL
ORDER BY t.id LIMIT 100;

-- name: workflow_unknown
-- Versions of open runs that no live worker of their queue knows: how many runs, and for how long the oldest of them is there. Where nobody lives at all,
-- only those that were set aside.
-- $1 how many, $2 seconds after which a silent worker counts as gone
WITH
-- with part: workflow_oldest
, live AS MATERIALIZED (
    SELECT v.queues, v.tasks, v.signatures FROM holdfast.workers v WHERE v.status = 'alive' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $2::float8)
)
SELECT g.queue, g.workflow, g.version, g.runs, g.seconds
FROM (SELECT o.queue, o.workflow, o.version, count(*) AS runs, count(*) FILTER (WHERE o.status = 'held') AS held,
             extract(epoch FROM holdfast.now() - min(o.created_at))::float8 AS seconds
      FROM oldest o GROUP BY o.queue, o.workflow, o.version) g
WHERE (g.held > 0 OR EXISTS (SELECT FROM live))
  AND NOT EXISTS (SELECT FROM live v WHERE g.queue = ANY (v.queues)
                  AND CASE WHEN v.signatures IS NULL THEN g.workflow = ANY (v.tasks) ELSE v.signatures -> (g.workflow || '/' || g.version) IS NOT NULL END)
ORDER BY g.workflow, g.version, g.queue;

-- name: workflow_parted
-- Runs that were set aside because their code diverged from their history, by workflow and version, counted up to the cap.
-- $1 cap
SELECT h.workflow, h.version, count(*), (array_agg(h.id ORDER BY h.id))[1:5], (array_agg(h.hold_reason ORDER BY h.id))[1]
FROM (SELECT r.id, r.workflow, r.version, j.hold_reason FROM holdfast.work j JOIN holdfast.workflow_runs r ON r.id = j.id
      WHERE j.hold_reason IS NOT NULL AND j.status = 'held' AND r.state = 'diverged' LIMIT $1::int) h
GROUP BY h.workflow, h.version ORDER BY h.workflow, h.version;

-- name: workflow_measured
-- Open runs by workflow and state, of the oldest.
-- $1 how many
WITH
-- with part: workflow_oldest
SELECT o.workflow, CASE WHEN o.paused_at IS NOT NULL THEN 'paused' WHEN o.state = 'diverged' AND o.status = 'held' THEN 'diverged' WHEN o.state = 'compensating' THEN 'compensating'
                        WHEN o.status = 'pending' AND o.lease_generation = o.asleep AND o.available_at > holdfast.now() THEN 'suspended' ELSE 'open' END AS state, count(*)
FROM oldest o GROUP BY 1, 2 ORDER BY 1, 2;

-- name: workflow_parted_for
-- Seconds for which the run is set aside that diverged from its code first; NULL: there is none.
-- $1 cap
SELECT extract(epoch FROM holdfast.now() - min(h.claimed_at))::float8
FROM (SELECT j.claimed_at FROM holdfast.work j JOIN holdfast.workflow_runs r ON r.id = j.id
      WHERE j.hold_reason IS NOT NULL AND j.status = 'held' AND r.state = 'diverged' LIMIT $1::int) h;
