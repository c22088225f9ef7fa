-- name: doctor_server
-- Whom we talk to, and as whom. Names are quoted as SQL needs them.
SELECT quote_ident(current_user), quote_ident(current_database()), current_database(), session_user,
       pg_has_role('pg_read_all_stats', 'USAGE'), pg_is_in_recovery(), host(inet_server_addr()), current_setting('port')::int,
       CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') THEN current_setting('unix_socket_directories') END,
       CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') THEN current_setting('data_directory') END;

-- name: doctor_writes
-- Whether our new sessions may not write, and which setting causes it (database, user, client, configuration file and so on).
SELECT s.reset_val = 'on', s.source FROM pg_settings s WHERE s.name = 'default_transaction_read_only';

-- name: doctor_settings
-- Settings as every new session of Holdfast gets them: (name, value).
-- $1 names
SELECT s.name, s.reset_val
FROM pg_settings s WHERE s.name = ANY ($1::text[]) ORDER BY s.name;

-- name: doctor_overrides
-- What ALTER DATABASE and ALTER ROLE set for sessions of this database: (name, value, for whom, the words that take it back).
-- $1 names
SELECT split_part(c.item, '=', 1), substr(c.item, strpos(c.item, '=') + 1),
       concat_ws(' in ', 'role ' || r.rolname, CASE WHEN s.setdatabase <> 0 THEN 'database ' || current_database() END),
       CASE WHEN r.rolname IS NULL THEN format('ALTER DATABASE %I RESET %s', current_database(), split_part(c.item, '=', 1))
            WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET %s', r.rolname, split_part(c.item, '=', 1))
            ELSE format('ALTER ROLE %I IN DATABASE %I RESET %s', r.rolname, current_database(), split_part(c.item, '=', 1)) END
FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole CROSS JOIN LATERAL unnest(s.setconfig) AS c(item)
WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
  AND (s.setrole = 0 OR r.rolname IS NOT NULL) AND split_part(c.item, '=', 1) = ANY ($1::text[])
ORDER BY 1, 3;

-- name: horizon_sessions
-- Sessions that keep vacuum from removing what was deleted since they began.
-- $1 seconds, $2 transactions, where there is no time to go by
SELECT a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, a.backend_type),
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8, greatest(age(a.backend_xid), age(a.backend_xmin)), left(coalesce(a.query, ''), 400)
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND a.backend_type NOT IN ('autovacuum worker', 'walsender') AND a.datname = current_database()
  AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
  AND CASE WHEN a.xact_start IS NOT NULL THEN a.xact_start <= clock_timestamp() - make_interval(secs => $1::float8)
           ELSE greatest(age(a.backend_xid), age(a.backend_xmin)) >= $2::bigint END
ORDER BY a.xact_start LIMIT 100;

-- name: horizon_prepared
-- Prepared transactions that nobody has ended.
-- $1 seconds
SELECT p.gid, p.owner, extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction)
FROM pg_prepared_xacts p
WHERE p.database = current_database() AND p.prepared <= clock_timestamp() - make_interval(secs => $1::float8)
ORDER BY p.prepared LIMIT 100;

-- name: horizon_slots
-- Replication slots that are far behind: in transactions, which holds back vacuum, or in the WAL that they keep.
-- $1 transactions, $2 bytes of WAL
SELECT s.slot_name, s.slot_type, s.active, greatest(age(s.xmin), age(s.catalog_xmin)), s.xmin IS NULL, w.kept
FROM pg_replication_slots s
CROSS JOIN LATERAL (SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint END AS kept) w
WHERE (greatest(age(s.xmin), age(s.catalog_xmin)) >= $1::bigint OR w.kept >= $2::bigint)
  AND (s.database IS NULL OR s.database = current_database())
ORDER BY 4 DESC NULLS LAST LIMIT 100;

-- name: end_session
-- End a session that horizon_sessions would list. No row: this process is none of those, and nothing is ended: a process id may have
-- a new owner since it was printed.
-- $1 pid, $2 seconds, $3 transactions, where there is no time to go by
WITH one AS MATERIALIZED (
    SELECT a.pid FROM pg_stat_activity a
    WHERE a.pid = $1 AND a.pid <> pg_backend_pid() AND a.backend_type NOT IN ('autovacuum worker', 'walsender')
      AND a.datname = current_database()
      AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
      AND CASE WHEN a.xact_start IS NOT NULL THEN a.xact_start <= clock_timestamp() - make_interval(secs => $2::float8)
               ELSE greatest(age(a.backend_xid), age(a.backend_xmin)) >= $3::bigint END
)
SELECT pg_terminate_backend(one.pid) FROM one;

-- name: vacuum_state
-- Our tables as vacuum sees them: (table, dead rows, live rows, seconds since it was vacuumed, age of its oldest transaction, autovacuum is off for it).
SELECT c.relname::text, coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0),
       extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8, age(c.relfrozenxid),
       EXISTS (SELECT FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean)
FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'r' ORDER BY c.relname;

-- name: connection_use
-- How many connections the server, the database and the role allow (-1: no limit), how many are in use by others than us, and what our workers may open.
-- $1 seconds after which a worker no longer counts, $2 connections of a worker beside one for each slot
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0),
       CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END, CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END,
       (SELECT count(*) FROM pg_stat_activity a
        WHERE coalesce(a.backend_type, 'client backend') = 'client backend' AND coalesce(a.application_name, '') !~ '^holdfast'),
       (SELECT count(*) FROM holdfast.workers w
        WHERE w.status <> 'gone' AND w.last_seen_at > holdfast.now() - make_interval(secs => $1::float8)),
       (SELECT coalesce(sum(w.concurrency + $2::int), 0) FROM holdfast.workers w
        WHERE w.status <> 'gone' AND w.last_seen_at > holdfast.now() - make_interval(secs => $1::float8))
FROM pg_roles r CROSS JOIN pg_database d WHERE r.rolname = current_user AND d.datname = current_database();

-- name: find_stranded
-- Processing jobs without a claim. Looks at every live row: no index knows the status.
-- $1 limit
SELECT s.id, s.queue, s.task, extract(epoch FROM holdfast.now() - s.claimed_at)::float8 FROM holdfast.stranded_jobs s ORDER BY s.id LIMIT $1;

-- name: free_stranded
-- Put stranded jobs of a queue back to waiting. The generation stays and no attempt is spent. A job that was locked, or has a claim by now, is left.
-- $1 queue, $2 ids
WITH c AS MATERIALIZED (
    SELECT w.id FROM holdfast.work w
    WHERE w.queue = $1 AND w.id = ANY ($2::uuid[]) AND w.status = 'processing'
      AND NOT EXISTS (SELECT FROM holdfast.claims k WHERE k.token = w.claim_token)
    ORDER BY w.id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE holdfast.work SET status = 'pending', claim_token = '00000000-0000-0000-0000-000000000000'
WHERE queue = $1 AND id = ANY (ARRAY(SELECT id FROM c))
RETURNING id;

-- name: unswept_claims
-- Claims with jobs that a sweep should have taken back by now: their lease is long past, they were revoked, or their worker is gone.
-- $1 seconds that a sweep may be late, $2 seconds after which a worker is late, $3 limit
SELECT c.queue, c.worker, v.status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8,
       extract(epoch FROM holdfast.now() - c.lease_expires_at)::float8, r.jobs, r.first
FROM holdfast.claims c
LEFT JOIN holdfast.workers v ON v.id = c.worker
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, (array_agg(j.id))[1] AS first FROM unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    WHERE j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
) r
WHERE (c.lease_expires_at < holdfast.now() - make_interval(secs => $1::float8) OR c.revoked_at < holdfast.now() - make_interval(secs => $1::float8)
       OR v.last_seen_at < holdfast.now() - make_interval(secs => $1::float8 + $2::float8)
       OR (v.id IS NULL AND c.claimed_at < holdfast.now() - make_interval(secs => $1::float8)))
  AND r.jobs > 0
ORDER BY c.lease_expires_at LIMIT $3;

-- name: claim_holders
-- Sessions that block sweeps of claims: those in a transaction for long that have locked the claim, one of its jobs, or the table of its queue.
-- A row that somebody locks or changes has his transaction in xmax, and he holds the lock of that transaction.
-- $1 seconds, $2 queues, $3 workers
WITH c AS MATERIALIZED (
    SELECT c.queue, c.token, c.job_ids, c.xmax AS locker FROM holdfast.claims c WHERE c.queue = ANY ($2::text[]) AND c.worker = ANY ($3::text[])
), w AS MATERIALIZED (
    SELECT w.locker, w.relation FROM c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.xmax AS locker, w.tableoid AS relation FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
)
SELECT DISTINCT a.pid FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND l.granted
WHERE a.pid <> pg_backend_pid() AND a.backend_type NOT IN ('autovacuum worker', 'walsender') AND a.datname = current_database()
  AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
  AND a.xact_start <= clock_timestamp() - make_interval(secs => $1::float8)
  AND ((l.locktype = 'transactionid' AND l.transactionid IN (SELECT c.locker FROM c UNION ALL SELECT w.locker FROM w))
       OR (l.locktype = 'relation' AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
           AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND l.relation IN (SELECT w.relation FROM w)))
ORDER BY a.pid;

-- name: live_workers
-- Queues with how many live workers serve each.
-- $1 seconds after which a worker is late
SELECT q.queue, count(*) FROM holdfast.workers w CROSS JOIN LATERAL unnest(w.queues) AS q(queue)
WHERE w.status = 'alive' AND w.last_seen_at >= holdfast.now() - make_interval(secs => $1::float8)
GROUP BY q.queue;

-- name: unserved_queues
-- Queues with due jobs that no live worker serves: name, the first due task, for how long.
-- $1 seconds after which a worker is late, $2 seconds that a job may wait
SELECT o.queue, o.task, o.age_seconds FROM holdfast.oldest_due o
WHERE NOT o.paused AND o.age_seconds >= $2::float8
  AND NOT EXISTS (SELECT FROM holdfast.workers w
                  WHERE w.status = 'alive' AND w.last_seen_at >= holdfast.now() - make_interval(secs => $1::float8) AND o.queue = ANY (w.queues))
ORDER BY o.age_seconds DESC;

-- name: long_held
-- Jobs that a live worker holds for very long, or continues although it was asked to stop.
-- $1 seconds of running, $2 seconds since the request, $3 seconds after which a worker is late, $4 limit
SELECT w.id, c.queue, w.task, v.id, v.host, v.pid, extract(epoch FROM holdfast.now() - w.claimed_at)::float8,
       extract(epoch FROM holdfast.now() - w.cancel_requested_at)::float8
FROM holdfast.claims c
JOIN holdfast.workers v ON v.id = c.worker
CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
CROSS JOIN LATERAL (SELECT w.* FROM holdfast.work w
                    WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
WHERE v.status <> 'gone' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $3::float8)
  AND (w.claimed_at <= holdfast.now() - make_interval(secs => $1::float8) OR w.cancel_requested_at <= holdfast.now() - make_interval(secs => $2::float8))
ORDER BY w.claimed_at LIMIT $4;

-- name: forgotten_jobs
-- Jobs that are processing for many times their usual time, while their live worker reports what it holds and does not name them.
-- $1 times, $2 least seconds, $3 seconds after which a worker is late, $4 limit
SELECT w.id, c.queue, w.task, v.id, extract(epoch FROM holdfast.now() - w.claimed_at)::float8, u.seconds
FROM holdfast.claims c
JOIN holdfast.workers v ON v.id = c.worker
CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
CROSS JOIN LATERAL (SELECT w.id, w.task, w.claimed_at FROM holdfast.work w
                    WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
CROSS JOIN LATERAL (SELECT coalesce(sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0), 0)::float8 AS seconds FROM holdfast.throughput t
                    WHERE t.minute >= holdfast.now() - interval '1 day' AND t.queue = c.queue AND t.task = w.task) u
WHERE v.status <> 'gone' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $3::float8)
  AND j.id <> ALL (v.holds)
  AND w.claimed_at <= holdfast.now() - make_interval(secs => greatest($2::float8, $1::float8 * u.seconds))
ORDER BY w.claimed_at LIMIT $4;

-- name: quarantined_jobs
-- Live jobs in quarantine.
-- $1 limit
SELECT q.id, q.queue, w.task, q.reason FROM holdfast.quarantine q
CROSS JOIN LATERAL (SELECT w.task FROM holdfast.work w WHERE w.queue = q.queue AND w.id = q.id OFFSET 0) w
ORDER BY q.at, q.id LIMIT $1;

-- name: unknown_tasks
-- Jobs set aside because no worker knew them, by task and version, counted up to the cap, with the live workers of the queue that know the name.
-- Runs of workflows have a check of their own, here and below.
-- $1 seconds after which a worker is late, $2 cap
SELECT h.queue, h.task, h.version, h.jobs,
       ARRAY(SELECT v.id FROM holdfast.workers v WHERE v.status = 'alive' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $1::float8)
                 AND h.queue = ANY (v.queues) AND h.task = ANY (v.tasks) ORDER BY v.id LIMIT 5)
FROM (SELECT w.queue, w.task, w.version, count(*) AS jobs
      FROM (SELECT j.queue, j.task, j.version FROM holdfast.work j
            WHERE j.hold_reason IS NOT NULL AND j.status = 'held' AND j.task <> ALL (ARRAY(SELECT p.task FROM holdfast.paused_tasks p))
              AND NOT EXISTS (SELECT FROM holdfast.misfits m WHERE m.job_id = j.id)
              AND NOT EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = j.id) LIMIT $2) w
      GROUP BY w.queue, w.task, w.version) h
ORDER BY h.queue, h.task, h.version;

-- name: misfit_tasks
-- Jobs set aside because their payload does not fit the workers that tried it, by task and version, counted up to the cap: how many, why the
-- last of them was refused, and the signatures that refused one.
-- $1 cap
SELECT h.queue, h.task, h.version, count(DISTINCT h.id), (array_agg(h.reason ORDER BY h.at DESC))[1], count(DISTINCT h.signature)
FROM (SELECT m.queue, j.id, j.task, j.version, m.reason, m.at, m.signature FROM holdfast.misfits m
      CROSS JOIN LATERAL (SELECT w.id, w.task, w.version FROM holdfast.work w
                          WHERE w.queue = m.queue AND w.id = m.job_id AND w.status = 'held' AND w.available_at = m.available_at
                            AND NOT EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = w.id AND r.state = 'diverged') OFFSET 0) j
      LIMIT $1) h
GROUP BY h.queue, h.task, h.version ORDER BY h.queue, h.task, h.version;

-- name: long_paused
-- Queues and tasks that have been paused for long, or that due jobs wait for: (what, name, seconds, by whom, do due jobs wait?). Pauses of
-- breakers are left out.
-- $1 seconds of a pause, $2 seconds that a due job may wait
SELECT 'queue', q.name, extract(epoch FROM holdfast.now() - q.paused_at)::float8, q.paused_by, coalesce(o.age_seconds >= $2::float8, false)
FROM holdfast.queues q JOIN holdfast.oldest_due o ON o.queue = q.name
WHERE q.paused_at <= holdfast.now() - make_interval(secs => $1::float8)
   OR (q.paused_at <= holdfast.now() - make_interval(secs => $2::float8) AND o.age_seconds >= $2::float8)
UNION ALL
SELECT 'task', t.task, extract(epoch FROM holdfast.now() - t.paused_at)::float8, t.paused_by, a.waits
FROM holdfast.paused_tasks t
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM holdfast.work w WHERE w.hold_reason IS NOT NULL AND w.task = t.task
                                   AND w.hold_reason = 'task ' || t.task || ' is paused') AS waits) a
WHERE NOT t.by_breaker
  AND (t.paused_at <= holdfast.now() - make_interval(secs => $1::float8)
       OR (t.paused_at <= holdfast.now() - make_interval(secs => $2::float8) AND a.waits))
ORDER BY 1, 2;

-- name: held_back
-- Queues with a limit as a whole whose due jobs wait for long although live workers serve them: (queue, seconds, slots of these workers).
-- $1 seconds after which a worker is late, $2 seconds that a job may wait
SELECT o.queue, o.age_seconds, v.slots
FROM holdfast.oldest_due o JOIN holdfast.queues q ON q.name = o.queue
CROSS JOIN LATERAL (SELECT sum(w.concurrency)::int AS slots FROM holdfast.workers w
                    WHERE w.status = 'alive' AND w.last_seen_at >= holdfast.now() - make_interval(secs => $1::float8) AND o.queue = ANY (w.queues)) v
WHERE NOT o.paused AND o.age_seconds >= $2::float8 AND (q.concurrency IS NOT NULL OR q.rate IS NOT NULL) AND v.slots > 0
ORDER BY o.age_seconds DESC;

-- name: suspect_jobs
-- Live jobs that were in two processes that died: (id, queue, task, deaths).
-- $1 limit
SELECT w.id, w.queue, w.task, w.crashes FROM holdfast.work w WHERE w.suspect > 0 ORDER BY w.available_at, w.seq LIMIT $1;

-- name: recent_dead
-- Dead letters of the last hour by task, of the newest ones up to the cap, and their latest error.
-- $1 cap
SELECT d.task, count(*), (array_agg(d.last_error ORDER BY d.died_at DESC))[1]
FROM (SELECT l.task, l.last_error, l.died_at FROM holdfast.dead_letters l
      WHERE l.died_at > holdfast.now() - interval '1 hour' ORDER BY l.died_at DESC LIMIT $1) d
GROUP BY d.task ORDER BY 2 DESC, 1;

-- name: overdue_slots
-- Archive slots whose day is past retention and a day more: (slot, day), with since when nobody has tidied up.
SELECT s.slot, s.day::text, extract(epoch FROM holdfast.now() - greatest(e.last_tidy_at, '2000-01-01'))::float8, e.retention_days
FROM holdfast.archive_slots s CROSS JOIN holdfast.engine e
WHERE s.day < (holdfast.now() AT TIME ZONE 'UTC')::date - e.retention_days - 1 ORDER BY s.day;

-- name: forget_queue
-- Take out the row of a queue whose table is gone, to make both again.
-- $1 queue
DELETE FROM holdfast.queues q WHERE q.name = $1 AND to_regclass(format('holdfast.%I', q.relation)) IS NULL;

-- name: enter_queue
-- A row for a queue whose table is there. One with the index of streams is ordered by key, one with that of shares is fair; what it did on
-- a dead letter and its limits are not known.
-- $1 queue, $2 table
WITH made AS (
    INSERT INTO holdfast.queues (name, relation, keyed, ordering, fair)
    SELECT $1, $2, s.stream OR s.share, CASE WHEN s.stream THEN 'key' ELSE 'none' END, s.share
    FROM (SELECT to_regclass(format('holdfast.%I', $2::text || '_stream')) IS NOT NULL AS stream,
                 to_regclass(format('holdfast.%I', $2::text || '_share')) IS NOT NULL AS share) s
    ON CONFLICT DO NOTHING RETURNING name
)
INSERT INTO holdfast.limits (queue, tokens, refilled_at)
SELECT m.name, 0, '-infinity' FROM made m WHERE NOT EXISTS (SELECT FROM holdfast.limits l WHERE l.queue = m.name);
