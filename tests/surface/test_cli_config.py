"""`holdfast config show`: every setting, its value and its source, and no password anywhere."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast import Settings
from holdfast.cli import app as cli
from holdfast.cli import main
from holdfast.db.migrate.address import masked
from holdfast.errors import ConfigurationError
from holdfast.settings import OTHER_VARIABLES, known_variables

ROOT = Path(__file__).resolve().parents[2]
NAMED = ("DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE", "PGPASSWORD")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in, and an environment that names nothing."""
    for name in [*NAMED, *(v for v in os.environ if v.startswith("HOLDFAST_"))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("confshop", None)


def show(*words: str) -> Result:
    result = CliRunner().invoke(cli, ["config", "show", *words])
    assert result.exit_code == 0, result.exception
    return result


def found(*words: str) -> tuple[dict[str, tuple[Any, str]], dict[str, Any]]:
    report = json.loads(show(*words, "--json").stdout)
    return {s["name"]: (s["value"], s["source"]) for s in report["settings"]}, report


def test_every_setting_has_a_value_and_a_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "holdfast.toml").write_text("poll = 3\ndrain = 4\n")
    monkeypatch.setenv("HOLDFAST_DRAIN", "7")
    settings, report = found()
    assert list(settings) == [f.name for f in fields(Settings)]
    assert settings["poll"] == (3.0, "holdfast.toml")
    assert settings["drain"] == (7.0, "HOLDFAST_DRAIN")
    assert settings["lease"] == (60.0, "default")
    assert settings["database_url"] == (None, "nothing names one")
    assert (report["app"], report["file"], report["file_found"], report["warnings"]) == (
        None,
        "holdfast.toml",
        True,
        [],
    )
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))
    lines = [re.split(r"  +", line) for line in show().stdout.splitlines()]
    assert lines[0] == ["setting", "value", "from"]
    assert ["poll", "3", "holdfast.toml"] in lines
    assert ["file", "holdfast.toml"] in lines


def test_where_the_database_comes_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://ann:s3cret@db.example/shop?password=s3cret&sslpassword=s3cret&sslmode=require"
    shown = "postgresql://ann:***@db.example/shop?password=***&sslpassword=***&sslmode=require"
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    assert found()[0]["database_url"] == ("postgresql://", "PGHOST")
    monkeypatch.setenv("DATABASE_URL", url)
    assert found()[0]["database_url"] == (shown, "DATABASE_URL")
    (folder / "holdfast.toml").write_text(f'database_url = "{url}"\n')
    assert found()[0]["database_url"] == (shown, "holdfast.toml")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url)
    assert found()[0]["database_url"] == (shown, "HOLDFAST_DATABASE_URL")
    monkeypatch.setenv("HOLDFAST_LISTEN_URL", url)
    assert found()[0]["listen_url"] == (shown, "HOLDFAST_LISTEN_URL")
    (folder / "confshop.py").write_text(f"from holdfast import Holdfast\n\napp = Holdfast({url!r})\n")
    assert found("--app", "confshop")[0]["database_url"] == (shown, "app confshop")
    assert found("--app", "confshop", "-d", url)[0]["database_url"] == (shown, "--database-url")
    for words in ((), ("--json",), ("--app", "confshop"), ("-d", url), ("-d", url, "--json")):
        done = show(*words)
        assert "s3cret" not in done.stdout + done.stderr


def test_an_apps_own_settings_replace_all_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "confshop.py").write_text(
        "from holdfast import Holdfast, Settings\n\n"
        "app = Holdfast(settings=Settings(poll=2.5, database_url='postgresql://a:b@c/d'))\n"
    )
    monkeypatch.setenv("HOLDFAST_POLL", "9")
    monkeypatch.setenv("HOLDFAST_APP", "confshop:app")
    settings, report = found()
    assert settings["poll"] == (2.5, "app confshop:app")
    assert settings["database_url"] == ("postgresql://a:***@c/d", "app confshop:app")
    assert (report["app"], report["app_source"]) == ("confshop:app", "HOLDFAST_APP")


def test_typing_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONCURENCY", "7")
    monkeypatch.setenv("HOLDFAST_ZZZ", "7")
    monkeypatch.setenv("HOLDFAST_CONFIG", "elsewhere.toml")
    monkeypatch.setenv("HOLDFAST_ACTOR", "ann")
    assert found()[1]["warnings"] == [
        "HOLDFAST_CONFIG names elsewhere.toml, which is not there",
        "nobody reads HOLDFAST_CONCURENCY. Did you mean HOLDFAST_CONCURRENCY?",
        "nobody reads HOLDFAST_ZZZ.",
    ]
    assert "warning   nobody reads HOLDFAST_ZZZ.\n" in show().stdout


def test_a_misspelled_setting_is_named_by_any_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_LEESE", "1")
    for own in (
        "TOKEN",
        "DATABASE_USER",
        "HEALTH_SERVICE_HOST",
        "HEALTH_PORT_80_TCP",
        "TEST_PATIENCE",
        "WORKERS",
    ):
        monkeypatch.setenv(f"HOLDFAST_{own}", "1")
    with contextlib.suppress(SystemExit):
        main(["db", "status"], "holdfast")
    assert (
        capsys.readouterr().err
        == "holdfast: warning: nobody reads HOLDFAST_LEESE. Did you mean HOLDFAST_LEASE?\n"
    )
    with contextlib.suppress(SystemExit):
        main(["config", "show"], "holdfast")
    captured = capsys.readouterr()
    assert not captured.err  # it is in the output
    assert "warning   nobody reads HOLDFAST_LEESE. Did you mean HOLDFAST_LEASE?\n" in captured.out


def test_a_wrong_value_names_where_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLL", "soon")
    done = CliRunner().invoke(cli, ["config", "show"])
    assert isinstance(done.exception, ConfigurationError)
    assert (
        str(done.exception) == "environment: HOLDFAST_POLL must be seconds or a duration like 90s, not 'soon'"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgres://u:p%40w@h:5432/d", "postgres://u:***@h:5432/d"),
        ("postgresql://u:p#s?s@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:@h/d?password=p", "postgresql://u:***@h/d?password=***"),
        (
            "postgresql://h1:1,h2:2/d?user=u&password=p&sslmode=require",
            "postgresql://h1:1,h2:2/d?user=u&password=***&sslmode=require",
        ),
        ("host=h password='p w' user=u", "user=u password=*** host=h"),
        ("host=h user=u", "host=h user=u"),
        ("embedded:///srv/pg", "embedded:///srv/pg"),
        ("postgresql://", "postgresql://"),
        ("postgresql+asyncpg://u:p@h/d?ssl=require", "postgresql+asyncpg://u:***@h/d?ssl=require"),
    ],
)
def test_a_password_is_masked_in_every_form(url: str, shown: str) -> None:
    assert sorted(masked(url).split()) == sorted(shown.split())


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@ss@h/d",
        "postgresql://u:p/ss@h/d",
        "postgresql://h/d?pass%77ord=secret",
        "host=h password='secret",
        "mysql://u:secret@h/d",
    ],
)
def test_an_address_that_cannot_be_read_is_not_shown(url: str) -> None:
    assert masked(url) == "(not shown: it cannot be read, and may hold a password)"


def test_every_variable_that_the_code_reads_is_known() -> None:
    texts = (file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    read = {name for text in texts for name in re.findall(r"(?<![_A-Z])HOLDFAST_[A-Z_]*[A-Z]", text)}
    assert read - {*known_variables(), *OTHER_VARIABLES} <= {"HOLDFAST_X"}  # the example in a docstring
