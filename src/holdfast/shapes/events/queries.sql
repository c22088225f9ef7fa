-- name: publish
-- anywhere
-- One event. Returns its id, its seq, and whether it is new.
-- $1 type, $2 data, $3 key, $4 headers, $5 id, $6 version
SELECT ARRAY[p.id::text, p.seq::text, p.created::text]
FROM holdfast.publish($1::text, $2::text::jsonb, $3::text, $4::text::jsonb, $5::uuid, $6::int) p;

-- name: publish_many
-- anywhere
-- Many events, in their order. Returns their ids, then their seqs, then, where ids are given, whether each is new.
-- $1 types, $2 data, $3 keys, $4 headers, $5 ids, $6 versions; NULL for a column without values
SELECT array_agg(p.id::text) || array_agg(p.seq::text) || CASE WHEN $5::uuid[] IS NULL THEN '{}'::text[] ELSE array_agg(p.created::text) END
FROM holdfast.publish_many($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int[]) p;

-- name: append_events
-- anywhere
-- The next events of a stream. Returns its version, then the ids, then the seqs; a NULL instead of ids: it is at this version, not at the
-- expected one, and nothing was written.
-- $1 stream, $2 expected version (NULL: any), $3 types, $4 data, $5 headers, $6 versions; NULL for a column without values
SELECT array_agg(DISTINCT a.version::text) || array_agg(a.id::text) || array_agg(a.seq::text)
FROM holdfast.append_events($1::text, $2::bigint, $3::text[], $4::text[], $5::text[], $6::int[], true) a;

-- name: stream_version
-- anywhere
-- The version of a stream; no row: nobody has appended to it. $1 stream
SELECT ARRAY[s.version::text] FROM holdfast.event_streams s WHERE s.key = $1::text;

-- name: turn_page
-- Number what was committed since the last page. Returns the last position; NULL: the log is of another server.
SELECT holdfast.turn_page();

-- name: turn_or_look
-- The last position, for readers: the page is turned first if the role may do that. NULL: the log is of another server.
SELECT holdfast.turn_or_look();

-- name: hold_log_start
-- anywhere
-- Where the log begins, to the end of the transaction.
SELECT ARRAY[holdfast.hold_log_start()::text];

-- name: read_events
-- Events after a position, and a last row that says how far was looked.
-- $1 position, $2 seq of the event at it, $3 most events, $4 most bytes, $5 LIKE patterns of types, $6 shard, $7 shards, $8 last position
SELECT * FROM holdfast.read_events($1::bigint, $2::bigint, $3::int, $4::bigint, $5::text[], $6::int, $7::int, $8::bigint);

-- name: log_state
-- The era, where the log begins, its last position, and events that have no position yet (at most).
SELECT l.era, l.start_pos, coalesce(p.last_pos, l.base_pos), greatest(s.last_value - (NOT s.is_called)::int - coalesce(p.top, l.base_top), 0), l.retention_days, l.hold_days, l.hold_bytes
FROM holdfast.event_log l
CROSS JOIN holdfast.event_seq s
LEFT JOIN LATERAL (SELECT g.last_pos, g.top FROM holdfast.event_pages g WHERE g.last_pos > l.base_pos ORDER BY g.last_pos DESC LIMIT 1) p ON true;

-- part: settled_events
-- The last number that was drawn for an event; NULL while a transaction is open that published: it may commit without a word.
(SELECT CASE WHEN NOT EXISTS (SELECT FROM pg_locks l WHERE l.relation = 'holdfast.events'::regclass AND l.mode = 'RowExclusiveLock'
                                                       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
             THEN s.last_value END FROM holdfast.event_seq s)

-- name: subscribe
-- A subscription that is not there yet, or the patterns of one that is. Its owner is fenced then: it reads by the old ones. Returns whether it
-- is new. One whose start is no longer in the log is expired; one whose start is not in it yet is paused.
-- $1 name, $2 kind, $3 patterns, $4 start: 'now', 'start' or '', $5 shards, $6 whether the log is held for it, $7 start by position, $8 start by
-- time, $9 whether this worker has just begun: else it changes only what nobody has owned for $10 seconds, $11 version of the code
WITH log AS (
    SELECT l.start_pos, coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) AS last_pos
    FROM holdfast.event_log l
), wanted AS (
    SELECT g.start_pos, g.last_pos, CASE
        WHEN $4::text = 'start' THEN g.start_pos
        WHEN $7::bigint IS NOT NULL THEN $7::bigint
        WHEN $8::timestamptz IS NOT NULL THEN coalesce(holdfast.event_position_at($8::timestamptz), g.last_pos)
        ELSE g.last_pos END AS position
    FROM log g
), made AS (   -- two workers may want different numbers of shards: the one that creates the first shard creates the others
    INSERT INTO holdfast.subscriptions AS s (name, shard, shards, kind, patterns, position, seq, status, hold, created_at, moved_at, lease_expires_at,
                                             missed, problem, paused_by, paused_at, version)
    SELECT $1::text, 0, $5::int, $2::text, $3::text[], least(w.position, w.last_pos),
           CASE WHEN w.position < w.start_pos THEN 0 ELSE holdfast.event_seq_at(least(w.position, w.last_pos)) END,
           CASE WHEN w.position < w.start_pos THEN 'expired' WHEN w.position > w.last_pos THEN 'paused' ELSE 'active' END,
           $6::boolean, holdfast.now(), holdfast.now(), holdfast.now(),
           CASE WHEN w.position < w.start_pos THEN w.start_pos - w.position END,
           CASE WHEN w.position < w.start_pos THEN format('start=%s: the log begins after position %s', w.position, w.start_pos)
                WHEN w.position > w.last_pos THEN format('start=%s: the last position of the log is %s', w.position, w.last_pos) END,
           CASE WHEN w.position > w.last_pos THEN 'start' END, CASE WHEN w.position > w.last_pos THEN holdfast.now() END, $11::int
    FROM wanted w
    WHERE NOT EXISTS (SELECT FROM holdfast.subscriptions o WHERE o.name = $1::text)
    ON CONFLICT DO NOTHING
    RETURNING s.*
), others AS (
    INSERT INTO holdfast.subscriptions (name, shard, shards, kind, patterns, position, seq, status, hold, created_at, moved_at, lease_expires_at,
                                        missed, problem, paused_by, paused_at, version)
    SELECT m.name, g.shard, m.shards, m.kind, m.patterns, m.position, m.seq, m.status, m.hold, m.created_at, m.moved_at, m.lease_expires_at,
           m.missed, m.problem, m.paused_by, m.paused_at, m.version
    FROM made m CROSS JOIN generate_series(1, m.shards - 1) AS g(shard)
), changed AS (
    UPDATE holdfast.subscriptions s
    SET patterns = $3::text[], kind = $2::text, hold = $6::boolean, generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = CASE WHEN s.kind = 'relay' THEN s.lease_expires_at ELSE holdfast.now() END
    WHERE s.name = $1::text AND s.version = $11::int AND (s.patterns <> $3::text[] OR s.kind <> $2::text OR s.hold <> $6::boolean)
      AND ($9::boolean OR s.lease_expires_at < holdfast.now() - make_interval(secs => $10::float8))
)
SELECT EXISTS (SELECT FROM made);

-- part: subscription_shares
-- How many of those that it may run each live worker is to have. One that several may run counts for each of them in part; the sum is rounded
-- up, so that none is left over. $1 names that this worker declares, $4 worker, $5 lease in seconds
run AS MATERIALIZED (
    SELECT s.name, s.shard, coalesce(s.replay_of, s.name) AS code, CASE WHEN s.lease_expires_at > holdfast.now() THEN s.owner END AS owner
    FROM holdfast.subscriptions s WHERE s.status IN ('active', 'building')
), live AS MATERIALIZED (
    SELECT w.id, w.subscriptions FROM holdfast.workers w
    WHERE w.status = 'alive' AND w.subscriptions IS NOT NULL AND w.id <> $4::text AND w.last_seen_at > holdfast.now() - make_interval(secs => $5::float8)
    UNION ALL SELECT $4::text, $1::text[]
), shares AS MATERIALIZED (
    SELECT c.id, ceil(round(sum(1.0 / c.workers), 6)) AS most, count(*) FILTER (WHERE c.owner = c.id) AS has
    FROM (SELECT l.id, r.owner, count(*) OVER (PARTITION BY r.name, r.shard) AS workers FROM live l JOIN run r ON r.code = ANY (l.subscriptions)) c
    GROUP BY c.id
)

-- name: own_subscriptions
-- Renew what this worker owns of these subscriptions and of the replays to them, and take its share of what nobody owns; what nobody has taken
-- for a while anybody takes. A new generation: it was taken. One that has other patterns than this code is left to the code that has them. One
-- that the log has left behind expires.
-- $1 names, $2 patterns of each, $3 token, $4 worker, $5 lease in seconds, $6 seconds after which anybody takes what is free,
-- $7 version of the code of each
WITH
-- with part: subscription_shares
, declared AS (
    SELECT u.name, u.patterns::text[] AS patterns, u.version FROM unnest($1::text[], $2::text[], $7::int[]) AS u(name, patterns, version)
), said AS (
    UPDATE holdfast.workers w SET subscriptions = $1::text[] WHERE w.id = $4::text AND w.subscriptions IS DISTINCT FROM $1::text[]
), log AS (
    SELECT l.start_pos, l.era FROM holdfast.event_log l
), left_behind AS (
    UPDATE holdfast.subscriptions s
    SET status = 'expired', missed = g.start_pos - s.position, generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = holdfast.now(),
        problem = format('%s events after position %s were removed before it read them', g.start_pos - s.position, s.position)
    FROM log g WHERE s.position < g.start_pos AND s.status <> 'expired'
), free AS (
    SELECT f.name, f.shard, f.lease_expires_at, row_number() OVER (ORDER BY hashtext(f.name || f.shard || $4::text)) AS nth
    FROM holdfast.subscriptions f JOIN declared d ON d.name = coalesce(f.replay_of, f.name) AND d.version = f.version
    WHERE f.status IN ('active', 'building') AND f.lease_expires_at <= holdfast.now() AND f.token IS DISTINCT FROM $3::uuid
      AND (f.replay_of IS NOT NULL OR f.patterns = d.patterns)
), wanted AS (
    SELECT f.name, f.shard FROM free f
    WHERE f.nth <= (SELECT h.most - h.has FROM shares h WHERE h.id = $4::text) OR f.lease_expires_at <= holdfast.now() - make_interval(secs => $6::float8)
    UNION ALL SELECT s.name, s.shard FROM holdfast.subscriptions s WHERE s.token = $3::uuid
), locked AS (
    SELECT f.name, f.shard FROM holdfast.subscriptions f JOIN wanted w ON w.name = f.name AND w.shard = f.shard
    WHERE f.status IN ('active', 'building') AND (f.token = $3::uuid OR f.lease_expires_at <= holdfast.now()) AND f.position >= (SELECT g.start_pos FROM log g)
    ORDER BY f.name, f.shard FOR UPDATE OF f SKIP LOCKED
)
UPDATE holdfast.subscriptions s
SET token = $3::uuid, owner = $4::text, generation = CASE WHEN s.token = $3::uuid THEN s.generation ELSE s.generation + 1 END,
    lease_expires_at = holdfast.now() + make_interval(secs => $5::float8)
FROM locked f
WHERE s.name = f.name AND s.shard = f.shard
RETURNING s.name, s.shard, s.shards, s.kind, s.patterns, s.position, s.seq, s.until, s.replay_of, s.status, s.generation, s.token, s.barrier,
          s.rate, (SELECT g.era FROM log g), coalesce((SELECT h.has > h.most FROM shares h WHERE h.id = $4::text), false),
          coalesce(s.wanted_shards <> s.shards, false);

-- name: owned_subscriptions
-- What this worker owns, also where a batch holds the row, and whether it is to let go of it: it has more than its share, and another that may
-- run it has less.
-- $1 names, $2 patterns of each (not used), $3 token, $4 worker, $5 lease in seconds
WITH
-- with part: subscription_shares
SELECT s.name, s.shard, s.generation,
       row_number() OVER (ORDER BY p.poorer IS NULL, hashtext(s.name || s.shard || $4::text) DESC) <= h.most_over AND p.poorer IS NOT NULL AND $2::text[] IS NOT NULL
FROM holdfast.subscriptions s
LEFT JOIN LATERAL (SELECT h.has - h.most AS most_over FROM shares h WHERE h.id = $4::text) h ON true
LEFT JOIN LATERAL (SELECT true AS poorer FROM live l JOIN shares o ON o.id = l.id
                   WHERE l.id <> $4::text AND coalesce(s.replay_of, s.name) = ANY (l.subscriptions) AND o.has < o.most LIMIT 1) p ON true
WHERE s.token = $3::uuid AND s.status IN ('active', 'building');

-- name: turn_and_look
-- Number what was committed since the last page, check whether one of these subscriptions has no owner, and read new events for those who are at
-- the end, as read_events() returns it: after the page was turned, because from where depends on that.
-- $1 names, $2 position (NULL: nobody reads), $3 seq of the event at it, $4 most events, $5 most bytes, $6 LIKE patterns of types
SELECT t.last, t.is_free, r.*
FROM (SELECT holdfast.turn_page() AS last, (SELECT l.start_pos FROM holdfast.event_log l) AS start, EXISTS (
          SELECT FROM holdfast.subscriptions s
          WHERE s.status IN ('active', 'building') AND s.lease_expires_at <= holdfast.now() AND coalesce(s.replay_of, s.name) = ANY ($1::text[])) AS is_free) t
LEFT JOIN LATERAL holdfast.read_events(CASE WHEN t.last > $2::bigint AND t.start <= $2::bigint THEN $2::bigint END, $3::bigint, $4::int, $5::bigint, $6::text[]) r ON true;

-- name: release_subscriptions
-- The owner releases one subscription, or all it has and its part in them, and others are woken. A subscription in a batch is free when
-- its lease ends.
-- $1 token, $2 name (NULL: all), $3 shard, $4 worker
WITH out AS (
    UPDATE holdfast.workers w SET subscriptions = NULL WHERE $2::text IS NULL AND w.id = $4::text
), mine AS (
    SELECT s.name, s.shard FROM holdfast.subscriptions s
    WHERE s.token = $1::uuid AND ($2::text IS NULL OR (s.name = $2::text AND s.shard = $3::int)) FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE holdfast.subscriptions s SET lease_expires_at = holdfast.now(), owner = NULL, token = NULL
    FROM mine m WHERE s.name = m.name AND s.shard = m.shard RETURNING 1)
SELECT holdfast.wake(ARRAY['+events']) FROM (SELECT count(*) AS n FROM freed) f WHERE f.n > 0;

-- name: hold_position
-- anywhere
-- Lock the row of an owner for the rest of the transaction; no row: it was fenced, paused or moved. Returns also which transaction and which
-- server process have it.
-- $1 name, $2 shard, $3 generation, $4 token, $5 position
SELECT ARRAY[s.position::text, pg_catalog.pg_current_xact_id()::text, pg_catalog.pg_backend_pid()::text] FROM holdfast.subscriptions s
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid AND s.position = $5::bigint AND s.status <> 'paused'
FOR UPDATE;

-- name: current_xid
-- anywhere
-- The transaction that this statement is in; NULL: it has none that writes.
SELECT ARRAY[pg_catalog.pg_current_xact_id_if_assigned()::text];

-- name: end_backend
-- End a session that is still in a transaction. $1 its process, $2 the transaction
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = $1::int AND a.backend_xid::text = $2::text::xid8::xid::text;

-- name: advance
-- anywhere
-- Move a position, by its owner. Returns one row, or none: it was fenced, paused or moved.
-- $1 name, $2 shard, $3 generation, $4 token, $5 from position, $6 to position, $7 seq, $8 lease in seconds, $9 only in this transaction (NULL: in any)
UPDATE holdfast.subscriptions s
-- assignments are written without spaces: they are no operators
SET position=$6::bigint, seq=$7::bigint, moved_at=holdfast.now(), lease_expires_at=holdfast.now() + make_interval(secs => $8::float8), problem=NULL
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid AND s.position = $5::bigint AND s.status <> 'paused'
  AND ($9::text IS NULL OR pg_catalog.pg_current_xact_id_if_assigned()::text = $9::text)
RETURNING ARRAY[s.position::text];

-- name: advance_jobs
-- The same of a consumer, whose events become jobs in this transaction. Returns those positions that became jobs before, as a multirange; no
-- row: it was fenced, paused or moved.
-- $1 name, $2 shard, $3 generation, $4 token, $5 from position, $6 to position, $7 seq, $8 lease in seconds, $9 positions that become jobs
UPDATE holdfast.subscriptions s
SET position = $6::bigint, seq = $7::bigint, moved_at = holdfast.now(), lease_expires_at = holdfast.now() + make_interval(secs => $8::float8), problem = NULL,
    delivered = o.delivered + $9::int8multirange
FROM (SELECT f.name, f.shard, f.delivered FROM holdfast.subscriptions f
      WHERE f.name = $1::text AND f.shard = $2::int AND f.generation = $3::bigint AND f.token = $4::uuid AND f.position = $5::bigint AND f.status <> 'paused'
      FOR UPDATE) o
WHERE s.name = o.name AND s.shard = o.shard
RETURNING (o.delivered * $9::int8multirange)::text;

-- name: deliver
-- Record which events of a replay become jobs, in the subscription and in the transaction that moves the replay. Returns those positions that
-- became jobs before, as a multirange.
-- $1 name of the subscription, $2 positions
UPDATE holdfast.subscriptions s SET delivered = o.delivered + $2::int8multirange
FROM (SELECT f.name, f.shard, f.delivered FROM holdfast.subscriptions f WHERE f.name = $1::text AND f.shard = 0 FOR UPDATE) o
WHERE s.name = o.name AND s.shard = o.shard
RETURNING (o.delivered * $2::int8multirange)::text;

-- name: end_replay
-- A replay has come to its end.
-- $1 name, $2 token
DELETE FROM holdfast.subscriptions s WHERE s.name = $1::text AND s.token = $2::uuid AND s.until IS NOT NULL;

-- name: list_subscriptions
-- Every subscription, or those of a name, with its lag. $1 name (NULL: all)
SELECT s.name, s.shard, s.shards, s.kind, s.patterns, s.position, s.status, s.hold, s.owner, g.events, g.seconds, s.missed, s.problem, s.paused_by,
       extract(epoch FROM holdfast.now() - s.paused_at)::float8, s.until, s.replay_of, extract(epoch FROM holdfast.now() - s.moved_at)::float8,
       (SELECT count(*) FROM holdfast.event_failures f WHERE f.subscription = s.name AND f.shard = s.shard),
       CASE WHEN s.lease_expires_at < holdfast.now() THEN extract(epoch FROM holdfast.now() - greatest(s.lease_expires_at, s.created_at))::float8 END,
       (SELECT count(*) FROM holdfast.workers w WHERE w.status = 'alive' AND coalesce(s.replay_of, s.name) = ANY (w.subscriptions)),
       s.rate
FROM holdfast.subscriptions s JOIN holdfast.subscription_lag g ON g.name = s.name AND g.shard = s.shard
WHERE $1::text IS NULL OR s.name = $1::text ORDER BY s.name, s.shard;

-- name: pause_subscription
-- anywhere
-- Stop a subscription. Returns how many shards changed. A relay that is fenced may still send until its lease ends: here and below nobody takes
-- it up before that, unless its owner says that it has stopped (let_go).
-- $1 name, $2 who, $3 why
WITH done AS (
    UPDATE holdfast.subscriptions s
    SET status='paused', paused_by=$2::text, paused_at=holdfast.now(), problem=coalesce($3::text, s.problem), generation=s.generation + 1, token=NULL, owner=NULL,
        lease_expires_at=CASE WHEN s.kind = 'relay' THEN s.lease_expires_at ELSE holdfast.now() END
    WHERE s.name = $1::text AND (s.status = 'active' OR s.status = 'building') RETURNING s.shard)
SELECT ARRAY[count(*)::text] FROM done;

-- name: let_go
-- An owner that was fenced has stopped: its lease need not be waited for.
-- $1 name, $2 shard, $3 its generation
UPDATE holdfast.subscriptions s SET lease_expires_at = holdfast.now()
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint + 1 AND s.token IS NULL AND s.lease_expires_at > holdfast.now()
RETURNING holdfast.wake(ARRAY['+events']);

-- name: renew_position
-- An owner makes sure that it still is one. No row: it was fenced or paused.
-- $1 name, $2 shard, $3 generation, $4 token, $5 lease in seconds
UPDATE holdfast.subscriptions s SET lease_expires_at = holdfast.now() + make_interval(secs => $5::float8)
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid AND s.status <> 'paused'
RETURNING s.position;

-- name: stop_shard
-- An owner gives up on an event: its shard is paused, with the reason. No row: it was fenced.
-- $1 name, $2 shard, $3 generation, $4 token, $5 why
UPDATE holdfast.subscriptions s
SET status = 'paused', paused_by = 'poison', paused_at = holdfast.now(), problem = $5::text, generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = holdfast.now()
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid
RETURNING s.position;

-- name: note_trouble
-- What failed last, for people. By the owner.
-- $1 name, $2 shard, $3 token, $4 what
UPDATE holdfast.subscriptions s SET problem = $4::text WHERE s.name = $1::text AND s.shard = $2::int AND s.token = $3::uuid;

-- name: resume_subscription
-- anywhere
-- Resume a paused one; a rebuild continues. Returns how many shards changed.
-- $1 name
WITH done AS (
    UPDATE holdfast.subscriptions s
    SET status=CASE WHEN s.replay_of IS NOT NULL AND s.until IS NULL THEN 'building' ELSE 'active' END, paused_by=NULL, paused_at=NULL, problem=NULL,
        lease_expires_at=CASE WHEN s.kind = 'relay' THEN s.lease_expires_at ELSE holdfast.now() END
    WHERE s.name = $1::text AND s.status = 'paused' RETURNING s.shard)
SELECT ARRAY[count(*)::text, holdfast.wake(ARRAY['+events'])::text] FROM done;

-- name: place_in_log
-- Where a subscription would be put, the seq there, and what the log has. Nothing is changed.
-- $1 position (NULL: by time or word), $2 time (NULL: by word), $3 'start' or 'end'
WITH log AS (
    SELECT l.start_pos, coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) AS last_pos FROM holdfast.event_log l
), wanted AS (
    SELECT g.start_pos, g.last_pos, CASE WHEN $1::bigint IS NOT NULL THEN $1::bigint
        WHEN $2::timestamptz IS NOT NULL THEN coalesce(holdfast.event_position_at($2::timestamptz), g.last_pos)
        WHEN $3::text = 'start' THEN g.start_pos ELSE g.last_pos END AS position
    FROM log g
)
SELECT w.position, CASE WHEN w.position BETWEEN w.start_pos AND w.last_pos THEN holdfast.event_seq_at(w.position) END, w.start_pos, w.last_pos FROM wanted w;

-- name: reset_subscription
-- anywhere
-- Move a subscription to a position that the log has; its owner is fenced. Records of jobs from events that are no longer in the log are removed,
-- and those after the position too, if their events should become jobs again. Returns how many shards changed, and how many positions are left out.
-- $1 name, $2 position, $3 seq of the event at it, $4 whether to make jobs again
WITH log AS (
    SELECT l.start_pos FROM holdfast.event_log l
), was AS (
    SELECT s.name, s.shard, s.delivered OPERATOR(pg_catalog.*) pg_catalog.int8multirange(pg_catalog.int8range($2::bigint + 1, NULL)) AS beyond
    FROM holdfast.subscriptions s WHERE s.name = $1::text FOR UPDATE
), done AS (
    UPDATE holdfast.subscriptions s
    SET position=$2::bigint, seq=$3::bigint, generation=s.generation + 1, token=NULL, owner=NULL, lease_expires_at=CASE WHEN s.kind = 'relay' THEN s.lease_expires_at ELSE holdfast.now() END,
        status=CASE WHEN s.status = 'expired' THEN 'active' ELSE s.status END, missed=NULL, problem=NULL, moved_at=holdfast.now(), barrier=NULL,
        paused_by=CASE WHEN s.status = 'paused' THEN s.paused_by END, paused_at=CASE WHEN s.status = 'paused' THEN s.paused_at END,
        delivered=(s.delivered OPERATOR(pg_catalog.-) CASE WHEN $4::boolean THEN w.beyond ELSE '{}'::pg_catalog.int8multirange END)
                  OPERATOR(pg_catalog.-) pg_catalog.int8multirange(pg_catalog.int8range(NULL, g.start_pos + 1))
    FROM log g CROSS JOIN was w WHERE s.name = w.name AND s.shard = w.shard AND g.start_pos <= $2::bigint
    RETURNING CASE WHEN $4::boolean THEN '{}'::pg_catalog.int8multirange ELSE w.beyond END AS left_out
), forgotten AS (   -- what was skipped or parked beyond the position is read again
    DELETE FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.position OPERATOR(pg_catalog.>) $2::bigint AND EXISTS (SELECT FROM done)
)
SELECT ARRAY[count(*)::text, (SELECT coalesce(pg_catalog.sum(pg_catalog.upper(r) OPERATOR(pg_catalog.-) pg_catalog.lower(r)), 0)::text
                              FROM done d CROSS JOIN LATERAL pg_catalog.unnest(d.left_out) AS r), holdfast.wake(ARRAY['+events'])::text]
FROM done;

-- name: add_replay
-- A temporary subscription that reads a range to the subscriber of another one, whose owner need not be woken for it. Returns how many positions
-- of it became jobs before and are left out; no row: there is no such subscription.
-- $1 its name, $2 of which, $3 from position, $4 to position, $5 whether what became jobs becomes jobs again, $6 events in a second (NULL: no limit)
WITH was AS (
    SELECT s.name, s.kind, s.patterns, s.delivered * int8multirange(int8range($3::bigint + 1, $4::bigint + 1)) AS known
    FROM holdfast.subscriptions s WHERE s.name = $2::text AND s.shard = 0 FOR UPDATE
), again AS (
    UPDATE holdfast.subscriptions s SET delivered = s.delivered - w.known FROM was w WHERE s.name = w.name AND s.shard = 0 AND $5::boolean
), made AS (
    INSERT INTO holdfast.subscriptions AS s (name, shard, shards, kind, patterns, position, seq, until, replay_of, status, hold, created_at, moved_at,
                                             lease_expires_at, rate)
    SELECT $1::text, 0, 1, w.kind, w.patterns, $3::bigint, holdfast.event_seq_at($3::bigint), $4::bigint, w.name, 'active', true, holdfast.now(), holdfast.now(),
           holdfast.now(), $6::float8
    FROM was w
    RETURNING holdfast.wake(ARRAY['+events'])
)
SELECT CASE WHEN $5::boolean THEN 0 ELSE (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(w.known) AS r) END FROM was w CROSS JOIN made;

-- name: remove_subscription
-- Forget a subscription, its replays and its failures. Returns how many rows went, which worker runs it, and the projection of which it is the
-- rebuild, or which is being rebuilt: then none went.
-- $1 name, $2 whether the caller gives up the rebuild in this transaction
WITH busy AS (
    SELECT s.owner FROM holdfast.subscriptions s WHERE s.name = $1::text AND s.replay_of IS NULL AND s.lease_expires_at > holdfast.now() LIMIT 1
), built AS (
    SELECT b.projection FROM holdfast.projection_builds b WHERE $1::text IN (b.name, b.projection) AND NOT $2::boolean LIMIT 1
), gone AS (
    DELETE FROM holdfast.subscriptions s
    WHERE (s.name = $1::text OR s.replay_of = $1::text) AND NOT EXISTS (SELECT FROM busy) AND NOT EXISTS (SELECT FROM built) RETURNING s.name
), failures AS (
    DELETE FROM holdfast.event_failures f WHERE f.subscription IN (SELECT g.name FROM gone g)
)
SELECT (SELECT count(*) FROM gone), (SELECT b.owner FROM busy b), (SELECT b.projection FROM built b);

-- name: note_failures
-- anywhere
-- Events that a projection did not apply, in the transaction that passes them.
-- $1 subscription, $2 shard, $3 positions, $4 seqs, $5 kinds, $6 ids, $7 types, $8 keys, $9 errors
INSERT INTO holdfast.event_failures (subscription, shard, position, seq, kind, event_id, type, key, error, at)
SELECT $1::text, $2::int, u.position, u.seq, u.kind, u.id, u.type, u.key, u.error, holdfast.now()
FROM ROWS FROM (unnest($3::bigint[]), unnest($4::bigint[]), unnest($5::text[]), unnest($6::uuid[]), unnest($7::text[]), unnest($8::text[]), unnest($9::text[]))
    AS u(position, seq, kind, id, type, key, error)
ON CONFLICT DO NOTHING
RETURNING ARRAY[position::text];

-- name: parked_event_keys
-- Keys of a subscription with events that wait to be applied in order.
-- $1 subscription
SELECT DISTINCT f.key FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.kind <> 'skipped' AND f.key IS NOT NULL;

-- name: waiting_event_keys
-- Keys of a subscription with events that wait in order, and whether the first of them is tried again by itself. $1 subscription
SELECT f.key, (array_agg(f.kind ORDER BY f.position))[1] <> 'parked'
FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.kind <> 'skipped' GROUP BY f.key;

-- name: waiting_failures
-- Those of a key, in order. $1 subscription, $2 key (NULL: those without one), $3 most, $4 after this position
SELECT f.position, f.seq, f.shard, f.kind, f.event_id, f.type, f.key, f.error, f.at
FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.key IS NOT DISTINCT FROM $2::text AND f.kind <> 'skipped' AND f.position > $4::bigint
ORDER BY f.position LIMIT $3::int;

-- name: retry_failures
-- Skipped or parked events are tried again, by the subscription's owner. Returns how many.
-- $1 subscription, $2 key (NULL: all)
WITH again AS (
    UPDATE holdfast.event_failures f SET kind = 'spilled'
    WHERE f.subscription = $1::text AND ($2::text IS NULL OR f.key = $2::text) AND f.kind IN ('parked', 'skipped') RETURNING 1)
SELECT count(*), holdfast.wake(ARRAY['+events']) FROM again;

-- name: send_behind
-- What waits in a relay behind nothing any more is sent. $1 subscription
WITH next AS (
    UPDATE holdfast.event_failures f SET kind = 'spilled'
    WHERE f.subscription = $1::text AND f.kind = 'behind'
      AND EXISTS (SELECT FROM holdfast.subscriptions s WHERE s.name = $1::text AND s.kind = 'relay')
      AND NOT EXISTS (SELECT FROM holdfast.event_failures b
                      WHERE b.subscription = $1::text AND b.key = f.key AND b.position < f.position AND b.kind <> 'skipped')
    RETURNING 1)
SELECT count(*), holdfast.wake(ARRAY['+events']) FROM next;

-- name: list_failures
-- Events that a subscription skipped or parked, in order. $1 subscription, $2 key (NULL: all), $3 most, $4 after this position
SELECT f.position, f.seq, f.shard, f.kind, f.event_id, f.type, f.key, f.error, f.at
FROM holdfast.event_failures f WHERE f.subscription = $1::text AND ($2::text IS NULL OR f.key = $2::text) AND f.position > $4::bigint
ORDER BY f.position LIMIT $3::int;

-- name: count_failures
-- How many of these there are. $1 subscription, $2 key (NULL: all), $3 position (NULL: all)
SELECT count(*) FROM holdfast.event_failures f
WHERE f.subscription = $1::text AND ($2::text IS NULL OR f.key = $2::text) AND ($3::bigint IS NULL OR f.position = $3::bigint);

-- name: drop_failures
-- Give these up. Returns how many there were, and how many of them kept their key waiting. $1 subscription, $2 key (NULL: all), $3 position (NULL: all)
WITH gone AS (
    DELETE FROM holdfast.event_failures f
    WHERE f.subscription = $1::text AND ($2::text IS NULL OR f.key = $2::text) AND ($3::bigint IS NULL OR f.position = $3::bigint) RETURNING f.kind
)
SELECT count(*), count(*) FILTER (WHERE g.kind <> 'skipped') FROM gone g;

-- name: lock_failures
-- anywhere
-- $1 subscription, $2 positions
SELECT ARRAY[f.position::text] FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.position = ANY ($2::bigint[]) FOR UPDATE;

-- name: failed_again
-- An event that was to be applied later has failed once more. $1 subscription, $2 position, $3 error
UPDATE holdfast.event_failures f SET error = $3::text, at = holdfast.now() WHERE f.subscription = $1::text AND f.position = $2::bigint;

-- name: lock_positions
-- anywhere
-- Lock the rows of all shards, to do the owners' work once. $1 name
SELECT ARRAY[s.position::text, pg_catalog.pg_current_xact_id()::text, pg_catalog.pg_backend_pid()::text, s.version::text] FROM holdfast.subscriptions s
WHERE s.name = $1::text ORDER BY s.shard FOR UPDATE;

-- name: fence_subscription
-- anywhere
-- Its owners start again. $1 name
UPDATE holdfast.subscriptions s SET generation=s.generation + 1, token=NULL, owner=NULL,
    lease_expires_at=CASE WHEN s.kind = 'relay' THEN s.lease_expires_at ELSE '-infinity' END
WHERE s.name = $1::text
RETURNING ARRAY[s.name];

-- name: forget_failures
-- anywhere
-- $1 subscription, $2 positions
DELETE FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.position = ANY ($2::bigint[]) RETURNING ARRAY[f.position::text];

-- name: forget_skipped
-- A replay passes these: what was skipped there is not any more. $1 subscription, $2 after this position, $3 up to this one
DELETE FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.position > $2::bigint AND f.position <= $3::bigint AND f.kind = 'skipped';

-- name: event_positions
-- Where events are, by seq; NULL: without a position. $1 seqs
SELECT holdfast.event_position(u.seq) FROM unnest($1::bigint[]) WITH ORDINALITY AS u(seq, ord) ORDER BY u.ord;

-- name: event_by_id
-- The seq of an event, by its id; NULL: it was not found. $1 id
SELECT holdfast.event_seq_of($1::uuid);

-- name: erase_events
-- Take the data of these events away, or fields of it. Returns how many had any. $1 ids, $2 their seqs, $3 blanks by 'version type', $4 only count?
SELECT holdfast.erase_events($1::uuid[], $2::bigint[], $3::text::jsonb, $4::boolean);

-- name: erase_event_key
-- The same for a key, in one slot: (the last seq that was read, NULL: there are no more; how many had data).
-- $1 slot, $2 after this seq, $3 events to look at, $4 key, $5 blanks by 'version type', $6 only count?
SELECT e.last, e.erased FROM holdfast.erase_event_key($1::int, $2::bigint, $3::int, $4::text, $5::text::jsonb, $6::boolean) e;

-- name: projection_positions
-- The lowest position of a subscription over its shards, and the status of one that stands still before a position; no row: there is none.
-- $1 name, $2 position
SELECT min(s.position), (array_agg(s.status ORDER BY s.position) FILTER (WHERE s.status IN ('paused', 'expired') AND s.position < $2::bigint))[1]
FROM holdfast.subscriptions s WHERE s.name = $1::text HAVING count(*) > 0;

-- name: empty_event_slots
-- Remove the days of the log that are past retention. Returns how many pages of them went. $1 most pages
SELECT holdfast.empty_event_slots($1::int);

-- name: prune_event_ids
-- Ids that a caller chose go with the log. $1 days that jobs are kept (not used), $2 most
WITH old AS (
    SELECT i.id FROM holdfast.event_ids i
    WHERE i.at < holdfast.now() - make_interval(days => (SELECT greatest(l.retention_days, l.hold_days) FROM holdfast.event_log l)) ORDER BY i.at LIMIT $2::int
), gone AS (DELETE FROM holdfast.event_ids i USING old WHERE i.id = old.id AND $1::int IS NOT NULL RETURNING 1)
SELECT count(*) FROM gone;

-- name: log_pressure
-- What each subscription makes the log keep: the age of its oldest unread event in seconds, the bytes of the days from there on, and the limits
-- of both. A day counts as a whole.
WITH slots AS MATERIALIZED (
    SELECT t.last_pos, pg_total_relation_size(format('holdfast.events_%s', lpad(d.slot::text, 2, '0'))::regclass) AS bytes
    FROM holdfast.event_log l CROSS JOIN generate_series(0, 31) AS d(slot)
    CROSS JOIN LATERAL (SELECT p.slot, p.last_pos FROM holdfast.event_pages p WHERE (p.slot, p.last_pos) < (d.slot + 1, 0)
                        ORDER BY p.slot DESC, p.last_pos DESC LIMIT 1) t
    WHERE t.slot = d.slot AND t.last_pos > l.start_pos
)
SELECT s.name, greatest(extract(epoch FROM holdfast.now() - (
           SELECT p.at FROM holdfast.event_pages p WHERE p.last_pos > s.position ORDER BY p.last_pos LIMIT 1)), 0)::float8,
       (SELECT coalesce(sum(x.bytes), 0)::bigint FROM slots x WHERE x.last_pos > s.position), greatest(l.hold_days, l.retention_days), l.hold_bytes
FROM (SELECT h.name, min(h.position) AS position FROM holdfast.subscriptions h WHERE h.hold AND h.status <> 'expired' GROUP BY h.name) s
CROSS JOIN holdfast.event_log l ORDER BY s.name;

-- name: rebase_events
-- Number the log from here on by the transaction ids of this server. Returns how many events had no position.
SELECT holdfast.rebase_events();

-- name: set_event_retention
-- How long the log is kept. $1 days, $2 days that a slow subscriber may hold it, $3 bytes; NULL: as it is
UPDATE holdfast.event_log l SET retention_days = coalesce($1::int, l.retention_days), hold_days = coalesce($2::int, l.hold_days),
    hold_bytes = coalesce($3::bigint, l.hold_bytes)
RETURNING l.retention_days, l.hold_days, l.hold_bytes;

-- name: event_seq_at
-- The seq of the event at a position, for a cursor that is set there. $1 position
SELECT holdfast.event_seq_at($1::bigint);

-- name: position_at
-- The position before the first event that was numbered at a time or later; NULL: there is none. $1 time
SELECT holdfast.event_position_at($1::timestamptz);

-- name: skip_event
-- Move a stopped subscription past an event, and note it. Returns the position; no row: it has moved meanwhile, or is not stopped any more.
-- $1 name, $2 shard, $3 position, $4 seq, $5 id, $6 type, $7 key, $8 why, $9 position that it stands at
WITH moved AS (
    UPDATE holdfast.subscriptions s SET position = $3::bigint, seq = $4::bigint, moved_at = holdfast.now(), generation = s.generation + 1
    WHERE s.name = $1::text AND s.shard = $2::int AND s.status = 'paused' AND s.position = $9::bigint RETURNING s.position
), noted AS (
    INSERT INTO holdfast.event_failures (subscription, shard, position, seq, kind, event_id, type, key, error, at)
    SELECT $1::text, $2::int, $3::bigint, $4::bigint, 'skipped', $5::uuid, $6::text, $7::text, $8::text, holdfast.now() FROM moved
    ON CONFLICT DO NOTHING)
SELECT m.position FROM moved m;

-- name: subscription_health
-- Every subscription for the doctor and for metrics: (name, shard, shards, kind, status, position, lag in events, in seconds, owner if it lives, missed,
-- problem, paused by, paused for seconds, failures up to 10,000, what it is a replay of).
-- $1 seconds after which a worker is not heard of
SELECT s.name, s.shard, s.shards, s.kind, s.status, s.position, g.events, g.seconds,
       -- a batch that takes longer than the lease holds the row, so that its living owner cannot renew it
       CASE WHEN s.lease_expires_at > holdfast.now() OR EXISTS (
           SELECT FROM holdfast.workers w WHERE w.id = s.owner AND w.status <> 'gone' AND w.last_seen_at > holdfast.now() - make_interval(secs => $1::float8)) THEN s.owner END,
       s.missed, s.problem, s.paused_by, extract(epoch FROM holdfast.now() - s.paused_at)::float8,
       (SELECT count(*) FROM (SELECT FROM holdfast.event_failures f WHERE f.subscription = s.name AND f.shard = s.shard LIMIT 10000) f), s.replay_of
FROM holdfast.subscriptions s JOIN holdfast.subscription_lag g ON g.name = s.name AND g.shard = s.shard
ORDER BY s.name, s.shard LIMIT 1000;

-- name: set_aside
-- What subscriptions passed without doing it: (name, kind of subscription, kind of failure, events, keys, seconds since the oldest, the newest error). Of
-- each subscription the first 10,000 events; not of rebuilds, whose failures become those of the projection with the swap.
SELECT s.name, s.kind, f.kind, count(*), count(DISTINCT f.key), extract(epoch FROM holdfast.now() - min(f.at))::float8,
       (array_agg(f.error ORDER BY f.position DESC) FILTER (WHERE f.error IS NOT NULL))[1]
FROM (SELECT DISTINCT s.name, s.kind FROM holdfast.subscriptions s WHERE s.kind <> 'projection' OR s.replay_of IS NULL) s
CROSS JOIN LATERAL (SELECT f.kind, f.key, f.at, f.error, f.position FROM holdfast.event_failures f WHERE f.subscription = s.name ORDER BY f.position LIMIT 10000) f
GROUP BY s.name, s.kind, f.kind ORDER BY s.name, f.kind LIMIT 1000;

-- name: log_health
-- Whether the log is of another server, how many events wait for a position for long (up to 1,000), and for how long the oldest of them.
-- $1 seconds
SELECT l.system_id <> (SELECT c.system_identifier FROM pg_control_system() c)
           OR pg_snapshot_xmax(coalesce(p.s_to, l.base_snap)) > pg_snapshot_xmax(pg_current_snapshot()),
       w.n, coalesce(w.seconds, 0)
FROM holdfast.event_log l
LEFT JOIN LATERAL (SELECT g.s_to, g.top FROM holdfast.event_pages g WHERE g.last_pos > l.base_pos ORDER BY g.last_pos DESC LIMIT 1) p ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS n, extract(epoch FROM holdfast.now() - min(e.created_at))::float8 AS seconds
    FROM (SELECT e.created_at FROM holdfast.events e WHERE e.seq > coalesce(p.top, l.base_top) ORDER BY e.seq LIMIT 1000) e
    WHERE e.created_at <= holdfast.now() - make_interval(secs => $1::float8)) w;

-- name: open_publishers
-- Transactions that published and have not ended for long: (pid, prepared name, role, application, seconds). Until they end nobody can publish to their
-- keys, and their days of the log cannot be emptied.
-- $1 seconds
WITH held AS MATERIALIZED (
    SELECT DISTINCT k.pid, k.virtualtransaction FROM pg_locks k JOIN pg_inherits i ON i.inhrelid = k.relation
    WHERE i.inhparent = 'holdfast.events'::regclass AND k.locktype = 'relation' AND k.mode = 'RowExclusiveLock' AND k.granted
      AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
)
SELECT a.pid, NULL::text, coalesce(a.usename, ''), coalesce(a.application_name, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM held h JOIN pg_stat_activity a ON a.pid = h.pid
WHERE a.xact_start <= clock_timestamp() - make_interval(secs => $1::float8)
UNION ALL
SELECT NULL, p.gid, p.owner, '', extract(epoch FROM clock_timestamp() - p.prepared)::float8
FROM held h JOIN pg_locks t ON t.virtualtransaction = h.virtualtransaction AND t.pid IS NULL AND t.locktype = 'transactionid'
JOIN pg_prepared_xacts p ON p.transaction = t.transactionid
WHERE p.prepared <= clock_timestamp() - make_interval(secs => $1::float8)
ORDER BY seconds DESC LIMIT 100;

-- name: last_position
-- The last position of the log. Nothing is turned: what was not numbered yet does not count.
SELECT coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) FROM holdfast.event_log l;

-- name: find_tables
-- anywhere
-- Which tables these names mean for this role; NULL: none. $1 names
SELECT ARRAY[t.name, pg_catalog.to_regclass(t.name)::pg_catalog.oid::text] FROM unnest($1::text[]) AS t(name);

-- name: rebuild_obstacle
-- anywhere
-- $1 tables
SELECT ARRAY[holdfast.rebuild_obstacle($1::pg_catalog.oid[])];

-- name: schema_exists
-- anywhere
-- $1 schema
SELECT ARRAY[(pg_catalog.to_regnamespace(pg_catalog.quote_ident($1::text)) IS NOT NULL)::text];

-- name: make_shadow
-- anywhere
-- $1 tables, $2 schema of the new ones, $3 schema of the old ones
SELECT ARRAY[holdfast.make_shadow($1::pg_catalog.oid[], $2::text, $3::text)];

-- name: seed_shadow
-- anywhere
-- Returns why not. $1 tables, $2 schema of the new ones, $3 schema of the seed
SELECT ARRAY[holdfast.seed_shadow($1::pg_catalog.oid[], $2::text, $3::text)];

-- name: add_build
-- anywhere
-- The subscription that builds, and what it builds. Returns no row where one is there.
-- $1 its name, $2 projection, $3 version, $4 tables, $5 schema of the new ones, $6 of the old ones, $7 position, $8 rate, $9 who, $10 patterns
WITH made AS (
    INSERT INTO holdfast.projection_builds (name, projection, version, tables, shadow, old, since, rate, parts, started_by, started_at)
    VALUES ($1::text, $2::text, $3::int, $4::pg_catalog.oid[], $5::text, $6::text, $7::bigint, $8::float8, holdfast.table_parts($4::pg_catalog.oid[]), $9::text, holdfast.now())
    ON CONFLICT DO NOTHING RETURNING name
)
INSERT INTO holdfast.subscriptions (name, shard, shards, kind, patterns, position, seq, replay_of, status, hold, created_at, moved_at, version)
SELECT m.name, 0, 1, 'projection', $10::text[], $7::bigint, holdfast.event_seq_at($7::bigint), $2::text, 'building', true, holdfast.now(), holdfast.now(), $3::int FROM made m
RETURNING ARRAY[name];

-- name: build_of
-- anywhere
-- The purpose of a rebuild's subscription. $1 its name
SELECT ARRAY[b.projection, b.version::text, b.shadow, b.old, b.since::text, b.rate::text] FROM holdfast.projection_builds b WHERE b.name = $1::text;

-- name: build_progress
-- How far the rebuild of a projection is: where it began, where it is, where the live one is, its owner, what fails. $1 projection
SELECT b.name, b.version, b.since, s.position, (SELECT max(l.position) FROM holdfast.subscriptions l WHERE l.name = b.projection), s.owner, s.status, s.problem
FROM holdfast.projection_builds b JOIN holdfast.subscriptions s ON s.name = b.name WHERE b.projection = $1::text;

-- name: enter_shadow
-- anywhere
-- To the end of the transaction, names without a schema mean the tables of the shadow. $1 its schema
SELECT ARRAY[pg_catalog.set_config('search_path', pg_catalog.quote_ident($1::text) || ', ' || pg_catalog.current_setting('search_path'), true)];

-- name: wait_for_locks
-- anywhere
-- $1 for how long, in this transaction
SELECT ARRAY[pg_catalog.set_config('lock_timeout', $1::text, true)];

-- name: written_beside
-- anywhere
-- $1 schema of the shadow
SELECT ARRAY[holdfast.written_beside($1::text)];

-- name: swap_projection
-- anywhere
-- Returns why not. $1 the build, $2 position, $3 seq
SELECT ARRAY[holdfast.swap_projection($1::text, $2::bigint, $3::bigint)];

-- name: live_position
-- The highest position of a projection's shards. $1 name
SELECT max(s.position) FROM holdfast.subscriptions s WHERE s.name = $1::text;

-- name: cancel_build
-- $1 projection
SELECT holdfast.cancel_build($1::text);

-- name: drop_old_tables
-- $1 their schema
SELECT holdfast.drop_old_tables($1::text);

-- name: want_shards
-- How many shards the code of a worker that starts wants. The worker that started last decides. Rows are locked in order, as everybody does.
-- $1 name, $2 shards, $3 version of the code
WITH locked AS (
    SELECT s.name, s.shard FROM holdfast.subscriptions s
    WHERE s.name = $1::text AND s.version = $3::int AND s.replay_of IS NULL AND (s.shards <> $2::int OR s.wanted_shards IS NOT NULL)
    ORDER BY s.shard FOR UPDATE
)
UPDATE holdfast.subscriptions s SET wanted_shards = CASE WHEN s.shards = $2::int AND s.barrier IS NULL THEN NULL ELSE $2::int END
FROM locked l WHERE s.name = l.name AND s.shard = l.shard;

-- name: begin_reshard
-- $1 name
SELECT holdfast.begin_reshard($1::text);

-- name: finish_reshard
-- $1 name
SELECT holdfast.finish_reshard($1::text);

-- name: restart_projection
-- anywhere
-- $1 name, $2 tables, $3 version of the code
SELECT ARRAY[holdfast.restart_projection($1::text, $2::pg_catalog.oid[], $3::int)::text];

-- name: list_projections
-- Every projection over its shards: version, shards, lowest position, lag, a status that is not active, what fails, what was not applied, the
-- rebuild in progress, and the wanted number of shards. $1 name (NULL: all)
SELECT s.name, max(s.version), max(s.shards), min(s.position), max(g.events), max(g.seconds),
       coalesce(min(s.status) FILTER (WHERE s.status <> 'active'), 'active'), min(s.problem),
       (SELECT count(*) FROM holdfast.event_failures f WHERE f.subscription = s.name),
       (SELECT b.name FROM holdfast.projection_builds b WHERE b.projection = s.name), max(s.wanted_shards)
FROM holdfast.subscriptions s JOIN holdfast.subscription_lag g ON g.name = s.name AND g.shard = s.shard
WHERE s.kind = 'projection' AND s.replay_of IS NULL AND ($1::text IS NULL OR s.name = $1::text)
GROUP BY s.name ORDER BY s.name;

-- name: event_types
-- anywhere
-- Every contract that is stored: name, version, both schemas, digest, compatibility, release.
SELECT ARRAY[t.name::text, t.version::text, t.reader::text, t.writer::text, t.digest::text, t.compatibility, t.release]
FROM holdfast.event_types t ORDER BY t.name, t.version;

-- name: store_event_types
-- anywhere
-- Write down contracts, but for those that are there: one that somebody else is writing is waited for.
-- $1 names, $2 versions, $3 readers, $4 writers, $5 digests, $6 compatibilities, $7 release
INSERT INTO holdfast.event_types (name, version, reader, writer, digest, compatibility, stored_at, release)
SELECT n.name, n.version, n.reader::text::jsonb, n.writer::text::jsonb, n.digest::text::pg_catalog.bytea, n.compatibility, holdfast.now(), $7::text
FROM ROWS FROM (unnest($1::text[]), unnest($2::int[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]), unnest($6::text[]))
     AS n(name, version, reader, writer, digest, compatibility)
ORDER BY n.name, n.version
ON CONFLICT DO NOTHING
RETURNING ARRAY[name::text];
