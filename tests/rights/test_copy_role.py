"""The role that docs/roles.md makes for enqueue_copy(): its statements as they are printed there."""

import contextlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.rights.life import Life, as_role, count

from holdfast.db.faults import Forbidden
from holdfast.operate.roles import roles_sql

DOCUMENT = Path(__file__).parents[2] / "docs" / "roles.md"


def documented() -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    (block,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    return re.findall(r"[^;]+;", re.sub(r"--[^\n]*", "", block))


@contextlib.contextmanager
def made(dsn: str, statements: list[str]) -> Iterator[str]:
    """The role under a name of this test; the address of one that can log in."""
    role = f"loader_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.replace("holdfast_loader", role).encode())
        conn.execute(f"ALTER ROLE {role} LOGIN".encode())
        yield as_role(dsn, role)
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.fixture
def sleeper(dsn: str, life: Life) -> None:
    """Somebody to be woken, so that all of wake() is run."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO holdfast.sleepers VALUES ('inbox', 'somebody', 60), ('fair', 'somebody', 60)"
        )


def load(life: Life, url: str) -> int:
    life.use(url)
    return life.app.enqueue_copy([life.plain.job(1), life.in_turn.using(partition_key="a").job(2)])


@pytest.mark.usefixtures("sleeper")
def test_the_documented_role_may_copy(dsn: str, life: Life) -> None:
    with made(dsn, documented()) as url:
        assert load(life, url) == 2
        assert count(dsn, "SELECT count(*) FROM holdfast.work") == 2
        with psycopg.connect(dsn, autocommit=True) as conn:
            script = roles_sql(f"t{uuid.uuid4().hex[:8]}").replace("COMMIT;", "")
            conn.execute(script.encode())  # in a transaction that is not to stay
            seen = "SELECT has_table_privilege(%s, 'holdfast.work', 'INSERT')"
            assert conn.execute(seen, [url.split("user=")[1].split()[0]]).fetchone() == (True,)
            conn.execute("ROLLBACK")
        for statement in ("SELECT FROM holdfast.work", "UPDATE holdfast.work SET priority = 1"):
            with psycopg.connect(url) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize("left_out", range(1, len(documented())))
def test_every_documented_statement_is_needed(dsn: str, life: Life, left_out: int) -> None:
    statements = documented()
    del statements[left_out]
    with made(dsn, statements) as url, pytest.raises(Forbidden):
        load(life, url)
