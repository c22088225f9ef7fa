"""Signals from operators: their payload is checked against the declaration in the workflow's module."""

from typing import Any

from ...errors import InvalidPayload
from ...tasks.convert import Misfit, type_name
from ...tasks.taskset import TaskSet
from .declare import KIND
from .messages import Signal


def declared_signals(tasks: TaskSet, workflow: str) -> dict[str, Signal[Any]]:
    """By name: the signals in the modules that define a version of the workflow."""
    found: dict[str, Signal[Any]] = {}
    for one in tasks.declared(KIND).values():
        if one.name == workflow:
            for thing in getattr(one.codec.signature.func, "__globals__", {}).values():
                if isinstance(thing, Signal):
                    found.setdefault(thing.name, thing)
    return found


def check_signal(tasks: TaskSet, workflow: str, name: str, payload: Any) -> None:
    """Raises InvalidPayload when the payload is not of the signal's type."""
    signal = declared_signals(tasks, workflow).get(name)
    if signal is None:
        return
    try:
        signal._load(payload)
    except Misfit as error:
        text = f", {error}" if str(error).startswith("not ") else f": {error}"
        raise InvalidPayload(
            f"the payload of signal {name!r} must be {type_name(signal._payload)}{text}"
        ) from None
