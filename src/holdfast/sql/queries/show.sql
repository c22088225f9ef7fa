-- name: summarize_jobs
-- The named jobs, wherever they are now, a line each.
-- $1 ids
SELECT id, queue, task, status, priority, attempts, max_attempts, created_at, available_at, claimed_by, lease_expires_at, completed_at,
       last_error, hold_reason
FROM holdfast.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id DESC;

-- name: show_job
-- One job, wherever it is now, with the server's timeline for its fence.
-- $1 id
SELECT id, queue, task, status, priority, attempts, max_attempts, created_at, available_at, claimed_by, lease_expires_at, completed_at,
       last_error, hold_reason, version, crashes, lease_generation, seq, partition_key, partition_bucket, payload::text, result::text,
       claimed_at, cancel_requested_at, tags, metadata::text, extract(epoch FROM lease_expires_at - holdfast.now())::float8,
       CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, j.parent_id, j.group_id, j.follow_ups::text,
       coalesce((SELECT d.gives_up_at FROM holdfast.dead_letters d WHERE d.id = $1),
                (SELECT w.gives_up_at FROM holdfast.work w WHERE w.queue = j.queue AND w.id = $1))
FROM holdfast.jobs j WHERE j.id = $1;

-- name: ids_between
-- Some ids of jobs in a range of ids, wherever the jobs are now.
-- $1 the lowest id, $2 the highest, $3 limit
(SELECT w.id FROM holdfast.work w WHERE w.id BETWEEN $1::uuid AND $2::uuid ORDER BY w.id LIMIT $3)
UNION
(SELECT d.id FROM holdfast.dead_letters d WHERE d.id BETWEEN $1::uuid AND $2::uuid ORDER BY d.id LIMIT $3)
UNION
(SELECT a.id FROM holdfast.archive_slots s -- slot by slot: each is walked in the order of its index
 CROSS JOIN LATERAL (SELECT a.id FROM holdfast.archive a WHERE a.slot = s.slot AND a.id BETWEEN $1::uuid AND $2::uuid ORDER BY a.id LIMIT $3) a
 ORDER BY a.id LIMIT $3)
ORDER BY 1 LIMIT $3;

-- name: look_job
-- One job, wherever it is now, for its producer.
-- $1 id
SELECT id, task, queue, status, attempts, created_at, completed_at, result::text, last_error FROM holdfast.jobs WHERE id = $1;

-- name: show_errors
-- The newest failed attempts of a job, oldest of them first.
-- $1 id, $2 limit
SELECT * FROM (SELECT e.attempt, e.generation, e.at, e.worker, e.kind, e.message, e.trace FROM holdfast.errors e
               WHERE e.job_id = $1 ORDER BY e.at DESC LIMIT $2) newest
ORDER BY newest.at, newest.generation;

-- name: show_progress
-- The progress that a job reported.
-- $1 id
SELECT p.fraction, p.message, p.at, p.generation FROM holdfast.progress p WHERE p.job_id = $1;

-- name: show_steps
-- The records of once() of a job.
-- $1 id, $2 limit
SELECT o.name, o.at FROM holdfast.once o WHERE o.job_id = $1 ORDER BY o.at, o.name LIMIT $2;
