-- holdfast: expand
--
-- Functions are resolved when they are made, or have a search_path of their own: nobody's schema is looked into when they run.

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
    RETURN ARRAY(SELECT DISTINCT mod(day, 32)::int
                     FROM generate_series(greatest(floor(extract(epoch FROM holdfast.uuid7_time(id)) / 86400)::bigint - 1,
                                                   floor(extract(epoch FROM holdfast.now()) / 86400)::bigint - 31),
                                          floor(extract(epoch FROM holdfast.now()) / 86400)::bigint + 1) AS day);

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
