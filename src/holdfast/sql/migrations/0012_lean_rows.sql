-- holdfast: expand (needs code >= 1)
-- No column of a job is generated any more: the server read their expressions anew for every statement. The bucket of a key is filled in by the
-- functions that enqueue; in queues that are claimed key by key a trigger sees to it for everybody else, processes of the release before too.
-- enqueue() asks one statement less, and wakes a sleeping worker itself.
--
-- Nothing is rewritten: rows keep the bucket that they have. The functions come first: the tables are locked last, and all at once.

-- The bucket of a key in a queue that is claimed key by key, whoever writes the row: with a wrong one it would never be found. enqueue() and
-- the others fill it in themselves, and then nothing is to do here.
CREATE FUNCTION holdfast.fill_bucket() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    NEW.partition_bucket := coalesce(holdfast.bucket(NEW.partition_key), 0);   -- a CHECK says what is wrong with a row that has no key
    RETURN NEW;
END $$;

-- A job keeps its key. Asked once for each statement: a trigger that looks at rows, and a CHECK, would cost every claim.
CREATE FUNCTION holdfast.keep_key() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'partition_key and partition_bucket of a job cannot be changed: workers find it by them' USING ERRCODE = 'generated_always';
END $$;
REVOKE ALL ON FUNCTION holdfast.fill_bucket FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.keep_key FROM PUBLIC;

-- The triggers of a queue that is claimed key by key, or of one that no longer is.
CREATE FUNCTION holdfast.guard_keys(relation text, keyed boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF keyed THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER fill_bucket BEFORE INSERT ON holdfast.%I FOR EACH ROW
                        WHEN (NEW.partition_bucket IS DISTINCT FROM holdfast.bucket(NEW.partition_key)) EXECUTE FUNCTION holdfast.fill_bucket()', relation);
        EXECUTE format('CREATE OR REPLACE TRIGGER keep_key BEFORE UPDATE OF partition_key, partition_bucket ON holdfast.%I
                        FOR EACH STATEMENT EXECUTE FUNCTION holdfast.keep_key()', relation);
    ELSE
        EXECUTE format('DROP TRIGGER IF EXISTS fill_bucket ON holdfast.%I', relation);
        EXECUTE format('DROP TRIGGER IF EXISTS keep_key ON holdfast.%I', relation);
    END IF;
END $$;
REVOKE ALL ON FUNCTION holdfast.guard_keys FROM PUBLIC;

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
    EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.work INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
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
        PERFORM holdfast.guard_keys(relation, true);
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
    PERFORM holdfast.guard_keys(found_relation, by_key OR key_ordering = 'key');
    UPDATE holdfast.queues q SET keyed = by_key OR key_ordering = 'key', ordering = key_ordering, on_dead_letter = dead_letter_policy WHERE q.name = queue_name;
    DELETE FROM holdfast.parked_keys p WHERE p.queue = queue_name;
    RETURN NULL;
END $$;

-- So that it shows what it showed, of queues that nobody claims key by key too.
CREATE OR REPLACE VIEW holdfast.jobs AS
    SELECT w.id, w.queue, w.task, w.version,
           CASE WHEN q.id IS NOT NULL THEN 'quarantined' WHEN w.status = 'pending' AND w.available_at > holdfast.now() THEN 'scheduled' ELSE w.status END AS status,
           w.priority, w.attempts, w.max_attempts, w.crashes, w.lease_generation, w.partition_key,
           holdfast.bucket(coalesce(w.partition_key, w.id::text)) AS partition_bucket, w.payload, w.created_at,
           w.available_at, CASE WHEN w.status = 'processing' THEN w.claimed_at END AS claimed_at, c.worker AS claimed_by, c.lease_expires_at,
           NULL::timestamptz AS completed_at, NULL::jsonb AS result, w.last_error, coalesce(q.reason, w.hold_reason) AS hold_reason,
           w.cancel_requested_at, w.tags, w.metadata, w.seq, w.parent_id, w.group_id, w.follow_ups
    FROM holdfast.work w
    LEFT JOIN holdfast.claims c ON w.status = 'processing' AND c.token = w.claim_token
    LEFT JOIN holdfast.quarantine q ON q.id = w.id
  UNION ALL
    SELECT a.id, a.queue, a.task, a.version, a.status, a.priority, a.attempts, a.max_attempts, a.crashes, a.lease_generation, a.partition_key,
           holdfast.bucket(coalesce(a.partition_key, a.id::text)), a.payload, a.created_at, a.available_at, CASE WHEN a.claimed_by IS NOT NULL THEN a.claimed_at END, a.claimed_by, NULL,
           a.completed_at, a.result, a.last_error, NULL, NULL, a.tags, a.metadata, a.seq, a.parent_id, a.group_id, a.follow_ups
    FROM holdfast.archive a
  UNION ALL
    SELECT d.id, d.queue, d.task, d.version, 'dead_letter', d.priority, d.attempts, d.max_attempts, d.crashes, d.lease_generation, d.partition_key,
           holdfast.bucket(coalesce(d.partition_key, d.id::text)), d.payload, d.created_at, d.available_at, d.claimed_at, d.claimed_by, NULL,
           d.died_at, NULL, d.last_error, NULL, NULL, d.tags, d.metadata, d.seq, d.parent_id, d.group_id, d.follow_ups
    FROM holdfast.dead_letters d;

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
            attempts = 0, first_due = NULL, gives_up_at = NULL, status = 'pending', hold_reason = NULL,
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

    INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, partition_bucket, priority, max_attempts,
                               available_at, created_at, claimed_at, claim_token, tags, metadata, seq, parent_id, group_id, follow_ups)
    SELECT u.id, u.queue, u.task, u.version, u.payload::jsonb, u.partition_key, coalesce(holdfast.bucket(u.partition_key), 0), u.priority, u.attempts,
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
    idempotency_lifetime interval DEFAULT '7 days', max_attempts int DEFAULT 5, version int DEFAULT 1,
    tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL, follow_ups jsonb DEFAULT NULL, parent uuid DEFAULT NULL,
    replace_key text DEFAULT NULL, quiet boolean DEFAULT false, OUT id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
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
    at         timestamptz;
    due        timestamptz;
    by_key     boolean;
    in_order   boolean;
    paused     boolean;
    restricted boolean;
    sleepers   int;
    poll       float8;
BEGIN
    IF wrong IS NULL THEN
        SELECT q.keyed, q.ordering = 'key', q.paused_at IS NOT NULL, EXISTS (SELECT FROM holdfast.producers) INTO by_key, in_order, paused, restricted
        FROM (SELECT) one LEFT JOIN holdfast.queues q ON q.name = queue;
        IF restricted THEN PERFORM holdfast.check_producer(ARRAY[queue]); END IF;
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
        due := CASE WHEN run_at IS NULL AND delay = '0' THEN at
                    ELSE least(greatest(coalesce(run_at, at + make_interval(secs => extract(epoch FROM delay)::float8)), 'epoch'),
                               at + interval '10 years') END;
        INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, partition_bucket, priority, max_attempts, available_at, created_at,
                                   claimed_at, claim_token, tags, metadata, seq, parent_id)
        VALUES (id, queue, task, version, payload, partition_key, CASE WHEN partition_key IS NULL THEN 0 ELSE holdfast.bucket(partition_key) END, priority,
                max_attempts, due, at, at, '00000000-0000-0000-0000-000000000000', tags, metadata, nextval('holdfast.work_seq'), parent);
        created := true;
        -- What wake() does, for one queue whose row is read already.
        SELECT a.sleepers, a.poll INTO sleepers, poll FROM holdfast.asleep a WHERE a.queue = enqueue.queue ORDER BY a.number DESC LIMIT 1;
        IF sleepers > 0 AND NOT paused AND due < at + make_interval(secs => poll) AND current_setting('holdfast.notify', true) IS DISTINCT FROM 'off' THEN
            FOR place IN 0..3 LOOP
                IF pg_try_advisory_xact_lock(7236839, hashtext(queue) # place) THEN
                    PERFORM pg_notify('holdfast_' || queue, '');
                    EXIT;
                END IF;
            END LOOP;
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

ALTER TABLE holdfast.work ALTER COLUMN partition_bucket DROP EXPRESSION, ALTER COLUMN partition_bucket SET DEFAULT 0,
    ALTER COLUMN claimed DROP EXPRESSION, ALTER COLUMN claimed SET DEFAULT false;
CREATE TRIGGER keep_key BEFORE UPDATE OF partition_key, partition_bucket ON holdfast.work
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.keep_key();
DO $do$
BEGIN
    PERFORM holdfast.guard_keys(q.relation, true) FROM holdfast.queues q WHERE q.keyed;
END $do$;
