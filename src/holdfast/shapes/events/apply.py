"""How a projection is called, as a value."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from ...model.backoff import Backoff
from .event import EventConverter

Poison = Literal["stop", "skip", "park_key"]
Using = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Apply:
    """How a projection is called."""

    func: Callable[..., Any]
    is_async: bool
    many: bool  # it takes a sequence of events
    converter: EventConverter
    batch: int
    poison: Poison
    retry: Backoff
    max_attempts: int
    timeout: float
    using: Using | None = None
    tables: tuple[str, ...] = ()
    version: int = 1
