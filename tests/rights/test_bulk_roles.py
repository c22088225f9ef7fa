"""An enqueue_many of very many jobs gets no further than the role that makes it may."""

import psycopg
import pytest
from tests.rights.given import Roles
from tests.rights.life import Life, count

from holdfast.db.faults import Forbidden
from holdfast.tasks.copy import LEAST


def test_a_producer_that_may_only_enqueue_enqueues_many(dsn: str, life: Life) -> None:
    """COPY needs rights on the table; without them the jobs go by the function, and COPY is not tried again."""
    roles = Roles(dsn)
    try:
        life.use(roles.url("producer"))
        for _ in range(2):
            assert len(life.app.enqueue_many(life.plain.job(n) for n in range(LEAST))) == LEAST
        assert not life.app._writer._may_copy
        assert count(dsn, "SELECT count(*) FROM holdfast.work") == 2 * LEAST
    finally:
        roles.clear()


def test_a_role_of_some_queues_gets_no_further_by_copy(dsn: str, life: Life) -> None:
    """It has rights on the table too, and which queues are its own only the function knows."""
    roles = Roles(dsn, "fair")
    login = roles.url("producer_fair").split("user=")[1].split()[0]
    try:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(f"GRANT {roles.names['worker']} TO {login}".encode())
            for name in ("enqueue", "enqueue_many", "enqueue_group"):
                conn.execute(
                    f"REVOKE EXECUTE ON FUNCTION holdfast.{name} FROM {roles.names['worker']}".encode()
                )
        life.use(roles.url("producer_fair"))
        with pytest.raises(Forbidden, match="may not enqueue into queue"):
            life.app.enqueue_many(life.plain.job(n) for n in range(LEAST))
        assert count(dsn, "SELECT count(*) FROM holdfast.work") == 0
    finally:
        roles.clear()


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_role_under_row_level_security_goes_by_the_function(dsn: str, life: Life, way: str) -> None:
    """The server refuses a COPY into such a table, whatever the policies say."""
    roles = Roles(dsn)
    try:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("ALTER TABLE holdfast.work ENABLE ROW LEVEL SECURITY")
            conn.execute("CREATE POLICY everything ON holdfast.work USING (true)")
        life.use(roles.url("worker"))
        jobs = [life.plain.job(n) for n in range(LEAST)]
        made = life.app.enqueue_many(jobs) if way == "sync" else await life.app.aenqueue_many(jobs)
        assert len(made) == LEAST
        assert not life.app._writer._may_copy
        assert count(dsn, "SELECT count(*) FROM holdfast.work") == LEAST
        with pytest.raises(Forbidden, match="row-level security"):
            life.app.enqueue_copy(jobs)
    finally:
        await life.app.database.aclose()
        roles.clear()
