"""Events that wait aside: a key whose message was refused, or that fails for long. They are sent later, in their order.

The rows are failures of the subscription, as those of a projection are. A key waits as long as one of its events does: what
is read of it meanwhile waits behind. One that was spilled is tried again by itself, one that was parked waits for people.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ...follow import Cursor, LogRow, Note
from ...transport import Confirmed, Outcome, Refused, RetryLater
from .link import Link
from .message import Maker, Unsendable
from .spec import Spec

PAGE = 50
SOON = 0.1  # seconds, while what waits is not stored yet


class Aside:
    def __init__(
        self, spec: Spec, cursor: Cursor, link: Link, maker: Maker, clock: Callable[[], float]
    ) -> None:
        self._spec = spec
        self._cursor = cursor
        self._link = link
        self._maker = maker
        self._clock = clock  # it stands still while the destination is unreachable
        self._held: set[str] = set()
        self._due: dict[str | None, float] = {}  # which are tried again, and when
        self._tries: Counter[str | None] = Counter()
        self._since: dict[str | None, float] = {}  # when the first of each began to fail, as seen here
        self._noted: Counter[str | None] = Counter()  # ever
        self._unstored: Counter[str | None] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def load(self) -> None:
        for key, by_itself in (await self._cursor.waiting_keys()).items():
            if key is not None:
                self._held.add(key)
            if by_itself:
                self._due[key] = 0.0

    def holds(self, key: str) -> bool:
        return key in self._held

    def noted(self, note: Note) -> None:
        """An event that waits. It is stored when the cursor passes it."""
        if note.kind == "skipped":
            return
        key = note.row.key
        self._noted[key] += 1
        self._unstored[key] += 1
        if key is not None:
            self._held.add(key)
        if note.kind == "spilled":
            self._due.setdefault(key, time.monotonic() + self._spec.retry.delay(1))
            self._since.setdefault(key, self._clock())

    def stored(self, notes: Sequence[Note]) -> None:
        for note in notes:
            if note.kind != "skipped":
                self._unstored[note.row.key] -= 1

    def tasks(self) -> "list[asyncio.Task[None]]":
        return [] if self._task is None else [self._task]

    def next_look(self) -> float | None:
        return min(self._due.values()) if self._due and self._task is None else None

    def go_on(self, away: bool) -> None:
        """Try the first that is due, unless the destination is unreachable."""
        now = time.monotonic()
        if self._task is None and not away:
            for key, due in self._due.items():
                if due <= now:
                    name = f"holdfast relay {self._cursor.name} aside"
                    self._task = asyncio.get_running_loop().create_task(self._empty(key), name=name)
                    return

    def collect(self) -> None:
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def _empty(self, key: str | None) -> None:
        """Send what waits of a key, until nothing does or one fails."""
        while True:
            noted, unstored = self._noted[key], self._unstored[key]
            rows = await self._cursor.waiting(key, PAGE)
            if not rows:
                if unstored or self._noted[key] != noted:
                    self._due[key] = time.monotonic() + SOON
                else:  # nothing can have been stored since: the key is free again
                    self._forget(key)
                return
            if not await self._send(key, rows):
                return

    def _forget(self, key: str | None) -> None:
        for kept in (self._due, self._tries, self._since, self._noted, self._unstored):
            kept.pop(key, None)
        if key is not None:
            self._held.discard(key)

    async def _send(self, key: str | None, rows: Sequence[tuple[str, LogRow]]) -> bool:
        """False: no more of it for now."""
        done: list[int] = []
        notes: list[Note] = []
        go_on = True
        for kind, row in rows:
            if kind == "parked":
                self._due.pop(key, None)
                go_on = False
                break
            outcome = await self._outcome(kind, row)
            if isinstance(outcome, Confirmed):
                done.append(row.position)
                self._begin_anew(key)
                continue
            note, go_on = self._verdict(key, row, outcome)
            notes.append(note)
            if not go_on:
                break
        await self._cursor.settle_waiting(done, notes)
        return go_on

    async def _outcome(self, kind: str, row: LogRow) -> Outcome | str:
        if kind == "gone":
            return "the log has it no more"
        try:
            message = self._maker.message(row, late=True)
        except Unsendable as error:
            return error.why
        return (await self._link.send([message]))[0]

    def _verdict(self, key: str | None, row: LogRow, outcome: Outcome | str) -> tuple[Note, bool]:
        """What is noted of one that was not sent, and whether the next of its key may be."""
        if isinstance(outcome, str):
            return Note(row, "skipped", outcome), True
        if isinstance(outcome, RetryLater) and not self._gives_up(key, outcome):
            self._tries[key] += 1
            wait = self._spec.retry.delay(self._tries[key]) if outcome.after is None else outcome.after
            self._due[key] = time.monotonic() + min(wait, 300.0)
            return Note(row, "spilled", outcome.reason), False
        assert not isinstance(outcome, Confirmed)
        error = said(outcome, self._spec)
        self._begin_anew(key)
        if key is None or row.data is None or self._spec.refused == "skip":
            return Note(row, "skipped", error), True
        self._due.pop(key, None)
        return Note(row, "parked", error), False

    def _gives_up(self, key: str | None, outcome: RetryLater) -> bool:
        longest = self._spec.retry_for
        if outcome.scope != "key":  # while the destination is unreachable nothing is counted
            self._since.pop(key, None)
            return False
        failed_for = self._clock() - self._since.setdefault(key, self._clock())
        return longest is not None and failed_for >= longest

    def _begin_anew(self, key: str | None) -> None:
        """The next of it has not failed yet."""
        self._tries.pop(key, None)
        self._since.pop(key, None)


def said(outcome: RetryLater | Refused, spec: Spec) -> str:
    """Why a message was not sent, for people."""
    if isinstance(outcome, Refused):
        return f"{outcome.reason}: {outcome.detail}"
    return f"given up after {spec.retry_for:g} s of failures: {outcome.reason}"
