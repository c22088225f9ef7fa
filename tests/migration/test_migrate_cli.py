"""`holdfast migrate` as a person and as a script use it."""

import json
import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from tests.migration.servers import Database
from typer.testing import CliRunner, Result

from holdfast import sql as files
from holdfast.cli.migrate import app
from holdfast.db import migrate
from holdfast.errors import ConfigurationError, NoDatabase, SchemaTooNew

NEWEST = migrate.required_version()


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_up_status_and_plan(database: Database) -> None:
    to = ("-d", database.dsn)
    before = call("status", *to)
    assert before.exit_code == 0
    assert re.fullmatch(
        r" +1  initial +pending\n(.*\n)*\d+ pending. Run: holdfast migrate up\n", before.output
    )
    assert call("status", "--check", *to).exit_code == 3
    assert call("plan", *to).output == migrate.sql()

    up = call("up", *to)
    assert up.exit_code == 0, up.output
    lines = up.output.splitlines()
    assert lines[0] == "0001_initial: applying"
    assert re.fullmatch(r"0001_initial: applied in \d+\.\d s", lines[1])
    assert lines[-1] == f"Migrated to {NEWEST}."

    assert call("up", *to).output == f"Nothing to do, the database is at {NEWEST}.\n"
    assert call("plan", *to).output == f"-- Nothing to do, the database is at {NEWEST}.\n"
    after = call("status", "--check", *to)
    assert after.exit_code == 0
    assert re.match(r" +1  initial +applied \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}\n", after.output)
    assert after.output.endswith("\nUp to date.\n")


def test_status_for_programs(database: Database) -> None:
    to = ("-d", database.dsn)
    names = [{"number": number, "name": name} for number, name, _ in files.migrations()]
    empty = json.loads(call("status", "--json", *to).output)
    assert empty == {"current": None, "known": NEWEST, "needs_code": None, "applied": [], "pending": names}
    migrate.up(database.dsn)
    full = json.loads(call("status", "--json", *to).output)
    times = [row.pop("applied_at") for row in full["applied"]]
    needs = [row.pop("needs_code") for row in full["applied"]]
    assert full == {
        "current": NEWEST,
        "known": NEWEST,
        "needs_code": max(needs),
        "applied": names,
        "pending": [],
    }
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", time) for time in times)


def test_status_of_a_newer_database(database: Database) -> None:
    migrate.up(database.dsn)
    database.run(f"INSERT INTO holdfast.migrations VALUES (98, 'near', DEFAULT, {NEWEST})")
    to = ("-d", database.dsn)
    plain = call("status", *to)
    assert plain.exit_code == 0
    unknown, last = plain.output.splitlines()[-2:]
    assert re.match(r" +98  near +applied ", unknown)
    assert unknown.endswith(f"  unknown to this release, needs code >= {NEWEST}")
    may = f"This release knows up to {NEWEST} and may run on it."
    assert last == f"The database is newer and needs code >= {NEWEST}. {may}"
    assert call("status", "--check", *to).exit_code == 0
    nothing = f"Nothing to do, the database is at 98. {may}\n"
    assert call("up", *to).output == nothing
    assert call("plan", *to).output == f"-- {nothing}"
    assert json.loads(call("status", "--json", *to).output)["needs_code"] == NEWEST

    database.run("INSERT INTO holdfast.migrations VALUES (99, 'far', DEFAULT, 98)")
    plain = call("status", *to)
    assert plain.exit_code == 0
    assert plain.output.splitlines()[-1] == (
        f"The database is newer and needs code >= 98. "
        f"This release knows up to {NEWEST} and may not run on it: upgrade holdfast."
    )
    for words in (("status", "--check"), ("up",), ("plan",)):
        refused = call(*words, *to)
        assert refused.exit_code == 1
        assert isinstance(refused.exception, SchemaTooNew)


def test_the_printed_script_goes_into_psql(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as cut:
        cut.setattr(psycopg, "connect", None)  # printing needs no connection
        cut.setattr(psycopg.Connection, "connect", None)
        script = call("sql").output
    psql = [str(database.server.bin / "psql"), "-X", "-q", "-o", "/dev/null", "--dbname", database.dsn]
    done = subprocess.run(psql, input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert call("status", "--check", "-d", database.dsn).exit_code == 0


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which nothing names a database."""
    names = ("HOLDFAST_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")
    for name in (*names, "HOLDFAST_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_CONFIG", "/nonexistent/holdfast.toml")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_database_named(unnamed: Path) -> None:
    assert isinstance(call("up").exception, NoDatabase)


def test_the_database_is_that_of_the_app(
    unnamed: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unnamed / "migrated_shop.py").write_text(
        f"from holdfast import Holdfast\n\napp = Holdfast({database.dsn!r})\n"
    )
    monkeypatch.setenv("HOLDFAST_APP", "migrated_shop:app")
    assert call("status", "--check").exit_code == 3
    assert call("plan").output == migrate.sql()
    assert call("up").output.endswith(f"Migrated to {NEWEST}.\n")
    monkeypatch.delenv("HOLDFAST_APP")
    assert call("status", "--check", "--app", "migrated_shop:app").exit_code == 0


def test_an_app_that_does_not_load_migrates_no_other_database(
    unnamed: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_APP", "nowhere:app")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database.dsn)
    refused = call("up").exception
    assert isinstance(refused, ConfigurationError)
    assert str(refused).startswith("HOLDFAST_APP cannot be used: there is no module 'nowhere'")
    looked = call("status", "--check")
    assert (looked.exit_code, looked.stderr.split(":")[0]) == (3, "note")


@pytest.mark.parametrize("word", ["status", "plan"])
def test_a_look_makes_no_server(unnamed: Path, word: str) -> None:
    refused = call(word, "-d", "embedded:").exception
    assert isinstance(refused, ConfigurationError)
    assert str(refused).startswith("there is no embedded server in ")
    assert list(unnamed.iterdir()) == []
