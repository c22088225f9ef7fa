-- name: dead_times
-- Now, and the moments that many seconds ago: what dies after the first is not touched by an act that began then.
-- $1 older than, $2 newer than, in seconds
SELECT holdfast.now(), holdfast.now() - make_interval(secs => $1::float8), holdfast.now() - make_interval(secs => $2::float8);

-- name: list_dead
-- Dead letters, the last to die first. Scans a bounded number of rows.
-- $1 died before, $2 or then with a smaller id, $3 how many to look at, $4 limit,
-- $5 died until, $6 died since, $7 queue, $8 task, $9 error (a pattern), $10 key, $11 tag, $12 group
SELECT d.id, d.queue, d.task, d.attempts, d.max_attempts, d.crashes, d.lease_generation, d.created_at, d.died_at,
       extract(epoch FROM holdfast.now() - d.died_at)::float8, d.last_error,
       substr(encode(sha256(convert_to((SELECT e.salt::text FROM holdfast.engine e) || d.task || E'\x1f' || holdfast.fingerprint(d.last_error), 'UTF8')), 'hex'), 1, 8)
FROM (SELECT * FROM holdfast.dead_letters l
      WHERE ($1::timestamptz IS NULL OR (l.died_at <= $1 AND (l.died_at, l.id) < ($1, $2::uuid)))
        AND ($5::timestamptz IS NULL OR l.died_at <= $5) AND ($6::timestamptz IS NULL OR l.died_at >= $6)
      ORDER BY l.died_at DESC, l.id DESC LIMIT $3) d
WHERE ($7::text IS NULL OR d.queue = $7) AND ($8::text IS NULL OR d.task = $8) AND ($9::text IS NULL OR d.last_error ILIKE $9)
  AND ($10::text IS NULL OR d.partition_key = $10) AND ($11::text IS NULL OR $11 = ANY (d.tags))
  AND ($12::text IS NULL
       OR substr(encode(sha256(convert_to((SELECT e.salt::text FROM holdfast.engine e) || d.task || E'\x1f' || holdfast.fingerprint(d.last_error), 'UTF8')), 'hex'), 1, 8) = $12)
ORDER BY d.died_at DESC, d.id DESC LIMIT $4;

-- name: reach_list_dead
-- The last dead letter that a listing has read; no row: it has read them all.
-- $1 died before, $2 or then with a smaller id, $3 how many were read, $4 died until, $5 died since
SELECT l.died_at, l.id FROM holdfast.dead_letters l
WHERE ($1::timestamptz IS NULL OR (l.died_at <= $1 AND (l.died_at, l.id) < ($1, $2::uuid)))
  AND ($4::timestamptz IS NULL OR l.died_at <= $4) AND ($5::timestamptz IS NULL OR l.died_at >= $5)
ORDER BY l.died_at DESC, l.id DESC OFFSET $3 - 1 LIMIT 1;

-- name: next_dead
-- Dead letters in the order in which they died, the oldest first. Scans a bounded number of rows.
-- $1 died after, $2 or then with a greater id, $3 how many to look at, $4 limit,
-- $5 died until, $6 died since, $7 queue, $8 task, $9 error (a pattern), $10 key, $11 tag, $12 group
SELECT d.id, d.queue, d.died_at, CASE WHEN $9::text IS NOT NULL THEN d.last_error END
FROM (SELECT l.id, l.queue, l.task, l.partition_key, l.tags, l.died_at, l.last_error FROM holdfast.dead_letters l
      WHERE ($1::timestamptz IS NULL OR (l.died_at >= $1 AND (l.died_at, l.id) > ($1, $2::uuid)))
        AND ($5::timestamptz IS NULL OR l.died_at <= $5) AND ($6::timestamptz IS NULL OR l.died_at >= $6)
      ORDER BY l.died_at, l.id LIMIT $3) d
WHERE ($7::text IS NULL OR d.queue = $7) AND ($8::text IS NULL OR d.task = $8) AND ($9::text IS NULL OR d.last_error ILIKE $9)
  AND ($10::text IS NULL OR d.partition_key = $10) AND ($11::text IS NULL OR $11 = ANY (d.tags))
  AND ($12::text IS NULL
       OR substr(encode(sha256(convert_to((SELECT e.salt::text FROM holdfast.engine e) || d.task || E'\x1f' || holdfast.fingerprint(d.last_error), 'UTF8')), 'hex'), 1, 8) = $12)
ORDER BY d.died_at, d.id LIMIT $4;

-- name: reach_next_dead
-- The last dead letter that next_dead has read; no row: it has read them all.
-- $1 died after, $2 or then with a greater id, $3 how many were read, $4 died until, $5 died since
SELECT l.died_at, l.id FROM holdfast.dead_letters l
WHERE ($1::timestamptz IS NULL OR (l.died_at >= $1 AND (l.died_at, l.id) > ($1, $2::uuid)))
  AND ($4::timestamptz IS NULL OR l.died_at <= $4) AND ($5::timestamptz IS NULL OR l.died_at >= $5)
ORDER BY l.died_at, l.id OFFSET $3 - 1 LIMIT 1;

-- name: group_dead
-- The newest dead letters, up to the cap, by task and error, the largest group first; beside each how many were read in all.
-- $1 how many to look at, $2 cap, $3 limit, $4 died until, $5 died since, $6 queue, $7 task, $8 error (a pattern), $9 key,
-- $10 tag, $11 ids of those that count (NULL: all)
--
-- What differs from job to job, as ids and numbers, is taken out of the error: holdfast.fingerprint().
WITH newest AS MATERIALIZED (
    SELECT d.id, d.queue, d.task, d.died_at,
           substr(encode(sha256(convert_to((SELECT e.salt::text FROM holdfast.engine e) || d.task || E'\x1f' || holdfast.fingerprint(d.last_error), 'UTF8')), 'hex'), 1, 8) AS name
    FROM (SELECT l.id, l.queue, l.task, l.partition_key, l.tags, l.died_at, l.last_error FROM holdfast.dead_letters l
          WHERE ($4::timestamptz IS NULL OR l.died_at <= $4) AND ($5::timestamptz IS NULL OR l.died_at >= $5)
          ORDER BY l.died_at DESC, l.id DESC LIMIT $1) d
    WHERE ($6::text IS NULL OR d.queue = $6) AND ($7::text IS NULL OR d.task = $7) AND ($8::text IS NULL OR d.last_error ILIKE $8)
      AND ($9::text IS NULL OR d.partition_key = $9) AND ($10::text IS NULL OR $10 = ANY (d.tags)) AND ($11::uuid[] IS NULL OR d.id = ANY ($11))
    ORDER BY d.died_at DESC, d.id DESC LIMIT $2
), grouped AS (
    SELECT n.name, n.task, array_agg(DISTINCT n.queue ORDER BY n.queue) AS queues, count(*) AS n, min(n.died_at) AS first, max(n.died_at) AS last,
           (array_agg(n.id ORDER BY n.died_at DESC, n.id DESC))[1] AS id,
           array_agg(greatest(floor(extract(epoch FROM holdfast.now() - n.died_at) / 3600), 0)::int)
               FILTER (WHERE n.died_at > holdfast.now() - interval '24 hours') AS hours,
           sum(count(*)) OVER ()::bigint AS looked_at
    FROM newest n
    GROUP BY n.name, n.task
    ORDER BY count(*) DESC, max(n.died_at) DESC, n.name LIMIT $3
)
-- The error as it is: one that is cut here may lose the half by which a reader knows a secret.
SELECT g.name, g.task, g.queues, g.n, g.first, g.last, (SELECT d.last_error FROM holdfast.dead_letters d WHERE d.id = g.id), g.id, g.hours, g.looked_at
FROM grouped g
ORDER BY g.n DESC, g.last DESC, g.name;

-- name: dead_facets
-- Of one group, among the newest dead letters: which keys, tags and queues have the most of it.
-- $1 how many to look at, $2 group, $3 task, $4 how many of each kind
WITH newest AS MATERIALIZED (
    SELECT d.queue, d.partition_key, d.tags
    FROM (SELECT l.queue, l.task, l.partition_key, l.tags, l.last_error FROM holdfast.dead_letters l
          ORDER BY l.died_at DESC, l.id DESC LIMIT $1) d
    WHERE d.task = $3
      AND substr(encode(sha256(convert_to((SELECT e.salt::text FROM holdfast.engine e) || d.task || E'\x1f' || holdfast.fingerprint(d.last_error), 'UTF8')), 'hex'), 1, 8) = $2
), counted AS (
    SELECT 'key' AS kind, n.partition_key AS value, count(*) AS n FROM newest n WHERE n.partition_key IS NOT NULL GROUP BY 2
    UNION ALL
    SELECT 'tag', t.tag, count(*) FROM newest n CROSS JOIN LATERAL unnest(n.tags) AS t(tag) GROUP BY 2
    UNION ALL
    SELECT 'queue', n.queue, count(*) FROM newest n GROUP BY 2
), ranked AS (
    SELECT c.*, row_number() OVER (PARTITION BY c.kind ORDER BY c.n DESC, c.value) AS place, count(*) OVER (PARTITION BY c.kind) AS kinds FROM counted c
)
SELECT r.kind, r.value, r.n, r.kinds, (SELECT count(*) FROM newest) FROM ranked r WHERE r.place <= $4 ORDER BY r.kind, r.place;

-- name: lock_dead_streams
-- Lock the streams that dead letters go back to, until the commit.
-- $1 ids
SELECT holdfast.lock_streams(o.queue, o.keys)
FROM (SELECT d.queue, array_agg(d.partition_key) AS keys FROM holdfast.dead_letters d JOIN holdfast.queues q ON q.name = d.queue AND q.ordering = 'key'
      WHERE d.id = ANY ($1::uuid[]) GROUP BY d.queue ORDER BY d.queue) o;

-- name: redrive
-- Dead letters go back to waiting with a fresh set of attempts, each due after its delay. The generation is kept, so that every fence is
-- higher than the last. In a queue ordered by key the stream continued without them: they go to its end, under its lock (lock_streams).
-- Only one that its key is parked for comes back in its old place, and its key is released.
-- $1 ids, $2 seconds from now until each is due, $3 the act, by which it may be undone (NULL: it may not)
WITH gone AS (
    DELETE FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]) RETURNING *
), freed AS (
    DELETE FROM holdfast.quarantine q WHERE q.id = ANY ($1::uuid[]) AND q.id IN (SELECT id FROM gone)
), released AS (
    DELETE FROM holdfast.parked_keys p WHERE (p.queue, p.partition_key, p.job_id) IN (SELECT g.queue, g.partition_key, g.id FROM gone g)
    RETURNING p.job_id
), noted AS (
    INSERT INTO holdfast.redriven (job_id, act, at, queue, generation, attempts, crashes, died_at, claimed_at, claimed_by, group_id, gives_up_at, parked)
    SELECT g.id, $3::uuid, holdfast.now(), g.queue, g.lease_generation, g.attempts, g.crashes, g.died_at, g.claimed_at, g.claimed_by, g.group_id, g.gives_up_at,
           g.id IN (SELECT job_id FROM released)
    FROM gone g WHERE $3::uuid IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE SET act = EXCLUDED.act, at = EXCLUDED.at, queue = EXCLUDED.queue, generation = EXCLUDED.generation, attempts = EXCLUDED.attempts,
        crashes = EXCLUDED.crashes, died_at = EXCLUDED.died_at, claimed_at = EXCLUDED.claimed_at, claimed_by = EXCLUDED.claimed_by, group_id = EXCLUDED.group_id,
        gives_up_at = EXCLUDED.gives_up_at, parked = EXCLUDED.parked
)
INSERT INTO holdfast.work (id, seq, lease_generation, available_at, created_at, claimed_at, attempts, max_attempts, version, suspect, crashes,
                           priority, queue, status, task, partition_key, partition_bucket, payload, last_error, tags, metadata, claim_token,
                           parent_id, group_id, follow_ups)
SELECT g.id, CASE WHEN (SELECT q.ordering FROM holdfast.queues q WHERE q.name = g.queue) = 'key' AND g.id NOT IN (SELECT job_id FROM released)
                  THEN nextval('holdfast.work_seq') ELSE g.seq END, g.lease_generation, holdfast.now() + make_interval(secs => least(g.delay, 315360000)), g.created_at, holdfast.now(), 0,
       g.max_attempts, g.version, 0, 0, g.priority, g.queue, 'pending', g.task, g.partition_key, coalesce(holdfast.bucket(g.partition_key), 0), g.payload, g.last_error, g.tags, g.metadata,
       '00000000-0000-0000-0000-000000000000', g.parent_id,
       -- a group that takes any end has counted it already, and counts it no more
       (SELECT b.id FROM holdfast.groups b WHERE b.id = g.group_id AND b.wanted = 'completed'), g.follow_ups
FROM (SELECT g.*, d.delay FROM gone g JOIN unnest($1::uuid[], $2::float8[]) AS d(id, delay) ON d.id = g.id ORDER BY g.seq) g
RETURNING id;

-- name: redriven_of
-- What an act put back and nobody has started since, by id.
-- $1 act, $2 behind this id, $3 limit
SELECT r.job_id, r.queue, CASE WHEN w.status = 'pending' AND w.available_at > holdfast.now() THEN 'scheduled' ELSE w.status END
FROM holdfast.redriven r
CROSS JOIN LATERAL (SELECT w.status, w.available_at FROM holdfast.work w
                    WHERE w.queue = r.queue AND w.id = r.job_id AND w.lease_generation = r.generation AND w.status <> 'processing' OFFSET 0) w
WHERE r.act = $1 AND NOT r.parked AND ($2::uuid IS NULL OR r.job_id > $2) ORDER BY r.job_id LIMIT $3;

-- name: redriven_left
-- Of what an act put back and was not taken back: how many have started or were changed since, and how many were let out of a parked key.
-- $1 act
SELECT count(*) FILTER (WHERE NOT r.parked), count(*) FILTER (WHERE r.parked) FROM holdfast.redriven r WHERE r.act = $1;

-- name: bury_again
-- Jobs that a redrive put back, and that nobody has started since, are the dead letters that they were. Whatever was edited stays so.
-- $1 queue, $2 ids, $3 the act that put them back
WITH back AS (
    DELETE FROM holdfast.work w USING holdfast.redriven r
    WHERE w.queue = $1 AND w.id = ANY ($2::uuid[]) AND r.job_id = w.id AND r.act = $3::uuid AND NOT r.parked
      AND w.status <> 'processing' AND w.lease_generation = r.generation
    RETURNING w.*, r.died_at, r.attempts AS spent, r.crashes AS crashed, r.claimed_at AS had_at, r.claimed_by AS had_by, r.group_id AS of_group,
              r.gives_up_at AS until
), forgotten AS (
    DELETE FROM holdfast.redriven r WHERE r.job_id IN (SELECT b.id FROM back b)
)
INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts, max_attempts, version,
                                   crashes, priority, queue, task, partition_key, payload, claimed_by, last_error, tags, metadata, parent_id, group_id, follow_ups,
                                   gives_up_at)
SELECT b.id, b.claim_token, b.seq, b.lease_generation, b.available_at, b.created_at, b.had_at, b.died_at, b.spent, b.max_attempts, b.version,
       b.crashed, b.priority, b.queue, b.task, b.partition_key, b.payload, b.had_by, b.last_error, b.tags, b.metadata, b.parent_id, b.of_group, b.follow_ups,
       b.until
FROM back b
RETURNING id;

-- name: prune_redriven
-- Forget what a redrive put back more than a day ago.
-- $1 limit
WITH gone AS (
    DELETE FROM holdfast.redriven r
    WHERE r.job_id = ANY (ARRAY(SELECT o.job_id FROM holdfast.redriven o WHERE o.at < holdfast.now() - interval '1 day' ORDER BY o.at LIMIT $1))
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: dead_sizes
-- How many bytes of JSON dead letters have, so that a patch reads some of them at a time.
-- $1 ids
SELECT d.id, octet_length(d.payload::text) FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]) ORDER BY d.id;

-- name: dead_payloads
-- The payloads of dead letters.
-- $1 ids
SELECT d.id, d.task, d.version, d.payload::text FROM holdfast.dead_letters d WHERE d.id = ANY ($1::uuid[]) ORDER BY d.id;

-- name: patch_dead
-- Dead letters that are locked get other payloads.
-- $1 ids, $2 payloads (JSON)
UPDATE holdfast.dead_letters d SET payload = u.payload::jsonb FROM unnest($1::uuid[], $2::text[]) AS u(id, payload) WHERE d.id = u.id RETURNING d.id;
