"""Equal signatures have equal fingerprints, in every process; whatever changes the payloads that fit changes them."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import Job
from holdfast.tasks.codec import Codec
from holdfast.tasks.signature import analyse


def fingerprint(func: Callable[..., Any], **options: Any) -> str:
    return Codec("t", analyse(func), **options).fingerprint()


def plain(a: int, b: str = "x") -> None: ...


def test_names_defaults_and_injected_parameters_do_not_count_but_what_fits_does() -> None:
    def same(job: Job, b: str = "y", a: int = 1) -> None: ...

    def also(a: int, *, b: str = "z") -> None: ...

    def optional(a: int = 1, b: str = "x") -> None: ...

    assert fingerprint(plain) == fingerprint(also)
    assert fingerprint(same) == fingerprint(optional) != fingerprint(plain)


def added(a: int, b: str = "x", c: int = 7) -> None: ...
def removed(a: int) -> None: ...
def renamed(a: int, c: str = "x") -> None: ...
def required(a: int, b: str) -> None: ...
def retyped(a: str, b: str = "x") -> None: ...
def untyped(a, b="x") -> None: ...  # type: ignore[no-untyped-def]


def test_each_change_of_a_signature_changes_it() -> None:
    changed: list[Callable[..., Any]] = [plain, added, removed, renamed, required, retyped, untyped]
    assert len({fingerprint(func) for func in changed}) == len(changed)


def _shapes() -> list[Any]:
    def dataclasses(extra: bool) -> Any:
        if extra:

            @dataclass
            class Order:
                id: int
                note: str
        else:

            @dataclass
            class Order:  # type: ignore[no-redef]
                id: int

        return Order

    def models(extra: bool) -> Any:
        fields: dict[str, Any] = {"id": (int, ...), "title": (str, "x")}
        if extra:
            fields["note"] = (str, ...)
        return pydantic.create_model("Order", **fields)

    def structs(extra: bool) -> Any:
        return msgspec.defstruct("Order", [("id", int), *([("note", str)] if extra else [])])

    def enums(extra: bool) -> Any:
        return Enum("Order", ["A", "B", "C"] if extra else ["A", "B"])

    return [dataclasses, models, structs, enums]


@pytest.mark.parametrize("make", _shapes(), ids=lambda make: make.__name__)
def test_a_type_counts_with_its_fields_whatever_its_name(make: Callable[[bool], Any]) -> None:
    def of(kind: Any) -> str:
        def handler(order: Any) -> None: ...

        handler.__annotations__["order"] = kind
        return fingerprint(handler)

    assert of(make(False)) == of(make(False)) != of(make(True))


def test_words_for_people_and_defaults_inside_a_type_do_not_count() -> None:
    def model(default: str, doc: str) -> Any:
        made = pydantic.create_model("Order", __doc__=doc, title=(str, default))

        def handler(order: Any) -> None: ...

        handler.__annotations__["order"] = made
        return fingerprint(handler)

    assert model("x", "one") == model("y", "two")


def test_how_old_payloads_are_upgraded_counts() -> None:
    one = fingerprint(plain, version=2, upgrade={1: lambda p: {**p, "a": 1}})
    assert one == fingerprint(plain, version=2, upgrade={1: lambda p: {**p, "a": 1}})
    assert one != fingerprint(plain, version=2, upgrade={1: lambda p: {**p, "a": 2}})
    assert one != fingerprint(plain, version=3, upgrade={1: lambda p: {**p, "a": 1}, 2: dict})


def _helper(p: Any) -> Any:
    return {**p, "a": 1}


def _other_helper(p: Any) -> Any:
    return {**p, "a": 2}


class _Renames:
    def __call__(self, p: Any) -> Any:
        return {**p, "b": 1}


class _Drops:
    def __call__(self, p: Any) -> Any:
        return {"a": p["a"]}


def _given(name: str) -> Callable[[Any], Any]:
    return lambda p: {**p, name: 1}


def _calls_itself(p: Any) -> Any:
    return p if "a" in p else _calls_itself({**p, "a": 1})


def _pick(p: Any, *, name: str = "a") -> Any:
    return p[name]


REPAIRS: dict[str, list[Any]] = {
    "inside a comprehension": [
        lambda p: {k: int(v) for k, v in p.items()},
        lambda p: {k: str(v) for k, v in p.items()},
    ],
    "inside a function that is inside": [
        lambda p: [(lambda q: [{**r, "a": 1} for r in [q]])(p)],
        lambda p: [(lambda q: [{**r, "a": 2} for r in [q]])(p)],
    ],
    "one of several constants": [lambda p: p["a"] in ("x", "y"), lambda p: p["a"] in ("x", "z")],
    "one of a set": [
        lambda p: p["a"] in {"one", "two", "three", "four", "five", "six", "seven", "eight"},
        lambda p: p["a"] in {"one", "two", "three", "four", "five", "six", "seven", "nine"},
    ],
    "a constant of another type": [
        lambda p: {**p, "a": 1},
        lambda p: {**p, "a": 1.0},
        lambda p: {**p, "a": True},
    ],
    "the name of an argument": [lambda p: dict(p, a=1), lambda p: dict(p, b=1)],
    "a function of the module": [
        lambda p: [_helper(p)],
        lambda p: [_other_helper(p)],
        _helper,
        _other_helper,
    ],
    "what is closed over": [_given("a"), _given("b")],
    "what is given": [functools.partial(_pick, name=name) for name in ("a", "b")] + [_pick],
    "the kind of callable": [_Renames(), _Drops(), dict, sorted],
}


@pytest.mark.parametrize("where", REPAIRS)
def test_every_repair_of_an_upgrade_counts(where: str) -> None:
    found = [fingerprint(plain, version=2, upgrade={1: step}) for step in REPAIRS[where]]
    assert len(set(found)) == len(found)
    assert found == [fingerprint(plain, version=2, upgrade={1: step}) for step in REPAIRS[where]]


def test_a_repair_in_a_function_that_an_upgrade_calls_counts() -> None:
    def module(body: str) -> Any:
        names: dict[str, Any] = {"__name__": "shop"}
        exec(f"def fix(p):\n    return {body}\n\ndef step(p):\n    return [fix(q) for q in [p]][0]", names)
        return fingerprint(plain, version=2, upgrade={1: names["step"]})

    assert module("{**p, 'a': 1}") == module("{**p, 'a': 1}") != module("{**p, 'a': 2}")


def test_where_the_code_stands_does_not_count() -> None:
    def at(line: int, file: str) -> str:
        names: dict[str, Any] = {"__name__": "shop"}
        text = "\n" * line + "def step(p):\n    return {k: (lambda: v)() for k, v in p.items()}"
        exec(compile(text, file, "exec"), names)
        return fingerprint(plain, version=2, upgrade={1: names["step"]})

    assert at(0, "one.py") == at(50, "/somewhere/else.py")


def test_an_upgrade_that_calls_itself_has_one() -> None:
    assert fingerprint(plain, version=2, upgrade={1: _calls_itself})


def test_it_is_the_same_in_another_process() -> None:
    text = (
        "from tests.unit.test_fingerprint import *; print(fingerprint(plain), "
        "[fingerprint(plain, version=2, upgrade={1: step}) for steps in REPAIRS.values() for step in steps])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([".", *sys.path])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
