-- name: audit
-- anywhere
-- Write down what an operator did, in the transaction that does it.
-- $1 actor, $2 action, $3 selection (JSON), $4 how many
SELECT ARRAY[holdfast.audit_act($1::text, $2::text, $3::text::jsonb, $4::bigint)::text];

-- name: audit_add
-- An act in several transactions: count what this one did. False: there is no such entry of this role.
-- $1 id, $2 how many more
SELECT holdfast.audit_more($1, $2) IS NOT NULL;

-- name: audit_begin
-- The entry of an act that goes on over several transactions; answers its id.
-- $1 actor, $2 action, $3 selection (JSON)
SELECT holdfast.audit_act($1, $2, $3::text::jsonb, 0);

-- name: list_audit
-- What operators did, the last first.
-- $1 before this id, $2 limit
SELECT id, at, actor, action, selection::text, count, role FROM holdfast.audit WHERE $1::bigint IS NULL OR id < $1 ORDER BY id DESC LIMIT $2;
