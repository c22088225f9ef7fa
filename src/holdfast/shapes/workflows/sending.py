"""Signals from operators: their payload is checked against the declaration in the workflow's module."""

from typing import Any

from ...errors import InvalidPayload
from ...tasks.convert import Misfit, type_name
from ...tasks.taskset import TaskSet
from .declare import KIND
from .messages import Signal


def declared_signal(tasks: TaskSet, workflow: str, name: str) -> Signal[Any] | None:
    """The signal of this name in a module that defines a version of the workflow. None: there is none."""
    for one in tasks.declared(KIND).values():
        if one.name == workflow:
            for found in getattr(one.codec.signature.func, "__globals__", {}).values():
                if isinstance(found, Signal) and found.name == name:
                    return found
    return None


def check_signal(tasks: TaskSet, workflow: str, name: str, payload: Any) -> None:
    """Raises InvalidPayload when the payload is not of the signal's type."""
    signal = declared_signal(tasks, workflow, name)
    if signal is None:
        return
    try:
        signal._load(payload)
    except Misfit as error:
        text = f", {error}" if str(error).startswith("not ") else f": {error}"
        raise InvalidPayload(
            f"the payload of signal {name!r} must be {type_name(signal._payload)}{text}"
        ) from None
