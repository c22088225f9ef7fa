"""Operate says why in plain sentences with a code; commands and options are words of the command line."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from holdfast.cli import advice
from holdfast.cli import refusals as said
from holdfast.cli.refusals import worded, words
from holdfast.errors import ConfigurationError, DatabaseError, UnknownQueue
from holdfast.model.state import STATES
from holdfast.operate.advice import advise
from holdfast.operate.refusal import NoQueue, NothingDone, Refused, Unanswered, why
from holdfast.tasks.writer import unknown_queue

OPERATE = Path(said.__file__).parent.parent / "operate"
EVENTS = [
    OPERATE.parent / "shapes" / "events" / name
    for name in ("procedures.py", "steering.py", "lookups.py", "look.py", "verbs.py", "checks.py")
]
MODULES = [*sorted(OPERATE.rglob("*.py")), *EVENTS]
SHELL = re.compile(r"\bholdfast [a-z]|(^|\s)--[a-z]")


def texts(module: Path) -> list[str]:
    tree = ast.parse(module.read_text())
    of = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, of)}
    found = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [text for text in found if text not in docs]


@pytest.mark.parametrize("module", MODULES, ids=lambda p: p.stem)
def test_operate_names_no_command_and_no_option(module: Path) -> None:
    assert [text for text in texts(module) if SHELL.search(text)] == []


def test_the_command_line_has_words_only_for_codes_that_there_are() -> None:
    shapes = OPERATE.parent / "shapes"
    more = [
        shapes / "workflows" / f"{name}.py" for name in ("finding", "retries", "forks")
    ]  # what its verbs are made of
    places = [*MODULES, *shapes.rglob("verbs.py"), *more]
    raised = {text for module in places for text in texts(module)} | {*STATES}
    assert {*said._WAYS_OUT, *said._INSTEAD, "no_keys"} <= raised


def test_the_command_line_has_words_for_every_advice() -> None:
    folders = (OPERATE, OPERATE.parent / "shapes")
    source = "".join(p.read_text() for folder in folders for p in folder.rglob("*.py"))
    given = set(re.findall(r'advise\(\s*"(\w+)"', source)) | {
        "resume_queue",
        "resume_task",
        "use_listen_url",
        "use_database_url",
    }
    assert given == set(advice._WORDS)


@pytest.mark.parametrize("name", ["inb;ox", "a b", "$(x)", "it's"])
def test_a_name_in_a_command_is_quoted(name: str) -> None:
    quoted = shlex.quote(name)
    assert str(unknown_queue(name, [])).endswith(f"Create it: holdfast queue create {quoted}")
    assert words(why("no_queue", "no queue", queue=name)).endswith(f"holdfast queue create {quoted}")
    assert advice.Shell().line(advise("create_queue", queue=name)) == f"holdfast queue create {quoted}"


def test_the_command_line_says_of_an_unknown_queue_what_a_producer_reads() -> None:
    for known in ([], ["inbox"], ["inbox", "mail"]):
        error = NoQueue("mial", known)
        assert isinstance(error, UnknownQueue)
        assert "holdfast" not in str(error)
        assert words(error) == str(unknown_queue("mial", known))


def test_a_refusal_has_a_code_data_and_words() -> None:
    error = Refused("not_stuck", "key 'k' is not blocked", queue="orders", key="k")
    assert isinstance(error, ConfigurationError)
    assert (str(error), error.code, error.data) == (
        "key 'k' is not blocked",
        "not_stuck",
        {"queue": "orders", "key": "k"},
    )
    assert words(error) == "key 'k' is not blocked. See what it waits for: holdfast keys show orders k"
    late = Unanswered("too_slow", "no answer")
    assert isinstance(late, DatabaseError)
    assert words(late) == "no answer: holdfast runbook horizon"
    assert words(ConfigurationError("as it is {x}")) == "as it is {x}"


def test_each_of_several_has_its_own_way_out() -> None:
    faults = [why("no_queue", f"job {n} has no queue", queue=f"q{n}") for n in range(7)]
    error = NothingDone("retried", faults)
    assert str(error).startswith("nothing was retried: job 0 has no queue; job 1")
    assert str(error).endswith("; and 2 more")
    assert "job 1 has no queue. Create it: holdfast queue create q1; " in words(error)
    assert words(error).endswith("; and 2 more")


def test_reasons_that_differ_in_what_they_are_about_are_counted_apart() -> None:
    left = {why("completed", "completed", id=job): count for job, count in (("a", 2), ("b", 3))}
    assert worded(left) == {
        "completed. To run a copy of it: holdfast jobs copy a": 2,
        "completed. To run a copy of it: holdfast jobs copy b": 3,
    }


def test_data_with_braces_is_not_read_as_a_template() -> None:
    assert words(why("no_queue", "belongs to {queue}", queue="{x}")) == (
        "belongs to {queue}. Create it: holdfast queue create '{x}'"
    )
