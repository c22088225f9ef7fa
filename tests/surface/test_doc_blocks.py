"""Every code block of the documents is run or checked: those that test_docs.py leaves out have a test of their own, and
every command line of a console block is one that the program takes."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.claims import names_in
from tests.surface.test_runbook_doc import parse

from holdfast import Settings
from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
RUN_BY_TEST_DOCS = ("python", "sql")
CHECKED_HERE = ("console", "text", "json", "toml", "yaml", "")  # without a word: a drawing

# A block that is marked with `skip: reason` -> the test that runs it.
ELSEWHERE = {
    ("README.md", "needs pytest"): "tests/surface/test_docs.py::test_the_readme_test_passes",
    ("testing.md", "needs pytest"): "tests/surface/test_docs.py::test_the_tests_of_the_page_about_testing_pass",
    ("events.md", "your test"): "tests/surface/test_doc_blocks.py::test_the_test_of_the_page_about_events_passes",
    ("from-procrastinate.md", "needs the tables of Procrastinate"): (
        "tests/surface/test_doc_blocks.py::test_waiting_jobs_of_procrastinate_are_moved"
    ),
    ("transports.md", "needs a broker"): "tests/surface/test_doc_blocks.py::test_the_suite_takes_a_broker_of_yours",
    ("django.md", "settings"): "tests/django_app/test_django_tasks.py::test_the_settings_of_the_page_are_a_backend",
    ("django.md", "runs in Django's test runner"): (
        "tests/django_app/test_django_shop.py::test_the_tests_of_the_page_pass_in_djangos_runner"
    ),
    ("web.md", "a file of a Django project"): (
        "tests/django_app/test_django_staff.py::test_the_asgi_file_of_the_page_serves_both"
    ),
    ("fastapi.md", "runs inside of Alembic"): "tests/guests/test_alembic.py::test_the_files_of_the_page_do_it",
    ("monitoring.md", "a tracer provider is for a whole process"): (
        "tests/observe/test_files.py::test_the_tracing_example_of_the_document_runs"
    ),
    ("monitoring.md", "a role belongs to the whole server"): (
        "tests/observe/test_scaler.py::test_the_query_of_the_document_runs_as_the_least_of_roles"
    ),
    ("roles.md", "a role belongs to the whole server"): "tests/rights/test_copy_role.py::test_the_documented_role_may_copy",
    ("runbook.md", "a role belongs to the whole server"): (
        "tests/sql/test_runbook.py::test_the_documented_role_may_look_at_every_view_and_at_nothing_else"
    ),
}  # fmt: skip


class Block(NamedTuple):
    page: str
    language: str
    mark: str  # what stands above it
    text: str


def blocks() -> list[Block]:
    return [
        Block(path.name, found["language"], found["mark"] or "", found["text"])
        for path in DOCUMENTS
        for found in FENCED.finditer(path.read_text(encoding="utf-8"))
    ]


def marked(page: str, reason: str) -> list[str]:
    return [b.text for b in blocks() if b.page == page and b.mark == f"skip: {reason}"]


def test_every_block_that_is_left_out_is_run_by_a_test_of_its_own() -> None:
    left_out = {
        (b.page, b.mark.removeprefix("skip: "))
        for b in blocks()
        if b.language in RUN_BY_TEST_DOCS and b.mark.startswith("skip: ")
    }
    assert left_out == set(ELSEWHERE)
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert name in names_in(ROOT / file), f"{test}: no such test"


def test_every_other_block_is_quoted_or_checked_here() -> None:
    for block in blocks():
        quoted = block.mark.startswith(("file: ", "output: "))
        assert quoted or block.language in (*RUN_BY_TEST_DOCS, *CHECKED_HERE), block
    fences = sum(path.read_text(encoding="utf-8").count("\n```") for path in DOCUMENTS)
    assert fences == 2 * len(blocks())


def test_documents_of_other_languages_can_be_read() -> None:
    for block in blocks():
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.text))
        elif block.language == "toml":
            assert set(tomllib.loads(block.text)) <= set(Settings.__dataclass_fields__)


# Command lines -----------------------------------------------------------------------------------------------------


def lines_of(block: Block) -> list[str]:
    """What a reader types: a line that ends with a backslash goes on in the next one."""
    whole = block.text.replace("\\\n", " ")
    return [line[2:] for line in whole.splitlines() if line.startswith("$ ")]


LINES = [
    pytest.param(line, id=f"{block.page}: {line[:60]}")
    for block in blocks()
    if block.language in ("console", "text")
    for line in lines_of(block)
]
SHELL = {"curl", "cd", "django-admin", "eval", "export", "kill", "mkdir", "psql", "source", ".", "uvicorn"}
WITHOUT_A_COMMAND = {"--install-completion", "--show-completion", "--version"}
EXTRAS = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
FILLED_IN = {
    r"[0-9a-f]{8}-\.\.\.": "0193f2c8-0000-7000-8000-000000000000",
    r"\$\([^)]*(?:\([^)]*\))?[^)]*\)|\$\w+": "value",  # what the shell fills in
    r"sha256:value": "sha256:" + 64 * "0",
}


def commands_of(line: str) -> list[list[str]]:
    """The words of each command of the line, without comments and without where its output goes."""
    for pattern, value in FILLED_IN.items():
        line = re.sub(pattern, value, line)
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    words.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("|&;"):
            found.append([])
        else:
            found[-1].append(word)
    return [
        command[: min(map(command.index, {">", ">>"} & set(command)), default=None)]
        for command in found
        if command
    ]


def check(words: list[str]) -> None:
    match words:
        case ["holdfast", option, *_] if option in WITHOUT_A_COMMAND:
            pass
        case ["holdfast", *_] | ["python", "manage.py", "holdfast", *_]:
            parse(shlex.join(words[words.index("holdfast") :]))
        case ["make", target]:
            assert target in TARGETS
        case ["pip", "install", what]:
            assert set(re.findall(r"[a-z-]+", what.partition("[")[2])) <= EXTRAS
        case ["python", "-m", "pytest", *rest]:
            assert all((ROOT / word).exists() for word in rest if not word.startswith("-"))
        case ["python", "-m", module, *_]:
            assert find_spec(module) is not None
        case ["python", "manage.py", *_]:
            pass
        case [program, *_]:
            assert program in SHELL


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_can_be_given(line: str) -> None:
    for words in commands_of(line):
        check(words)


@pytest.mark.parametrize(
    "line",
    [
        "holdfast quue list",
        "holdfast jobs list --stat held | less",
        "make tst",
        'pip install "holdfast-pg[embeded]"',
        "python -m pytest tests/none.py",
        "holdfats worker",
    ],
)
def test_a_line_that_is_wrong_would_be_found(line: str) -> None:
    with pytest.raises(AssertionError):
        test_every_command_line_can_be_given(line)


# Blocks that need something ------------------------------------------------------------------------------------------


def test_the_test_of_the_page_about_events_passes(
    kit: Kit, holdfast_kit: Callable[..., Kit], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    (first,) = (b.text for b in blocks() if b.page == "events.md" and "app = Holdfast(url)" in b.text)
    (text,) = marked("events.md", "your test")
    assert page.index(first) < page.index(text)
    scope: dict[str, Any] = {"url": kit.url, "__name__": "docs"}
    exec(compile(first.split("with psycopg.connect")[0], "events.md", "exec"), scope)
    exec(compile(text, "events.md", "exec"), scope)
    scope["test_paying"](holdfast_kit)
    assert capsys.readouterr().out == "1 1\n"  # of the page's consumer


def test_waiting_jobs_of_procrastinate_are_moved(kit: Kit) -> None:
    kit.sql(
        "CREATE TABLE procrastinate_jobs (id bigint PRIMARY KEY, queue_name text, task_name text, lock text, args jsonb,"
        " status text, scheduled_at timestamptz)"
    )
    kit.sql(
        "INSERT INTO procrastinate_jobs VALUES"
        """ (1, 'sums', 'shop.sum_up', 'orders', '{"a": 1, "b": 2}', 'todo', NULL),"""
        """ (2, 'sums', 'shop.sum_up', 'orders', '{"a": 3, "b": 4}', 'todo', now() + interval '1 day'),"""
        """ (3, 'sums', 'shop.sum_up', NULL, '{"a": 5, "b": 6}', 'doing', NULL)"""
    )
    kit.sql("SELECT holdfast.create_queue('sums')")
    (text,) = marked("from-procrastinate.md", "needs the tables of Procrastinate")
    kit.sql(text)
    moved = kit.sql(
        "SELECT payload, partition_key, available_at > now() AS later FROM holdfast.jobs ORDER BY seq"
    )
    assert [(row["payload"], row["partition_key"], row["later"]) for row in moved] == [
        ({"a": 1, "b": 2}, "orders", False),
        ({"a": 3, "b": 4}, "orders", True),
    ]
    assert [row["id"] for row in kit.sql("SELECT id FROM procrastinate_jobs")] == [3]


def test_the_suite_takes_a_broker_of_yours(kit: Kit) -> None:
    from tests.relays.conformance_brokers import HoldfastBroker

    (text,) = marked("transports.md", "needs a broker")
    scope: dict[str, Any] = {"MyBroker": lambda: HoldfastBroker(kit.url)}
    exec(compile(text, "transports.md", "exec"), scope)
    assert {name for name in dir(scope["TestMine"]) if name.startswith("test_")}
    assert isinstance(scope["TestMine"]().broker(), HoldfastBroker)
