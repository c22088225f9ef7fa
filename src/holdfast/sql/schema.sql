-- Holdfast: the whole schema, in reading order. Every migration ends in exactly this.
--
-- The story of one job
--
--   enqueue()   writes a row into `work`, in the caller's transaction. `work` is one logical table, partitioned
--               by queue; it holds live jobs only, so it stays small whatever the history.
--   claim       a worker takes the first due rows of a queue: status `processing`, a new claim_token,
--               lease_generation + 1. One row in `claims` holds the lease of the whole batch.
--   renew       moves lease_expires_at of the claim. It never touches `work`.
--   settle      ends the attempt. Completed and cancelled jobs leave for `archive`, hopeless ones for
--               `dead_letters`, in the statement that settles them; the others go back to `pending`.
--   sweep       takes back the jobs of revoked claims: first claims.revoked_at, then the jobs, then the claim row.
--
-- Who may write
--
--   An owner writes only where id + lease_generation + claim_token + status = 'processing' match. Expiry is not part
--   of that: it only gives others the right to revoke. A late owner that nobody challenged may still finish; a
--   challenged one touches 0 rows. The generation rises at claim and never falls.
--
-- Why it looks like this
--
--   * No index of `work` mentions a column that a claim changes, and claim_token and claimed_at are NOT NULL from
--     the start, so that every claim is a heap-only update. Rows set aside (hold_reason) are outside the claim index.
--   * Claim order is index order: (priority DESC, available_at, seq).
--   * The columns that change carry no statistics: stale ones turn a claim into a sequential scan.
--   * Settle never touches `claims`. "No processing job carries this token" can only become true, never false
--     again, so a claim row may go lazily, and only then.
--   * Status is text with a CHECK: a new value is usable in the transaction that adds it.
--   * Time is holdfast.now(), which tests can move. Only the database's clock decides anything.

DO $do$
BEGIN
    -- IF NOT EXISTS would still ask for CREATE on the database, which a schema made by a DBA should save.
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'holdfast') THEN
        CREATE SCHEMA holdfast;
        COMMENT ON SCHEMA holdfast IS 'Holdfast: durable work on PostgreSQL';
    END IF;
END $do$;

CREATE TABLE holdfast.migrations (
    number     int PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Functions everything else needs ---------------------------------------------------------------------------------

CREATE FUNCTION holdfast.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp()
               + least(greatest(nullif(current_setting('holdfast.clock_offset', true), '')::interval, interval '0'), interval '3650 days') $$;
COMMENT ON FUNCTION holdfast.now() IS 'The clock of the engine. Tests move it forward with the setting holdfast.clock_offset.';

-- The same in every language: first 16 bits of SHA-256 of the UTF-8 key, & 1023. convert_to() is only STABLE.
-- E strings, because the body is read under the caller's standard_conforming_strings.
CREATE FUNCTION holdfast.bucket(key text) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT ('x' || substr(encode(sha256(decode(replace(key, E'\\', E'\\\\'), 'escape')), 'hex'), 1, 4))::bit(16)::int & 1023 $$;

-- uuidv7() is built in from 18 on. Below, milliseconds, then a fraction of one, then random bits.
DO $do$
BEGIN
    IF to_regprocedure('pg_catalog.uuidv7()') IS NOT NULL THEN
        CREATE FUNCTION holdfast.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT pg_catalog.uuidv7()';
    ELSE
        CREATE FUNCTION holdfast.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
            SELECT encode(substr(int8send(floor(t)::bigint), 3)
                       || int2send((28672 + floor((t - floor(t)) * 4096)::int)::int2)
                       || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
            FROM (SELECT extract(epoch FROM clock_timestamp()) * 1000) AS clock(t) $$;
    END IF;
END $do$;

CREATE FUNCTION holdfast.uuid7_time(id uuid) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT to_timestamp(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0) $$;

-- Queues and live work --------------------------------------------------------------------------------------------

CREATE TABLE holdfast.queues (
    name       text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,39}$'),
    relation   text NOT NULL UNIQUE,          -- the partition's table, in this schema
    lease      float8 CHECK (lease BETWEEN 1 AND 86400),   -- seconds; NULL: the worker's setting
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_at  timestamptz,                   -- set: nothing is claimed from it
    paused_by  text
);

-- Nothing of these tasks is claimed. What waits for one of them is set aside (held), so that it costs no claim anything.
CREATE TABLE holdfast.paused_tasks (
    task      text PRIMARY KEY,
    paused_at timestamptz NOT NULL,
    paused_by text
);

CREATE SEQUENCE holdfast.work_seq;

CREATE TABLE holdfast.work (
    id                  uuid        NOT NULL,
    claim_token         uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    seq                 bigint      NOT NULL DEFAULT nextval('holdfast.work_seq'),
    lease_generation    bigint      NOT NULL DEFAULT 0,
    available_at        timestamptz NOT NULL DEFAULT holdfast.now(),
    created_at          timestamptz NOT NULL DEFAULT holdfast.now(),
    claimed_at          timestamptz NOT NULL DEFAULT holdfast.now(),
    attempts            int         NOT NULL DEFAULT 0,   -- spent; a crash, a release and a snooze spend none
    max_attempts        int         NOT NULL DEFAULT 5 CHECK (max_attempts > 0),
    version             int         NOT NULL DEFAULT 1,   -- of the payload
    partition_bucket    int         NOT NULL GENERATED ALWAYS AS (holdfast.bucket(coalesce(partition_key, id::text))) STORED,
    suspect             int         NOT NULL DEFAULT 0,   -- 0, or: was in a process that died; run at most so many together
    crashes             int         NOT NULL DEFAULT 0,   -- processes that died while this job was alone in them
    priority            smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    queue               text        NOT NULL,
    status              text        NOT NULL DEFAULT 'pending',
    task                text        NOT NULL,
    partition_key       text        CHECK (octet_length(partition_key) <= 512),
    payload             jsonb       NOT NULL,
    cancel_requested_at timestamptz,
    hold_reason         text,
    last_error          text,
    tags                text[],
    metadata            jsonb,
    CONSTRAINT work_status CHECK (status IN ('pending', 'processing', 'held')),
    CONSTRAINT work_held CHECK ((status = 'held') = (hold_reason IS NOT NULL))
) PARTITION BY LIST (queue);
COMMENT ON TABLE holdfast.work IS 'Live jobs, one partition per queue';

-- Rows that make a claim or a sweep fail whatever is tried. Left alone and reported.
CREATE TABLE holdfast.quarantine (
    id     uuid PRIMARY KEY,
    queue  text NOT NULL,
    reason text NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A queue is made beside the parent and attached: PARTITION OF would stall inserts into every other queue.
CREATE FUNCTION holdfast.create_queue(queue_name text, lease_seconds float8 DEFAULT NULL) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    relation text := CASE WHEN queue_name IN ('inbox', 'outbox') THEN queue_name ELSE 'queue_' || queue_name END;
    changing text;
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
    FOREACH changing IN ARRAY ARRAY['status', 'claim_token', 'lease_generation', 'attempts', 'claimed_at', 'suspect', 'hold_reason'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I ALTER COLUMN %I SET STATISTICS 0', relation, changing);
    END LOOP;
    EXECUTE format('ALTER TABLE holdfast.work ATTACH PARTITION holdfast.%I FOR VALUES IN (%L)', relation, queue_name);
    INSERT INTO holdfast.queues (name, relation, lease) VALUES (queue_name, relation, lease_seconds);
    RETURN true;
END $$;

-- Ownership -------------------------------------------------------------------------------------------------------

-- Heartbeats touch last_seen_at only; status moves alive -> draining -> gone by guarded transitions.
CREATE TABLE holdfast.workers (
    id           text PRIMARY KEY,
    host         text NOT NULL,
    pid          int  NOT NULL,
    status       text NOT NULL DEFAULT 'alive' CHECK (status IN ('alive', 'draining', 'gone')),
    last_seen_at timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    queues       text[] NOT NULL,
    tasks        text[] NOT NULL,
    concurrency  int  NOT NULL,
    release      text NOT NULL,
    ended        text CHECK (ended IN ('left', 'lost'))   -- how it went: said so, or was not heard of again
) WITH (fillfactor = 50);

CREATE TABLE holdfast.claims (
    token            uuid PRIMARY KEY,
    queue            text NOT NULL,
    worker           text NOT NULL,
    claimed_at       timestamptz NOT NULL,
    lease_expires_at timestamptz NOT NULL,
    revoked_at       timestamptz,
    unsettled        int,     -- set when revoked because the worker is gone: jobs its process left behind
    job_ids          uuid[] NOT NULL
) WITH (fillfactor = 70, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claims_lease ON holdfast.claims (lease_expires_at);
CREATE INDEX claims_worker ON holdfast.claims (worker);
CREATE INDEX claims_revoked ON holdfast.claims (revoked_at) WHERE revoked_at IS NOT NULL;

-- Who sleeps in which queue, so that a producer sends a notification only where it wakes somebody. A worker enters when it has found
-- nothing for a while and hears, and leaves when it is busy. What a dead one leaves behind goes with the next sweep.
CREATE TABLE holdfast.sleepers (
    queue  text NOT NULL,
    worker text NOT NULL,
    poll   float8 NOT NULL,   -- seconds: it looks so often by itself
    PRIMARY KEY (queue, worker)
) WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
        autovacuum_vacuum_cost_delay = 0);

-- Jobs of these queues are due, now or at the time or delay given for each: tell whoever sleeps there, unless it looks by itself before
-- that. No payload, because anybody may listen; the server makes one of equal ones in a transaction. A notification takes a lock over
-- the whole database at the commit, so nothing is said where nobody sleeps, nor while four other transactions are about to say the
-- same. Nothing is said either where holdfast.notify is off: a transaction that is to be PREPAREd may not.
CREATE FUNCTION holdfast.wake(queue_names text[], run_ats timestamptz[] DEFAULT NULL, delays float8[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    told text;
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.sleepers) OR current_setting('holdfast.notify', true) = 'off' THEN RETURN; END IF;
    FOR told IN
        SELECT d.queue
        FROM (SELECT u.queue, min(coalesce(u.run_at, holdfast.now() + make_interval(secs => u.delay), holdfast.now())) AS at
              FROM unnest(queue_names, run_ats, delays) AS u(queue, run_at, delay) WHERE u.queue IS NOT NULL GROUP BY u.queue) d
        WHERE EXISTS (SELECT FROM holdfast.sleepers s WHERE s.queue = d.queue AND d.at < holdfast.now() + make_interval(secs => s.poll))
          AND NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = d.queue AND q.paused_at IS NOT NULL)
    LOOP
        FOR place IN 0..3 LOOP
            IF pg_try_advisory_xact_lock(7236838, hashtext(told) # place) THEN
                PERFORM pg_notify('holdfast_' || told, '');
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION holdfast.wake FROM PUBLIC;

-- One row: what the engine remembers about itself.
CREATE TABLE holdfast.engine (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_sweep_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    grace_until      timestamptz NOT NULL DEFAULT '-infinity',   -- living owners renew before anyone takes their work
    last_tidy_at     timestamptz NOT NULL DEFAULT '-infinity',
    retention_days   int NOT NULL DEFAULT 7 CHECK (retention_days BETWEEN 1 AND 30)
) WITH (fillfactor = 50);
INSERT INTO holdfast.engine DEFAULT VALUES;

-- Finished work ---------------------------------------------------------------------------------------------------

-- A fixed ring of 32 day slots, all made now: a missing partition would fail a settle. A slot is emptied by TRUNCATE
-- when its day is past retention, long before the ring comes round to it again.
CREATE FUNCTION holdfast.archive_slot(at timestamptz) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT mod(floor(extract(epoch FROM at) / 86400)::bigint, 32)::int $$;

CREATE TABLE holdfast.archive (
    slot             int         NOT NULL,
    id               uuid        NOT NULL,
    claim_token      uuid        NOT NULL,
    seq              bigint      NOT NULL,
    lease_generation bigint      NOT NULL,
    available_at     timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    completed_at     timestamptz NOT NULL,
    attempts         int         NOT NULL,
    max_attempts     int         NOT NULL,
    version          int         NOT NULL,
    crashes          int         NOT NULL,
    priority         smallint    NOT NULL,
    queue            text        NOT NULL,
    status           text        NOT NULL CONSTRAINT archive_status CHECK (status IN ('completed', 'cancelled')),
    task             text        NOT NULL,
    partition_key    text,
    payload          jsonb       NOT NULL,
    claimed_by       text,
    result           jsonb,
    last_error       text,
    tags             text[],
    metadata         jsonb
) PARTITION BY LIST (slot);
CREATE INDEX archive_id ON holdfast.archive (id);

CREATE TABLE holdfast.archive_slots (
    slot int PRIMARY KEY,
    day  date       -- the day whose jobs it holds; NULL: empty
);

DO $do$
BEGIN
    FOR slot IN 0..31 LOOP
        EXECUTE format('CREATE TABLE holdfast.archive_%s PARTITION OF holdfast.archive FOR VALUES IN (%s)', lpad(slot::text, 2, '0'), slot);
        INSERT INTO holdfast.archive_slots VALUES (slot, NULL);
    END LOOP;
END $do$;

-- The slots a job of this id can be in: from the day in its id until today, so that a lookup probes one or two.
CREATE FUNCTION holdfast.archive_slots_of(id uuid) RETURNS int[]
    LANGUAGE sql STABLE STRICT
    AS $$ SELECT ARRAY(SELECT DISTINCT mod(day, 32)::int
                       FROM generate_series(greatest(floor(extract(epoch FROM holdfast.uuid7_time(id)) / 86400)::bigint - 1,
                                                     floor(extract(epoch FROM holdfast.now()) / 86400)::bigint - 31),
                                            floor(extract(epoch FROM holdfast.now()) / 86400)::bigint + 1) AS day) $$;

-- Empties a slot whose day is past retention: TRUNCATE locks that leaf alone. If the ring has come round to it before anyone
-- tidied up (nobody worked for a month), it holds fresh rows too, and only the old ones are deleted.
CREATE FUNCTION holdfast.empty_archive_slot(slot_number int, retention int) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
    AS $$
DECLARE
    today date := (holdfast.now() AT TIME ZONE 'UTC')::date;
BEGIN
    PERFORM FROM holdfast.archive_slots s WHERE s.slot = slot_number AND s.day < today - retention FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF slot_number IN (SELECT holdfast.archive_slot((today + n)::timestamp AT TIME ZONE 'UTC') FROM generate_series(-1, 1) n) THEN
        DELETE FROM holdfast.archive a WHERE a.slot = slot_number AND a.completed_at < (today - retention)::timestamp AT TIME ZONE 'UTC';
    ELSE
        EXECUTE format('TRUNCATE holdfast.archive_%s', lpad(slot_number::text, 2, '0'));
    END IF;
    UPDATE holdfast.archive_slots s SET day = NULL WHERE s.slot = slot_number;
    RETURN true;
END $$;

CREATE TABLE holdfast.dead_letters (
    id               uuid        PRIMARY KEY,
    claim_token      uuid        NOT NULL,
    seq              bigint      NOT NULL,
    lease_generation bigint      NOT NULL,
    available_at     timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    died_at          timestamptz NOT NULL,
    attempts         int         NOT NULL,
    max_attempts     int         NOT NULL,
    version          int         NOT NULL,
    crashes          int         NOT NULL,
    priority         smallint    NOT NULL,
    queue            text        NOT NULL,
    task             text        NOT NULL,
    partition_key    text,
    payload          jsonb       NOT NULL,
    claimed_by       text,
    last_error       text,
    tags             text[],
    metadata         jsonb
);
CREATE INDEX dead_letters_died ON holdfast.dead_letters (died_at);

-- Beside the job --------------------------------------------------------------------------------------------------

-- Every failed attempt, with its traceback.
CREATE TABLE holdfast.errors (
    job_id     uuid NOT NULL,
    queue      text NOT NULL,
    attempt    int  NOT NULL,
    generation bigint NOT NULL,
    at         timestamptz NOT NULL,
    worker     text,
    kind       text NOT NULL,
    message    text NOT NULL,
    trace      text NOT NULL
);
CREATE INDEX errors_job ON holdfast.errors (job_id, at);
CREATE INDEX errors_at ON holdfast.errors (at);

CREATE TABLE holdfast.idempotency (
    queue      text NOT NULL,
    key        text NOT NULL CHECK (octet_length(key) <= 512),
    job_id     uuid NOT NULL,
    hash       bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, key)
);
CREATE INDEX idempotency_expires ON holdfast.idempotency (expires_at);

-- What job.once() recorded.
CREATE TABLE holdfast.once (
    job_id uuid NOT NULL,
    queue  text NOT NULL,
    name   text NOT NULL CHECK (octet_length(name) <= 512),
    result jsonb,
    at     timestamptz NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX once_at ON holdfast.once (at);

-- The job's row is never touched by progress: that would cost the next claim its heap-only update.
CREATE TABLE holdfast.progress (
    job_id     uuid PRIMARY KEY,
    queue      text NOT NULL,
    generation bigint NOT NULL,
    fraction   float8 NOT NULL,
    message    text NOT NULL,
    at         timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX progress_at ON holdfast.progress (at);

-- The highest fence each guarded resource has seen of a stream (of a job, where the queue has no order).
CREATE TABLE holdfast.fences (
    resource text NOT NULL CHECK (octet_length(resource) <= 512),
    stream   text NOT NULL,
    queue    text NOT NULL,
    job_id   uuid NOT NULL,   -- whose fence it is
    fence    text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (resource, stream)
);
CREATE INDEX fences_at ON holdfast.fences (at);

-- What operators did: who, what, to which jobs, how many.
CREATE TABLE holdfast.audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text   NOT NULL,
    action    text   NOT NULL,   -- noun and verb, as on the command line: 'jobs cancel'
    selection jsonb  NOT NULL,   -- which: ids or filters
    count     bigint NOT NULL
);

-- What each task did in each minute, summed up by the workers themselves: a look at it never counts jobs. A worker that is killed
-- takes its last few seconds with it.
CREATE TABLE holdfast.throughput (
    minute       timestamptz NOT NULL,
    queue        text   NOT NULL,
    task         text   NOT NULL,
    completed    bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,   -- attempts that failed, retried or not
    dead         bigint NOT NULL DEFAULT 0,
    cancelled    bigint NOT NULL DEFAULT 0,
    run_seconds  float8 NOT NULL DEFAULT 0,   -- over all attempts
    wait_seconds float8 NOT NULL DEFAULT 0,   -- from due to started, over all attempts
    max_run      float8 NOT NULL DEFAULT 0,
    max_wait     float8 NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, queue, task)
) WITH (fillfactor = 70);

-- Enqueue ---------------------------------------------------------------------------------------------------------

-- Many jobs in one call, in the caller's transaction. Never raises for what a caller can get wrong in one row: it answers
-- with a conflict ('queue': no such queue, 'payload': the key was used with another payload), and then has written
-- nothing at all. Same key and same payload gives the first job's id, also to a concurrent duplicate, which waits.
CREATE FUNCTION holdfast.enqueue_many(
    tasks text[], payloads text[], queues text[], versions int[], partition_keys text[], priorities int[], max_attempts int[],
    run_ats timestamptz[], delays float8[], idempotency_keys text[], idempotency_lifetimes float8[], tags text[], metadatas text[])
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    n         int := cardinality(tasks);
    ids       uuid[];
    fresh     boolean[] := array_fill(true, ARRAY[greatest(n, 1)]);
    conflicts text[] := array_fill(NULL::text, ARRAY[greatest(n, 1)]);
    mine      int[] := '{}';
    item      record;
    found_id  uuid;
    found_hash bytea;
    i         int;
BEGIN
    IF n IS NULL OR n = 0 THEN RETURN; END IF;
    -- What a library checks before it calls, and a caller without one must not get past.
    IF EXISTS (SELECT FROM unnest(tasks, payloads, priorities, max_attempts, versions, idempotency_lifetimes, metadatas, tags)
                        AS u(task, payload, priority, attempts, version, life, metadata, tags)
               WHERE u.task !~ '^[A-Za-z0-9_.-]{1,200}$' OR octet_length(u.payload) > 262144
                     -- jsonb prints more than was written: a space after each separator, and numbers without exponents
                  OR CASE WHEN octet_length(u.payload) > 131072 OR u.payload ~ '[0-9][eE][+-]?[0-9]' THEN octet_length((u.payload::jsonb)::text) > 262144 END
                  OR octet_length(u.metadata) > 8192 OR octet_length((u.metadata::jsonb)::text) > 8192 OR octet_length(u.tags) > 8192
                  OR u.priority NOT BETWEEN -100 AND 100 OR u.attempts NOT BETWEEN 1 AND 1000 OR u.version < 1
                  OR u.life NOT BETWEEN 1 AND 604800) THEN
        RAISE EXCEPTION 'a job is out of the limits: task name 1 to 200 letters, digits and _ . -, payload 262144 bytes as jsonb prints it, metadata and tags 8192 bytes, priority -100 to 100, max_attempts 1 to 1000, version 1 or more, idempotency_lifetime 1 second to 7 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR item IN SELECT u.ord::int AS ord FROM unnest(queues) WITH ORDINALITY AS u(name, ord)
                WHERE NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = u.name) LOOP
        conflicts[item.ord] := 'queue';
        fresh[item.ord] := false;
    END LOOP;
    ids := ARRAY(SELECT holdfast.uuid7() FROM generate_series(1, n));

    -- Keys in sorted order, so that two bulk calls cannot deadlock. No EXCEPTION block: subtransactions are dear.
    IF array_position(fresh, false) IS NULL AND array_remove(idempotency_keys, NULL) <> '{}' THEN
        FOR item IN
            SELECT u.ord::int AS ord, u.queue, u.key, u.life,
                   sha256(convert_to(u.task || E'\x1f' || (u.payload::jsonb)::text, 'UTF8')) AS hash
            FROM unnest(queues, idempotency_keys, idempotency_lifetimes, tasks, payloads) WITH ORDINALITY AS u(queue, key, life, task, payload, ord)
            WHERE u.key IS NOT NULL ORDER BY u.queue, u.key, u.ord
        LOOP
            LOOP
                INSERT INTO holdfast.idempotency AS k (queue, key, job_id, hash, expires_at)
                VALUES (item.queue, item.key, ids[item.ord], item.hash, holdfast.now() + make_interval(secs => item.life))
                ON CONFLICT (queue, key) DO UPDATE
                    SET job_id = EXCLUDED.job_id, hash = EXCLUDED.hash, expires_at = EXCLUDED.expires_at
                    WHERE k.expires_at <= holdfast.now();
                IF FOUND THEN
                    mine := mine || item.ord;
                    EXIT;
                END IF;
                SELECT k.job_id, k.hash INTO found_id, found_hash FROM holdfast.idempotency k
                WHERE k.queue = item.queue AND k.key = item.key;
                IF FOUND THEN   -- else it was purged between the two statements: try again
                    ids[item.ord] := found_id;
                    fresh[item.ord] := false;
                    IF found_hash <> item.hash THEN conflicts[item.ord] := 'payload'; END IF;
                    EXIT;
                END IF;
            END LOOP;
        END LOOP;
    END IF;

    IF array_remove(conflicts, NULL) <> '{}' THEN   -- all or nothing
        FOREACH i IN ARRAY mine LOOP
            DELETE FROM holdfast.idempotency k WHERE k.queue = queues[i] AND k.key = idempotency_keys[i] AND k.job_id = ids[i];
        END LOOP;
        -- A key used twice in this very call has no job behind it.
        RETURN QUERY SELECT o, CASE WHEN conflicts[o] = 'payload' AND NOT EXISTS (SELECT FROM unnest(mine) m WHERE ids[m] = ids[o]) THEN ids[o] END,
                            false, conflicts[o] FROM generate_series(1, n) o ORDER BY o;
        RETURN;
    END IF;

    INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, priority, max_attempts,
                               available_at, created_at, claimed_at, claim_token, tags, metadata, seq)
    SELECT u.id, u.queue, u.task, u.version, u.payload::jsonb, u.partition_key, u.priority, u.attempts,
           least(greatest(coalesce(u.run_at, holdfast.now() + make_interval(secs => u.delay)), 'epoch'), holdfast.now() + interval '10 years'),
           holdfast.now(), holdfast.now(),
           '00000000-0000-0000-0000-000000000000',
           CASE WHEN u.tags IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(u.tags::jsonb)) END, u.metadata::jsonb,
           nextval('holdfast.work_seq')
    FROM (SELECT * FROM unnest(ids, queues, tasks, versions, payloads, partition_keys, priorities, max_attempts, run_ats, delays, tags,
                               metadatas, fresh) WITH ORDINALITY
                   AS r(id, queue, task, version, payload, partition_key, priority, attempts, run_at, delay, tags, metadata, fresh, ord)
          WHERE r.fresh ORDER BY r.ord) AS u;
    PERFORM holdfast.wake(queues, run_ats, delays);
    RETURN QUERY SELECT o, ids[o], fresh[o], NULL::text FROM generate_series(1, n) o ORDER BY o;
END $$;

-- One job, for people and for other languages:
--   SELECT * FROM holdfast.enqueue('billing.send_receipt', '{"order_id": 1}');
-- A key used with another payload is answered in `conflict`, so that the caller's transaction stays usable. A queue that does not
-- exist and a value out of range raise, because an answer that nobody reads would be a lost job.
CREATE FUNCTION holdfast.enqueue(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'inbox', partition_key text DEFAULT NULL, priority int DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0', idempotency_key text DEFAULT NULL,
    idempotency_lifetime interval DEFAULT '1 day', max_attempts int DEFAULT 5, version int DEFAULT 1,
    tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL, OUT id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong text := CASE
        WHEN task IS NULL OR task !~ '^[A-Za-z0-9_.-]{1,200}$' THEN format('task name %L is not usable: 1 to 200 letters, digits and _ . -', task)
        WHEN payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN 'payload must be a JSON object of the handler''s arguments'
        WHEN octet_length(payload::text) > 262144 THEN format('payload is %s bytes, the limit is 262144: store it elsewhere and pass a reference', octet_length(payload::text))
        WHEN octet_length(partition_key) > 512 THEN format('partition_key is %s bytes, the limit is 512', octet_length(partition_key))
        WHEN octet_length(idempotency_key) > 512 THEN format('idempotency_key is %s bytes, the limit is 512', octet_length(idempotency_key))
        WHEN idempotency_lifetime IS NULL OR idempotency_lifetime NOT BETWEEN interval '1 second' AND interval '7 days'
            THEN 'idempotency_lifetime must be between 1 second and 7 days'
        WHEN priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN format('priority must be between -100 and 100, not %s', priority)
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000 THEN format('max_attempts must be between 1 and 1000, not %s', max_attempts)
        WHEN version IS NULL OR version < 1 THEN format('version must be 1 or more, not %s', version)
        WHEN NOT isfinite(run_at) OR run_at > now() + interval '10 years' THEN 'run_at must be a time within 10 years'
        WHEN delay IS NULL OR delay NOT BETWEEN interval '0' AND interval '10 years' THEN 'delay must be between 0 and 10 years'
        WHEN octet_length(metadata::text) > 8192 THEN format('metadata is %s bytes, the limit is 8192', octet_length(metadata::text))
        WHEN queue IS NULL OR NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue)
            THEN format('queue %L does not exist. Create it: holdfast queue create %s', queue, queue)
    END;
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT r.id, r.created, r.conflict INTO id, created, conflict
    FROM holdfast.enqueue_many(ARRAY[task], ARRAY[payload::text], ARRAY[queue], ARRAY[version], ARRAY[partition_key], ARRAY[priority],
                               ARRAY[max_attempts], ARRAY[run_at], ARRAY[extract(epoch FROM delay)::float8], ARRAY[idempotency_key],
                               ARRAY[extract(epoch FROM idempotency_lifetime)::float8],
                               ARRAY[CASE WHEN tags IS NOT NULL THEN to_jsonb(tags)::text END], ARRAY[metadata::text]) r;
END $$;

-- A producer needs USAGE on the schema and EXECUTE on these two, and nothing else. PUBLIC gets neither.
REVOKE ALL ON FUNCTION holdfast.enqueue_many FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.enqueue FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.create_queue FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.empty_archive_slot FROM PUBLIC;

-- For people and tools --------------------------------------------------------------------------------------------

CREATE VIEW holdfast.jobs AS
    SELECT w.id, w.queue, w.task, w.version,
           CASE WHEN q.id IS NOT NULL THEN 'quarantined' WHEN w.status = 'pending' AND w.available_at > holdfast.now() THEN 'scheduled' ELSE w.status END AS status,
           w.priority, w.attempts, w.max_attempts, w.crashes, w.lease_generation, w.partition_key, w.partition_bucket, w.payload, w.created_at,
           w.available_at, CASE WHEN w.status = 'processing' THEN w.claimed_at END AS claimed_at, c.worker AS claimed_by, c.lease_expires_at,
           NULL::timestamptz AS completed_at, NULL::jsonb AS result, w.last_error, coalesce(q.reason, w.hold_reason) AS hold_reason,
           w.cancel_requested_at, w.tags, w.metadata, w.seq
    FROM holdfast.work w
    LEFT JOIN holdfast.claims c ON w.status = 'processing' AND c.token = w.claim_token
    LEFT JOIN holdfast.quarantine q ON q.id = w.id
  UNION ALL
    SELECT a.id, a.queue, a.task, a.version, a.status, a.priority, a.attempts, a.max_attempts, a.crashes, a.lease_generation, a.partition_key,
           holdfast.bucket(coalesce(a.partition_key, a.id::text)), a.payload, a.created_at, a.available_at, CASE WHEN a.claimed_by IS NOT NULL THEN a.claimed_at END, a.claimed_by, NULL,
           a.completed_at, a.result, a.last_error, NULL, NULL, a.tags, a.metadata, a.seq
    FROM holdfast.archive a
  UNION ALL
    SELECT d.id, d.queue, d.task, d.version, 'dead_letter', d.priority, d.attempts, d.max_attempts, d.crashes, d.lease_generation, d.partition_key,
           holdfast.bucket(coalesce(d.partition_key, d.id::text)), d.payload, d.created_at, d.available_at, d.claimed_at, d.claimed_by, NULL,
           d.died_at, NULL, d.last_error, NULL, NULL, d.tags, d.metadata, d.seq
    FROM holdfast.dead_letters d;
COMMENT ON VIEW holdfast.jobs IS 'Every job, live, finished or dead';

-- Support queries: one view per question (`holdfast runbook NAME` prints it; docs/runbook.md says what to do) -------------------
--
-- A role that may SELECT from these views and use the schema needs no more: they read the tables with their owner's rights.
-- oldest_due, expired_claims, worker_jobs, lost_workers, storage and horizon stay quick whatever waits; attempts, keys and
-- stranded_jobs read every live job once, dead_letters_by_task every dead letter. Errors are fetched for the rows shown, never sorted.

-- Since when the oldest due job of each queue waits. One index probe per priority.
CREATE VIEW holdfast.oldest_due AS
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
              AND w.status = 'pending' AND w.id <> ALL (ARRAY(SELECT x.id FROM holdfast.quarantine x))
            ORDER BY w.available_at, w.seq LIMIT 1
        ) j
        ORDER BY j.available_at LIMIT 1
    ) o ON true;
COMMENT ON VIEW holdfast.oldest_due IS 'Lag: since when the oldest due job of each queue waits';

-- Claims past their lease, or revoked, that still have jobs. A sweep takes them within seconds; one that stays is a symptom.
CREATE VIEW holdfast.expired_claims AS
    SELECT c.queue, c.worker, v.status AS worker_status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8 AS silent_seconds,
           extract(epoch FROM holdfast.now() - c.lease_expires_at)::float8 AS expired_seconds, c.revoked_at, r.jobs, r.job_ids, c.token
    FROM holdfast.claims c
    LEFT JOIN holdfast.workers v ON v.id = c.worker
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, array_agg(j.id) AS job_ids FROM unnest(c.job_ids) AS j(id)
        CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                            WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    ) r
    WHERE (c.lease_expires_at < holdfast.now() OR c.revoked_at IS NOT NULL) AND r.jobs > 0;
COMMENT ON VIEW holdfast.expired_claims IS 'Jobs in processing whose lease has run out';

-- The error without what differs from job to job: ids, addresses, numbers. What has the same fingerprint has the same cause.
CREATE FUNCTION holdfast.fingerprint(error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT regexp_replace(regexp_replace(regexp_replace(left(split_part(coalesce(error, ''), E'\n', 1), 300),
                     '[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}', '<id>', 'g'),
                     '0x[0-9a-fA-F]+', '<address>', 'g'), '[0-9]+', '#', 'g') $$;

CREATE VIEW holdfast.dead_letters_by_task AS
    SELECT g.queue, g.task, g.partition_key, g.dead, g.first_died_at, g.last_died_at,
           (SELECT d.last_error FROM holdfast.dead_letters d WHERE d.id = g.latest_job_id) AS latest_error, g.latest_job_id
    FROM (
        SELECT d.queue, d.task, d.partition_key, count(*) AS dead, min(d.died_at) AS first_died_at, max(d.died_at) AS last_died_at,
               (array_agg(d.id ORDER BY d.died_at DESC, d.seq DESC))[1] AS latest_job_id
        FROM holdfast.dead_letters d
        GROUP BY d.queue, d.task, d.partition_key
    ) g;
COMMENT ON VIEW holdfast.dead_letters_by_task IS 'Dead letters by task and key, with the latest error';

-- Live jobs that have failed before or were in a process that died, by how many attempts they have spent.
CREATE VIEW holdfast.attempts AS
    SELECT g.queue, g.task, g.attempts, g.max_attempts, g.jobs, g.processing, g.suspects, g.most_crashes, g.next_at,
           (SELECT w.last_error FROM holdfast.work w WHERE w.queue = g.queue AND w.id = g.latest_job_id) AS latest_error, g.latest_job_id
    FROM (
        SELECT w.queue, w.task, w.attempts, w.max_attempts, count(*) AS jobs, count(*) FILTER (WHERE w.status = 'processing') AS processing,
               count(*) FILTER (WHERE w.suspect > 0) AS suspects, max(w.crashes) AS most_crashes,
               min(w.available_at) FILTER (WHERE w.status = 'pending') AS next_at, (array_agg(w.id ORDER BY w.claimed_at DESC, w.seq DESC))[1] AS latest_job_id
        FROM holdfast.work w
        WHERE w.attempts > 0 OR w.crashes > 0 OR w.suspect > 0
        GROUP BY w.queue, w.task, w.attempts, w.max_attempts
    ) g;
COMMENT ON VIEW holdfast.attempts IS 'Live jobs that failed before, by attempts spent';

CREATE VIEW holdfast.throughput_per_minute AS
    SELECT t.minute, t.queue, sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed, sum(t.dead)::bigint AS dead,
           sum(t.cancelled)::bigint AS cancelled,
           (sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_run,
           (sum(t.wait_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_wait, max(t.max_wait) AS max_wait
    FROM holdfast.throughput t
    GROUP BY t.minute, t.queue;
COMMENT ON VIEW holdfast.throughput_per_minute IS 'What each queue finished in each minute';

CREATE VIEW holdfast.worker_jobs AS
    SELECT c.worker, v.host, v.pid, v.status AS worker_status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8 AS silent_seconds,
           c.queue, w.id AS job_id, w.task, w.partition_key, w.attempts, extract(epoch FROM holdfast.now() - w.claimed_at)::float8 AS held_seconds,
           extract(epoch FROM c.lease_expires_at - holdfast.now())::float8 AS lease_left_seconds
    FROM holdfast.claims c
    LEFT JOIN holdfast.workers v ON v.id = c.worker
    CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.* FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w;
COMMENT ON VIEW holdfast.worker_jobs IS 'What each worker holds right now';

-- Workers that vanished without leaving, by host: more than a deploy explains is a crash loop.
CREATE VIEW holdfast.lost_workers AS
    SELECT v.host, v.release, count(*) AS lost, max(v.last_seen_at) AS last_lost_at,
           avg(extract(epoch FROM v.last_seen_at - v.started_at))::float8 AS mean_life_seconds
    FROM holdfast.workers v
    WHERE v.ended = 'lost' AND v.last_seen_at > holdfast.now() - interval '1 hour'
    GROUP BY v.host, v.release;
COMMENT ON VIEW holdfast.lost_workers IS 'Workers that vanished in the last hour, by host';

-- `waiting` has what is due and what is not due yet: scheduled, or backing off after a failure.
CREATE VIEW holdfast.keys AS
    SELECT g.queue, g.partition_key, g.waiting, g.due, g.processing, g.held, g.oldest_due_at, g.most_attempts, g.first_job_id,
           (SELECT w.last_error FROM holdfast.work w WHERE w.queue = g.queue AND w.id = g.tried_job_id) AS latest_error
    FROM (
        SELECT w.queue, w.partition_key, count(*) FILTER (WHERE w.status = 'pending') AS waiting,
               count(*) FILTER (WHERE w.status = 'pending' AND w.available_at <= holdfast.now()) AS due,
               count(*) FILTER (WHERE w.status = 'processing') AS processing, count(*) FILTER (WHERE w.status = 'held') AS held,
               min(w.available_at) FILTER (WHERE w.status = 'pending' AND w.available_at <= holdfast.now()) AS oldest_due_at,
               max(w.attempts) AS most_attempts, (array_agg(w.id ORDER BY w.seq))[1] AS first_job_id,
               (array_agg(w.id ORDER BY w.claimed_at DESC, w.seq DESC) FILTER (WHERE w.attempts > 0))[1] AS tried_job_id
        FROM holdfast.work w
        WHERE w.partition_key IS NOT NULL
        GROUP BY w.queue, w.partition_key
    ) g;
COMMENT ON VIEW holdfast.keys IS 'Live jobs by partition key, with the first of each and the latest error';

-- Jobs that say they run while no claim holds them. The engine never leaves one; hands in the tables may.
CREATE VIEW holdfast.stranded_jobs AS
    SELECT w.id, w.queue, w.task, w.claimed_at, w.claim_token
    FROM holdfast.work w
    WHERE w.status = 'processing' AND NOT EXISTS (SELECT FROM holdfast.claims c WHERE c.token = w.claim_token)
      AND NOT EXISTS (SELECT FROM holdfast.quarantine q WHERE q.id = w.id);
COMMENT ON VIEW holdfast.stranded_jobs IS 'Processing jobs without a claim';

CREATE VIEW holdfast.storage AS
    SELECT c.relname AS relation, pg_total_relation_size(c.oid) AS bytes, greatest(c.reltuples, 0)::bigint AS about_rows, s.n_dead_tup AS dead_rows,
           greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at, age(c.relfrozenxid) AS xid_age, a.day AS archive_day
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
    LEFT JOIN holdfast.archive_slots a ON c.relname = 'archive_' || lpad(a.slot::text, 2, '0')
    WHERE n.nspname = 'holdfast' AND c.relkind = 'r';
COMMENT ON VIEW holdfast.storage IS 'What takes the space';

-- Vacuum removes no row that one of these may still see, and a slot keeps all WAL since it was last read. What sessions of other roles
-- do is shown to members of pg_monitor only.
CREATE VIEW holdfast.horizon AS
    SELECT 'session' AS kind, a.pid::text AS name, a.usename AS owner, a.application_name AS application, a.state, a.xact_start AS since,
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS xid_age, NULL::bigint AS wal_bytes
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
      AND (a.datname = current_database() OR a.datname IS NULL)
  UNION ALL
    SELECT 'prepared transaction', p.gid, p.owner, NULL, NULL, p.prepared, extract(epoch FROM clock_timestamp() - p.prepared)::float8,
           age(p.transaction)::bigint, NULL
    FROM pg_prepared_xacts p WHERE p.database = current_database()
  UNION ALL
    SELECT 'replication slot', s.slot_name, NULL, s.plugin, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, NULL,
           greatest(age(s.xmin), age(s.catalog_xmin))::bigint,
           pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn)::bigint
    FROM pg_replication_slots s;
COMMENT ON VIEW holdfast.horizon IS 'Who keeps dead rows and old WAL from being removed';

-- One number for an autoscaler: jobs of a queue that are due or running, counted up to the cap. A paused queue wants no workers.
-- Priorities are probed one by one, as in every look at a queue: one ordered walk would pass over whatever is scheduled ahead at a
-- higher priority. Due jobs of paused or unknown tasks count until a worker has set them aside; it takes one to do so.
-- EXECUTE is all a scaler needs. The settings are for callers whose own would make it scan or compile.
CREATE FUNCTION holdfast.scaler_backlog(queue_name text DEFAULT 'inbox', cap int DEFAULT 10000) RETURNS bigint
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
                  AND j.status = 'pending' AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
                ORDER BY j.available_at, j.seq LIMIT cap
            ) w
            LIMIT cap
        ), running AS MATERIALIZED (
            SELECT FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
            CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                WHERE w.queue = queue_name AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
            WHERE c.queue = queue_name AND j.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
            LIMIT cap
        )
        SELECT least(cap, (SELECT count(*) FROM due) + (SELECT count(*) FROM running)));
END $$;
REVOKE ALL ON FUNCTION holdfast.scaler_backlog FROM PUBLIC;

SELECT holdfast.create_queue('inbox');
