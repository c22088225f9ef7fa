-- name: begin_request
-- A request under a key of its sender: a row if it is new, started by this call. Rows older than a day are removed by the way.
-- $1 who, $2 key, $3 digest of the request
WITH old AS (
    DELETE FROM holdfast.web_requests r WHERE (r.who, r.key) IN (
        SELECT o.who, o.key FROM holdfast.web_requests o WHERE o.at < holdfast.now() - interval '1 day' AND (o.who, o.key) <> ($1, $2) ORDER BY o.at LIMIT 100)
)
INSERT INTO holdfast.web_requests AS r (who, key, digest, at) VALUES ($1, $2, $3, holdfast.now())
ON CONFLICT (who, key) DO UPDATE SET digest = EXCLUDED.digest, at = EXCLUDED.at, said = NULL WHERE r.at < holdfast.now() - interval '1 day'
RETURNING true;

-- name: find_request
-- The request under a key, and its reply; NULL: it is not known.
-- $1 who, $2 key
SELECT r.digest, r.said FROM holdfast.web_requests r WHERE r.who = $1 AND r.key = $2;

-- name: end_request
-- Store the reply to a request.
-- $1 who, $2 key, $3 the answer
UPDATE holdfast.web_requests r SET said = $3 WHERE r.who = $1 AND r.key = $2;

-- name: forget_request
-- A request that was refused and changed nothing may come again.
-- $1 who, $2 key
DELETE FROM holdfast.web_requests r WHERE r.who = $1 AND r.key = $2 AND r.said IS NULL;
