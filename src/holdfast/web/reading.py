"""The database as the dashboard reads it: a few connections of its own, short statements, and nothing can be written."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.db.database import Database
from holdfast.store.queue_load import read_only
from holdfast.store.statement import Flow, Statement

T = TypeVar("T")
CONNECTIONS = 4
LONGEST = 5.0  # seconds of one statement


@dataclass(slots=True)
class Ran:
    """The statements of a page, in their order."""

    own: list[Statement[Any]] = field(default_factory=list)
    shared: list[Statement[Any]] = field(default_factory=list)  # that were run for all viewers


RAN: ContextVar[Ran | None] = ContextVar("ran", default=None)  # where somebody wants to see them


class Reading(Database):
    """Like the app's database; each transaction is read-only, and its statements are short, also behind a pooler."""

    def __init__(self, of: Database) -> None:
        settings = replace(of.settings, pool_size=CONNECTIONS)
        super().__init__(of.url, settings, of.clock)
        self.longest = LONGEST

    def run(self, make: Callable[[], Statement[T] | Flow[T]]) -> T:
        return super().run(lambda: _reading(make))

    async def arun(self, make: Callable[[], Statement[T] | Flow[T]]) -> T:
        return await super().arun(lambda: _reading(make))


def _reading(make: Callable[[], Statement[T] | Flow[T]]) -> Flow[T]:
    yield from read_only()
    what: Any = make()
    ran = RAN.get()
    answer: T = yield from (what if ran is None else _noted(what, ran))
    return answer


def _noted(what: Statement[T] | Flow[T], ran: Ran) -> Flow[T]:
    flow = iter(what)
    resume: Callable[[], Statement[Any]] = partial(next, flow)
    while True:
        try:
            statement = resume()
        except StopIteration as end:
            answer: T = end.value
            return answer
        ran.own.append(statement)
        try:
            resume = partial(flow.send, (yield statement))
        except Exception as error:  # noqa: BLE001 the flow handles it, or raises it again
            resume = partial(flow.throw, error)
