-- holdfast: expand
-- What was found when the engine was tried from outside: deaths, limits, locks, rights and housekeeping. Functions and views are those of
-- schema.sql. The tables that everybody reads come last, so that they are locked for a moment only.

ALTER TABLE holdfast.migrations ADD COLUMN needs_code int;

COMMENT ON COLUMN holdfast.migrations.needs_code IS
    'The newest migration that code must know to run on this one; NULL: this one. Older code reads it to decide whether it may run.';

--
-- Workers write down the signatures of their tasks, and which of them refused the payload of a job.

CREATE TABLE holdfast.misfits (
    job_id       uuid NOT NULL,
    signature    text NOT NULL,   -- a value of workers.signatures
    queue        text NOT NULL,
    available_at timestamptz NOT NULL,
    reason       text NOT NULL,
    at           timestamptz NOT NULL,
    PRIMARY KEY (job_id, signature)
);

CREATE INDEX misfits_at ON holdfast.misfits (at);

CREATE INDEX misfits_queue ON holdfast.misfits (queue, at, job_id);

-- Support queries: one view per question (`holdfast runbook NAME` prints it; docs/runbook.md says what to do) -------------------
--
-- A role that may SELECT from these views and use the schema needs no more: they read the tables with their owner's rights.
-- oldest_due, expired_claims, worker_jobs, lost_workers, storage and horizon stay quick whatever waits; attempts, keys and
-- stranded_jobs read every live job once, dead_letters_by_task every dead letter. Errors are fetched for the rows shown, never sorted.

-- Since when the oldest due job of each queue waits. One index probe per priority.
CREATE OR REPLACE VIEW holdfast.oldest_due AS
    SELECT q.name AS queue, o.id AS job_id, o.task, o.available_at AS due_at,
           extract(epoch FROM holdfast.now() - o.available_at)::float8 AS age_seconds, q.paused_at IS NOT NULL AS paused
    FROM holdfast.queues q
    LEFT JOIN LATERAL (
        WITH RECURSIVE p(priority) AS (
            (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NULL AND w.priority < p.priority
                    ORDER BY w.priority DESC LIMIT 1)
            FROM p WHERE p.priority IS NOT NULL
        )
        SELECT j.* FROM p CROSS JOIN LATERAL (
            SELECT w.id, w.task, w.available_at FROM holdfast.work w
            WHERE w.queue = q.name AND w.hold_reason IS NULL AND w.priority = p.priority AND w.available_at <= holdfast.now()
              AND w.status = 'pending' AND w.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
            ORDER BY w.available_at, w.seq LIMIT 1
        ) j
        ORDER BY j.available_at LIMIT 1
    ) o ON true;

-- One number for an autoscaler: jobs of a queue that are due or running, counted up to the cap. A paused queue wants no workers.
-- Priorities are probed one by one, as in every look at a queue: one ordered walk would pass over whatever is scheduled ahead at a
-- higher priority. Due jobs of paused or unknown tasks count until a worker has set them aside; it takes one to do so.
-- EXECUTE is all a scaler needs. The settings are for callers whose own would make it scan or compile.
CREATE OR REPLACE FUNCTION holdfast.scaler_backlog(queue_name text DEFAULT 'inbox', cap int DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue_name) THEN
        RAISE EXCEPTION 'queue % does not exist', quote_nullable(queue_name) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue_name AND q.paused_at IS NOT NULL) THEN
        RETURN 0;
    END IF;
    RETURN (
        WITH RECURSIVE p(priority) AS (
            (SELECT w.priority FROM holdfast.work w WHERE w.queue = queue_name AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = queue_name AND w.hold_reason IS NULL AND w.priority < p.priority
                    ORDER BY w.priority DESC LIMIT 1)
            FROM p WHERE p.priority IS NOT NULL
        ), due AS MATERIALIZED (
            SELECT FROM p CROSS JOIN LATERAL (
                SELECT j.id FROM holdfast.work j
                WHERE j.queue = queue_name AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
                  AND j.status = 'pending' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
                ORDER BY j.available_at, j.seq LIMIT cap
            ) w
            LIMIT cap
        ), running AS MATERIALIZED (
            SELECT FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
            CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                WHERE w.queue = queue_name AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
            WHERE c.queue = queue_name AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
            LIMIT cap
        )
        SELECT least(cap, (SELECT count(*) FROM due) + (SELECT count(*) FROM running)));
END $$;

--
-- Functions are resolved when they are made, or have a search_path of their own: nobody's schema is looked into when they run. Roles may be
-- allowed to enqueue into some queues only. Queues are made, and old slots emptied, with the owner's rights. The audit notes the role that
-- was logged in.

ALTER TABLE holdfast.audit ADD COLUMN role text;

ALTER TABLE holdfast.audit ALTER COLUMN role SET DEFAULT session_user;   -- in a second step: what is there was not done by the migrator

CREATE TABLE holdfast.producers (
    role  regrole NOT NULL,
    queue text    NOT NULL,
    PRIMARY KEY (role, queue)
);

-- The same in every language: first 16 bits of SHA-256 of the UTF-8 key, & 1023. convert_to() is only STABLE.
CREATE OR REPLACE FUNCTION holdfast.bucket(key text) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || substr(encode(sha256(decode(replace(key, E'\\', E'\\\\'), 'escape')), 'hex'), 1, 4))::bit(16)::int & 1023;

DO $do$
BEGIN
    IF to_regprocedure('pg_catalog.uuidv7()') IS NOT NULL THEN
        CREATE OR REPLACE FUNCTION holdfast.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE RETURN uuidv7();
    ELSE
        CREATE OR REPLACE FUNCTION holdfast.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE RETURN (
            SELECT encode(substr(int8send(floor(t)::bigint), 3)
                       || int2send((28672 + floor((t - floor(t)) * 4096)::int)::int2)
                       || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
            FROM (SELECT extract(epoch FROM clock_timestamp()) * 1000) AS clock(t));
    END IF;
END $do$;

CREATE OR REPLACE FUNCTION holdfast.uuid7_time(id uuid) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN to_timestamp(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0);

-- How many sleep in each queue: what producers ask. One row for each queue, also where nobody sleeps. Whoever lies down or gets up replaces it
-- by one with the next number, and the newest is found first, so that what a long transaction keeps costs a producer nothing.
CREATE TABLE holdfast.asleep (
    queue    text   NOT NULL,
    number   bigint NOT NULL,
    sleepers int    NOT NULL,
    poll     float8 NOT NULL,   -- the longest of those who slept here since nobody did
    PRIMARY KEY (queue, number)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

-- Counts who lay down and who got up, whatever statement did it. One after the other in each queue, and queues in the order of their hashes:
-- the lock comes before the look, which is a statement of its own and so sees what others counted. A number that cannot be is counted anew.
CREATE OR REPLACE FUNCTION holdfast.count_sleepers() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
DECLARE
    item record;
    last record;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        UPDATE holdfast.asleep a SET sleepers = 0 WHERE a.sleepers > 0;
        RETURN NULL;
    END IF;
    FOR item IN
        SELECT c.queue, CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE - count(*) END AS change, max(c.poll) AS poll
        FROM changed c GROUP BY c.queue ORDER BY hashtext(c.queue)
    LOOP
        PERFORM pg_advisory_xact_lock(7236841, hashtext(item.queue));
        DELETE FROM holdfast.asleep a
        WHERE a.queue = item.queue AND a.number = (SELECT n.number FROM holdfast.asleep n WHERE n.queue = item.queue ORDER BY n.number DESC LIMIT 1)
        RETURNING a.number, a.sleepers + item.change AS sleepers,
                  CASE WHEN TG_OP = 'INSERT' AND (a.sleepers = 0 OR a.poll < item.poll) THEN item.poll ELSE a.poll END AS poll INTO last;
        IF last.number IS NULL OR last.sleepers < 0 THEN
            SELECT coalesce(last.number, 0) AS number, count(*) AS sleepers, coalesce(max(s.poll), 0) AS poll INTO last
            FROM holdfast.sleepers s WHERE s.queue = item.queue;
        END IF;
        INSERT INTO holdfast.asleep (queue, number, sleepers, poll) VALUES (item.queue, last.number + 1, last.sleepers, last.poll);
    END LOOP;
    RETURN NULL;
END $$;

REVOKE ALL ON FUNCTION holdfast.count_sleepers FROM PUBLIC;

-- Jobs of these queues are due, now or at the time or delay given for each: tell whoever sleeps there, unless it looks by itself before
-- that. No payload, because anybody may listen; the server makes one of equal ones in a transaction. A notification takes a lock over
-- the whole database at the commit, so nothing is said where nobody sleeps, nor while four other transactions are about to say the
-- same. Nothing is said either where holdfast.notify is off: a transaction that is to be PREPAREd may not.
CREATE OR REPLACE FUNCTION holdfast.wake(queue_names text[], run_ats timestamptz[] DEFAULT NULL, delays float8[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
DECLARE
    told text;
BEGIN
    IF current_setting('holdfast.notify', true) = 'off' THEN RETURN; END IF;
    FOR told IN
        SELECT d.queue
        FROM (SELECT DISTINCT u.queue FROM unnest(queue_names) AS u(queue)) d
        CROSS JOIN LATERAL (SELECT a.sleepers, a.poll FROM holdfast.asleep a WHERE a.queue = d.queue ORDER BY a.number DESC LIMIT 1) a
        WHERE a.sleepers > 0
          AND EXISTS (SELECT FROM unnest(queue_names, run_ats, delays) AS u(queue, run_at, delay)
                      WHERE u.queue = d.queue AND coalesce(u.run_at, holdfast.now() + make_interval(secs => u.delay), holdfast.now())
                                                < holdfast.now() + make_interval(secs => a.poll))
          AND NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = d.queue AND q.paused_at IS NOT NULL)
    LOOP
        FOR place IN 0..3 LOOP
            IF pg_try_advisory_xact_lock(7236839, hashtext(told) # place) THEN
                PERFORM pg_notify('holdfast_' || told, '');
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Finished work ---------------------------------------------------------------------------------------------------

-- A fixed ring of 32 day slots, all made now: a missing partition would fail a settle. A slot is emptied by TRUNCATE
-- when its day is past retention, long before the ring comes round to it again.
CREATE OR REPLACE FUNCTION holdfast.archive_slot(at timestamptz) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN mod(floor(extract(epoch FROM at) / 86400)::bigint, 32)::int;

-- The slots a job of this id can be in: from the day in its id until today, so that a lookup probes one or two.
CREATE OR REPLACE FUNCTION holdfast.archive_slots_of(id uuid) RETURNS int[]
    LANGUAGE sql STABLE STRICT
    SET search_path = pg_catalog, pg_temp   -- no RETURN: nothing is to hang on another function of ours, so that each can be repaired by itself
    AS $$ SELECT ARRAY(SELECT DISTINCT mod(day, 32)::int
                       FROM generate_series(greatest(floor(extract(epoch FROM holdfast.uuid7_time(id)) / 86400)::bigint - 1,
                                                     floor(extract(epoch FROM holdfast.now()) / 86400)::bigint - 31),
                                            floor(extract(epoch FROM holdfast.now()) / 86400)::bigint + 1) AS day) $$;

-- A conflict in words.
CREATE OR REPLACE FUNCTION holdfast.conflict_text(task text, queue text, conflict text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN format('%s cannot be enqueued: ', task) || CASE conflict
              WHEN 'queue' THEN format('queue %L does not exist. Create it: holdfast queue create %s', queue, queue)
              WHEN 'key' THEN format('queue %L is claimed key by key, and it has no partition_key', queue)
              WHEN 'then_queue' THEN 'a queue of what is to follow it does not exist'
              WHEN 'then_key' THEN 'what is to follow it goes to a queue that is claimed key by key, and has no partition_key'
              WHEN 'payload' THEN 'its idempotency key was used with another payload'
              ELSE 'a job of another task or partition key waits under its replace key' END;

-- The error without what differs from job to job: ids, addresses, numbers. What has the same fingerprint has the same cause.
CREATE OR REPLACE FUNCTION holdfast.fingerprint(error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN regexp_replace(regexp_replace(regexp_replace(left(split_part(coalesce(error, ''), E'\n', 1), 300),
                     '[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}', '<id>', 'g'),
                     '0x[0-9a-fA-F]+', '<address>', 'g'), '[0-9]+', '#', 'g');

-- Order a queue by key, or no longer. Only while it is empty and nobody serves it: workers read the rules when they start, and jobs
-- that were enqueued without a lock on their key have no order to keep. Answers what is in the way: 'queue', 'jobs', 'workers'; NULL: done.
CREATE OR REPLACE FUNCTION holdfast.order_queue(queue_name text, key_ordering text, dead_letter_policy text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '2s'
    AS $$
DECLARE
    found_relation text;
    has_jobs       boolean;
    by_key         boolean;   -- claimed key by key without order: fair, or limited by key
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, hashtext('holdfast.create_queue'));
    SELECT q.relation, q.fair OR q.key_concurrency IS NOT NULL OR q.key_rate IS NOT NULL INTO found_relation, by_key FROM holdfast.queues q WHERE q.name = queue_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'queue';
    END IF;
    EXECUTE format('LOCK TABLE holdfast.%I IN ACCESS EXCLUSIVE MODE', found_relation);
    EXECUTE format('SELECT EXISTS (SELECT FROM holdfast.%I)', found_relation) INTO has_jobs;
    IF has_jobs THEN
        RETURN 'jobs';
    END IF;
    IF EXISTS (SELECT FROM holdfast.workers w WHERE w.status <> 'gone' AND queue_name = ANY (w.queues)) THEN
        RETURN 'workers';
    END IF;
    EXECUTE format('DROP INDEX IF EXISTS holdfast.%I, holdfast.%I', found_relation || '_stream', found_relation || '_share');
    EXECUTE format('ALTER TABLE holdfast.%I DROP CONSTRAINT IF EXISTS %I', found_relation, found_relation || '_keyed');
    IF key_ordering = 'key' THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, seq)', found_relation || '_stream', found_relation);
    ELSIF by_key THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, available_at, seq) WHERE hold_reason IS NULL',
                       found_relation || '_share', found_relation);
    END IF;
    IF by_key OR key_ordering = 'key' THEN
        EXECUTE format('ALTER TABLE holdfast.%I ADD CONSTRAINT %I CHECK (partition_key IS NOT NULL)', found_relation, found_relation || '_keyed');
    END IF;
    UPDATE holdfast.queues q SET keyed = by_key OR key_ordering = 'key', ordering = key_ordering, on_dead_letter = dead_letter_policy WHERE q.name = queue_name;
    DELETE FROM holdfast.parked_keys p WHERE p.queue = queue_name;
    RETURN NULL;
END $$;

-- Empties a slot whose day is past retention: TRUNCATE locks that leaf alone. If the ring has come round to it before anyone
-- tidied up (nobody worked for a month), it holds fresh rows too, and only the old ones are deleted. With the owner's rights: a worker may
-- neither TRUNCATE nor delete what has finished. So nothing that a worker can write decides what goes: the engine's retention holds, and a
-- caller can only ask for a longer one; the noted day says that there may be something to do, and the ring which day a slot can hold.
CREATE OR REPLACE FUNCTION holdfast.empty_archive_slot(slot_number int, retention int) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
    AS $$
DECLARE
    today date := (holdfast.now() AT TIME ZONE 'UTC')::date;
    kept  int := (SELECT greatest(e.retention_days, retention) FROM holdfast.engine e);
    held  date := (SELECT max(today + n) FROM generate_series(-kept, 1) n
                   WHERE holdfast.archive_slot((today + n)::timestamp AT TIME ZONE 'UTC') = slot_number);   -- NULL: nothing that is to be kept
BEGIN
    PERFORM FROM holdfast.archive_slots s WHERE s.slot = slot_number AND s.day < today - kept FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF held IS NOT NULL THEN
        DELETE FROM holdfast.archive a WHERE a.slot = slot_number AND a.completed_at < (today - kept)::timestamp AT TIME ZONE 'UTC';
    ELSE
        EXECUTE format('TRUNCATE holdfast.archive_%s', lpad(slot_number::text, 2, '0'));
    END IF;
    UPDATE holdfast.archive_slots s SET day = held WHERE s.slot = slot_number;
    RETURN true;
END $$;

-- Raises where the role that is logged in may not enqueue into one of these queues. Called where `producers` is not empty. It looks at
-- session_user: within enqueue() and the others the current user is their owner.
CREATE OR REPLACE FUNCTION holdfast.check_producer(queue_names text[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong text;
BEGIN
    IF EXISTS (SELECT FROM pg_proc f CROSS JOIN LATERAL aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
               WHERE f.pronamespace = 'holdfast'::regnamespace AND f.proname IN ('enqueue', 'enqueue_many', 'enqueue_group')
                 AND (a.grantee = 0 OR pg_has_role(session_user, a.grantee, 'USAGE'))
                 AND NOT EXISTS (SELECT FROM holdfast.producers p WHERE p.role = a.grantee)) THEN
        RETURN;
    END IF;
    SELECT q INTO wrong FROM unnest(queue_names) q
    WHERE NOT EXISTS (SELECT FROM holdfast.producers p WHERE p.queue = q AND pg_has_role(session_user, p.role, 'USAGE')) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'role % may not enqueue into queue %. Allow it: holdfast roles sql --queue %', session_user, quote_nullable(wrong), wrong
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;

-- What is in the way of jobs that are to be enqueued later, at any level: 'queue', a queue that does not exist; 'key', one that is claimed
-- key by key, and no key; NULL: nothing.
CREATE OR REPLACE FUNCTION holdfast.spec_conflict(specs jsonb) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    spec  jsonb;
    keyed boolean;
    below text;
BEGIN
    FOR spec IN SELECT e FROM jsonb_array_elements(specs) AS s(e) LOOP
        IF EXISTS (SELECT FROM holdfast.producers) THEN PERFORM holdfast.check_producer(ARRAY[coalesce(spec->>'queue', 'inbox')]); END IF;
        SELECT q.keyed INTO keyed FROM holdfast.queues q WHERE q.name = coalesce(spec->>'queue', 'inbox');
        IF NOT FOUND THEN RETURN 'queue'; END IF;
        IF keyed AND spec->>'partition_key' IS NULL THEN RETURN 'key'; END IF;
        IF jsonb_typeof(spec->'then') = 'array' THEN
            below := holdfast.spec_conflict(spec->'then');
            IF below IS NOT NULL THEN RETURN below; END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

REVOKE ALL ON FUNCTION holdfast.check_producer FROM PUBLIC;

-- Locks of enqueue: duplicates read, large calls take stripes, groups come last. What only enqueues names no parents and groups, moves no
-- clock, and its JSON is bounded before it is printed. Follow-ups are stored in the form in which they are enqueued.

-- Ends of members that the transaction counts when it commits. A row lives no longer than its transaction.
CREATE TABLE holdfast.group_ends (
    tx       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    job_id   uuid NOT NULL,
    state    text NOT NULL,
    group_id uuid NOT NULL,
    PRIMARY KEY (tx, job_id, state)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- How many members of an open group have ended. The row of the group is only locked; its count is replaced by one with the next number, and the
-- newest is found first, so that what a long transaction keeps costs the next count nothing. It goes with the last member.
CREATE TABLE holdfast.group_counts (
    group_id  uuid NOT NULL,
    number    int  NOT NULL,
    ended     int  NOT NULL,
    discarded int  NOT NULL,
    PRIMARY KEY (group_id, number)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Functions everything else needs ---------------------------------------------------------------------------------

-- How far the clock is moved: only in sessions whose login is a member of the schema's owner. Anybody can set a setting, and functions that
-- run with the owner's rights ask this clock.
CREATE OR REPLACE FUNCTION holdfast.clock_offset() RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT CASE WHEN pg_has_role(session_user, n.nspowner, 'MEMBER')
                      THEN least(greatest(current_setting('holdfast.clock_offset')::interval, interval '0'), interval '3650 days')
                      ELSE interval '0' END
          FROM pg_namespace n WHERE n.nspname = 'holdfast' $$;

CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN coalesce(current_setting('holdfast.clock_offset', true), '') = '' THEN statement_timestamp()
                ELSE statement_timestamp() + holdfast.clock_offset() END;

COMMENT ON FUNCTION holdfast.now() IS 'The clock of the engine. Tests move it forward with the setting holdfast.clock_offset, as a member of the schema''s owner.';

-- Enqueue ---------------------------------------------------------------------------------------------------------

-- Lock streams of one ordered queue until the commit. Whoever draws a sequence number for a stream calls this before, in a statement of
-- its own: inside the INSERT the number would be drawn before the lock is granted.
--
-- The hash of a key belongs to one of 128 stripes, by its upper bits. Everybody takes stripes and keys in the order of the hashes: a stripe,
-- then its keys. Up to 128 keys: each stripe shared, each key exclusively. More keys: a stripe that nobody uses is taken whole, because the
-- lock table of the server is small. A stripe in use is shared, and its keys are taken one by one: waiting for strangers to leave it would
-- deadlock two transactions that have no key in common. Two keys of one hash only wait for each other.
CREATE OR REPLACE FUNCTION holdfast.lock_streams(queue_name text, keys text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hashes bigint[] := ARRAY(SELECT DISTINCT hashtextextended(queue_name || E'\x1f' || k, 7236837) FROM unnest(keys) k WHERE k IS NOT NULL ORDER BY 1);
    queue  int := hashtext(queue_name);
    spare  int := 256;   -- keys of stripes in use that a large call still locks one by one
    stripe int;
    hash   bigint;
    item   record;
BEGIN
    IF hashes = '{}' THEN RETURN; END IF;
    IF cardinality(hashes) <= 128 THEN
        FOREACH hash IN ARRAY hashes LOOP
            IF stripe IS DISTINCT FROM (hash >> 57)::int THEN
                stripe := hash >> 57;
                PERFORM pg_advisory_xact_lock_shared(7236840, queue # stripe);
            END IF;
            PERFORM pg_advisory_xact_lock(hash);
        END LOOP;
        -- Last, so that whoever has it without a stripe is known to be of the release before: see below.
        PERFORM pg_advisory_xact_lock_shared(7236838, queue);
        RETURN;
    END IF;
    -- A key that somebody holds is waited for before the stripes are taken: a call that waits holds up nobody else's keys. The lock is let
    -- go again (the subtransaction is undone), because it is not this key's turn yet.
    FOR item IN SELECT h.hash FROM unnest(hashes) AS h(hash)
                WHERE h.hash IN (SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_locks l
                                 WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
                                   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
                ORDER BY h.hash LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock(item.hash);
            RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'the key is free';
        EXCEPTION WHEN SQLSTATE 'HF001' THEN
            NULL;
        END;
    END LOOP;
    -- One large call at a time, until it commits: else a stripe in use might be another one's as a whole, and waiting for it, with stripes of its
    -- own, would deadlock two that have no key in common. Who waits here holds no stripe.
    PERFORM pg_advisory_xact_lock(7236842, queue);
    FOR item IN SELECT (h.hash >> 57)::int AS stripe, array_agg(h.hash ORDER BY h.hash) AS hashes FROM unnest(hashes) AS h(hash) GROUP BY 1 ORDER BY 1 LOOP
        CONTINUE WHEN pg_try_advisory_xact_lock(7236840, queue # item.stripe);
        IF cardinality(item.hashes) > spare THEN
            PERFORM pg_advisory_xact_lock(7236840, queue # item.stripe);
            CONTINUE;
        END IF;
        spare := spare - cardinality(item.hashes);
        PERFORM pg_advisory_xact_lock_shared(7236840, queue # item.stripe);
        FOREACH hash IN ARRAY item.hashes LOOP
            PERFORM pg_advisory_xact_lock(hash);
        END LOOP;
    END LOOP;
    -- The release before locked the queue (shared) and then keys, and no stripes. While one of its transactions is still open, a large call
    -- takes the whole queue, as it did then.
    IF EXISTS (SELECT FROM pg_locks l
               WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = 7236838 AND l.objid = (queue::bigint & 4294967295)::oid AND l.pid <> pg_backend_pid()
                 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                 AND NOT EXISTS (SELECT FROM pg_locks s WHERE s.locktype = 'advisory' AND s.objsubid = 2 AND s.classid = 7236840 AND s.pid = l.pid)) THEN
        PERFORM pg_advisory_xact_lock(7236838, queue);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(7236838, queue);
    END IF;
END $$;

-- Lock streams of one ordered queue until the commit, if that can be done without waiting. Not for many keys: each takes a lock.
CREATE FUNCTION holdfast.try_streams(queue_name text, keys text[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    queue int := hashtext(queue_name);
    hash  bigint;
BEGIN
    FOR hash IN SELECT DISTINCT hashtextextended(queue_name || E'\x1f' || k, 7236837) FROM unnest(keys) k WHERE k IS NOT NULL LOOP
        IF NOT (pg_try_advisory_xact_lock_shared(7236840, queue # (hash >> 57)::int) AND pg_try_advisory_xact_lock(hash)) THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN pg_try_advisory_xact_lock_shared(7236838, queue);
END $$;

-- How many digits the numbers of a value have when they are printed: at least a tenth of this, and no more. Counted by comparison, because
-- jsonb keeps 1e131000 in a few bytes and prints it in 131001.
CREATE OR REPLACE FUNCTION holdfast.digits(value jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT coalesce(sum(scale(n.number) + CASE WHEN abs(n.number) < 1e10 THEN 10 WHEN abs(n.number) < 1e100 THEN 100 WHEN abs(n.number) < 1e1000 THEN 1000
                                                    WHEN abs(n.number) < 1e10000 THEN 10000 ELSE 131072 END), 0)::bigint
          FROM (SELECT v::numeric AS number FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') AS q(v) OFFSET 0) n $$;

-- The bytes of a value as jsonb prints it; where that is more than ten times the limit, a lower bound that is over the limit, and nothing is
-- printed. A small value is printed in any case.
CREATE OR REPLACE FUNCTION holdfast.printed_bytes(value jsonb, most int) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    least_bytes bigint;
BEGIN
    IF pg_column_size(value) > 1024 OR pg_column_compression(value) IS NOT NULL THEN
        least_bytes := holdfast.digits(value) / 10;
        IF least_bytes > most THEN RETURN least_bytes; END IF;
    END IF;
    RETURN octet_length(value::text);
END $$;

-- A time, or NULL for what is none, such as 30 February.
CREATE OR REPLACE FUNCTION holdfast.moment(given text) RETURNS timestamptz
    LANGUAGE plpgsql STABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RETURN given::timestamptz;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- What is wrong with jobs that are given as JSON, or NULL. They are checked when they are written, so that they can be enqueued when
-- their time comes.
CREATE OR REPLACE FUNCTION holdfast.spec_fault(specs jsonb, level int DEFAULT 1, most int DEFAULT 100) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    spec  jsonb;
    wrong text;
BEGIN
    IF level > 20 THEN RETURN 'more than 20 jobs follow one after the other'; END IF;
    IF jsonb_typeof(specs) <> 'array' THEN RETURN 'not a list of jobs'; END IF;
    IF jsonb_array_length(specs) NOT BETWEEN 1 AND most THEN
        RETURN format('%s jobs in one list, 1 to %s are possible', jsonb_array_length(specs), most);
    END IF;
    FOR spec IN SELECT e FROM jsonb_array_elements(specs) AS s(e) LOOP
        wrong := CASE
            WHEN jsonb_typeof(spec) <> 'object' THEN 'a job is no object'
            WHEN EXISTS (SELECT FROM unnest(ARRAY['task', 'queue', 'partition_key', 'idempotency_key', 'replace_key', 'run_at']) AS k(name)
                         WHERE jsonb_typeof(spec->k.name) NOT IN ('string', 'number', 'null')) THEN 'a task, a queue, a key or a run_at is no text'
            WHEN coalesce(spec->>'task', '') !~ '^[A-Za-z0-9_.-]{1,200}$' THEN format('task name %L is not usable', spec->>'task')
            WHEN spec - ARRAY['task', 'payload', 'queue', 'version', 'partition_key', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key',
                              'idempotency_lifetime', 'tags', 'metadata', 'then', 'replace_key'] <> '{}'
                THEN format('%s has no option %L', spec->>'task', (SELECT k FROM jsonb_object_keys(spec - ARRAY['task', 'payload', 'queue', 'version',
                            'partition_key', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key', 'idempotency_lifetime', 'tags', 'metadata',
                            'then', 'replace_key']) AS k ORDER BY k LIMIT 1))
            WHEN coalesce(jsonb_typeof(spec->'payload'), 'object') <> 'object' THEN format('payload of %s is no object', spec->>'task')
            WHEN holdfast.printed_bytes(spec->'payload', 262144) > 262144 THEN format('payload of %s is more than 262144 bytes', spec->>'task')
            WHEN holdfast.printed_bytes(spec->'metadata', 8192) > 8192 OR holdfast.printed_bytes(spec->'tags', 8192) > 8192
                THEN format('metadata or tags of %s are more than 8192 bytes', spec->>'task')
            WHEN coalesce(jsonb_typeof(spec->'tags'), 'array') NOT IN ('array', 'null') THEN format('tags of %s are no list', spec->>'task')
            WHEN greatest(octet_length(spec->>'partition_key'), octet_length(spec->>'idempotency_key'), octet_length(spec->>'replace_key')) > 512
                THEN format('a key of %s is more than 512 bytes', spec->>'task')
            WHEN spec->>'idempotency_key' IS NOT NULL AND spec->>'replace_key' IS NOT NULL
                THEN format('%s has replace_key and idempotency_key: take one of them', spec->>'task')
            WHEN EXISTS (SELECT FROM (VALUES ('priority', -100, 100), ('max_attempts', 1, 1000), ('version', 1, 2147483647),
                                             ('delay', 0, 315360000), ('idempotency_lifetime', 1, 'infinity'::numeric)) AS r(name, low, high)
                         WHERE CASE WHEN spec->>r.name IS NULL OR (r.name = 'idempotency_lifetime' AND spec->>r.name = 'forever') THEN false WHEN jsonb_typeof(spec->r.name) <> 'number' THEN true
                                    ELSE (spec->>r.name)::numeric NOT BETWEEN r.low AND r.high
                                      OR (r.name IN ('priority', 'max_attempts', 'version') AND (spec->>r.name)::numeric % 1 <> 0) END)
                THEN format('a number of %s is out of range', spec->>'task')
            WHEN spec->>'run_at' !~ '^[0-9]{4,5}-[0-9]{2}-[0-9]{2}[T ][0-9:.]{5,15}(Z|[+-][0-9:]{2,8})$' OR (spec->>'run_at' IS NOT NULL AND holdfast.moment(spec->>'run_at') IS NULL)
                THEN format('run_at of %s is no time with a zone', spec->>'task')
            WHEN spec->'then' IS NOT NULL AND jsonb_typeof(spec->'then') <> 'null' THEN holdfast.spec_fault(spec->'then', level + 1)
        END;
        IF wrong IS NOT NULL THEN RETURN wrong; END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The same jobs as enqueue_specs() reads them: integers without a fraction, times in UTC, texts as texts. spec_fault() has found nothing
-- wrong with them. Whatever could not be converted would else fail when the job before them is finished.
CREATE OR REPLACE FUNCTION holdfast.normal_specs(specs jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RETURN (SELECT jsonb_agg((SELECT jsonb_object_agg(f.key, CASE
                WHEN f.key IN ('priority', 'max_attempts', 'version') THEN to_jsonb(trunc(f.value::numeric)::int)
                WHEN f.key IN ('delay', 'idempotency_lifetime') AND jsonb_typeof(f.value) = 'number' THEN to_jsonb(round(least(f.value::numeric, 10000000000), 6))
                WHEN f.key = 'run_at' THEN to_jsonb(to_char(least(greatest(holdfast.moment(f.value #>> '{}'), 'epoch'), '9999-12-31 00:00Z') AT TIME ZONE 'UTC',
                                                            'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
                WHEN f.key IN ('task', 'queue', 'partition_key', 'idempotency_key', 'replace_key') THEN to_jsonb(f.value #>> '{}')
                WHEN f.key = 'then' THEN holdfast.normal_specs(f.value)
                ELSE f.value END)
            FROM jsonb_each(s.spec) AS f WHERE f.value <> 'null') ORDER BY s.place)
        FROM jsonb_array_elements(specs) WITH ORDINALITY AS s(spec, place));
END $$;

-- For enqueue_many: what a library checks before it calls.
CREATE OR REPLACE FUNCTION holdfast.check_links(follow_ups text[], groups uuid[], replace_keys text[], idempotency_keys text[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong text;
BEGIN
    IF array_remove(follow_ups, NULL) <> '{}' THEN
        SELECT w.wrong INTO wrong
        FROM (SELECT CASE WHEN octet_length(f) > 262144 OR holdfast.printed_bytes(f::jsonb, 262144) > 262144 THEN 'more than 262144 bytes'
                          ELSE holdfast.spec_fault(f::jsonb) END AS wrong
              FROM unnest(follow_ups) AS u(f) WHERE f IS NOT NULL OFFSET 0) w
        WHERE w.wrong IS NOT NULL LIMIT 1;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION 'the follow-ups of a job cannot be enqueued: %', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF array_remove(replace_keys, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' THEN
        IF EXISTS (SELECT FROM unnest(replace_keys, idempotency_keys, groups) AS u(replace, idempotency, in_group)
                   WHERE octet_length(u.replace) > 512 OR num_nonnulls(u.replace, u.idempotency, u.in_group) > 1) THEN
            RAISE EXCEPTION 'a replace_key is more than 512 bytes, or goes with an idempotency_key or a group'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
END $$;

-- Many jobs in one call, in the caller's transaction. Never raises for what a caller can get wrong in one row: it answers
-- with a conflict ('queue': no such queue, 'key': the queue is claimed key by key and the job has none, 'payload': the idempotency key
-- was used with another payload, 'replace': a job of another task or partition key waits under the replace key, 'then_queue' and
-- 'then_key': the first two, of a job that is to follow), and then has written
-- nothing at all. Same key and same payload gives the first job's id, also to a concurrent duplicate, which waits. A job that waits under
-- the same replace key is changed in place.
--
-- This is the inside, without rights for producers: it believes its caller about parents and groups.
CREATE OR REPLACE FUNCTION holdfast.write_jobs(
    tasks text[], payloads text[], queues text[], versions int[], partition_keys text[], priorities int[], max_attempts int[],
    run_ats timestamptz[], delays float8[], idempotency_keys text[], idempotency_lifetimes float8[], tags text[], metadatas text[],
    follow_ups text[], parents uuid[], groups uuid[], replace_keys text[])
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    n         int := cardinality(tasks);
    ids       uuid[];
    fresh     boolean[] := array_fill(true, ARRAY[greatest(n, 1)]);
    conflicts text[] := array_fill(NULL::text, ARRAY[greatest(n, 1)]);
    mine      int[] := '{}';
    made      int[] := '{}';   -- replace keys: new ones,
    moved     int[] := '{}';   -- those whose job no longer waits,
    changed   int[] := '{}';   -- and those whose job is changed
    item      record;
    found_id  uuid;
    found_hash bytea;
    found_task text;
    found_partition text;
    i         int;
    at        timestamptz := holdfast.now();
    base      bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    noise     bigint;
BEGIN
    IF n IS NULL OR n = 0 THEN RETURN; END IF;
    IF EXISTS (SELECT FROM holdfast.producers) THEN PERFORM holdfast.check_producer(queues); END IF;
    -- What a library checks before it calls, and a caller without one must not get past.
    IF EXISTS (SELECT FROM unnest(tasks, payloads, priorities, max_attempts, versions, idempotency_lifetimes, metadatas, tags)
                        AS u(task, payload, priority, attempts, version, life, metadata, tags)
               WHERE u.task ~ '[^A-Za-z0-9_.-]' OR octet_length(u.task) NOT BETWEEN 1 AND 200 OR octet_length(u.payload) > 262144
                     -- jsonb prints more than was written: a space after each separator, and numbers without exponents
                  OR CASE WHEN octet_length(u.payload) > 131072 OR u.payload ~ '[0-9][eE][+-]?[0-9]' THEN holdfast.printed_bytes(u.payload::jsonb, 262144) > 262144 END
                  OR octet_length(u.metadata) > 8192 OR holdfast.printed_bytes(u.metadata::jsonb, 8192) > 8192 OR octet_length(u.tags) > 8192
                  OR CASE WHEN u.tags ~ '[0-9][eE][+-]?[0-9]' THEN holdfast.printed_bytes(u.tags::jsonb, 16384) > 16384 END
                  OR u.priority NOT BETWEEN -100 AND 100 OR u.attempts NOT BETWEEN 1 AND 1000 OR u.version < 1
                  OR NOT u.life BETWEEN 1 AND 'infinity') THEN
        RAISE EXCEPTION 'a job is out of the limits: task name 1 to 200 letters, digits and _ . -, payload 262144 bytes as jsonb prints it, metadata and tags 8192 bytes, priority -100 to 100, max_attempts 1 to 1000, version 1 or more, idempotency_lifetime 1 second or more'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF array_remove(follow_ups, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' OR array_remove(replace_keys, NULL) <> '{}' THEN
        PERFORM holdfast.check_links(follow_ups, groups, replace_keys, idempotency_keys);
        follow_ups := ARRAY(SELECT holdfast.normal_specs(u.f::jsonb)::text FROM unnest(follow_ups) WITH ORDINALITY AS u(f, ord) ORDER BY u.ord);
        IF EXISTS (SELECT FROM unnest(follow_ups) AS u(f) WHERE octet_length(u.f) > 262144) THEN
            RAISE EXCEPTION 'the follow-ups of a job cannot be enqueued: more than 262144 bytes' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    FOR item IN SELECT u.ord::int AS ord, CASE WHEN q.name IS NULL THEN 'queue' WHEN q.keyed AND u.key IS NULL THEN 'key'
                                               WHEN u.follow_ups IS NOT NULL THEN 'then_' || holdfast.spec_conflict(u.follow_ups::jsonb) END AS conflict
                FROM unnest(queues, partition_keys, follow_ups) WITH ORDINALITY AS u(name, key, follow_ups, ord)
                LEFT JOIN holdfast.queues q ON q.name = u.name
                WHERE q.name IS NULL OR (q.keyed AND u.key IS NULL) OR u.follow_ups IS NOT NULL LOOP
        CONTINUE WHEN item.conflict IS NULL;
        conflicts[item.ord] := item.conflict;
        fresh[item.ord] := false;
    END LOOP;
    IF n < 16 THEN
        ids := ARRAY(SELECT holdfast.uuid7() FROM generate_series(1, n));
    ELSE   -- of version 7 too, from one random number: the server's own random numbers take 3 us each, as long as an index entry
        noise := hashtextextended(gen_random_uuid()::text, 0);
        ids := ARRAY(SELECT (lpad(to_hex(base + g.o / 4096), 12, '0') || to_hex(28672 + g.o % 4096) || substr('89ab', 1 + (g.h & 3)::int, 1)
                             || lpad(to_hex((g.h >> 2) & 1152921504606846975), 15, '0'))::uuid
                     FROM (SELECT o, hashint8extended(o, noise) AS h FROM generate_series(0, n - 1) AS s(o)) g);
    END IF;

    -- Keys in sorted order, so that two bulk calls cannot deadlock. No EXCEPTION block: subtransactions are dear.
    -- Read first: a duplicate locks nothing, and waits only for a transaction that is about to make the first job of its key. That wait is
    -- the INSERT, which takes no lock on a row that it finds; it also waits for whoever takes over an expired key at this moment.
    IF array_position(fresh, false) IS NULL AND array_remove(idempotency_keys, NULL) <> '{}' THEN
        FOR item IN
            SELECT u.ord::int AS ord, u.queue, u.key,
                   CASE WHEN u.life > 3155760000 THEN 'infinity' ELSE holdfast.now() + make_interval(secs => u.life) END AS expires_at,   -- a century is for ever
                   sha256(convert_to(u.task || E'\x1f' || (u.payload::jsonb)::text, 'UTF8')) AS hash
            FROM unnest(queues, idempotency_keys, idempotency_lifetimes, tasks, payloads) WITH ORDINALITY AS u(queue, key, life, task, payload, ord)
            WHERE u.key IS NOT NULL ORDER BY u.queue, u.key, u.ord
        LOOP
            i := 0;
            LOOP
                SELECT k.job_id, k.hash INTO found_id, found_hash FROM holdfast.idempotency k
                WHERE k.queue = item.queue AND k.key = item.key AND k.expires_at > holdfast.now();
                IF FOUND THEN
                    ids[item.ord] := found_id;
                    fresh[item.ord] := false;
                    IF found_hash <> item.hash THEN conflicts[item.ord] := 'payload'; END IF;
                    EXIT;
                END IF;
                INSERT INTO holdfast.idempotency AS k (queue, key, job_id, hash, expires_at)
                VALUES (item.queue, item.key, ids[item.ord], item.hash, item.expires_at)
                ON CONFLICT (queue, key) DO NOTHING;
                IF FOUND THEN
                    mine := mine || item.ord;
                    EXIT;
                END IF;
                -- It is there: just committed, then it is read in the next round, or expired, then one takes it over.
                PERFORM FROM holdfast.idempotency k
                WHERE k.queue = item.queue AND k.key = item.key AND k.expires_at <= holdfast.now() FOR UPDATE SKIP LOCKED;
                IF FOUND THEN
                    UPDATE holdfast.idempotency k SET job_id = ids[item.ord], hash = item.hash, expires_at = item.expires_at
                    WHERE k.queue = item.queue AND k.key = item.key;
                    mine := mine || item.ord;
                    EXIT;
                END IF;
                i := i + 1;
                IF i > 1 THEN   -- expired, and somebody holds it without changing it: wait for that one
                    PERFORM FROM holdfast.idempotency k
                    WHERE k.queue = item.queue AND k.key = item.key AND k.expires_at <= holdfast.now() FOR UPDATE;
                END IF;
            END LOOP;
        END LOOP;
    END IF;

    -- The key's row is locked first, then the job: whoever comes second sees what the first one made. A job that a claim is about to
    -- take is waited for: it then runs, and a new one is made. Of one key in one call the last wins.
    IF array_remove(conflicts, NULL) = '{}' AND array_remove(replace_keys, NULL) <> '{}' THEN
        FOR item IN
            SELECT x.ord::int AS ord, x.queue, x.key, x.task, x.partition_key, (max(x.ord) OVER (PARTITION BY x.queue, x.key))::int AS last
            FROM unnest(queues, replace_keys, tasks, partition_keys) WITH ORDINALITY AS x(queue, key, task, partition_key, ord)
            WHERE x.key IS NOT NULL ORDER BY x.queue, x.key, x.ord DESC
        LOOP
            IF item.ord <> item.last THEN
                ids[item.ord] := ids[item.last];
                fresh[item.ord] := false;
                IF item.task <> tasks[item.last] OR item.partition_key IS DISTINCT FROM partition_keys[item.last] THEN
                    conflicts[item.ord] := 'replace';
                END IF;
                CONTINUE;
            END IF;
            INSERT INTO holdfast.replacements AS r (queue, key, job_id, at) VALUES (item.queue, item.key, ids[item.ord], holdfast.now())
            ON CONFLICT (queue, key) DO UPDATE SET job_id = r.job_id RETURNING r.job_id INTO found_id;
            IF found_id = ids[item.ord] THEN
                made := made || item.ord;
                CONTINUE;
            END IF;
            SELECT w.task, w.partition_key INTO found_task, found_partition FROM holdfast.work w
            WHERE w.queue = item.queue AND w.id = found_id AND w.status IN ('pending', 'held') AND w.cancel_requested_at IS NULL
              AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
            FOR NO KEY UPDATE;
            IF NOT FOUND THEN
                moved := moved || item.ord;
            ELSE
                ids[item.ord] := found_id;
                fresh[item.ord] := false;
                changed := changed || item.ord;
                IF found_task <> item.task OR found_partition IS DISTINCT FROM item.partition_key THEN conflicts[item.ord] := 'replace'; END IF;
            END IF;
        END LOOP;
    END IF;

    IF array_remove(conflicts, NULL) <> '{}' THEN   -- all or nothing
        FOREACH i IN ARRAY mine LOOP
            DELETE FROM holdfast.idempotency k WHERE k.queue = queues[i] AND k.key = idempotency_keys[i] AND k.job_id = ids[i];
        END LOOP;
        FOREACH i IN ARRAY made LOOP
            DELETE FROM holdfast.replacements r WHERE r.queue = queues[i] AND r.key = replace_keys[i] AND r.job_id = ids[i];
        END LOOP;
        -- A key used twice in this very call has no job behind it.
        RETURN QUERY SELECT o, CASE WHEN conflicts[o] = 'payload' AND NOT EXISTS (SELECT FROM unnest(mine) m WHERE ids[m] = ids[o]) THEN ids[o]
                                    WHEN conflicts[o] = 'replace' AND EXISTS (SELECT FROM unnest(changed) c WHERE ids[c] = ids[o]) THEN ids[o] END,
                            false, conflicts[o] FROM generate_series(1, n) o ORDER BY o;
        RETURN;
    END IF;

    FOREACH i IN ARRAY moved LOOP
        UPDATE holdfast.replacements r SET job_id = ids[i], at = holdfast.now() WHERE r.queue = queues[i] AND r.key = replace_keys[i];
    END LOOP;
    -- As if it were new, but for its id, its place, its history and its group.
    FOREACH i IN ARRAY changed LOOP
        UPDATE holdfast.work w
        SET payload = payloads[i]::jsonb, version = versions[i], priority = priorities[i], max_attempts = write_jobs.max_attempts[i],
            attempts = 0, status = 'pending', hold_reason = NULL,
            available_at = least(greatest(coalesce(run_ats[i], holdfast.now() + make_interval(secs => delays[i])), 'epoch'), holdfast.now() + interval '10 years'),
            tags = CASE WHEN write_jobs.tags[i] IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(write_jobs.tags[i]::jsonb)) END,
            metadata = metadatas[i]::jsonb, parent_id = parents[i], follow_ups = write_jobs.follow_ups[i]::jsonb
        WHERE w.queue = queues[i] AND w.id = ids[i];
    END LOOP;
    IF EXISTS (SELECT FROM holdfast.queues q WHERE q.ordering = 'key' AND q.name = ANY (queues)) THEN
        PERFORM holdfast.lock_streams(o.queue, o.keys)
        FROM (SELECT u.queue, array_agg(u.key) AS keys FROM unnest(queues, partition_keys, fresh) AS u(queue, key, fresh)
              JOIN holdfast.queues q ON q.name = u.queue AND q.ordering = 'key' WHERE u.fresh GROUP BY u.queue ORDER BY u.queue) o;
    END IF;

    INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, priority, max_attempts,
                               available_at, created_at, claimed_at, claim_token, tags, metadata, seq, parent_id, group_id, follow_ups)
    SELECT u.id, u.queue, u.task, u.version, u.payload::jsonb, u.partition_key, u.priority, u.attempts,
           CASE WHEN u.run_at IS NULL AND u.delay = 0 THEN at
                ELSE least(greatest(coalesce(u.run_at, at + make_interval(secs => u.delay)), 'epoch'), at + interval '10 years') END,
           at, at, '00000000-0000-0000-0000-000000000000',
           CASE WHEN u.tags IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(u.tags::jsonb)) END, u.metadata::jsonb,
           nextval('holdfast.work_seq'), u.parent, u.group_id, u.follow_ups::jsonb
    FROM (SELECT * FROM unnest(ids, queues, tasks, versions, payloads, partition_keys, priorities, max_attempts, run_ats, delays, tags,
                               metadatas, fresh, parents, groups, follow_ups) WITH ORDINALITY
                   AS r(id, queue, task, version, payload, partition_key, priority, attempts, run_at, delay, tags, metadata, fresh,
                        parent, group_id, follow_ups, ord)
          WHERE r.fresh ORDER BY r.ord) AS u;
    PERFORM holdfast.wake(queues, run_ats, delays);
    RETURN QUERY SELECT o, ids[o], fresh[o], NULL::text FROM generate_series(1, n) o ORDER BY o;
END $$;

-- Parents and groups are named by workers, which may call enqueue_specs(). Whoever may only enqueue would put jobs into a stranger's group.
CREATE OR REPLACE FUNCTION holdfast.check_may_link() RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    caller text := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END;
BEGIN
    IF NOT has_function_privilege(caller, 'holdfast.enqueue_specs(jsonb[], uuid[], uuid[])', 'EXECUTE') THEN
        RAISE EXCEPTION 'role % may not name the parent or the group of a job', quote_ident(caller)
            USING ERRCODE = 'insufficient_privilege', HINT = 'Leave the parent out, or enqueue as a role that may call holdfast.enqueue_specs().';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION holdfast.enqueue_many(
    tasks text[], payloads text[], queues text[], versions int[], partition_keys text[], priorities int[], max_attempts int[],
    run_ats timestamptz[], delays float8[], idempotency_keys text[], idempotency_lifetimes float8[], tags text[], metadatas text[],
    follow_ups text[] DEFAULT NULL, parents uuid[] DEFAULT NULL, groups uuid[] DEFAULT NULL, replace_keys text[] DEFAULT NULL)
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF array_remove(parents, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' THEN PERFORM holdfast.check_may_link(); END IF;
    RETURN QUERY SELECT w.ordinal, w.id, w.created, w.conflict
    FROM holdfast.write_jobs(tasks, payloads, queues, versions, partition_keys, priorities, max_attempts, run_ats, delays, idempotency_keys,
                             idempotency_lifetimes, tags, metadatas, follow_ups, parents, groups, replace_keys) w;
END $$;

-- One job, for people and for other languages:
--   SELECT * FROM holdfast.enqueue('billing.send_receipt', '{"order_id": 1}');
-- A key used with another payload is answered in `conflict`, so that the caller's transaction stays usable. A queue that does not
-- exist and a value out of range raise, because an answer that nobody reads would be a lost job. A caller that does read it says
-- `quiet`: then it answers as enqueue_many does when there is no such queue, or no key for a queue that is claimed key by key, and a
-- time out of range becomes the nearest one within.
--
-- A job without an idempotency key, a replace key and follow-ups needs three statements: its queue, the row, and whether anybody
-- sleeps. Their plans are kept, also where the session wants custom ones: to plan them took three times as long as to run them.
-- A plan that is kept reads no table from end to end: it may be made while there is one row, and used when there are many versions of it.
CREATE OR REPLACE FUNCTION holdfast.enqueue(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'inbox', partition_key text DEFAULT NULL, priority int DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0', idempotency_key text DEFAULT NULL,
    idempotency_lifetime interval DEFAULT '7 days', max_attempts int DEFAULT 5, version int DEFAULT 1,
    tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL, follow_ups jsonb DEFAULT NULL, parent uuid DEFAULT NULL,
    replace_key text DEFAULT NULL, quiet boolean DEFAULT false, OUT id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    AS $$
DECLARE
    wrong text := CASE   -- no subquery in here: an expression without one costs next to nothing
        WHEN task IS NULL OR task ~ '[^A-Za-z0-9_.-]' OR octet_length(task) NOT BETWEEN 1 AND 200 THEN format('task name %L is not usable: 1 to 200 letters, digits and _ . -', task)
        WHEN payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN 'payload must be a JSON object of the handler''s arguments'
        WHEN CASE WHEN pg_column_size(payload) <= 1024 AND pg_column_compression(payload) IS NULL THEN octet_length(payload::text)
                  ELSE holdfast.printed_bytes(payload, 262144) END > 262144
            THEN format('payload is %s bytes, the limit is 262144: store it elsewhere and pass a reference', holdfast.printed_bytes(payload, 262144))
        WHEN octet_length(partition_key) > 512 THEN format('partition_key is %s bytes, the limit is 512', octet_length(partition_key))
        WHEN octet_length(idempotency_key) > 512 THEN format('idempotency_key is %s bytes, the limit is 512', octet_length(idempotency_key))
        WHEN idempotency_lifetime IS NULL OR idempotency_lifetime < interval '1 second'
            THEN 'idempotency_lifetime must be 1 second or more; more than 100 years is for ever'
        WHEN priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN format('priority must be between -100 and 100, not %s', priority)
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000 THEN format('max_attempts must be between 1 and 1000, not %s', max_attempts)
        WHEN version IS NULL OR version < 1 THEN format('version must be 1 or more, not %s', version)
        WHEN NOT quiet AND (NOT isfinite(run_at) OR run_at > now() + interval '10 years') THEN 'run_at must be a time within 10 years'
        WHEN delay IS NULL OR (NOT quiet AND delay NOT BETWEEN interval '0' AND interval '10 years') THEN 'delay must be between 0 and 10 years'
        WHEN holdfast.printed_bytes(metadata, 8192) > 8192 THEN format('metadata is %s bytes, the limit is 8192', holdfast.printed_bytes(metadata, 8192))
        WHEN octet_length(replace_key) > 512 THEN format('replace_key is %s bytes, the limit is 512', octet_length(replace_key))
        WHEN replace_key IS NOT NULL AND idempotency_key IS NOT NULL THEN 'replace_key and idempotency_key do not go together: take one of them'
        WHEN holdfast.printed_bytes(follow_ups, 262144) > 262144 THEN format('follow_ups are %s bytes, the limit is 262144', holdfast.printed_bytes(follow_ups, 262144))
        WHEN follow_ups IS NOT NULL AND holdfast.spec_fault(follow_ups) IS NOT NULL THEN 'follow_ups: ' || holdfast.spec_fault(follow_ups)
    END;
    at       timestamptz;
    by_key   boolean;
    in_order boolean;
BEGIN
    IF wrong IS NULL THEN
        IF EXISTS (SELECT FROM holdfast.producers) THEN PERFORM holdfast.check_producer(ARRAY[queue]); END IF;
        SELECT q.keyed, q.ordering = 'key' INTO by_key, in_order FROM holdfast.queues q WHERE q.name = queue;
        IF by_key IS NULL OR (by_key AND partition_key IS NULL) THEN
            conflict := CASE WHEN by_key THEN 'key' ELSE 'queue' END;
            IF quiet THEN
                created := false;
                RETURN;
            END IF;
            wrong := CASE conflict WHEN 'queue' THEN format('queue %L does not exist. Create it: holdfast queue create %s', queue, queue)
                                   ELSE format('queue %L is claimed key by key: pass a partition_key', queue) END;
        ELSIF jsonb_typeof(follow_ups) = 'array' AND holdfast.spec_conflict(follow_ups) IS NOT NULL THEN
            wrong := CASE holdfast.spec_conflict(follow_ups) WHEN 'queue' THEN 'follow_ups: a queue in them does not exist'
                          ELSE 'follow_ups: one goes to a queue that is claimed key by key, and has no partition_key' END;
        END IF;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    IF parent IS NOT NULL THEN PERFORM holdfast.check_may_link(); END IF;
    IF idempotency_key IS NULL AND replace_key IS NULL AND follow_ups IS NULL AND (tags IS NULL OR (array_ndims(tags) = 1 AND octet_length(to_jsonb(tags)::text) <= 8192)) THEN
        IF in_order THEN PERFORM holdfast.lock_streams(queue, ARRAY[partition_key]); END IF;
        id := holdfast.uuid7();
        at := holdfast.now();
        INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, priority, max_attempts, available_at, created_at, claimed_at,
                                   claim_token, tags, metadata, seq, parent_id)
        VALUES (id, queue, task, version, payload, partition_key, priority, max_attempts,
                CASE WHEN run_at IS NULL AND delay = '0' THEN at
                     ELSE least(greatest(coalesce(run_at, at + make_interval(secs => extract(epoch FROM delay)::float8)), 'epoch'),
                                at + interval '10 years') END, at, at,
                '00000000-0000-0000-0000-000000000000', tags, metadata, nextval('holdfast.work_seq'), parent);
        created := true;
        IF (SELECT a.sleepers FROM holdfast.asleep a WHERE a.queue = enqueue.queue ORDER BY a.number DESC LIMIT 1) > 0 THEN
            PERFORM holdfast.wake(ARRAY[queue], ARRAY[run_at], ARRAY[extract(epoch FROM delay)::float8]);
        END IF;
        RETURN;
    END IF;
    SELECT r.id, r.created, r.conflict INTO id, created, conflict
    FROM holdfast.write_jobs(ARRAY[task], ARRAY[payload::text], ARRAY[queue], ARRAY[version], ARRAY[partition_key], ARRAY[priority],
                               ARRAY[max_attempts], ARRAY[run_at], ARRAY[extract(epoch FROM delay)::float8], ARRAY[idempotency_key],
                               ARRAY[extract(epoch FROM idempotency_lifetime)::float8],
                               ARRAY[CASE WHEN tags IS NOT NULL THEN to_jsonb(tags)::text END], ARRAY[metadata::text],
                               ARRAY[follow_ups::text], ARRAY[parent], NULL, ARRAY[replace_key]) r;
END $$;

-- Chains ----------------------------------------------------------------------------------------------------------

-- Jobs that are given as JSON, in lists, each list with a parent and a group: what enqueue_many answers, and beside each which list.
--   [{"task": "mail.send", "payload": {"to": 1}, "queue": "mail", "priority": 0, "delay": 60, "then": [...]}, ...]
-- Only the task is needed. A delay counts from the moment at which the job is enqueued.
-- With the owner's rights, so that a worker needs none on what is inside.
CREATE OR REPLACE FUNCTION holdfast.enqueue_specs(specs jsonb[], parents uuid[], groups uuid[])
    RETURNS TABLE (list int, task text, queue text, id uuid, created boolean, conflict text)
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
        WITH s AS MATERIALIZED (
            SELECT row_number() OVER (ORDER BY l.list, f.place) AS ord, l.list::int AS list, l.parent, l.in_group, f.*, coalesce(f.queue, 'inbox') AS into_queue
            FROM unnest(specs, parents, groups) WITH ORDINALITY AS l(spec, parent, in_group, list)
            CROSS JOIN LATERAL ROWS FROM (jsonb_to_recordset(l.spec) AS (
                task text, payload jsonb, queue text, version int, partition_key text, priority int, max_attempts int, run_at timestamptz,
                delay float8, idempotency_key text, idempotency_lifetime text, tags jsonb, metadata jsonb, "then" jsonb, replace_key text))
                WITH ORDINALITY AS f(task, payload, queue, version, partition_key, priority, max_attempts, run_at, delay, idempotency_key,
                                     idempotency_lifetime, tags, metadata, follow_ups, replace_key, place)
        )
        SELECT s.list, s.task, s.into_queue, e.id, e.created, e.conflict
        FROM (SELECT array_agg(s.task ORDER BY s.ord) AS tasks, array_agg(coalesce(s.payload, '{}')::text ORDER BY s.ord) AS payloads,
                     array_agg(s.into_queue ORDER BY s.ord) AS queues, array_agg(coalesce(s.version, 1) ORDER BY s.ord) AS versions,
                     array_agg(s.partition_key ORDER BY s.ord) AS partition_keys, array_agg(coalesce(s.priority, 0) ORDER BY s.ord) AS priorities,
                     array_agg(coalesce(s.max_attempts, 5) ORDER BY s.ord) AS attempts, array_agg(s.run_at ORDER BY s.ord) AS run_ats,
                     array_agg(coalesce(s.delay, 0) ORDER BY s.ord) AS delays, array_agg(s.idempotency_key ORDER BY s.ord) AS keys,
                     array_agg(CASE WHEN s.idempotency_key IS NOT NULL THEN coalesce(replace(s.idempotency_lifetime, 'forever', 'infinity')::float8, 604800) END ORDER BY s.ord) AS lives,
                     array_agg(nullif(s.tags, 'null')::text ORDER BY s.ord) AS tags, array_agg(nullif(s.metadata, 'null')::text ORDER BY s.ord) AS metadatas,
                     array_agg(nullif(s.follow_ups, 'null')::text ORDER BY s.ord) AS follow_ups, array_agg(s.parent ORDER BY s.ord) AS parents,
                     array_agg(s.in_group ORDER BY s.ord) AS groups, array_agg(s.replace_key ORDER BY s.ord) AS replace_keys
              FROM s) a
        CROSS JOIN LATERAL holdfast.write_jobs(a.tasks, a.payloads, a.queues, a.versions, a.partition_keys, a.priorities, a.attempts, a.run_ats,
                                                 a.delays, a.keys, a.lives, a.tags, a.metadatas, a.follow_ups, a.parents, a.groups, a.replace_keys) e
        JOIN s ON s.ord = e.ordinal
        ORDER BY s.ord $$;

-- Lock the streams that the callback of a group goes to, if nobody holds one, or lets it go within a moment. Everywhere else streams come before
-- groups. Here the group is locked already, so nothing is waited for to the end: whoever holds the stream may wait for the group.
CREATE FUNCTION holdfast.try_callback(of_group uuid, waits boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    stream   record;
    patience text := current_setting('lock_timeout');
BEGIN
    FOR stream IN
        SELECT q.name AS queue, array_agg(c.spec->>'partition_key') AS keys
        FROM holdfast.groups g CROSS JOIN LATERAL jsonb_array_elements(g.callback) AS c(spec)
        JOIN holdfast.queues q ON q.name = coalesce(c.spec->>'queue', 'inbox') AND q.ordering = 'key'
        WHERE g.id = of_group GROUP BY q.name
    LOOP
        CONTINUE WHEN holdfast.try_streams(stream.queue, stream.keys);
        IF NOT waits THEN RETURN false; END IF;
        PERFORM set_config('lock_timeout', '250ms', true);
        PERFORM holdfast.lock_streams(stream.queue, stream.keys);
        PERFORM set_config('lock_timeout', patience, true);
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;

-- Count members of a group that have ended; true: they were the last. The group's row is locked before the newest count is read, and that is a
-- statement of its own: so it sees what others counted. Under an older snapshot (REPEATABLE READ) nothing is counted twice: the row of the count
-- that it sees is gone, which is a serialization failure, and the first count leaves a new version of the group's row for whoever saw none.
CREATE OR REPLACE FUNCTION holdfast.count_group(counted uuid, completed int, otherwise int, deleted int) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
DECLARE
    whole record;
    last  record;
BEGIN
    SELECT g.open, completed + CASE g.wanted WHEN 'finished' THEN otherwise ELSE 0 END AS ended INTO whole
    FROM holdfast.groups g
    WHERE g.id = counted AND (g.wanted = 'finished' OR completed + deleted > 0) AND g.finished_at IS NULL AND g.open > 0
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM holdfast.group_counts c
    WHERE c.group_id = counted AND c.number = (SELECT n.number FROM holdfast.group_counts n WHERE n.group_id = counted ORDER BY n.number DESC LIMIT 1)
    RETURNING c.number, c.ended, c.discarded INTO last;
    whole.ended := whole.ended + coalesce(last.ended, 0);
    deleted := deleted + coalesce(last.discarded, 0);
    IF whole.ended >= whole.open THEN
        UPDATE holdfast.groups g SET open = g.open - whole.ended, discarded = g.discarded + deleted WHERE g.id = counted;
        RETURN true;
    END IF;
    IF last.number IS NULL THEN
        UPDATE holdfast.groups g SET open = g.open WHERE g.id = counted;
    END IF;
    INSERT INTO holdfast.group_counts (group_id, number, ended, discarded) VALUES (counted, coalesce(last.number, 0) + 1, whole.ended, deleted);
    RETURN false;
END $$;

-- What jobs set off that have just ended, in the transaction that ends them: the follow-ups of completed ones, and their groups.
-- Groups are counted in the order of their ids, so that two callers cannot wait for each other in a circle.
-- States: completed, cancelled, dead_letter, parked (a dead letter too); discarded: deleted before it ended; discarded_after: deleted as a dead letter or cancelled.
-- With the owner's rights, so that a worker needs none on what is inside.
CREATE OR REPLACE FUNCTION holdfast.jobs_ended(job_ids uuid[], states text[], group_ids uuid[], follow_ups text[]) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    item  record;
    wrong text;
    made  int := 0;
BEGIN
    IF array_remove(follow_ups, NULL) <> '{}' THEN
        SELECT count(*), (array_agg(format('follow-up %s', holdfast.conflict_text(s.task, s.queue, s.conflict))) FILTER (WHERE s.conflict IS NOT NULL))[1]
        INTO made, wrong
        FROM (SELECT array_agg(u.follow_ups::jsonb) AS specs, array_agg(u.id) AS parents
              FROM unnest(job_ids, states, follow_ups) AS u(id, state, follow_ups)
              WHERE u.state = 'completed' AND u.follow_ups IS NOT NULL) a
        CROSS JOIN LATERAL holdfast.enqueue_specs(a.specs, a.parents, NULL) s;
        IF wrong IS NOT NULL THEN   -- a completion without what follows it must not commit
            RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    FOR item IN
        SELECT u.in_group, max(u.id::text)::uuid AS last, count(*) FILTER (WHERE u.state = 'completed')::int AS completed,
               count(*) FILTER (WHERE u.state IN ('cancelled', 'dead_letter', 'parked', 'discarded'))::int AS ended,
               count(*) FILTER (WHERE u.state IN ('discarded', 'discarded_after'))::int AS discarded
        FROM unnest(job_ids, states, group_ids) AS u(id, state, in_group) WHERE u.in_group IS NOT NULL
        GROUP BY u.in_group ORDER BY u.in_group
    LOOP
        IF holdfast.count_group(item.in_group, item.completed, item.ended, item.discarded) THEN
            IF holdfast.try_callback(item.in_group, true) THEN
                PERFORM holdfast.close_group(item.in_group, item.last);
            ELSE
                UPDATE holdfast.groups g SET fault = 'another transaction holds a key that its callback goes to' WHERE g.id = item.in_group;
            END IF;
        END IF;
    END LOOP;
    RETURN made;
END $$;

-- The same inside somebody's transaction, which may enqueue more before it commits: groups are counted at the commit, after everything
-- else, all groups of the transaction in the order of their ids. So nobody waits for a group while its holder waits for something else.
CREATE OR REPLACE FUNCTION holdfast.jobs_ended_at_commit(job_ids uuid[], states text[], group_ids uuid[], follow_ups text[]) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    INSERT INTO holdfast.group_ends (job_id, state, group_id)
    SELECT u.id, u.state, u.in_group FROM unnest(job_ids, states, group_ids) AS u(id, state, in_group) WHERE u.in_group IS NOT NULL;
    RETURN holdfast.jobs_ended(job_ids, states, NULL, follow_ups);
END $$;

CREATE OR REPLACE FUNCTION holdfast.count_group_ends() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    ended record;
BEGIN
    WITH gone AS (DELETE FROM holdfast.group_ends e WHERE e.tx = pg_current_xact_id() RETURNING e.job_id, e.state, e.group_id)
    SELECT array_agg(g.job_id) AS ids, array_agg(g.state) AS states, array_agg(g.group_id) AS groups INTO ended FROM gone g;
    IF ended.ids IS NOT NULL THEN PERFORM holdfast.jobs_ended(ended.ids, ended.states, ended.groups, NULL); END IF;   -- the first row does it for all
    RETURN NULL;
END $$;

-- A group of jobs and what follows when every one of them has completed, or has ended in any way ('finished'). Answers the group itself
-- (ordinal 0) and its jobs; a conflict as in enqueue_many, and then nothing was written. An empty group is finished at once.
--   SELECT * FROM holdfast.enqueue_group('[{"task": "resize", "payload": {"n": 1}}]', '[{"task": "report"}]');
CREATE OR REPLACE FUNCTION holdfast.enqueue_group(members jsonb, callback jsonb DEFAULT NULL, wanted text DEFAULT 'completed')
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    group_id uuid := holdfast.uuid7();
    n        int := CASE WHEN jsonb_typeof(members) = 'array' THEN jsonb_array_length(members) END;
    wrong    text := CASE
        WHEN n IS NULL THEN 'members must be a list of jobs'
        WHEN n > 100000 THEN format('%s members, the limit is 100000', n)
        WHEN wanted IS NULL OR wanted NOT IN ('completed', 'finished') THEN format('wanted must be ''completed'' or ''finished'', not %L', wanted)
        WHEN holdfast.digits(members) / 10 > 67108864 THEN format('the numbers of the members have %s digits, the limit is 67108864', holdfast.digits(members) / 10)
        WHEN holdfast.printed_bytes(callback, 262144) > 262144 THEN format('the callback is %s bytes, the limit is 262144', holdfast.printed_bytes(callback, 262144))
        WHEN callback IS NOT NULL THEN 'callback: ' || holdfast.spec_fault(callback)
    END;
    answers  record;
BEGIN
    wrong := coalesce(wrong, CASE WHEN n > 0 THEN 'members: ' || holdfast.spec_fault(members, 1, 100000) END);
    IF wrong IS NULL THEN
        members := CASE WHEN n > 0 THEN holdfast.normal_specs(members) ELSE members END;
        callback := holdfast.normal_specs(callback);
        wrong := CASE WHEN octet_length(callback::text) > 262144 THEN format('the callback is %s bytes, the limit is 262144', octet_length(callback::text)) END;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    IF callback IS NOT NULL AND holdfast.spec_conflict(callback) IS NOT NULL THEN
        RETURN QUERY SELECT o, NULL::uuid, false, CASE WHEN o = 0 THEN holdfast.spec_conflict(callback) END FROM generate_series(0, n) o;
        RETURN;
    END IF;
    SELECT array_agg(s.id) AS ids, array_agg(s.conflict) AS conflicts INTO answers
    FROM holdfast.enqueue_specs(ARRAY[members], NULL, ARRAY[group_id]) s WHERE n > 0;
    IF array_remove(answers.conflicts, NULL) <> '{}' THEN
        RETURN QUERY SELECT o, NULL::uuid, false, answers.conflicts[o] FROM generate_series(0, n) o;
        RETURN;
    END IF;
    INSERT INTO holdfast.groups (id, wanted, total, open, created_at, callback) VALUES (group_id, enqueue_group.wanted, n, n, holdfast.now(), enqueue_group.callback);
    IF n = 0 THEN PERFORM holdfast.close_group(group_id, NULL); END IF;
    RETURN QUERY SELECT o, CASE WHEN o = 0 THEN group_id ELSE answers.ids[o] END, true, NULL::text FROM generate_series(0, n) o;
END $$;

CREATE CONSTRAINT TRIGGER counted AFTER INSERT ON holdfast.group_ends DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION holdfast.count_group_ends();

-- An entry of the audit. With the owner's rights, so that nobody who writes one needs a right on the table: the time and the role are the
-- server's to note, and nobody changes what is written.
CREATE OR REPLACE FUNCTION holdfast.audit_act(said_actor text, act text, which jsonb, how_many bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ INSERT INTO holdfast.audit (at, actor, action, selection, count)
          VALUES (holdfast.now(), said_actor, act, which, greatest(how_many, 0)) RETURNING id $$;

-- An act in several transactions: each adds what it did to the entry that this role has begun. Nothing is ever taken away. NULL: there is
-- no such entry.
CREATE OR REPLACE FUNCTION holdfast.audit_more(entry bigint, how_many bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ UPDATE holdfast.audit a SET count = a.count + greatest(how_many, 0) WHERE a.id = entry AND a.role = session_user RETURNING a.id $$;

REVOKE ALL ON FUNCTION holdfast.audit_act FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.audit_more FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.digits FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.printed_bytes FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.moment FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.normal_specs FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.write_jobs FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.check_may_link FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.try_callback FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.try_streams FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.jobs_ended_at_commit FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.count_group_ends FROM PUBLIC;

-- The release before counted in the row of the group. A call of it that was under way when its functions were replaced still does, and looks
-- there whether it was the last: so what group_counts has of the rest goes into the row then.
CREATE OR REPLACE FUNCTION holdfast.counted_in_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
DECLARE
    last record;
BEGIN
    SELECT c.number, c.ended, c.discarded INTO last FROM holdfast.group_counts c WHERE c.group_id = NEW.id ORDER BY c.number DESC LIMIT 1;
    IF last.ended = NEW.open THEN
        DELETE FROM holdfast.group_counts c WHERE c.group_id = NEW.id AND c.number = last.number;
        NEW.open := 0;
        NEW.discarded := NEW.discarded + last.discarded;
    END IF;
    RETURN NEW;
END $$;

REVOKE ALL ON FUNCTION holdfast.count_group FROM PUBLIC;

REVOKE ALL ON FUNCTION holdfast.counted_in_row FROM PUBLIC;

-- What keys of a limited queue have left of their rate. Workers of the release before count in key_limits, those of this one look into both.
CREATE TABLE holdfast.key_tokens (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    number        bigint NOT NULL,
    tokens        float8 NOT NULL,
    refilled_at   timestamptz NOT NULL,
    PRIMARY KEY (queue, partition_key, number)
);
CREATE INDEX key_tokens_refilled ON holdfast.key_tokens (refilled_at);

-- Roles that do not own the schema were given rights on what they use. What is used beside it or in its place from now on, they get too.
-- A table or function that is added here gets its line in this list, unless only functions with the owner's rights touch it.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s ON %s TO %s', n.rights, n.used, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            -- who had this right  on this                                             gets these                          on this
            ('EXECUTE', 'holdfast.jobs_ended(uuid[], text[], uuid[], text[])',         'EXECUTE',                          'FUNCTION holdfast.try_callback, holdfast.try_streams, holdfast.jobs_ended_at_commit'),
            ('INSERT',  'holdfast.audit',                                              'EXECUTE',                          'FUNCTION holdfast.audit_act, holdfast.audit_more'),
            ('SELECT',  'holdfast.work',                                               'SELECT',                           'holdfast.misfits'),
            ('UPDATE',  'holdfast.work',                                               'SELECT, INSERT, UPDATE, DELETE',   'holdfast.misfits'),
            ('UPDATE',  'holdfast.limits',                                             'INSERT, DELETE',                   'holdfast.limits'),
            ('SELECT',  'holdfast.key_limits',                                         'SELECT',                           'holdfast.key_tokens'),
            ('INSERT',  'holdfast.key_limits',                                         'INSERT, UPDATE, DELETE',           'holdfast.key_tokens'),
            ('INSERT',  'holdfast.errors',                                             'UPDATE',                           'holdfast.errors'),
            ('SELECT',  'holdfast.sleepers',                                           'SELECT',                           'holdfast.asleep'),
            ('SELECT',  'holdfast.groups',                                             'SELECT',                           'holdfast.group_counts'),
            ('DELETE',  'holdfast.groups',                                             'DELETE',                           'holdfast.group_counts'),
            ('INSERT',  'holdfast.dead_letters',                                       'UPDATE, DELETE',                   'holdfast.dead_letters')
        ) AS n(had, before, rights, used)
        CROSS JOIN LATERAL (SELECT CASE n.had WHEN 'EXECUTE' THEN (SELECT p.proacl FROM pg_proc p WHERE p.oid = to_regprocedure(n.before))
                                              ELSE (SELECT c.relacl FROM pg_class c WHERE c.oid = to_regclass(n.before)) END AS acl) o
        CROSS JOIN LATERAL aclexplode(o.acl) AS had
        WHERE had.privilege_type = n.had
      UNION ALL   -- what was buried because a worker stood still goes back into the table of its queue
        SELECT format('GRANT INSERT ON holdfast.%I TO %s', c.relname, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE had.privilege_type = 'DELETE' AND (c.oid = 'holdfast.work'::regclass OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'holdfast.work'::regclass))
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;

-- Before the tables of claims: a handler may hold groups for a while.
CREATE TRIGGER counted_in_row BEFORE UPDATE OF open ON holdfast.groups
    FOR EACH ROW WHEN (NEW.open < OLD.open AND NEW.open > 0) EXECUTE FUNCTION holdfast.counted_in_row();

-- What a limited queue runs is counted by its own claims, and what is left of its rate is found at once, however many versions are kept.

ALTER TABLE holdfast.limits ADD COLUMN number bigint NOT NULL DEFAULT 0, DROP CONSTRAINT limits_pkey, ADD PRIMARY KEY (queue, number);

-- A queue is made beside the parent and attached: PARTITION OF would stall inserts into every other queue. With the owner's rights: so that
-- an operator needs none on tables, and every table has the same owner.
CREATE OR REPLACE FUNCTION holdfast.create_queue(queue_name text, lease_seconds float8 DEFAULT NULL, key_ordering text DEFAULT 'none',
                                      dead_letter_policy text DEFAULT 'skip', by_key boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    relation text := CASE WHEN queue_name IN ('inbox', 'outbox') THEN queue_name ELSE 'queue_' || queue_name END;
    changing text;
    may      record;
BEGIN
    IF queue_name !~ '^[a-z][a-z0-9_]{0,39}$' THEN
        RAISE EXCEPTION 'queue name % is not usable: small letters, digits and _, 40 at most, a letter first', quote_literal(queue_name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(7236837, hashtext('holdfast.create_queue'));
    IF EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue_name) THEN
        RETURN false;
    END IF;
    IF (SELECT count(*) FROM holdfast.queues) >= 200 THEN
        RAISE EXCEPTION 'there are 200 queues already; use partition keys or tags instead of more queues'
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.work INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)
        WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
              autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
              autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000)', relation);
    EXECUTE format('ALTER TABLE holdfast.%I ADD PRIMARY KEY (id), ADD CONSTRAINT %I CHECK (queue = %L)',
                   relation, relation || '_queue', queue_name);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (priority DESC, available_at, seq) WHERE hold_reason IS NULL',
                   relation || '_claim', relation);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (task, version, available_at) WHERE hold_reason IS NOT NULL',
                   relation || '_held', relation);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (available_at, seq) WHERE suspect > 0',
                   relation || '_suspect', relation);
    IF key_ordering = 'key' THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, seq)', relation || '_stream', relation);
    ELSIF by_key THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, available_at, seq) WHERE hold_reason IS NULL',
                       relation || '_share', relation);
    END IF;
    IF by_key OR key_ordering = 'key' THEN
        EXECUTE format('ALTER TABLE holdfast.%I ADD CONSTRAINT %I CHECK (partition_key IS NOT NULL)', relation, relation || '_keyed');
    END IF;
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (parent_id) WHERE parent_id IS NOT NULL', relation || '_parent', relation);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (group_id) WHERE group_id IS NOT NULL', relation || '_group', relation);
    FOREACH changing IN ARRAY ARRAY['status', 'claim_token', 'lease_generation', 'attempts', 'claimed_at', 'suspect', 'hold_reason'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I ALTER COLUMN %I SET STATISTICS 0', relation, changing);
    END LOOP;
    -- Who may use the table of all queues may use this one: claims and settles name it directly.
    FOR may IN SELECT a.privilege_type AS privilege, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
               FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a WHERE c.oid = 'holdfast.work'::regclass AND a.grantee <> c.relowner LOOP
        EXECUTE format('GRANT %s ON holdfast.%I TO %s', may.privilege, relation, may.grantee);
    END LOOP;
    EXECUTE format('ALTER TABLE holdfast.work ATTACH PARTITION holdfast.%I FOR VALUES IN (%L)', relation, queue_name);
    INSERT INTO holdfast.queues (name, relation, lease, keyed, ordering, on_dead_letter)
    VALUES (queue_name, relation, lease_seconds, by_key OR key_ordering = 'key', key_ordering, dead_letter_policy);
    INSERT INTO holdfast.limits (queue, tokens, refilled_at)
    SELECT queue_name, 0, '-infinity' WHERE NOT EXISTS (SELECT FROM holdfast.limits l WHERE l.queue = queue_name);
    INSERT INTO holdfast.asleep (queue, number, sleepers, poll)
    SELECT queue_name, 0, 0, 0 WHERE NOT EXISTS (SELECT FROM holdfast.asleep a WHERE a.queue = queue_name);
    RETURN true;
END $$;

CREATE INDEX claims_queue ON holdfast.claims (queue);   -- what a limited queue runs

-- Late, because every sweep reads the one and every claim and heartbeat the other.
ALTER TABLE holdfast.engine ADD COLUMN misfits_at timestamptz NOT NULL DEFAULT '-infinity';

-- What a worker says of itself, and what others say of it when it is gone.
ALTER TABLE holdfast.workers ADD COLUMN fenced_at timestamptz, ADD COLUMN blamed uuid[], ADD COLUMN death text, ADD COLUMN holds uuid[], ADD COLUMN signatures jsonb;

-- Last: from here on nobody lies down or gets up before the commit, and who sleeps now is counted. A worker that leaves has this table before the
-- one above, so this gives up, to be tried again, before the server calls it a deadlock.
SET LOCAL lock_timeout = '500ms';

CREATE TRIGGER fell_asleep AFTER INSERT ON holdfast.sleepers REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_sleepers();
CREATE TRIGGER got_up AFTER DELETE ON holdfast.sleepers REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_sleepers();
CREATE TRIGGER emptied AFTER TRUNCATE ON holdfast.sleepers FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_sleepers();

INSERT INTO holdfast.asleep (queue, number, sleepers, poll)
SELECT q.name, 0, count(s.worker), coalesce(max(s.poll), 0)
FROM (SELECT q.name FROM holdfast.queues q UNION SELECT s.queue FROM holdfast.sleepers s) AS q(name) LEFT JOIN holdfast.sleepers s ON s.queue = q.name
GROUP BY q.name;

-- Who may look who sleeps may look how many, and who may see or forget a group may do so with its count: what it could do so far needs these now.
DO $do$
DECLARE
    may record;
BEGIN
    FOR may IN SELECT a.privilege_type AS privilege, CASE c.relname WHEN 'sleepers' THEN 'asleep' ELSE 'group_counts' END AS relation,
                      CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
               FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
               WHERE c.oid IN ('holdfast.sleepers'::regclass, 'holdfast.groups'::regclass) AND a.grantee <> c.relowner
                 AND (a.privilege_type = 'SELECT' OR (a.privilege_type = 'DELETE' AND c.relname = 'groups')) LOOP
        EXECUTE format('GRANT %s ON holdfast.%I TO %s', may.privilege, may.relation, may.grantee);
    END LOOP;
END $do$;
