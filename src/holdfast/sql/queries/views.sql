-- name: list_views
-- The views of one person, then those of everybody, by name.
-- $1 whose, $2 limit
SELECT v.id, nullif(v.owner, ''), v.name, v.page, v.query::text, v.made_by, v.made_at FROM holdfast.web_views v
WHERE v.owner IN ($1, '') ORDER BY v.owner = '', v.name LIMIT $2;

-- name: find_view
-- One view, if it is this person's or everybody's.
-- $1 id, $2 whose
SELECT v.id, nullif(v.owner, ''), v.name, v.page, v.query::text, v.made_by, v.made_at FROM holdfast.web_views v
WHERE v.id = $1 AND v.owner IN ($2, '') FOR UPDATE;

-- name: save_view
-- Keep a view under its name, in place of the one that has it. No row: there are too many.
-- $1 whose (NULL: everybody's), $2 name, $3 page, $4 query (JSON), $5 by whom, $6 how many there may be
INSERT INTO holdfast.web_views AS v (owner, name, page, query, made_by, made_at)
SELECT coalesce($1::text, ''), $2::text, $3::text, $4::text::jsonb, $5::text, holdfast.now()
WHERE (SELECT count(*) FROM holdfast.web_views o WHERE o.owner = coalesce($1::text, '') AND o.name <> $2) < $6
ON CONFLICT (owner, name) DO UPDATE SET page = EXCLUDED.page, query = EXCLUDED.query, made_by = EXCLUDED.made_by, made_at = EXCLUDED.made_at
RETURNING v.id;

-- name: delete_view
-- Forget a view.
-- $1 id
DELETE FROM holdfast.web_views v WHERE v.id = $1 RETURNING v.id;
