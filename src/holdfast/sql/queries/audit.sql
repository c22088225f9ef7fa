-- name: audit
-- Write down what an operator did, in the transaction that does it.
-- $1 actor, $2 action, $3 selection (JSON), $4 how many
INSERT INTO holdfast.audit (at, actor, action, selection, count) VALUES (holdfast.now(), $1, $2, $3::text::jsonb, $4);

-- name: audit_add
-- An act in several transactions: count what this one did. No row: the entry is not there.
-- $1 id, $2 how many more
UPDATE holdfast.audit SET count = count + $2 WHERE id = $1 RETURNING id;

-- name: audit_begin
-- The entry of an act that goes on over several transactions; answers its id.
-- $1 actor, $2 action, $3 selection (JSON)
INSERT INTO holdfast.audit (at, actor, action, selection, count) VALUES (holdfast.now(), $1, $2, $3::text::jsonb, 0) RETURNING id;

-- name: list_audit
-- What operators did, the last first.
-- $1 before this id, $2 limit
SELECT id, at, actor, action, selection::text, count, role FROM holdfast.audit WHERE $1::bigint IS NULL OR id < $1 ORDER BY id DESC LIMIT $2;
