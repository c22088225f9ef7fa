-- holdfast: expand
-- What was found when the engine was tried from outside: deaths, limits, locks, rights and housekeeping. Functions and views are those of
-- schema.sql. Tables that everybody writes come last or change in their catalogue entry only.

-- What a worker says of itself, and what others say of it when it is gone.
ALTER TABLE holdfast.workers ADD COLUMN fenced_at timestamptz, ADD COLUMN blamed uuid[], ADD COLUMN death text, ADD COLUMN holds uuid[];

ALTER TABLE holdfast.migrations ADD COLUMN needs_code int;

COMMENT ON COLUMN holdfast.migrations.needs_code IS
    'The newest migration that code must know to run on this one; NULL: this one. Older code reads it to decide whether it may run.';

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
            WHEN coalesce(spec->>'task', '') !~ '^[A-Za-z0-9_.-]{1,200}$' THEN format('task name %L is not usable', spec->>'task')
            WHEN spec - ARRAY['task', 'payload', 'queue', 'version', 'partition_key', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key',
                              'idempotency_lifetime', 'tags', 'metadata', 'then', 'replace_key'] <> '{}'
                THEN format('%s has no option %L', spec->>'task', (SELECT k FROM jsonb_object_keys(spec - ARRAY['task', 'payload', 'queue', 'version',
                            'partition_key', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key', 'idempotency_lifetime', 'tags', 'metadata',
                            'then', 'replace_key']) AS k ORDER BY k LIMIT 1))
            WHEN coalesce(jsonb_typeof(spec->'payload'), 'object') <> 'object' THEN format('payload of %s is no object', spec->>'task')
            WHEN octet_length((spec->'payload')::text) > 262144 THEN format('payload of %s is more than 262144 bytes', spec->>'task')
            WHEN octet_length((spec->'metadata')::text) > 8192 OR octet_length((spec->'tags')::text) > 8192
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
            WHEN spec->>'run_at' !~ '^[0-9]{4,5}-[0-9]{2}-[0-9]{2}[T ][0-9:.]{5,15}(Z|[+-][0-9:]{2,8})$' THEN format('run_at of %s is no time with a zone', spec->>'task')
            WHEN spec->'then' IS NOT NULL AND jsonb_typeof(spec->'then') <> 'null' THEN holdfast.spec_fault(spec->'then', level + 1)
        END;
        IF wrong IS NOT NULL THEN RETURN wrong; END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Many jobs in one call, in the caller's transaction. Never raises for what a caller can get wrong in one row: it answers
-- with a conflict ('queue': no such queue, 'key': the queue is claimed key by key and the job has none, 'payload': the idempotency key
-- was used with another payload, 'replace': a job of another task or partition key waits under the replace key, 'then_queue' and
-- 'then_key': the first two, of a job that is to follow), and then has written
-- nothing at all. Same key and same payload gives the first job's id, also to a concurrent duplicate, which waits. A job that waits under
-- the same replace key is changed in place.
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
    -- What a library checks before it calls, and a caller without one must not get past.
    IF EXISTS (SELECT FROM unnest(tasks, payloads, priorities, max_attempts, versions, idempotency_lifetimes, metadatas, tags)
                        AS u(task, payload, priority, attempts, version, life, metadata, tags)
               WHERE u.task ~ '[^A-Za-z0-9_.-]' OR octet_length(u.task) NOT BETWEEN 1 AND 200 OR octet_length(u.payload) > 262144
                     -- jsonb prints more than was written: a space after each separator, and numbers without exponents
                  OR CASE WHEN octet_length(u.payload) > 131072 OR u.payload ~ '[0-9][eE][+-]?[0-9]' THEN octet_length((u.payload::jsonb)::text) > 262144 END
                  OR octet_length(u.metadata) > 8192 OR octet_length((u.metadata::jsonb)::text) > 8192 OR octet_length(u.tags) > 8192
                  OR u.priority NOT BETWEEN -100 AND 100 OR u.attempts NOT BETWEEN 1 AND 1000 OR u.version < 1
                  OR NOT u.life BETWEEN 1 AND 'infinity') THEN
        RAISE EXCEPTION 'a job is out of the limits: task name 1 to 200 letters, digits and _ . -, payload 262144 bytes as jsonb prints it, metadata and tags 8192 bytes, priority -100 to 100, max_attempts 1 to 1000, version 1 or more, idempotency_lifetime 1 second or more'
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
                VALUES (item.queue, item.key, ids[item.ord], item.hash,
                        CASE WHEN item.life > 3155760000 THEN 'infinity' ELSE holdfast.now() + make_interval(secs => item.life) END)   -- a century is for ever
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

-- One job, for people and for other languages:
--   SELECT * FROM holdfast.enqueue('billing.send_receipt', '{"order_id": 1}');
-- A key used with another payload is answered in `conflict`, so that the caller's transaction stays usable. A queue that does not
-- exist and a value out of range raise, because an answer that nobody reads would be a lost job. A caller that does read it says
-- `quiet`: then it answers as enqueue_many does when there is no such queue, or no key for a queue that is claimed key by key, and a
-- time out of range becomes the nearest one within.
--
-- A job without an idempotency key, a replace key and follow-ups needs three statements: its queue, the row, and whether anybody
-- sleeps. Their plans are kept, also where the session wants custom ones: to plan them took three times as long as to run them.
CREATE OR REPLACE FUNCTION holdfast.enqueue(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'inbox', partition_key text DEFAULT NULL, priority int DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0', idempotency_key text DEFAULT NULL,
    idempotency_lifetime interval DEFAULT '7 days', max_attempts int DEFAULT 5, version int DEFAULT 1,
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
        WHEN idempotency_lifetime IS NULL OR idempotency_lifetime < interval '1 second'
            THEN 'idempotency_lifetime must be 1 second or more; more than 100 years is for ever'
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

-- Chains ----------------------------------------------------------------------------------------------------------

-- Jobs that are given as JSON, in lists, each list with a parent and a group: what enqueue_many answers, and beside each which list.
--   [{"task": "mail.send", "payload": {"to": 1}, "queue": "mail", "priority": 0, "delay": 60, "then": [...]}, ...]
-- Only the task is needed. A delay counts from the moment at which the job is enqueued.
CREATE OR REPLACE FUNCTION holdfast.enqueue_specs(specs jsonb[], parents uuid[], groups uuid[])
    RETURNS TABLE (list int, task text, queue text, id uuid, created boolean, conflict text)
    LANGUAGE sql VOLATILE
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
        CROSS JOIN LATERAL holdfast.enqueue_many(a.tasks, a.payloads, a.queues, a.versions, a.partition_keys, a.priorities, a.attempts, a.run_ats,
                                                 a.delays, a.keys, a.lives, a.tags, a.metadatas, a.follow_ups, a.parents, a.groups, a.replace_keys) e
        JOIN s ON s.ord = e.ordinal
        ORDER BY s.ord $$;

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
