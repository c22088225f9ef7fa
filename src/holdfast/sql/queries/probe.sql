-- name: backend_pid
-- The server process that answers.
SELECT pg_catalog.pg_backend_pid();

-- name: leave_mark
-- Set something for this session, to see who else sees it.
-- $1 mark
SELECT pg_catalog.set_config('holdfast.doctor', $1, false);

-- name: read_mark
-- What somebody left in this session.
SELECT pg_catalog.current_setting('holdfast.doctor', true);

-- name: server_time
-- The server's own clock, whatever the tests did to ours.
SELECT clock_timestamp();
