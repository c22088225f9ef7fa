"""What the handler of a batch task is called with: the jobs, and a way to say how each of them ends."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from ...model.duration import Duration
from ...model.outcome import Completed, ErrorText, Outcome
from ...model.shown import text_of
from ...model.signals import Cancel, DeadLetter, HandlerSignal, Retry, Snooze
from ...model.text import describe, storable
from ..decide import decide
from ..handler import Handler
from ..inflight import Running
from ..job import Job

T = TypeVar("T")


class Item(Generic[T]):
    """One job of a batch: `item.value` is the enqueued value, `item.job` the attempt (id, attempt, fence, partition_key).

    An item without an outcome completes when the call returns. The last outcome counts; after the call it cannot change.
    """

    __slots__ = ("_handler", "_make", "_outcome", "_running", "value")

    def __init__(
        self, value: T, running: Running, handler: Handler, make: Callable[[Running, Handler], Job]
    ) -> None:
        self.value = value
        self._running = running
        self._handler = handler
        self._make = make
        self._outcome: Outcome | None = None

    @property
    def job(self) -> Job:
        """The attempt: `item.job.id`, `item.job.attempt`, `item.job.check()`."""
        job = self._running.job
        return self._make(self._running, self._handler) if job is None else job

    def complete(self, result: object = None) -> None:
        """Complete this item; its JobHandle returns `result`: `item.complete({"pages": 3})`."""
        self._outcome = Completed(self._handler.encode(result))

    def fail(self, error: str | BaseException) -> None:
        """This attempt failed: `item.fail(error)` keeps the traceback. Retried as if the task had raised it."""
        if isinstance(error, BaseException):
            text = describe(error)
        else:
            text = ErrorText("Failed", storable(text_of(error, "item.fail(error) has no text")))
        self._outcome = self._handler.failed(text, self._running.claimed.attempt)

    def retry(self, reason: str = "", *, after: Duration | None = None) -> None:
        """Like `raise Retry(reason, after=...)`, for this item: spends an attempt; `after` replaces the backoff."""
        self._signal(Retry(reason, after=after))

    def snooze(self, after: Duration) -> None:
        """Like `raise Snooze(after)`, for this item: later, without spending an attempt."""
        self._signal(Snooze(after))

    def dead_letter(self, reason: str) -> None:
        """Like `raise DeadLetter(reason)`, for this item: given up now."""
        self._signal(DeadLetter(reason))

    def cancel(self, reason: str = "") -> None:
        """Like `raise Cancel(reason)`, for this item."""
        self._signal(Cancel(reason))

    def _signal(self, signal: HandlerSignal) -> None:
        self._outcome = decide(signal, self._running, self._handler)

    def __repr__(self) -> str:
        return f"Item({self._running.claimed.id}, {self.value!r})"


class Batch(Sequence[Item[T]]):
    """The jobs of one call, in the order they were claimed: `for item in batch: ...`, `len(batch)`, `batch.values`."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Item[T]]) -> None:
        self._items = list(items)

    @property
    def values(self) -> list[T]:
        """The enqueued values, one per item: `search.bulk(batch.values)`."""
        return [item.value for item in self._items]

    @overload
    def __getitem__(self, index: int) -> Item[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item[T]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Batch of {len(self)}"
