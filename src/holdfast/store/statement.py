"""A Statement says what to run; an executor (holdfast.db) runs it, sync, async or on the user's connection.

A Flow is a generator of statements that run in one transaction. `Statement.__iter__` yields the statement
itself and returns its decoded result, so inside a flow `rows = yield from claim(...)` is typed.

A statement that may run on the user's connection (enqueue, guard, settle, lock_owned: `-- anywhere` in its file) returns one
column of text[]: the one type that no driver lets its user redefine.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..sql import query, runs_anywhere

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(slots=True, eq=False)  # frozen takes three times as long to make
class Statement(Generic[T]):
    name: str
    text: str
    params: tuple[Any, ...]
    decode: Callable[[Sequence[Row]], T]
    binary: bool = False  # the result, on our own connections: cheaper to read when there are many rows
    texts: bool = (
        False  # its parameters are texts or NULL, its result is one text[] of words that need no quotes
    )

    @property
    def runs_anywhere(self) -> bool:
        """Whether it is safe under any search_path."""
        return runs_anywhere(self.name)

    def __iter__(self) -> Generator["Statement[Any]", Any, T]:
        answer: T = yield self
        return answer


Flow = Generator[Statement[Any], Any, T]


REFUSED = "holdfast: not ours"  # in the error of a Last that must not be committed


@dataclass(frozen=True, slots=True)
class Last:
    """The last statement of a transaction, which may go to the server in one message with the COMMIT. So it does not return
    that nothing may be committed: it fails, with REFUSED in its error. `otherwise` does the same, and returns it."""

    name: str  # under which it stays prepared on a connection
    text: str
    values: tuple[str | int | bool | None, ...]
    otherwise: Callable[[], Flow[bool]]


def named(
    name: str,
    params: tuple[Any, ...],
    decode: Callable[[Sequence[Row]], T],
    *,
    binary: bool = False,
    texts: bool = False,
) -> Statement[T]:
    """The statement of this name in the SQL files."""
    return Statement(name, query(name), params, decode, binary, texts)


def ids(rows: Sequence[Row]) -> list[Any]:
    """The first column."""
    return [row[0] for row in rows]


def count(rows: Sequence[Row]) -> int:
    return int(rows[0][0]) if rows else 0


def nothing(_: Sequence[Row]) -> None:
    return None
