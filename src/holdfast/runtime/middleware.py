"""Middleware: what users put around every attempt."""

import abc
from collections.abc import Awaitable, Callable

from ..model.outcome import Outcome
from .job import Job

Next = Callable[[], Awaitable[Outcome]]
Middleware = Callable[[Job, Next], Awaitable[Outcome]]


class SkippableMiddleware(abc.ABC):
    """Middleware that can be skipped while it has nothing to do."""

    @abc.abstractmethod
    def wanted(self) -> bool: ...

    @abc.abstractmethod
    async def __call__(self, job: Job, call_next: Next) -> Outcome: ...
