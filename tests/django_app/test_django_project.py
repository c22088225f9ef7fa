"""The project from outside: manage.py, `holdfast --app`, its settings, and `migrate`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings
from psycopg import sql
from tests.conftest import wait_until
from tests.django_app.stock import life
from tests.django_app.stock.tasks import areceive, receive
from tests.surface.test_cli_worker import Process

from holdfast import ConfigurationError, HoldfastError, WrongConnection
from holdfast import sql as files
from holdfast.contrib.django import app
from holdfast.contrib.django.address import address_of
from holdfast.contrib.django.options import read_options
from holdfast.contrib.django.project import NAME, DjangoHoldfast
from holdfast.contrib.django.schema import HoldfastSchema
from holdfast.db import migrate
from holdfast.model.release import UNKNOWN, git_commit
from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]


def run(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=250
    )


def manage(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(["-m", "tests.django_app.manage", *words], **variables)


def test_manage_runs_a_worker_and_every_other_command(stock: Kit) -> None:
    """The same database as Django's, its tasks found, child processes included."""
    settings = "--settings=tests.django_app.settings"
    done = manage(
        "holdfast", "enqueue", "receive_apart", "name=bolt", settings, DJANGO_SETTINGS_MODULE="nowhere"
    )
    assert done.returncode == 0, done.stderr
    areceive.enqueue(name="nut")
    worked = manage("holdfast", "worker", "--exit-when-idle", STOCK_TELLS="1")
    assert worked.returncode == 0, worked.stderr
    assert worked.stdout == "the process ended in its usual way\n"  # not as one with a thread that is stuck
    assert stock.sql("SELECT name FROM stock_part ORDER BY 1") == [{"name": "bolt"}, {"name": "nut"}]
    assert stock.sql("SELECT DISTINCT release FROM holdfast.workers") == [
        {"release": git_commit(ROOT) or UNKNOWN}
    ]
    listed = manage("holdfast", "jobs", "list", "--json", "--state", "completed")
    assert {job["task"] for job in json.loads(listed.stdout)["jobs"]} == {"receive_apart", "areceive"}


def test_the_command_line_finds_the_project_by_its_settings(stock: Kit) -> None:
    receive.enqueue(name="nut")
    env = {"DJANGO_SETTINGS_MODULE": "tests.django_app.settings"}
    done = run(["-m", "holdfast", "worker", "holdfast.contrib.django:app", "--exit-when-idle"], **env)
    assert done.returncode == 0, done.stderr
    assert stock.sql("SELECT name FROM stock_part") == [{"name": "nut"}]
    without = run(
        ["-m", "holdfast", "status", "--app", "holdfast.contrib.django:app"], DJANGO_SETTINGS_MODULE=""
    )
    assert without.returncode == 2
    assert without.stderr.startswith(
        "holdfast: Django has no settings here. Run: python manage.py holdfast ..., or"
    )


def test_call_command_and_mistakes_have_the_exit_codes_of_the_command_line(
    stock: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        call_command("holdfast", "queue", "list", "--json")
    assert left.value.code in (0, None)
    assert '"inbox"' in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        call_command("holdfast", "jobs", "shw")
    assert left.value.code == 2


def test_without_django_the_extra_is_named() -> None:
    code = "import sys; sys.modules['django'] = None; import holdfast.contrib.django"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: holdfast.contrib.django needs Django. Install it: pip install 'holdfast-pg[django]'"
    )


def test_the_lifespan_of_the_settings_is_around_the_work(stock: Kit) -> None:
    life.begun.clear()
    receive.enqueue(name="nut")
    stock.run_worker()
    assert life.begun == [app]


def test_the_address_is_that_of_djangos_connection(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def database() -> str:
        with psycopg.connect(app.database.dsn) as conn:
            row = conn.execute("SELECT current_database()").fetchone()
        assert row is not None
        return str(row[0])

    first = connections.settings["default"]["NAME"]
    assert database() == first
    monkeypatch.setitem(connections.settings["default"], "NAME", "postgres")  # as a test runner does
    assert database() == "postgres"
    app.close()


def test_a_connection_to_another_database_than_that_of_the_jobs_is_refused(
    stock: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has our schema too, say: the job would be where no worker looks."""
    default = connections.settings["default"]
    same, other = dict(default), {**default, "NAME": "postgres"}
    monkeypatch.setitem(connections.settings, "same", same)
    monkeypatch.setitem(connections.settings, "other", other)
    with transaction.atomic(using="same"):
        receive.using(conn=connections["same"]).enqueue(name="bolt")
    with pytest.raises(WrongConnection) as refused, transaction.atomic(using="other"):
        receive.using(conn=connections["other"]).enqueue(name="nut")
    assert str(refused.value) == (
        "this is Django's connection to DATABASES['other'], but settings.HOLDFAST puts jobs into DATABASES['default']. "
        "Pass django.db.connections['default'], inside of transaction.atomic(using='default')"
    )
    assert len(stock.jobs()) == 1
    connections.close_all()


def test_another_address_of_the_same_database_is_accepted(
    stock: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler's, say, while the workers go to the server itself."""
    default = connections.settings["default"]
    around = {**default, "HOST": os.path.join(default["HOST"], ".")}
    monkeypatch.setitem(connections.settings, "around", around)
    for name in ("bolt", "nut"):
        with transaction.atomic(using="around"):
            receive.using(conn=connections["around"]).enqueue(name=name)
    assert len(stock.jobs()) == 2
    connections.close_all()


def test_our_connections_have_the_role_that_djangos_assume(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else jobs of the one would not be the other's to see: `migrate` makes the schema on a connection of ours."""
    role = f'the shop\\{uuid4().hex[:8]}"'
    with psycopg.connect(at) as conn:
        conn.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    try:
        options = {"assume_role": role, "options": "-c work_mem=7MB"}
        monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)
        connections.close_all()
        with psycopg.connect(address_of("default")) as conn:
            found = conn.execute("SELECT current_user, current_setting('work_mem')").fetchone()
        assert found == (role, "7MB")
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT current_user, current_setting('work_mem')")
            assert cursor.fetchone() == found
    finally:
        connections.close_all()
        with psycopg.connect(at) as conn:
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"CONCURENCY": 3},
            "settings.HOLDFAST: unknown setting 'CONCURENCY'. Did you mean 'CONCURRENCY'? Known: DATABASE, INCLUDE,",
        ),
        ({"DATABASE": 3}, "settings.HOLDFAST: DATABASE must be text, not 3"),
        ({"INCLUDE": "shop"}, "settings.HOLDFAST: INCLUDE must be a list of dotted names, not 'shop'"),
        ({"LEASE": "soon"}, "lease must be"),
        ({"DATABASE_URL": "postgresql://"}, "settings.HOLDFAST has DATABASE_URL, but the address comes from"),
        ([], "settings.HOLDFAST must be a dict, not list"),
    ],
)
def test_wrong_settings_are_refused(given: Any, text: str) -> None:
    with override_settings(HOLDFAST=given), pytest.raises(ConfigurationError) as refused:
        read_options()
    assert str(refused.value).startswith(text)


def test_the_environment_wins_over_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_options().settings.concurrency, read_options().settings.poll) == (4, 0.05)
    monkeypatch.setenv("HOLDFAST_CONCURRENCY", "9")
    assert read_options().settings.concurrency == 9


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        (
            "nowhere",
            "settings.HOLDFAST: DATABASE is 'nowhere', which is not in DATABASES (it has: default, reports)",
        ),
        ("reports", "Django's connection 'reports' to sqlite"),
    ],
)
def test_an_alias_that_has_no_postgresql_is_refused(alias: str, text: str) -> None:
    with override_settings(HOLDFAST={"DATABASE": alias}), pytest.raises(HoldfastError) as refused:
        _ = DjangoHoldfast().database
    assert text in str(refused.value)


def test_a_connection_that_django_refuses_is_refused_in_its_words(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line a refusal is one line and exit code 2; Django's own error would be a traceback."""
    monkeypatch.setitem(connections.settings["default"], "NAME", "")
    connections.close_all()
    with pytest.raises(ConfigurationError) as refused:
        address_of("default")
    assert str(refused.value).startswith("DATABASES['default']: settings.DATABASES is improperly configured.")


def test_a_connection_without_autocommit_is_refused(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "AUTOCOMMIT", False)
    connections.close_all()
    with pytest.raises(ConfigurationError) as refused:
        address_of("default")
    assert str(refused.value).startswith(
        "DATABASES['default'] has AUTOCOMMIT: False. Jobs need to know where"
    )


def test_the_release_is_that_of_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ab" * 20)
    here = ModuleType("elsewhere")
    here.__file__ = str(tmp_path / "settings.py")
    monkeypatch.setitem(sys.modules, "tests.django_app.settings", here)
    assert DjangoHoldfast().release == "ab" * 6
    monkeypatch.setenv("HOLDFAST_RELEASE", "7.1")
    assert DjangoHoldfast().release == "7.1"


def test_dev_prints_what_another_terminal_needs_and_ends_with_its_own(stock: Kit, tmp_path: Path) -> None:
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.django_app.settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    dev = Process(tmp_path, ("dev", NAME, "--no-web"), env)
    try:
        dev.said("worker.started")
        needed = "  export HOLDFAST_APP=holdfast.contrib.django:app DJANGO_SETTINGS_MODULE=tests.django_app.settings\n"
        assert needed in dev.err
    finally:
        dev.send(signal.SIGHUP)  # its terminal was closed
        assert dev.end(60) == 0, dev.err
    wait_until(
        lambda: not stock.sql("SELECT status FROM holdfast.workers WHERE status IN ('alive', 'draining')"),
        "its child left too",
    )


def test_a_test_runner_can_drop_its_database(at: str) -> None:
    """Also where its tests enqueue on connections of our own, in threads and in tasks."""
    done = manage("test", "tests.django_app.stock.tests", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 5 tests" in done.stderr
    with psycopg.connect(at) as conn:
        left = conn.execute(
            "SELECT 1 FROM pg_database WHERE datname = 'test_' || current_database()"
        ).fetchall()
    assert left == []


def test_other_apps_may_migrate_first_and_flush_leaves_our_tables(holdfast_url: str) -> None:
    with psycopg.connect(holdfast_url) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    for words in (("migrate", "auth"), ("migrate",)):
        done = manage(*words, STOCK_DATABASE=holdfast_url)
        assert done.returncode == 0, done.stderr
    flushed = manage("flush", "--noinput", STOCK_DATABASE=holdfast_url)
    assert flushed.returncode == 0, flushed.stderr
    with psycopg.connect(holdfast_url) as conn:
        queues = {row[0] for row in conn.execute("SELECT name FROM holdfast.queues")}
    assert {"inbox", "stock"} <= queues
    assert migrate.status(holdfast_url).current == migrate.required_version()


def test_migrate_upgrades_the_schema_of_a_release_before(holdfast_url: str) -> None:
    done = manage("migrate", STOCK_DATABASE=holdfast_url)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(holdfast_url) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
        conn.execute("DELETE FROM django_migrations WHERE app = 'holdfast' AND name <> '0001_schema'")
    migrate.up(holdfast_url, migrations=files.migrations()[:11])
    again = manage("migrate", STOCK_DATABASE=holdfast_url)
    assert again.returncode == 0, again.stderr
    assert migrate.status(holdfast_url).current == migrate.required_version()


def test_migrate_makes_the_schema_and_its_queues(holdfast_url: str) -> None:
    with psycopg.connect(holdfast_url) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    done = manage("migrate", STOCK_DATABASE=holdfast_url)
    assert done.returncode == 0, done.stderr
    assert migrate.status(holdfast_url).current == migrate.required_version()
    with psycopg.connect(holdfast_url) as conn:
        queues = {row[0] for row in conn.execute("SELECT name FROM holdfast.queues")}
        assert {"inbox", "stock"} <= queues
        conn.execute(
            "DELETE FROM django_migrations WHERE app = 'holdfast'"
        )  # as where `holdfast migrate up` came first
    again = manage("migrate", STOCK_DATABASE=holdfast_url)
    assert again.returncode == 0, again.stderr
    back = manage("migrate", "holdfast", "zero", STOCK_DATABASE=holdfast_url)
    assert "IrreversibleError" in back.stderr
    clean = manage("makemigrations", "--check", "--dry-run", STOCK_DATABASE=holdfast_url)
    assert clean.returncode == 0, clean.stdout


def test_the_newest_migration_of_django_names_our_newest() -> None:
    """A release with a migration of ours has one of Django's, or `migrate` would not run it."""
    found = MigrationLoader(None).disk_migrations
    ours = [m for (label, _), m in found.items() if label == "holdfast"]
    numbers = [o.number for m in ours for o in m.operations if isinstance(o, HoldfastSchema)]
    assert max(numbers) == migrate.required_version()
