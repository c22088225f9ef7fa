"""What the handler of a batch task is called with: the jobs, and a way to say how each of them ends."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from ...model.duration import Duration
from ...model.outcome import Completed, ErrorText, Outcome
from ...model.shown import text_of
from ...model.signals import Cancel, DeadLetter, Retry, Snooze
from ...model.text import describe, storable
from ..job import Job

T = TypeVar("T")


class Item(Generic[T]):
    """One job of a batch: `item.value` is what was enqueued, `item.job` the attempt (id, attempt, fence, partition_key).

    An item that nothing is said of completes when the call returns. What is said last counts, and nothing after the call.
    """

    __slots__ = ("_decide", "_encode", "_fail", "_outcome", "job", "value")

    def __init__(
        self,
        value: T,
        job: Job,
        *,
        encode: Callable[[object], str],
        fail: Callable[[ErrorText], Outcome],
        decide: Callable[[BaseException], Outcome],
    ) -> None:
        self.value = value
        self.job = job
        self._encode = encode
        self._fail = fail
        self._decide = decide
        self._outcome: Outcome | None = None

    def complete(self, result: object = None) -> None:
        """Done; `result` is what its JobHandle gives: `item.complete({"pages": 3})`."""
        self._outcome = Completed(self._encode(result))

    def fail(self, error: str | BaseException) -> None:
        """This attempt failed: `item.fail(error)` keeps the traceback. Retried as if the task had raised it."""
        if isinstance(error, BaseException):
            self._outcome = self._fail(describe(error))
        else:
            self._outcome = self._fail(
                ErrorText("Failed", storable(text_of(error, "item.fail(error) has no text")))
            )

    def retry(self, reason: str = "", *, after: Duration | None = None) -> None:
        """As `raise Retry(reason, after=...)`, for this item: spends an attempt; `after` replaces the backoff."""
        self._outcome = self._decide(Retry(reason, after=after))

    def snooze(self, after: Duration) -> None:
        """As `raise Snooze(after)`, for this item: later, without spending an attempt."""
        self._outcome = self._decide(Snooze(after))

    def dead_letter(self, reason: str) -> None:
        """As `raise DeadLetter(reason)`, for this item: given up now."""
        self._outcome = self._decide(DeadLetter(reason))

    def cancel(self, reason: str = "") -> None:
        """As `raise Cancel(reason)`, for this item."""
        self._outcome = self._decide(Cancel(reason))

    def __repr__(self) -> str:
        return f"Item({self.job.id}, {self.value!r})"


class Batch(Sequence[Item[T]]):
    """The jobs of one call, in the order they were claimed: `for item in batch: ...`, `len(batch)`, `batch.values`."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Item[T]]) -> None:
        self._items = list(items)

    @property
    def values(self) -> list[T]:
        """What was enqueued, one value for each item: `search.bulk(batch.values)`."""
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
