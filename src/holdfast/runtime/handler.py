"""What the runtime needs to know about a task. The tasks layer builds these; the runtime only calls them."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .. import telemetry
from ..model.backoff import Backoff
from ..model.breaker import Breaker
from ..model.duration import seconds
from ..model.outcome import ErrorText, Failed, Outcome
from ..model.text import describe

LONGEST_DELAY = 3600 * 24 * 3600.0  # 3600 days: ten years as PostgreSQL counts them
FORGIVEN = 10  # claims that spent no attempt, after which an outage counts as a failure


class PayloadError(ValueError):
    """A stored payload cannot be turned into the handler's arguments. People see its text as the reason."""


class NeverFits(PayloadError):
    """No signature would take this payload."""


class NeedsNewer(PayloadError):
    """Newer code accepts this payload: the job waits for it without a limit."""


@dataclass(frozen=True, slots=True)
class Gather:
    """A batch task: call it for up to `size` jobs, at most `wait` seconds after the first of them."""

    size: int
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    name: str
    versions: frozenset[int]  # every payload version it can take
    func: Callable[..., Any]
    is_async: bool
    wants_job: bool
    transaction: Literal["none", "sync", "async"]
    decode: Callable[
        [int, str], dict[str, Any]
    ]  # (payload version, JSON text) -> keyword arguments; PayloadError
    encode: Callable[[object], str]  # a result -> JSON text; raises InvalidPayload
    queue: str = "inbox"
    lease: float | None = None
    timeout: float | None = None
    backoff: Backoff = field(default_factory=Backoff)
    process: bool = False
    memory_limit: int | None = None
    gather: Gather | None = None
    breaker: Breaker | None = None
    keep: bool | None = None  # whether rows of completed jobs are kept; None: as their queue says
    masked: tuple[str, ...] = ()  # names of arguments and results that are masked everywhere
    fingerprint: Callable[[], str] = str  # of its signature: equal ones accept the same payloads
    returns_none: bool = False  # by its annotation: None needs no encoding
    drive: Callable[..., Awaitable[Outcome]] | None = (
        None  # (Job, arguments): called instead of an async func
    )
    plain: bool = field(
        init=False
    )  # nothing around the call: a function of the payload alone, without a time limit
    bare: bool = field(init=False)  # plain and async: the caller can await it itself

    def __post_init__(self) -> None:
        plain = not self.wants_job and self.transaction == "none" and self.timeout is None
        plain = plain and not self.process and self.drive is None
        object.__setattr__(self, "plain", plain)
        object.__setattr__(self, "bare", plain and self.is_async)

    @property
    def signature(self) -> str:
        return self.fingerprint()

    def failed(self, error: ErrorText, attempt: int) -> Failed:
        return self.fails(error, self.pause(attempt))

    def fails(self, error: ErrorText, delay: float) -> Failed:
        return Failed(error, delay, self._deadline())

    def _deadline(self) -> float | None:
        """The text of an error; a user's own backoff may raise one without, or with a wrong one."""
        try:
            found = self.backoff.deadline
            return None if found is None else min(seconds(found, "Backoff.deadline"), LONGEST_DELAY)
        except BaseException as error:  # noqa: BLE001 as in pause()
            telemetry.emit(
                "backoff.failed", level=logging.ERROR, task=self.name, error=describe(error).summary
            )
            return None

    def pause(self, attempt: int) -> float:
        """Seconds to the next attempt. A user's backoff that raises, or returns no duration, is replaced by the default."""
        try:
            return min(seconds(self.backoff.delay(attempt), "Backoff.delay()"), LONGEST_DELAY)
        except BaseException as error:  # noqa: BLE001 the attempt has failed already, and must be settled
            telemetry.emit(
                "backoff.failed", level=logging.ERROR, task=self.name, error=describe(error).summary
            )
            return Backoff().delay(attempt)

    def timed_out(self, attempt: int) -> Failed:
        message = f"ran longer than its timeout of {self.timeout:g} s"
        return self.failed(ErrorText("JobTimeout", message), attempt)


class Handlers(Protocol):
    """The tasks a worker knows, by name and alias."""

    def find(self, task: str, version: int) -> Handler | None: ...

    def known(self) -> list[tuple[str, int]]:
        """Every (task name or alias, payload version) that this worker can run."""
        ...


def kept(handlers: Handlers) -> dict[str, bool]:
    """The tasks that decide by themselves whether their completed jobs are kept."""
    found = ((task, handlers.find(task, version)) for task, version in handlers.known())
    return {task: handler.keep for task, handler in found if handler is not None and handler.keep is not None}


def masked_names(handlers: Handlers) -> list[str]:
    """The names that their code masks, for tools that show jobs without loading it."""
    found = (handlers.find(task, version) for task, version in handlers.known())
    return sorted({name for handler in found if handler is not None for name in handler.masked})


def signatures(handlers: Handlers) -> list[str]:
    """The fingerprint of each of `known()`, in the same order."""
    found = (handlers.find(task, version) for task, version in handlers.known())
    return [handler.signature if handler is not None else "" for handler in found]
