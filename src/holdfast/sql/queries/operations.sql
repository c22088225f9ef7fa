-- name: begin_operation
-- Record an act over many jobs that workers run.
-- $1 id, $2 verb, $3 selection, $4 options, $5 bounds (all JSON), $6 actor, $7 surface, $8 address, $9 reason, $10 total, $11 capped, $12 audit
INSERT INTO holdfast.operations (id, verb, selection, options, bounds, actor, surface, address, reason, created_at, total, capped, audit)
VALUES ($1, $2, $3::text::jsonb, $4::text::jsonb, $5::text::jsonb, $6, $7, $8::text::inet, $9, holdfast.now(), $10, $11, $12);

-- name: claim_operation
-- Take up the first operation without a runner, or one by its id. A runner that has not moved it for a while has lost it. One whose
-- verb this release does not have is left to others.
-- $1 runner, $2 token (a claim whose answer was lost comes again with it), $3 seconds of silence, $4 id (NULL: whichever), $5 verbs,
-- $6 a token of this runner's under which it may have left one
WITH next AS MATERIALIZED (
    SELECT o.id FROM holdfast.operations o
    WHERE o.state IN ('waiting', 'running') AND ($4::uuid IS NULL OR o.id = $4) AND ($4::uuid IS NOT NULL OR o.verb = ANY ($5::text[]))
      AND (o.token IS NULL OR o.token IN ($2::uuid, $6::uuid) OR o.beat_at < holdfast.now() - make_interval(secs => $3::float8))
      AND ($4::uuid IS NOT NULL OR o.retry_at IS NULL OR o.retry_at <= holdfast.now())
    ORDER BY o.created_at, o.id LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE holdfast.operations o
SET state = 'running', runner = $1, token = $2, beat_at = holdfast.now(), started_at = coalesce(o.started_at, holdfast.now()), runs = o.runs + 1
WHERE o.id = (SELECT n.id FROM next n)
RETURNING o.id, o.verb, o.selection::text, o.options::text, o.bounds::text, o.place::text;

-- name: hold_operation
-- Lock an operation for one batch. No row: it was stopped, or somebody else runs it. Answers what it counted so far, and for how many seconds
-- what it moved at a rate reaches ahead.
-- $1 id, $2 token
SELECT o.results::text, o.left_out::text, greatest(extract(epoch FROM o.paced_until - holdfast.now()), 0)::float8
FROM holdfast.operations o WHERE o.id = $1 AND o.token = $2 AND o.state = 'running' FOR UPDATE;

-- name: move_operation
-- The result of a batch, and where the next one begins, in the same transaction.
-- $1 id, $2 token, $3 place (JSON), $4 jobs changed, $5 jobs read, $6 results, $7 left out (JSON), $8 seconds that its rate reaches ahead
UPDATE holdfast.operations o
SET place = $3::text::jsonb, done = o.done + $4::bigint, looked_at = o.looked_at + $5::bigint, results = $6::text::jsonb, left_out = $7::text::jsonb,
    paced_until = CASE WHEN $8::float8 > 0 THEN holdfast.now() + make_interval(secs => $8::float8) ELSE o.paced_until END,
    beat_at = holdfast.now(), fault = NULL, retry_at = NULL
WHERE o.id = $1 AND o.token = $2 AND o.state = 'running'
RETURNING $4::bigint = 0 OR holdfast.audit_operation(o.id, $2, $4::bigint) IS NOT NULL;

-- name: end_operation
-- Nobody has anything left to do.
-- $1 id, $2 token, $3 state, $4 fault
UPDATE holdfast.operations o
SET state = $3, ended_at = holdfast.now(), token = NULL, runner = NULL, fault = $4, retry_at = NULL
WHERE o.id = $1 AND o.token = $2 AND o.state = 'running' RETURNING true;

-- name: release_operation
-- Leave it to somebody else: at once, or after a while because of a fault.
-- $1 token, $2 fault (NULL: none), $3 seconds
UPDATE holdfast.operations o
SET state = 'waiting', token = NULL, runner = NULL, fault = coalesce($2, o.fault),
    retry_at = CASE WHEN $3::float8 > 0 THEN holdfast.now() + make_interval(secs => $3::float8) END
WHERE o.token = $1 AND o.state = 'running' RETURNING true;

-- name: stop_operation
-- No further job is changed once this has committed: a batch in progress is waited for.
-- $1 id, $2 who
UPDATE holdfast.operations o
SET state = 'stopped', ended_at = holdfast.now(), stopped_by = $2, token = NULL, runner = NULL
WHERE o.id = $1 AND o.state IN ('waiting', 'running') RETURNING true;

-- part: operation_columns
o.id, o.verb, o.state, o.selection::text, o.options::text, o.actor, o.surface, host(o.address), o.reason, o.role, o.created_at, o.started_at, o.ended_at,
       o.stopped_by, o.total, o.capped, o.done, o.looked_at, o.results::text, o.left_out::text, o.runner, o.runs, o.fault, o.audit, extract(epoch FROM holdfast.now() - o.created_at)::float8,
       CASE WHEN o.started_at IS NOT NULL THEN greatest(extract(epoch FROM coalesce(o.ended_at, holdfast.now()) - o.started_at), 0.001)::float8 END

-- name: show_operation
-- One operation.
-- $1 id
SELECT
-- with part: operation_columns
FROM holdfast.operations o WHERE o.id = $1;

-- name: operation_ids_between
-- Some ids of operations in a range of ids.
-- $1 the lowest id, $2 the highest, $3 limit
SELECT o.id FROM holdfast.operations o WHERE o.id BETWEEN $1::uuid AND $2::uuid ORDER BY o.id LIMIT $3;

-- name: list_operations
-- The last that were begun first.
-- $1, $2 before this moment and id (NULL: from the last on), $3 states (NULL: all), $4 limit
SELECT
-- with part: operation_columns
FROM holdfast.operations o
WHERE ($1::timestamptz IS NULL OR (o.created_at, o.id) < ($1, $2::uuid)) AND ($3::text[] IS NULL OR o.state = ANY ($3))
ORDER BY o.created_at DESC, o.id DESC LIMIT $4;

-- part: operation_waits
-- Whether an operation waits for somebody to run it. $1 seconds of silence after which its runner has lost it, $2 verbs
EXISTS (SELECT FROM holdfast.operations o WHERE o.state IN ('waiting', 'running') AND o.verb = ANY ($2::text[])
        AND (o.token IS NULL OR o.beat_at < holdfast.now() - make_interval(secs => $1::float8))
        AND (o.retry_at IS NULL OR o.retry_at <= holdfast.now()))

-- name: count_operations
-- Operations that have not ended, by state, and how many of them cannot continue.
SELECT o.state, count(*), count(o.fault) FROM holdfast.operations o WHERE o.state IN ('waiting', 'running') GROUP BY o.state;

-- name: prune_operations
-- Forget operations that ended a month ago.
-- $1 retention days (not used), $2 limit
WITH gone AS (
    DELETE FROM holdfast.operations x
    WHERE x.id = ANY (ARRAY(SELECT o.id FROM (SELECT e.id, e.created_at, e.ended_at FROM holdfast.operations e ORDER BY e.created_at, e.id LIMIT $2) o
                            WHERE o.ended_at < holdfast.now() - interval '30 days' AND $1::int IS NOT NULL))
    RETURNING 1
)
SELECT count(*) FROM gone;
