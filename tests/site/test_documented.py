"""What has to be documented: every setting, command, option, event, error, public name, metric and SQL function."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from scripts.site import reference

import holdfast
from holdfast import Settings
from holdfast.model import state

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"
LOG = (ROOT / "docs" / "log-events.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_.]+)` \| (\w+) \|", LOG, re.MULTILINE))
# The rest of a name that is put together where it is emitted.
ENDINGS = {
    "webhook.": ("opened", "closed", "failing", "disabled"),
    "received.": ("differs", "parked"),
    "projection.": ("skipped", "parked"),
}


def emitted() -> Iterator[tuple[str, str]]:
    """(name, level) of every event in the code. A level that is computed is `depends`."""
    constants = {name: value for name, value in vars(state).items() if name.startswith("JOB_")}
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "emit(" not in text:
            continue
        for call in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and n.args):
            if not re.search(r"(^|\.)_?emit$", ast.unparse(call.func)):
                continue
            said = [ast.unparse(k.value) for k in call.keywords if k.arg == "level"]
            found = re.fullmatch(r"logging\.([A-Z]+)", said[0]) if said else None
            level = "info" if not said else found[1].lower() if found else "depends"
            for part in ast.walk(call.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    for ending in ENDINGS.get(part.value, ("",)):
                        yield part.value + ending, level
                elif isinstance(part, ast.Name) and part.id in constants:
                    yield constants[part.id], level
    for name in constants.values():
        yield name, "depends"


def test_every_event_is_documented_with_its_level() -> None:
    levels: dict[str, set[str]] = {}
    for name, level in emitted():
        levels.setdefault(name, set()).add(level)
    assert len(levels) > 100
    assert sorted(set(levels) - set(ROWS)) == [], "these have no row in docs/log-events.md"
    assert sorted(set(ROWS) - set(levels)) == [], "these have a row and are emitted nowhere"
    wrong = {
        name: (ROWS[name], found)
        for name, found in levels.items()
        if len(found) == 1 and found != {"depends"} and ROWS[name] not in found
    }
    assert wrong == {}


def test_every_setting_is_documented() -> None:
    page = reference.settings_page()
    for field in fields(Settings):
        row = re.search(rf"^\| `{field.name}` \|.*\|([^|]*)\|$", page, re.MULTILINE)
        assert row is not None, field.name
        assert row[1].strip(), f"docs/configuration.md has no row for {field.name}"


@pytest.mark.parametrize("name", [name for name, _ in reference.commands()])
def test_every_command_and_option_says_what_it_does(name: str) -> None:
    command = dict(reference.commands())[name]
    assert (command.help or "").strip(), f"holdfast {name} has no help"
    # An argument is named by its place in the usage line, and the help of its command is about it.
    shown = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    silent = [p.name for p in shown if not p.help]
    assert silent == [], f"holdfast {name}: no help for {silent}"
    listed = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.search(rf"^holdfast {re.escape(name)} ", listed, re.MULTILINE), (
        f"docs/cli.md does not list {name}"
    )


@pytest.mark.parametrize("error", reference.public_errors(), ids=lambda error: error.__name__)
def test_every_error_says_what_it_means(error: type[BaseException]) -> None:
    assert reference.docstring(error), f"{error.__name__} has no docstring of its own"
    assert f"\n## {error.__name__}\n" in reference.errors_page()


def test_every_public_name_has_a_docstring() -> None:
    silent = [
        name
        for name in holdfast.__all__
        if inspect.isclass(value := getattr(holdfast, name)) and not reference.docstring(value)
    ]
    assert silent == []


def test_every_metric_of_the_code_is_documented() -> None:
    named = set()
    for file in (SOURCE / "observe" / "metrics.py", *(SOURCE / "shapes").glob("*/measure.py")):
        named |= set(re.findall(r'"(holdfast_[a-z_]+)"', file.read_text(encoding="utf-8")))
    page = reference.metrics_page()
    assert [
        name for name in sorted(named) if f"| `{name}` |" not in page and f"| `{name}_total` |" not in page
    ] == []
