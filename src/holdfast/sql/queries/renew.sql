-- name: heartbeat
-- Report that the worker is alive, and regularly its vital signs. Touches no column of an index; returns its status, `draining` also when it was fenced
-- while it drained.
-- $1 worker, $2 vitals (NULL: as last reported)
UPDATE holdfast.workers SET last_seen_at = holdfast.now(), vitals = coalesce($2::text::jsonb, vitals) WHERE id = $1
RETURNING CASE WHEN status = 'gone' AND ended = 'left' THEN 'draining' ELSE status END;

-- name: renew
-- Move the deadline of claims. A revoked claim stays revoked.
-- $1 tokens, $2 lease seconds
UPDATE holdfast.claims c
SET lease_expires_at = holdfast.now() + make_interval(secs => greatest((SELECT lease FROM holdfast.queues WHERE name = c.queue), $2::float8))
WHERE c.token = ANY ($1::uuid[]) AND c.revoked_at IS NULL
RETURNING c.token;

-- name: report_held
-- Write down which jobs a worker has held for a while, for the doctor. Sent only when that has changed.
-- $1 worker, $2 ids
UPDATE holdfast.workers SET holds = $2::uuid[] WHERE id = $1;

-- name: check_owned
-- Of the jobs a worker runs: those it no longer owns, and those somebody wants cancelled.
-- $1 queues, $2 ids, $3 generations, $4 tokens
SELECT d.id, d.generation, w.id IS NULL
FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::uuid[]) AS d(queue, id, generation, token)
LEFT JOIN LATERAL (
    SELECT w.id, w.cancel_requested_at FROM holdfast.work w
    WHERE w.queue = d.queue AND w.id = d.id AND w.lease_generation = d.generation AND w.claim_token = d.token AND w.status = 'processing' OFFSET 0
) w ON true
WHERE w.id IS NULL OR w.cancel_requested_at IS NOT NULL;

-- name: tidy_claims
-- Drop claim rows of a worker that no processing job refers to. Jobs only ever lose a token, so this stays true.
-- Claims of which as many jobs as they have were counted at their end are not checked job by job: that took half a microsecond for each.
-- But for a server that was a standby then, or that may lose its last commits when it crashes: it may lack what was settled last, and its jobs would
-- be stranded.
-- $1 worker, $2 tokens still in use, $3 tokens of which ends were counted, $4 how many of each, $5 the server's timeline at that time
DELETE FROM holdfast.claims c
WHERE c.worker = $1 AND c.token <> ALL ($2::uuid[]) AND c.revoked_at IS NULL
  AND ((c.token, cardinality(c.job_ids)) IN (SELECT e.token, e.jobs FROM unnest($3::uuid[], $4::int[]) AS e(token, jobs)) AND current_setting('synchronous_commit') <> 'off'
       AND $5::int = (SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int)
       OR NOT EXISTS (SELECT FROM unnest(c.job_ids) AS j(id)
                  CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                      WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w));
