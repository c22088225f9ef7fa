-- name: backend_pid
-- The server process that answers.
SELECT pg_catalog.pg_backend_pid();

-- name: which_database
-- anywhere
-- The same of two connections to one database, by whatever ways they go: when its server was started, and its oid there.
SELECT pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()), d.oid::text
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database();

-- name: leave_mark
-- Set a value in this session, to find out which other sessions see it.
-- $1 mark
SELECT pg_catalog.set_config('holdfast.doctor', $1, false);

-- name: read_mark
-- The value that a session left in this one.
SELECT pg_catalog.current_setting('holdfast.doctor', true);

-- name: server_time
-- The server's own clock, whatever the tests did to ours.
SELECT clock_timestamp();
