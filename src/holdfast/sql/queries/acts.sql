-- name: locate_jobs
-- Where the named jobs are, in one snapshot: (id, queue, table).
-- $1 ids
SELECT w.id, w.queue, 'work' FROM holdfast.work w WHERE w.id = ANY ($1::uuid[])
UNION ALL
SELECT d.id, d.queue, 'dead_letters' FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[])
UNION ALL
SELECT a.id, a.queue, 'archive'
FROM unnest($1::uuid[]) AS i(id) CROSS JOIN LATERAL unnest(holdfast.archive_slots_of(i.id)) AS s(slot)
CROSS JOIN LATERAL (SELECT a.id, a.queue FROM holdfast.archive a WHERE a.slot = s.slot AND a.id = i.id OFFSET 0) a;

-- name: lock_jobs
-- Lock live jobs of a queue that nobody else holds at this moment, and say how each stands.
-- $1 queue, $2 ids
SELECT w.id, w.queue, 'work', w.task, w.status,
       CASE WHEN w.id IN (SELECT q.id FROM holdfast.quarantine q) THEN 'quarantined'
            WHEN w.status = 'pending' AND w.available_at > holdfast.now() THEN 'scheduled' ELSE w.status END,
       w.hold_reason, w.claim_token, w.created_at, 0, true, EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = w.id),
       w.suspect
FROM holdfast.work w WHERE w.queue = $1 AND w.id = ANY ($2::uuid[]) ORDER BY w.id FOR UPDATE OF w SKIP LOCKED;

-- name: lock_dead
-- Lock dead letters that nobody else holds at this moment, and say of each whether its queue is there.
-- $1 ids
SELECT d.id, d.queue, 'dead_letters', d.task, 'dead_letter', 'dead_letter', NULL::text, d.claim_token, d.created_at, 0,
       EXISTS (SELECT FROM holdfast.queues q WHERE q.name = d.queue)
FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]) ORDER BY d.id FOR UPDATE OF d SKIP LOCKED;

-- name: lock_archived
-- Lock finished jobs that nobody else holds at this moment, and say of each whether its queue is there.
-- $1 ids
SELECT a.id, a.queue, 'archive', a.task, a.status, a.status, NULL::text, a.claim_token, a.created_at, a.slot,
       EXISTS (SELECT FROM holdfast.queues q WHERE q.name = a.queue)
FROM unnest($1::uuid[]) AS i(id) CROSS JOIN LATERAL unnest(holdfast.archive_slots_of(i.id)) AS s(slot)
CROSS JOIN LATERAL (SELECT a.id, a.slot, a.queue, a.task, a.status, a.claim_token, a.created_at FROM holdfast.archive a
                    WHERE a.slot = s.slot AND a.id = i.id FOR UPDATE SKIP LOCKED) a;

-- name: lock_claims
-- Of these claims those that hold: not revoked, and locked so that nobody revokes them before the commit.
-- $1 tokens
SELECT c.token FROM holdfast.claims c WHERE c.token = ANY ($1::uuid[]) AND c.revoked_at IS NULL ORDER BY c.token FOR UPDATE;

-- name: known_claims
-- Of these claims those that there are, revoked or not. Read after the jobs were locked: a claim and its jobs change together.
-- $1 tokens
SELECT c.token FROM holdfast.claims c WHERE c.token = ANY ($1::uuid[]);

-- name: take_back
-- Quarantined jobs that no claim holds any more: no sweep would find them, so they go back to waiting here.
-- $1 queue, $2 ids
UPDATE holdfast.work SET status = 'pending', claim_token = '00000000-0000-0000-0000-000000000000'
WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status = 'processing' RETURNING id;

-- name: forget_quarantine
-- Jobs are no longer left alone.
-- $1 ids
DELETE FROM holdfast.quarantine WHERE id = ANY ($1::uuid[]) RETURNING id;

-- name: make_due
-- Jobs that wait for a later time are due now.
-- $1 queue, $2 ids
UPDATE holdfast.work SET available_at = holdfast.now()
WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status = 'pending' AND available_at > holdfast.now() RETURNING id;

-- name: lock_archived_streams
-- Lock the streams that finished jobs go back to, until the commit.
-- $1 ids, $2 slots
SELECT holdfast.lock_streams(o.queue, o.keys)
FROM (SELECT a.queue, array_agg(a.partition_key) AS keys FROM holdfast.archive a JOIN holdfast.queues q ON q.name = a.queue AND q.ordering = 'key'
      WHERE a.slot = ANY ($2::int[]) AND a.id = ANY ($1::uuid[]) GROUP BY a.queue ORDER BY a.queue) o;

-- name: revive
-- Cancelled jobs go back to waiting with a fresh set of attempts. The generation is kept, so that every fence is higher than the last; in
-- a queue ordered by key they go to the end of their stream, under its lock. The reason of the cancel is no error of the job's: its last error is that of its last failed attempt.
-- $1 ids, $2 slots, $3 only those that were cancelled until then: they wait for what they waited for, with the attempts and crashes that they have,
-- $4 and with it, which of them run apart from others
WITH gone AS (
    DELETE FROM holdfast.archive a WHERE a.slot = ANY ($2::int[]) AND a.id = ANY ($1::uuid[]) AND a.status = 'cancelled'
        AND ($3::timestamptz IS NULL OR a.completed_at <= $3)
    RETURNING *
), freed AS (
    DELETE FROM holdfast.quarantine q WHERE q.id = ANY ($1::uuid[]) AND q.id IN (SELECT id FROM gone)
)
INSERT INTO holdfast.work (id, seq, lease_generation, available_at, created_at, claimed_at, attempts, max_attempts, version, suspect, crashes,
                           priority, queue, status, task, partition_key, partition_bucket, payload, last_error, tags, metadata, claim_token,
                           parent_id, group_id, follow_ups)
SELECT g.id, CASE WHEN (SELECT q.ordering FROM holdfast.queues q WHERE q.name = g.queue) = 'key' THEN nextval('holdfast.work_seq') ELSE g.seq END,
       g.lease_generation, CASE WHEN $3 IS NOT NULL THEN g.available_at ELSE holdfast.now() END, g.created_at, holdfast.now(),
       CASE WHEN $3 IS NOT NULL THEN g.attempts ELSE 0 END, g.max_attempts, g.version,
       (g.id = ANY ($4::uuid[]))::int, CASE WHEN $3 IS NOT NULL THEN g.crashes ELSE 0 END,
       g.priority, g.queue, 'pending', g.task, g.partition_key, coalesce(holdfast.bucket(g.partition_key), 0), g.payload,
       (SELECT left(CASE WHEN e.message = '' THEN e.kind ELSE e.kind || ': ' || e.message END, 8192) FROM holdfast.errors e
        WHERE e.job_id = g.id ORDER BY e.at DESC, e.generation DESC LIMIT 1), g.tags, g.metadata,
       '00000000-0000-0000-0000-000000000000', g.parent_id,
       -- a group that takes any end has counted it already, and counts it no more
       (SELECT b.id FROM holdfast.groups b WHERE b.id = g.group_id AND b.wanted = 'completed'), g.follow_ups
FROM (SELECT * FROM gone ORDER BY seq) g
RETURNING id;

-- name: counted_ends
-- Of cancelled jobs those whose group takes any end, or is over or gone: somebody has gone on without them.
-- $1 ids, $2 slots
SELECT a.id FROM holdfast.archive a
WHERE a.slot = ANY ($2::int[]) AND a.id = ANY ($1::uuid[]) AND a.group_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM holdfast.groups b WHERE b.id = a.group_id AND b.wanted = 'completed' AND b.finished_at IS NULL)
ORDER BY a.id;

-- name: discard_live
-- Jobs that are not running are deleted for good.
-- $1 queue, $2 ids
DELETE FROM holdfast.work WHERE queue = $1 AND id = ANY ($2::uuid[]) AND status <> 'processing' RETURNING id, group_id;

-- name: discard_dead
-- Dead letters are deleted for good.
-- $1 ids
DELETE FROM holdfast.dead_letters WHERE id = ANY ($1::uuid[]) RETURNING id, group_id;

-- name: discard_archived
-- Finished jobs are deleted for good.
-- $1 ids, $2 slots
DELETE FROM holdfast.archive WHERE slot = ANY ($2::int[]) AND id = ANY ($1::uuid[]) RETURNING id, CASE status WHEN 'cancelled' THEN group_id END;

-- name: discard_beside
-- Rows beside jobs that are deleted: errors, steps, progress, fences of their own, and their keys, which are free again.
-- $1 ids, $2 when the oldest of them was created
--
-- Fences have no index by job, but a time: a fence is younger than its job.
WITH e AS (
    DELETE FROM holdfast.errors x WHERE x.job_id = ANY ($1::uuid[])
), o AS (
    DELETE FROM holdfast.once x WHERE x.job_id = ANY ($1::uuid[])
), p AS (
    DELETE FROM holdfast.progress x WHERE x.job_id = ANY ($1::uuid[])
), q AS (
    DELETE FROM holdfast.quarantine x WHERE x.id = ANY ($1::uuid[])
), f AS (
    DELETE FROM holdfast.fences x WHERE x.at >= $2 AND x.job_id = ANY ($1::uuid[]) AND x.stream = x.job_id::text
), k AS (
    DELETE FROM holdfast.idempotency x WHERE x.job_id = ANY ($1::uuid[])
)
SELECT 1;

-- name: look_at_edit
-- A job that is locked, as it is, and its payload as it would be: some arguments taken out, others put in. The database merges, so that
-- what is not named stays as it was, to the last digit.
-- $1 queue, $2 id, $3 names to take out, $4 arguments to put in (JSON)
SELECT task, version, priority, max_attempts, available_at, tags, payload::text, ((payload - $3::text[]) || $4::text::jsonb)::text
FROM holdfast.work WHERE queue = $1 AND id = $2
UNION ALL
SELECT task, version, priority, max_attempts, available_at, tags, payload::text, ((payload - $3::text[]) || $4::text::jsonb)::text
FROM holdfast.dead_letters WHERE id = $2;

-- name: look_at_copy
-- A job that is finished or dead and locked, as it is, and the payload of a copy: some arguments taken out, others put in. The last: whether something
-- follows it, and whether it is a run of a workflow.
-- $1 id, $2 slot of the archive, $3 names to take out, $4 arguments to put in (JSON)
SELECT c.task, c.version, c.priority, c.max_attempts, c.available_at, c.tags, c.payload::text, ((c.payload - $3::text[]) || $4::text::jsonb)::text,
       c.partition_key, c.metadata::text, c.follow_ups IS NOT NULL, EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = $1)
FROM (SELECT a.task, a.version, a.priority, a.max_attempts, a.available_at, a.tags, a.payload, a.partition_key, a.metadata, a.follow_ups
      FROM holdfast.archive a WHERE a.slot = $2 AND a.id = $1
      UNION ALL
      SELECT d.task, d.version, d.priority, d.max_attempts, d.available_at, d.tags, d.payload, d.partition_key, d.metadata, d.follow_ups
      FROM holdfast.dead_letters d WHERE d.id = $1) c;

-- name: edit_live
-- Change a job that is not running; what is NULL stays. Which signatures refused its payload says nothing of another one.
-- $1 queue, $2 id, $3 payload (JSON), $4 priority, $5 max_attempts, $6 due at, $7 due in seconds, $8 tags (empty: none)
WITH forgotten AS (DELETE FROM holdfast.misfits m WHERE m.job_id = $2 AND $3::text IS NOT NULL)
UPDATE holdfast.work
SET payload = coalesce($3::text::jsonb, payload), priority = coalesce($4::smallint, priority), max_attempts = coalesce($5::int, max_attempts),
    available_at = CASE WHEN $6::timestamptz IS NOT NULL THEN greatest($6, holdfast.now())
                        ELSE coalesce(holdfast.now() + make_interval(secs => $7::float8), available_at) END,
    tags = CASE WHEN $8::text[] IS NULL THEN tags ELSE nullif($8::text[], '{}') END
WHERE queue = $1 AND id = $2 AND status <> 'processing'
RETURNING id;

-- name: edit_dead
-- Change a dead letter; what is NULL stays.
-- $1 id, $2 payload (JSON), $3 priority, $4 max_attempts, $5 tags (empty: none)
UPDATE holdfast.dead_letters
SET payload = coalesce($2::text::jsonb, payload), priority = coalesce($3::smallint, priority), max_attempts = coalesce($4::int, max_attempts),
    tags = CASE WHEN $5::text[] IS NULL THEN tags ELSE nullif($5::text[], '{}') END
WHERE id = $1
RETURNING id;
