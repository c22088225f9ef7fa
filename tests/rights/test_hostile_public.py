# ruff: noqa: E501
"""Nobody's code but ours and the user's runs in our sessions, whatever is in `public` and wherever it is on the search_path."""

import uuid
from collections.abc import Iterator, Mapping

import psycopg
import pytest
from tests.doctor.bouncer import bouncer
from tests.pg_versions import bouncer_program
from tests.rights.commands import FIX, READS, WRITES, filled, something_of_each
from tests.rights.hostile import Hostile
from tests.rights.life import COMPLETED, PLACE, Life, as_role, count
from tests.surface.running import Cli

from holdfast.db import migrate

PATHS = ["public, pg_catalog", '"$user", public']


@pytest.fixture(params=PATHS)
def victim(request: pytest.FixtureRequest, dsn: str) -> Iterator[str]:
    """A role whose sessions look into public, first or last."""
    name = f"victim_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN SUPERUSER".encode())
        conn.execute(f"ALTER ROLE {name} SET search_path = {request.param}".encode())
        yield name
        conn.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


@pytest.fixture
def pgbouncer() -> None:
    if bouncer_program() is None:
        pytest.skip("no pgbouncer here")


@pytest.fixture
def hostile(dsn: str) -> Iterator[Hostile]:
    hostile = Hostile(dsn)
    hostile.lay()
    yield hostile
    hostile.clear()


@pytest.mark.versions
def test_a_trap_runs_where_a_name_is_not_qualified(dsn: str, victim: str, hostile: Hostile) -> None:
    """The test's own test."""
    with psycopg.connect(as_role(dsn, victim)) as conn:
        conn.execute("SELECT mod(7::bigint, 4)")
    assert [what for what, _ in hostile.stolen()] == ["mod(bigint, integer)"]


@pytest.mark.versions
@pytest.mark.slow
def test_a_hostile_public_never_runs_in_the_life_of_jobs(
    dsn: str, victim: str, hostile: Hostile, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.use(as_role(dsn, victim))
    life.produce()
    assert hostile.stolen() == [], "enqueue"
    life.leave_a_dead_worker()
    life.days_pass(1)
    life.work()
    assert hostile.stolen() == [], "work"
    assert life.completed(dsn) >= COMPLETED
    assert count(dsn, "SELECT count(*) FROM holdfast.dead_letters") >= 4
    assert count(dsn, "SELECT count(*) FROM holdfast.fences") > 0
    held = "SELECT count(*) FROM holdfast.claims WHERE worker = %s"
    for _ in range(50):  # after days without a sweep, owners get time to renew first
        if count(dsn, held, PLACE.id) == 0:
            break
        life.work()
    assert count(dsn, held, PLACE.id) == 0, "what the dead worker held was swept"
    assert hostile.stolen() == [], "sweep"
    life.days_pass(20)
    life.work()
    assert "tick" in life.completed(dsn), "the schedule fired"
    assert hostile.stolen() == [], "housekeeping"


@pytest.mark.slow
@pytest.mark.usefixtures("pgbouncer")
def test_a_hostile_public_never_runs_behind_a_pooler(
    dsn: str, victim: str, hostile: Hostile, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a setting holds to the end of the transaction only."""
    with bouncer(as_role(dsn, victim), "transaction") as pooled:
        life.use(pooled)
        for task in (life.plain, life.careful, life.careful_sync, life.fails):
            task.enqueue(1)
        life.app.enqueue_copy([life.plain.job(2)])
        life.work()
        Cli(pooled, monkeypatch).text("queue", "pause", "inbox")
        assert hostile.stolen() == []
        assert life.completed(dsn) >= {"plain", "careful", "careful_sync"}
        life.close()


@pytest.mark.versions
@pytest.mark.slow
def test_a_hostile_public_never_runs_for_operators(
    dsn: str, victim: str, hostile: Hostile, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.use(as_role(dsn, victim))
    made: Mapping[str, object] = life.produce()
    life.work()
    made = something_of_each(life, dsn, made)
    cli = Cli(as_role(dsn, victim), monkeypatch)
    for words in (*READS, *WRITES, *FIX):
        ran = cli(*filled(words, made))
        assert ran.code in (0, 1), (words, ran)
        assert hostile.stolen() == [], words


@pytest.mark.versions
@pytest.mark.slow
def test_a_hostile_public_never_runs_while_the_schema_is_made(
    dsn: str, victim: str, hostile: Hostile
) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    assert migrate.up(as_role(dsn, victim))
    assert hostile.stolen() == []
