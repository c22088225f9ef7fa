-- name: tally_begin
-- For this transaction: give up soon when somebody holds the table. The sums can wait, the session is needed.
SELECT set_config('lock_timeout', '1s', true);

-- name: tally
-- Add what a worker finished since its last report to the sums of this minute; returns the transaction that holds it.
-- Rows are written in order, so that two workers cannot wait for each other in a circle.
-- $1 queues, $2 tasks, $3 completed, $4 failed, $5 dead, $6 cancelled, $7 run seconds, $8 wait seconds, $9 longest run, $10 longest wait, $11 runs and
-- $12 waits: histograms, each an array as text
WITH written AS (
    INSERT INTO holdfast.throughput AS t (minute, queue, task, completed, failed, dead, cancelled, run_seconds, wait_seconds, max_run, max_wait, runs, waits)
    SELECT date_trunc('minute', holdfast.now()), n.queue, n.task, n.completed, n.failed, n.dead, n.cancelled, n.run_seconds, n.wait_seconds, n.max_run, n.max_wait,
           n.runs::bigint[], n.waits::bigint[]
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::float8[], $8::float8[], $9::float8[], $10::float8[],
                $11::text[], $12::text[])
         AS n(queue, task, completed, failed, dead, cancelled, run_seconds, wait_seconds, max_run, max_wait, runs, waits)
    ORDER BY n.queue, n.task
    ON CONFLICT (minute, queue, task) DO UPDATE
    SET completed = t.completed + excluded.completed, failed = t.failed + excluded.failed, dead = t.dead + excluded.dead,
        cancelled = t.cancelled + excluded.cancelled, run_seconds = t.run_seconds + excluded.run_seconds,
        wait_seconds = t.wait_seconds + excluded.wait_seconds, max_run = greatest(t.max_run, excluded.max_run),
        max_wait = greatest(t.max_wait, excluded.max_wait),
        runs = (SELECT array_agg(coalesce(u.had, 0) + u.more ORDER BY u.n) FROM unnest(t.runs, excluded.runs) WITH ORDINALITY AS u(had, more, n)),
        waits = (SELECT array_agg(coalesce(u.had, 0) + u.more ORDER BY u.n) FROM unnest(t.waits, excluded.waits) WITH ORDINALITY AS u(had, more, n))
)
SELECT pg_current_xact_id()::text;

-- name: tally_state
-- What became of a report whose answer was lost: 'committed', 'aborted', 'in progress', NULL: too long ago to tell. A transaction that
-- this server never had (after a failover) is an error.
-- $1 transaction
SELECT pg_xact_status($1::text::xid8);

-- name: buried_tasks
-- Queue and task of jobs that a sweep made dead letters.
-- $1 ids
SELECT d.queue, d.task FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]);
