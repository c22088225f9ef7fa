-- name: tidy_begin
-- Whose turn it is to tidy up; at most one worker per interval.
-- $1 interval seconds
UPDATE holdfast.engine SET last_tidy_at = holdfast.now()
WHERE only_row = (SELECT e.only_row FROM holdfast.engine e
                  WHERE e.last_tidy_at <= holdfast.now() - make_interval(secs => $1::float8) FOR NO KEY UPDATE SKIP LOCKED)
RETURNING retention_days;

-- name: prune_idempotency
-- Keys past their lifetime, from a moment on: a held snapshot keeps the index entries of those that went, and a batch must not pass
-- those of the batch before. Answers where it got to (NULL: the end) and how many went.
-- $1 retention days (not used: a key has its own lifetime), $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT e.queue, e.key, e.expires_at FROM holdfast.idempotency e
    WHERE e.expires_at <= holdfast.now() AND e.expires_at >= coalesce($3::timestamptz, '-infinity') AND $1::int IS NOT NULL
    ORDER BY e.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM holdfast.idempotency i WHERE (i.queue, i.key) IN (SELECT l.queue, l.key FROM look l)
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(expires_at) FROM look) END, (SELECT count(*) FROM gone);

-- name: prune_workers
-- Forget workers that are gone for a day and hold nothing.
-- $1 limit
WITH gone AS (
    DELETE FROM holdfast.workers w
    WHERE w.id = ANY (ARRAY(SELECT v.id FROM holdfast.workers v
                            WHERE v.status = 'gone' AND v.last_seen_at < holdfast.now() - interval '1 day'
                              AND NOT EXISTS (SELECT FROM holdfast.claims c WHERE c.worker = v.id)
                            ORDER BY v.id LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: prune_throughput
-- Forget minutes past retention.
-- $1 retention days, $2 limit
WITH gone AS (
    DELETE FROM holdfast.throughput t
    WHERE (t.minute, t.queue, t.task) IN (SELECT o.minute, o.queue, o.task FROM holdfast.throughput o
                                          WHERE o.minute < holdfast.now() - make_interval(days => $1)
                                          ORDER BY o.minute LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: prune_audit
-- Forget what operators did more than a year ago. Looks at the first entries only; they are the oldest.
-- $1 how many to look at
WITH gone AS (
    DELETE FROM holdfast.audit a
    WHERE a.id = ANY (ARRAY(SELECT o.id FROM (SELECT e.id, e.at FROM holdfast.audit e ORDER BY e.id LIMIT $1) o
                            WHERE o.at < holdfast.now() - interval '365 days'))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: prune_quarantine
-- Forget quarantined jobs that are no longer live: their owner ended them anyway.
-- $1 limit
WITH gone AS (
    DELETE FROM holdfast.quarantine x
    WHERE x.id = ANY (ARRAY(SELECT q.id FROM holdfast.quarantine q
                            WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = q.queue AND w.id = q.id)
                            ORDER BY q.id LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: prune_once
-- What job.once() recorded older than the archive, of jobs that are no longer live nor dead letters. Scans a bounded number of rows from a moment on, and returns where it
-- got to (NULL: the end) and how many went.
-- $1 retention days, $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT e.ctid AS place, e.queue, e.job_id, e.at FROM holdfast.once e
    WHERE e.at < holdfast.now() - make_interval(days => $1) AND e.at > coalesce($3::timestamptz, '-infinity')
    ORDER BY e.at LIMIT $2
), gone AS (
    DELETE FROM holdfast.once x WHERE x.ctid = ANY (ARRAY(
        SELECT l.place FROM look l
        WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.job_id)
      AND NOT EXISTS (SELECT FROM holdfast.dead_letters d WHERE d.id = l.job_id)))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(at) FROM look) END, (SELECT count(*) FROM gone);

-- name: prune_progress
-- Progress older than the archive, of jobs that are no longer live. Scans a bounded number of rows from a moment on, and returns where it
-- got to (NULL: the end) and how many went.
-- $1 retention days, $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT e.ctid AS place, e.queue, e.job_id, e.at FROM holdfast.progress e
    WHERE e.at < holdfast.now() - make_interval(days => $1) AND e.at > coalesce($3::timestamptz, '-infinity')
    ORDER BY e.at LIMIT $2
), gone AS (
    DELETE FROM holdfast.progress x WHERE x.ctid = ANY (ARRAY(
        SELECT l.place FROM look l
        WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.job_id)))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(at) FROM look) END, (SELECT count(*) FROM gone);

-- name: prune_errors
-- Errors older than the archive, of jobs that are no longer live nor dead letters. Scans a bounded number of rows from a moment on, and returns where it
-- got to (NULL: the end) and how many went.
-- $1 retention days, $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT e.ctid AS place, e.queue, e.job_id, e.at FROM holdfast.errors e
    WHERE e.at < holdfast.now() - make_interval(days => $1) AND e.at > coalesce($3::timestamptz, '-infinity')
    ORDER BY e.at LIMIT $2
), gone AS (
    DELETE FROM holdfast.errors x WHERE x.ctid = ANY (ARRAY(
        SELECT l.place FROM look l
        WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.job_id)
      AND NOT EXISTS (SELECT FROM holdfast.dead_letters d WHERE d.id = l.job_id)))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(at) FROM look) END, (SELECT count(*) FROM gone);

-- name: prune_fences
-- Fences older than the archive, of jobs that are no longer live. Scans a bounded number of rows from a moment on, and returns where it
-- got to (NULL: the end) and how many went.
-- $1 retention days, $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT e.ctid AS place, e.queue, e.job_id, e.at FROM holdfast.fences e
    WHERE e.at < holdfast.now() - make_interval(days => $1) AND e.at > coalesce($3::timestamptz, '-infinity')
    ORDER BY e.at LIMIT $2
), gone AS (
    DELETE FROM holdfast.fences x WHERE x.ctid = ANY (ARRAY(
        SELECT l.place FROM look l
        WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.job_id)))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(at) FROM look) END, (SELECT count(*) FROM gone);

-- name: expired_slots
-- Archive slots to empty: those whose day is past retention, and any left over from an earlier round of the ring.
-- $1 retention days
SELECT slot FROM holdfast.archive_slots
WHERE day IS NOT NULL AND day < (holdfast.now() AT TIME ZONE 'UTC')::date - $1::int ORDER BY day;

-- name: note_slots
-- Write down which day the slots of today and tomorrow hold. One with a day of an earlier round is emptied first.
UPDATE holdfast.archive_slots s SET day = d.day
FROM (SELECT (holdfast.now() AT TIME ZONE 'UTC')::date + n AS day FROM generate_series(0, 1) AS n) d
WHERE s.slot = holdfast.archive_slot(d.day::timestamp AT TIME ZONE 'UTC') AND s.day IS NULL RETURNING s.slot;

-- name: empty_slot
-- Empty one archive slot whose day is past; locks that slot alone.
-- $1 slot, $2 retention days
SELECT holdfast.empty_archive_slot($1, $2);
