"""The surface that was agreed on before it was built, name by name: tests/typing/agreed beside what there is.

Ours may take more than was agreed: further parameters with a default, a keyword that may be given by position. It may not
take less."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import holdfast

AGREED = Path(__file__).parents[1] / "typing" / "agreed"
Function = ast.FunctionDef | ast.AsyncFunctionDef

# What has another name, or another home than `holdfast`.
ELSEWHERE = {
    "App": "holdfast:Holdfast",
    "jobs.Signal": "holdfast:HandlerSignal",  # Signal is what a workflow waits for
    "boundaries.Outcome": "holdfast.transport:Outcome",  # the other is that of a job
    "boundaries.Message": "holdfast.model.asgi:Message",  # the other is sent to a run
    "Decorator": "holdfast:WorkflowDecorator",
    "Broker": "holdfast.testing:Broker",
    "CrashReport": "holdfast.testing:CrashReport",
    "Divergence": "holdfast.testing:Divergence",
    "WorkflowKit": "holdfast.testing:WorkflowKit",
    "transport_conformance": "holdfast.testing:transport_conformance",
}
# What was decided otherwise since, and where.
DECIDED = {
    "workflows.Workflow.publish": "ADR 45: it writes events to the log; a job is wf.call()",
    "workflows.App.task": "the stub's own, beside Task of jobs",
    "boundaries.App.__exit__": "as in jobs",
    "boundaries.App.__aexit__": "as in jobs",
}
# Attributes that are set in __init__, which has no annotation for them on the class.
SET_LATER = {
    "Subscription": {"name"},
    "Webhooks": {"endpoints"},
    "StepFailed": {"key", "kind", "message", "attempts", "data"},
}


class Agreed(NamedTuple):
    where: str
    node: Function | ast.AnnAssign
    owner: str


def bodies() -> Iterator[tuple[str, ast.stmt]]:
    for path in sorted(AGREED.glob("*.pyi")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            yield path.stem, node


def names() -> Iterator[str]:
    for file, node in bodies():
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield f"{file}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if "TypeVar" not in ast.unparse(node) and "ParamSpec" not in ast.unparse(node):
                yield f"{file}.{ast.unparse(target)}"


def members() -> Iterator[Agreed]:
    for file, node in bodies():
        if isinstance(node, ast.FunctionDef):
            yield Agreed(f"{file}.{node.name}", node, "")
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, Function | ast.AnnAssign):
                    name = one.name if isinstance(one, Function) else ast.unparse(one.target)
                    yield Agreed(f"{file}.{node.name}.{name}", one, f"{file}.{node.name}")


def ours(name: str) -> Any:
    place = (
        ELSEWHERE.get(name) or ELSEWHERE.get(name.partition(".")[2]) or f"holdfast:{name.partition('.')[2]}"
    )
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", sorted(set(names())))
def test_every_agreed_name_is_there(name: str) -> None:
    assert ours(name) is not None


def test_what_was_agreed_is_all_looked_at() -> None:
    assert len(set(names())) > 100
    assert len(list(members())) > 250
    left = {*ELSEWHERE} - {*names(), *(name.partition(".")[2] for name in names())}
    assert not left, "nobody asks for these"
    assert not {*DECIDED} - {one.where for one in members()}


@pytest.mark.parametrize("wanted", list(members()), ids=lambda one: one.where)
def test_members_and_parameters_are_as_agreed(wanted: Agreed) -> None:
    if wanted.where in DECIDED:
        return
    owner: Any = ours(wanted.owner) if wanted.owner else None
    name = wanted.where.rpartition(".")[2]
    if isinstance(wanted.node, ast.AnnAssign):
        known = {*dir(owner), *SET_LATER.get(wanted.owner.partition(".")[2], ())}
        assert name in known | {n for kind in owner.__mro__ for n in getattr(kind, "__annotations__", {})}
        return
    found = ours(wanted.where) if owner is None else inspect.getattr_static(owner, name)
    if any(ast.unparse(one) == "property" for one in wanted.node.decorator_list):
        return
    if isinstance(found, property) or (name == "__call__" and _overloaded(found)):
        return  # type checkers look at these: tests/typing
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    assert inspect.iscoroutinefunction(found) == isinstance(wanted.node, ast.AsyncFunctionDef) or name in (
        "__await__",
        "destination",  # of a broker: sync or async
        "histories",
        "gather",
    )
    _check_parameters(wanted.node, inspect.signature(found))


def _overloaded(found: Any) -> bool:
    return [*inspect.signature(found).parameters] == ["args", "kwds"]


def _check_parameters(node: Function, signature: inspect.Signature) -> None:
    left = dict(signature.parameters)
    left.pop("self", None)
    kinds = {one.kind for one in left.values()}
    more, keywords = inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
    given = node.args
    by_position = [one.arg for one in (*given.posonlyargs, *given.args) if one.arg != "self"]
    defaults = len(given.defaults)
    optional = {*(one.arg for one in (*given.posonlyargs, *given.args)[-defaults:] if defaults)}
    places = [n for n, one in left.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    nameless = {one.arg for one in given.posonlyargs}
    for place, name in enumerate(by_position):
        if name in nameless and name not in left:
            assert more or place < len(places), name
            left.pop(places[place], None) if place < len(places) else None
            continue
        assert place < len(places), f"{name} is not taken by position"
        assert places[place] == name or name in nameless
        _check_default(left.pop(places[place]), name in optional)
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if one.arg not in left and keywords:
            _check_option(one.arg, signature)
            continue
        assert left[one.arg].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        _check_default(left.pop(one.arg), default is not None)
    assert not given.vararg or more
    assert not given.kwarg or keywords
    required = [
        n for n, p in left.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    assert not required, "nobody who knows what was agreed would give these"


def _check_default(found: inspect.Parameter, optional: bool) -> None:
    assert found.default is not found.empty or not optional, f"{found.name} has a default"


def _check_option(name: str, signature: inspect.Signature) -> None:
    """`**options: Unpack[Options]` knows it, or they are the options of @app.on."""
    (options,) = (one for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD)
    typed = get_args(options.annotation)
    assert name in (typed[0] if typed else holdfast.ConsumerOptions).__annotations__


def test_webhooks_are_a_subscription_and_verifiers_and_sources_are_told_by_what_they_have() -> None:
    assert issubclass(holdfast.Webhooks, holdfast.Subscription)
    assert isinstance(holdfast.GitHub("s3cret"), holdfast.Verifier)
    source = holdfast.nats_source("nats://127.0.0.1:4222", stream="WH", durable="shop")
    assert isinstance(source, holdfast.Source)
    assert isinstance(holdfast.nats("nats://127.0.0.1:4222"), holdfast.Transport)
    assert not isinstance("s3cret", holdfast.Verifier)
