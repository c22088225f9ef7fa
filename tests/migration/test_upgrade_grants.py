"""What an upgrade gives to roles that were given rights before."""

from collections.abc import Callable
from uuid import uuid4

from tests.migration.servers import Database

from holdfast import sql as files
from holdfast.db import migrate

BEFORE = (
    "jobs_ended, holdfast.close_group, holdfast.enqueue_specs, holdfast.conflict_text, holdfast.enqueue_many"
)


def test_a_worker_that_does_not_own_the_schema_may_call_what_is_new_in_its_place(
    make_database: Callable[[], Database],
) -> None:
    database, role = make_database(), f"worker_{uuid4().hex[:12]}"
    migrate.up(database.dsn, migrations=files.migrations()[:1])
    database.run(f"CREATE ROLE {role}; GRANT EXECUTE ON FUNCTION holdfast.{BEFORE} TO {role}")
    try:
        migrate.up(database.dsn)
        allowed = f"""SELECT proname::text FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace
                      AND proname IN ('jobs_ended_at_commit', 'try_callback', 'write_jobs')
                      AND has_function_privilege('{role}', oid, 'EXECUTE') ORDER BY 1"""
        assert database.ask(allowed) == [("jobs_ended_at_commit",), ("try_callback",)]
    finally:
        database.run(f"DROP OWNED BY {role}; DROP ROLE {role}")
