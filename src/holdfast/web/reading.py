"""The database as the dashboard reads it: a few connections of its own, short statements, and nothing can be written."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from holdfast.db.database import Database
from holdfast.store.queue_load import read_only
from holdfast.store.statement import Flow, Statement

T = TypeVar("T")
CONNECTIONS = 4
LONGEST = 5.0  # seconds of one statement


class Reading(Database):
    """Like the app's database; each transaction is read-only, also behind a pooler."""

    def __init__(self, of: Database) -> None:
        settings = replace(of.settings, pool_size=CONNECTIONS, statement_timeout=LONGEST)
        super().__init__(of.url, settings, of.clock)

    def run(self, make: Callable[[], Statement[T] | Flow[T]]) -> T:
        return super().run(lambda: _reading(make))

    async def arun(self, make: Callable[[], Statement[T] | Flow[T]]) -> T:
        return await super().arun(lambda: _reading(make))


def _reading(make: Callable[[], Statement[T] | Flow[T]]) -> Flow[T]:
    yield from read_only()
    what: Any = make()
    answer: T = yield from what
    return answer
