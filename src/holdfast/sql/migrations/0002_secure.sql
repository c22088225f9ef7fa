-- holdfast: expand
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

CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN statement_timestamp()
               + least(greatest(nullif(current_setting('holdfast.clock_offset', true), '')::interval, interval '0'), interval '3650 days');

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

CREATE OR REPLACE FUNCTION holdfast.wake(queue_names text[], run_ats timestamptz[] DEFAULT NULL, delays float8[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
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
            IF pg_try_advisory_xact_lock(7236839, hashtext(told) # place) THEN
                PERFORM pg_notify('holdfast_' || told, '');
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION holdfast.archive_slot(at timestamptz) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN mod(floor(extract(epoch FROM at) / 86400)::bigint, 32)::int;

CREATE OR REPLACE FUNCTION holdfast.archive_slots_of(id uuid) RETURNS int[]
    LANGUAGE sql STABLE STRICT
    SET search_path = pg_catalog, pg_temp   -- no RETURN: nothing is to hang on another function of ours, so that each can be repaired by itself
    AS $$ SELECT ARRAY(SELECT DISTINCT mod(day, 32)::int
                       FROM generate_series(greatest(floor(extract(epoch FROM holdfast.uuid7_time(id)) / 86400)::bigint - 1,
                                                     floor(extract(epoch FROM holdfast.now()) / 86400)::bigint - 31),
                                            floor(extract(epoch FROM holdfast.now()) / 86400)::bigint + 1) AS day) $$;

CREATE OR REPLACE FUNCTION holdfast.conflict_text(task text, queue text, conflict text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN format('%s cannot be enqueued: ', task) || CASE conflict
              WHEN 'queue' THEN format('queue %L does not exist. Create it: holdfast queue create %s', queue, queue)
              WHEN 'key' THEN format('queue %L is claimed key by key, and it has no partition_key', queue)
              WHEN 'then_queue' THEN 'a queue of what is to follow it does not exist'
              WHEN 'then_key' THEN 'what is to follow it goes to a queue that is claimed key by key, and has no partition_key'
              WHEN 'payload' THEN 'its idempotency key was used with another payload'
              ELSE 'a job of another task or partition key waits under its replace key' END;

CREATE OR REPLACE FUNCTION holdfast.fingerprint(error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN regexp_replace(regexp_replace(regexp_replace(left(split_part(coalesce(error, ''), E'\n', 1), 300),
                     '[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}', '<id>', 'g'),
                     '0x[0-9a-fA-F]+', '<address>', 'g'), '[0-9]+', '#', 'g');

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
    INSERT INTO holdfast.limits (queue, tokens, refilled_at) VALUES (queue_name, 0, '-infinity') ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

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

CREATE OR REPLACE FUNCTION holdfast.empty_archive_slot(slot_number int, retention int) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
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

CREATE OR REPLACE FUNCTION holdfast.enqueue_many(
    tasks text[], payloads text[], queues text[], versions int[], partition_keys text[], priorities int[], max_attempts int[],
    run_ats timestamptz[], delays float8[], idempotency_keys text[], idempotency_lifetimes float8[], tags text[], metadatas text[],
    follow_ups text[] DEFAULT NULL, parents uuid[] DEFAULT NULL, groups uuid[] DEFAULT NULL, replace_keys text[] DEFAULT NULL)
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
                  OR CASE WHEN octet_length(u.payload) > 131072 OR u.payload ~ '[0-9][eE][+-]?[0-9]' THEN octet_length((u.payload::jsonb)::text) > 262144 END
                  OR octet_length(u.metadata) > 8192 OR octet_length((u.metadata::jsonb)::text) > 8192 OR octet_length(u.tags) > 8192
                  OR u.priority NOT BETWEEN -100 AND 100 OR u.attempts NOT BETWEEN 1 AND 1000 OR u.version < 1
                  OR u.life NOT BETWEEN 1 AND 604800) THEN
        RAISE EXCEPTION 'a job is out of the limits: task name 1 to 200 letters, digits and _ . -, payload 262144 bytes as jsonb prints it, metadata and tags 8192 bytes, priority -100 to 100, max_attempts 1 to 1000, version 1 or more, idempotency_lifetime 1 second to 7 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF array_remove(follow_ups, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' OR array_remove(replace_keys, NULL) <> '{}' THEN
        PERFORM holdfast.check_links(follow_ups, groups, replace_keys, idempotency_keys);
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
              AND w.id <> ALL (ARRAY(SELECT q.id FROM holdfast.quarantine q))
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
        SET payload = payloads[i]::jsonb, version = versions[i], priority = priorities[i], max_attempts = enqueue_many.max_attempts[i],
            attempts = 0, status = 'pending', hold_reason = NULL,
            available_at = least(greatest(coalesce(run_ats[i], holdfast.now() + make_interval(secs => delays[i])), 'epoch'), holdfast.now() + interval '10 years'),
            tags = CASE WHEN enqueue_many.tags[i] IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(enqueue_many.tags[i]::jsonb)) END,
            metadata = metadatas[i]::jsonb, parent_id = parents[i], follow_ups = enqueue_many.follow_ups[i]::jsonb
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

CREATE OR REPLACE FUNCTION holdfast.enqueue(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'inbox', partition_key text DEFAULT NULL, priority int DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0', idempotency_key text DEFAULT NULL,
    idempotency_lifetime interval DEFAULT '1 day', max_attempts int DEFAULT 5, version int DEFAULT 1,
    tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL, follow_ups jsonb DEFAULT NULL, parent uuid DEFAULT NULL,
    replace_key text DEFAULT NULL, quiet boolean DEFAULT false, OUT id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    AS $$
DECLARE
    wrong text := CASE   -- no subquery in here: an expression without one costs next to nothing
        WHEN task IS NULL OR task ~ '[^A-Za-z0-9_.-]' OR octet_length(task) NOT BETWEEN 1 AND 200 THEN format('task name %L is not usable: 1 to 200 letters, digits and _ . -', task)
        WHEN payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN 'payload must be a JSON object of the handler''s arguments'
        WHEN octet_length(payload::text) > 262144 THEN format('payload is %s bytes, the limit is 262144: store it elsewhere and pass a reference', octet_length(payload::text))
        WHEN octet_length(partition_key) > 512 THEN format('partition_key is %s bytes, the limit is 512', octet_length(partition_key))
        WHEN octet_length(idempotency_key) > 512 THEN format('idempotency_key is %s bytes, the limit is 512', octet_length(idempotency_key))
        WHEN idempotency_lifetime IS NULL OR idempotency_lifetime NOT BETWEEN interval '1 second' AND interval '7 days'
            THEN 'idempotency_lifetime must be between 1 second and 7 days'
        WHEN priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN format('priority must be between -100 and 100, not %s', priority)
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000 THEN format('max_attempts must be between 1 and 1000, not %s', max_attempts)
        WHEN version IS NULL OR version < 1 THEN format('version must be 1 or more, not %s', version)
        WHEN NOT quiet AND (NOT isfinite(run_at) OR run_at > now() + interval '10 years') THEN 'run_at must be a time within 10 years'
        WHEN delay IS NULL OR (NOT quiet AND delay NOT BETWEEN interval '0' AND interval '10 years') THEN 'delay must be between 0 and 10 years'
        WHEN octet_length(metadata::text) > 8192 THEN format('metadata is %s bytes, the limit is 8192', octet_length(metadata::text))
        WHEN octet_length(replace_key) > 512 THEN format('replace_key is %s bytes, the limit is 512', octet_length(replace_key))
        WHEN replace_key IS NOT NULL AND idempotency_key IS NOT NULL THEN 'replace_key and idempotency_key do not go together: take one of them'
        WHEN octet_length(follow_ups::text) > 262144 THEN format('follow_ups are %s bytes, the limit is 262144', octet_length(follow_ups::text))
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
        IF EXISTS (SELECT FROM holdfast.sleepers) THEN
            PERFORM holdfast.wake(ARRAY[queue], ARRAY[run_at], ARRAY[extract(epoch FROM delay)::float8]);
        END IF;
        RETURN;
    END IF;
    SELECT r.id, r.created, r.conflict INTO id, created, conflict
    FROM holdfast.enqueue_many(ARRAY[task], ARRAY[payload::text], ARRAY[queue], ARRAY[version], ARRAY[partition_key], ARRAY[priority],
                               ARRAY[max_attempts], ARRAY[run_at], ARRAY[extract(epoch FROM delay)::float8], ARRAY[idempotency_key],
                               ARRAY[extract(epoch FROM idempotency_lifetime)::float8],
                               ARRAY[CASE WHEN tags IS NOT NULL THEN to_jsonb(tags)::text END], ARRAY[metadata::text],
                               ARRAY[follow_ups::text], ARRAY[parent], NULL, ARRAY[replace_key]) r;
END $$;

REVOKE ALL ON FUNCTION holdfast.check_producer FROM PUBLIC;
