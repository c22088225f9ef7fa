"""docs/runbook.md: a section per symptom with its four parts, commands that exist, and the queries that are really asked."""

import re
import shlex
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer

from holdfast.cli import app
from holdfast.operate.runbook import sql_of
from holdfast.store.runbook import QUESTIONS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
SYMPTOMS = [
    "Lag grows",
    "Rows stuck in processing",
    "Dead letters rise",
    "A worker crash-loops",
    "One key blocks",
    "Database down",
    "Disk full",
]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
QUOTED = re.compile(r"<!-- output: holdfast runbook ([a-z-]+) --sql -->\n```sql\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[str]:
    """Every command line in a console block or between backquotes."""
    lines = re.findall(r"^\$ (holdfast [^#\n]*)", text, re.MULTILINE)
    return [line.strip() for line in lines] + re.findall(r"`(holdfast [^`\n]+)`", text)


def parse(line: str) -> None:
    """Parse it as the program would, without running it; what a reader fills in is filled in here."""
    words = [str(UUID(int=7)) if word == "ID" else word.replace("PID", "4711") for word in shlex.split(line)]
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands"):
        assert rest, f"{line} alone is no command"
        assert rest[0] in command.commands, f"{line}: there is no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(words[0], rest).close()
    except Exception as error:
        raise AssertionError(f"{line}: {error}") from error


def test_there_is_a_section_per_symptom_in_this_order() -> None:
    assert [title for title in SECTIONS if title in SYMPTOMS] == SYMPTOMS


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_every_section_has_its_four_parts(symptom: str) -> None:
    section = SECTIONS[symptom]
    parts = re.split(r"^\*\*(\w+)\.\*\*", section, flags=re.MULTILINE)
    assert parts[1::2] == ["Command", "Query", "Good", "Do"]
    command, query, good, do = (part.strip() for part in parts[2::2])
    assert any(line.startswith("holdfast runbook ") for line in commands(command))
    assert QUOTED.search(query)
    assert len(good) > 100
    assert commands(do)


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_query_behind_each_command_is_in_its_section_or_an_earlier_one(symptom: str) -> None:
    before = "".join(SECTIONS[s] for s in SYMPTOMS[: SYMPTOMS.index(symptom) + 1])
    quoted = {name for name, _ in QUOTED.findall(before)}
    block = re.search(r"```console\n(.*?)```", SECTIONS[symptom], re.DOTALL)
    assert block is not None
    asked = re.findall(r"holdfast runbook ([a-z-]+)", block[1])
    assert set(asked) <= quoted


def test_every_name_is_described_and_its_query_is_the_one_that_is_asked() -> None:
    quoted = dict(QUOTED.findall(TEXT))
    assert quoted.keys() == QUESTIONS.keys()
    for name, text in quoted.items():
        assert text == sql_of(name) + "\n"
        assert any(re.match(rf"holdfast runbook {name}\b", line) for line in commands(TEXT)), name


def test_every_command_in_it_can_be_given() -> None:
    lines = commands(TEXT)
    assert len(lines) > 50
    for line in lines:
        if "NAME" not in line:
            parse(line)


@pytest.mark.parametrize(
    "line",
    [
        "holdfast runbok keys",
        "holdfast jobs",
        "holdfast jobs remove ID",
        "holdfast runbook keys --all",
        "holdfast explain",
    ],
)
def test_a_command_that_does_not_exist_would_be_found(line: str) -> None:
    with pytest.raises(AssertionError, match=r"^holdfast "):
        parse(line)


def test_alerts_and_documents_point_at_sections_that_exist() -> None:
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in SECTIONS}
    places = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    places += [f for f in (ROOT / "src").rglob("*") if f.suffix in (".yml", ".yaml", ".json")]
    found = {m for f in places for m in re.findall(r"runbook\.md#([\w-]+)", f.read_text(encoding="utf-8"))}
    assert found <= anchors
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= anchors
