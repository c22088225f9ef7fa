-- holdfast: expand (needs code >= 1)
-- Keys from which nothing is claimed before a moment. With `trial` one job is claimed then, and the rest waits until somebody lifts the hold
-- or renews it. The trial is the job trial_id under the claim trial_token; who decides after it sets `decided`.
CREATE TABLE holdfast.key_holds (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    until         timestamptz NOT NULL,   -- infinity: until it is lifted
    trial         boolean NOT NULL DEFAULT false,
    decided       boolean NOT NULL DEFAULT false,   -- the hold was renewed since its trial was claimed
    held_at       timestamptz NOT NULL,
    reason        text,
    trial_id      uuid,
    trial_token   uuid,
    PRIMARY KEY (queue, partition_key)
) WITH (fillfactor = 50);
CREATE INDEX key_holds_until ON holdfast.key_holds (queue, until);
CREATE INDEX key_holds_trial ON holdfast.key_holds (queue, until, partition_key) WHERE trial;

-- Keys with a number of their own in place of queues.key_concurrency. It counts while the queue has that one.
CREATE TABLE holdfast.key_rules (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    concurrency   int NOT NULL CHECK (concurrency > 0),
    PRIMARY KEY (queue, partition_key)
);

-- Claims read both: who may do that with `work` may do it here.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES ('SELECT', 'SELECT ON holdfast.key_holds, holdfast.key_rules'), ('UPDATE', 'INSERT, UPDATE, DELETE ON holdfast.key_holds')) AS n(had, rights)
        CROSS JOIN pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE c.oid = 'holdfast.work'::regclass AND had.privilege_type = n.had AND had.grantee <> c.relowner
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;

-- A job that is replaced is as if it were new: also the age that its deadline counts.
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

-- With the columns that it shows alone: which others a job has does not matter to it.
CREATE OR REPLACE VIEW holdfast.worker_jobs AS
    SELECT c.worker, v.host, v.pid, v.status AS worker_status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8 AS silent_seconds,
           c.queue, w.id AS job_id, w.task, w.partition_key, w.attempts, extract(epoch FROM holdfast.now() - w.claimed_at)::float8 AS held_seconds,
           extract(epoch FROM c.lease_expires_at - holdfast.now())::float8 AS lease_left_seconds
    FROM holdfast.claims c
    LEFT JOIN holdfast.workers v ON v.id = c.worker
    CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.id, w.task, w.partition_key, w.attempts, w.claimed_at FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w;

-- Last, because all traffic goes through it: since when a job has been tried, and until when. Who fails a job has its queue before the dead letters,
-- so they come in this order here too; a redrive has them the other way round. So this gives up, to be tried again, before the server calls a wait
-- for one of these tables a deadlock.
SET LOCAL lock_timeout = '500ms';
ALTER TABLE holdfast.work ADD COLUMN first_due timestamptz, ADD COLUMN gives_up_at timestamptz;
ALTER TABLE holdfast.dead_letters ADD COLUMN gives_up_at timestamptz;
