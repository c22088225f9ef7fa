-- name: busy_groups
-- Lock the groups that these ends count for; returns those that somebody else holds at this moment, and those which end here while somebody
-- holds a key that their callback goes to. Nothing is waited for.
-- $1 groups of completed jobs, $2 groups of jobs that ended otherwise, one for each job
WITH ends AS MATERIALIZED (
    SELECT e.id, count(*) AS jobs FROM unnest($1::uuid[] || $2::uuid[]) AS e(id) GROUP BY e.id
), mine AS MATERIALIZED (
    SELECT g.id, g.open, g.callback IS NOT NULL AS followed FROM holdfast.groups g
    WHERE g.id = ANY ($1::uuid[]) OR (g.id = ANY ($2::uuid[]) AND g.wanted = 'finished')
    ORDER BY g.id
    FOR NO KEY UPDATE OF g SKIP LOCKED
)
SELECT g.id FROM holdfast.groups g
WHERE (g.id = ANY ($1::uuid[]) OR (g.id = ANY ($2::uuid[]) AND g.wanted = 'finished')) AND g.id <> ALL (ARRAY(SELECT id FROM mine))
UNION ALL
SELECT m.id FROM mine m JOIN ends e ON e.id = m.id
WHERE m.followed AND m.open - coalesce((SELECT c.ended FROM holdfast.group_counts c WHERE c.group_id = m.id ORDER BY c.number DESC LIMIT 1), 0) <= e.jobs
  AND NOT holdfast.try_callback(m.id);

-- name: busy_follow_ups
-- Lock the streams of ordered queues that these follow-ups go to; returns the jobs of which somebody else holds one at this moment. Nothing is
-- waited for. A follow-up with an idempotency or replace key is left out: those keys are locked before streams.
-- $1 ids of the jobs, $2 what follows each (JSON)
SELECT f.id
FROM (SELECT e.id, q.name AS queue, array_agg(s.spec->>'partition_key') AS keys
      FROM unnest($1::uuid[], $2::text[]) AS e(id, specs) CROSS JOIN LATERAL jsonb_array_elements(e.specs::jsonb) AS s(spec)
      JOIN holdfast.queues q ON q.name = coalesce(s.spec->>'queue', 'inbox') AND q.ordering = 'key'
      WHERE NOT s.spec ?| '{idempotency_key,replace_key}'
      GROUP BY e.id, q.name ORDER BY q.name, e.id) f
WHERE NOT holdfast.try_streams(f.queue, f.keys);

-- name: brief_locks
-- Wait for no lock longer than this, until the transaction ends.
-- $1 how long
SELECT set_config('lock_timeout', $1, true);

-- name: jobs_ended
-- anywhere
-- What jobs set off that have just ended: follow-ups, and the counters and callbacks of groups.
-- $1 ids, $2 how each ended, $3 their groups, $4 their follow-ups (JSON)
SELECT ARRAY[holdfast.jobs_ended($1::uuid[], $2::text[], $3::uuid[], $4::text[])::text];

-- name: jobs_ended_at_commit
-- anywhere
-- The same inside somebody's transaction: follow-ups now, groups when it commits.
-- $1 ids, $2 how each ended, $3 their groups, $4 their follow-ups (JSON)
SELECT ARRAY[holdfast.jobs_ended_at_commit($1::uuid[], $2::text[], $3::uuid[], $4::text[])::text];

-- name: enqueue_group
-- anywhere
-- Write a group and its jobs in the caller's transaction; returns {id, created, conflict} for the group and then for each job.
-- $1 members, $2 callback, both in a list of one (JSON), $3 what is wanted of members
SELECT ARRAY[id::text, created::text, conflict]
FROM holdfast.enqueue_group((($1::text[])[1])::jsonb, (($2::text[])[1])::jsonb, ($3::text[])[1])
ORDER BY ordinal;

-- part: counted_groups
-- Groups with what is counted beside them. Of a group that takes no more counts only old versions are there, which are not read.
SELECT g.id, g.wanted, g.total, g.open - coalesce(c.ended, 0), g.discarded + coalesce(c.discarded, 0), g.created_at, g.finished_at, g.callback_ids, g.fault
FROM holdfast.groups g
LEFT JOIN LATERAL (SELECT n.ended, n.discarded FROM holdfast.group_counts n
                   WHERE n.group_id = g.id AND g.finished_at IS NULL AND g.open > 0 ORDER BY n.number DESC LIMIT 1) c ON true

-- name: group_status
-- How a group stands.
-- $1 group
-- with part: counted_groups
WHERE g.id = $1;

-- name: list_groups
-- Groups, the newest first.
-- $1 only those that are not finished?, $2 limit
-- with part: counted_groups
WHERE NOT $1::boolean OR g.finished_at IS NULL
ORDER BY g.created_at DESC, g.id DESC LIMIT $2;

-- name: group_ids_between
-- Some ids of groups in a range of ids.
-- $1 the lowest id, $2 the highest, $3 limit
SELECT g.id FROM holdfast.groups g WHERE g.id BETWEEN $1::uuid AND $2::uuid ORDER BY g.id LIMIT $3;

-- name: group_members
-- How many of a group's jobs are in each state, of those that are still kept.
-- $1 group
SELECT status, count(*) FROM holdfast.jobs WHERE group_id = $1 GROUP BY status ORDER BY status;

-- name: show_children
-- Some jobs that came from a job, the first of them first.
-- $1 parent, $2 limit
SELECT id, task, queue, status FROM (
    SELECT id, task, queue, status, seq FROM holdfast.jobs WHERE parent_id = $1 ORDER BY seq LIMIT $2) j ORDER BY seq;

-- name: retry_groups
-- Groups whose callback could not be enqueued are tried again; returns those for which it worked.
-- $1 limit
WITH due AS MATERIALIZED (
    SELECT g.id FROM holdfast.groups g WHERE g.fault IS NOT NULL ORDER BY g.id LIMIT $1 FOR NO KEY UPDATE OF g SKIP LOCKED
)
SELECT d.id, CASE WHEN holdfast.try_callback(d.id) THEN holdfast.close_group(d.id, NULL) ELSE false END FROM due d;

-- name: prune_groups
-- Groups that finished longer ago than the archive reaches, and those that cannot finish because nothing is kept of their jobs any more.
-- Scans a bounded number of rows from a moment on, and returns where it got to (NULL: the end) and how many went.
-- $1 retention days, $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT g.id, g.created_at, g.finished_at FROM holdfast.groups g
    WHERE g.created_at < holdfast.now() - make_interval(days => $1) AND g.created_at > coalesce($3::timestamptz, '-infinity') AND g.fault IS NULL
    ORDER BY g.created_at LIMIT $2
), gone AS (
    DELETE FROM holdfast.groups x WHERE x.id = ANY (ARRAY(
        SELECT l.id FROM look l
        WHERE l.finished_at < holdfast.now() - make_interval(days => $1)
           OR (l.finished_at IS NULL AND NOT EXISTS (SELECT FROM holdfast.work w WHERE w.group_id = l.id)
               AND NOT EXISTS (SELECT FROM holdfast.dead_letters d WHERE d.group_id = l.id)
               AND NOT EXISTS (SELECT FROM holdfast.archive a WHERE a.group_id = l.id))))
    RETURNING x.id
), counts AS (
    DELETE FROM holdfast.group_counts c WHERE c.group_id IN (SELECT id FROM gone)
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(created_at) FROM look) END, (SELECT count(*) FROM gone);

-- name: prune_replacements
-- Replace keys whose job no longer waits or runs. One that came to its job a moment ago is left: its job may be too young to be seen.
-- Scans a bounded number of rows from a moment on, and returns where it got to (NULL: the end) and how many went.
-- $1 retention days (not used: the key of a job that is gone is of no use), $2 limit, $3 from when (NULL: the beginning)
WITH look AS MATERIALIZED (
    SELECT r.queue, r.key, r.job_id, r.at FROM holdfast.replacements r
    WHERE r.at < holdfast.now() - interval '1 hour' AND r.at > coalesce($3::timestamptz, '-infinity') AND $1::int IS NOT NULL
    ORDER BY r.at LIMIT $2
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM holdfast.replacements x USING look l
    WHERE x.queue = l.queue AND x.key = l.key AND x.job_id = l.job_id
      AND NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.job_id)
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM look) >= $2 THEN (SELECT max(at) FROM look) END, (SELECT count(*) FROM gone);
