-- name: ping_write
-- Note that a worker pinged.
-- $1 names
INSERT INTO holdfast.pings (name, at) SELECT n, holdfast.now() FROM unnest($1::text[]) AS n ON CONFLICT (name) DO NOTHING;

-- name: ping_forget
-- Remove pings that are older than finished jobs are kept.
-- $1 retention days, $2 limit
WITH gone AS (DELETE FROM holdfast.pings WHERE at < holdfast.now() - make_interval(days => $1) AND $2 > 0 RETURNING name)
SELECT count(*) FROM gone;

-- name: ping_names
-- Those that pinged.
SELECT name FROM holdfast.pings ORDER BY name;

-- part: pings_missing
-- For the pulse: how many of these have not pinged.
-- $1 names
(SELECT count(*) FROM unnest($1::text[]) AS n WHERE NOT EXISTS (SELECT FROM holdfast.pings p WHERE p.name = n))
