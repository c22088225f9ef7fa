-- name: runbook_begin
-- For this transaction: read only, end a query that takes too long, and do not compile plans. Where an index can serve,
-- walk it: statistics may be of a time when the table was empty.
-- $1 timeout, $2 does an index answer?
SELECT set_config('transaction_read_only', 'on', true), set_config('statement_timeout', $1, true), set_config('jit', 'off', true),
       CASE WHEN $2::boolean THEN set_config('enable_seqscan', 'off', true) END,
       CASE WHEN $2::boolean THEN set_config('enable_bitmapscan', 'off', true) END;

-- name: runbook_oldest_due
-- Since when the oldest due job of each queue waits, the longest first.
-- $1 queue, $2 limit
SELECT queue, age_seconds, paused, due_at, job_id, task
FROM holdfast.oldest_due
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY age_seconds DESC NULLS LAST, queue
LIMIT $2;

-- name: runbook_expired_claims
-- Claims past their lease that still have jobs, the oldest first.
-- $1 queue, $2 limit
SELECT queue, worker, worker_status, silent_seconds, expired_seconds, revoked_at, jobs, job_ids
FROM holdfast.expired_claims
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY expired_seconds DESC, worker
LIMIT $2;

-- name: runbook_dead_letters
-- Dead letters by task and key, the most first.
-- $1 queue, $2 limit
SELECT queue, task, partition_key, dead, first_died_at, last_died_at, latest_job_id, latest_error
FROM holdfast.dead_letters_by_task
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY dead DESC, last_died_at DESC, task, partition_key
LIMIT $2;

-- name: runbook_attempts
-- Live jobs that failed before: those that crash first, then those nearest to their last attempt.
-- $1 queue, $2 limit
SELECT queue, task, attempts, max_attempts, jobs, processing, suspects, most_crashes, next_at, latest_job_id, latest_error
FROM holdfast.attempts
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY most_crashes DESC, suspects DESC, max_attempts - attempts, jobs DESC, queue, task
LIMIT $2;

-- name: runbook_throughput
-- What each queue finished in each minute of the last hour, the newest first.
-- $1 queue, $2 limit
SELECT minute, queue, completed, failed, dead, cancelled, mean_run, mean_wait, max_wait
FROM holdfast.throughput_per_minute
WHERE ($1::text IS NULL OR queue = $1)
  AND minute >= holdfast.now() - interval '1 hour'
ORDER BY minute DESC, queue
LIMIT $2;

-- name: runbook_worker_jobs
-- What each worker holds, the longest first.
-- $1 queue, $2 limit
SELECT worker, worker_status, silent_seconds, queue, job_id, task, partition_key, attempts, held_seconds, lease_left_seconds
FROM holdfast.worker_jobs
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY held_seconds DESC, job_id
LIMIT $2;

-- name: runbook_lost_workers
-- Workers that vanished in the last hour, by host, the most first.
-- $1 limit
SELECT host, release, lost, last_lost_at, mean_life_seconds
FROM holdfast.lost_workers
ORDER BY lost DESC, last_lost_at DESC, host
LIMIT $1;

-- name: runbook_keys
-- Live jobs by partition key, those with the most due, held or blocked first.
-- $1 queue, $2 limit
SELECT queue, partition_key, waiting, due, processing, held, blocked, oldest_due_at, most_attempts, first_job_id, in_the_way, because, latest_error
FROM holdfast.keys
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY due + held + blocked DESC, most_attempts DESC, waiting + processing DESC, queue, partition_key
LIMIT $2;

-- name: runbook_stranded_jobs
-- Processing jobs without a claim, the oldest first.
-- $1 queue, $2 limit
SELECT id, queue, task, claimed_at, claim_token
FROM holdfast.stranded_jobs
WHERE ($1::text IS NULL OR queue = $1)
ORDER BY claimed_at, id
LIMIT $2;

-- name: runbook_storage
-- What takes the space, the largest first.
-- $1 limit
SELECT relation, bytes, about_rows, dead_rows, vacuumed_at, xid_age, archive_day
FROM holdfast.storage
ORDER BY bytes DESC, relation
LIMIT $1;

-- name: runbook_horizon
-- Sessions that keep dead rows and old WAL from being removed, the oldest first.
-- $1 limit
SELECT kind, name, owner, application, state, since, seconds, xid_age, wal_bytes
FROM holdfast.horizon
ORDER BY xid_age DESC NULLS LAST, wal_bytes DESC NULLS LAST, name
LIMIT $1;
