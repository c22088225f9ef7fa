-- name: load_begin
-- What a load depends on before its first row: the clock, the queues, those claimed key by key, those in order.
SELECT holdfast.now(), array_agg(q.name), coalesce(array_agg(q.name) FILTER (WHERE q.keyed), '{}'),
       coalesce(array_agg(q.name) FILTER (WHERE q.ordering = 'key'), '{}')
FROM holdfast.queues q;

-- name: bulk_begin
-- The same for an enqueue_many. No row: some role may enqueue into some queues only, and the function knows which.
SELECT holdfast.now(), array_agg(q.name), coalesce(array_agg(q.name) FILTER (WHERE q.keyed), '{}'),
       coalesce(array_agg(q.name) FILTER (WHERE q.ordering = 'key'), '{}')
FROM holdfast.queues q
HAVING NOT EXISTS (SELECT FROM holdfast.producers);

-- name: load_changed
-- Of these queues those that are ordered by key by now.
-- $1 queues
SELECT q.name FROM holdfast.queues q WHERE q.name = ANY ($1::text[]) AND q.ordering = 'key';

-- name: load_wake
-- Jobs of these queues are due, the first of each at its time: wake sleeping workers.
-- $1 queues, $2 times
SELECT holdfast.wake($1::text[], $2::timestamptz[]);
