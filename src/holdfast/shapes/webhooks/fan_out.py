"""Events become deliveries: a follower of the log that writes them in the transaction that moves its position."""

import json
from collections.abc import Callable
from typing import Any

from ... import failpoints
from ...db.database import Database
from ...errors import HoldfastError
from ...follow import Cursor, LogPage, LogRow, Note
from ...store.statement import Flow
from ...tasks.tracing import KEYS as TRACE
from . import store
from .registry import Registry
from .spec import Spec
from .store import Pair

PAGE = 1000
PAGE_BYTES = 8 * 1024 * 1024
MOST_PAIRS = 5000  # deliveries of one transaction, except for one event with more endpoints


class FanOut:
    stuck = False

    def __init__(self, spec: Spec, database: Callable[[], Database], cursor: Cursor) -> None:
        self._spec = spec
        self._database = database
        self._cursor = cursor
        self._registry = Registry()
        self._ordered_attempts = len(spec.ordered_schedule) + 1

    async def run(self) -> None:
        cursor = self._cursor
        while (page := await cursor.read(cursor.position, cursor.seq, PAGE, PAGE_BYTES)) is not None:
            await self._registry.refresh(
                self._database()
            )  # after the page was read: it includes the endpoints of all its events
            await self._take(page)

    async def _take(self, page: LogPage) -> None:
        pairs: list[Pair] = []
        notes: list[Note] = []
        for row in page.events:
            try:
                pairs += self._pairs(row)
            except Exception as error:  # noqa: BLE001 the function for tenants is the user's code
                notes.append(Note(row, "skipped", f"whose it is could not be found out: {_text(error)}"))
            if len(pairs) >= MOST_PAIRS:
                await self._write(row.position, row.seq, pairs, notes)
                pairs, notes = [], []
        if page.position > self._cursor.position:
            await self._write(page.position, page.seq, pairs, notes)

    async def _write(self, position: int, seq: int, pairs: list[Pair], notes: list[Note]) -> None:
        def effect() -> Flow[int]:
            failpoints.point("webhooks.advanced")
            made = yield from store.fan_out(pairs, self._spec.attempts, self._ordered_attempts)
            failpoints.point("webhooks.written")
            return made

        await self._cursor.advance(position, seq, notes, effect if pairs else None)
        failpoints.point("webhooks.done")

    def _pairs(self, row: LogRow) -> list[Pair]:
        headers: dict[str, str] = json.loads(row.headers) if row.headers else {}
        tenant = self._tenant(row, headers)
        if tenant is None:
            return []
        trace = {name: headers[name] for name in TRACE if name in headers}
        metadata = json.dumps(trace) if trace else None
        return [Pair(endpoint, row, metadata) for endpoint in self._registry.wanting(tenant, row.type)]

    def _tenant(self, row: LogRow, headers: dict[str, str]) -> str | None:
        """The event's tenant; None: it has none."""
        if isinstance(self._spec.tenant, str):
            return headers.get(self._spec.tenant)
        found: Any = self._spec.tenant(self._cursor.event(row))
        if found is not None and not isinstance(found, str):
            raise TypeError(f"tenant() must return text or None, not {type(found).__name__}")
        return found


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
