"""Every command, with every kind of mistake: a code that docs/cli.md names, one line, and never a traceback."""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.surface.commands import every_command
from typer.testing import CliRunner

from holdfast.cli import app as cli
from holdfast.cli import exits, main
from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "cli.md"
COMMANDS = every_command()
CODES = {value for name, value in vars(exits).items() if name.isupper()}

AWAY = "postgresql://ann:s3cret@127.0.0.1:1/none"
ADDRESSES = (AWAY, "postgresql://ann:s3cret@h:port/none", "nonsense", "")
GARBAGE = "gar bage\x1b[31m"

Outcome = tuple[int, str, str]
Program = Callable[..., Outcome]


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Program]:
    """`program("status")` is `holdfast status` in an empty folder: (exit code, stdout, stderr)."""
    for name in [v for v in os.environ if v.startswith(("HOLDFAST_", "PG", "DATABASE_URL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_CONNECT_TIMEOUT", "0.01")  # nothing is there to be reached
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def check(outcome: Outcome, words: tuple[str, ...]) -> None:
    """What holds for every mistake."""
    code, out, err = outcome
    assert code in CODES, words
    assert "Traceback" not in err, (words, err)
    assert "s3cret" not in out + err, words
    assert "\x1b" not in out + err, words
    if code == exits.DONE:
        return
    assert out == "", (words, out)
    last = err.rstrip("\n").splitlines()[-1]
    assert last.startswith(("holdfast: ", "Error: ")), (words, err)
    if last.startswith("holdfast: "):
        assert err.count("holdfast: ") == 1, (words, err)


def needed(command: Any) -> list[str]:
    """A value for each argument that must be given."""
    wanted = [p for p in command.params if p.param_type_name == "argument" and p.required]
    return [str(uuid4()) if p.name.endswith("id") else "x" for p in wanted]


def options(command: Any) -> list[Any]:
    """The options that take a value, but for those that say where the database is."""
    found = [p for p in command.params if p.param_type_name == "option" and not p.is_flag]
    return [p for p in found if p.name not in ("database_url", "database", "help")]


def takes(command: Any, option: str) -> bool:
    return any(option in getattr(p, "opts", ()) for p in command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_does_not_exist(program: Program, name: str) -> None:
    words = (*name.split(), *needed(COMMANDS[name]), "--nope")
    outcome = program(*words)
    check(outcome, words)
    assert outcome[0] == exits.USER


# `db start` would start a server; what it does with a wrong path is in tests/embedded.
# `dev` says it in a child, which is started again and again: tests/surface/test_cli_dev.py. `init` and `lab` need nothing.
RUN = [name for name in COMMANDS if name not in ("db start", "dev", "init", "lab")]


@pytest.mark.parametrize("name", [n for n in RUN if takes(COMMANDS[n], "--database-url")])
def test_a_database_that_cannot_be_reached(program: Program, name: str) -> None:
    for address in ADDRESSES:
        words = (*name.split(), *needed(COMMANDS[name]), "-d", address)
        check(program(*words), words)
        if takes(COMMANDS[name], "--json"):
            check(program(*words, "--json"), words)


@pytest.mark.parametrize("name", RUN)
def test_values_that_make_no_sense(program: Program, name: str) -> None:
    command = COMMANDS[name]
    where = ("-d", AWAY) if takes(command, "--database-url") else ()
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = (*name.split(), *(GARBAGE for _ in arguments), *where)
    check(program(*words), words)
    for option in options(command):
        words = (*name.split(), *needed(command), option.opts[0], GARBAGE, *where)
        check(program(*words), words)


# The commands that fall back to HOLDFAST_DATABASE_URL where the app does not load. None of them changes anything.
LOOKS = """
archive search, archive show, audit, dead list, dead show, doctor, events lag, events list, events show, events tail,
explain, group list, group show, jobs list, jobs show, keys blocked, keys held, keys hot, keys limits, keys list,
keys show, migrate plan, migrate status,
operations list, operations show, projection failures, projection list, queue list, queue show, received list,
received show, ring, runbook, schedule last, schedule list, schedule next, stats, status, subscriptions failures,
subscriptions list, subscriptions show, top, webhook deliveries, webhook delivery, webhook list, webhook show, workers,
workers list, workflow list, workflow show, workflow timeline
"""


def test_an_act_is_refused_where_the_app_does_not_load(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app may name another database than HOLDFAST_DATABASE_URL: only looks fall back to it, with a note."""
    monkeypatch.setenv("HOLDFAST_APP", "nosuch:app")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", AWAY)
    fell_back = set()
    for name in RUN:
        command = COMMANDS[name]
        if not takes(command, "--app") or name in ("web", "config show"):
            continue
        yes = ("--yes",) if takes(command, "--yes") else ()
        wanted = [p for p in command.params if p.param_type_name == "option" and p.required]
        named = [word for p in wanted for word in (p.opts[0], "1")]
        question = ("oldest-due",) if name == "runbook" else ()  # without one it lists them
        ids = [str(uuid4()) for _ in needed(command)]  # a word for what wants a name, too
        words = (*name.split(), *ids, *question, *named, *yes)
        code, out, err = program(*words)
        assert out == "", words
        assert "there is no module 'nosuch'" in err or code == exits.USER, (words, err)
        if err.startswith("note: HOLDFAST_APP is not used, the database is that of HOLDFAST_DATABASE_URL: "):
            fell_back.add(name)
    expected = set(LOOKS.replace("\n", " ").strip().split(", "))
    assert (sorted(fell_back - expected), sorted(expected - fell_back)) == ([], [])
    for words in (
        ("queue", "pause", "mail"),
        ("operations", "run", str(uuid4())),
        ("doctor", "--fix", "vacuum"),
    ):
        code, _, err = program(*words)
        assert code == exits.USER
        assert "holdfast: HOLDFAST_APP cannot be used: there is no module 'nosuch' in" in err
        assert err.endswith(
            "This command changes something, so it does not fall back to HOLDFAST_DATABASE_URL. Name the database, with "
            '-d "$HOLDFAST_DATABASE_URL", or fix the app\n'
        )


def test_no_arguments_at_all(program: Program) -> None:
    for name in RUN:
        words = tuple(name.split())
        check(program(*words), words)


def test_a_wrong_word_is_answered_with_the_right_one(program: Program) -> None:
    for words, text in {("queue", "lst"): "list", ("workr",): "worker", ("task", "puase"): "pause"}.items():
        code, out, err = program(*words)
        assert (code, out) == (exits.USER, "")
        assert text in err


def test_ctrl_c_ends_with_130(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.command.operator_at", interrupted)
    code, out, _ = program("status")
    assert (code, out) == (exits.INTERRUPTED, "")


# The document ------------------------------------------------------------------------------------------------------


def test_the_document_names_every_command() -> None:
    listed = re.findall(r"^holdfast ([a-z -]+?)  ", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_the_document_names_every_exit_code() -> None:
    codes = [
        int(code) for code in re.findall(r"^\| (\d+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert codes == sorted(CODES)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_is_for(name: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage: holdfast" in result.output or "Usage: root" in result.output
    assert COMMANDS[name].help


def test_a_report_is_one_json_document(kit: Kit) -> None:
    """On an empty database every command that reports prints one document, and nothing else."""
    printed = []
    for name, command in COMMANDS.items():
        if takes(command, "--json") and takes(command, "--database-url") and not needed(command):
            result = CliRunner().invoke(cli, [*name.split(), "-d", kit.url, "--json"])
            assert result.exit_code != exits.USER or result.stdout == ""
            if result.stdout:
                json.loads(result.stdout)
                printed.append(name)
    assert {"status", "stats", "queue list", "task list", "workers", "config show", "jobs list"} <= set(
        printed
    )
