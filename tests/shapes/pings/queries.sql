-- name: ping_write
INSERT INTO holdfast.pings (name, at) SELECT n, holdfast.now() FROM unnest($1::text[]) AS n ON CONFLICT (name) DO NOTHING;

-- name: ping_forget
WITH gone AS (DELETE FROM holdfast.pings WHERE at < holdfast.now() - make_interval(days => $1) AND $2 > 0 RETURNING name)
SELECT count(*) FROM gone;

-- name: ping_names
SELECT name FROM holdfast.pings ORDER BY name;

-- part: pings_missing
(SELECT count(*) FROM unnest($1::text[]) AS n WHERE NOT EXISTS (SELECT FROM holdfast.pings p WHERE p.name = n))
