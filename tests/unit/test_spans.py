"""Text such as "10m" is taken wherever a number of seconds is: in the API, on the command line, by the kit's clock."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer

from holdfast import Settings
from holdfast.cli import app
from holdfast.db import migrate
from holdfast.model.clock import Clock
from holdfast.operate.queues import create_queue

API = Path(__file__).parents[2] / "docs" / "api.txt"
TEXT = "float | datetime.timedelta | str"
# Numbers that are no seconds, and what is only told: fields of answers.
# `wait` and `delay` of a Source, `patience` of a Receiver: given by us. What transports and we say to each other is in
# seconds too.
BETWEEN_US = ("RetryLater", "Transport")
NO_SECONDS = {
    "factor",
    "fraction",
    "count",
    "declared_seconds",
    "paused_seconds",
    "wait",
    "delay",
    "patience",
}


def test_the_public_api() -> None:
    parts = re.split(r"\n(?=\S)", API.read_text(encoding="utf-8"))
    text = "\n".join(part for part in parts if not re.match(rf"class ({'|'.join(BETWEEN_US)})\b", part))
    plain = set(re.findall(r"(\w+): (?:float|int \| float)(?! \| datetime)", text))
    settings = {f.name for f in fields(Settings) if f.type is float}
    assert plain - NO_SECONDS - settings == set()
    assert text.count(TEXT) > 10, "the test's own test"


@pytest.mark.parametrize("name", [f.name for f in fields(Settings) if f.type is float])
def test_every_setting_of_seconds(name: str) -> None:
    default = getattr(Settings(), name)
    for given in (f"{default:g}s", timedelta(seconds=default)):
        values: dict[str, Any] = {name: given}
        assert getattr(Settings(**values), name) == default


def options() -> Iterator[tuple[str, Any, Any]]:
    """Every parameter of every command: its name, its type, and what is said of it."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any, Any]]:
        if command.callback is not None:
            hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
            for parameter, hint in hints.items():
                if get_origin(hint) is Annotated:
                    kind, *said = get_args(hint)
                    yield f"{name} --{parameter.replace('_', '-')}", kind, said[-1]
        for word, part in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {word}".strip(), part)

    return walk("", typer.main.get_command(app))


def test_every_option_of_seconds_takes_text() -> None:
    found = list(options())
    assert [name for name, kind, _ in found if float in (kind, *get_args(kind))] == []
    told = [
        (name, kind)
        for name, kind, said in found
        if re.search(r"\bseconds?\b", said.help or "", re.IGNORECASE)
    ]
    assert [name for name, kind in told if int in (kind, *get_args(kind))] == []
    spans = {name for name, _, said in found if said.metavar in ("SPAN", "AGE")}
    assert {"queue create --lease", "migrate up --lock-timeout", "migrate up --patience"} < spans


def test_the_clock_takes_a_span() -> None:
    clock = Clock()
    for given in (1, 1.5, "1h30m", timedelta(minutes=1)):
        clock.advance(given)
    assert clock.offset == 1 + 1.5 + 5400 + 60
    for wrong in (-1, float("nan"), timedelta(seconds=-1), "soon"):
        with pytest.raises(ValueError, match=r"forward only|must be a"):
            clock.advance(wrong)
    assert clock.offset == 5462.5


@pytest.mark.parametrize(
    ("function", "name"), [(create_queue, "lease"), (migrate.up, "lock_timeout"), (migrate.up, "patience")]
)
def test_functions_for_operators(function: Any, name: str) -> None:
    parameter = inspect.signature(function).parameters[name]
    assert TEXT in str(parameter.annotation)
