"""Sessions for the SQL tests, and a trigger that makes chosen rows bad."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from tests.sql.support import Conn, configure

from holdfast.testing import Kit

LOADED = {"big", "deep", "hot", "vast"}  # fixtures that fill a database with tens of thousands of jobs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Plans at size are slow: on the other versions they belong to `make test-long`."""
    for item in items:
        if LOADED & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def connect(kit: Kit) -> Iterator[Callable[[], Conn]]:
    """Open a session of its own on the test database, set up as ours are, in autocommit mode."""
    opened: list[Conn] = []

    def make() -> Conn:
        conn: Conn = psycopg.connect(kit.url, autocommit=True)
        opened.append(conn)
        configure(conn, kit)
        return conn

    yield make
    for conn in opened:
        conn.close()


@pytest.fixture
def pool(kit: Kit) -> Iterator[ThreadPoolExecutor]:
    """After a failure a thread may still wait for a lock that nobody gives back: it is ended, or the failure would hang."""
    with ThreadPoolExecutor(16) as threads:
        yield threads
        with psycopg.connect(kit.url, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
            )


@pytest.fixture
def conn(connect: Callable[[], Conn]) -> Conn:
    return connect()


@pytest.fixture
def bad_rows(conn: Conn) -> Callable[[str], None]:
    """`bad_rows("bad")` makes every UPDATE and DELETE of jobs of that task raise."""

    def arm(task: str, events: str = "UPDATE OR DELETE") -> None:
        conn.execute(
            f"""
            CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'this row is bad'; END $$;
            CREATE TRIGGER refuse BEFORE {events} ON holdfast.inbox FOR EACH ROW
                WHEN (OLD.task = '{task}') EXECUTE FUNCTION public.refuse();
            """.encode()
        )

    return arm
