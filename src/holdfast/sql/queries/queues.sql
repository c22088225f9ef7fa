-- name: create_queue
-- Create a queue; false: it was there.
-- $1 name, $2 lease seconds, $3 ordering, $4 on dead letter, $5 key by key?
SELECT holdfast.create_queue($1, $2::float8, $3, $4, $5);

-- name: queue_rules
-- How each of these queues is claimed from.
-- $1 queues
SELECT name, ordering, on_dead_letter, fair, weights::text, concurrency, key_concurrency, rate, burst, key_rate, key_burst, aging, keep_completed,
       affinity
FROM holdfast.queues WHERE name = ANY ($1::text[]);

-- name: set_rules
-- Change what a queue can change while it is in use. Key limits want a queue that is claimed key by key.
-- $1 name, $2 on dead letter, $3 fair, $4 weights (JSON), $5 concurrency, $6 key_concurrency, $7 rate, $8 burst, $9 key_rate, $10 key_burst, $11 aging,
-- $12 whether completed jobs are kept, $13 affinity
UPDATE holdfast.queues
SET on_dead_letter = $2, fair = $3, weights = $4::text::jsonb, concurrency = $5, key_concurrency = $6, rate = $7, burst = $8, key_rate = $9,
    key_burst = $10, aging = $11, keep_completed = $12, affinity = $13
WHERE name = $1
RETURNING name;
