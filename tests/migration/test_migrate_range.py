"""Which code may run on which schema: what a migration says, what older code makes of it, and what it leaves alone."""

import hashlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import wait_until
from tests.migration.servers import Database
from tests.observe.support import ready, with_port
from typer.testing import CliRunner

from holdfast import Holdfast
from holdfast import sql as files
from holdfast.cli import app as cli
from holdfast.db import migrate
from holdfast.db.migrate.text import Migration
from holdfast.errors import HoldfastError, SchemaTooNew
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

NEXT = migrate.required_version() + 1
MORE = "ALTER TABLE holdfast.engine ADD COLUMN future int;"
EXPAND = (NEXT, "future", f"-- holdfast: expand\n{MORE}")
CONTRACT = (NEXT, "future", f"-- holdfast: contract (needs code >= {NEXT})\n{MORE}")
TOO_NEW = (
    f"the database is at {NEXT} and needs code that knows migration {NEXT}, "
    f"this release knows up to {NEXT - 1}: upgrade holdfast"
)
# Somebody has applied these. Whoever changes one makes their database differ from every new one.
RELEASED = {1: "a43beb7d3c53f0605fa9252dbe679b4d3074afaca8e712f3ccb13fa0c1fa2fe7"}

MakeKit = Callable[..., Kit]


def apply(kit: Kit, later: tuple[int, str, str]) -> None:
    assert migrate.up(kit.url, migrations=[*files.migrations(), later]) == [NEXT]


@pytest.mark.parametrize("number", sorted(RELEASED))
def test_a_released_migration_is_not_edited(number: int) -> None:
    text = next(text for found, _, text in files.migrations() if found == number)
    assert hashlib.sha256(text.encode()).hexdigest() == RELEASED[number]


@pytest.mark.parametrize(
    ("header", "needs"),
    [
        ("-- holdfast: expand", 6),
        ("-- holdfast: expand (needs code >= 4)", 4),
        ("-- holdfast: contract (needs code >= 5)", 5),
        ("-- holdfast: no-transaction\n-- holdfast: expand", 6),
        ("-- about nothing", 7),
    ],
)
def test_a_migration_says_which_code_may_run_on_it(header: str, needs: int) -> None:
    assert Migration(7, "some", f"{header}\nSELECT 1;").needs_code == needs


def test_no_migration_needs_code_that_is_later_than_itself() -> None:
    with pytest.raises(HoldfastError, match="says that it needs code >= 8, which is later than itself"):
        _ = Migration(7, "some", "-- holdfast: contract (needs code >= 8)\nSELECT 1;").needs_code


def test_migrations_of_one_release_need_the_same_code() -> None:
    """The code that ran before the first of them is what runs beside all of them."""
    before = tomllib.loads((Path(__file__).parent / "before.toml").read_text(encoding="utf-8"))
    needs: dict[str, set[int | None]] = {}
    for number, name, text in files.migrations():
        if number > 1:
            needs.setdefault(before[str(number)], set()).add(Migration(number, name, text).needs_code)
    assert [len(numbers) for numbers in needs.values()] == [1] * len(needs), needs


def test_older_code_starts_runs_and_is_ready_within_the_range(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    done: list[int] = []

    @app.task
    def work(n: int) -> None:
        done.append(n)

    with ready(kit) as port:  # while it is applied
        apply(kit, EXPAND)
        wait_until(lambda: port.value("schema_version") == NEXT, "the worker has seen the newer schema")
        work.enqueue(n=1)
        wait_until(lambda: done == [1], "a job has run")
        assert port.reasons("/readyz") == []
    with ready(kit) as port:  # and after it
        work.enqueue(n=2)
        wait_until(lambda: done == [1, 2], "a job has run")
        assert port.value("schema_version") == NEXT


def test_older_code_refuses_what_is_outside_the_range(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    with ready(kit) as port:
        apply(kit, CONTRACT)
        wait_until(lambda: port.reasons("/readyz") == [TOO_NEW], "unready, with the reason")
        assert port.reasons("/livez") == []
    with pytest.raises(SchemaTooNew) as caught:
        kit.run_worker()
    assert str(caught.value) == TOO_NEW


def test_an_expansion_does_not_bring_back_what_a_contraction_took(
    app: Holdfast, holdfast_kit: MakeKit
) -> None:
    kit = holdfast_kit(app, with_port())
    last = (NEXT + 1, "last", "-- holdfast: expand (needs code >= 1)\nSELECT 1;")
    migrate.up(kit.url, migrations=[*files.migrations(), CONTRACT, last])
    with pytest.raises(
        SchemaTooNew, match=f"the database is at {NEXT + 1} and needs code that knows migration {NEXT}"
    ):
        kit.run_worker()


def test_a_newer_schema_is_not_taken_for_drift(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port())
    apply(kit, EXPAND)
    env = {"HOLDFAST_DATABASE_URL": kit.url}
    seen = CliRunner().invoke(cli, ["doctor", "--only", "schema", "--only", "indexes", "--json"], env=env)
    assert "schema_extra" not in seen.stdout
    why = f"the database is at {NEXT}, this release knows up to {NEXT - 1}"
    assert seen.stdout.count(why) == 2
    assert Operator(kit.database, "ann").explain(uuid4()).code == "no_such_job"


# Function by function: its name, its arguments and whether each has a default, and what it returns.
FUNCTIONS = """
SELECT p.proname, p.proargnames[1:p.pronargs], p.proargtypes::regtype[]::text[], p.pronargdefaults,
       pg_get_function_result(p.oid), has_function_privilege('{role}', p.oid, 'EXECUTE')
FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace
"""
COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), has_column_privilege('{role}', c.oid, a.attnum, 'SELECT')
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND a.attnum > 0 AND NOT a.attisdropped
"""


def still_called(old: tuple[Any, ...], now: list[tuple[Any, ...]]) -> bool:
    """Every call of the old function means the new one: the same arguments first, by name and by place, and more only with
    defaults; the same result; and whoever was allowed to call it still is. Two of one name would make a call ambiguous."""
    name, names, types, defaults, result, allowed = old
    found = [f for f in now if f[0] == name]
    if len(found) != 1:
        return old in now
    _, names_now, types_now, defaults_now, result_now, allowed_now = found[0]
    more = len(types_now) - len(types)
    return bool(
        more >= 0
        and (names_now or [])[: len(types)] == (names or [])
        and types_now[: len(types)] == types
        and defaults_now >= defaults + more
        and result_now == result
        and allowed_now >= allowed
    )


@pytest.mark.versions
@pytest.mark.parametrize("number", [n for n, _, _ in files.migrations() if n >= 2])
def test_an_expansion_takes_nothing_away(number: int, database: Database, role: str) -> None:
    """SQL functions keep their signatures, tables and views their columns, and roles what they were granted."""
    known = files.migrations()
    if any(header.startswith("contract") for header in Migration(*known[number - 1]).headers):
        pytest.skip(f"migration {number} is a contraction")
    migrate.up(database.dsn, migrations=known[: number - 1])
    database.run(
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast TO {role};"
        f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}"
    )
    functions, columns = database.ask(FUNCTIONS.format(role=role)), database.ask(COLUMNS.format(role=role))
    assert len(functions) > 20
    assert len(columns) > 100
    migrate.up(database.dsn, migrations=known[:number])
    now = database.ask(FUNCTIONS.format(role=role))
    assert [f[0] for f in functions if not still_called(f, now)] == []
    kept = set(database.ask(COLUMNS.format(role=role)))
    assert sorted(set(columns) - kept) == []
